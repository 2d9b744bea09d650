"""Making ``ct.launch`` itself interpret, so that programs written for a GPU run as they are."""

import contextlib
import os
import threading

from tilekit.cutile_interpreter import api, execution, standin

VARIABLE = "TILEKIT_CUTILE"

_lock = threading.Lock()
_depth = 0
_originals = {}


def launch(stream, grid, kernel, kernel_args, /, *, programmatic_dependent_launch=False):
    """``ct.launch``, interpreted: the same arguments. Returns when the kernel has run; the stream is ignored.

    `programmatic_dependent_launch` lets a kernel begin before its predecessor on the stream ends. Here none is left.
    """
    execution.launch(stream, grid, kernel, kernel_args)


def exhaustive_search(*args, **kwargs):
    """In the place of ``ct.tune.exhaustive_search``, which launches by itself."""
    raise RuntimeError(
        "ct.tune times kernels on a GPU, and how long an interpreter takes says nothing about that. Choose a "
        "configuration by hand where the kernel is interpreted"
    )


def start() -> None:
    """Put the interpreting `launch` in the place of ``ct.launch``; calls nest."""
    global _depth
    with _lock:
        if _depth == 0:
            for module, ours in ((api.tile, launch), (api.tile.tune, exhaustive_search)):
                _originals[module, ours.__name__] = getattr(module, ours.__name__)
                setattr(module, ours.__name__, ours)
        _depth += 1


def stop() -> None:
    """Undo one `start`; the last one puts ``ct.launch`` back."""
    global _depth
    with _lock:
        if _depth == 0:
            raise RuntimeError("stop() without start()")
        _depth -= 1
        if _depth == 0:
            for (module, name), theirs in _originals.items():
                setattr(module, name, theirs)
            _originals.clear()


@contextlib.contextmanager
def interpreting():
    """A ``with`` block in which ``ct.launch`` interprets on the CPU instead of launching on a GPU.

    The attribute ``cuda.tile.launch`` is replaced for the whole process, so threads that launch at the same time interpret
    too. Blocks nest, in any order of leaving. A name that was imported before (``from cuda.tile import launch``) still is
    NVIDIA's. For a whole process set ``TILEKIT_CUTILE=interpret``, or run ``python -m tilekit.cutile_interpreter script.py``.

    >>> import numpy as np, cuda.tile as ct
    >>> from tilekit import cutile_interpreter
    >>> @ct.kernel
    ... def fill(out):
    ...     ct.store(out, ct.bid(0), ct.full((4,), 7, out.dtype))
    >>> out = np.zeros(4, np.int32)
    >>> with cutile_interpreter.interpreting():
    ...     ct.launch(None, (1,), fill, (out,))
    >>> out
    array([7, 7, 7, 7], dtype=int32)
    """
    start()
    try:
        yield
    finally:
        stop()


_needed = False


def interpret_if_needed() -> tuple[str, object]:
    """Let ``ct.launch`` run on this machine: compiled where its GPU can, else interpreted for the whole process.

    For notebooks and scripts that are to run everywhere. Where cuda-tile is not installed, ``import cuda.tile`` gives the
    stand-in afterwards.

    Returns:
        The device for the tensors of cuTile kernels, ``"cuda"`` or ``"cpu"``, and the stream to launch on: torch's
        current one, or ``None`` on the CPU.

    For example::

        import torch
        from tilekit import cutile_interpreter

        device, stream = cutile_interpreter.interpret_if_needed()
        import cuda.tile as ct

        @ct.kernel
        def fill(out):
            ct.store(out, ct.bid(0), ct.full((4,), 7, out.dtype))

        out = torch.zeros(8, dtype=torch.int32, device=device)
        ct.launch(stream, (2,), fill, (out,))
    """
    global _needed
    from tilekit import environment

    verdict = environment.probe().backends["cutile"]
    if verdict.mode == "compiled" and not _originals:
        import torch

        return "cuda", torch.cuda.current_stream()
    standin.install()
    if not _needed and api.AVAILABLE:
        start()
        _needed = True
    return "cpu", None


def from_environment() -> None:
    """Start for good where ``TILEKIT_CUTILE=interpret`` asks for it."""
    asked = os.environ.get(VARIABLE, "")
    if asked == "interpret":
        start()
    elif asked:
        raise ValueError(f"{VARIABLE} is {asked!r}; set it to 'interpret', or not at all")
