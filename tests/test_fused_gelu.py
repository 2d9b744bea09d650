"""fused_gelu: its errors, its limits, its gradients and its plans. The shared cases run in test_kernels.py."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tilekit
from tilekit import triton_mode
from tilekit.kernels.fused_gelu import triton_kernel
from tilekit.plans import GRID_MAX_CUTILE, GRID_MAX_X, INTERPRETER, CannotServe, Limits, contiguous_strides

try:
    from tilekit.kernels.fused_gelu import cutile_kernel
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
INF, NAN = float("inf"), float("nan")


def planned(plan, shape, *strides, limits=H100, dtype=torch.float16):
    x = contiguous_strides(shape)
    strides = tuple(x if s is None else s for s in strides)
    return plan((shape,) * 3, strides, dtype, limits, True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_the_ends_and_their_sign(approximate, backend):
    """K8; the shared cases compare values, and -0 equals 0 there."""
    x = torch.tensor([-13.24, 11.0, 20.0, 40.0, 1e20, -1e20, INF, -INF, NAN, 0.0, -0.0])
    out = tilekit.fused_gelu(x, torch.tensor(1.0), torch.tensor(-0.0), approximate=approximate, backend=backend)
    wanted = torch.tensor([-0.0, 11.0, 20.0, 40.0, 1e20, -0.0, INF, -0.0, NAN, 0.0, -0.0])
    torch.testing.assert_close(out, wanted, rtol=1e-6, atol=1e-30, equal_nan=True)
    negative = torch.tensor([True, False, False, False, False, True, False, True, False, False, True])
    assert torch.equal(out.signbit() & ~out.isnan(), negative)


@needs_cutile
def test_cutiles_error_function(monkeypatch):
    """cuTile has none, so ours is arithmetic, and the same lines run on torch's tensors."""

    class Arithmetic:
        exp = staticmethod(torch.exp)
        maximum = staticmethod(torch.fmax)

        @staticmethod
        def where(condition, x, y):
            return torch.where(condition, x, y)

    monkeypatch.setattr(cutile_kernel, "ct", Arithmetic)
    z = torch.linspace(-12, 12, 100_001)
    wanted = torch.special.ndtr(z.double())
    error = (cutile_kernel.normal_cdf(z).double() - wanted).abs()
    assert error.max() < 1.2e-7 and error[z < -0.5].max() < 9e-8  # below, torch's own gelu is that exact, too
    # Below zero a share of almost nothing keeps its digits, where 1 + erf(z) would have none left.
    assert (error / wanted)[(z < -2) & (z > -6)].max() < 5e-6
    ends = cutile_kernel.normal_cdf(torch.tensor([-100.0, 0.0, INF, NAN]))
    assert ends.tolist()[:3] == [0.0, 0.5, 1.0] and ends[3].isnan()


@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_gradients_have_the_parameters_own_shapes(approximate, seed):
    """G1"""
    torch.manual_seed(seed)
    x = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
    w = torch.randn(8, dtype=torch.float64, requires_grad=True)
    b = torch.randn((), dtype=torch.float64, requires_grad=True)
    out = tilekit.fused_gelu(x, w, b, approximate=approximate)
    weights = torch.randn_like(out)
    got = torch.autograd.grad((out * weights).sum(), (x, w, b))
    wanted = torch.autograd.grad((F.gelu(x * w + b, approximate=approximate) * weights).sum(), (x, w, b))
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_gradients_at_the_ends_are_0_and_1(approximate):
    b = torch.tensor([-INF, -1e20, -200.0, 200.0, 1e20, INF], requires_grad=True)
    x, w = torch.ones(6), torch.ones(())
    tilekit.fused_gelu(x, w, b, approximate=approximate).sum().backward()
    assert b.grad.tolist() == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_a_nan_has_nan_for_its_gradient(approximate, backend, dtype):
    arrays = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in ([float("nan"), 1.0], [1.0, 1.0], [0.0, 0.0])]
    for gradient in torch.autograd.grad(
        tilekit.fused_gelu(*arrays, approximate=approximate, backend=backend).sum(), arrays
    ):
        assert gradient.isnan().tolist() == [True, False]


@pytest.mark.parametrize("backend", BACKENDS)
def test_numpy_in_and_out(backend, seed):
    random = np.random.default_rng(seed)
    x, w, b = (random.standard_normal(shape).astype(np.float32) for shape in ((3, 50), (50,), ()))
    before = x.copy()
    out = tilekit.fused_gelu(x, np.asarray(w), np.asarray(b), backend=backend)
    wanted = F.gelu(torch.from_numpy(x * w + b), approximate="tanh")
    assert isinstance(out, np.ndarray) and out.dtype == np.float32
    torch.testing.assert_close(torch.from_numpy(out), wanted)
    assert np.array_equal(x, before)


def test_autocast_takes_the_widest_dtype_as_torch_does():
    x, w, b = torch.ones(2, 8, dtype=torch.bfloat16), torch.ones(8), torch.zeros(())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tilekit.fused_gelu(x, w, b).dtype is torch.float32
        assert tilekit.fused_gelu(x, w.bfloat16(), b.bfloat16()).dtype is torch.bfloat16


