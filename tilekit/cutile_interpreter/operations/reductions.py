"""Reductions and scans, with cuTile's own functions and with the user's."""

import numpy as np

from tilekit.cutile_interpreter import dtypes
from tilekit.cutile_interpreter.api import RoundingMode, TileSyntaxError, TileTypeError
from tilekit.cutile_interpreter.dtypes import FLOAT, FORMATS
from tilekit.cutile_interpreter.operations.arithmetic import ADD, MAX, MIN, MUL, check_modes, counted, flush
from tilekit.cutile_interpreter.run import current
from tilekit.cutile_interpreter.tile import (
    Tile,
    as_tile,
    axis_of,
    broadcast_shapes,
    constant_bool,
    constant_int,
    constant_ints,
    describe,
    expand,
    implicit,
    is_number,
    result,
)


def _axes(axis, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    axes = tuple(sorted(axis_of(a, ndim) for a in constant_ints(axis, "axis")))
    if len(set(axes)) < len(axes):
        raise TileTypeError(f"Repeated reduction axis in {axis}")
    return axes


def _operand(x) -> Tile:
    x = as_tile(x)
    if x.dtype not in FORMATS or FORMATS[x.dtype].restricted:
        raise TileTypeError(f"Non-arithmetic dtype {x.dtype} is unsupported for reduction")
    return x


def _reduce(op, numpy_reduce, x, axis, keepdims, rounding_mode=None, flush_to_zero=False):
    given, x = x, _operand(x)
    axes = tuple(a + 1 for a in _axes(axis, x.ndim))
    keepdims = constant_bool(keepdims, "keepdims")
    mode = check_modes(op, rounding_mode, flush_to_zero, x.dtype)
    if not axes:  # nothing is combined, and a constant stays one
        return given if is_number(given) and not isinstance(given, bool) else counted(x)
    data, dtype = (x.data.astype(np.int32), dtypes.int32) if x.dtype is dtypes.bool_ else (x.data, x.dtype)
    if flush_to_zero:
        data = flush(data)
    if mode not in (None, RoundingMode.RN):
        return _step_by_step(op, data, axes, keepdims, dtype, mode)
    values = result(numpy_reduce(data, axes, keepdims), dtype)
    return Tile(flush(values.data), dtype) if flush_to_zero else values


def _step_by_step(op, data, axes, keepdims, dtype, mode):
    """Element after element, rounding each step as told."""
    for axis in axes:
        total = data.take([0], axis)
        for i in range(1, data.shape[axis]):
            step = op.values(total.astype(np.float64), data.take([i], axis).astype(np.float64))
            total = dtypes.round_to(dtype, step, mode)
        data = total
    return Tile(data if keepdims else data.squeeze(axes), dtype)


def sum(x, /, axis=None, *, keepdims=False, rounding_mode=None, flush_to_zero=False):
    def total(data, axes, keep):
        return np.add.reduce(data, axes, data.dtype, keepdims=keep)

    return _reduce(ADD, total, x, axis, keepdims, rounding_mode, flush_to_zero)


def prod(x, /, axis=None, *, keepdims=False, rounding_mode=None, flush_to_zero=False):
    def total(data, axes, keep):
        return np.multiply.reduce(data, axes, data.dtype, keepdims=keep)

    return _reduce(MUL, total, x, axis, keepdims, rounding_mode, flush_to_zero)


def _extreme(op, ignoring, propagating, x, axis, keepdims, flush_to_zero, propagate_nan):
    propagate_nan = constant_bool(propagate_nan, "propagate_nan")
    function = propagating if propagate_nan or FORMATS[_operand(x).dtype].category != FLOAT else ignoring
    return _reduce(
        op, lambda data, axes, keep: function.reduce(data, axes, keepdims=keep), x, axis, keepdims, None, flush_to_zero
    )


def max(x, /, axis=None, *, keepdims=False, flush_to_zero=False, propagate_nan=False):
    return _extreme(MAX, np.fmax, np.maximum, x, axis, keepdims, flush_to_zero, propagate_nan)


def min(x, /, axis=None, *, keepdims=False, flush_to_zero=False, propagate_nan=False):
    return _extreme(MIN, np.fmin, np.minimum, x, axis, keepdims, flush_to_zero, propagate_nan)


def _arg(numpy_arg, worst, x, axis, keepdims, propagate_nan):
    x = _operand(x)
    keepdims, propagate_nan = constant_bool(keepdims, "keepdims"), constant_bool(propagate_nan, "propagate_nan")
    data = x.data.astype(np.int32) if x.dtype is dtypes.bool_ else x.data
    if axis is None:
        flat = data.reshape((len(data), -1))
        index = _first(numpy_arg, worst, flat, 1, propagate_nan)
        return Tile(index.reshape((-1,) + (1,) * x.ndim) if keepdims else index, dtypes.int32)
    along = axis_of(axis, x.ndim) + 1
    index = _first(numpy_arg, worst, data, along, propagate_nan)
    return Tile(np.expand_dims(index, along) if keepdims else index, dtypes.int32)


def _first(numpy_arg, worst, data, axis, propagate_nan):
    """The first index of the extreme. NaN counts as the extreme itself when it propagates, else as worse than all."""
    if data.dtype.kind == "f":
        nan = np.isnan(data)
        if nan.any():
            index = numpy_arg(np.where(nan, -worst if propagate_nan else worst, data), axis)
            if propagate_nan:
                return np.where(nan.any(axis), nan.argmax(axis), index).astype(np.int32)
            # Where all else is as bad as `worst`, a NaN before it must not win.
            real = np.where(nan, worst, data)
            best = np.take_along_axis(real, np.expand_dims(index, axis), axis)
            candidates = (real == best) & ~nan
            return np.where(candidates.any(axis), candidates.argmax(axis), index).astype(np.int32)
    return numpy_arg(data, axis).astype(np.int32)


def argmax(x, /, axis=None, *, keepdims=False, propagate_nan=False):
    return _arg(np.argmax, -np.inf, x, axis, keepdims, propagate_nan)


def argmin(x, /, axis=None, *, keepdims=False, propagate_nan=False):
    return _arg(np.argmin, np.inf, x, axis, keepdims, propagate_nan)


# The user's functions -------------------------------------------------------------------------------------------------


def _inputs(x, identity, what: str):
    """Tiles to work on, broadcast to one shape, and their identities."""
    many = isinstance(x, tuple)
    tiles = tuple(as_tile(t) if isinstance(t, Tile) or is_number(t) else t for t in (x if many else (x,)))
    if not tiles:
        raise TileTypeError(f"Need at least one input value to {what}")
    if any(not isinstance(t, Tile) for t in tiles):
        raise TileTypeError(f"Expected a tile or a tuple of tiles; got {describe(x)}")
    identities = identity if many else (identity,)
    if many and (not isinstance(identity, tuple) or len(identity) != len(tiles)):
        raise TileTypeError(f"Number of identity values must match the number of input tiles ({len(tiles)})")
    for value in identities:
        if not is_number(value) and not (isinstance(value, Tile) and value.const is not None):
            raise TileTypeError(f"Expected the identity to be a scalar constant; got {describe(value)}")
    shape = broadcast_shapes(*(t.shape for t in tiles))
    n = np.broadcast_shapes(*((len(t.data),) for t in tiles))[0]
    data = [np.broadcast_to(expand(t.data, shape), (n, *shape)) for t in tiles]
    return many, data, [t.dtype for t in tiles], shape


def _combine(func, left, right, kinds, many, what):
    """One call of the user's function for many pairs at once: each pair stands as a block of its own."""
    run = current.run
    n = len(left[0])
    per_block = left[0][0].size
    inner = _Pairs(run, n * per_block)
    current.run = inner
    try:
        arguments = [
            Tile(np.ascontiguousarray(d).reshape(-1), k)
            for side in (left, right)
            for d, k in zip(side, kinds, strict=True)
        ]
        got = func(*arguments)
    finally:
        current.run = run
        run.steps_left = inner.steps_left
    if many:
        if not isinstance(got, tuple) or len(got) != len(kinds):
            raise TileTypeError(
                f"{what} function must return a tuple of {len(kinds)} values to match the number of inputs"
            )
    else:
        got = (got,)
    out = []
    for i, (value, kind, like) in enumerate(zip(got, kinds, left, strict=True)):
        at = f" at position #{i}" if many else ""
        if not isinstance(value, Tile) and not is_number(value):
            raise TileTypeError(f"{what} function returned a value of non-tile type{at}: {describe(value)}")
        if isinstance(value, Tile) and value.ndim:
            raise TileTypeError(f"{what} function returned a tile of non-scalar shape {value.shape}{at}")
        value = implicit(value, kind, f"{what} function returned a tile of unexpected dtype{at}")
        out.append(np.broadcast_to(value.data, (like.size,)).reshape(like.shape))
    return out


class _Pairs:
    """A run inside a run: the pairs that a reduction combines, as blocks. Only arithmetic is allowed in it."""

    def __init__(self, outer, n):
        if isinstance(outer, _Pairs):
            raise TileSyntaxError("Nested scan/reduction is not supported")
        self.n = n
        self.steps_left = outer.steps_left
        self.largest = 0
        self.static = 0
        self.tracker = None
        self.blocks = np.zeros((n, 3), np.int64)
        self.codes = outer.codes
        self.translator = outer.translator
        self.output = outer.output

    def step(self):
        self.steps_left -= 1

    def reading(self, memory):
        raise TileSyntaxError("Memory cannot be read inside the function of a reduction or scan")

    def store(self, memory, write):
        raise TileSyntaxError("Memory cannot be written inside the function of a reduction or scan")

    def require_order(self):
        raise TileSyntaxError("Printing and atomics have no place inside the function of a reduction or scan")


def reduce(x, /, axis, func, identity, *, keepdims=False):
    many, data, kinds, shape = _inputs(x, identity, "reduce")
    axis = axis_of(constant_int(axis, "axis"), len(shape))
    keepdims = constant_bool(keepdims, "keepdims")
    while data[0].shape[axis + 1] > 1:
        half = data[0].shape[axis + 1] // 2
        left, right = ([d.take(range(a, a + half), axis + 1) for d in data] for a in (0, half))
        data = _combine(func, left, right, kinds, many, "Reduction")
    tiles = tuple(Tile(d if keepdims else d.squeeze(axis + 1), k) for d, k in zip(data, kinds, strict=True))
    return tiles if many else tiles[0]


def scan(x, /, axis, func, identity, *, reverse=False):
    many, data, kinds, shape = _inputs(x, identity, "scan")
    axis = axis_of(constant_int(axis, "axis"), len(shape)) + 1
    if constant_bool(reverse, "reverse"):
        data = [np.flip(d, axis) for d in data]
    length, reach = data[0].shape[axis], 1
    # Each step combines every element with the one `reach` before it, so log2(length) steps are enough.
    while reach < length:
        early, late = ([d.take(range(a, a + length - reach), axis) for d in data] for a in (0, reach))
        combined = _combine(func, early, late, kinds, many, "Scan")
        data = [np.concatenate([d.take(range(reach), axis), c], axis) for d, c in zip(data, combined, strict=True)]
        reach *= 2
    if reverse:
        data = [np.flip(d, axis) for d in data]
    tiles = tuple(Tile(np.ascontiguousarray(d), k) for d, k in zip(data, kinds, strict=True))
    return tiles if many else tiles[0]


def _cumulate(op, numpy_op, x, axis, reverse, rounding_mode, flush_to_zero):
    x = _operand(x)
    mode = check_modes(op, rounding_mode, flush_to_zero, x.dtype)
    axis = axis_of(constant_int(axis, "axis"), x.ndim) + 1
    data, dtype = (x.data.astype(np.int32), dtypes.int32) if x.dtype is dtypes.bool_ else (x.data, x.dtype)
    reverse = constant_bool(reverse, "reverse")
    if flush_to_zero:
        data = flush(data)
    if reverse:
        data = np.flip(data, axis)
    if mode not in (None, RoundingMode.RN):
        parts = [data.take([0], axis)]
        for i in range(1, data.shape[axis]):
            step = op.values(parts[-1].astype(np.float64), data.take([i], axis).astype(np.float64))
            parts.append(dtypes.round_to(dtype, step, mode))
        values = np.concatenate(parts, axis)
    else:
        values = numpy_op.accumulate(data, axis, data.dtype)
    values = result(np.flip(values, axis) if reverse else values, dtype)
    return Tile(flush(values.data), dtype) if flush_to_zero else values


def cumsum(x, /, axis=0, *, reverse=False, rounding_mode=None, flush_to_zero=False):
    return _cumulate(ADD, np.add, x, axis, reverse, rounding_mode, flush_to_zero)


def cumprod(x, /, axis=0, *, reverse=False, rounding_mode=None, flush_to_zero=False):
    return _cumulate(MUL, np.multiply, x, axis, reverse, rounding_mode, flush_to_zero)


__all__ = ["argmax", "argmin", "cumprod", "cumsum", "max", "min", "prod", "reduce", "scan", "sum"]
