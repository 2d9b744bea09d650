"""The stand-in for cuda.tile: the same interface as NVIDIA's, and the same kernels run."""

import copy
import enum
import pickle
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Annotated

import pytest

from tilekit import cutile_interpreter
from tilekit.cutile_interpreter.standin import interface

ct = pytest.importorskip("cuda.tile")
TESTS = Path(__file__).parent
BOTH = pytest.mark.parametrize("tile", [ct, interface], ids=["nvidia", "stand-in"])
DTYPES = [name for name in ct.__all__ if isinstance(getattr(ct, name), ct.DType)]
ENUMS = [name for name in ct.__all__ if isinstance(getattr(ct, name), enum.EnumMeta)]
ERRORS = [n for n in ct.__all__ if isinstance(getattr(ct, n), type) and issubclass(getattr(ct, n), Exception)]


def without_the_wheel(code: str, *hidden: str, timeout: float = 300) -> str:
    """What `code` prints in a process where ``cuda.tile`` (and the packages named) cannot be found."""
    prelude = (
        f"import sys; sys.path.insert(0, {str(TESTS)!r}); import without_cuda_tile; without_cuda_tile.hide(*{hidden})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", prelude + code], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


# The interface --------------------------------------------------------------------------------------------------------


def test_it_has_every_public_name_and_no_other():
    assert set(interface.__all__) == set(ct.__all__)
    assert [name for name in ct.__all__ if not hasattr(interface, name)] == []
    assert [name for name in interface.tune.__all__ if not hasattr(ct.tune, name)] == []
    assert set(interface.compilation.__all__) == set(ct.compilation.__all__)


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_are_those_of_the_package(name):
    theirs, ours = getattr(ct, name), getattr(interface, name)
    assert (ours.name, ours.bitwidth, repr(ours), str(ours)) == (
        theirs.name,
        theirs.bitwidth,
        repr(theirs),
        str(theirs),
    )
    assert copy.deepcopy(ours) is ours and pickle.loads(pickle.dumps(ours)) is ours
    assert ours == getattr(interface, name) and ours != theirs and len({ours, ours}) == 1


@BOTH
def test_a_dtype_is_neither_made_nor_called_outside_of_a_kernel(tile):
    with pytest.raises(TypeError):
        tile.DType()
    with pytest.raises((TypeError, RuntimeError)):
        tile.int16(5)


@BOTH
def test_foreign_pointers_know_their_element(tile):
    pointer = tile.foreign_pointer_dtype(tile.float32)
    assert pointer is tile.foreign_pointer_dtype(tile.float32) and isinstance(pointer, tile.DType)
    assert str(pointer) == "foreign_pointer[float32]"
    with pytest.raises(TypeError, match="must be a cuda.tile dtype"):
        tile.foreign_pointer_dtype("float32")
    with pytest.raises(TypeError, match="nested"):
        tile.foreign_pointer_dtype(pointer)
    assert copy.deepcopy(pointer) is pointer


@pytest.mark.parametrize("name", ENUMS)
def test_enumerations_have_the_same_members(name):
    assert {m.name: m.value for m in getattr(interface, name)} == {m.name: m.value for m in getattr(ct, name)}


@pytest.mark.parametrize("name", ERRORS)
def test_exceptions_have_the_same_ancestors(name):
    def ancestors(tile):
        return {other for other in ERRORS if issubclass(getattr(tile, name), getattr(tile, other))}

    assert ancestors(interface) == ancestors(ct)


@BOTH
def test_an_exception_says_its_message(tile):
    error = tile.TileTypeError("shapes differ")
    assert error.message == "shapes differ" and "shapes differ" in str(error)
    assert "Static assertion failed: odd" in str(tile.TileStaticAssertionError("odd"))


@pytest.mark.parametrize("name", ["Constant", "IndexedWithInt64", "ScalarInt64"])
def test_annotations_carry_the_same_metadata(name):
    assert repr(getattr(interface, name)) == repr(getattr(ct, name))
    assert repr(getattr(interface, name)[int]) == repr(getattr(ct, name)[int])


@BOTH
def test_annotations_are_checked(tile):
    assert tile.ArrayAnnotation(static_shape_dims=(0, -1)) == tile.ArrayAnnotation(static_shape_dims=(0, -1))
    assert tile.ListAnnotation(element=tile.IndexedWithInt64).element.index_dtype is tile.int64
    with pytest.raises(ValueError, match="must be int32 or int64, got int16"):
        tile.ArrayAnnotation(index_dtype=tile.int16)
    with pytest.raises(TypeError, match="must be a tuple of integers"):
        tile.ArrayAnnotation(static_shape_dims=[0])
    with pytest.raises(TypeError, match="Element #0 of `static_stride_dims` must be int"):
        tile.ArrayAnnotation(static_stride_dims=(True,))
    for element in (3, Annotated[int, "no array"]):
        with pytest.raises(TypeError, match="ArrayAnnotation"):
            tile.ListAnnotation(element=element)


