"""softmax: its errors, its layouts and its plans. The shared cases run in test_kernels.py."""

from unittest import mock

import numpy as np
import pytest
import torch

import tilekit
from tilekit import triton_mode
from tilekit.kernels import _triton
from tilekit.kernels.softmax import triton_kernel
from tilekit.kernels.softmax.rows import as_rows, least_rows, walkable
from tilekit.kernels.softmax.spec import SPEC
from tilekit.plans import GRID_MAX_CUTILE, GRID_MAX_X, INTERPRETER, CannotServe, Limits, contiguous_strides

try:
    from tilekit.kernels.softmax import cutile_kernel
except ImportError:  # cuda-tile is on Linux and Windows only
    cutile_kernel = None

interpreted = pytest.mark.skipif(
    triton_mode.mode() != "interpreted", reason="Triton compiles in this process; tests/gpu runs these cases"
)
needs_cutile = pytest.mark.skipif(cutile_kernel is None, reason="cuda-tile does not import here")
BACKENDS = ["torch", "cutile", pytest.param("triton", marks=interpreted)]
PLANS = [
    pytest.param(lambda *a: triton_kernel.plan(*a), id="triton"),
    pytest.param(lambda *a: cutile_kernel.plan(*a), id="cutile", marks=needs_cutile),
]
H100 = Limits.of("sm_90")
ALL_LIMITS = [Limits.of(f"sm_{number}") for number in (75, 80, 86, 89, 90, 100, 120)]
L3 = (65_537, 102_400, 128_256, 1_048_577)


def planned(plan, shape, dim=-1, strides=None, limits=H100, dtype=torch.float16):
    return plan((shape,), (strides or contiguous_strides(shape),), dtype, limits, dim)


def tile(p):
    return tuple(p.constants.get(f"BLOCK_{d}") or p.constants[f"TILE_{d}"] for d in "MN")


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("limits", [*ALL_LIMITS, INTERPRETER])
@pytest.mark.parametrize("length", L3)
def test_long_rows_take_the_loop(plan, limits, length):
    p = planned(plan, (2, length), limits=limits)
    assert p.variant == "wide" and tile(p)[1] < length


@interpreted
@pytest.mark.parametrize("length", L3)
def test_the_loop_really_runs(length):
    """L3: the kernel that is launched for a long row is the one with the loop."""
    x = torch.randn(1, length)
    with mock.patch.object(_triton, "launch", wraps=_triton.launch) as launch:
        tilekit.softmax(x, backend="triton")
    assert launch.call_args.args[0] is triton_kernel.softmax_wide_kernel


def test_the_shared_cases_have_these_lengths():
    ids = [case.id for case in SPEC.cases if case.row == "L3"]
    assert ids == [f"{length} columns" for length in L3]


@pytest.mark.parametrize("plan", PLANS)
def test_a_row_that_fits_is_read_once_and_short_rows_share_a_block(plan):
    assert planned(plan, (512, 4096)).variant == ""
    p = planned(plan, (100_000, 10))
    assert p.variant == "" and tile(p)[0] >= 32 and tile(p)[1] == 16


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    ("shape", "strides", "dim"),
    [
        ((300, 4096), (4096, 1), 0),  # the first dimension of a contiguous array
        ((8, 300, 64), (19_200, 64, 1), 1),  # the middle one
        ((4096, 300), (1, 4096), 1),  # rows of a transposed array
        ((4, 64, 56, 56), (200_704, 1, 3584, 64), 1),  # channels last: the output's rows are neighbours
        ((4096, 100_000), (2, 8192), 1),  # neighbours two apart, and too long for a tile
    ],
)
def test_neighbouring_rows_are_taken_together(plan, shape, strides, dim):
    assert tile(planned(plan, shape, dim, strides))[0] >= 32


@pytest.mark.parametrize("limits", [*ALL_LIMITS, Limits((8, 6), 49_152, 20)])
@pytest.mark.parametrize("shape", [(4096, 300), (4096, 512), (4096, 5000), (16, 512)])
def test_a_tile_that_changes_its_order_fits_into_shared_memory(limits, shape):
    p = planned(triton_kernel.plan, shape, 1, (1, shape[0]), limits=limits, dtype=torch.float32)
    rows, columns = tile(p)
    assert rows * columns * 4 <= p.shared_memory <= limits.shared_memory


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    ("shape", "strides", "bits"),
    [
        ((1000, 4096), None, 32),
        ((2**20, 4096), None, 64),
        ((1, 2**31 - 1), None, 64),
        ((1, 2**31 + 5), None, 64),
        ((3, 8), (2**30, 1), 64),
    ],
)
def test_far_elements_get_64_bit_indices(plan, shape, strides, bits):
    assert planned(plan, shape, -1, strides).index_bits == bits


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("limits", [H100, INTERPRETER])
@pytest.mark.parametrize(("shape", "dim"), [((2**22, 3), 1), ((2**25, 3, 2), 1), ((2**26, 4096), 1), ((2**31, 1), 1)])
def test_grids_stay_within_the_backends_limit(plan, limits, shape, dim):
    try:
        p = planned(plan, shape, dim, limits=limits)
        assert p.grid[0] <= (GRID_MAX_X if "BLOCK_M" in p.constants else GRID_MAX_CUTILE)
    except CannotServe as refusal:
        assert "launches 16,777,215 at most" in str(refusal)


