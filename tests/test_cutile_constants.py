"""What the compiler knows: constants and variables that loops and branches assign, held against NVIDIA's front end."""

import re

import cuda.tile as ct
import numpy as np
import pytest
import torch

from tilekit import cutile_interpreter, environment
from tilekit.cutile_interpreter import execution, frontend
from tilekit.cutile_interpreter.tile import Tile

VALUES = """
ct.uint32(-1)
ct.abs(ct.uint32(-1))
ct.int8(300)
ct.int8(100) + ct.int8(100)
ct.int32(2**31 - 1) + 1
ct.uint32(5) << 30
ct.int64(2**62) * 4
-ct.int8(-128)
ct.float16(0.1)
ct.bfloat16(0.1)
ct.float16(1e6)
ct.float64(0.1)
ct.float64(16777217)
ct.float64(1) / 3
ct.float64(0) + 0.1
ct.float64(0) + ct.log(2.0)
ct.full((), 0.1, ct.float64)
ct.float16(1) / 3 == 1 / 3
ct.uint64(-1) + ct.float16(2)
not ct.int32(3)
1 and 2
number and 2
0 or number
1 or number
not tile
-(tile > 0)
ct.negative(tile > 0)
5 if number else 6
(1, 2) if number else (3, 4)
5 if C == 4 else 6
ct.atan2(tile.astype(ct.float16), 2.5)
ct.atan2(1.0, tile.astype(ct.bfloat16))
tile.dtype(300)
np.float32(2) * tile.astype(ct.float16)
HALF * number
tile.dtype == np.int32
tile.dtype == torch.int32
tile.dtype in (torch.float32, torch.int32)
np.int8(number) + tile.astype(ct.int8)
torch.int16(number)
ct.static_eval(np.int16(4)) + tile.astype(ct.int8)
ct.static_eval(torch.int32) == tile.dtype
ct.static_eval(tile.dtype == np.int32)
ct.static_eval(isinstance(ct.int8, ct.DType))
ct.static_eval(np.ones(C, np.float32).size)
ct.arange(4, dtype=ct.bool_)
ct.arange(4, dtype=ct.float8_e4m3fn)
ct.arange(4, dtype=ct.tfloat32)
""".strip().splitlines()

STATEMENTS = (
    "x = 1\nif number: x = 2",
    "y = ct.int8(3)\nx = ct.static_eval({3: 5}[y] + y.bit_length())",
    "y = 0.1\nx = ct.static_eval(y == 0.1)",
    "y = 0.1\nx = ct.static_eval(y * 3)",
    "y = torch.float16\nx = ct.static_eval(isinstance(y, ct.DType))",
    "y = tile.dtype\nx = y(7)",
    "x = 1\nif number: x = 1",
    "x = 1\nif C == 4: x = 2",
    "x = 1\nif C == 4 and number: x = 2",
    "x = 1.0\nfor i in range(3): x = x * 2",
    "x = 1\nfor i in range(0): x = x * 2",
    "x = 1\nfor i in ct.static_iter(range(3)): x = x * 2",
    "x = 4\nfor i in range(3):\n    x = 4\n    y = ct.zeros((x,), ct.int32)",
    "x = (1, 2.0)\nfor i in range(3): x = (x[0] + 1, x[1])",
    "x = 1\nwhile x < 5: x += 1",
    "x = 1\nfor i in range(3):\n    if i == 1: break\n    x = 2",
)


def kernel_of(body, tmp_path):
    lines = "\n    ".join(body.splitlines())
    source = (
        "import cuda.tile as ct\nimport numpy as np\nimport torch\n\nHALF = np.float16(0.5)\n\ndef spy(value):\n    return value\n\n@ct.kernel\n"
        f"def kernel(array, number, C: ct.Constant[int]):\n    tile = ct.load(array, 0, 4)\n    {lines}\n"
        "    spy(x)\n    ct.static_assert(False, x)\n"
    )
    file = tmp_path / "kernel.py"
    file.write_text(source, encoding="utf-8")
    scope = {"__name__": "kernel"}
    exec(compile(source, str(file), "exec"), scope)
    return scope["kernel"]


def words(value, constants):
    """A value in the front end's words; a constant as a tile's type, unless `constants`."""
    if isinstance(value, tuple):
        return f"({', '.join(words(v, constants) for v in value)})"
    if isinstance(value, Tile):
        return str(value.const) if constants and value.const is not None else f"<tile[{value.dtype}, {value.shape}]>"
    return repr(value)


def both(body, tmp_path, monkeypatch):
    """What the front end and the interpreter make of ``x``: a constant's value, or a tile's type."""
    kernel, args, seen = kernel_of(body, tmp_path), (np.zeros(4, np.int32), 3, 4), []
    with pytest.raises(ct.TileStaticAssertionError) as compiled:
        frontend.check(kernel, args)
    execution.prepared(kernel).function.__globals__["spy"] = lambda value: (seen.append(value), value)[1]
    monkeypatch.setattr(frontend, "check", lambda *args, **options: None)
    with pytest.raises(ct.TileStaticAssertionError):
        cutile_interpreter.launch(None, (1,), kernel, args)
    wanted = re.search(r"failed: (.*)", str(compiled.value)).group(1)
    # After a branch the interpreter may know more than the compiler; the type has to be the same.
    return wanted, words(seen[0], constants="<tile" not in wanted)


@pytest.mark.parametrize("expression", VALUES)
def test_constants(expression, tmp_path, monkeypatch):
    compiled, interpreted = both(f"x = {expression}", tmp_path, monkeypatch)
    assert interpreted == compiled


