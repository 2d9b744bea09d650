"""Loading and storing: tiles of an array, and elements at indices."""

import numpy as np

from tilekit.cutile_interpreter import dtypes, memory
from tilekit.cutile_interpreter.api import MemoryOrder, MemoryScope, PaddingMode, TileTypeError, TileValueError
from tilekit.cutile_interpreter.dtypes import FORMATS, INT
from tilekit.cutile_interpreter.memory import Array
from tilekit.cutile_interpreter.run import running
from tilekit.cutile_interpreter.tile import (
    Tile,
    as_tile,
    axis_of,
    broadcast_shapes,
    choice,
    constant_bool,
    constant_int,
    constant_ints,
    describe,
    expand,
    implicit,
    integer_scalar,
    tile_shape,
)

WEAK, NONE = MemoryOrder.WEAK, MemoryScope.NONE
_SCOPES = (MemoryScope.BLOCK, MemoryScope.DEVICE, MemoryScope.SYS)


# The grid -------------------------------------------------------------------------------------------------------------


def _grid_axis(axis) -> int:
    axis = constant_int(axis, "axis")
    if axis not in (0, 1, 2):
        raise TileTypeError(f"Axis must be 0, 1, or 2, but {axis} was given.")
    return axis


def bid(axis):
    axis = _grid_axis(axis)
    places = running().blocks[:, axis]
    if (places == places[0]).all():
        places = places[:1]
    return Tile(places.astype(np.int32), dtypes.int32)


def num_blocks(axis):
    return memory.run_time(running().grid[_grid_axis(axis)], dtypes.int32)


# Checks shared by all accesses ----------------------------------------------------------------------------------------


def array_argument(value) -> Array:
    if not isinstance(value, Array):
        raise TileTypeError(f"Expected an array; got {describe(value)}")
    return value


def axis_order(order, rank: int) -> tuple[int, ...]:
    if isinstance(order, str):
        if order not in ("C", "F"):
            raise TileTypeError(f"Expected 'C' or 'F', got '{order}'")
        return tuple(range(rank)) if order == "C" else tuple(range(rank))[::-1]
    order = constant_ints(order, "order")
    if len(order) != rank:
        raise TileTypeError(f"Expected tuple of length {rank}, got {len(order)}")
    order = tuple(axis_of(a, rank, "order") for a in order)
    if len(set(order)) < rank:
        raise TileTypeError(f"Axis order must be a permutation; got {order}")
    return order


def check_hints(latency, allow_tma=None) -> None:
    if latency is not None and not 1 <= constant_int(latency, "latency") <= 10:
        raise TileValueError(f"Latency must be between 1 and 10, got {latency}")
    if allow_tma is not None:
        constant_bool(allow_tma, "allow_tma")


def check_order(what: str, order, scope, orders) -> None:
    order = choice(order, MemoryOrder, "memory_order")
    scope = choice(scope, MemoryScope, "memory_scope")
    if order not in orders:
        raise TileTypeError(
            f"Invalid memory order for {what}. Got {order}, expected one of {', '.join(map(str, orders))}"
        )
    if scope is not NONE and scope not in _SCOPES:
        raise TileTypeError(
            f"Invalid memory scope for {what}. Got {scope}, expected one of {', '.join(map(str, (NONE, *_SCOPES)))}"
        )
    if order is WEAK and scope is not NONE:
        raise TileTypeError(f"{what} with WEAK memory ordering cannot specify a memory scope")
    if order is not WEAK and scope is NONE:
        raise TileTypeError(f"{what} with {order.name} memory ordering requires a memory scope")
    running().ordering = None if order is WEAK else (order, scope)


def tile_index(index, rank: int) -> tuple:
    """A tile's index: one integer scalar for each dimension of the array."""
    items = index if isinstance(index, tuple) else (index,)
    if len(items) != rank:
        raise TileTypeError(f"Index size {len(items)} does not match the array rank {rank}")
    for k, item in enumerate(items):
        if isinstance(item, Tile) and item.dtype in FORMATS and FORMATS[item.dtype].category == INT:
            if not FORMATS[item.dtype].signed:
                raise TileTypeError(f"Expected element {k} of index to be a signed integer; its dtype is {item.dtype}")
    return tuple(integer_scalar(i, f"element {k} of index") for k, i in enumerate(items))


# Tiles ----------------------------------------------------------------------------------------------------------------


def load_tile(array: Array, index, shape, order, mode, checked=True, steps=None) -> Tile:
    """The tile at `index`, after all arguments are checked; `steps` are the distances between tiles' origins."""
    lengths = shape or (1,) * array.ndim
    starts = tuple(i * s for i, s in zip(index, steps or lengths, strict=True))
    values = memory.load_region(array.permuted(order), starts, lengths, mode, checked)
    return memory.value_tile(values if shape else values.reshape(-1), array.dtype)


def store_tile(array: Array, index, tile: Tile, order, checked=True, steps=None, shape=None) -> None:
    lengths = shape or tile.shape or (1,) * array.ndim
    starts = tuple(i * s for i, s in zip(index, steps or lengths, strict=True))
    data = tile.data.reshape((-1, *lengths)) if not tile.shape and not shape else expand(tile.data, lengths)
    memory.store_region(array.permuted(order), starts, data, checked)


