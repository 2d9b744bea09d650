"""matmul: its errors, its batches and its plans. The shared cases run in test_kernels.py."""

import math

import numpy as np
import pytest
import torch

import tilekit
from tilekit import triton_mode
from tilekit.kernels.matmul import triton_kernel
from tilekit.kernels.matmul.batches import broadcast, four_dimensions, merged, two_batch_dimensions
from tilekit.plans import GRID_MAX_CUTILE, GRID_MAX_X, INTERPRETER, CannotServe, Limits, contiguous_strides

try:
    from tilekit.kernels.matmul import cutile_kernel
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
HALF, SINGLE = torch.float16, torch.float32


def planned(plan, a, b, strides=None, limits=H100, dtype=HALF):
    return plan((a, b), strides or (contiguous_strides(a), contiguous_strides(b)), dtype, limits)


def tile(p):
    return tuple(p.constants.get(f"BLOCK_{d}") or p.constants[f"TILE_{d}"] for d in "MNK")


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("limits", [*ALL_LIMITS, Limits((8, 6), 49_152, 20), Limits((7, 5), 49_152, 20), INTERPRETER])
@pytest.mark.parametrize("dtype", [HALF, SINGLE])
@pytest.mark.parametrize(("M", "N", "K"), [(8192, 8192, 8192), (1000, 1001, 999), (1, 1, 128)])
def test_tiles_fit_into_shared_memory(plan, limits, dtype, M, N, K):
    p = planned(plan, (M, K), (K, N), limits=limits, dtype=dtype)
    block_m, block_n, block_k = tile(p)
    assert (block_m + block_n) * block_k * dtype.itemsize <= p.shared_memory <= limits.shared_memory
    assert p.grid == (math.ceil(M / block_m) * math.ceil(N / block_n),)


@pytest.mark.parametrize("plan", PLANS)
def test_no_tile_for_a_device_without_shared_memory(plan):
    with pytest.raises(CannotServe, match="no tile that fits into 1,024 bytes"):
        planned(plan, (64, 64), (64, 64), limits=Limits((8, 0), 1024, 10))


def test_without_tensor_cores_tiles_are_small():
    p = planned(triton_kernel.plan, (8192, 8192), (8192, 8192), limits=Limits.of("sm_75"))
    assert tile(p) == (64, 64, 16)


@pytest.mark.parametrize("plan", PLANS)
def test_tiles_are_large_only_where_they_keep_every_multiprocessor_busy(plan):
    assert tile(planned(plan, (8192, 8192), (8192, 8192)))[:2] == (128, 256)
    assert max(tile(planned(plan, (512, 512), (512, 512)))[:2]) <= 64
    assert tile(planned(plan, (64, 512, 512), (64, 512, 512)))[:2] == (128, 256)  # the batches are blocks as well


@pytest.mark.parametrize(("K", "even"), [(512, True), (511, False), (1, False)])
def test_only_a_ragged_k_is_masked(K, even):
    assert planned(triton_kernel.plan, (512, K), (K, 512)).constants["EVEN_K"] is even


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    ("a", "b", "strides", "bits"),
    [
        ((4096, 4096), (4096, 4096), None, 32),
        ((2**19, 4096), (4096, 16), None, 64),  # a has 2**31 elements
        ((16, 128), (128, 2**25), None, 64),  # b has 2**32
        ((2**16, 16), (16, 2**15), None, 64),  # out has 2**31
        ((1, 1), (1, 2**31 - 1), None, 64),  # fits, but a tile that reaches past the end does not
        ((1, 2**31 - 1), (2**31 - 1, 1), None, 64),
        ((3, 8), (8, 3), ((2**30, 1), (3, 1)), 64),  # few elements, far apart
        ((3, 1, 8), (3, 8, 3), ((2**30, 8, 1), (24, 3, 1)), 64),
        ((2**20, 4096), (4096, 3), ((0, 1), (3, 1)), 32),  # one row, expanded
    ],
)
def test_far_elements_get_64_bit_indices(plan, a, b, strides, bits):
    assert planned(plan, a, b, strides).index_bits == bits


