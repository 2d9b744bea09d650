"""Cases for cuda.tile kernels, and how one is run: interpreted, compiled, or only through NVIDIA's front end.

A case is data: a kernel, a grid, arguments made from a random generator, and either what the arrays hold afterwards
(computed in float64 or exact integers, never by an implementation of cuda.tile) or the exception that the
documentation promises. ``TILEKIT_CONFORMANCE`` chooses the way of running:

=============  ====================================================================================
``interpret``  the interpreter, on torch CPU tensors or NumPy arrays (the default)
``compiled``   ``ct.launch`` on CUDA tensors; skipped without a GPU
``frontend``   NVIDIA's front end: does it accept and refuse what the cases say? No values.
``cubin``      as ``frontend``, and the tile compiler makes a cubin for sm_90
=============  ====================================================================================
"""

import contextlib
import importlib.util
import os
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import cuda.tile as ct
import ml_dtypes
import numpy as np
import pytest
import torch

from . import dtypes

MODE = os.environ.get("TILEKIT_CONFORMANCE", "interpret")


@dataclass(frozen=True)
class Tolerance:
    """|got - expected| <= ulps * (spacing of the array's dtype at expected) + absolute.

    NaNs and infinities must be at the same places. Zeros may differ in sign.
    """

    ulps: float = 0.0
    absolute: float = 0.0


EXACT = None  # every value equal, zeros of the same sign, NaN where NaN is


def ulp(ulps: float, absolute: float = 0.0) -> Tolerance:
    return Tolerance(ulps, absolute)


@dataclass(frozen=True)
class Case:
    """One promise of the documentation.

    Args:
        id: unique over all families, "family/what/variant".
        kernel: a ``ct.kernel``, from a module or made by a factory.
        grid: as for ``ct.launch``.
        args: ``rng -> list`` of NumPy arrays (ml_dtypes' included), scalars, tuples and lists of arrays. Arrays to be
            written should hold something that no right result holds (see `blank`).
        expected: ``expected(*args)`` gives what the *last* array argument holds afterwards, or a dict of
            {position: content} for several; any array not named must be unchanged. A string is a regular expression
            that standard output must match (print, printf).
        error: the exception class that ``launch`` raises; with `match`, a regular expression for the message where the
            documentation states it.
        tolerance: EXACT, a Tolerance, or {position: either}.
        needs: "compiler": only NVIDIA's front end can see the error, or without it the error is one of Python's own (a
            missing argument), so a stand-in skips the case.
            "gpu": needs a GPU. "sm_100": the compiled run needs Blackwell. "no-front-end": the error is raised by
            launch, before the compiler is asked.
        differs: why cuda-tile 1.7 itself, compiled, does not do what its documentation says; the compiled run is then
            expected to fail, and fails the test when it does not.
        differs_in_value: as `differs`, where the kernel compiles and runs and stores other values.
        views: ``arrays -> arrays``, applied to the torch tensors or NumPy arrays just before the launch, to make strides
            that `args` cannot carry to another device (transposes, expanded arrays). Works on what both libraries have.
    """

    id: str
    kernel: object
    grid: tuple
    args: Callable
    expected: object = None
    error: type[BaseException] | tuple | None = None
    match: str = ""
    tolerance: object = EXACT
    needs: tuple[str, ...] = ()
    views: Callable | None = None
    differs: str = ""
    differs_in_value: str = ""

    def __post_init__(self):
        assert (self.expected is None) != (self.error is None), f"{self.id}: either expected or error"

    @property
    def flavour(self) -> str:
        """A quarter of the cases run on NumPy arrays, the others on torch tensors; which is settled by the id."""
        return "numpy" if zlib.crc32(self.id.encode()) % 4 == 0 else "torch"


def blank(dtype: str, shape) -> np.ndarray:
    """An array to be written: filled with a value that a result holds only by accident (NaN, 0x5A...)."""
    array = np.empty(shape, dtypes.NUMPY[dtype])
    if dtype in dtypes.FLOATS + dtypes.FLOATS8 + ("float8_e8m0fnu",):
        array[...] = np.nan
    elif dtype == "bool":
        array[...] = True
    else:
        array[...] = 0x5A
    return array


def compiler_there() -> bool:
    """Is this NVIDIA's package, and not a stand-in for it that has no front end?"""
    return importlib.util.find_spec("cuda.tile._cext") is not None


def collect() -> list[Case]:
    """The cases of all families: every module cases_*.py beside this one has a list CASES."""
    folder = os.path.dirname(__file__)
    names = sorted(n[:-3] for n in os.listdir(folder) if n.startswith("cases_") and n.endswith(".py"))
    return [case for name in names for case in importlib.import_module(f"{__package__}.{name}").CASES]


@contextlib.contextmanager
def deviation(case: Case, runs: bool):
    """Around NVIDIA's compiler, and the launch if the kernel `runs`: a known deviation has to show."""
    reason = case.differs or (case.differs_in_value if runs else "")
    if not reason:
        yield
        return
    try:
        yield
    except (ct.TileError, AssertionError):
        pytest.xfail(reason)
    else:
        pytest.fail(f"no longer so, take `differs` out: {reason}")


