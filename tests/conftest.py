"""Set-up shared by all tests: Triton's mode, fresh seeds, poisoned outputs."""

import os
import random

import pytest
import torch

import tilekit  # noqa: F401  first of all, because it settles how Triton runs in this process


def pytest_report_header():
    return f"seed {SEED} (TILEKIT_TEST_SEED={SEED} repeats it)"


SEED = int(os.environ.get("TILEKIT_TEST_SEED") or random.SystemRandom().randrange(2**31))


def pytest_configure(config):
    # The workers of a parallel run inherit the first process's seed, so that one number repeats all of it.
    os.environ["TILEKIT_TEST_SEED"] = str(SEED)
    config.addinivalue_line("markers", "timing: measures time, so outputs are not poisoned")


@pytest.fixture
def seed():
    return SEED


@pytest.fixture(autouse=True)
def seeded_torch():
    """What a test draws does not hang on the tests that its process ran before."""
    torch.manual_seed(SEED)


@pytest.fixture(autouse=True)
def poisoned_outputs(request):
    """Have torch fill every new, uninitialised tensor with NaN, so that an element never written is seen."""
    if request.node.get_closest_marker("timing"):
        yield  # filling takes time of its own
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
