"""Compile what a launch would launch, for an architecture that is not here."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from unittest import mock

import torch

from tilekit.plans import Limits, Plan


@dataclass(frozen=True)
class Launch:
    """One launch that was planned and then held back."""

    kernel: object
    plan: Plan
    arrays: tuple


def planned_launches(kernel: str, backend: str, architecture: str, args: tuple) -> list[Launch]:
    """The launches that `backend` would do for these (meta) tensors on a GPU of that architecture.

    `kernel` is a kernel's name, or that and "backward".
    """
    name, _, part = kernel.partition(" ")
    module = import_module(f"tilekit.kernels.{name}.{backend}_{part or 'kernel'}")
    helpers = import_module(f"tilekit.kernels._{backend}")
    held_back = []

    def hold_back(kernel, plan, *arrays):
        held_back.append(Launch(kernel, plan, arrays))

    limits = Limits.of(architecture)
    with mock.patch.object(helpers, "launch", hold_back), mock.patch.object(module, "limits_of", lambda _: limits):
        module.launch(*args)
    return held_back


_TRITON_TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32"}


def compile_triton(launch: Launch, architecture: str):
    """The compiled kernel, specialised as Triton would at this launch with 16-byte aligned arrays."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = dict(launch.plan.constants)
    given = [*launch.arrays, *launch.plan.arguments]
    positional = [name for name in launch.kernel.arg_names if name not in constants]
    assert len(given) == len(positional), f"{len(given)} arguments for the parameters {positional}"
    values = {**dict(zip(positional, given, strict=True)), **constants}
    signature, constexprs, attributes = {}, {}, {}
    for position, name in enumerate(launch.kernel.arg_names):
        value = values[name]
        if name in constants or value is None or (type(value) is int and value == 1):
            signature[name] = "constexpr"
            constexprs[(position,)] = value
            continue
        if isinstance(value, torch.Tensor):
            signature[name] = f"*{_TRITON_TYPES[value.dtype]}"
            aligned = True
        elif isinstance(value, float):
            signature[name] = "fp32"
            aligned = False
        elif isinstance(value, int):
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            aligned = value % 16 == 0
        else:  # a host-side tensor descriptor
            block = ", ".join(map(str, value.block_shape))
            signature[name] = f"tensordesc<{_TRITON_TYPES[value.base.dtype]}[{block}]>"
            aligned = False
        if aligned:
            attributes[(position,)] = [["tt.divisibility", 16]]
    number = int(architecture.removeprefix("sm_"))
    source = ASTSource(launch.kernel, signature, constexprs, attributes)
    return triton.compile(source, target=GPUTarget("cuda", number, 32), options=dict(launch.plan.options))


def stack_bytes(cubin: bytes) -> int:
    """Bytes of local memory a thread takes for registers that spill: the kernels here have nothing else on a stack.

    Read by Triton's own copy of cuobjdump, from Triton's cubins and cuTile's alike.
    """
    import triton

    reader = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(reader), "--dump-resource-usage", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"STACK:(\d+)", report)
    assert found, report
    return sum(map(int, found))


def compile_cutile(launch: Launch, architecture: str):
    """What the kernel becomes, specialised as cuTile would at this launch with 16-byte aligned arrays."""
    from tilekit.cutile_interpreter.report import compile_report
    from tilekit.kernels import _cutile

    plan, arrays = launch.plan, launch.arrays
    if plan.views:
        arrays = [a.as_strided(*view) for a, view in zip(arrays, plan.views, strict=True)]
    kernel = _cutile.specialised(launch.kernel, len(arrays), plan.index_bits, tuple(plan.options.items()))
    return compile_report(kernel, (*arrays, *plan.positional), architecture)


def compile_cuda(launch: Launch, architecture: str):
    """The report on the kernel that this launch asks for, and the kernel itself."""
    from tilekit.kernels import _cuda

    kernel = _cuda.compiled(launch.kernel, launch.plan, launch.arrays[0].dtype)
    return kernel.report(architecture), kernel
