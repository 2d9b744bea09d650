"""The gradients in CUDA C++ over the shared cases, without a GPU: emulated thread by thread."""

import pytest
import torch
from emulation import COMPILER, on_cpu
from gradient_cases import LAYOUTS, cases, check

from tilekit.plans import Limits

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulation needs g++")
SM_90 = Limits.of("sm_90")


def all_cases():
    for number, (name, case) in enumerate(cases()):
        # float32, in which an error has nowhere to hide, and one of the 16-bit types in turn.
        for turn, dtype in enumerate((torch.float32, (torch.float16, torch.bfloat16)[number % 2])):
            if dtype in case.dtypes:
                layout = LAYOUTS[(number + turn) % len(LAYOUTS)]
                label = f"{name}-{case.id}-{str(dtype).removeprefix('torch.')}-{layout}"
                yield pytest.param(name, case, dtype, layout, id=label)


@pytest.mark.parametrize(("name", "case", "dtype", "layout"), list(all_cases()))
def test_case(name, case, dtype, layout, seed):
    with on_cpu(SM_90):
        problem = check(name, case, dtype, "cpu", "cuda", seed, layout)
    assert problem is None, f"{problem} (seed {seed})"