def load(
    array, /, index, shape, *, order="C", padding_mode=PaddingMode.UNDETERMINED, check_bounds=True, latency=None,
    allow_tma=None, memory_order=WEAK, memory_scope=NONE,
):  # fmt: skip
    array = array_argument(array)
    index = tile_index(index, array.ndim)
    shape = tile_shape(shape, rank=array.ndim)
    order = axis_order(order, array.ndim)
    mode = choice(padding_mode, PaddingMode, "padding_mode")
    checked = constant_bool(check_bounds, "check_bounds")
    if memory_order is not WEAK or memory_scope is not NONE:
        check_order("tile_load", memory_order, memory_scope, (MemoryOrder.RELAXED, MemoryOrder.ACQUIRE, WEAK))
        running().require_order()
    if latency is not None or allow_tma is not None:
        check_hints(latency, allow_tma)
    return load_tile(array, index, shape, order, mode, checked)


def store(
    array, /, index, tile, *, order="C", check_bounds=True, latency=None, allow_tma=None, memory_order=WEAK,
    memory_scope=NONE,
):  # fmt: skip
    array = array_argument(array)
    index = tile_index(index, array.ndim)
    tile = implicit(tile, array.dtype, "Stored tile is incompatible with array's dtype")
    if tile.ndim and tile.ndim != array.ndim:
        raise TileTypeError(f"A tile of rank {tile.ndim} cannot be stored to an array of rank {array.ndim}; reshape it")
    order = axis_order(order, array.ndim)
    checked = constant_bool(check_bounds, "check_bounds")
    if memory_order is not WEAK or memory_scope is not NONE:
        check_order("tile_store", memory_order, memory_scope, (MemoryOrder.RELAXED, MemoryOrder.RELEASE, WEAK))
        running().require_order()
    if latency is not None or allow_tma is not None:
        check_hints(latency, allow_tma)
    store_tile(array, index, tile, order, checked)


def num_tiles(array, /, axis, shape, order="C"):
    array = array_argument(array)
    shape = tile_shape(shape, rank=array.ndim) or (1,) * array.ndim
    extent = array.permuted(axis_order(order, array.ndim)).extents[axis_of(axis, array.ndim)]
    return memory.run_time(-(-extent // shape[axis_of(axis, array.ndim)]), dtypes.int32)


# Elements -------------------------------------------------------------------------------------------------------------


def element_positions(array: Array, indices, mask=None, check_bounds=True):
    """Flat positions of the elements that `indices` name, which of them to touch, and the common shape."""
    checked = constant_bool(check_bounds, "check_bounds")
    items = indices if isinstance(indices, tuple) else (indices,)
    if len(items) != array.ndim:
        also = ", or a single scalar/tile" if array.ndim == 1 else ""
        raise TileTypeError(
            f"For array of rank {array.ndim}, `indices` must be a tuple of length {array.ndim}{also}; got {len(items)}"
        )
    tiles = [as_tile(i, f"index {k}") for k, i in enumerate(items)]
    for axis, tile in enumerate(tiles):
        if tile.dtype not in FORMATS or FORMATS[tile.dtype].category != INT:
            raise TileTypeError(f"Index for dimension {axis} has non-integer data type {tile.dtype}")
    shape = broadcast_shapes(*(t.shape for t in tiles))
    flat, inside = memory.elements_at(array, [t.data for t in tiles], shape)
    wanted = None
    if mask is not None:
        mask = as_tile(mask, "mask")
        if mask.dtype is not dtypes.bool_:
            raise TileTypeError(f"Custom mask must have boolean dtype, but got {mask.dtype}")
        wanted = broadcastable(mask, shape, "Custom mask")
    if not checked:
        must = inside if wanted is None else inside | ~wanted
        memory._check_all_inside(array, must)
    if wanted is not None:
        inside = inside & wanted
        flat, inside = np.broadcast_arrays(flat, inside)
    return flat, inside, shape


def broadcastable(tile: Tile, shape, what: str) -> np.ndarray:
    if broadcast_shapes(tile.shape, shape) != tuple(shape):
        raise TileTypeError(f"{what} shape {tile.shape} is not broadcastable to the index shape {shape}")
    return expand(tile.data, shape)


def gather(array, indices, /, *, mask=None, padding_value=0, check_bounds=True, latency=None):
    array = array_argument(array)
    flat, inside, shape = element_positions(array, indices, mask, check_bounds)
    fill = implicit(padding_value, array.dtype, "Invalid padding value")
    fill = broadcastable(fill, shape, "Padding")
    check_hints(latency)
    return memory.value_tile(memory.load_flat(array, flat, inside, fill), array.dtype)


def scatter(array, indices, value, /, *, mask=None, check_bounds=True, latency=None):
    array = array_argument(array)
    flat, inside, shape = element_positions(array, indices, mask, check_bounds)
    value = implicit(value, array.dtype, "Stored value is incompatible with array's dtype")
    check_hints(latency)
    memory.store_flat(array, flat, inside, broadcastable(value, shape, "Value"))


__all__ = ["bid", "gather", "load", "num_blocks", "num_tiles", "scatter", "store"]