@interpreted
def test_steps_along_k_can_pass_two_to_the_31(seed):
    """BLOCK_K rows of b further is an offset of its own, which 32 bits do not hold either."""
    torch.manual_seed(seed)
    K, row = 130, 2**24
    memory = torch.from_numpy(np.zeros((K - 1) * row + 8, np.float16))  # zeros that nobody touches take no memory
    b = memory.as_strided((K, 8), (row, 1))
    b.copy_(torch.randn(K, 8))
    a = torch.randn(4, K).half()
    p = planned(triton_kernel.plan, a.shape, b.shape, (a.stride(), b.stride()), INTERPRETER)
    assert p.constants["BLOCK_K"] * row >= 2**31 and p.constants["BLOCK_K"] < K
    expected = a.double() @ b.double()
    assert (tilekit.matmul(a, b, backend="triton").double() - expected).abs().max() <= 2**-10 * expected.abs().max()


@pytest.mark.parametrize("plan", PLANS)
def test_grids_stay_within_the_backends_limit(plan):
    for a, b in (((2**22, 3, 4, 5), (2**22, 3, 5, 4)), ((2**30, 1), (1, 1)), ((2**26, 4, 4), (2**26, 4, 4))):
        try:
            p = planned(plan, a, b)
            assert len(p.grid) == 1 and p.grid[0] <= (GRID_MAX_X if "BLOCK_M" in p.constants else GRID_MAX_CUTILE)
        except CannotServe as refusal:
            assert "launches 16,777,215 at most" in str(refusal)


def test_batches_that_share_b_are_one_matrix():
    shapes = ((8, 5, 7), (8, 7, 9))
    assert merged(shapes, ((35, 7, 1), (0, 9, 1)))[0] == ((40, 7), (7, 1))
    assert merged(shapes, ((35, 7, 1), (63, 9, 1)))[0] == ((8, 5, 7), (35, 7, 1))
    # The rows of a transposed a do not go on from one batch to the next.
    assert merged(shapes, ((35, 1, 5), (0, 9, 1)))[0] == ((8, 5, 7), (35, 1, 5))
    assert planned(triton_kernel.plan, (4096, 1, 64), (4096, 64, 64), ((64, 64, 1), (0, 64, 1))).grid == (64,)


def test_a_batch_of_one_leaves_the_strides_of_its_matrix():
    """A row stride that is no multiple of 16 bytes would cost the wide loads, even where there is but one row."""
    layouts = four_dimensions(((1, 1, 64), (1, 64, 32)), ((64, 64, 1), (2048, 32, 1)))
    assert [steps[2:] for _, steps in layouts] == [(64, 1), (32, 1), (32, 1)]
    filled = [steps[:2] for _, steps in four_dimensions(((128, 64), (64, 32)), ((64, 1), (32, 1)))]
    assert filled == [(8192, 8192), (2048, 2048), (4096, 4096)]


def test_many_batch_dimensions_are_walked_without_copies():
    a = torch.randn(2, 3, 4, 8, 9).permute(2, 1, 0, 3, 4)
    b = torch.randn(4, 3, 2, 9, 5)
    out = torch.empty(4, 3, 2, 8, 5)
    memory = {t.untyped_storage().data_ptr() for t in (a, b, out)}
    parts = list(two_batch_dimensions(a, b, out))
    assert {t.untyped_storage().data_ptr() for part in parts for t in part} == memory
    assert len(parts) == 4
    contiguous = list(two_batch_dimensions(a.contiguous(), b, out))
    assert len(contiguous) == 1  # these three merge into one


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_has_two_batch_dimensions_at_most(plan):
    a = torch.empty(6, 5, 4, 8, 9, device="meta").permute(2, 1, 0, 3, 4)
    b = torch.empty(4, 5, 6, 9, 5, device="meta")
    with pytest.raises(CannotServe, match="two batch dimensions"):
        planned(plan, a.shape, b.shape, (a.stride(), b.stride()))
    for x, y, _ in two_batch_dimensions(a, b, torch.empty(4, 5, 6, 8, 5, device="meta")):
        planned(plan, x.shape, y.shape, (x.stride(), y.stride()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("a", "b"),
    [((2, 1, 3, 6, 7), (4, 1, 7, 5)), ((6, 7), (2, 3, 7, 5)), ((2, 3, 6, 7), (7, 5)), ((1, 6, 7), (1, 7, 5))],
)
def test_batches_broadcast_as_torchs(a, b, backend, seed):
    torch.manual_seed(seed)
    a, b = torch.randn(a), torch.randn(b)
    out = tilekit.matmul(a, b, backend=backend)
    torch.testing.assert_close(out, torch.matmul(a, b), rtol=1e-4, atol=1e-4)
    assert out.is_contiguous()


def test_broadcasting_makes_views():
    a, b = torch.randn(3, 1, 6, 7), torch.randn(2, 7, 5)
    wide_a, wide_b = broadcast(a, b)
    assert wide_a.shape == (3, 2, 6, 7) and wide_b.shape == (3, 2, 7, 5)
    assert wide_a.data_ptr() == a.data_ptr() and wide_b.data_ptr() == b.data_ptr()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("a", "b"), [((0, 3), (3, 4)), ((2, 3), (3, 0)), ((2, 0), (0, 4)), ((0, 2, 3), (3, 4)), ((5, 2, 0), (0, 4))]
)
def test_empty(a, b, backend):
    """S8"""
    out = tilekit.matmul(torch.ones(a), torch.ones(b), backend=backend)
    assert torch.equal(out, torch.ones(a) @ torch.ones(b))


