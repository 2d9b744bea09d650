"""Launching a CUDA C++ kernel as its plan says."""

import functools
from pathlib import Path

import torch

from tilekit import arguments, cuda_cpp

_FOLDER = Path(__file__).parent
_TYPES = {torch.float16: "__half", torch.bfloat16: "__nv_bfloat16", torch.float32: "float"}
_INDEX = {32: "int", 64: "long long"}


@functools.cache
def headers() -> tuple[tuple[str, str], ...]:
    return tuple((path.name, path.read_text(encoding="utf-8")) for path in sorted(_FOLDER.glob("*.cuh")))


@functools.cache
def source(kernel: str) -> str:
    """The text of a kernel's ``cuda_kernel.cu``, or of its ``cuda_backward.cu``: ``source("softmax backward")``."""
    name, _, part = kernel.partition(" ")
    return (_FOLDER / name / f"cuda_{part or 'kernel'}.cu").read_text(encoding="utf-8")


def defines(plan, dtype) -> tuple[str, ...]:
    """What the plan decides at compile time, as the compiler's options."""
    constants = {"TYPE": _TYPES[dtype], "INDEX": _INDEX[plan.index_bits], "THREADS": plan.options["threads"]}
    constants |= {name: int(value) for name, value in plan.constants.items()}
    return tuple(f"-D{name}={value}" for name, value in constants.items())


@functools.lru_cache(maxsize=4096)
def compiled(kernel: str, plan, dtype) -> cuda_cpp.Kernel:
    """The function of :func:`source` that a plan asks for: its variant, or else that of the kernel's own name."""
    name = plan.variant or kernel.replace(" ", "_")
    return cuda_cpp.kernel(source(kernel), name, defines(plan, dtype), headers=dict(headers()))


def launch(kernel: str, plan, *arrays) -> None:
    """Queue `kernel`, as :func:`source` has it, on torch's current stream: arrays first, then the plan's scalars."""
    values = [array.data_ptr() for array in arrays]
    values += plan.arguments
    compiled(kernel, plan, arrays[0].dtype).launch_packed(
        arrays[0].device.index, (*plan.grid, 1, 1), (plan.options["threads"], 1, 1), values, plan.shared_memory
    )


def aligned(*arrays) -> bool:
    """Whether all begin at a multiple of 16 bytes."""
    for array in arrays:  # at every call, where a generator costs as much again
        if array.data_ptr() % 16:
            return False
    return True


def tf32(dtype, limits) -> bool:
    """Whether products of this dtype go to the tensor cores in TF32: torch's setting allows it, and the GPU has it."""
    return dtype is torch.float32 and limits.tensor_cores and arguments.tf32_allowed()
