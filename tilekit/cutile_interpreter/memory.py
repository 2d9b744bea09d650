"""Arrays in memory, and the two ways to reach their elements: a tile's region, and a gather's indices.

Every load and store of the interpreter comes through here: bounds, padding, waiting stores and tracked accesses are
settled in one place.
"""

import functools
import sys
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tilekit.cutile_interpreter import dtypes
from tilekit.cutile_interpreter.api import PaddingMode, TileTypeError, TileValueError
from tilekit.cutile_interpreter.dtypes import BY_STORAGE, FORMATS, DType
from tilekit.cutile_interpreter.run import current, running
from tilekit.cutile_interpreter.tile import Tile, aligned


@dataclass(eq=False, slots=True)
class Memory:
    """A stretch of memory as a flat array of elements. Arguments that overlap share one.

    Attributes:
        flat: the elements, in the dtype's storage.
        dtype: cuTile's dtype.
        names: names of the parameters that reach it.
        owners: the caller's array of each parameter, kept alive and for reports.
        others: memories of other dtypes that overlap this one.
    """

    flat: np.ndarray
    dtype: DType
    names: list[str] = field(default_factory=list)
    owners: list = field(default_factory=list)
    others: list["Memory"] = field(default_factory=list)

    def check_writable(self) -> None:
        if not self.flat.flags.writeable:
            raise TileValueError(
                f"Argument {' and '.join(self.names)}: a kernel may load from a read-only array, but not store to it; pass a "
                ".copy()"
            )


