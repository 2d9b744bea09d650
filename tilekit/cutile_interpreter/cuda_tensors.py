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


def _is_number(device) -> bool:
    return isinstance(device, int) and not isinstance(device, bool)


class _OnCpu(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if _is_number(kwargs.get("device")):
            kwargs["device"] = "cpu"
        if func is torch.Tensor.to and len(args) > 1 and _is_number(args[1]):
            args = (args[0], "cpu", *args[2:])
        kwargs.pop("pin_memory", None)
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.cuda or func is torch.Tensor.cpu:
            # A copy, as between two memories: writing the one must not change the other.
            return args[0].clone()
        moved = tuple(map(_moved, args))
        result = func(*moved, **{name: _moved(value) for name, value in kwargs.items()})
        if func is torch.Tensor.to and result is args[0] and (moved != args or "device" in kwargs):
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

    def query(self) -> bool:
        return True

    def wait_stream(self, stream):
        pass

    def wait_event(self, event):
        pass

    def record_event(self, event=None) -> "Event":
        event = event or Event()
        event.record(self)
        return event

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

    def wait(self, stream=None):
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds until `end`."""
        return (end.time - self.time) * 1e3


class _Instances(type(torch.Generator)):
    def __instancecheck__(cls, value):
        return isinstance(value, cls.__bases__[0])


class Generator(torch.Generator, metaclass=_Instances):
    """torch's generator of random numbers, on the CPU whatever device is asked for."""

    def __new__(cls, device="cpu"):
        (torchs,) = cls.__bases__
        return torchs.__new__(torchs, "cpu" if _is_number(device) else _moved(device))


class Device(contextlib.nullcontext):
    """``torch.cuda.device``: there is one device."""


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0


def _properties(device=None):
    """The CPU's number of cores and memory; the limits of a multiprocessor are those of `CAPABILITY`."""
    return types.SimpleNamespace(
        name=_NAME, major=CAPABILITY[0], minor=CAPABILITY[1], multi_processor_count=os.cpu_count() or 1,
        total_memory=_memory(), L2_cache_size=1 << 25, warp_size=32, regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048, max_threads_per_block=1024, shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=227 << 10, shared_memory_per_multiprocessor=228 << 10,
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
        "set_stream": lambda stream: None,
        "device": Device,
        "get_device_capability": lambda device=None: CAPABILITY,
        "get_device_name": lambda device=None: _NAME,
        "get_device_properties": _properties,
        "empty_cache": lambda: None,
        "init": lambda: None,
        "manual_seed": torch.default_generator.manual_seed,
        "manual_seed_all": torch.default_generator.manual_seed,
        "ipc_collect": lambda: None,
        "mem_get_info": lambda device=None: (_memory(), _memory()),
        "reset_peak_memory_stats": lambda device=None: None,
        "can_device_access_peer": lambda device, peer: False,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "Stream": Stream,
        "Event": Event,
    }


# Marks for a profiler.
_MARKS = {
    "range": lambda message, *args, **kwargs: contextlib.nullcontext(),
    "range_push": lambda message: 0,
    "range_pop": lambda: 0,
    "mark": lambda message: None,
}


def _patches() -> list:
    """What stands in torch's place while its CUDA tensors are on the CPU."""
    set_default = torch.set_default_device
    return [
        mock.patch.multiple(torch.cuda, **_answers()),
        mock.patch.multiple(torch.cuda.nvtx, **_MARKS),
        mock.patch.multiple(torch.accelerator, synchronize=lambda device=None: None),
        mock.patch.object(torch, "Generator", Generator),
        mock.patch.object(torch.Tensor, "record_stream", lambda tensor, stream: None),
        mock.patch.object(torch, "set_default_device", lambda device: set_default(_moved(device))),
        _OnCpu(),
    ]


def on_cpu_for_good() -> None:
    """`on_cpu` until the process ends."""
    for patch in _patches():
        patch.__enter__()


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
    with contextlib.ExitStack() as stack:
        for patch in _patches():
            stack.enter_context(patch)
        yield
