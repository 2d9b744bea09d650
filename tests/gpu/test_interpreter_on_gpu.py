"""tilekit's cuTile kernels, interpreted on the CPU and compiled, give the same on the same inputs."""

import pytest
from interpreted_and_compiled import cases, compare
from test_kernels_on_gpu import usable

ALL = [
    pytest.param(name, case, dtype, id=f"{name}-{case.id}-{str(dtype).removeprefix('torch.')}")
    for name, case, dtype in cases()
]


@pytest.mark.parametrize(("name", "case", "dtype"), ALL)
def test_interpreted_and_compiled_agree(name, case, dtype, seed):
    usable("cutile")
    for one in compare(name, case, dtype, seed):
        assert not one.problem, f"{one.problem} (seed {seed})"
