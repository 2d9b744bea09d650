"""Each compiled kernel is compiled for every architecture that tilekit claims, without a GPU."""

import pytest
import torch
from compiling import compile_cutile, compile_triton, planned_launches
from problems import PROBLEMS

from tilekit import kernels
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
                yield pytest.param(kernel, build, architecture, dtype, id=name)


def test_every_kernel_is_compiled():
    assert {kernel for kernel, _, _ in PROBLEMS} == set(kernels.NAMES)


@pytest.mark.parametrize(("kernel", "build", "architecture", "dtype"), list(targets(TRITON)))
def test_triton(kernel, build, architecture, dtype):
    launches = planned_launches(kernel, "triton", architecture, build(dtype))
    assert launches
    for launch in launches:
        compiled = compile_triton(launch, architecture)
        assert compiled.asm["cubin"]
        assert compiled.metadata.shared <= Limits.of(architecture).shared_memory


@pytest.mark.parametrize(("kernel", "build", "architecture", "dtype"), list(targets(CUTILE)))
def test_cutile(kernel, build, architecture, dtype):
    launches = planned_launches(kernel, "cutile", architecture, build(dtype))
    assert launches
    for launch in launches:
        report = compile_cutile(launch, architecture)
        assert report.cubin[:4] == b"\x7fELF"
        assert report.shared_memory <= Limits.of(architecture).shared_memory
