"""Every kernel on every backend that runs on this machine's CPU, over the shared cases."""

import pytest
import torch

import tilekit
from tilekit import kernels, triton_mode
from tilekit.exercises import Make
from tilekit.exercises.checker import run_case

BACKENDS = ["torch", "cutile", pytest.param("triton", marks=pytest.mark.skipif(
    triton_mode.mode() != "interpreted", reason="Triton compiles in this process; tests/gpu runs these cases"))]  # fmt: skip


def all_cases():
    for name in kernels.NAMES:
        for case in kernels.spec(name).cases:
            if not case.needs_gpu:
                for dtype in case.dtypes:
                    yield pytest.param(name, case, dtype, id=f"{name}-{case.id}-{str(dtype).removeprefix('torch.')}")


def test_there_are_cases_for_every_kernel():
    assert {parameter.values[0] for parameter in all_cases()} == set(kernels.NAMES)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "case", "dtype"), list(all_cases()))
def test_case(name, case, dtype, backend, seed):
    spec = kernels.spec(name)

    def function(*args, **kwargs):
        return getattr(tilekit, name)(*args, **kwargs, backend=backend)

    difference = run_case(spec, case, function, Make(seed, dtype, "cpu"))
    assert difference is None, f"{difference} (seed {seed})"


@pytest.mark.parametrize("name", kernels.NAMES)
def test_float64_on_the_torch_backend(name, seed):
    spec = kernels.spec(name)
    for case in spec.cases:
        if torch.float32 in case.dtypes and not case.needs_gpu:
            difference = run_case(spec, case, getattr(tilekit, name), Make(seed, torch.float64, "cpu"))
            assert difference is None, f"{case.id}: {difference} (seed {seed})"
