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


def _no_effect():
    running()


FUNCTIONS = {name: getattr(arithmetic, name) for name in arithmetic.NAMES}
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
# In compile-time expressions, and the functions that they call, dtypes are those of Python.
static_namespace = types.SimpleNamespace(**{**vars(namespace), **{dtype.name: dtype for dtype in DTYPES}})