def test_outer_dimensions_merge_where_they_can():
    assert as_rows((2, 3, 4, 5), (60, 20, 5, 1), 3) == ((1, 24, 5), (0, 5, 1), (0, 5, 1))
    assert as_rows((2, 3, 4, 5), (60, 20, 5, 1), 1) == ((2, 20, 3), (60, 1, 20), (60, 1, 20))
    assert as_rows((7,), (3,), 0) == ((1, 1, 7), (0, 1, 3), (0, 1, 1))
    assert least_rows(1, (0, 1, 3), (0, 1, 3)) == 1


def test_only_what_does_not_merge_is_copied():
    x = torch.randn(3, 4, 5)
    assert walkable(x.transpose(0, 1), 2).data_ptr() == x.data_ptr()
    permuted = torch.randn(2, 3, 4, 5, 6).permute(4, 2, 0, 3, 1)
    assert walkable(permuted, 2).is_contiguous()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dim", [-3, 0, 1, 2])
def test_any_dimension_of_any_layout(dim, backend, seed):
    torch.manual_seed(seed)
    for order in ((0, 1, 2), (2, 0, 1), (1, 0, 2), (2, 1, 0)):
        x = torch.randn(6, 40, 8).permute(order)
        torch.testing.assert_close(tilekit.softmax(x, dim, backend=backend), torch.softmax(x, dim).contiguous())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [0.0, float("-inf"), float("inf"), float("nan")])
@pytest.mark.parametrize("dim", [0, -1])
def test_0d_as_torchs(value, dim, backend):
    x = torch.tensor(value)
    torch.testing.assert_close(tilekit.softmax(x, dim, backend=backend), torch.softmax(x, dim), equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_zeros_sum_to_1_in_half_precision(backend):
    """N2"""
    assert tilekit.softmax(torch.zeros(1, 4096, dtype=torch.float16), backend=backend).double().sum() == 1.0


@interpreted
@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("value", [float("-inf"), float("inf"), float("nan")])
def test_a_special_value_in_any_step_of_the_loop(value, place, seed):
    torch.manual_seed(seed)
    x = torch.randn(2, 140_000)
    chunk = slice(0, 70_000) if place == "first" else slice(70_000, None)
    x[0, chunk] = value
    torch.testing.assert_close(tilekit.softmax(x, backend="triton"), torch.softmax(x, -1), equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_numpy_in_and_out(backend, seed):
    x = np.random.default_rng(seed).standard_normal((30, 7)).astype(np.float32)
    before = x.copy()
    out = tilekit.softmax(x[::-1], 0, backend=backend)
    assert isinstance(out, np.ndarray) and out.dtype == np.float32
    torch.testing.assert_close(torch.from_numpy(out), torch.softmax(torch.from_numpy(x[::-1].copy()), 0))
    assert np.array_equal(x, before)


def test_dim_may_be_any_integer():
    x = torch.randn(3, 4)
    assert torch.equal(tilekit.softmax(x, np.int64(0)), tilekit.softmax(x, -2))


ONES = torch.ones(3, 4)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((ONES, 2), ValueError, r"dim must be in \[-2, 1\] for shape \(3, 4\); got 2"),
        ((ONES, -3), ValueError, r"dim must be in \[-2, 1\] for shape \(3, 4\); got -3"),
        ((torch.tensor(1.0), 1), ValueError, r"dim must be in \[-1, 0\] for shape \(\); got 1"),
        ((ONES, 1.0), TypeError, "dim must be an integer; got float"),
        ((ONES, True), TypeError, "dim must be an integer; got bool"),
        ((ONES, None), TypeError, "dim must be an integer; got NoneType"),
        ((ONES.int(),), TypeError, "x has dtype int32; wanted float16"),
        (([1.0],), TypeError, "x must be a torch tensor.*got list"),
        ((ONES.to_sparse(),), TypeError, "x has layout torch.sparse_coo"),
    ],
)
@pytest.mark.parametrize("backend", [None, "cutile", "triton"])
def test_bad_input(arguments, error, words, backend):
    with pytest.raises(error, match=words):
        tilekit.softmax(*arguments, backend=backend)
