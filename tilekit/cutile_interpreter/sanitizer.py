"""Finds mistakes that a run may hide: races between blocks, gaps, tiles out of bounds, undetermined results.

The blocks run one after another, and each element of memory remembers who touched it last. Where two blocks meet at an
element and one of them writes, nothing but an atomic operation with acquire and release between the two puts them in
order; without it, a GPU may run them in either order, or at once. More runs show whether the results depend on padding
that is not determined, and on the order of the blocks.

>>> import numpy as np, cuda.tile as ct
>>> from tilekit.cutile_interpreter import sanitizer
>>> @ct.kernel
... def total(x, out):
...     tile = ct.load(x, ct.bid(0), 4)
...     ct.store(out, 0, ct.load(out, 0, 1) + ct.sum(tile))
>>> x, out = np.ones(16, np.float32), np.zeros(1, np.float32)
>>> [(f.kind.value, f.parameter, f.element) for f in sanitizer.check((4,), total, (x, out)).findings]
[('update', 'out', (0,))]
"""

import enum
import io
import linecache
import sys
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tilekit.cutile_interpreter import dtypes
from tilekit.cutile_interpreter.api import MemoryOrder, MemoryScope, PaddingMode
from tilekit.cutile_interpreter.dtypes import FORMATS
from tilekit.cutile_interpreter.execution import ArrayList, StepsExceeded, prepare
from tilekit.cutile_interpreter.memory import POISONS, Array, Memory, Region

Block = tuple[int, int, int]


class Kind(str, enum.Enum):
    """What kind of mistake a finding is."""

    WRITES = "writes"
    DUPLICATES = "duplicates"
    READS = "reads"
    UPDATE = "update"
    UNSTORED = "unstored"
    OUTSIDE = "outside"
    PADDING = "padding"
    ORDER = "order"


# Of each kind: what it is, what it means, and what to do.
_WORDS = {
    Kind.WRITES: (
        "Two blocks write the same element",
        "Blocks run in any order or at once, so it is left to chance which value stays.",
        "Make the place depend on ct.bid so that each block has its own; to combine blocks' results use ct.atomic_add "
        "or another atomic.",
    ),
    Kind.DUPLICATES: (
        "One store writes different values to the same element",
        "The elements of a tile are stored in any order, so it is left to chance which value stays.",
        "Make the indices of a tile's elements distinct; leave elements out by mask=; to combine values use ct.atomic_add or "
        "another atomic.",
    ),
    Kind.READS: (
        "A block reads what another block writes",
        "Blocks run in any order or at once, so the read may see the old value or the new one.",
        "Read from one array and write to another, or split the work into two launches: a launch sees all that earlier "
        "launches wrote.",
    ),
    Kind.UPDATE: (
        "Two blocks update the same element, and not atomically",
        "Both may read the old value before either writes; then one of the two updates is lost.",
        "Use ct.atomic_add (or another atomic), or give each block its own place and add these up in a second launch.",
    ),
    Kind.UNSTORED: (
        "Elements are never stored",
        "They keep whatever was in memory before the launch.",
        "Compare the grid with ct.cdiv(extent, tile), and the index of the store with ct.bid.",
    ),
    Kind.OUTSIDE: (
        "A tile lies wholly outside its array",
        "cuTile leaves undefined what happens there: the block or the loop goes too far, or axes are mixed up.",
        "Compare the grid and the loop's bounds with ct.cdiv(extent, tile). An index counts tiles, not elements.",
    ),
    Kind.PADDING: (
        "The result depends on undetermined padding",
        "A tile reaches past the end of its array, and what it holds there may be anything, NaN included.",
        "Pass padding_mode= to ct.load, with the value that changes nothing: ZERO for a sum or a product of matrices, "
        "NEG_INF for a maximum; or mask with ct.where.",
    ),
    Kind.ORDER: (
        "The result depends on the order of the blocks",
        "It differed when the last block ran first; a GPU runs blocks in any order.",
        "Let each block's result depend on its index and its inputs only.",
    ),
}


# What is found --------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A line of the kernel."""

    file: str
    line: int

    @property
    def source(self) -> str:
        return linecache.getline(self.file, self.line).strip()

    def __str__(self):
        return f"{self.file}:{self.line}: {self.source}"


@dataclass(frozen=True)
class Finding:
    """One mistake: everything of one kind that the same lines did to one parameter.

    Attributes:
        kind: a :class:`Kind`.
        message: what happened, what it means and what to do, in a few lines.
        parameter: name of the array's parameter.
        blocks: blocks that took part; the first two are those of the example, the later one first.
        element: the example's index in the parameter's own coordinates; ``None`` if it has none there.
        count: elements concerned, or tiles for ``Kind.OUTSIDE``.
        where: the line of the kernel; for ``Kind.PADDING`` that of the load, if it is known.
        other: the line where the other block touched the element before, or where the result was stored.
    """

    kind: Kind
    message: str
    parameter: str
    blocks: tuple[Block, ...] = ()
    element: tuple[int, ...] | None = None
    count: int = 0
    where: Line | None = None
    other: Line | None = None

    @property
    def file(self) -> str | None:
        return self.where and self.where.file

    @property
    def line(self) -> int | None:
        return self.where and self.where.line

    @property
    def source(self) -> str | None:
        return self.where and self.where.source

    def __str__(self):
        return self.message


