"""Making tiles, moving their elements about, and changing their dtype."""

import numpy as np

from tilekit.cutile_interpreter import dtypes
from tilekit.cutile_interpreter.api import RoundingMode, TileTypeError, TileValueError
from tilekit.cutile_interpreter.dtypes import FLOAT, FORMATS, INT
from tilekit.cutile_interpreter.operations import arithmetic
from tilekit.cutile_interpreter.tile import (
    Tile,
    as_tile,
    axis_of,
    choice,
    constant,
    constant_int,
    constant_ints,
    describe,
    expand,
    implicit,
    integer_scalar,
    is_number,
    scalar,
    tile_shape,
    unsure,
)


def numeric_dtype(value):
    dtype = dtypes.to_dtype(value)
    if dtype not in FORMATS:
        raise TileTypeError(f"Expected a numeric dtype; got {dtype}")
    return dtype


# Making ---------------------------------------------------------------------------------------------------------------


def full(shape, fill_value, dtype):
    shape, dtype = tile_shape(shape), numeric_dtype(dtype)
    value = _scalar_of(fill_value, dtype, "fill_value")
    return Tile(expand(value.data, shape), dtype) if shape else value


def _scalar_of(value, dtype, what: str) -> Tile:
    if is_number(value):
        return constant(value, dtype)
    value = as_tile(value, what)
    if value.ndim:
        raise TileTypeError(f"Expected {what} to be a scalar; got {describe(value)}")
    return astype(value, dtype)


def zeros(shape, dtype):
    return full(shape, 0, dtype)


def ones(shape, dtype):
    return full(shape, 1, dtype)


def arange(size, /, *, dtype, start=0, step=1):
    (size,) = tile_shape(constant_int(size, "size"), "size")
    dtype = numeric_dtype(dtype)
    # The compiler counts in integers, casts, and calculates in `dtype` only if it has to.
    whole = dtype if FORMATS[dtype].category == INT else dtypes.int32
    count = Tile(np.arange(size).astype(FORMATS[whole].carrier)[None], whole)
    count = Tile(dtypes.cast(count.data, whole, dtype), dtype)
    if not _is(step, 1):
        count = arithmetic.mul(count, _in(dtype, step))
    return count if _is(start, 0) else arithmetic.add(count, _in(dtype, start))


def _in(dtype, value) -> Tile:
    """A number or a tile, which may have a shape of its own, cast."""
    return constant(value, dtype) if is_number(value) else astype(value, dtype)


def _is(value, number) -> bool:
    """Is `value` a constant, and this one?"""
    return value == number if is_number(value) else isinstance(value, Tile) and value.const == number


def astile(value, /, *, dtype):
    dtype = numeric_dtype(dtype)
    if not isinstance(value, tuple):
        return _scalar_of(value, dtype, "value")
    shape = _nested_shape(value)
    leaves = [_scalar_of(leaf, dtype, "each element") for leaf in _leaves(value)]
    tile_shape(shape)
    columns = np.broadcast_arrays(*(leaf.data for leaf in leaves)) if len(leaves) > 1 else [leaves[0].data]
    return Tile(np.stack(columns, axis=1).reshape((-1, *shape)), dtype)