@pytest.mark.parametrize("statements", STATEMENTS, ids=lambda s: s.replace("\n", "; "))
def test_variables_that_loops_and_branches_assign(statements, tmp_path, monkeypatch):
    compiled, interpreted = both(statements, tmp_path, monkeypatch)
    assert interpreted == compiled


@ct.kernel
def generator(out, n):
    seed = 12345
    for _ in range(n):
        seed = seed * 1103515245 + 12345
    scale = 0.1
    while scale < 100.0:
        scale = scale * 3.0
    first = 0
    if n > 3:
        first = 7
    ct.scatter(out, 0, seed)
    ct.scatter(out, 1, scale.astype(ct.int32))
    ct.scatter(out, 2, first.astype(ct.int8).astype(ct.int32))


def test_a_number_in_a_loop_is_one_of_the_run():
    out, seed, scale = np.zeros(3, np.int32), 12345, np.float32(0.1)
    cutile_interpreter.launch(None, (1,), generator, (out, 9))
    for _ in range(9):
        seed = (seed * 1103515245 + 12345) % 2**32
    while scale < 100:
        scale = scale * np.float32(3)
    assert out.tolist() == [seed - 2**32 * (seed >= 2**31), int(scale), 7]


def factorial(n):
    return 1 if n == 0 else n * factorial(n - 1)


@ct.kernel
def recursive(out):
    def power(x, n):
        return x if n == 1 else x * power(x, n - 1)

    ct.scatter(out, 0, factorial(5) + power(2, 3))


def test_functions_that_call_themselves():
    out = np.zeros(1, np.int32)
    cutile_interpreter.launch(None, (1,), recursive, (out,))
    assert out[0] == 128


@ct.kernel
def root_of_a_negative(out):
    ct.store(out, 0, ct.rsqrt(ct.float32(-1.0)))


def test_a_constant_that_is_no_real_number(monkeypatch):
    monkeypatch.setattr(frontend, "check", lambda *args, **options: None)
    with pytest.raises(ct.TileValueError, match="not a real number"):
        cutile_interpreter.launch(None, (1,), root_of_a_negative, (np.zeros(4, np.float32),))


@ct.kernel
def quotient_and_rest(out):
    quotient, rest = divmod(ct.float32(7.5), 2.0)
    ct.store(out, 0, quotient)
    ct.store(out, 1, rest)


@ct.kernel
def a_cast_literal_stays_one(out, s: float):
    ct.store(out, 0, ((s != 1.0) & ct.astype(1, ct.int32)).astype(ct.float32))
    ct.store(out, 1, 0.0)


@ct.kernel
def no_zero(out):
    ct.store(out, 0, ct.astype(ct.float8_e8m0fnu(0.0), ct.float32))
    ct.store(out, 1, ct.zeros((1,), ct.float8_e8m0fnu).astype(ct.float32))


@pytest.mark.parametrize(
    ("kernel", "args", "wanted"),
    [(quotient_and_rest, (), [3.0, 1.5]), (a_cast_literal_stays_one, (2.0,), [1.0, 0.0]), (no_zero, (), [2.0**-127] * 2)],
    ids=lambda value: getattr(getattr(value, "_pyfunc", None), "__name__", None),
)  # fmt: skip
def test_constants_as_the_front_end_folds_them(kernel, args, wanted):
    out = np.zeros(2, np.float32)
    cutile_interpreter.launch(None, (1,), kernel, (out, *args))
    assert out.tolist() == wanted


@ct.kernel
def compares(x, out):
    tile = ct.load(x, 0, 16)
    ct.store(out, 0, (tile < tile).astype(ct.float32))


@ct.kernel
def looks_for_nan(x, out):
    ct.store(out, 0, ct.isnan(ct.load(x, 0, 16)).astype(ct.float32))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("kernel", [compares, looks_for_nan])
def test_what_the_front_end_types_and_the_compiler_lacks(kernel, dtype):
    args = torch.zeros(16).to(dtype), torch.zeros(16)
    with pytest.raises(ct.TileTypeError, match=r"cannot be .*Cast them with \.astype\(ct.float32\)"):
        cutile_interpreter.launch(None, (1,), kernel, args)
    if environment.tileiras()[0]:
        with pytest.raises(
            ct.TileCompilerExecutionError, match="Hint: the compiler has no such operation for this dtype"
        ):
            cutile_interpreter.compile_report(kernel, args, "sm_100")


@ct.kernel
def divides_by_nothing(out):
    ct.store(out, 0, ct.zeros((1,), ct.float32) + 1 / 0)


@ct.kernel
def reads_what_is_not_there(out):
    ct.store(out, 0, nowhere)  # noqa: F821


def for_ever(n):
    return for_ever(n + 1)


@ct.kernel
def calls_itself(out):
    ct.store(out, 0, for_ever(0))


@pytest.mark.parametrize("checked", [True, False], ids=["front end", "interpreter alone"])
@pytest.mark.parametrize(
    ("kernel", "error"),
    [(divides_by_nothing, ct.TileValueError), (reads_what_is_not_there, ct.TileSyntaxError), (calls_itself, ct.TileRecursionError)],
    ids=lambda value: getattr(getattr(value, "_pyfunc", value), "__name__", None),
)  # fmt: skip
def test_pythons_own_errors_are_the_compilers(kernel, error, checked, monkeypatch):
    monkeypatch.setattr(frontend, "_skipped", not checked)
    with pytest.raises(error):
        cutile_interpreter.launch(None, (1,), kernel, (np.zeros(1, np.float32),))
