"""What is running: the group of blocks that a kernel's code works for at this moment, and what holds for all of them.

The interpreter executes a kernel's code once for a whole group of blocks. Each value carries a leading block axis:
length 1 where all blocks of the group have the same value, else one entry a block.
"""

import threading

import numpy as np


class Diverged(BaseException):
    """Blocks of the running group disagree about a value that decides where the code goes; they must run apart.

    Not an Exception: it belongs to the interpreter, and code in between must not catch it.
    """

    def __init__(self, values: np.ndarray):
        self.values = values


class NeedsOrder(BaseException):
    """The kernel does what is only right block after block: atomics, prints, reading what another block wrote."""


class Run:
    """The state of one group of blocks.

    Attributes:
        grid: number of blocks along each of three axes.
        blocks: ``(n, 3)`` indices of the blocks in this group.
        pending: stores that wait for the end of the group, so that a group that has to split leaves no trace.
        stored: the memories that `pending` writes to.
        poison: what fills undetermined padding: 0 zeros, 1 to ``memory.POISONS`` other values.
        tracker: records every access, when asked to.
        translator: turns the host's functions into the kernel's, and back.
        ordering: memory order and scope of the access that is about to happen, for the tracker; ``None`` is weak.
    """

    def __init__(self, grid, blocks, translator, *, poison=0, tracker=None, steps_left=None, output=None):
        self.grid = grid
        self.blocks = blocks
        self.n = len(blocks)
        self.pending = []
        self.stored = set()
        self.poison = poison
        self.tracker = tracker
        self.steps_left = steps_left
        self.ordering = None
        self.translator = translator
        self.codes = translator.codes
        self.output = output
        self.choices = []  # whether an operand of each `and`, `or` that is being evaluated is known at run time only
        self.static = 0  # depth of compile-time expressions that are being evaluated
        self.largest = 0  # bytes that the largest tile takes in one block

    def require_order(self) -> None:
        """Go on only if this group is a single block."""
        if self.n > 1:
            raise NeedsOrder

    def step(self) -> None:
        """Count a decision of the code, so that a wait for a block that comes later does not last forever."""
        self.steps_left -= 1
        if self.steps_left < 0:
            raise StepLimit

    def store(self, memory, write) -> None:
        """Do `write()` now, or at the end of the group if it may still have to split."""
        memory.check_writable()
        if self.n == 1:
            write()
        else:
            self.pending.append(write)
            self.stored.add(memory)
            self.stored.update(memory.others)

    def reading(self, memory) -> None:
        if memory in self.stored:
            raise NeedsOrder

    def commit(self) -> None:
        for write in self.pending:
            write()


class StepLimit(BaseException):
    """A block took more decisions than the launch allows."""


class _Current(threading.local):
    run: Run | None = None


current = _Current()


def running() -> Run:
    """The group that runs now."""
    run = current.run
    if run is None:
        raise RuntimeError("cuda.tile operations work only inside a kernel; launch the kernel instead of calling it")
    return run