@dataclass(frozen=True, eq=False)
class Access:
    """One load, store or atomic operation of one block.

    Attributes:
        kind: ``"load"``, ``"store"`` or ``"atomic"``.
        parameter: name of the array's parameter.
        block: index of the block.
        where: the line of the kernel.
        region: ``(starts, lengths)`` of a tile along the parameter's axes, with what lies outside; else ``None``.
        shape: of the tile that was loaded or stored.
        positions: int64 positions of the elements inside the array, in its memory, in the tile's order.
    """

    kind: str
    parameter: str
    block: Block
    where: Line
    region: tuple[tuple[int, ...], tuple[int, ...]] | None
    shape: tuple[int, ...]
    positions: np.ndarray
    _root: Array | None = field(repr=False)

    @property
    def source(self) -> str:
        return self.where.source

    @property
    def indices(self) -> np.ndarray:
        """``(n, ndim)`` int64: where each touched element is, in the parameter's own coordinates; -1 if not in it."""
        if self._root is None:
            return self.positions[:, None]
        return coordinates(self._root, self.positions)


@dataclass(frozen=True, repr=False)
class Report:
    """What :func:`check` found. True if there is nothing."""

    findings: tuple[Finding, ...]
    accesses: tuple[Access, ...] = ()

    def __bool__(self):
        return not self.findings

    def __repr__(self):
        if not self.findings:
            return "No mistakes found."
        count = len(self.findings)
        head = f"{count} mistake{'s' * (count > 1)} found."
        return "\n\n".join([head, *(f"{i}. {f.message}" for i, f in enumerate(self.findings, 1))])


class MistakesFound(Exception):
    """A launch with ``check=True`` found mistakes. The arrays hold what the launch made of them.

    Attributes:
        report: the :class:`Report`; its text is the message.
    """

    def __init__(self, report: Report):
        super().__init__(repr(report))
        self.report = report


# Coordinates ----------------------------------------------------------------------------------------------------------


