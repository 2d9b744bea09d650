"""The type check of NVIDIA's front end: what a launch's arguments are taken for, and what a learner is told."""

import dataclasses
import re
import traceback
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import torch

ct = pytest.importorskip("cuda.tile")

from cuda.tile import compilation  # noqa: E402

from tilekit.cutile_interpreter import frontend  # noqa: E402
from tilekit.cutile_interpreter.frontend import check, signature  # noqa: E402

F32, F16 = np.float32, np.float16


def zeros(*shape, dtype=F32):
    return np.zeros(shape, dtype)


def parameter(value, annotation=object):
    """What the front end is told of one argument."""

    def kernel(x):
        pass

    kernel.__annotations__ = {"x": annotation}
    (found,) = signature(ct.kernel(kernel), (value,)).parameters
    return found


# --- what a launch infers ----------------------------------------------------------------------------------------------
# The expected constraints are what ct.launch of cuda-tile 1.7 hands to its compiler for the same shapes and strides.


def array(dtype, ndim, **others):
    known = dict(
        index_dtype=ct.int32,
        stride_lower_bound_incl=0,
        alias_groups=(),
        may_alias_internally=False,
        base_addr_divisible_by=16,
    )
    known.update(others)
    constants = known.get("stride_constant", [None] * ndim)
    known["stride_lower_bound_incl"] = [None if c is not None else 0 for c in constants]
    return compilation.ArrayConstraint(dtype, ndim, **known)


INFERRED = {
    "vector": (zeros(4), array(ct.float32, 1, stride_constant=[1])),
    "0-d": (zeros(), array(ct.float32, 0, stride_constant=[])),
    "divisible": (
        zeros(8, 16),
        array(ct.float32, 2, stride_constant=[None, 1], stride_divisible_by=[4, 1], shape_divisible_by=[1, 16]),
    ),
    "size 1": (
        zeros(8, 1),
        array(ct.float32, 2, stride_constant=[1, 1], shape_constant=[None, 1]),
    ),
    "empty": (torch.zeros(0, 5), array(ct.float32, 2, stride_constant=[None, 1], shape_divisible_by=[16, 1])),
    "transposed": (zeros(4, 8).T, array(ct.float32, 2, stride_constant=[1, None], stride_divisible_by=[1, 4])),
    "expanded": (
        torch.zeros(5).expand(3, 5),
        array(ct.float32, 2, stride_constant=[None, 1], stride_divisible_by=[4, 1], may_alias_internally=True),
    ),
    "every other": (torch.zeros(8)[::2], array(ct.float32, 1, stride_constant=[None])),
    "begins at an odd address": (
        torch.zeros(8, dtype=torch.float16)[1:4],
        array(ct.float16, 1, stride_constant=[1], base_addr_divisible_by=1),
    ),
    "bool": (zeros(17, dtype=bool), array(ct.bool_, 1, stride_constant=[1])),
    "bfloat16": (torch.zeros(3, dtype=torch.bfloat16), array(ct.bfloat16, 1, stride_constant=[1])),
    "float8": (torch.zeros(3, dtype=torch.float8_e4m3fn), array(ct.float8_e4m3fn, 1, stride_constant=[1])),
    "meta": (torch.zeros(3, device="meta"), array(ct.float32, 1, stride_constant=[1])),
    "int": (3, compilation.ScalarConstraint(ct.int32)),
    "float": (3.0, compilation.ScalarConstraint(ct.float32)),
    "NumPy's float64 is a Python float": (np.float64(3), compilation.ScalarConstraint(ct.float32)),
    "truth": (True, compilation.ScalarConstraint(ct.bool_)),
    "tuple": (
        (1, (2.0, zeros(4))),
        compilation.TupleConstraint(
            (
                compilation.ScalarConstraint(ct.int32),
                compilation.TupleConstraint(
                    (compilation.ScalarConstraint(ct.float32), array(ct.float32, 1, stride_constant=[1]))
                ),
            )
        ),
    ),
    "list": (
        [zeros(16, 4), zeros(4, 16).T],
        compilation.ListConstraint(
            array(ct.float32, 2, stride_constant=[None, None], shape_divisible_by=[16, 1]),
            alias_groups=(),
            elements_may_alias=True,
        ),
    ),
}


@pytest.mark.parametrize("value, expected", INFERRED.values(), ids=INFERRED)
def test_what_a_launch_infers(value, expected):
    assert parameter(value) == expected