@pytest.mark.parametrize("plan", PLANS)
def test_scalars_and_operands_of_one_shape_are_walked_as_one_row(plan):
    shape = (64, 32, 128)
    p = planned(plan, shape, None, (0, 0, 0), None)
    tile = p.constants.get("BLOCK") or p.constants["TILE_M"] * p.constants["TILE_N"]
    assert p.variant == "" and (*p.grid, 1, 1)[:3] == (64 * 32 * 128 // tile, 1, 1)
    if "W_SCALAR" in p.constants:
        assert (p.constants["W_SCALAR"], p.constants["B_SCALAR"]) == (True, False)
    else:
        assert (p.constants["W_N"], p.constants["B_N"]) == (1, tile)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_vectors_are_loaded_once_for_several_rows_and_in_whole_lines(plan, dtype):
    p = planned(plan, (512, 16, 4096), None, (0, 0, 1), (0, 0, 1), dtype=dtype)
    rows, columns = (p.constants.get(f"BLOCK_{d}") or p.constants[f"TILE_{d}"] for d in "MN")
    assert rows >= 2 and columns * dtype.itemsize >= 512
    assert not p.constants.get("W_ROWS") and p.constants.get("W_M", 1) == 1


@pytest.mark.parametrize("plan", PLANS)
def test_a_transposed_input_takes_square_tiles(plan):
    p = planned(plan, (4096, 512), (1, 4096), (0, 1), (0, 1))
    rows, columns = (p.constants.get(f"BLOCK_{d}") or p.constants[f"TILE_{d}"] for d in "MN")
    assert rows >= 32 and columns >= 32


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("n", "bits"), [(2**20, 32), (2**31 - 1, 64), (2**31 + 5, 64)])
def test_long_arrays_get_64_bit_indices(plan, n, bits):
    assert planned(plan, (n,), None, (0,), (0,)).index_bits == bits
    assert planned(plan, (3, 8), (2**30, 1), (0, 1), (0, 1)).index_bits == 64


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("limits", [H100, INTERPRETER])
def test_grids_stay_within_the_backends_limit(plan, limits):
    shape = (2**25, 3, 2)
    strides = (1, 2**26, 2**25)
    try:
        p = planned(plan, shape, strides, (0, 0, 1), (0, 0, 1), limits=limits)
        assert p.grid[0] <= (GRID_MAX_X if "BLOCK_M" in p.constants else GRID_MAX_CUTILE)
    except CannotServe as refusal:
        assert "33,554,432 blocks" in str(refusal) and "launches 16,777,215 at most" in str(refusal)


ONES = torch.ones(4, 8)
ONE = torch.tensor(1.0)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((ONES, torch.ones(4), ONE), ValueError, r"w must have x's shape \(4, 8\), .* \(8,\), or be 0-d; got \(4,\)"),
        ((ONES, ONE, torch.ones(1)), ValueError, r"b must have x's shape \(4, 8\).*got \(1,\)"),
        ((ONE, torch.ones(1), ONE), ValueError, r"w must have x's shape \(\).*got \(1,\)"),
        ((ONES, ONE.half(), ONE), ValueError, "x is float32, w is float16"),
        ((ONES, ONE, ONE.to("meta")), ValueError, "x is on cpu, b is on meta"),
        ((ONES.int(), ONE.int(), ONE.int()), TypeError, "x has dtype int32; wanted float16"),
        ((ONES, 1.0, ONE), TypeError, "w must be a torch tensor.*got float"),
        ((ONES, ONE, ONES.numpy()), TypeError, "one kind; x is from torch, b is from numpy"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", [None, "cutile", "triton"])
def test_bad_input(arguments, error, words, backend):
    with pytest.raises(error, match=words):
        tilekit.fused_gelu(*arguments, backend=backend)


@pytest.mark.parametrize("approximate", ["erf", None, True])
def test_an_unknown_form_is_refused(approximate):
    with pytest.raises(ValueError, match=f"approximate must be 'tanh' or 'none'; got {approximate!r}"):
        tilekit.fused_gelu(ONES, ONE, ONE, approximate=approximate)


def test_a_grid_past_cudas_limits_is_one_dimensional():
    """Rows on y: 65,535 tiles of 4 rows at most. Past that the tiles are counted along x."""
    limits = Limits.of("sm_90")
    for rows, flat in ((65_535 * 4, False), (65_535 * 4 + 1, True)):
        shape, strides = (rows, 1000), (2048, 1)
        p = cutile_kernel.plan((shape,) * 3, (strides, (0, 1), (0, 1)), torch.float16, limits)
        assert p.constants["FLAT"] is flat and len(p.grid) == (1 if flat else 3)
        assert max((*p.grid, 1, 1)[1:]) <= 65_535


def test_bounds_are_checked_only_where_a_tile_reaches_past_the_end():
    limits = Limits.of("sm_90")
    for shape, checked in (((64, 4096), False), ((63, 4096), True), ((64, 4000), True), ((8192,), False)):
        strides = tuple(torch.empty(shape, device="meta").stride())
        repeated = (0,) * (len(shape) - 1) + (1,)
        for trusted in (True, False):
            p = cutile_kernel.plan((shape,) * 3, (strides, repeated, repeated), torch.float16, limits, True, trusted)
            assert p.constants["CHECKED"] is (checked or not trusted)


@pytest.mark.parametrize("limit", [65_535, 1])
@pytest.mark.parametrize("shape", [(37, 700), (3, 5, 9, 33)])
def test_both_grids_give_the_same(limit, shape, monkeypatch):
    monkeypatch.setattr(cutile_kernel, "GRID_MAX_YZ", limit)
    cutile_kernel.plan.cache_clear()
    x = torch.randn(*shape, 2)[..., 0]
    w, b = torch.randn(shape[-1]), torch.randn(shape[-1])
    out = tilekit.fused_gelu(x, w, b, backend="cutile")
    cutile_kernel.plan.cache_clear()
    torch.testing.assert_close(out, F.gelu(x * w + b, approximate="tanh"), rtol=1e-5, atol=1e-6)
