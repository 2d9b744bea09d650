"""flash_attention: its errors, its plans, its layouts and gradients. The shared cases run in test_kernels.py."""

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tilekit
from tilekit import triton_mode
from tilekit.exercises import Make
from tilekit.exercises.checker import run_case
from tilekit.kernels.flash_attention import cutile_kernel, layout, torch_kernel, triton_kernel
from tilekit.kernels.flash_attention.reference import flash_attention as reference
from tilekit.kernels.flash_attention.spec import SPEC
from tilekit.plans import GRID_MAX_CUTILE, GRID_MAX_X, INTERPRETER, CannotServe, Limits, contiguous_strides

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
HALF, SINGLE = torch.float16, torch.float32


def planned(
    backend,
    query,
    key,
    value,
    *,
    strides=None,
    dtype=HALF,
    limits=None,
    causal=False,
    scale=0.125,
    tf32=False,
    aligned=True,
):
    limits = limits or Limits.of("sm_90")
    shapes = (query, key, value)
    strides = strides or tuple(contiguous_strides(shape) for shape in shapes)
    if backend == "triton":
        return triton_kernel.plan(shapes, strides, dtype, limits, causal, scale, tf32, aligned)
    return cutile_kernel.plan(shapes, strides, dtype, limits, causal, scale, tf32)


def self_attention(backend, rows, channels, **keywords):
    shape = (2, 4, rows, channels)
    return planned(backend, shape, shape, shape, **keywords)


def tile(plan, name):
    return plan.constants.get(f"BLOCK_{name}") or plan.constants[f"TILE_{name}"]


both = pytest.mark.parametrize("backend", ["triton", "cutile"])


@both
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("channels", [1, 64, 80, 128, 256])
@pytest.mark.parametrize(("dtype", "tf32"), [(HALF, False), (SINGLE, False), (SINGLE, True)])
def test_tiles_fit_every_architecture(backend, architecture, channels, dtype, tf32):
    limits = Limits.of(architecture)
    p = self_attention(backend, 1000, channels, dtype=dtype, limits=limits, tf32=tf32)
    assert 0 < p.shared_memory <= limits.shared_memory
    assert tile(p, "E") == max(16, 1 << (channels - 1).bit_length())
    assert p.grid == (2 * 4 * math.ceil(1000 / tile(p, "M")),)


@both
@pytest.mark.parametrize("shared_memory", [49_152, 65_536, 101_376, 166_912, 232_448])
def test_128_channels_on_any_amount_of_shared_memory(backend, shared_memory):
    limits = dataclasses.replace(Limits.of("sm_80"), shared_memory=shared_memory)
    assert self_attention(backend, 1000, 128, limits=limits).shared_memory <= shared_memory


@both
def test_more_shared_memory_means_larger_tiles(backend):
    def area(shared_memory):
        limits = dataclasses.replace(Limits.of("sm_90"), shared_memory=shared_memory)
        p = self_attention(backend, 4096, 128, limits=limits)
        return tile(p, "M") * tile(p, "N")

    assert area(49_152) < area(232_448)


@both
def test_float32_with_256_channels_fits_or_says_why_not(backend):
    def plan(shared_memory):
        limits = dataclasses.replace(Limits.of("sm_80"), shared_memory=shared_memory)
        return self_attention(backend, 1000, 256, dtype=SINGLE, limits=limits)

    for shared_memory in (65_536, 101_376, 166_912, 232_448):
        assert plan(shared_memory).shared_memory <= shared_memory
    with pytest.raises(CannotServe, match="bytes of shared memory .* 256 channels, and a block has 49,152"):
        plan(49_152)


@both
def test_more_than_256_channels_are_refused(backend):
    with pytest.raises(CannotServe, match="at most 256 channels; got 257 in query and 257 in value"):
        self_attention(backend, 64, 257)
    with pytest.raises(CannotServe, match="at most 256 channels; got 8 in query and 300 in value"):
        planned(backend, (1, 1, 4, 8), (1, 1, 4, 8), (1, 1, 4, 300))


@both
def test_arrays_past_two_to_the_31_elements_get_64_bit_indices(backend):
    assert self_attention(backend, 4096, 128).index_bits == 32
    assert planned(backend, *[(8, 64, 2**15, 128)] * 3).index_bits == 64


