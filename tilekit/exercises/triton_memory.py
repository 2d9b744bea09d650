"""Triton's interpreter, kept to the memory of a kernel's arguments.

By itself it reads and writes wherever an address points. A store that lacks its mask overwrites what this process has
behind the array: the numbers that come out are right, and Python ends later, without a traceback.
"""

import functools
import linecache
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

# The interpreter's accesses, and where among their arguments the addresses and the mask are.
_ACCESSES = {
    "create_masked_load": ("loads from", 0, 1),
    "create_masked_store": ("stores to", 0, 2),
    "create_atomic_rmw": ("updates", 1, 3),
    "create_atomic_cas": ("updates", 0, None),
}


@dataclass
class Seen:
    """What was seen of the kernels that the interpreter ran."""

    outside: list[str] = field(default_factory=list)  # accesses outside of the arguments' memory, in words
    bfloat16: bool = False  # whether an argument was a bfloat16 tensor, with which the interpreter calculates wrongly


_seen: ContextVar[Seen | None] = ContextVar("what is seen", default=None)
_memory: ContextVar[tuple[tuple[int, int], ...]] = ContextVar("the kernel's memory, from and to", default=())


@contextmanager
def watching() -> Iterator[Seen]:
    """Inside, an access outside of the arguments' memory is not made but raises; gives what was seen."""
    interpreter = sys.modules.get("triton.runtime.interpreter")
    if interpreter is not None:
        _install(interpreter)
    token = _seen.set(Seen())
    try:
        yield _seen.get()
    finally:
        _seen.reset(token)


@functools.cache
def _install(interpreter) -> None:
    """Once for the process, because threads may watch at the same time; where nobody watches it changes nothing."""
    executor, builder = getattr(interpreter, "GridExecutor", None), getattr(interpreter, "InterpreterBuilder", None)
    if executor is None or not all(hasattr(builder, name) for name in _ACCESSES):
        return  # none of this is public, and a later Triton may have it otherwise: then without this help
    executor.__call__ = _remembering_memory(executor.__call__)
    for name, how in _ACCESSES.items():
        setattr(builder, name, _checked(getattr(builder, name), *how))


def _remembering_memory(call):
    @functools.wraps(call)
    def launch(self, *args, **kwargs):
        seen = _seen.get()
        if seen is None:
            return call(self, *args, **kwargs)
        seen.bfloat16 |= any(str(getattr(a, "dtype", "")) == "torch.bfloat16" for a in (*args, *kwargs.values()))
        token = _memory.set(tuple(_pieces((*args, *kwargs.values()))))
        try:
            return call(self, *args, **kwargs)
        finally:
            _memory.reset(token)

    return launch


def _pieces(arguments) -> Iterator[tuple[int, int]]:
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _pieces(argument)
            continue
        tensor = getattr(argument, "base", None)  # of a descriptor, or of a tensor seen in another dtype
        tensor = argument if tensor is None else tensor
        if hasattr(tensor, "untyped_storage"):
            storage = tensor.untyped_storage()
            yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _checked(access, does: str, where: int, mask_at: int | None):
    @functools.wraps(access)
    def checked(self, *args, **kwargs):
        seen = _seen.get()
        if seen is None:
            return access(self, *args, **kwargs)
        import numpy as np

        pointers = args[where]
        addresses = pointers.data
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        inside = np.zeros(addresses.shape, bool)
        for start, end in _memory.get():
            inside |= (addresses >= np.uint64(start)) & (addresses + np.uint64(size) <= np.uint64(end))
        wanted = True if mask_at is None else np.asarray(args[mask_at].data, bool)  # of a block pointer, it is no array
        outside = int((~inside & wanted).sum())
        if outside:
            seen.outside.append(
                f"Your Triton kernel {does} addresses outside of the arrays that it was given: {outside} of "
                f"{addresses.size}, in program {tuple(map(int, self.grid_idx))}{_line()}."
            )
            raise IndexError(seen.outside[-1])
        return access(self, *args, **kwargs)

    return checked


def _line() -> str:
    """The learner's line: the innermost that is neither Triton's nor this file's."""
    triton = os.path.dirname(sys.modules["triton"].__file__)
    frame = sys._getframe(1)
    while frame and (frame.f_code.co_filename == __file__ or frame.f_code.co_filename.startswith(triton)):
        frame = frame.f_back
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() if frame else ""
    return f", at {line}" if line else ""