def _leaves(value):
    if isinstance(value, tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _nested_shape(value) -> tuple[int, ...]:
    if not isinstance(value, tuple):
        return ()
    if not value:
        raise TileTypeError("astile takes no empty tuples")
    inner = {_nested_shape(item) for item in value}
    if len(inner) > 1:
        raise TileTypeError(f"Tuples of one level must have the same length; got shapes {sorted(inner)}")
    return (len(value), *inner.pop())


# Moving ---------------------------------------------------------------------------------------------------------------


def reshape(x, /, shape):
    x = as_tile(x)
    shape = constant_ints(shape, "shape")
    size = int(np.prod(x.shape, dtype=np.int64))
    if any(v < -1 for v in shape) or shape.count(-1) > 1:
        raise TileTypeError(f"Only one dimension can be -1, and none less; got {shape}")
    if -1 in shape:
        rest = -int(np.prod(shape, dtype=np.int64))
        if rest == 0 or size % rest:
            raise TileTypeError(f"Cannot reshape {x.shape} to {shape}")
        shape = tuple(size // rest if v == -1 else v for v in shape)
    if int(np.prod(shape, dtype=np.int64)) != size:
        raise TileTypeError(f"Cannot reshape {x.shape} to {shape}")
    tile_shape(shape)
    return x if shape == x.shape else Tile(x.data.reshape((len(x.data), *shape)), x.dtype)


def item(x):
    return reshape(x, ())


def expand_dims(x, /, axis):
    x = as_tile(x)
    return Tile(np.expand_dims(x.data, axis_of(axis, x.ndim + 1) + 1), x.dtype)


def subscript(x, index):
    """``x[:, None]``: new axes of length 1; cuTile has no other subscript on tiles."""
    if index is not None and not isinstance(index, tuple):
        raise TileTypeError(f"A tile's subscript is None or a tuple of `:`, `...` and None; got {index!r}")
    index = (None,) if index is None else index
    if index.count(Ellipsis) > 1:
        raise TileTypeError("A subscript takes one ellipsis at most")
    whole = sum(isinstance(i, slice) for i in index)
    if Ellipsis in index:
        at = index.index(Ellipsis)
        index = (*index[:at], *[slice(None)] * (x.ndim - whole), *index[at + 1 :])
        whole = x.ndim
    if any(not (i is None or i == slice(None)) for i in index if not isinstance(i, Tile)) or any(
        isinstance(i, Tile) for i in index
    ):
        raise TileTypeError("Tiles are subscripted with `:` and `None` only; ct.extract takes a part of a tile")
    if whole > x.ndim:
        raise TileTypeError(f"Too many indices for a tile of rank {x.ndim}")
    return Tile(x.data[(slice(None), *index)], x.dtype)


def no_assignment(x, index, value):
    raise TileTypeError("Tiles are immutable: ct.insert gives a new tile, ct.where chooses element by element")


def broadcast_to(x, /, shape):
    x = as_tile(x)
    shape = tile_shape(shape)
    if len(shape) < x.ndim or any(a not in (1, b) for a, b in zip(x.shape[::-1], shape[::-1], strict=False)):
        raise TileTypeError(f"Shape {x.shape} is not broadcastable to {shape}")
    return x if shape == x.shape else Tile(expand(x.data, shape), x.dtype)


def permute(x, /, axes):
    x = as_tile(x)
    axes = constant_ints(axes, "axes")
    if len(axes) != x.ndim:
        raise TileTypeError(f"Expected {x.ndim} axes, one for each dimension; got {axes}")
    order = tuple(axis_of(a, x.ndim) for a in axes)
    if len(set(order)) != x.ndim:
        raise TileTypeError(f"Axes must be a permutation; got {axes}")
    return Tile(x.data.transpose((0, *(a + 1 for a in order))), x.dtype)


def transpose(x, /, axis0=None, axis1=None):
    x = as_tile(x)
    if x.ndim < 2:
        raise TileTypeError(f"transpose needs at least 2 dimensions; got {describe(x)}")
    if axis0 is None and axis1 is None:
        if x.ndim > 2:
            raise TileTypeError("transpose needs axis0 and axis1 for a tile of more than 2 dimensions")
        axis0, axis1 = 0, 1
    elif axis0 is None or axis1 is None:
        raise TileTypeError("transpose takes both axes or none")
    return Tile(x.data.swapaxes(axis_of(axis0, x.ndim) + 1, axis_of(axis1, x.ndim) + 1), x.dtype)


def cat(tiles, /, axis):
    if not isinstance(tiles, tuple):
        raise TileTypeError(f"cat takes a tuple of tiles; got {describe(tiles)}")
    if not 1 <= len(tiles) <= 2:
        raise TileTypeError(f"cat takes two tiles, because shapes are powers of two; got {len(tiles)}")
    if any(not isinstance(t, Tile) for t in tiles):
        raise TileTypeError("cat takes a tuple of tiles")
    first, last = tiles[0], tiles[-1]
    if first.ndim != last.ndim:
        raise TileTypeError(f"Expected tiles to have the same rank: {first.ndim} != {last.ndim}")
    if first.dtype is not last.dtype:
        raise TileTypeError(f"Expected tiles to have the same dtype: {first.dtype} != {last.dtype}")
    axis = axis_of(axis, first.ndim)
    if len(tiles) == 1:
        return first
    if first.shape[:axis] + first.shape[axis + 1 :] != last.shape[:axis] + last.shape[axis + 1 :]:
        raise TileTypeError(
            f"Expected tiles to have the same shape for non axis dimensions, got {first.shape} and {last.shape}"
        )
    total = first.shape[axis] + last.shape[axis]
    if total & (total - 1):
        raise TileTypeError(f"Result tile shape must be power of 2, got {total} along axis {axis}")
    n = max(len(first.data), len(last.data))
    parts = [np.broadcast_to(t.data, (n, *t.shape)) for t in tiles]
    return Tile(np.concatenate(parts, axis=axis + 1), first.dtype)


def _subtile(x, shape, index, what):
    index = index if isinstance(index, tuple) else (index,)
    if len(shape) != x.ndim:
        raise TileTypeError(f"Expected {what} to have rank {x.ndim}, as the tile has; got {shape}")
    if len(index) != x.ndim:
        raise TileTypeError(f"Expected an index of length {x.ndim}; got {len(index)}")
    for axis, (whole, part) in enumerate(zip(x.shape, shape, strict=True)):
        if whole % part:
            raise TileTypeError(f"Dimension #{axis} of {what} {shape} does not divide the tile's shape {x.shape}")
    places = []
    for axis, (i, whole, part) in enumerate(zip(index, x.shape, shape, strict=True)):
        place = integer_scalar(i, f"element {axis} of index")
        if np.any(np.asarray(place) < 0) or np.any(np.asarray(place) >= whole // part):
            raise TileValueError(
                f"Index {place} is out of range along axis {axis}: there are {whole // part} subtiles of {part}; "
                "the index counts subtiles, not elements"
            )
        places.append(place)
    return places


def _grid(data, shape):
    """``(n, tiles..., shape...)``: a tile's elements by subtile."""
    ndim = len(shape)
    parts = [v for whole, part in zip(data.shape[1:], shape, strict=True) for v in (whole // part, part)]
    split = data.reshape((len(data), *parts))
    return split.transpose((0, *range(1, 2 * ndim, 2), *range(2, 2 * ndim + 1, 2)))


def extract(x, /, index, shape):
    x, shape = as_tile(x), tile_shape(shape)
    if x.ndim and shape == ():
        shape, scalar_result = (1,) * x.ndim, True
    else:
        scalar_result = False
    places = _subtile(x, shape, index if x.ndim else (), "shape")
    n = max((len(p) for p in places if not isinstance(p, int)), default=1)
    n = max(n, len(x.data))
    block = np.arange(n) if len(x.data) > 1 else np.zeros(n, int)
    part = _grid(x.data, shape)[(block, *(np.broadcast_to(p, (n,)) for p in places))]
    return Tile(part.reshape((n,)) if scalar_result else part, x.dtype)


def insert(x, /, index, value):
    x, value = as_tile(x), as_tile(value, "value")
    value = implicit(value, x.dtype, "insert")
    part = value.data.reshape((len(value.data), *(1,) * x.ndim)) if value.ndim == 0 else value.data
    places = _subtile(x, part.shape[1:], index if x.ndim else (), "value's shape")
    n = max(len(x.data), len(part), *(len(p) for p in places if not isinstance(p, int)), 1)
    out = np.broadcast_to(x.data, (n, *x.shape)).copy()
    for block in range(n):
        where = [p if isinstance(p, int) else int(p[block if len(p) > 1 else 0]) for p in places]
        target = tuple(slice(w * s, (w + 1) * s) for w, s in zip(where, part.shape[1:], strict=True))
        out[(block, *target)] = part[block if len(part) > 1 else 0]
    return Tile(out, x.dtype)


# Dtypes ---------------------------------------------------------------------------------------------------------------


def astype(x, dtype, /, *, rounding_mode=None):
    given, x = x, as_tile(x)
    dtype = numeric_dtype(dtype)
    mode = choice(rounding_mode, RoundingMode, "rounding_mode", optional=True)
    both = x.dtype in FORMATS and FORMATS[x.dtype].category == FLOAT and FORMATS[dtype].category == FLOAT
    if mode is not None and not both:
        raise TileTypeError("rounding_mode is only valid for float to float conversions")
    if x.dtype not in FORMATS:
        raise TileTypeError(f"A tile of dtype {x.dtype} cannot be cast")
    if x.dtype is dtype:
        return given  # a bare number stays one, which gives way to the other operand's dtype
    if both:
        mode = _conversion_mode(x.dtype, dtype, mode)
    if x.known and mode in (None, RoundingMode.RN):
        const = (bool, int, float)[FORMATS[dtype].category](x.const)
        return scalar(const, dtype, const, exact=True)
    cast = Tile(dtypes.cast(x.data, x.dtype, dtype, mode), dtype)
    return unsure(cast) if x.unsure else cast


def _conversion_mode(source, target, mode):
    """The rounding mode of a conversion between floats, if the compiler has it."""
    if target is dtypes.float8_e8m0fnu:
        supported = (RoundingMode.RZ, RoundingMode.RP)
    else:
        supported = (RoundingMode.RN, *_DIRECTED.get(target, ()))
        if source is dtypes.float8_e8m0fnu and target is not dtypes.float64:
            supported = tuple(m for m in supported if m in (RoundingMode.RN, RoundingMode.RZ))
        if target is dtypes.float16 and source in (
            dtypes.float64,
            dtypes.float32,
            dtypes.tfloat32,
            dtypes.float8_e5m3fnu,
        ):
            supported = (RoundingMode.RN, RoundingMode.RZ)
        if source is dtypes.float64 and target in (dtypes.float32, dtypes.tfloat32):
            supported = tuple(m for m in supported if m is not RoundingMode.RA)
    wanted = RoundingMode.RN if mode is None else mode
    if wanted not in supported:
        raise TileTypeError(
            f"rounding_mode={wanted} is not supported for conversion from {source} to {target}, "
            f"supported rounding modes for this conversion are {supported}"
        )
    return None if wanted is RoundingMode.RN else wanted


_RZ, _RM, _RP, _RA = RoundingMode.RZ, RoundingMode.RM, RoundingMode.RP, RoundingMode.RA
_DIRECTED = {
    dtypes.float64: (_RZ, _RM, _RP, _RA),
    dtypes.float32: (_RZ, _RM, _RP, _RA),
    dtypes.tfloat32: (_RZ, _RA),
    dtypes.float16: (_RZ, _RM, _RP, _RA),
    dtypes.bfloat16: (_RZ,),
}


def bitcast(x, /, dtype):
    x, dtype = as_tile(x), dtypes.to_dtype(dtype)
    if x.dtype not in FORMATS or dtype not in FORMATS:
        raise TileTypeError("bitcast to or from a foreign pointer is not supported")
    if dtypes.bool_ in (x.dtype, dtype):
        raise TileTypeError(f"Cannot bitcast from {x.dtype} to {dtype}: bitcast to or from bool is not supported")
    if FORMATS[x.dtype].bits != FORMATS[dtype].bits:
        raise TileTypeError(
            f"Cannot bitcast from {x.dtype} to {dtype}: bit width is different "
            f"({FORMATS[x.dtype].bits} vs. {FORMATS[dtype].bits})"
        )
    return x if x.dtype is dtype else Tile(dtypes.from_bits(dtype, dtypes.to_bits(x.dtype, x.data)), dtype)


def pack_to_bytes(x, /):
    x = as_tile(x)
    if x.dtype not in FORMATS or x.dtype is dtypes.bool_:
        raise TileTypeError(f"pack_to_bytes from a {x.dtype} tile is not supported")
    bits = dtypes.to_bits(x.dtype, x.data).reshape((len(x.data), -1))
    if FORMATS[x.dtype].bits == 4:
        if bits.shape[1] % 2:
            raise TileTypeError(f"Cannot pack {describe(x)}: its bits are not divisible by 8")
        return Tile(bits[:, ::2] | bits[:, 1::2] << 4, dtypes.uint8)
    return Tile(np.ascontiguousarray(bits).view(np.uint8), dtypes.uint8)


def unpack_from_bytes(x, /, dtype):
    x, dtype = as_tile(x), numeric_dtype(dtype)
    if x.ndim != 1:
        raise TileTypeError(f"unpack_from_bytes requires a 1D tile, got {x.ndim}D tile with shape {x.shape}")
    if x.dtype is not dtypes.uint8:
        raise TileTypeError(f"unpack_from_bytes requires uint8 tile, got {x.dtype} tile")
    if dtype is dtypes.bool_:
        raise TileTypeError(f"unpack_from_bytes to a {dtype} tile is not supported")
    bits = FORMATS[dtype].bits
    if x.shape[0] * 8 % bits:
        raise TileTypeError(f"Cannot unpack {describe(x)} to {dtype}: its bits are not divisible by {bits}")
    if bits == 4:
        halves = np.stack([x.data & 15, x.data >> 4], axis=-1).reshape((len(x.data), -1))
        return Tile(dtypes.from_bits(dtype, halves), dtype)
    raw = np.ascontiguousarray(x.data).view(np.dtype(f"u{bits // 8}"))
    return Tile(dtypes.from_bits(dtype, raw), dtype)


def constructor(dtype):
    """``ct.int16(5)``: a scalar of that dtype."""

    def make(x=0, /):
        if is_number(x):
            return constant(x, dtype)
        x = as_tile(x)
        if x.ndim:
            raise TileTypeError(f"Expected a scalar value; got {describe(x)}. Cast a tile with .astype({dtype})")
        return astype(x, dtype)

    return make


Tile.__getitem__ = subscript
Tile.__setitem__ = no_assignment
Tile.item = item
# The method takes its dtype by name too, which the function does not.
Tile.astype = lambda self, dtype, *, rounding_mode=None: astype(self, dtype, rounding_mode=rounding_mode)
for _function in (extract, insert, reshape, permute, transpose):
    setattr(Tile, _function.__name__, _function)

__all__ = [
    "arange", "astile", "astype", "bitcast", "broadcast_to", "cat", "expand_dims", "extract", "full", "insert", "ones",
    "pack_to_bytes", "permute", "reshape", "transpose", "unpack_from_bytes", "zeros",
]  # fmt: skip
