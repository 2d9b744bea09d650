"""The CUDA C++ kernels over the shared cases, without a GPU: emulated thread by thread."""

import pytest
import torch
from emulation import COMPILER, on_cpu

import tilekit
from tilekit import kernels
from tilekit.exercises import Make
from tilekit.exercises.checker import run_case

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulation needs g++")


def all_cases():
    for name in kernels.NAMES:
        for case in kernels.spec(name).cases:
            if not case.needs_gpu:
                for dtype in case.dtypes:
                    yield pytest.param(name, case, dtype, id=f"{name}-{case.id}-{str(dtype).removeprefix('torch.')}")


@pytest.mark.parametrize(("name", "case", "dtype"), list(all_cases()))
def test_case(name, case, dtype, seed):
    with on_cpu():
        difference = run_case(kernels.spec(name), case, getattr(tilekit, name), Make(seed, dtype, "cpu"))
    assert difference is None, f"{difference} (seed {seed})"