def test_annotations_decide():
    static_sizes = Annotated[ct.Array, ct.ArrayAnnotation(static_shape_dims=(0, -1), index_dtype=ct.int64)]
    assert parameter(zeros(1, 4, 5), static_sizes) == array(
        ct.float32,
        3,
        index_dtype=ct.int64,
        stride_constant=[None, None, 1],
        stride_divisible_by=[4, 1, 1],
        shape_constant=[1, None, 5],
    )
    # A named stride turns off the inference of a stride of 1 on the others.
    static_strides = Annotated[ct.Array, ct.ArrayAnnotation(static_stride_dims=(0,))]
    assert parameter(zeros(4, 5), static_strides) == array(ct.float32, 2, stride_constant=[5, None])
    assert parameter(3, ct.ScalarInt64) == compilation.ScalarConstraint(ct.int64)
    assert parameter(2**40, ct.ScalarInt64) == compilation.ScalarConstraint(ct.int64)
    assert parameter(2**40, ct.Constant[int]) == compilation.ConstantConstraint(2**40)
    assert parameter((1, 2.0), ct.Constant[int]) == compilation.TupleConstraint((1, 2.0))
    assert parameter((1, 2), tuple[ct.Constant[int], object]) == compilation.TupleConstraint(
        (1, compilation.ScalarConstraint(ct.int32))
    )
    wide = Annotated[list, ct.ListAnnotation(element=ct.IndexedWithInt64)]
    assert parameter([zeros(4)], wide).element == array(ct.float32, 1, index_dtype=ct.int64, stride_constant=[1])


REFUSED = {
    "None": (None, object, TypeError, "got None of type NoneType"),
    "text": ("x", object, TypeError, "a kernel takes arrays"),
    "a NumPy scalar": (np.float32(2), object, TypeError, "pass a Python number, such as 2.0"),
    "too large an int": (2**31, object, OverflowError, "ct.ScalarInt64"),
    "too large for 64 bits": (2**63, ct.ScalarInt64, OverflowError, "out of the range of int64"),
    "too large a constant": (2**64, ct.Constant[int], OverflowError, "64-bit"),
    "array as constant": (zeros(4), ct.Constant[int], TypeError, "a ct.Constant is an int"),
    "complex": (zeros(4, dtype=np.complex64), object, TypeError, "no arrays of dtype complex64"),
    "foreign byte order": (zeros(4, dtype=">f4"), object, TypeError, "byte order"),
    "empty list": ([], object, TypeError, "at least one array"),
    "list of numbers": ([1], object, TypeError, "holds arrays and nothing else"),
    "list of two dtypes": ([zeros(4), zeros(4, dtype=F16)], object, TypeError, "one dtype"),
    "list of two ranks": ([zeros(4), zeros(4, 4)], object, TypeError, "one rank"),
    "no tuple": (3, tuple[int, int], TypeError, "annotated as a tuple"),
    "tuple too short": ((3,), tuple[int, int], TypeError, "a tuple of 2 items"),
    "axis out of range": (
        zeros(4),
        Annotated[ct.Array, ct.ArrayAnnotation(static_shape_dims=(1,))],
        ValueError,
        "axis 1 in static_shape_dims",
    ),
    "axis named twice": (
        zeros(4),
        Annotated[ct.Array, ct.ArrayAnnotation(static_stride_dims=(0, -1))],
        ValueError,
        "twice in static_stride_dims",
    ),
    "static sizes differ in a list": (
        [zeros(4), zeros(5)],
        Annotated[list, ct.ListAnnotation(element=ct.ArrayAnnotation(static_shape_dims=(0,)))],
        ValueError,
        "one size along axis 0",
    ),
}


@pytest.mark.parametrize("value, annotation, kind, words", REFUSED.values(), ids=REFUSED)
def test_refused_arguments(value, annotation, kind, words):
    with pytest.raises(kind, match=re.escape(words)) as caught:
        parameter(value, annotation)
    assert "Argument 'x' of kernel()" in str(caught.value)
    assert __file__ in str(caught.value)


def test_a_dataclass_is_no_argument_yet():
    @dataclasses.dataclass(frozen=True)
    class Pair:
        x: int

    with pytest.raises(TypeError, match="a kernel takes arrays"):
        parameter(Pair(1))


# --- mistakes that beginners make --------------------------------------------------------------------------------------
# Each kernel is wrong in the line that ends in "# here".


@ct.kernel
def stores_narrower(x, y):
    ct.store(y, 0, ct.load(x, 0, 16))  # here


@ct.kernel
def tile_of_100(x):
    ct.load(x, 0, 100)  # here


@ct.kernel
def loop_changes_type(x):
    acc = 0
    for i in range(4):
        acc = acc + ct.load(x, i, 16)  # here


@ct.kernel
def loop_changes_dtype(x, y):
    acc = ct.zeros(16, ct.float16)
    for i in range(4):
        acc = acc + ct.load(x, i, 16)  # here
    ct.store(y, 0, acc)