@pytest.mark.parametrize("backend", BACKENDS)
def test_numpy_in_and_out(backend, seed):
    a = np.random.default_rng(seed).standard_normal((30, 7)).astype(np.float32)
    before = a.copy()
    out = tilekit.matmul(a, a.T, backend=backend)
    assert isinstance(out, np.ndarray) and out.dtype == np.float32
    np.testing.assert_allclose(out, a @ a.T, rtol=1e-4, atol=1e-4)
    assert np.array_equal(a, before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_stay_as_they_are(backend):
    a, b = torch.randn(3, 1, 20, 17), torch.randn(2, 17, 10)
    before = a.clone(), b.clone()
    tilekit.matmul(a, b, backend=backend)
    assert torch.equal(a, before[0]) and torch.equal(b, before[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_multiplies_in_the_lower_precision(backend):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tilekit.matmul(torch.ones(4, 4), torch.ones(4, 4), backend=backend).dtype is torch.bfloat16


def test_gradients_of_broadcast_batches(seed):
    torch.manual_seed(seed)
    a = torch.randn(3, 1, 4, 5, dtype=torch.float64, requires_grad=True)
    b = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(tilekit.matmul, (a, b))


ONES = torch.ones(4, 3)


@pytest.mark.parametrize(
    ("a", "b", "error", "words"),
    [
        (ONES, torch.ones(4, 2), ValueError, r"last dimension of a.*got \(4, 3\) and \(4, 2\)"),
        (torch.ones(3), ONES, ValueError, r"a must have two or more dimensions; got shape \(3,\)"),
        (ONES, torch.ones(3), ValueError, r"b must have two or more dimensions; got shape \(3,\)"),
        (torch.tensor(1.0), ONES, ValueError, r"a must have two or more dimensions; got shape \(\)"),
        (torch.ones(2, 4, 3), torch.ones(3, 3, 4), ValueError, r"must broadcast; got \(2, 4, 3\) and \(3, 3, 4\)"),
        (torch.ones(0, 4, 3), torch.ones(2, 3, 4), ValueError, r"must broadcast; got \(0, 4, 3\) and \(2, 3, 4\)"),
        (ONES, ONES.t().half(), ValueError, "a is float32, b is float16"),
        (ONES, ONES.t().to("meta"), ValueError, "a is on cpu, b is on meta"),
        (ONES.int(), ONES.t().int(), TypeError, "a has dtype int32; wanted float16"),
        (ONES, [[1.0]], TypeError, "b must be a torch tensor.*got list"),
        (ONES, ONES.t().numpy(), TypeError, "one kind; a is from torch, b is from numpy"),
        (ONES.to_sparse(), ONES.t(), TypeError, "a has layout torch.sparse_coo"),
    ],
)
@pytest.mark.parametrize("backend", [None, "cutile", "triton"])
def test_bad_input(a, b, error, words, backend):
    with pytest.raises(error, match=words):
        tilekit.matmul(a, b, backend=backend)
