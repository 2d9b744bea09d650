"""Atomic operations on single elements, by index.

Blocks take their turns: the group runs as one block at a time, so what another block wrote is there to be read. Inside a
tile, elements that meet at one place go one after the other; all others go together.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilekit.cutile_interpreter import dtypes
from tilekit.cutile_interpreter.api import MemoryOrder, MemoryScope, PaddingMode, TileTypeError
from tilekit.cutile_interpreter.dtypes import FORMATS, DType
from tilekit.cutile_interpreter.memory import Array, carried, padding, value_tile
from tilekit.cutile_interpreter.operations.access import array_argument, broadcastable, check_order, element_positions
from tilekit.cutile_interpreter.run import running
from tilekit.cutile_interpreter.tile import Tile, as_tile, implicit

_INTEGERS = (dtypes.int32, dtypes.int64, dtypes.uint32, dtypes.uint64)
_WORDS = (*_INTEGERS, dtypes.float32, dtypes.float64)
_ORDERS = (MemoryOrder.RELAXED, MemoryOrder.ACQUIRE, MemoryOrder.RELEASE, MemoryOrder.ACQ_REL)


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


def places_at(array, indices, check_bounds) -> Places:
    array = array_argument(array)
    flat, inside, _ = element_positions(array, indices, None, check_bounds)
    return Places(array, flat, inside)


def spread(value, places: Places, what: str) -> np.ndarray:
    """The values of an operand, one for each place."""
    return broadcastable(as_tile(value), places.shape, what)


def check_dtype(array, update: Update, what: str = "array") -> None:
    if array.dtype not in update.dtypes:
        names = ", ".join(d.name for d in update.dtypes)
        raise TileTypeError(f"Unsupported {what} dtype: {array.dtype}. atomic_{update.name} works on {names}")


def operand_of(update: Update, value, dtype: DType, shape: tuple[int, ...]) -> Tile:
    """The operand in the array's dtype. A number that has to fill a tile is no longer a literal: it has a dtype then."""
    if shape:
        value = as_tile(value, "update")
        value = Tile(value.data, value.dtype)
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
    array.memory.check_writable()
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
    operand = spread(operand_of(update, value, dtype, places.shape), places, "Update")
    check_order(f"atomic_{update.name}", memory_order, memory_scope, _ORDERS)
    return read_modify_write(places, update.values, operand, untouched=padding(PaddingMode.UNDETERMINED, dtype))


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
        tile = implicit(value, dtype, "Stored value is incompatible with array's dtype")
        values.append(spread(tile, places, what))
    check_order("atomic_cas", memory_order, memory_scope, _ORDERS)
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
