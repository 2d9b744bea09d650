"""``ct`` as an interpreted kernel sees it: every public name of ``cuda.tile``, by the interpreter's own function."""

import types

from tilekit.cutile_interpreter import api, dtypes
from tilekit.cutile_interpreter.dtypes import FORMATS
from tilekit.cutile_interpreter.memory import Array
from tilekit.cutile_interpreter.operations import (
    access,
    arithmetic,
    atomics,
    control,
    matmul,
    reductions,
    shapes,
    views,
)
from tilekit.cutile_interpreter.run import running
from tilekit.cutile_interpreter.tile import Tile

_ARITHMETIC = (
    "abs", "add", "atan2", "bitwise_and", "bitwise_lshift", "bitwise_not", "bitwise_or", "bitwise_rshift", "bitwise_xor",
    "cdiv", "ceil", "cos", "cosh", "divmod", "equal", "exp", "exp2", "floor", "floordiv", "greater", "greater_equal",
    "isnan", "less", "less_equal", "log", "log2", "maximum", "minimum", "mod", "mul", "negative", "not_equal", "pow",
    "rsqrt", "sin", "sinh", "sqrt", "sub", "tan", "tanh", "truediv", "where",
)  # fmt: skip


def _no_effect():
    running()


FUNCTIONS = {name: getattr(arithmetic, name) for name in _ARITHMETIC}
for _module in (access, atomics, control, matmul, reductions, shapes, views):
    FUNCTIONS.update({name: getattr(_module, name) for name in _module.__all__})
# Programmatic dependent launch orders kernels on a stream; here one kernel ends before the next begins.
FUNCTIONS["grid_dependency_control_wait"] = _no_effect
FUNCTIONS["grid_dependency_control_launch_dependents"] = _no_effect


DTYPES = {
    dtype: dtypes.CallableDType(dtype, shapes.constructor(dtype)) for dtype, f in FORMATS.items() if f.bits % 8 == 0
}


def dtype_in_kernels(value):
    """A dtype, cuTile's or another library's, as a kernel sees it; without a constructor where its bits fill no byte."""
    dtype = dtypes.to_dtype(value)
    if value is dtype or dtype not in DTYPES:
        return DTYPES.get(dtype, dtype)
    return dtypes.CallableDType(dtype, DTYPES[dtype].make, value)


def _members() -> dict:
    public = {name: getattr(api.tile, name) for name in getattr(api.tile, "__all__", dir(api.tile))}
    public.update(FUNCTIONS)
    public.update({dtype.name: made for dtype, made in DTYPES.items()})
    # Methods may also be called through their class: ct.Tile.reshape(x, ...).
    return {**public, "Tile": Tile, "Array": Array}


namespace = types.SimpleNamespace(**_members())