class Array:
    """A global array as a kernel sees it: memory, shape and strides; a view of it differs only in these.

    Offsets, extents and strides are Python ints, or int64 arrays with one entry a block where blocks differ.
    """

    __slots__ = (
        "_dtype",
        "_shape",
        "_strides",
        "_views",
        "extents",
        "index_dtype",
        "memory",
        "name",
        "offset",
        "static",
        "steps",
    )

    def __init__(self, memory, offset, extents, steps, index_dtype=dtypes.int32, static=((), ()), name=""):
        self.memory = memory
        self._dtype = memory.dtype
        self.offset = offset
        self.extents = tuple(extents)
        self.steps = tuple(steps)
        self.index_dtype = index_dtype
        self.static = static
        self.name = name
        self._views = {}
        self._shape = self._strides = None

    # What a kernel may ask -------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> DType:
        return self._dtype

    @property
    def ndim(self) -> int:
        return len(self.extents)

    @property
    def shape(self) -> tuple:
        """The extents: int32 scalars at run time, constants where the annotation made them so."""
        if self._shape is None:
            self._shape = self._visible(self.extents, self.static[0])
        return self._shape

    @property
    def strides(self) -> tuple:
        if self._strides is None:
            self._strides = self._visible(self.steps, self.static[1])
        return self._strides

    def _visible(self, values, static) -> tuple:
        return tuple(v if i in static else run_time(v, self.index_dtype) for i, v in enumerate(values))

    def __getitem__(self, index):
        raise TileTypeError(
            "Arrays are not directly subscriptable in a kernel: use ct.load for a tile, ct.gather for elements"
        )

    def __setitem__(self, index, value):
        raise TileTypeError(
            "Arrays do not support item assignment in a kernel: use ct.store for a tile, ct.scatter for elements"
        )

    def __bool__(self):
        raise TileTypeError("An array has no truth value in a kernel")

    def __repr__(self):
        if current.run is not None and current.run.static:
            shape = ", ".join(str(e) if axis in self.static[0] else "?" for axis, e in enumerate(self.extents))
            return f"<array[{self._dtype}, ({shape})]>"
        return f"<array {self.name} [{self._dtype}, {self.extents}]>"

    # Views -----------------------------------------------------------------------------------------------------------

    def permuted(self, order: tuple[int, ...]) -> "Array":
        if order == tuple(range(len(order))):
            return self
        view = self._views.get(order)
        if view is None:
            extents, steps = (tuple(v[i] for i in order) for v in (self.extents, self.steps))
            view = self._views[order] = Array(
                self.memory, self.offset, extents, steps, self.index_dtype, name=self.name
            )
        return view

    @property
    def uniform(self) -> bool:
        """The same for all blocks."""
        return isinstance(self.offset, int) and all(isinstance(v, int) for v in (*self.extents, *self.steps))

    def tiles(self, lengths: tuple[int, ...]) -> np.ndarray:
        """All whole tiles: an array of rank 2 * ndim, tile index first. Needs a uniform array."""
        found = self._views.get(("tiles", lengths))
        if found is None:
            size = self.memory.flat.itemsize
            counts = tuple(e // n for e, n in zip(self.extents, lengths, strict=True))
            strides = [s * n * size for s, n in zip(self.steps, lengths, strict=True)] + [s * size for s in self.steps]
            found = self._strided(counts + lengths, strides)
            self._views["tiles", lengths] = found
        return found

    def elements(self) -> np.ndarray:
        """All elements, as an array of this shape. Needs a uniform array."""
        found = self._views.get("elements")
        if found is None:
            size = self.memory.flat.itemsize
            found = self._views["elements"] = self._strided(self.extents, [s * size for s in self.steps])
        return found

    def tile_offsets(self, lengths: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """``(1, *lengths)`` offsets of a tile's elements from its first, and a mask of all of them."""
        found = self._views.get(("offsets", lengths))
        if found is None:
            offsets = np.zeros((1,) * (1 + self.ndim), np.int64)
            for axis, (length, step) in enumerate(zip(lengths, self.steps, strict=True)):
                offsets = offsets + (np.arange(length) * step).reshape((-1,) + (1,) * (self.ndim - 1 - axis))
            found = self._views["offsets", lengths] = offsets, np.ones(offsets.shape, bool)
        return found

    def _strided(self, shape, strides) -> np.ndarray:
        if 0 in shape:
            return np.empty(shape, self.memory.flat.dtype)
        return strided(self.memory.flat[self.offset :], shape, strides)


def strided(array: np.ndarray, shape, strides) -> np.ndarray:
    """A view with any shape and strides. As integers, because as_strided does not know the name of float8_e5m2."""
    integers = array.view(f"u{array.itemsize}")
    return np.lib.stride_tricks.as_strided(integers, shape, strides).view(array.dtype)


def run_time(value, dtype: DType) -> Tile:
    """An integer that is known at run time only: an int, or one a block."""
    if isinstance(value, int):
        return Tile(np.array([value], FORMATS[dtype].carrier), dtype)
    return Tile(value.astype(FORMATS[dtype].carrier), dtype)


# Arrays from the caller's ---------------------------------------------------------------------------------------------


def is_array(value) -> bool:
    torch = sys.modules.get("torch")
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def adopted(value):
    """A kernel's argument, with every object of another library that offers its memory through DLPack as an array."""
    if type(value) in (tuple, list):
        return type(value)(map(adopted, value))
    if is_array(value) or not hasattr(value, "__dlpack__") or isinstance(value, (np.generic, type)):
        return value
    if value.__dlpack_device__()[0] != _DLPACK_CPU:
        raise TypeError(
            f"The interpreter works on the CPU's memory; got an object of type {type(value).__name__} elsewhere"
        )
    torch = sys.modules.get("torch")  # which knows more dtypes, if it is there
    return np.from_dlpack(value) if torch is None else torch.from_dlpack(value)


_DLPACK_CPU = 1


def as_numpy(value) -> tuple[np.ndarray, DType]:
    """The caller's array as a NumPy view of the same memory, and its dtype.

    Raises:
        TypeError: a dtype that cuTile does not have, or memory that the CPU cannot reach.
    """
    if not isinstance(value, np.ndarray):
        value = _from_torch(value)
    dtype = BY_STORAGE.get(value.dtype)
    if dtype is None:
        raise TypeError(f"cuTile has no dtype for {value.dtype}")
    return value, dtype


def _from_torch(tensor) -> np.ndarray:
    import ml_dtypes
    import torch

    if tensor.device.type == "meta":
        raise TypeError("The interpreter works on CPU tensors; one on the meta device has no elements")
    if tensor.device.type != "cpu":
        raise TypeError(f"The interpreter works on CPU tensors; got one on {tensor.device}. Move it with .cpu()")
    if tensor.is_neg() or tensor.is_conj():
        raise TypeError("the tensor is a lazily negated view, of other numbers than its memory's; use .resolve_neg()")
    if tensor.layout is not torch.strided:
        raise TypeError(f"cuTile takes strided tensors; got {tensor.layout}")
    tensor = tensor.detach()
    name = str(tensor.dtype).removeprefix("torch.")
    if hasattr(ml_dtypes, name):
        integer = {1: torch.uint8, 2: torch.int16}[tensor.element_size()]
        return tensor.view(integer).numpy().view(getattr(ml_dtypes, name))
    return tensor.numpy()


def collect(parameters: list[tuple[str, object]]) -> dict[int, tuple[Memory, int]]:
    """Memories for the arrays among a kernel's arguments: ``id`` of each to its memory and its offset in elements.

    Arrays whose memory overlaps share one, so that what is written through the one is seen through the other.
    """
    spans, found = [], {}
    for name, value in parameters:
        try:
            array, dtype = as_numpy(value)
        except TypeError as error:
            raise TypeError(f"Argument {name}: {error}") from None
        if any(s % array.itemsize for s in array.strides):
            raise TypeError(f"Argument {name}: strides must be whole elements; got {array.strides} bytes")
        low, high = _byte_bounds(array)
        spans.append((low, high, dtype, name, array, value))
    # Of views of the same elements the writable ones come first: the memory is made from the first.
    spans.sort(key=lambda s: (s[0], not s[4].flags.writeable, s[1]))
    groups, last = [], {}
    for span in spans:
        group = last.get(span[2])
        # Views of one buffer that begin inside an element of each other's share no flat array.
        if group and span[0] < group["high"] and (span[0] - group["low"]) % span[4].itemsize == 0:
            group["high"] = max(group["high"], span[1])
            group["spans"].append(span)
        else:
            group = last[span[2]] = {"low": span[0], "high": span[1], "dtype": span[2], "spans": [span]}
            groups.append(group)
    for group in groups:
        first = group["spans"][0][4]  # begins at the lowest address of all
        size = first.itemsize
        count = (group["high"] - group["low"]) // size
        base = strided(_lowest(first), (count,), (size,)) if count else first.reshape(-1)
        memory = Memory(base, group["dtype"])
        for _, _, _, name, array, value in group["spans"]:
            memory.names.append(name)
            memory.owners.append(value)
            found[id(value)] = (memory, (array.ctypes.data - group["low"]) // size)
        for other in groups:
            if other is group:
                break
            if other["high"] > group["low"] and other["low"] < group["high"]:
                memory.others.append(other["memory"])
                other["memory"].others.append(memory)
        group["memory"] = memory
    return found


def _byte_bounds(array: np.ndarray) -> tuple[int, int]:
    start = array.ctypes.data
    if not array.size:
        return start, start
    reach = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
    return start + sum(r for r in reach if r < 0), start + sum(r for r in reach if r > 0) + array.itemsize


def _lowest(array: np.ndarray) -> np.ndarray:
    """A view of the element with the lowest address, which is the last one along a negative stride."""
    index = tuple(slice(n - 1, n) if s < 0 else slice(0, 1) for n, s in zip(array.shape, array.strides, strict=True))
    return array[index].reshape(1) if array.ndim else array.reshape(1)


class Region(NamedTuple):
    """Where a tile lies, in its array's axes; and what fills it past the end, for a load."""

    starts: tuple
    lengths: tuple[int, ...]
    mode: PaddingMode | None = None


# Reaching elements ----------------------------------------------------------------------------------------------------

_PADDING = {
    PaddingMode.ZERO: 0.0,
    PaddingMode.NEG_ZERO: -0.0,
    PaddingMode.NAN: np.nan,
    PaddingMode.POS_INF: np.inf,
    PaddingMode.NEG_INF: -np.inf,
}


# NaN spreads through sums, and maxima, comparisons and the like ignore it: one of the others decides those.
POISONS = 3


@functools.cache
def _poisons(dtype: DType) -> tuple:
    """What undetermined padding may be instead of zero."""
    fmt = FORMATS[dtype]
    if fmt.category == dtypes.FLOAT:
        return np.nan, *dtypes.round_to(dtype, np.array([np.inf, -np.inf])).tolist()
    if fmt.category == dtypes.BOOL:
        return (True,) * POISONS
    low, high = dtypes.integer_range(dtype)
    return high, low, high


def padding(mode: PaddingMode, dtype: DType):
    """The value past the end of an array. Undetermined is zero, or the poison that the run asks for by its number."""
    fmt = FORMATS[dtype]
    if mode is PaddingMode.UNDETERMINED:
        poison = running().poison
        return _poisons(dtype)[poison - 1] if poison else 0
    if fmt.category != dtypes.FLOAT and mode is not PaddingMode.ZERO:
        raise TileTypeError(f"PaddingMode.{mode.name} is for floats; the array has dtype {dtype}")
    return _PADDING[mode]


def carried(stored: np.ndarray, dtype: DType) -> np.ndarray:
    """What memory holds, in the dtype's carrier; always a copy."""
    return stored.astype(FORMATS[dtype].carrier)


def _whole(array: Array, starts, lengths):
    """Indices of whole tiles if every block's region is one and lies inside; else ``None``."""
    index = []
    for start, length, extent in zip(starts, lengths, array.extents, strict=True):
        if isinstance(start, int):
            if start % length or not 0 <= start <= extent - length:
                return None
            index.append(start // length)
        else:
            tile, rest = np.divmod(start, length)
            if rest.any() or tile.min() < 0 or tile.max() >= extent // length:
                return None
            index.append(tile)
    return tuple(index)


def load_region(array: Array, starts, lengths: tuple[int, ...], mode: PaddingMode, checked: bool = True) -> np.ndarray:
    """Elements ``[start, start + length)`` along each axis, for every block: ``(n or 1, *lengths)``, carried.

    `starts` are ints, or int64 arrays with one entry a block. What lies outside the array is padding.
    """
    run = running()
    run.reading(array.memory)
    if run.tracker is None and array.uniform:
        whole = _whole(array, starts, lengths)
        if whole is not None:
            stored = array.tiles(lengths)[whole]
            # An index of arrays has copied already.
            copied = not all(isinstance(i, int) for i in whole)
            return stored.reshape((-1, *lengths)).astype(FORMATS[array.dtype].carrier, copy=not copied)
        if checked and (run.n == 1 or np.prod(lengths, dtype=np.int64) >= 256):
            return _load_by_block(array, starts, lengths, padding(mode, array.dtype))
    flat, inside = region(array, starts, lengths)
    if not checked:
        _check_all_inside(array, inside)
    return load_flat(array, flat, inside, padding(mode, array.dtype), Region(starts, lengths, mode))


def _load_by_block(array: Array, starts, lengths, fill) -> np.ndarray:
    elements = array.elements()
    n = max((len(s) for s in starts if not isinstance(s, int)), default=1)
    out = np.full((n, *lengths), fill, FORMATS[array.dtype].carrier)
    for block in range(n):
        source, target = _overlap(array.extents, [s if isinstance(s, int) else int(s[block]) for s in starts], lengths)
        out[(block, *target)] = elements[source]
    return out


def _overlap(extents, starts, lengths):
    """Slices of the array and of the tile where a region meets the array."""
    source, target = [], []
    for extent, start, length in zip(extents, starts, lengths, strict=True):
        low, high = max(start, 0), min(start + length, extent)
        high = max(low, high)
        source.append(slice(low, high) if low < extent else slice(0, 0))
        target.append(slice(low - start, high - start) if low < extent and high > low else slice(0, 0))
    return tuple(source), tuple(target)


def store_region(array: Array, starts, values: np.ndarray, checked: bool = True) -> None:
    """Write ``(n or 1, *lengths)`` carried values to each block's region; what lies outside is dropped."""
    run = running()
    lengths = values.shape[1:]
    stored = values.astype(array.memory.flat.dtype, copy=False)  # tiles never change
    if run.tracker is None and array.uniform:
        whole = _whole(array, starts, lengths)
        if whole is not None:
            view = array.tiles(lengths)
            if all(isinstance(i, int) for i in whole):
                stored = stored[-1]  # all blocks write one place: the last one stays
            run.store(array.memory, lambda: view.__setitem__(whole, stored))
            return
        if checked and (run.n == 1 or np.prod(lengths, dtype=np.int64) >= 256):
            run.store(array.memory, lambda: _store_by_block(array, starts, lengths, stored))
            return
    flat, inside = region(array, starts, lengths)
    if not checked:
        _check_all_inside(array, inside)
    store_flat(array, flat, inside, values, Region(starts, lengths))


def _store_by_block(array: Array, starts, lengths, stored) -> None:
    elements = array.elements()
    n = max(len(stored), max((len(s) for s in starts if not isinstance(s, int)), default=1))
    for block in range(n):
        place = [s if isinstance(s, int) else int(s[block if len(s) > 1 else 0]) for s in starts]
        target, source = _overlap(array.extents, place, lengths)
        elements[target] = stored[(block if len(stored) > 1 else 0, *source)]


def region(array: Array, starts, lengths) -> tuple[np.ndarray, np.ndarray | None]:
    """Flat positions of a region's elements, and which of them are inside the array."""
    if array.uniform and all(isinstance(s, int) for s in starts):
        if all(0 <= s <= e - n for s, e, n in zip(starts, array.extents, lengths, strict=True)):
            offsets, inside = array.tile_offsets(lengths)
            return offsets + (array.offset + sum(s * t for s, t in zip(starts, array.steps, strict=True))), inside
    ndim = len(lengths)
    flat, inside = _column(array.offset, ndim), None
    for axis, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        position = np.arange(length, dtype=np.int64)[
            (None,) * (axis + 1) + (slice(None),) + (None,) * (ndim - axis - 1)
        ]
        position = position + _column(start, ndim)
        ok = (position >= 0) & (position < _column(array.extents[axis], ndim))
        inside = ok if inside is None else inside & ok
        flat = flat + position * _column(array.steps[axis], ndim)
    shape = np.broadcast_shapes(np.shape(flat), (1, *lengths))
    flat = np.broadcast_to(flat, shape)
    inside = (
        np.ones(shape, bool) if inside is None else np.broadcast_to(inside, np.broadcast_shapes(inside.shape, shape))
    )
    return np.broadcast_to(flat, inside.shape), inside


def _column(value, ndim: int):
    return value if isinstance(value, int) else value.reshape((-1,) + (1,) * ndim)


def elements_at(array: Array, indices: list[np.ndarray], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Flat positions of the elements at `indices` (one carried integer array an axis), and which are inside."""
    ndim = len(shape)
    flat, inside = _column(array.offset, ndim), None
    for axis, index in enumerate(indices):
        index = aligned(index.astype(np.int64, copy=False), ndim)
        ok = (index >= 0) & (index < _column(array.extents[axis], ndim))
        inside = ok if inside is None else inside & ok
        flat = flat + index * _column(array.steps[axis], ndim)
    if inside is None:
        inside, flat = np.ones(1, bool), np.reshape(flat, -1)
    if flat.shape == inside.shape and flat.shape[1:] == shape:
        return flat, inside
    whole = np.broadcast_shapes(flat.shape, inside.shape, (1, *shape))
    return np.broadcast_to(flat, whole), np.broadcast_to(inside, whole)


def _check_all_inside(array: Array, inside: np.ndarray) -> None:
    if not inside.all():
        block = int(np.argmin(inside.reshape(len(inside), -1).all(1)))
        raise TileValueError(
            f"check_bounds=False promises that the tile lies inside the array, and in block {block_name(block)} it "
            f"reaches past the end of {array!r}: undefined behaviour on a GPU"
        )


def block_name(position: int) -> str:
    """The index of a block of the running group, in words."""
    blocks = running().blocks
    return str(tuple(int(i) for i in blocks[position if len(blocks) > 1 else 0]))


def refuse_where(bad, message: str, **values) -> None:
    """Raise for the first block of the group in which `bad` holds; `message` names its own values."""
    bad = np.atleast_1d(bad)
    if bad.any():
        block = int(np.argmax(bad))
        own = {name: np.broadcast_to(value, bad.shape)[block] for name, value in values.items()}
        raise TileValueError(f"{message.format(**own)}, in block {block_name(block)}: undefined behaviour on a GPU")


def load_flat(array: Array, flat, inside, fill, tile: Region | None = None) -> np.ndarray:
    """Elements at flat positions where `inside`, else `fill` (a number or carried values).

    `tile` says which region the positions are, where they are a tile's: it must not lie wholly outside.
    """
    run = running()
    run.reading(array.memory)
    if run.tracker is not None:
        run.tracker.load(run, array, flat, inside, tile)
    memory = array.memory.flat
    if not len(memory):
        return np.broadcast_to(np.asarray(fill, FORMATS[array.dtype].carrier), flat.shape).copy()
    if inside.all():
        return carried(memory.take(flat), array.dtype)
    values = carried(memory.take(np.where(inside, flat, 0)), array.dtype)
    return np.where(inside, values, np.asarray(fill, FORMATS[array.dtype].carrier))


def store_flat(array: Array, flat, inside, values: np.ndarray, tile: Region | None = None) -> None:
    """Write carried values to flat positions where `inside`."""
    run = running()
    stored = values.astype(array.memory.flat.dtype, copy=False)  # tiles never change
    if not flat.shape == inside.shape == stored.shape:
        flat, inside, stored = np.broadcast_arrays(flat, inside, stored)
    if run.tracker is not None:
        run.tracker.store(run, array, flat, inside, stored, tile)
    memory = array.memory.flat
    run.store(array.memory, lambda: memory.__setitem__(flat[inside], stored[inside]))


def value_tile(values: np.ndarray, dtype: DType) -> Tile:
    run = running()
    size = values.nbytes // max(1, len(values))
    if size > run.largest:
        run.largest = size
    return Tile(values, dtype)
