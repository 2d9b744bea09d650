"""Each compiled kernel is compiled for every architecture that tilekit claims, without a GPU."""

import importlib.util
from dataclasses import replace

import pytest
import torch
from compiling import compile_cuda, compile_cutile, compile_triton, planned_launches, stack_bytes
from problems import MOST_SPILLED_BY_CUDA, MOST_SPILLED_IN_TF32, PROBLEMS, SPILL_FREE, SPILLS, allowed_spill

from tilekit import arguments, cuda_cpp, kernels
from tilekit.plans import Limits

TRITON = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
CUTILE = TRITON[1:]
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def targets(architectures):
    for architecture in architectures:
        for dtype in DTYPES:
            if architecture == "sm_75" and dtype is torch.bfloat16:
                continue  # refused there: compute capability 7.5 has no bfloat16 arithmetic
            for kernel, what, build in PROBLEMS:
                name = f"{kernel}-{what}-{architecture}-{str(dtype).removeprefix('torch.')}"
                yield pytest.param(kernel, what, build, architecture, dtype, id=name)


def test_every_kernel_is_compiled():
    """And every backward pass that has a kernel of its own."""
    own = {
        f"{name} backward"
        for name in kernels.NAMES
        if importlib.util.find_spec(f"tilekit.kernels.{name}.triton_backward")
    }
    assert own == {"fused_gelu backward", "softmax backward", "flash_attention backward"}
    assert {kernel for kernel, _, _ in PROBLEMS} == {*kernels.NAMES, *own}


@pytest.mark.parametrize(("kernel", "what", "build", "architecture", "dtype"), list(targets(TRITON)))
def test_triton(kernel, what, build, architecture, dtype):
    launches = planned_launches(kernel, "triton", architecture, build(dtype))
    assert launches
    for launch in launches:
        compiled = compile_triton(launch, architecture)
        assert compiled.asm["cubin"]
        assert compiled.metadata.shared <= Limits.of(architecture).shared_memory
        if architecture in SPILL_FREE:
            assert stack_bytes(compiled.asm["cubin"]) <= allowed_spill("triton", architecture, kernel, what, dtype)


@pytest.mark.parametrize(("kernel", "what", "build", "architecture", "dtype"), list(targets(CUTILE)))
def test_cutile(kernel, what, build, architecture, dtype):
    launches = planned_launches(kernel, "cutile", architecture, build(dtype))
    assert launches
    for launch in launches:
        report = compile_cutile(launch, architecture)
        assert report.cubin[:4] == b"\x7fELF"
        assert report.shared_memory <= Limits.of(architecture).shared_memory
        if architecture in SPILL_FREE:
            assert report.spill_bytes <= allowed_spill("cutile", architecture, kernel, what, dtype)


@pytest.mark.parametrize(("kernel", "what", "build", "architecture", "dtype"), list(targets(TRITON)))
def test_cuda(kernel, what, build, architecture, dtype):
    check_cuda(planned_launches(kernel, "cuda", architecture, build(dtype)), architecture)


PRODUCTS = [
    p
    for p in targets(CUTILE)
    if p.values[4] is torch.float32 and p.values[0].split()[0] in ("matmul", "flash_attention")
]


@pytest.mark.parametrize(("kernel", "what", "build", "architecture", "dtype"), PRODUCTS)
def test_cuda_in_tf32(kernel, what, build, architecture, dtype, monkeypatch):
    monkeypatch.setattr(arguments, "tf32_allowed", lambda: True)
    launches = planned_launches(kernel, "cuda", architecture, build(dtype))
    assert any(launch.plan.constants.get("TENSOR_CORES") for launch in launches)
    check_cuda(launches, architecture, MOST_SPILLED_IN_TF32 if "80 channels" in what else MOST_SPILLED_BY_CUDA)


def check_cuda(launches, architecture, most_spilled=MOST_SPILLED_BY_CUDA):
    try:
        cuda_cpp.architectures()
    except RuntimeError as error:
        pytest.skip(str(error))
    assert launches
    for launch in launches:
        report, compiled = compile_cuda(launch, architecture)
        assert report.cubin[:4] == b"\x7fELF"
        assert report.spill_bytes <= most_spilled
        assert report.threads == launch.plan.options["threads"]
        # From compute capability 9.0 on, the driver keeps 1 KiB a block for itself, beyond what a block may have.
        limit = Limits.of(architecture).shared_memory + (
            1024 if architecture >= "sm_90" or len(architecture) > 5 else 0
        )
        assert report.shared_memory + launch.plan.shared_memory <= limit
        assert report.registers * report.threads <= 65_536
        assert len(compiled.parameters) == len(launch.arrays) + len(launch.plan.arguments)


def test_spills_are_seen_and_every_exception_is_of_a_problem():
    """A reader that always says 0 would let every plan pass."""
    kernel, what, build = next(p for p in PROBLEMS if p[:2] == ("flash_attention", "128 channels"))
    (launch,) = planned_launches(kernel, "triton", "sm_90", build(torch.float16))
    crowded = replace(launch, plan=replace(launch.plan, options={"num_warps": 4, "num_stages": 2}))
    assert stack_bytes(compile_triton(crowded, "sm_90").asm["cubin"]) > 0
    for (_, architecture, kernel, _), by_problem in SPILLS.items():
        assert architecture in SPILL_FREE
        assert all(any(p[:2] == (kernel, what) for p in PROBLEMS) for what in by_problem)
