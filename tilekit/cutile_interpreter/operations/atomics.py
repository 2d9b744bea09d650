"""Atomic operations on single elements, by index.

Blocks take their turns: the group runs as one block at a time, so what another block wrote is there to be read. Inside a
tile, elements that meet at one place go one after the other; all others go together.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilekit.cutile_interpreter import dtypes
from tilekit.cutile_interpreter.api import MemoryOrder, MemoryScope, PaddingMode, TileTypeError, TileValueError
from tilekit.cutile_interpreter.dtypes import BOOL, FORMATS, INT, DType
from tilekit.cutile_interpreter.memory import Array, block_name, carried, elements_at, padding, value_tile
from tilekit.cutile_interpreter.run import running
from tilekit.cutile_interpreter.tile import (
    Tile,
    as_tile,
    broadcast_shapes,
    choice,
    constant_bool,
    describe,
    expand,
    implicit,
    is_number,
)

_INTEGERS = (dtypes.int32, dtypes.int64, dtypes.uint32, dtypes.uint64)
_WORDS = (*_INTEGERS, dtypes.float32, dtypes.float64)
_ORDERS = (MemoryOrder.RELAXED, MemoryOrder.ACQUIRE, MemoryOrder.RELEASE, MemoryOrder.ACQ_REL)
_SCOPES = (MemoryScope.BLOCK, MemoryScope.DEVICE, MemoryScope.SYS)


@dataclass(frozen=True)
class Update:
    """A read-modify-write.

    Attributes:
        name: as in ``ct.atomic_add``.
        values: what replaces an element: of the old values and the operands, in the dtype's storage.
        dtypes: what an array may have for it.
        exact: the operand must have the array's dtype; nothing is cast.
    """

    name: str
    values: Callable
    dtypes: tuple[DType, ...]
    exact: bool = False


UPDATES = {
    update.name: update
    for update in (
        Update("xchg", lambda old, new: new, _WORDS),
        Update("add", np.add, (*_WORDS, dtypes.float16, dtypes.bfloat16)),
        Update("max", np.maximum, _INTEGERS),
        Update("min", np.minimum, _INTEGERS),
        Update("and", np.bitwise_and, _INTEGERS, exact=True),
        Update("or", np.bitwise_or, _INTEGERS, exact=True),
        Update("xor", np.bitwise_xor, _INTEGERS, exact=True),
    )
}


# What is accessed -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Places:
    """Elements of an array, one for each element of a tile: positions in its memory, and which of them to touch."""

    array: Array
    flat: np.ndarray
    inside: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.flat.shape[1:]


def broadcastable(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def is_integral(tile: Tile) -> bool:
    return tile.dtype in FORMATS and FORMATS[tile.dtype].category == INT


def places_at(array, indices, check_bounds) -> Places:
    """The elements at `indices`, which broadcast against each other: an integer tile for each axis of the array."""
    checked = constant_bool(check_bounds, "check_bounds")
    if not isinstance(array, Array):
        raise TileTypeError(f"Expected an array; got {describe(array)}")
    items = indices if isinstance(indices, tuple) else (indices,)
    tiles = [as_tile(item, "an index") for item in items]
    if len(tiles) != array.ndim:
        alone = ", or a single scalar/tile" if array.ndim == 1 else ""
        raise TileTypeError(
            f"For array of rank {array.ndim}, `indices` must be a tuple of length {array.ndim}{alone}; got {len(tiles)}"
        )
    for axis, tile in enumerate(tiles):
        if not is_integral(tile):
            raise TileTypeError(f"Expected a tuple of integer scalars/tiles; index #{axis} is {describe(tile)}")
    shape = broadcast_shapes((), *(tile.shape for tile in tiles))
    flat, inside = elements_at(array, [expand(tile.data, shape) for tile in tiles], shape)
    if not checked:
        check_reach(array, inside, "check_bounds=False promises that all indices are inside")
    return Places(array, flat, inside)


def check_reach(array: Array, there: np.ndarray, promise: str) -> None:
    """Raise where an element is accessed that is not there: on a GPU, undefined behaviour."""
    if not there.all():
        block = int(np.argmin(there.reshape(len(there), -1).all(axis=1)))
        raise TileValueError(
            f"{promise}; in block {block_name(block)} one is outside {array!r}: undefined behaviour on a GPU"
        )


def masked(places: Places, mask) -> Places:
    """`places` less those where `mask` is False."""
    if mask is None:
        return places
    mask = as_tile(mask, "mask")
    if mask.dtype not in FORMATS or FORMATS[mask.dtype].category != BOOL:
        raise TileTypeError(f"Custom mask must have boolean dtype, but got {mask.dtype}")
    if not broadcastable(mask.shape, places.shape):
        raise TileTypeError(f"Custom mask shape {mask.shape} is not broadcastable to the index shape {places.shape}")
    keep = expand(mask.data, places.shape)
    flat, inside = np.broadcast_arrays(places.flat, places.inside & keep)
    return Places(places.array, flat, inside)


def check_fits(value, places: Places, what: str) -> None:
    if is_number(value):
        return
    shape = as_tile(value, what).shape
    if not broadcastable(shape, places.shape):
        raise TileTypeError(f"{what} shape {shape} is not broadcastable to the index shape {places.shape}")


def check_order_and_scope(memory_order, memory_scope, what: str) -> None:
    order = choice(memory_order, MemoryOrder, "memory_order")
    scope = choice(memory_scope, MemoryScope, "memory_scope")
    for value, allowed, kind in ((order, _ORDERS, "order"), (scope, (MemoryScope.NONE, *_SCOPES), "scope")):
        if value not in allowed:
            expected = ", ".join(str(v) for v in allowed if v is not MemoryScope.NONE)
            raise TileTypeError(f"Invalid memory {kind} for {what}. Got {value}, expected one of {expected}")
    if scope is MemoryScope.NONE:
        raise TileTypeError(f"{what} with {order.name} memory ordering requires a memory scope, as MemoryScope.DEVICE")


def check_dtype(array, update: Update, what: str = "array") -> None:
    if array.dtype not in update.dtypes:
        names = ", ".join(d.name for d in update.dtypes)
        raise TileTypeError(f"Unsupported {what} dtype: {array.dtype}. atomic_{update.name} works on {names}")


def operand_of(update: Update, value, dtype: DType) -> Tile:
    if not update.exact:
        return implicit(value, dtype, "Update is incompatible with the target dtype")
    value = as_tile(value, "update")
    if value.dtype is not dtype:
        raise TileTypeError(
            "Bitwise atomic read-modify-write operations require the update dtype "
            f"({value.dtype}) to exactly match the target dtype ({dtype})"
        )
    return value


# Doing it -------------------------------------------------------------------------------------------------------------


def rounds(positions: np.ndarray):
    """Indices into `positions` in groups without repeats; equal positions come in their own order."""
    if len(positions) < 2:
        yield slice(None)
        return
    order = np.argsort(positions, kind="stable")
    ranked = positions[order]
    first = np.ones(len(ranked), bool)
    np.not_equal(ranked[1:], ranked[:-1], out=first[1:])
    if first.all():
        yield slice(None)
        return
    starts = np.maximum.accumulate(np.where(first, np.arange(len(ranked)), 0))
    turn = np.empty(len(ranked), np.int64)
    turn[order] = np.arange(len(ranked)) - starts
    for k in range(int(turn.max()) + 1):
        yield np.flatnonzero(turn == k)


def read_modify_write(places: Places, change: Callable, *operands: np.ndarray, untouched) -> Tile:
    """Replace each element by ``change(old, *operands)``, and give the old ones; `untouched` where nothing is done."""
    run, array = running(), places.array
    run.require_order()
    run.reading(array.memory)
    if run.tracker is not None:
        run.tracker.atomic(run, array, places.flat, places.inside)
    memory, inside = array.memory.flat, places.inside
    positions = places.flat[inside]
    changes = [np.broadcast_to(v, places.flat.shape)[inside].astype(memory.dtype) for v in operands]
    old = np.empty(len(positions), memory.dtype)
    for turn in rounds(positions):
        here = positions[turn]
        old[turn] = memory[here]
        memory[here] = change(old[turn], *(v[turn] for v in changes))
    values = np.empty(places.flat.shape, FORMATS[array.dtype].carrier)
    values[...] = untouched
    values[inside] = carried(old, array.dtype)
    return value_tile(values, array.dtype)


def update_places(update: Update, places: Places, value, memory_order, memory_scope) -> Tile:
    """``atomic_add`` and its like, once it is known which elements are meant."""
    dtype = places.array.dtype
    check_dtype(places.array, update)
    check_fits(value, places, "Update")
    operand = operand_of(update, value, dtype)
    check_order_and_scope(memory_order, memory_scope, f"atomic_{update.name}")
    undetermined = padding(PaddingMode.UNDETERMINED, dtype)
    return read_modify_write(places, update.values, expand(operand.data, places.shape), untouched=undetermined)


def _swap(old, expected, desired):
    """Bits are compared, so that -0.0 is not 0.0 and a NaN equals itself."""
    word = np.dtype(f"u{old.dtype.itemsize}")
    return np.where(old.view(word) == expected.view(word), desired, old)


def compare_and_swap(places: Places, expected, desired, memory_order, memory_scope) -> Tile:
    dtype = places.array.dtype
    if dtype not in _WORDS:
        raise TileTypeError(
            f"Unsupported array dtype: {dtype}. atomic_cas works on {', '.join(d.name for d in _WORDS)}"
        )
    values = []
    for value, what in ((expected, "Expected value"), (desired, "Desired value")):
        check_fits(value, places, what)
        tile = implicit(value, dtype, "Stored value is incompatible with array's dtype")
        values.append(expand(tile.data, places.shape))
    check_order_and_scope(memory_order, memory_scope, "atomic_cas")
    return read_modify_write(places, _swap, *values, untouched=values[0])


def atomic_cas(
    array, indices, expected, desired, /, *, check_bounds=True, memory_order=MemoryOrder.ACQ_REL,
    memory_scope=MemoryScope.DEVICE,
):  # fmt: skip
    places = places_at(array, indices, check_bounds)
    return compare_and_swap(places, expected, desired, memory_order, memory_scope)


def _function(update: Update) -> Callable:
    def atomic(
        array, indices, update, /, *, check_bounds=True, memory_order=MemoryOrder.ACQ_REL,
        memory_scope=MemoryScope.DEVICE,
    ):  # fmt: skip
        return update_places(operation, places_at(array, indices, check_bounds), update, memory_order, memory_scope)

    operation = update
    atomic.__name__ = atomic.__qualname__ = f"atomic_{update.name}"
    return atomic


atomic_xchg = _function(UPDATES["xchg"])
atomic_add = _function(UPDATES["add"])
atomic_max = _function(UPDATES["max"])
atomic_min = _function(UPDATES["min"])
atomic_and = _function(UPDATES["and"])
atomic_or = _function(UPDATES["or"])
atomic_xor = _function(UPDATES["xor"])

__all__ = [
    "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or", "atomic_xchg", "atomic_xor",
]  # fmt: skip
