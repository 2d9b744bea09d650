"""Other ways to reach an array: tiled views, slices, advanced indexing, element offsets, foreign pointers."""

from dataclasses import dataclass

import numpy as np

from tilekit.cutile_interpreter import dtypes
from tilekit.cutile_interpreter.api import MemoryOrder, MemoryScope, PaddingMode, TileTypeError, tile
from tilekit.cutile_interpreter.dtypes import FORMATS, DType
from tilekit.cutile_interpreter.memory import (
    Array,
    elements_at,
    load_flat,
    load_region,
    padding,
    refuse_where,
    region,
    run_time,
    store_flat,
    store_region,
    value_tile,
)
from tilekit.cutile_interpreter.operations.access import array_argument, broadcastable, check_hints
from tilekit.cutile_interpreter.operations.atomics import (
    UPDATES,
    Places,
    Update,
    check_dtype,
    compare_and_swap,
    operand_of,
    update_places,
)
from tilekit.cutile_interpreter.run import running
from tilekit.cutile_interpreter.tile import (
    Tile,
    as_tile,
    axis_of,
    choice,
    constant_bool,
    constant_int,
    constant_ints,
    describe,
    expand,
    implicit,
    integer_scalar,
    is_number,
    tile_shape,
)


def is_integral(tile: Tile) -> bool:
    return tile.dtype in FORMATS and FORMATS[tile.dtype].category == dtypes.INT


def signed_scalar(value, what: str) -> np.ndarray | int:
    """A signed integer scalar: an int, or an int64 array with one entry a block."""
    if isinstance(value, Tile) and is_integral(value) and not FORMATS[value.dtype].signed:
        raise TileTypeError(f"Expected {what} to be a signed integer scalar; got {describe(value)}")
    return integer_scalar(value, what)


def constant_or_none(value) -> int | None:
    return value.const if isinstance(value, Tile) else value


# Tiled views ----------------------------------------------------------------------------------------------------------