# Kernels and functions ------------------------------------------------------------------------------------------------


def nothing():
    pass


@BOTH
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_ctas": 16, "occupancy": 32, "opt_level": 0, "num_worker_warps": 8}, None),
        ({"num_ctas": 3}, ValueError), ({"num_ctas": 32}, ValueError), ({"num_ctas": 0}, ValueError),
        ({"occupancy": 0}, ValueError), ({"occupancy": 33}, ValueError), ({"occupancy": 3}, None),
        ({"opt_level": 4}, ValueError), ({"opt_level": -1}, ValueError), ({"opt_level": None}, None),
        ({"num_worker_warps": 3}, ValueError), ({"num_worker_warps": 64}, ValueError),
        ({"num_ctas": "two"}, TypeError), ({"unknown": 1}, TypeError),
    ],
)  # fmt: skip
def test_hints_are_checked(tile, options, error):
    if error is None:
        assert isinstance(tile.kernel(**options)(nothing), tile.kernel)
        assert isinstance(tile.kernel(nothing).replace_hints(**options), tile.kernel)
        return
    with pytest.raises(error):
        tile.kernel(**options)(nothing)
    with pytest.raises(error):
        tile.kernel(nothing).replace_hints(**options)


@BOTH
def test_hints_by_target(tile):
    by_target = tile.ByTarget(sm_90=2, default=1)
    assert repr(by_target) == "ByTarget(sm_90=2, default=1)" and by_target == tile.ByTarget(default=1, sm_90=2)
    assert by_target != tile.ByTarget(sm_90=2)
    tile.kernel(num_ctas=by_target)(nothing)
    with pytest.raises(ValueError, match="num_ctas"):
        tile.kernel(num_ctas=tile.ByTarget(sm_90=5))(nothing)
    with pytest.raises(ValueError, match="expected sm_"):
        tile.ByTarget(hopper=2)


@BOTH
def test_replaced_hints_leave_the_others(tile):
    kernel = tile.kernel(occupancy=2)(nothing)
    other = kernel.replace_hints(num_ctas=4)
    assert other is not kernel and other._pyfunc is nothing and kernel._pyfunc is nothing


def test_replaced_hints_are_added_to_those_there():
    kernel = interface.kernel(occupancy=2)(nothing).replace_hints(num_ctas=4)
    assert kernel._options == {"num_ctas": 4, "occupancy": 2, "opt_level": 3, "num_worker_warps": None}


@BOTH
def test_a_kernel_is_no_function(tile):
    with pytest.raises(TypeError, match="launch"):
        tile.kernel(nothing)()
    with pytest.raises(TypeError, match="must be applied to a Python function"):
        tile.kernel(len)


@BOTH
def test_functions_of_the_host(tile):
    assert tile.cdiv(7, 2) == 4 and tile.cdiv(8, 2) == 4
    assert list(tile.static_iter(range(3))) == [0, 1, 2]
    error = ValueError("x")
    assert tile.static_exception(error) is error
    assert tile.function(host=True)(lambda x: x + 1)(1) == 2
    with pytest.raises(RuntimeError):
        tile.function(lambda x: x)(1)


@pytest.mark.parametrize("name", sorted(set(interface._TILE_ONLY)))
def test_functions_of_kernels_refuse_the_host(name):
    for tile in (ct, interface):
        with pytest.raises((RuntimeError, TypeError)):  # NVIDIA's check some arguments before
            getattr(tile, name)(1, 2, 3)
    with pytest.raises(RuntimeError, match=f"ct.{name} works only inside a kernel"):
        getattr(interface, name)(1, 2, 3)


def test_what_needs_a_gpu_says_so():
    with pytest.raises(RuntimeError, match="tune.exhaustive_search.*GPU for timing kernels"):
        interface.tune.exhaustive_search([], None, None, None, None)
    with pytest.raises(RuntimeError, match="compilation.export_kernel.*GPU for compiling"):
        interface.compilation.export_kernel(None)
    with interface.compiler_timeout(10):
        pass


def test_where_the_package_is_there_it_stays():
    finders = list(sys.meta_path)
    assert cutile_interpreter.install_standin() is False
    assert sys.meta_path == finders and sys.modules["cuda.tile"] is ct


# In its place ---------------------------------------------------------------------------------------------------------

KERNELS = textwrap.dedent("""
    from tilekit import cutile_interpreter
    assert cutile_interpreter.install_standin() and cutile_interpreter.install_standin()
    import enum
    from dataclasses import dataclass
    import numpy as np
    import cuda.tile as ct
    from cuda.tile import load, kernel, Constant
""")