# ---- running ---------------------------------------------------------------------------------------------------------


def place_all(value, function):
    """The arguments with every array replaced by function(array), those inside lists and tuples too."""
    if isinstance(value, np.ndarray | torch.Tensor):
        return function(value)
    if type(value) in (list, tuple):
        return type(value)(place_all(item, function) for item in value)
    return value


def _to_numpy(value):
    return dtypes.to_numpy(value) if isinstance(value, torch.Tensor) else value


def arguments(case: Case, seed: int) -> list:
    """The case's arguments for this seed: the first draw for which a kernel that does nothing would be wrong."""
    for draw in range(DRAWS):
        args = list(case.args(np.random.default_rng([seed, zlib.crc32(case.id.encode()), draw])))
        if case.error is not None or isinstance(case.expected, str) or _changes_something(case, args):
            return args
    raise AssertionError(f"in {DRAWS} draws the case expects what was there before: it could not fail")


DRAWS = 20


def _changes_something(case: Case, before: list) -> bool:
    for position, wanted in _expected(case, before).items():
        many = isinstance(before[position], list | tuple)
        for old, new in zip(before[position], wanted, strict=True) if many else [(before[position], wanted)]:
            if differs(old, np.broadcast_to(np.asarray(new), old.shape)):
                return True
    return False


def run(case: Case, seed: int, launch, place, capture=None) -> None:
    """Launch the case with `launch`, its arrays placed by `place` (NumPy array -> what launch takes), and judge it."""
    before = arguments(case, seed)
    placed = place_all(before, lambda a: place(a.copy()))
    given = list(case.views(*placed)) if case.views else placed
    if case.error is not None:
        with pytest.raises(case.error, match=f"(?is){case.match}" if case.match else None):
            launch(case.grid, case.kernel, tuple(given))
        return
    launch(case.grid, case.kernel, tuple(given))
    if isinstance(case.expected, str):
        out = capture()
        assert re.search(case.expected, out), f"printed {out!r}, expected {case.expected!r}"
        return
    after = place_all(placed, _to_numpy)
    judge(case, before, after)


def _expected(case: Case, before: list) -> dict:
    """What the arguments hold afterwards, by their position."""
    expected = case.expected(*place_all(before, np.copy))
    if isinstance(expected, dict):
        return expected
    return {max(i for i, value in enumerate(before) if isinstance(value, np.ndarray)): expected}


def as_expected(case: Case, before: list) -> tuple[list, list]:
    """Arguments as a right run leaves them, and the arrays among them that it wrote."""
    after = place_all(before, np.copy)
    written = []
    for position, wanted in _expected(case, before).items():
        arrays = after[position] if isinstance(after[position], list | tuple) else [after[position]]
        wanted = wanted if isinstance(after[position], list | tuple) else [wanted]
        for array, content in zip(arrays, wanted, strict=True):
            with np.errstate(all="ignore"):
                array[...] = np.broadcast_to(np.asarray(content), array.shape).astype(array.dtype)
            written.append(array)
    return after, written


def judge(case: Case, before: list, after: list) -> None:
    """Compare the arrays after a launch with what was expected, and those not expected to change with what they were."""
    expected = _expected(case, before)
    for position, wanted in expected.items():
        old, got = before[position], after[position]
        tolerance = case.tolerance.get(position, EXACT) if isinstance(case.tolerance, dict) else case.tolerance
        if isinstance(old, list | tuple):
            assert len(wanted) == len(got)
            pairs = zip(old, got, wanted, strict=True)
        else:
            pairs = [(old, got, wanted)]
        for _, g, w in pairs:
            w = np.broadcast_to(np.asarray(w), g.shape)
            _compare(g, w, tolerance, f"argument {position}")
    for position, old in enumerate(before):
        if position not in expected:
            for o, g in zip(_arrays_in(old), _arrays_in(after[position]), strict=True):
                assert o.tobytes() == g.tobytes(), f"argument {position} was written"


def _arrays_in(value) -> list:
    found = []
    place_all(value, found.append)
    return found


def differs(a: np.ndarray, b) -> bool:
    a, b = _wide(a), _wide(np.asarray(b))
    with np.errstate(invalid="ignore"):
        return bool(np.any(~((a == b) | ((a != a) & (b != b)))))


def _wide(array: np.ndarray) -> np.ndarray:
    """Values as float64 or Python integers, in which those of every dtype are exact."""
    if array.dtype == object or array.dtype.kind in "iu" and array.dtype.isbuiltin == 1:
        return array.astype(object)
    with np.errstate(invalid="ignore"):  # a signalling NaN among random bits
        return array.astype(np.float64)


