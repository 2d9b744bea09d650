"""vadd: its errors and its plans. The shared cases run in test_kernels.py."""

import pytest
import torch

import tilekit
from tilekit.kernels.vadd import cutile_kernel, triton_kernel
from tilekit.plans import GRID_MAX_X, INTERPRETER, Limits

PLANS = [pytest.param(triton_kernel.plan, id="triton"), pytest.param(cutile_kernel.plan, id="cutile")]
H100 = Limits.of("sm_90")


def planned(plan, shape, *strides, limits=H100, dtype=torch.float16):
    return plan((shape, shape), strides, dtype, limits)


@pytest.mark.parametrize("plan", PLANS)
def test_contiguous_arrays_are_walked_as_one_row(plan):
    p = planned(plan, (64, 64, 64), (4096, 64, 1), (4096, 64, 1))
    assert p.variant == "" and p.index_bits == 32
    (tile,) = (size for name, size in p.constants.items() if name in ("BLOCK", "TILE"))
    assert p.grid == (-(-(64**3) // tile),)


@pytest.mark.parametrize("plan", PLANS)
def test_a_transposed_operand_takes_the_strided_kernel(plan):
    assert planned(plan, (64, 32), (1, 64), (32, 1)).variant == "strided"


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("n", "bits"), [(2**20, 32), (2**31 - 1, 64), (2**31 + 5, 64), (2**33, 64)])
def test_long_arrays_get_64_bit_indices(plan, n, bits):
    p = planned(plan, (n,), (1,), (1,))
    assert p.index_bits == bits
    assert p.grid[0] <= GRID_MAX_X and len(p.grid) == 1


@pytest.mark.parametrize("plan", PLANS)
def test_few_elements_far_apart_get_64_bit_indices(plan):
    assert planned(plan, (3, 8), (2**30, 1), (8, 1)).index_bits == 64


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("limits", [H100, INTERPRETER])
def test_a_column_never_exceeds_the_grid(plan, limits):
    p = planned(plan, (2**22, 3, 1), (3, 1, 1), (1, 2**22, 1), limits=limits)
    assert p.grid[0] <= GRID_MAX_X


ONES = torch.ones(4)


@pytest.mark.parametrize(
    ("a", "b", "error", "words"),
    [
        (torch.ones(20), torch.ones(5), ValueError, r"one shape; got \(20,\) and \(5,\)"),
        (ONES, ONES.half(), ValueError, "a is float32, b is float16"),
        (ONES, ONES.to("meta"), ValueError, "a is on cpu, b is on meta"),
        (ONES.int(), ONES.int(), TypeError, "a has dtype int32; wanted float16"),
        (ONES, 1.0, TypeError, "b must be a torch tensor.*got float"),
        (ONES, [1.0], TypeError, "b must be a torch tensor.*got list"),
        (ONES, ONES.numpy(), TypeError, "one kind; a is from torch, b is from numpy"),
        (ONES.to_sparse(), ONES, TypeError, "a has layout torch.sparse_coo"),
    ],
)
@pytest.mark.parametrize("backend", [None, "cutile", "triton"])
def test_bad_input(a, b, error, words, backend):
    with pytest.raises(error, match=words):
        tilekit.vadd(a, b, backend=backend)