@pytest.mark.parametrize("hidden", [(), ("cuda",)], ids=["other packages below cuda", "none"])
def test_kernels_run(tmp_path, hidden):
    # What reaches cuda.tile's functions in other ways than by name is what eager Python makes hard.
    code = """
        class Op(enum.Enum):
            ADD = 1
        TABLE = {Op.ADD: ct.add}
        @dataclass(frozen=True)
        class Config:
            tile: int
            combine: object = ct.maximum
        @ct.function
        def helper(x, y, config):
            return config.combine(x, y) + ct.int32(1)
        def make(config):
            @kernel(num_ctas=ct.ByTarget(sm_100=2), occupancy=2)
            def run(x, out, total, n: Constant[int]):
                i = ct.bid(0)
                a = load(x, i, n, padding_mode=ct.PaddingMode.ZERO)
                b = TABLE[Op.ADD](a, a)
                for j in range(2):
                    b = helper(a, b, config)
                ct.store(out, i, b.astype(out.dtype))
                ct.atomic_add(total, 0, ct.sum(b))
            return run
        x = np.arange(10, dtype=np.int32)
        out, total = np.zeros(10, np.float32), np.zeros(1, np.int32)
        ct.launch(None, (ct.cdiv(10, 4),), make(Config(4)), (x, out, total, 4))
        assert (out == 2.0 * x + 2).all() and total == (2 * x + 2).sum() + 2 * 2, (out, total)
        try:
            ct.launch(None, (3,), make(Config(3)), (x, out, total, 3))
        except ct.TileTypeError as error:
            print(error)
    """
    assert "power of two" in without_the_wheel(KERNELS + textwrap.dedent(code), *hidden)


def test_kernels_do_not_import_torch():
    code = """
        import sys
        @kernel
        def fill(out):
            ct.store(out, ct.bid(0), ct.full((4,), 7, out.dtype))
        out = np.zeros(4, np.int32)
        ct.launch(None, (1,), fill, (out,))
        assert (out == 7).all()
        print("torch" in sys.modules)
        import torch
        out = torch.zeros(4, dtype=torch.int32)
        ct.launch(None, (1,), fill, (out,))
        assert (out == 7).all()
    """
    assert without_the_wheel(KERNELS + textwrap.dedent(code), "cuda") == "False\n"


def test_tilekits_kernels_run_on_it():
    code = """
        import torch, tilekit
        x = torch.randn(5, 70)
        torch.testing.assert_close(tilekit.softmax(x, backend="cutile"), x.softmax(-1))
        print(tilekit.probe("cpu").backends["cutile"].mode)
    """
    assert without_the_wheel(textwrap.dedent(code)) == "interpreted\n"


def test_nothing_is_offered_unasked():
    code = """
        import tilekit, importlib.util
        from tilekit import cutile_interpreter
        assert "cuda" not in sys.modules and importlib.util.find_spec("cuda") is None
        try:
            import cuda.tile
        except ModuleNotFoundError:
            print("missing")
    """
    assert without_the_wheel(textwrap.dedent(code), "cuda") == "missing\n"


def test_other_packages_below_cuda_stay_and_come_later(tmp_path):
    code = f"""
        import cuda
        assert not hasattr(cuda, "made_up")
        from pathlib import Path
        package = Path({str(tmp_path)!r}) / "cuda" / "made_up"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("answer = 42")
        import importlib
        importlib.invalidate_caches()
        import cuda.made_up
        print(cuda.made_up.answer, ct.cdiv(3, 2))
        try:
            import cuda.pathfinder_that_is_missing
        except ModuleNotFoundError:
            print("missing")
    """
    path = f"import sys; sys.path.append({str(tmp_path)!r})\n"
    assert without_the_wheel(path + KERNELS + textwrap.dedent(code), "cuda").split() == ["42", "2", "missing"]


def test_a_learners_error_is_the_standins_own():
    code = """
        @kernel
        def wrong(x, out):
            ct.store(out, ct.bid(0), ct.load(x, ct.bid(0), 4))
        try:
            ct.launch(None, (1,), wrong, (np.ones(4, np.float32), np.ones(4, np.float16)))
        except ct.TileTypeError as error:
            print(error)
    """
    printed = without_the_wheel(KERNELS + textwrap.dedent(code), "cuda")
    assert "cannot implicitly cast float32 to float16" in printed and "Unknown location" not in printed


def test_it_passes_the_conformance_suite():
    # Less what only NVIDIA's front end can see.
    code = f"""
        assert cutile_interpreter.install_standin()
        import pytest
        class LessTheCompiler:
            @staticmethod
            def pytest_collection_modifyitems(items):
                for item in items:
                    case = getattr(item, "callspec", None) and item.callspec.params.get("case")
                    if case is not None and "compiler" in case.needs:
                        item.add_marker(pytest.mark.skip("needs NVIDIA's front end"))
        suite = {str(TESTS / "cutile_conformance")!r}
        status = pytest.main(["-q", "-n0", "-rf", "--tb=line", "-pno:cacheprovider", suite], plugins=[LessTheCompiler])
        assert sys.modules["cuda.tile"].__version__.endswith("tilekit")
        sys.exit(int(status))
    """
    printed = without_the_wheel("from tilekit import cutile_interpreter\n" + textwrap.dedent(code), "cuda", timeout=900)
    assert int(re.search(r"(\d+) passed", printed).group(1)) >= 600