@ct.kernel
def undefined_name(x):
    ct.store(x, 0, resutl)  # noqa: F821  # here


@ct.kernel
def undefined_on_a_path(x):
    if ct.bid(0) > 0:  # here
        a = 1.0
    ct.store(x, 0, a)


@ct.kernel
def list_literal(x):
    parts = [1, 2]  # noqa: F841  # here


@ct.kernel
def catches(x):
    try:  # here
        ct.load(x, 0, 16)
    except ValueError:
        pass


@ct.kernel
def size_at_run_time(x, n):
    ct.load(x, 0, n)  # here


@ct.kernel
def shape_as_size(x):
    ct.load(x, 0, (x.shape[0],))  # here


@ct.kernel
def one_index_for_two_axes(x):
    ct.load(x, (0,), (16,))  # here


@ct.kernel
def one_size_for_two_axes(x):
    ct.load(x, (0, 0), (16,))  # here


@ct.kernel
def shapes_do_not_broadcast(x):
    ct.load(x, 0, 16) + ct.load(x, 0, 32)  # here


@ct.kernel
def if_on_a_tile(x):
    if ct.load(x, 0, 16) > 0:  # here
        ct.store(x, 0, 1.0)


@ct.kernel
def assigns_to_an_array(x):
    x[0] = 1.0  # here


@ct.kernel
def asserts_statically(x):
    ct.static_assert(x.ndim == 2, "x is a matrix")  # here


A16, A16x16 = zeros(16), zeros(16, 16)
MISTAKES = [
    (stores_narrower, (A16, zeros(16, dtype=F16)), ct.TileTypeError, ".astype(ct.float16)"),
    (tile_of_100, (A16,), ct.TileTypeError, "Hint: Tiles have power-of-two sizes"),
    (loop_changes_type, (A16,), ct.TileTypeError, "Let `acc` begin with the type that it ends with"),
    (loop_changes_dtype, (A16, A16), ct.TileTypeError, "Let `acc` begin with the type that it ends with"),
    (undefined_name, (A16,), ct.TileSyntaxError, "Assign `resutl` before this line"),
    (undefined_on_a_path, (A16,), ct.TileTypeError, "Give `a` a value before"),
    (list_literal, (A16,), ct.TileSyntaxError, "no lists or dicts"),
    (catches, (A16,), ct.TileSyntaxError, "try"),
    (size_at_run_time, (A16, 16), ct.TileTypeError, "ct.Constant[int]"),
    (shape_as_size, (A16,), ct.TileTypeError, "ct.Constant[int]"),
    (one_index_for_two_axes, (A16x16,), ct.TileTypeError, "one index for each"),
    (one_size_for_two_axes, (A16x16,), ct.TileTypeError, "one size for each"),
    (shapes_do_not_broadcast, (A16,), ct.TileError, "equal or 1"),
    (if_on_a_tile, (A16,), ct.TileTypeError, "ct.where"),
    (assigns_to_an_array, (A16,), ct.TileTypeError, "store()"),
    (asserts_statically, (A16,), ct.TileStaticAssertionError, "x is a matrix"),
]


@pytest.mark.parametrize("kernel, args, kind, words", MISTAKES, ids=[m[0]._pyfunc.__name__ for m in MISTAKES])
def test_mistakes(kernel, args, kind, words):
    lines = Path(__file__).read_text().splitlines()
    first = kernel._pyfunc.__code__.co_firstlineno
    wrong = next(n for n in range(first, len(lines) + 1) if "# here" in lines[n - 1])
    with pytest.raises(kind) as caught:
        check(kernel, args)
    text = str(caught.value)
    assert words in text
    assert re.search(rf'"{re.escape(__file__)}", lines? {wrong}\b', text), text
    assert lines[wrong - 1].split("  #")[0].strip().removesuffix(":") in text
    assert "Unknown location" not in text
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("Traceback") == 1
    assert not re.search(r'File ".*cuda[/\\]tile', shown), "NVIDIA's own lines do not help a learner"


def test_wrong_number_of_arguments():
    with pytest.raises(TypeError, match=r"takes 2 arguments \(x, y\), and 1 was given") as caught:
        check(stores_narrower, (A16,))
    assert f'File "{__file__}", line {stores_narrower._pyfunc.__code__.co_firstlineno + 1}' in str(caught.value)
    assert "def stores_narrower(x, y):" in str(caught.value)


def test_no_kernel():
    with pytest.raises(TypeError, match="@ct.kernel"):
        check(lambda x: None, (A16,))


def test_an_endless_recursion_is_shown_shortened():
    def again(x):
        again(x)

    @ct.kernel
    def starts(x):
        again(x)

    with pytest.raises(ct.TileRecursionError) as caught:
        check(starts, (A16,))
    assert "in starts" in str(caught.value) and "in again" in str(caught.value)
    assert len(str(caught.value).splitlines()) < 40