@both
@pytest.mark.parametrize("far", range(3))
def test_one_array_with_large_strides_is_enough_for_64_bit_indices(backend, far):
    shape = (2, 2, 64, 64)
    strides = [contiguous_strides(shape)] * 3
    strides[far] = (2**31, 4096, 64, 1)
    assert planned(backend, shape, shape, shape, strides=tuple(strides)).index_bits == 64


@both
def test_offsets_just_past_the_last_key_count(backend):
    """The last tile reaches past S, and masked-off offsets must not wrap round either."""
    shape, steps = (1, 1, 65, 16), 2**31 // 65 // 16 * 16
    strides = ((steps * 65, steps * 65, steps, 1),) * 3
    assert (shape[2] - 1) * steps + 15 < 2**31
    assert planned(backend, shape, shape, shape, strides=strides).index_bits == 64


@pytest.mark.parametrize(("backend", "most"), [("triton", GRID_MAX_X), ("cutile", GRID_MAX_CUTILE)])
def test_the_grid_has_one_dimension_and_stays_below_its_limit(backend, most):
    shape = (2, most // 2, 1, 16)
    assert planned(backend, shape, shape, shape).grid == (most // 2 * 2,)
    with pytest.raises(CannotServe, match=f"launches {most:,} at most"):
        planned(backend, *[(2, most // 2 + 1, 1, 16)] * 3)


@both
def test_few_rows_or_keys_get_small_tiles(backend):
    p = planned(backend, (1, 1, 1, 64), (1, 1, 20, 64), (1, 1, 20, 64))
    assert (tile(p, "M"), tile(p, "N")) == (16, 32)


@both
def test_only_causal_blocks_take_turns_among_heads(backend):
    assert self_attention(backend, 1024, 64, causal=True).constants["HEADS_TOGETHER"] > 1
    assert self_attention(backend, 1024, 64).constants["HEADS_TOGETHER"] == 1


@both
@pytest.mark.parametrize(("scale", "sign"), [(0.5, 1), (-0.5, -1), (0.0, 0), (-0.0, 0), (1e-300, 0), (1e300, 1)])
def test_the_sign_of_the_scale_goes_to_the_query(backend, scale, sign):
    p = self_attention(backend, 64, 16, scale=scale)
    assert p.constants["SIGN"] == sign
    assert 0 < p.arguments[-1] <= torch.finfo(torch.float32).max


def test_precision_is_explicit():
    assert self_attention("triton", 64, 64, dtype=SINGLE).constants["PRECISION"] == "ieee"
    assert self_attention("triton", 64, 64, dtype=SINGLE, tf32=True).constants["PRECISION"] == "tf32"


@pytest.mark.parametrize(
    ("keywords", "variant"),
    [
        ({}, "tma"),
        ({"limits": Limits.of("sm_100")}, "tma"),
        ({"limits": Limits.of("sm_80")}, ""),
        ({"limits": INTERPRETER}, ""),
        ({"aligned": False}, ""),
        ({"dtype": SINGLE}, ""),
        ({"strides": ((2**16, 2**14, 64, 1), (2**16, 2**14, 1, 256), (2**16, 2**14, 64, 1))}, ""),
        ({"strides": ((2**16, 2**14, 64, 1), (2**16, 2**14, 68, 1), (2**16, 2**14, 64, 1))}, ""),
        ({"strides": ((2**16, 2**14, 64, 1), (0, 2**14, 64, 1), (2**16, 2**14, 64, 1))}, ""),
        ({"strides": ((2**16, 64, 256, 1), (2**16, 64, 256, 1), (2**16, 64, 256, 1))}, "tma"),
    ],
)
def test_tensor_descriptors_where_the_device_and_the_layout_allow_them(keywords, variant):
    assert self_attention("triton", 256, 64, **keywords).variant == variant


interpreted = pytest.mark.skipif(
    triton_mode.mode() != "interpreted", reason="Triton compiles in this process; tests/gpu runs these cases"
)


@interpreted
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
@pytest.mark.parametrize("case", [case for case in SPEC.cases if not case.needs_gpu], ids=lambda case: case.id)
def test_cases_with_the_tiles_of_a_gpu(case, architecture, monkeypatch, seed):
    """Hopper's plans read through tensor descriptors; a T4's tiles are so small that every walk takes several."""
    monkeypatch.setattr(triton_kernel, "limits_of", lambda device: Limits.of(architecture))
    dtype = SINGLE if HALF not in case.dtypes or architecture == "sm_75" else HALF
    if "256" in case.id:
        dtype = HALF

    def function(*args, **kwargs):
        return tilekit.flash_attention(*args, **kwargs, backend="triton")

    difference = run_case(SPEC, case, function, Make(seed, dtype))
    assert difference is None, f"{difference} (seed {seed})"


def test_leading_dimensions_become_batch_and_heads():
    def shapes(*arrays):
        return [tuple(view.shape for view in views) for views in layout.batches(*arrays)]

    assert shapes(torch.ones(5, 6)) == [((1, 1, 5, 6),)]
    assert shapes(torch.ones(4, 5, 6)) == [((1, 4, 5, 6),)]
    assert shapes(torch.ones(2, 3, 4, 5, 6)) == [((6, 4, 5, 6),)]
    permuted = torch.ones(3, 2, 4, 5, 6).transpose(0, 1)
    assert shapes(permuted, torch.ones(2, 3, 1, 7, 6)) == [((3, 4, 5, 6), (3, 1, 7, 6))] * 2


def test_views_of_six_dimensions_are_views_in_order():
    a, b = torch.randn(2, 2, 2, 3, 4, 5), torch.randn(2, 2, 2, 3, 4, 5).permute(2, 0, 1, 3, 4, 5)
    parts = list(layout.batches(a, b))
    assert all(part.untyped_storage().data_ptr() == a.untyped_storage().data_ptr() for part, _ in parts)
    assert torch.equal(torch.cat([part for part, _ in parts]).reshape(a.shape), a)
    assert torch.equal(torch.cat([part for _, part in parts]).reshape(b.shape), b)


A = torch.ones(2, 3, 8, 4)


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "words"),
    [
        (
            (A, A[:, :2], A[:, :2]),
            {},
            ValueError,
            r"query \(2, 3, 8, 4\), key \(2, 2, 8, 4\).*equal leading dimensions$",
        ),
        ((A, A[:, :1], A[:, :1]), {}, ValueError, "equal leading dimensions .pass enable_gqa=True"),
        ((A, A[:, :2], A[:, :2]), {"enable_gqa": True}, ValueError, r"heads \(dimension -3\) a multiple of key's"),
        ((A, A[:1], A[:1]), {"enable_gqa": True}, ValueError, "the other leading dimensions equal"),
        ((A, A[:1], A[:1]), {}, ValueError, "equal leading dimensions"),
        ((A, A[..., :3], A), {}, ValueError, r"key \(2, 3, 8, 3\).*wanted query \(..., L, E\), key \(..., S, E\)"),
        ((A, A, A[:, :, :5]), {}, ValueError, r"value \(2, 3, 5, 4\); wanted query \(..., L, E\)"),
        ((A, A, A[0]), {}, ValueError, r"value \(3, 8, 4\); wanted"),
        ((A[0, 0, 0], A[0, 0, 0], A[0, 0, 0]), {}, ValueError, r"query \(4,\).*two or more dimensions"),
        ((A, A.half(), A), {}, ValueError, "query is float32, key is float16"),
        ((A, A, A.to("meta")), {}, ValueError, "query is on cpu, value is on meta"),
        ((A.int(), A.int(), A.int()), {}, TypeError, "query has dtype int32; wanted float16"),
        ((A, A, 1.0), {}, TypeError, "value must be a torch tensor.*got float"),
        ((A, A.numpy(), A), {}, TypeError, "one kind; query is from torch, key is from numpy"),
        ((A, A, A), {"scale": math.inf}, ValueError, "scale must be finite; got inf"),
        ((A, A, A), {"scale": math.nan}, ValueError, "scale must be finite; got nan"),
        ((A, A, A), {"scale": "1"}, TypeError, "scale must be a number or None; got str"),
        ((A, A, A), {"scale": torch.ones(())}, TypeError, "scale must be a number or None; got Tensor"),
    ],
)
@pytest.mark.parametrize("backend", [None, "cutile", "triton"])
def test_bad_input(arguments, keywords, error, words, backend):
    with pytest.raises(error, match=f"flash_attention: .*{words}"):
        tilekit.flash_attention(*arguments, **keywords, backend=backend)


@interpreted
def test_too_many_channels_are_an_error_of_the_named_backend_and_served_by_torch():
    a = torch.randn(3, 257)
    with pytest.raises(ValueError, match="at most 256 channels"):
        tilekit.flash_attention(a, a, a, backend="triton")
    torch.testing.assert_close(tilekit.flash_attention(a, a, a), reference(a, a, a).float())


BACKENDS = ["torch", "cutile", pytest.param("triton", marks=interpreted)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_numpy_in_numpy_out(backend):
    query, key, value = (np.random.default_rng(0).standard_normal((2, 6, 8)).astype(np.float32) for _ in range(3))
    out, lse = tilekit.flash_attention(query, key[:, ::-1], value[:, ::-1], return_lse=True, backend=backend)
    wanted = reference(*map(torch.from_numpy, (query, key, value)))
    assert isinstance(out, np.ndarray) and isinstance(lse, np.ndarray)
    np.testing.assert_allclose(out, wanted.numpy(), atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("return_lse", [False, True])
def test_weights_keep_their_digits_where_logits_are_large(backend, return_lse):
    """The log-sum-exp of these exact logits is rounded to 1/2048; weights made from it would be that wrong."""
    query, key, value = torch.ones(1, 1), torch.tensor([[4096.0], [4095.0]]), torch.eye(2)
    out = tilekit.flash_attention(query, key, value, scale=1.0, return_lse=return_lse, backend=backend)
    out = out[0] if return_lse else out
    torch.testing.assert_close(out, torch.tensor([[1.0, 0.0]]).softmax(-1), atol=3e-7, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("step", [0, 1, 3])
def test_rows_that_share_elements(backend, step):
    """Windows of a signal, one after the other: torch's own attention returned memory that it never wrote."""
    windows = torch.randn(16).as_strided((4, 5), (step, 1)).requires_grad_()
    apart = windows.detach().clone().requires_grad_()
    out, wanted = (tilekit.flash_attention(a, a, a, backend=backend) for a in (windows, apart))
    torch.testing.assert_close(out, reference(apart, apart, apart).float())
    out.sum().backward()
    wanted.sum().backward()
    torch.testing.assert_close(windows.grad, apart.grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_lowers_the_inputs_as_torchs_attention_does(backend):
    a = torch.randn(2, 6, 8)
    with torch.autocast("cpu", torch.bfloat16):
        out, lse = tilekit.flash_attention(a, a, a.bfloat16(), return_lse=True, backend=backend)
        assert out.dtype is F.scaled_dot_product_attention(a, a, a).dtype is torch.bfloat16
    assert lse.dtype is torch.float32


@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_the_torch_backend_differentiates_as_torch_does(causal, return_lse):
    inputs = [torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def function(query, key, value):
        result = tilekit.flash_attention(
            query, key, value, is_causal=causal, scale=-0.7, return_lse=return_lse, backend="torch"
        )
        return result if return_lse else (result,)

    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize(("rows", "keys"), [(0, 3), (3, 0)])
def test_empty_arrays_have_gradients(rows, keys):
    query, key, value = (torch.randn(2, n, 4, requires_grad=True) for n in (rows, keys, keys))
    tilekit.flash_attention(query, key, value, backend="torch").sum().backward()
    for a in (query, key, value):
        assert torch.equal(a.grad, torch.zeros_like(a))


def test_the_plain_formula_serves_only_what_torch_gets_wrong(monkeypatch):
    def never(*_):
        raise AssertionError("the plain formula ran")

    monkeypatch.setattr(torch_kernel, "_plainly", never)
    a = torch.randn(2, 6, 8)
    tilekit.flash_attention(a, a, a, scale=-2.0, is_causal=True, backend="torch")
    with pytest.raises(AssertionError, match="the plain formula ran"):
        tilekit.flash_attention(a, torch.full_like(a, -math.inf), a, backend="torch")


@pytest.mark.parametrize("first", [1, 2, 5])
def test_the_plain_formula_is_the_same_in_any_number_of_blocks(first, monkeypatch):
    monkeypatch.setattr(torch_kernel, "_ROWS", first)
    query, key, value = torch.randn(5, 4), torch.randn(3, 4), torch.randn(3, 2)
    out, lse = tilekit.flash_attention(query, key, value, is_causal=True, return_lse=True, backend="torch")
    wanted, wanted_lse = reference(query, key, value, is_causal=True, return_lse=True)
    torch.testing.assert_close(out, wanted.float())
    torch.testing.assert_close(lse, wanted_lse.float())