class TiledView:
    """An array as a grid of tiles, `traversal_steps` elements apart."""

    __slots__ = ("_array", "_lengths", "_padding", "_shape", "_steps")

    def __init__(self, array: Array, shape: tuple[int, ...], mode: PaddingMode, steps: tuple[int, ...]):
        self._array, self._shape, self._padding, self._steps = array, shape, mode, steps
        self._lengths = shape or (1,) * array.ndim

    @property
    def dtype(self) -> DType:
        return self._array.dtype

    @property
    def tile_shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def traversal_steps(self) -> tuple[int, ...]:
        return self._steps

    def num_tiles(self, axis):
        axis = axis_of(axis, self._array.ndim)
        return run_time(-(-self._array.extents[axis] // self._steps[axis]), dtypes.int32)

    def _starts(self, index) -> list:
        items = index if isinstance(index, tuple) else (index,)
        if len(items) != self._array.ndim:
            raise TileTypeError(f"Index size {len(items)} does not match the tiled view rank {self._array.ndim}")
        return [signed_scalar(i, "a tile index") * step for i, step in zip(items, self._steps, strict=True)]

    def _spread(self, value: Tile, what: str) -> np.ndarray:
        """The values of `value`, one for each element of a tile of the view."""
        try:
            fits = np.broadcast_shapes(value.shape, self._shape) == self._shape
        except ValueError:
            fits = False
        if not fits:
            raise TileTypeError(
                f"{what} shape {value.shape} is not broadcastable to the tiled view's tile shape {self._shape}"
            )
        data = expand(value.data, self._shape)
        return data.reshape((len(data), *self._lengths))

    def load(self, index, *, check_bounds=True, latency=None, allow_tma=None):
        starts = self._starts(index)
        checked = constant_bool(check_bounds, "check_bounds")
        check_hints(latency, allow_tma)
        padding(self._padding, self.dtype)  # refuses NaN for integers also where nothing is padded
        values = load_region(self._array, starts, self._lengths, self._padding, checked)
        return value_tile(values.reshape((len(values), *self._shape)), self.dtype)

    def store(self, index, tile, *, check_bounds=True, latency=None, allow_tma=None):
        starts = self._starts(index)
        checked = constant_bool(check_bounds, "check_bounds")
        if self._shape:  # a number that has to fill a tile is no longer a literal: it has a dtype then
            tile = as_tile(tile, "tile")
            tile = Tile(tile.data, tile.dtype)
        tile = implicit(tile, self.dtype, "Stored tile is incompatible with tiled view's dtype")
        check_hints(latency, allow_tma)
        store_region(self._array, starts, self._spread(tile, "Tile"), checked)

    def _atomic_store(self, update: Update, index, value) -> None:
        check_dtype(self, update, "tiled view")
        starts = self._starts(index)
        values = self._spread(operand_of(update, value, self.dtype, self._lengths), "Update")
        array, run = self._array, running()
        flat, inside = region(array, starts, self._lengths)
        shape = np.broadcast_shapes((run.n, *self._lengths))
        flat, inside, values = (np.broadcast_to(v, shape) for v in (flat, inside, values))
        if run.tracker is not None:
            run.tracker.atomic(run, array, flat, inside)
        memory = array.memory.flat
        flat, values = flat[inside], values[inside].astype(memory.dtype)
        # Nobody sees an old value, so the group need not take turns.
        run.store(array.memory, lambda: update.values.at(memory, flat, values))

    def atomic_store_add(self, index, update, /):
        self._atomic_store(UPDATES["add"], index, update)

    def atomic_store_max(self, index, update, /):
        self._atomic_store(UPDATES["max"], index, update)

    def atomic_store_min(self, index, update, /):
        self._atomic_store(UPDATES["min"], index, update)

    def atomic_store_and(self, index, update, /):
        self._atomic_store(UPDATES["and"], index, update)

    def atomic_store_or(self, index, update, /):
        self._atomic_store(UPDATES["or"], index, update)

    def atomic_store_xor(self, index, update, /):
        self._atomic_store(UPDATES["xor"], index, update)


def tiled_view(self, tile_shape, *, padding_mode=PaddingMode.UNDETERMINED, traversal_steps=None):
    shape = _tile_shape(tile_shape, "tile_shape", rank=self.ndim)
    mode = choice(padding_mode, PaddingMode, "padding_mode")
    if traversal_steps is None:
        return TiledView(self, shape, mode, shape or (1,) * self.ndim)
    steps = constant_ints(traversal_steps, "traversal_steps")
    if len(steps) != self.ndim:
        raise TileTypeError(f"Expected traversal_steps length to be {self.ndim}, got {len(steps)}")
    for axis, step in enumerate(steps):
        if step <= 0:
            raise TileTypeError(f"Dimension #{axis} of traversal_steps {steps} is not positive")
    return TiledView(self, shape, mode, steps)


_tile_shape = tile_shape  # the parameter of that name is part of the signature


# Slices ---------------------------------------------------------------------------------------------------------------


def slice(self, axis, start, stop):
    axis = axis_of(axis, self.ndim)
    low, high = signed_scalar(start, "start"), signed_scalar(stop, "stop")
    constants = constant_or_none(start), constant_or_none(stop)
    for constant, name in zip(constants, ("start", "stop"), strict=True):
        if constant is not None and constant < 0:
            raise TileTypeError(f"Slice {name} must be non-negative, got {constant}")
    static = None not in constants
    if static and high < low:
        raise TileTypeError(f"Slice stop must be greater than or equal to start, got {low} and {high}")
    extent = self.extents[axis]
    wrong = np.less(low, 0) | np.less(high, low) | np.greater(high, extent)
    refuse_where(
        wrong, "slice({axis}, {low}, {high}) wants 0 <= start <= stop <= {extent}", axis=axis, low=low, high=high,
        extent=extent,
    )  # fmt: skip
    length = _collapsed(high - low)
    extents = (*self.extents[:axis], length, *self.extents[axis + 1 :])
    known = frozenset(self.static[0]) - {axis} | ({axis} if static else frozenset())
    return Array(
        self.memory, self.offset + low * self.steps[axis], extents, self.steps, self.index_dtype,
        (known, self.static[1]), self.name,
    )  # fmt: skip


def _collapsed(values):
    """One int where all blocks have the same."""
    if isinstance(values, int):
        return values
    return int(values[0]) if (values == values[0]).all() else values


# Advanced indexing ----------------------------------------------------------------------------------------------------


class Slice:
    """`length` elements from `start` on, along one axis."""

    __slots__ = ("length", "start")

    def __init__(self, start, length, /):
        signed_scalar(start, "start")
        signed_scalar(length, "length")
        self.start, self.length = start, length


def _advanced(array, indices) -> tuple[tuple[int, ...], np.ndarray, np.ndarray]:
    """The shape of the tile that `indices` mean, the positions of its elements, and which are inside the array."""
    if not isinstance(indices, tuple) or len(indices) != array.ndim:
        got = len(indices) if isinstance(indices, tuple) else describe(indices)
        raise TileTypeError(
            f"Advanced indexing of an array of rank {array.ndim} takes a tuple of {array.ndim} indices; got {got}"
        )
    sparse, shape, positions = [], [], []
    for axis, item in enumerate(indices):
        if isinstance(item, Slice):
            length = constant_int(item.length, f"the length of the ct.Slice at axis {axis}")
            if length <= 0:
                raise TileTypeError(f"ct.Slice length at axis {axis} must be a positive integer, got {length}")
            start = np.asarray(signed_scalar(item.start, "start"), np.int64).reshape(-1, 1)
            positions.append(start + np.arange(length))
        else:
            item = _sparse_index(item, axis)
            length = item.shape[0]
            positions.append(item.data)
            sparse.append(axis)
        shape.append(length)
    if len(sparse) != 1:
        raise TileTypeError(
            "Exactly one index must be a 1-D integer tile (the sparse axis), the others ct.Slice(start, length); found "
            f"{len(sparse)} tiles"
        )
    for axis, length in enumerate(shape):
        if length & (length - 1):
            raise TileTypeError(f"Index at axis {axis} has size {length}; must be a power of two")
    rank = array.ndim
    spread = [
        p.reshape(len(p), *(length if a == axis else 1 for a in range(rank)))
        for axis, (p, length) in enumerate(zip(positions, shape, strict=True))
    ]
    return tuple(shape), *elements_at(array, spread, tuple(shape))


def _sparse_index(item, axis: int) -> Tile:
    if not isinstance(item, Tile) and not is_number(item):
        raise TileTypeError(
            f"The index at axis {axis} must be a 1-D integer tile (the sparse axis) or ct.Slice(start, length); got "
            f"{describe(item)}"
        )
    item = as_tile(item)
    if item.ndim != 1:
        raise TileTypeError(f"Sparse index at axis {axis} must be a 1D integer tile, got {item.ndim}D")
    if not is_integral(item):
        raise TileTypeError(f"Sparse index at axis {axis} must be an integer tile, got dtype {item.dtype}")
    return item


def _check_rank(array, what: str, instead: str) -> None:
    if array_argument(array).ndim < 2:
        raise TileTypeError(f"{what} requires a 2D or higher-rank array; use ct.{instead}() for 1D arrays")


def load_advanced_indexing(
    array, indices, /, *, padding_mode=PaddingMode.UNDETERMINED, latency=None, allow_tma=None
):  # fmt: skip
    _check_rank(array, "load_advanced_indexing", "gather")
    _, flat, inside = _advanced(array, indices)
    mode = choice(padding_mode, PaddingMode, "padding_mode")
    check_hints(latency, allow_tma)
    return value_tile(load_flat(array, flat, inside, padding(mode, array.dtype)), array.dtype)


def store_advanced_indexing(array, indices, tile, /, *, latency=None, allow_tma=None):
    _check_rank(array, "store_advanced_indexing", "scatter")
    shape, flat, inside = _advanced(array, indices)
    if as_tile(tile, "tile").shape != shape:
        raise TileTypeError(f"Tile shape {as_tile(tile).shape} does not match the shape implied by indices {shape}")
    tile = implicit(tile, array.dtype, "Stored tile dtype is incompatible with array dtype")
    check_hints(latency, allow_tma)
    store_flat(array, flat, inside, tile.data)


# Element offsets ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RawArrayMemory:
    """Memory from an array's first element on, reached by offsets in elements."""

    array: Array

    @property
    def dtype(self) -> DType:
        return self.array.dtype

    def _places(self, offset, mask) -> Places:
        offset = as_tile(offset, "offset")
        base = self.array.offset
        base = base if isinstance(base, int) else base.reshape((-1,) + (1,) * offset.ndim)
        flat = base + dtypes.cast(offset.data, offset.dtype, dtypes.uint64).astype(np.int64)
        inside, there = np.ones_like(flat, bool), (flat >= 0) & (flat < len(self.array.memory.flat))
        if mask is not None:
            mask = as_tile(mask, "mask")
            if mask.dtype is not dtypes.bool_:
                raise TileTypeError(f"Custom mask must have boolean dtype, but got {mask.dtype}")
            inside = broadcastable(mask, flat.shape[1:], "Custom mask")
        flat, inside, there = np.broadcast_arrays(flat, inside, there)
        stray = (inside & ~there).reshape(len(flat), -1)
        refuse_where(
            stray.any(axis=1), "an offset from {name} lies outside its memory, and only a mask holds offsets back",
            name=self.array.name,
        )  # fmt: skip
        return Places(self.array, flat, inside)

    def load_offset(self, offset, /, *, mask=None, padding_value=0, latency=None):
        places = self._places(offset, mask)
        if padding_value is None:
            fill = padding(PaddingMode.UNDETERMINED, self.dtype)
        else:
            fill = implicit(padding_value, self.dtype, "Invalid padding value")
            fill = broadcastable(fill, places.shape, "Padding")
        check_hints(latency)
        return value_tile(load_flat(self.array, places.flat, places.inside, fill), self.dtype)

    def store_offset(self, offset, value, /, *, mask=None, latency=None):
        places = self._places(offset, mask)
        value = implicit(value, self.dtype, "Stored value is incompatible with RawArrayMemory's dtype")
        check_hints(latency)
        store_flat(self.array, places.flat, places.inside, broadcastable(value, places.shape, "Value"))

    def atomic_cas_offset(
        self, offset, expected, desired, /, *, mask=None, memory_order=MemoryOrder.ACQ_REL,
        memory_scope=MemoryScope.DEVICE,
    ):  # fmt: skip
        return compare_and_swap(self._places(offset, mask), expected, desired, memory_order, memory_scope)


def _atomic_offset(update: Update):
    def method(
        self, offset, update, /, *, mask=None, memory_order=MemoryOrder.ACQ_REL, memory_scope=MemoryScope.DEVICE
    ):
        return update_places(operation, self._places(offset, mask), update, memory_order, memory_scope)

    operation = update
    method.__name__ = method.__qualname__ = f"atomic_{update.name}_offset"
    return method


for _update in UPDATES.values():
    setattr(RawArrayMemory, f"atomic_{_update.name}_offset", _atomic_offset(_update))


def get_raw_memory(self):
    return RawArrayMemory(self)


# Foreign pointers -----------------------------------------------------------------------------------------------------

# Made here once, as inside a kernel the original is translated to the function below.
_FOREIGN = {dtype: tile.foreign_pointer_dtype(dtype) for dtype in FORMATS}


def foreign_pointer_dtype(pointee_dtype):
    if pointee_dtype in _FOREIGN.values():
        raise TileTypeError("nested foreign pointer dtypes are not supported")
    return _FOREIGN[dtypes.to_dtype(pointee_dtype)]


class ForeignPointer(Tile):
    """A scalar tile that points at the first element of an array. Its data is the position in the array's memory."""

    __slots__ = ("array",)

    def __init__(self, array: Array):
        super().__init__(np.atleast_1d(np.asarray(array.offset, np.int64)), _FOREIGN[array.dtype])
        self.array = array


def from_foreign(pointer, shape, strides):
    if not isinstance(pointer, ForeignPointer):
        raise TileTypeError(f"Expected a foreign pointer, as from array.foreign_pointer; got {describe(pointer)}")
    extents, known_extents, wide = _metadata(shape, "shape")
    steps, known_steps, wide_steps = _metadata(strides, "strides")
    if len(extents) != len(steps):
        raise TileTypeError(f"shape and strides must have the same rank, got {len(extents)} and {len(steps)}")
    source = pointer.array
    last = source.offset + sum((e - 1) * s for e, s in zip(extents, steps, strict=True))
    empty = np.any([np.equal(e, 0) for e in extents], axis=0) if extents else False
    refuse_where(
        ~np.asarray(empty) & np.greater_equal(last, len(source.memory.flat)),
        f"from_foreign: shape and strides reach past the memory of argument {source.name}",
    )
    return Array(
        source.memory, source.offset, extents, steps, dtypes.int64 if wide or wide_steps else dtypes.int32,
        (known_extents, known_steps), source.name,
    )  # fmt: skip


def _metadata(values, name: str) -> tuple[list, frozenset, bool]:
    """Extents or strides, the axes where they are constants, and whether they need 64 bits."""
    if not isinstance(values, tuple):
        raise TileTypeError(f"Expected {name} to be a tuple of integers; got {describe(values)}")
    found, known, wide = [], set(), False
    for axis, value in enumerate(values):
        where = f"{name}[{axis}]"
        number, constant = signed_scalar(value, where), constant_or_none(value)
        if constant is not None:
            if constant < 0:
                raise TileTypeError(f"{where} must be non-negative, got {constant}")
            known.add(axis)
        refuse_where(np.less(number, 0), where + " is {number}, which is negative", number=number)
        dtype = value.dtype if isinstance(value, Tile) else dtypes.dtype_of_number(value)
        wide |= FORMATS[dtype].bits > 32
        found.append(number)
    return found, frozenset(known), wide


# Promises -------------------------------------------------------------------------------------------------------------


def assume_divisible_by(x, divisor):
    numbers = integer_scalar(x, "x")
    divisor = constant_int(divisor, "divisor")
    if divisor < 1:
        raise TileTypeError(f"`assume_divisible_by` requires a positive divisor, got {divisor}")
    constant = constant_or_none(x)
    if constant is not None and constant % divisor:
        raise TileTypeError(f"Value {constant} is not divisible by {divisor}: `assume_divisible_by` contradicts it")
    wrong = np.mod(numbers, divisor) != 0
    refuse_where(wrong, "assume_divisible_by: {x} is not divisible by {divisor}", x=numbers, divisor=divisor)
    return x


Array.tiled_view = tiled_view
Array.slice = slice
Array.get_raw_memory = get_raw_memory
Array.foreign_pointer = property(ForeignPointer)
Array.from_foreign = staticmethod(from_foreign)

__all__ = [
    "Array", "RawArrayMemory", "Slice", "TiledView", "assume_divisible_by", "foreign_pointer_dtype",
    "load_advanced_indexing", "store_advanced_indexing",
]  # fmt: skip