def test_a_compile_time_error_shows_the_line_that_raised():
    def divides():
        return 1 // 0

    @ct.kernel
    def evaluates(x):
        ct.store(x, 0, ct.static_eval(divides()))

    with pytest.raises(ct.TileStaticEvalError, match="ZeroDivisionError") as caught:
        check(evaluates, (A16,))
    assert "return 1 // 0" in str(caught.value)
    assert "ct.static_eval(divides())" in str(caught.value)


def test_the_architecture_is_asked_only_if_named():
    @ct.kernel
    def copies(x, y):
        ct.store(y, 0, ct.load(x, 0, 16))

    x = torch.zeros(16, dtype=torch.float8_e4m3fn)
    check(copies, (x, x))
    check(copies, (x, x), arch="sm_90")
    with pytest.raises(ct.TileUnsupportedFeatureError, match="float8_e4m3fn is not supported on sm_80"):
        check(copies, (x, x), arch="sm_80")


# --- once for each type ------------------------------------------------------------------------------------------------


@pytest.fixture
def translations(monkeypatch):
    count = []
    real = frontend._translate
    monkeypatch.setattr(frontend, "_translate", lambda *args: (count.append(args), real(*args)))
    return count


def test_once_for_each_type(translations):
    @ct.kernel
    def fills(x, n, scale, TILE: ct.Constant[int], FACTOR: ct.Constant[float]):
        ct.store(x, 0, ct.full(TILE, n * scale * FACTOR, ct.float32).astype(x.dtype))

    def new(*args):
        before = len(translations)
        check(fills, args)
        return len(translations) > before

    assert new(zeros(16), 1, 1.0, 16, 2.0)
    assert not new(zeros(99), 7, 5.5, 16, 2.0), "sizes and run-time numbers do not change a type"
    assert new(zeros(16, dtype=F16), 1, 1.0, 16, 2.0), "another dtype"
    assert new(torch.zeros(16), 1, 1.0, 16, 2.0), "another library"
    assert new(zeros(16), 1.0, 1.0, 16, 2.0), "float instead of int"
    assert new(zeros(16), 1, 1.0, 32, 2.0), "another constant"
    assert new(zeros(16), 1, 1.0, 16, 2), "2 is not 2.0"
    assert new(zeros(16), 1, 1.0, 16, 0.0)
    assert new(zeros(16), 1, 1.0, 16, -0.0), "-0.0 is not 0.0"
    assert new(zeros(16), 1, 1.0, 16, float("nan"))
    assert not new(zeros(16), 1, 1.0, 16, float("nan"))
    with pytest.raises(OverflowError):
        check(fills, (zeros(16), 2**31, 1.0, 16, 2.0))


def test_annotated_sizes_are_part_of_the_type():
    @ct.kernel
    def whole(x: Annotated[ct.Array, ct.ArrayAnnotation(static_shape_dims=(0,))]):
        ct.load(x, 0, (x.shape[0],))

    check(whole, (zeros(16),))
    with pytest.raises(ct.TileTypeError, match="power of two"):
        check(whole, (zeros(17),))


def test_a_refused_launch_is_refused_again():
    for _ in range(2):
        with pytest.raises(ct.TileTypeError):
            check(tile_of_100, (A16,))


# --- other versions of cuda-tile ---------------------------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch):
    """A process that has asked nothing yet."""
    monkeypatch.setattr(frontend, "_skipped", False)
    monkeypatch.setattr(frontend, "_definitions", type(frontend._definitions)())
    frontend._internals.cache_clear()
    yield monkeypatch
    frontend._internals.cache_clear()


def other_export(kernel, signatures, output):
    raise AssertionError("never reached")


@pytest.mark.parametrize(
    "owner, name, changed",
    [
        ("cuda.tile._compile", "_SUPPORTED_VERSIONS", []),
        ("cuda.tile._compile", "_SUPPORTED_VERSIONS", None),
        ("cuda.tile.compilation", "export_kernel", other_export),
        ("cuda.tile._annotated_function.LeafAnnotationNode", "KIND", "something new"),
    ],
)
def test_an_unknown_version_is_not_checked_and_that_is_said_once(fresh, owner, name, changed):
    fresh.setattr(f"{owner}.{name}", changed)
    with pytest.warns(UserWarning, match="without NVIDIA's type check") as warned:
        check(tile_of_100, (A16,))
        check(list_literal, (A16,))
    assert len(warned) == 1


def test_without_the_package_nothing_is_checked(fresh):
    import sys

    fresh.setitem(sys.modules, "cuda.tile._cext", None)
    assert check(tile_of_100, (A16,)) is None