def spacing(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The distance to the next number of `dtype`, away from zero; that of the smallest normal number below it."""
    info = ml_dtypes.finfo(dtype)
    _, exponent = np.frexp(np.maximum(np.abs(values), float(info.smallest_normal)))
    return np.ldexp(1.0, exponent - 1 - info.nmant)


def _compare(got: np.ndarray, expected: np.ndarray, tolerance, where: str) -> None:
    dtype = got.dtype
    floating = dtype in [dtypes.NUMPY[n] for n in dtypes.FLOATS + dtypes.FLOATS8 + ("float8_e8m0fnu",)]
    if not floating:
        g, e = got.astype(object), expected.astype(object)
        wrong = np.asarray(g != e)
    else:
        with np.errstate(over="ignore", invalid="ignore"):  # there may be signalling NaNs
            g, wide = got.astype(np.float64), expected.astype(np.float64)
            # What float64 holds rounds to the array's dtype once; rounded, it may be an infinity there.
            e = wide.astype(dtype).astype(np.float64) if expected.dtype != dtype else wide
            nan = np.isnan(g) | np.isnan(e)
            wrong = np.isnan(g) != np.isnan(e)
            if tolerance is EXACT:
                wrong |= ~nan & ((g != e) | (np.signbit(g) != np.signbit(e)))
            else:
                finite = np.isfinite(g) & np.isfinite(e)
                allowed = tolerance.ulps * spacing(np.where(np.isfinite(wide), wide, 0), dtype) + tolerance.absolute
                reference = np.where(np.isfinite(wide), wide, e)
                wrong |= finite & (np.abs(g - reference) > allowed)
                wrong |= ~nan & ~finite & (g != e)
    if wrong.any():
        first = tuple(int(i) for i in np.argwhere(np.atleast_1d(wrong))[0])[: g.ndim]
        raise AssertionError(
            f"{where}: {int(wrong.sum())} of {wrong.size} elements wrong ({dtype}); "
            f"the first at {first}: got {g[first]!r}, expected {expected[first]!r}"
        )


# ---- NVIDIA's front end, without a GPU -------------------------------------------------------------------------------


def signature(kernel, args):
    """The signature that a launch with these arrays (16-byte aligned) and scalars would compile for."""
    from cuda.tile import compilation

    annotated = kernel._annotated_function
    names = list(annotated.pysig.parameters)
    if len(args) != len(names):
        raise TypeError(f"the kernel takes {len(names)} arguments, got {len(args)}")
    parameters = [_constraint(a, n) for a, n in zip(args, annotated.parameter_annotations, strict=True)]
    return compilation.KernelSignature(parameters, compilation.CallingConvention.cutile_python_v2())


def _constraint(value, node):
    from cuda.tile import compilation as c

    if isinstance(value, np.ndarray | torch.Tensor):
        return _array_constraint(value, getattr(node, "array", None))
    if isinstance(value, list):
        element = _array_constraint(value[0], getattr(getattr(node, "list", None), "element", None))
        return c.ListConstraint(element, alias_groups=(), elements_may_alias=False)
    if isinstance(value, tuple):
        nodes = getattr(node, "items", None) or [getattr(node, "each", node)] * len(value)
        return c.TupleConstraint([_constraint(v, n) for v, n in zip(value, nodes, strict=True)])
    if getattr(node, "constant", False):
        return c.ConstantConstraint(value)
    if getattr(node, "scalar", None) is not None:
        return c.ScalarConstraint(node.scalar.dtype)
    if isinstance(value, bool):
        return c.ScalarConstraint(ct.bool_)
    if isinstance(value, int):
        return c.ScalarConstraint(ct.int32)
    if isinstance(value, float):
        return c.ScalarConstraint(ct.float32)
    return c.ConstantConstraint(value)


def _array_constraint(a, annotation):
    from cuda.tile import compilation as c

    table = dtypes.NAME_OF_TORCH if isinstance(a, torch.Tensor) else dtypes.NAME_OF_NUMPY
    strides = a.stride() if isinstance(a, torch.Tensor) else tuple(s // a.itemsize for s in a.strides)
    return c.ArrayConstraint(
        dtypes.TILE[table[a.dtype]],
        a.ndim,
        index_dtype=getattr(annotation, "index_dtype", None) or ct.int32,
        stride_lower_bound_incl=0,
        alias_groups=(),
        may_alias_internally=any(s == 0 and n > 1 for s, n in zip(strides, a.shape)),
        stride_constant=_chosen(strides, annotation, "static_stride_dims") or [1 if s == 1 else None for s in strides],
        shape_constant=_chosen(a.shape, annotation, "static_shape_dims"),
        base_addr_divisible_by=16,
    )


def _chosen(sizes, annotation, field):
    """The sizes of the dimensions that the annotation makes constants, None for the others; None if it makes none."""
    dims = [d % len(sizes) for d in getattr(annotation, field, ())]
    return [size if d in dims else None for d, size in enumerate(sizes)] if dims else None


def front_end(kernel, args, architecture=None) -> None:
    """Type-check the kernel for these arguments; with an architecture, compile it to a cubin as well."""
    from cuda.tile._compile import compile_tile

    compile_tile(
        kernel._annotated_function,
        [signature(kernel, args)],
        sm_arch=architecture,
        compiler_options=kernel._compiler_options,
        return_cubin=architecture is not None,
    )