def coordinates(array: Array, positions: np.ndarray) -> np.ndarray:
    """Indices ``(n, ndim)`` of positions in memory, in an array whose elements do not overlap; -1 where not in it."""
    rest = positions.astype(np.int64) - array.offset
    index = np.zeros((len(positions), array.ndim), np.int64)
    axes = [a for a in range(array.ndim) if array.steps[a] and array.extents[a] > 1]
    backward = [a for a in axes if array.steps[a] < 0]
    for axis in backward:  # counted from its far end, which has the lower address
        rest = rest - array.steps[axis] * (array.extents[axis] - 1)
    for axis in sorted(axes, key=lambda a: -abs(array.steps[a])):
        step = abs(array.steps[axis])
        index[:, axis] = np.minimum(rest // step, array.extents[axis] - 1)
        rest = rest - index[:, axis] * step
    for axis in backward:
        index[:, axis] = array.extents[axis] - 1 - index[:, axis]
    index[(rest != 0) | (index < 0).any(1)] = -1
    return index


def _may_repeat(array: Array) -> bool:
    """Whether two elements of the array may be one in memory."""
    reach = 0
    for step, extent in sorted((abs(_first(s)), _first(e)) for s, e in zip(array.steps, array.extents, strict=True)):
        if extent > 1:
            if step <= reach:
                return True
            reach += (extent - 1) * step
    return False


def _first(value) -> int:
    """A number of the running block, of which there is one at a time."""
    return int(np.reshape(value, -1)[0])


def all_positions(array: Array) -> np.ndarray:
    """Positions in memory of all elements, in the array's shape."""
    found = np.int64(array.offset)
    for axis, (extent, step) in enumerate(zip(array.extents, array.steps, strict=True)):
        found = found + (np.arange(extent, dtype=np.int64) * step).reshape((-1,) + (1,) * (array.ndim - 1 - axis))
    return np.broadcast_to(found, array.extents)


def axes_of(root: Array, view: Array) -> tuple[int, ...] | None:
    """Which axis of `root` each axis of `view` is, if it is all of it with axes permuted."""
    if view.offset is not root.offset and view.offset != root.offset or view.ndim != root.ndim or not view.uniform:
        return None
    own, axes = list(zip(root.extents, root.steps, strict=True)), []
    for pair in zip(view.extents, view.steps, strict=True):
        match = [a for a in range(root.ndim) if own[a] == pair and a not in axes]
        if not match:
            return None
        axes.append(match[0])
    return tuple(axes)


def arrays_in(value):
    """All arrays among a kernel's bound arguments."""
    if isinstance(value, Array):
        yield value
    elif isinstance(value, (tuple, ArrayList)):
        for item in value:
            yield from arrays_in(item)
    elif hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        for name in value.__dataclass_fields__:
            yield from arrays_in(getattr(value, name))


# Order between blocks -------------------------------------------------------------------------------------------------


class Moment:
    """What is known to have happened before: some epochs, as a set of bits that is made when it is asked for."""

    __slots__ = ("_bits", "_before")

    def __init__(self, epoch: int, before: tuple["Moment", ...]):
        self._bits = 1 << epoch if epoch >= 0 else 0
        self._before = before

    def bits(self) -> int:
        waiting = [self]
        while waiting:
            moment = waiting[-1]
            unsettled = [m for m in moment._before if m._before]
            if unsettled:
                waiting.extend(unsettled)
                continue
            for m in moment._before:
                moment._bits |= m._bits
            moment._before = ()
            waiting.pop()
        return self._bits


NOTHING = Moment(-1, ())
_ACQUIRES = (MemoryOrder.ACQUIRE, MemoryOrder.ACQ_REL)
_RELEASES = (MemoryOrder.RELEASE, MemoryOrder.ACQ_REL)


# Tracking -------------------------------------------------------------------------------------------------------------


class Slots:
    """Who touched each element of one memory last, as numbers of events; 0 is nobody.

    Blocks run one after another, so all events of earlier blocks have lower numbers than those of the running one.
    Two readers are kept, of different blocks, so that one of them is another block than the one that writes.
    """

    def __init__(self, memory: Memory):
        self.memory = memory
        self.size = len(memory.flat)
        self.writer = self.reader = self.earlier_reader = self.atomic = self.moments = None
        self.scattered = False
        self.views = {}  # arrays that tiles are stored through, by where they lie
        self.lengths = {}  # of the largest tile that is stored, by axis of the root
        self.storing = 0  # blocks that store here
        self.last_storing = -1

    @property
    def written(self) -> bool:
        return self.writer is not None or self.atomic is not None

    def zeros(self) -> np.ndarray:
        return np.zeros(self.size, np.int32)


@dataclass
class Conflict:
    """Everything of one kind between two lines at one memory."""

    position: int
    array: str
    pairs: dict  # of block numbers, in the order they were found
    count: int = 0


class Tracker:
    """Sees every access of a launch that runs block by block.

    Args:
        launched: the launch, for its arrays and its grid.
        record: keep all accesses.
    """

    def __init__(self, launched, record: bool = False):
        self.launched = launched
        self.roots = {a.name: a for value in launched.bound for a in arrays_in(value)}
        self.slots: dict[int, Slots] = {}
        self.accesses: list[Access] = [] if record else None
        self.lines: list[Line] = []
        self._line_numbers = {}
        self.event_lines, self.event_epochs = [-1], [-1]
        self.epoch_blocks: list[int] = []
        self.blocks: list[Block] = []
        self.conflicts: dict[tuple, Conflict] = {}
        self.outside: dict[tuple, list] = {}
        self.duplicates: dict[tuple, list] = {}  # parameter and line: the first position, elements, blocks
        self.partial: dict[int, tuple[str, set]] = {}  # loads with undetermined padding: line to parameter and blocks
        self.unsure: dict[int, tuple[str, set]] = {}  # elements that were not loaded; maybe their value is undetermined
        self.shared = False  # some element is touched by two blocks, and written
        self.atomics = False
        self.most_steps = 0
        self.run = None
        self.base = 1

    # Blocks and events -----------------------------------------------------------------------------------------------

    def enter(self, run) -> None:
        """Begin a block, if `run` is a new one."""
        if run is self.run:
            return
        self.finish()
        self.run = run
        self.base = len(self.event_lines)
        self.blocks.append(tuple(int(i) for i in run.blocks[0]))
        self.seen, self.joined = NOTHING, set()
        self.reads, self.updated = [], []
        self.new_epoch()

    def finish(self) -> None:
        """End the running block: its reads of what others wrote are settled once it is known what it updated."""
        if self.run is None:
            return
        self.most_steps = max(self.most_steps, self.launched.max_steps - self.run.steps_left)
        updated = {}
        for slots, positions in self.updated:
            updated.setdefault(slots, []).append(positions)
        for slots, array, positions, events, event in self.reads:
            if slots in updated:
                keep = ~np.isin(positions, np.concatenate(updated[slots]))
                positions, events = positions[keep], events[keep]
            self.note(Kind.READS, slots, array, positions, events, event)
        self.run = None

    def new_epoch(self) -> None:
        self.epoch = len(self.epoch_blocks)
        self.epoch_blocks.append(len(self.blocks) - 1)

    def event(self, run) -> int:
        frame = sys._getframe(2)
        while frame is not None and frame.f_code not in run.codes:
            frame = frame.f_back
        key = (frame.f_code, frame.f_lineno) if frame is not None else None
        number = self._line_numbers.get(key)
        if number is None:
            number = self._line_numbers[key] = len(self.lines)
            self.lines.append(Line(frame.f_code.co_filename, frame.f_lineno) if frame is not None else None)
        self.event_lines.append(number)
        self.event_epochs.append(self.epoch)
        return len(self.event_lines) - 1

    def block_of(self, event: int) -> int:
        return self.epoch_blocks[self.event_epochs[event]]

    def at(self, memory: Memory) -> Slots:
        found = self.slots.get(id(memory))
        if found is None:
            found = self.slots[id(memory)] = Slots(memory)
        return found

    # Order -----------------------------------------------------------------------------------------------------------

    def unordered(self, events: np.ndarray) -> np.ndarray:
        """Which events of other blocks nothing puts before this point of the running one."""
        self.shared = True
        known = self.seen.bits()
        if not known:
            return np.ones(len(events), bool)
        unique, inverse = np.unique(events, return_inverse=True)
        free = np.array([not known >> self.event_epochs[e] & 1 for e in unique.tolist()], bool)
        return free[inverse.reshape(-1)]

    def foreign(self, last: np.ndarray | None, positions: np.ndarray) -> np.ndarray | None:
        """Which of `positions` another block touched last, unordered with the running one; ``None`` if none."""
        if last is None:
            return None
        events = last[positions]
        found = (events > 0) & (events < self.base)
        if not found.any():
            return None
        found[found] = self.unordered(events[found])
        return found if found.any() else None

    def acquire(self, slots: Slots, positions) -> None:
        if slots.moments is None:
            return
        new = set(slots.moments[positions].tolist()) - self.joined - {None, self.seen}
        if new:
            self.joined |= new
            self.seen = Moment(-1, (self.seen, *new))

    def release(self, slots: Slots, positions, replace: bool) -> None:
        if slots.moments is None:
            slots.moments = np.empty(slots.size, object)
        self.seen = moment = Moment(self.epoch, (self.seen,))
        if not replace:
            before = set(slots.moments[positions].tolist()) - self.joined - {None, self.seen}
            if before:
                moment = Moment(-1, (moment, *before))
        slots.moments[positions] = moment
        self.new_epoch()

    def ordering(self, run):
        """Memory order of this access if it is one that other blocks take part in, else ``None``."""
        given, run.ordering = run.ordering, None
        if given is None or given[1] in (MemoryScope.NONE, MemoryScope.BLOCK):
            return None
        return given[0]

    # Conflicts -------------------------------------------------------------------------------------------------------

    def note(self, kind, slots, array, positions, events, event) -> None:
        """Record conflicts of the running block's `event` with `events` of other blocks."""
        if not len(positions):
            return
        unique, inverse = np.unique(events, return_inverse=True)
        lines = np.array([self.event_lines[e] for e in unique.tolist()])[inverse.reshape(-1)]
        for line in np.unique(lines).tolist():
            here = lines == line
            key = (kind, array.name, self.event_lines[event], line)
            found = self.conflicts.get(key)
            if found is None:
                found = self.conflicts[key] = Conflict(int(positions[here][0]), array.name, {})
            found.count += int(here.sum())
            if len(found.pairs) < 1000:
                mine = self.block_of(event)
                for other in np.unique(events[here])[:8].tolist():
                    found.pairs[mine, self.block_of(other)] = None

    def note_where(self, kind, slots, array, positions, last, found, event) -> None:
        if found is not None and found.any():
            self.note(kind, slots, array, positions[found], last[positions[found]], event)

    # Accesses --------------------------------------------------------------------------------------------------------

    def begin(self, run, kind, array, flat, inside, tile):
        self.enter(run)
        event = self.event(run)
        whole = bool(inside.all())
        positions = flat.reshape(-1) if whole else flat[inside]
        if tile is not None and not len(positions):
            self.outside.setdefault((array.name, self.event_lines[event]), []).append(
                (len(self.blocks) - 1, kind, tile, array)
            )
        if not whole and kind != "store":
            mode = tile.mode if tile is not None else None
            if mode in (None, PaddingMode.UNDETERMINED):
                known = self.unsure if mode is None else self.partial
                known.setdefault(self.event_lines[event], (array.name, set()))[1].add(len(self.blocks) - 1)
        if self.accesses is not None:
            self.record(kind, array, flat, positions, tile, event)
        return event, positions, self.at(array.memory)

    def record(self, kind, array, flat, positions, tile, event) -> None:
        root, region = self.roots.get(array.name), None
        if tile is not None and root is not None:
            axes = axes_of(root, array)
            if axes is not None:
                starts, lengths = [0] * len(axes), [0] * len(axes)
                for axis, start, length in zip(axes, tile.starts, tile.lengths, strict=True):
                    starts[axis], lengths[axis] = int(np.reshape(start, -1)[0]), length
                region = tuple(starts), tuple(lengths)
        self.accesses.append(
            Access(
                kind, array.name, self.blocks[-1], self.lines[self.event_lines[event]], region, flat.shape[1:],
                positions.copy(), root,
            )
        )  # fmt: skip

    def load(self, run, array: Array, flat, inside, tile: Region | None = None) -> None:
        event, positions, slots = self.begin(run, "load", array, flat, inside, tile)
        order = self.ordering(run)
        if order is not None:
            self.atomics = True
            if order in _ACQUIRES:
                self.acquire(slots, positions)
        for last in (slots.writer, None if order is not None else slots.atomic):
            found = self.foreign(last, positions)
            if found is not None:
                # Before the slots change: what the block may write later is not what it read.
                self.reads.append((slots, array, positions[found], last[positions[found]], event))
        if order is not None:
            slots.scattered = True
            self.touch_atomic(slots, positions, event)
        else:
            self.touch_reader(slots, positions, event)

    def touch_reader(self, slots, positions, event) -> None:
        if slots.reader is None:
            slots.reader, slots.earlier_reader = slots.zeros(), slots.zeros()
        before = slots.reader[positions]
        others = (before > 0) & (before < self.base)
        if others.any():
            slots.earlier_reader[positions[others]] = before[others]
        slots.reader[positions] = event

    def touch_atomic(self, slots, positions, event) -> None:
        if slots.atomic is None:
            slots.atomic = slots.zeros()
        last = slots.atomic[positions]
        self.shared = self.shared or bool(((last > 0) & (last < self.base)).any())
        slots.atomic[positions] = event

    def store(self, run, array: Array, flat, inside, values, tile: Region | None = None) -> None:
        event, positions, slots = self.begin(run, "store", array, flat, inside, tile)
        order = self.ordering(run)
        self.about_output(slots, array, tile)
        if tile is None or _may_repeat(array):  # else a tile's elements have places of their own
            self.note_duplicates(array, positions, values[inside], event)
        written = np.zeros(len(positions), bool)
        for last in (slots.writer, None if order is not None else slots.atomic):
            found = self.foreign(last, positions)
            if found is None:
                continue
            found &= ~written
            written |= found
            own = slots.reader[positions] >= self.base if slots.reader is not None else np.zeros(len(positions), bool)
            self.note_where(Kind.UPDATE, slots, array, positions, last, found & own, event)
            self.note_where(Kind.WRITES, slots, array, positions, last, found & ~own, event)
            self.updated.append((slots, positions[found & own]))
        self.after_reads(slots, array, positions, ~written, event)
        if order is not None:
            self.atomics = True
            self.touch_atomic(slots, positions, event)
            if order in _RELEASES:
                self.release(slots, positions, replace=True)
            elif slots.moments is not None:
                slots.moments[positions] = None
        else:
            if slots.writer is None:
                slots.writer = slots.zeros()
            slots.writer[positions] = event

    def note_duplicates(self, array, positions, values, event) -> None:
        """Record elements to which one store writes several values. The same value several times is of no effect."""
        order = np.argsort(positions, kind="stable")
        positions, values = positions[order], values[order]
        same = np.flatnonzero(positions[1:] == positions[:-1])
        if not len(same):
            return
        differ = _other_bits(values[same], values[same + 1], array.memory) & (values[same] != values[same + 1])
        places = np.unique(positions[same[differ]])
        if len(places):
            key = (array.name, self.event_lines[event])
            found = self.duplicates.setdefault(key, [int(places[0]), 0, []])
            found[1] += len(places)
            found[2].append(len(self.blocks) - 1)

    def after_reads(self, slots, array, positions, free, event) -> None:
        """Conflicts of a write with reads by other blocks, at `free` places."""
        for last in (slots.reader, slots.earlier_reader):
            found = self.foreign(last, positions)
            if found is not None:
                found &= free
                free = free & ~found
                self.note_where(Kind.READS, slots, array, positions, last, found, event)

    def about_output(self, slots, array, tile) -> None:
        if slots.last_storing != self.base:
            slots.last_storing = self.base
            slots.storing += 1
        if tile is None or not array.uniform:
            slots.scattered = True
            return
        key = (array.name, array.offset, array.extents, array.steps)
        if key not in slots.views:
            root = self.roots.get(array.name)
            slots.views[key] = axes_of(root, array) if root is not None else None
        axes = slots.views[key]
        if axes is not None:
            for axis, length in zip(axes, tile.lengths, strict=True):
                at = (array.name, axis)
                slots.lengths[at] = max(slots.lengths.get(at, 0), length)

    def atomic(self, run, array: Array, flat, inside) -> None:
        event, positions, slots = self.begin(run, "atomic", array, flat, inside, None)
        self.atomics = True
        slots.scattered = True
        order = self.ordering(run)
        if order in _ACQUIRES:
            self.acquire(slots, positions)
        found = self.foreign(slots.writer, positions)
        self.note_where(Kind.READS, slots, array, positions, slots.writer, found, event)
        self.after_reads(slots, array, positions, np.ones(len(positions), bool) if found is None else ~found, event)
        self.touch_atomic(slots, positions, event)
        if order in _RELEASES:
            self.release(slots, positions, replace=False)


# Findings from what was tracked ---------------------------------------------------------------------------------------


def _of(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


class Findings:
    """Turns what a tracker saw into findings."""

    def __init__(self, tracker: Tracker, rank: int):
        self.tracker = tracker
        self.rank = rank  # of the grid, as the caller gave it
        self.found: list[Finding] = []

    def block(self, number: int) -> str:
        index = self.tracker.blocks[number][: self.rank]
        return f"block {index[0] if self.rank == 1 else index}"

    def place(self, parameter: str, position: int | None):
        """The element's index and its name."""
        root = self.tracker.roots.get(parameter)
        if root is None or position is None:
            return None, parameter
        index = tuple(coordinates(root, np.array([position]))[0].tolist())
        if -1 in index:
            return None, f"memory of {parameter}"
        return index, f"{parameter}[{', '.join(map(str, index))}]"

    def line(self, number: int) -> Line | None:
        return self.tracker.lines[number]

    def add(self, kind, parameter, what, details, *, blocks=(), advice=None, **more) -> None:
        title, means, do = _WORDS[kind]
        lines = [f"{title}: {what}", *(f"   {d}" for d in details), f"   {means}", f"   {advice or do}"]
        blocks = tuple(self.tracker.blocks[b] for b in dict.fromkeys(blocks))
        self.found.append(Finding(kind, "\n".join(lines), parameter, blocks, **more))

    def conflicts(self) -> None:
        verbs = {
            Kind.WRITES: ("writes", "wrote"),
            Kind.UPDATE: ("updates", "updated"),
            Kind.READS: ("reaches", "reached"),
        }
        for (kind, parameter, line, other), conflict in self.tracker.conflicts.items():
            element, name = self.place(parameter, conflict.position)
            mine, theirs = next(iter(conflict.pairs))
            now, before = verbs[kind]
            details = [
                f"{self.block(mine)} {now} it here:  {self.line(line)}",
                f"{self.block(theirs)} {before} it here: {self.line(other)}",
            ]
            involved = list(dict.fromkeys(b for pair in conflict.pairs for b in pair))
            if conflict.count > 1:
                details.append(f"This happens {conflict.count:,} times, in at least {len(involved)} blocks.")
            self.add(
                kind, parameter, name, details, blocks=involved, element=element, count=conflict.count,
                where=self.line(line), other=self.line(other),
            )  # fmt: skip

    def duplicates(self) -> None:
        for (parameter, line), (position, count, blocks) in self.tracker.duplicates.items():
            element, name = self.place(parameter, position)
            details = [f"{self.block(blocks[0])} stores here: {self.line(line)}"]
            if count > 1:
                details.append(f"This happens {count:,} times, in {_of(len(set(blocks)), 'block')}.")
            self.add(
                Kind.DUPLICATES, parameter, name, details, blocks=blocks, element=element, count=count,
                where=self.line(line),
            )  # fmt: skip

    def outside(self) -> None:
        for (parameter, line), cases in self.tracker.outside.items():
            block, kind, tile, array = cases[0]
            starts = tuple(int(np.reshape(s, -1)[0]) for s in tile.starts)
            spans = ", ".join(f"{s}:{s + n}" for s, n in zip(starts, tile.lengths, strict=True))
            extents = tuple(int(np.reshape(e, -1)[0]) for e in array.extents)
            details = [f"{self.block(block)} {kind}s [{spans}] of an array of shape {extents} here: {self.line(line)}"]
            if len(cases) > 1:
                details.append(f"This happens {len(cases):,} times, in {_of(len({c[0] for c in cases}), 'block')}.")
            self.add(
                Kind.OUTSIDE, parameter, parameter, details, blocks=[c[0] for c in cases], element=starts,
                count=len(cases), where=self.line(line),
            )  # fmt: skip

    # Elements never stored -------------------------------------------------------------------------------------------

    def unstored(self, outputs) -> None:
        for parameter, root in self.tracker.roots.items():
            if 0 in root.extents:
                continue
            slots = self.tracker.slots.get(id(root.memory))
            if outputs is not None and parameter not in outputs:
                continue
            if slots is None or not slots.written:
                if outputs is not None:
                    details = [f"No block stores to {parameter}."]
                    self.add(
                        Kind.UNSTORED, parameter, parameter, details, element=(0,) * root.ndim,
                        count=int(np.prod(root.extents)), advice="Store the result: ct.store(array, index, tile).",
                    )  # fmt: skip
                continue
            stored = np.zeros(root.extents, bool)
            for last in (slots.writer, slots.atomic):
                if last is not None:
                    stored |= last[all_positions(root)] > 0
            if stored.all() or outputs is None and not self.is_gap(parameter, root, slots, stored):
                continue
            missing = np.argwhere(~stored)
            first = tuple(missing[0].tolist())
            details = [
                f"{len(missing):,} of {stored.size:,} elements, the last of them at {tuple(missing[-1].tolist())}."
            ]
            position = int(all_positions(root)[tuple(np.argwhere(stored)[0])])
            event = int(max(last[position] for last in (slots.writer, slots.atomic) if last is not None))
            line = self.line(self.tracker.event_lines[event])
            details.append(f"Others are stored here: {line}")
            name = f"{parameter}[{', '.join(map(str, first))}]"
            self.add(
                Kind.UNSTORED, parameter, name, details, element=first, count=len(missing), where=line,
            )  # fmt: skip

    def is_gap(self, parameter, root, slots, stored) -> bool:
        """Whether elements without a store are a mistake, as far as that can be told.

        A launch may well write a part of an array: a cache's next rows, tiles on one side of a diagonal. So it is not
        one where the array is read or written at computed places, where some block chose not to store, or where the
        part is a box as long as an input that is read to the end.
        """
        if slots.scattered or slots.reader is not None or slots.writer is None:
            return False
        if any(axes is None for (name, *_), axes in slots.views.items() if name == parameter):
            return False  # stored through a slice: that is the part that was meant
        if slots.storing < self.tracker.launched.total:
            return False
        low, high = zip(*((int(w.min()), int(w.max()) + 1) for w in np.nonzero(stored)), strict=True)
        box = stored[tuple(slice(a, b) for a, b in zip(low, high, strict=True))]
        inputs = self.inputs()
        if not box.all():
            # A block on its own has no index to get wrong, and indices read from memory may say where to store.
            return self.tracker.launched.total > 1 and all(FORMATS[a.dtype].category == dtypes.FLOAT for a, _ in inputs)
        if any(low):
            return False
        short = [a for a in range(root.ndim) if high[a] < root.extents[a]]
        for axis in short:
            whole = [a for a, read in inputs if read.all() and high[axis] in a.extents]
            part = [a for a, read in inputs if not read.all() and root.extents[axis] in a.extents]
            ragged = root.extents[axis] - high[axis] < slots.lengths.get((parameter, axis), 0)
            if whole or not part and (inputs or not ragged):
                return False
        return True

    def inputs(self) -> list[tuple[Array, np.ndarray]]:
        """Arrays that are only read, and which of their elements are."""
        found = []
        for root in self.tracker.roots.values():
            slots = self.tracker.slots.get(id(root.memory))
            if slots is not None and slots.writer is None and slots.reader is not None and 0 not in root.extents:
                found.append((root, slots.reader[all_positions(root)] > 0))
        return found

    # Other runs ------------------------------------------------------------------------------------------------------

    def differences(self, kind: Kind, memory: Memory, first: np.ndarray, differ: np.ndarray) -> None:
        """Results of a second run that are not those of the first."""
        positions = np.flatnonzero(differ)
        if not len(positions):
            return
        slots = self.tracker.at(memory)
        for parameter in memory.names:
            here = positions
            if len(memory.names) > 1:
                here = positions[(coordinates(self.tracker.roots[parameter], positions) >= 0).all(1)]
            if len(here):
                self.difference(kind, parameter, slots, here, first, memory.flat)

    def difference(self, kind, parameter, slots, positions, first, second) -> None:
        tracker = self.tracker
        element, name = self.place(parameter, int(positions[0]))
        lasts = [last for last in (slots.writer, slots.atomic) if last is not None]
        event = int(max((last[positions[0]] for last in lasts), default=0))
        block = tracker.block_of(event) if event else None
        stored = self.line(tracker.event_lines[event]) if event else None
        where, details = stored, []
        if kind is Kind.PADDING:
            where, details = self.padded(block)
        was, now = first[positions[0]], second[positions[0]]
        how = "with the padding set to other values" if kind is Kind.PADDING else "with the blocks in reverse order"
        details.append(f"{name} is {was}, and {now} {how}; {len(positions):,} elements of {parameter} differ.")
        if stored is not None:
            details.append(f"It is stored by {self.block(block)} here: {stored}")
        self.add(
            kind, parameter, name, details, blocks=[] if block is None else [block], element=element,
            count=len(positions), where=where, other=stored,
        )  # fmt: skip

    def padded(self, block):
        """The load whose padding matters, most likely: in the block that stored the element, if it has one."""
        loads = self.tracker.partial or self.tracker.unsure
        line = next((k for k, (_, blocks) in loads.items() if block in blocks), next(iter(loads)))
        parameter, blocks = loads[line]
        some = block if block in blocks else min(blocks)
        return self.line(line), [f"{self.block(some)} loads past the end of {parameter} here: {self.line(line)}"]

    def failed(self, kind: Kind, error: Exception) -> None:
        """The second run ended with an error that the first did not have."""
        where, frame = None, error.__traceback__
        while frame is not None:
            if frame.tb_frame.f_code in self.tracker.launched.ready.translator.codes:
                where = Line(frame.tb_frame.f_code.co_filename, frame.tb_lineno)
            frame = frame.tb_next
        loads = self.tracker.partial or self.tracker.unsure
        parameter = next(iter(loads.values()))[0] if kind is Kind.PADDING else ""
        how = "With other values as padding" if kind is Kind.PADDING else "With the blocks in reverse order"
        details = [f"{how} the kernel fails: {type(error).__name__}: {error}"]
        if where is not None:
            details.append(f"It fails here: {where}")
        load = None
        if kind is Kind.PADDING:
            load, more = self.padded(None)
            details += more
        self.add(kind, parameter, parameter or "the kernel fails", details, where=load or where, other=where)


# Comparing runs -------------------------------------------------------------------------------------------------------


def _other_bits(first: np.ndarray, second: np.ndarray, memory: Memory) -> np.ndarray:
    """Elements that are not the same; NaN is the same as NaN."""
    word = f"u{first.itemsize}"
    differ = first.view(word) != second.view(word)
    if FORMATS[memory.dtype].category == dtypes.FLOAT and differ.any():
        places = np.flatnonzero(differ)
        a, b = first[places].astype(np.float64), second[places].astype(np.float64)
        differ[places[np.isnan(a) & np.isnan(b)]] = False
    return differ


def _beyond_rounding(blocks: int):
    """Elements that differ by more than the order of a sum explains: rounding grows with the root of its length."""

    def differ(first, second, memory):
        found = _other_bits(first, second, memory)
        if FORMATS[memory.dtype].category != dtypes.FLOAT or not found.any():
            return found
        import ml_dtypes

        eps = float(ml_dtypes.finfo(first.dtype).eps)
        a, b = first.astype(np.float64), second.astype(np.float64)
        finite = np.isfinite(a) & np.isfinite(b)
        size = np.maximum(np.abs(a), np.abs(b))
        typical = size[finite].mean() if finite.any() else 0.0
        bound = 4 * eps * max(2.0, blocks**0.5) * (size + typical)
        return found & ~(finite & (np.abs(a - b) <= bound))

    return differ


# Checking -------------------------------------------------------------------------------------------------------------


def check(grid, kernel, args, *, outputs=None, record=False, max_steps=None, output=None) -> Report:
    """Run a kernel and look for mistakes. The arrays are left as a launch leaves them.

    It runs block by block, and up to four times more: with NaN, the largest and the smallest values as undetermined
    padding, if a tile has any, and with the blocks in reverse, if two of them meet at an element.

    Args:
        grid: number of blocks, a tuple of 1 to 3 integers.
        kernel: a function decorated with ``@ct.kernel``.
        args: its arguments; arrays are NumPy arrays or CPU tensors of any shape and dtype that cuTile has.
        outputs: names of the parameters that must be stored wholly. By default those are looked at that the kernel
            only stores tiles to, and parts that may be meant are not reported.
        record: keep all accesses in the report, as :func:`trace` gives them.
        max_steps: decisions that a block may take, as for ``launch``.
        output: file that the kernel prints to; standard output by default. Only the first run prints.

    Returns:
        A :class:`Report`: true if nothing was found.

    Raises:
        ValueError: a name in `outputs` is no array's.
        Exception: what the kernel itself raises in its first run.
    """
    options = {} if max_steps is None else {"max_steps": max_steps}
    launched = prepare(grid, kernel, args, output=output, **options)
    tracker = Tracker(launched, record)
    unknown = set(outputs or ()) - set(tracker.roots)
    if unknown:
        raise ValueError(f"outputs names no array parameter: {sorted(unknown)}; there are {sorted(tracker.roots)}")
    if launched.total == 0:
        return Report(())
    before = {id(m): m.flat.copy() for m in launched.memories}
    launched.start(tracker=tracker)
    tracker.finish()
    found = Findings(tracker, len(grid))
    found.conflicts()
    found.duplicates()
    found.outside()
    found.unstored(outputs)
    again = []
    if tracker.partial or tracker.unsure:
        again += [(Kind.PADDING, {"poison": number}, _other_bits) for number in range(1, POISONS + 1)]
    if tracker.shared:
        again.append((Kind.ORDER, {"reverse": True}, _beyond_rounding(launched.total)))
    if again:
        memories = launched.memories
        # What the first run has not written may still be written by another one.
        firsts = [m.flat.copy() if tracker.at(m).written else before[id(m)] for m in memories]
        launched.output = io.StringIO()
        launched.max_steps = min(launched.max_steps, 20 * tracker.most_steps + 1000)
        for kind, how, differ in again:
            if any(f.kind is kind for f in found.found):
                continue
            for memory in memories:
                memory.flat[...] = before[id(memory)]
            try:
                launched.start(vectorize=False, **how)
            except StepsExceeded as error:
                # Blocks that wait for lower ones cannot run in reverse; that is no mistake.
                if kind is Kind.PADDING:
                    found.failed(kind, error)
            except Exception as error:
                found.failed(kind, error)
            else:
                for memory, first in zip(memories, firsts, strict=True):
                    found.differences(kind, memory, first, differ(first, memory.flat, memory))
        for memory, first in zip(memories, firsts, strict=True):
            memory.flat[...] = first
    return Report(tuple(found.found), tuple(tracker.accesses or ()))


def trace(grid, kernel, args, *, max_steps=None, output=None) -> list[Access]:
    """All accesses of a launch, in the order in which the blocks make them, for pictures and graders.

    Args:
        grid: number of blocks, a tuple of 1 to 3 integers.
        kernel: a function decorated with ``@ct.kernel``.
        args: its arguments, which are left as a launch leaves them.
        max_steps: decisions that a block may take, as for ``launch``.
        output: file that the kernel prints to; standard output by default.

    >>> import numpy as np, cuda.tile as ct
    >>> @ct.kernel
    ... def copy(x, out):
    ...     ct.store(out, ct.bid(0), ct.load(x, ct.bid(0), 4))
    >>> x = np.arange(6, dtype=np.float32)
    >>> access = trace((2,), copy, (x, x.copy()))[2]
    >>> access.kind, access.parameter, access.block, access.region, access.indices.tolist()
    ('load', 'x', (1, 0, 0), ((4,), (4,)), [[4], [5]])
    """
    options = {} if max_steps is None else {"max_steps": max_steps}
    launched = prepare(grid, kernel, args, output=output, **options)
    tracker = Tracker(launched, record=True)
    launched.start(tracker=tracker)
    tracker.finish()
    return tracker.accesses


__all__ = ["Access", "Finding", "Kind", "Line", "MistakesFound", "Report", "check", "trace"]
