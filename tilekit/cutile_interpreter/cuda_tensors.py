"""torch programs written for a GPU, with their tensors on the CPU.

Programs around cuTile kernels ask torch for ``device="cuda"``, for the current stream and for the device's properties.
Inside `on_cpu` they get tensors on the CPU, and answers for a device that does all that cuTile knows.
"""

import contextlib
import os
import re
import time
import types
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

# The newest architecture whose features the interpreter has (mma_scaled), so that programs choose nothing older.
CAPABILITY = (10, 0)
_NAME = "CPU, by tilekit's interpreter of cuda.tile"


def _moved(value):
    """`value` with every CUDA device in it replaced by the CPU."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    if isinstance(value, str):
        return "cpu" if re.fullmatch(r"cuda(:\d+)?", value) else value
    return value


class _OnCpu(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.cuda or func is torch.Tensor.cpu:
            # A copy, as between two memories: writing the one must not change the other.
            return args[0].clone()
        moved = tuple(map(_moved, args))
        result = func(*moved, **{name: _moved(value) for name, value in (kwargs or {}).items()})
        if func is torch.Tensor.to and result is args[0] and (moved != args or "device" in (kwargs or {})):
            return result.clone()
        return result


class Stream:
    """The one stream there is, on which everything has ended."""

    cuda_stream = 0
    device = torch.device("cpu")

    def __init__(self, *args, **kwargs):
        pass

    def synchronize(self):
        pass

    def wait_stream(self, stream):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass


class Event:
    """A moment, by the CPU's clock."""

    def __init__(self, *args, **kwargs):
        self.time = None

    def record(self, stream=None):
        self.time = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds until `end`."""
        return (end.time - self.time) * 1e3


def _properties(device=None):
    return types.SimpleNamespace(
        name=_NAME, major=CAPABILITY[0], minor=CAPABILITY[1], multi_processor_count=os.cpu_count() or 1,
        total_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0,
    )  # fmt: skip


def _answers() -> dict:
    stream = Stream()
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "device": lambda device: contextlib.nullcontext(),
        "get_device_capability": lambda device=None: CAPABILITY,
        "get_device_name": lambda device=None: _NAME,
        "get_device_properties": _properties,
        "empty_cache": lambda: None,
        "Stream": Stream,
        "Event": Event,
    }


@contextlib.contextmanager
def on_cpu():
    """A ``with`` block in which what torch is asked to do on CUDA devices it does on the CPU.

    ``device="cuda"``, ``.cuda()`` and ``.to("cuda")`` give CPU tensors; streams, events and devices of ``torch.cuda`` are
    placeholders. ``tensor.device`` and ``tensor.is_cuda`` still tell the truth. Holds for tensors of the calling thread.

    >>> import torch
    >>> from tilekit.cutile_interpreter import cuda_tensors
    >>> with cuda_tensors.on_cpu():
    ...     x = torch.ones(2, device="cuda")
    ...     torch.cuda.synchronize()
    >>> x
    tensor([1., 1.])
    """
    set_default = torch.set_default_device
    with (
        mock.patch.multiple(torch.cuda, **_answers()),
        mock.patch.object(torch, "set_default_device", lambda device: set_default(_moved(device))),
        _OnCpu(),
    ):
        yield
