"""The gradients of attention in Triton, without the L x S matrix in memory.

With P = softmax(scale * query @ key.mT) and dP = grad @ value.mT, and row by row delta = sum(grad * out):
dS = P * (dP - delta), dvalue = P.mT @ grad, dkey = scale * dS.mT @ query, dquery = scale * dS @ key.
P is computed again, tile by tile, from the log-sum-exp that the forward pass kept: P = exp(logits - lse).

Shapes: as in the forward kernel; grad is of out's shape and any strides; lse and delta are (B, H, L) in float32.
Work: B * H * L * S * 2 (3 E + 2 Ev) FLOPs once, and (2 E + Ev) more, because two kernels compute dS each for
itself: sums of one block go nowhere else, so no atomics are needed and the result is the same each time.
One block of the first kernel takes BLOCK_M rows of delta. One of the second owns BLOCK_N keys and walks the queries
that see them, of all heads that share these keys. One of the third owns BLOCK_M queries and walks the keys they see.
"""

import math
from functools import lru_cache

import torch
import triton
import triton.language as tl

from tilekit import arguments
from tilekit.kernels import _triton
from tilekit.kernels.flash_attention.layout import gradients
from tilekit.kernels.flash_attention.triton_kernel import _hopper, _load, _tensor_cores
from tilekit.plans import (
    CannotServe,
    Plan,
    cdiv,
    contiguous_strides,
    grid_of,
    index_bits,
    limits_of,
    next_power_of_2,
)

LOG2_E: tl.constexpr = tl.constexpr(math.log2(math.e))


@triton.jit
def delta_kernel(
    out_ptr, grad_ptr, delta_ptr, heads, L, Ev, g_b, g_h, g_l, g_e,
    BLOCK_M: tl.constexpr, BLOCK_EV: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(L, BLOCK_M)
    head, start_m = tl.program_id(0) // tiles, tl.program_id(0) % tiles * BLOCK_M
    grad = _load(
        grad_ptr, head // heads, head % heads, start_m, L, Ev, g_b, g_h, g_l, g_e,
        BLOCK_M, BLOCK_EV, True, True, INDEX, False,
    )  # fmt: skip
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_e = tl.arange(0, BLOCK_EV)
    row = head.to(INDEX) * L + offs_m
    mask = (offs_m[:, None] < L) & (offs_e < Ev)
    out = tl.load(out_ptr + row[:, None] * Ev + offs_e, mask=mask, other=0.0)
    tl.store(delta_ptr + row, tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1), mask=offs_m < L)


@triton.jit
def key_value_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    heads, kv_group, L, S, E, Ev,
    q_b, q_h, q_l, q_e,
    k_b, k_h, k_s, k_e,
    v_b, v_h, v_s, v_e,
    g_b, g_h, g_l, g_e,
    scale,
    ZERO_SCALE: tl.constexpr, CAUSAL: tl.constexpr, PADDED_E: tl.constexpr, PADDED_EV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_EV: tl.constexpr,
    PRECISION: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    # The first keys come first: under a causal mask the most queries see them.
    tiles, kv_heads = tl.cdiv(S, BLOCK_N), heads // kv_group
    tile_n, kv_head = (
        tl.program_id(0) // (tl.num_programs(0) // tiles),
        tl.program_id(0) % (tl.num_programs(0) // tiles),
    )
    b, kv_h, start_n = kv_head // kv_heads, kv_head % kv_heads, tile_n * BLOCK_N
    k = _load(k_ptr, b, kv_h, start_n, S, E, k_b, k_h, k_s, k_e, BLOCK_N, BLOCK_E, True, PADDED_E, INDEX, False)
    v = _load(v_ptr, b, kv_h, start_n, S, Ev, v_b, v_h, v_s, v_e, BLOCK_N, BLOCK_EV, True, PADDED_EV, INDEX, False)
    dk = tl.zeros((BLOCK_N, BLOCK_E), tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_EV), tl.float32)
    offs_n = start_n + tl.arange(0, BLOCK_N)
    first = 0
    if CAUSAL:  # query i sees the keys 0 to i, so those before this block's first key see none of it
        first = start_n // BLOCK_M * BLOCK_M
    for member in range(0, kv_group):
        h = kv_h * kv_group + member
        rows = (b * heads + h).to(INDEX) * L
        for start_m in range(first, L, BLOCK_M):
            q = _load(q_ptr, b, h, start_m, L, E, q_b, q_h, q_l, q_e, BLOCK_M, BLOCK_E, True, PADDED_E, INDEX, False)
            grad = _load(
                grad_ptr, b, h, start_m, L, Ev, g_b, g_h, g_l, g_e, BLOCK_M, BLOCK_EV, True, PADDED_EV, INDEX, False
            )
            offs_m = start_m + tl.arange(0, BLOCK_M)
            p, ds = _weights(
                q, k, v, grad, lse_ptr + rows, delta_ptr + rows, offs_m, offs_n, L, S, scale,
                ZERO_SCALE, CAUSAL, PRECISION,
            )  # fmt: skip
            dv = tl.dot(p.to(grad.dtype).T, grad, dv, input_precision=PRECISION)
            dk = tl.dot(ds.to(q.dtype).T, _finite(q), dk, input_precision=PRECISION)
    offs_e, offs_ev = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_EV)
    row = (kv_head.to(INDEX) * S + offs_n)[:, None]
    inside = offs_n[:, None] < S
    tl.store(dk_ptr + row * E + offs_e, (dk * scale).to(dk_ptr.dtype.element_ty), mask=inside & (offs_e < E))
    tl.store(dv_ptr + row * Ev + offs_ev, dv.to(dv_ptr.dtype.element_ty), mask=inside & (offs_ev < Ev))


@triton.jit
def query_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, dq_ptr,
    heads, kv_group, L, S, E, Ev,
    q_b, q_h, q_l, q_e,
    k_b, k_h, k_s, k_e,
    v_b, v_h, v_s, v_e,
    g_b, g_h, g_l, g_e,
    scale,
    ZERO_SCALE: tl.constexpr, CAUSAL: tl.constexpr, PADDED_E: tl.constexpr, PADDED_EV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_EV: tl.constexpr,
    PRECISION: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    # The last queries come first: under a causal mask they see the most keys.
    tiles = tl.cdiv(L, BLOCK_M)
    all_heads = tl.num_programs(0) // tiles
    head, start_m = tl.program_id(0) % all_heads, (tiles - 1 - tl.program_id(0) // all_heads) * BLOCK_M
    b, h = head // heads, head % heads
    rows = head.to(INDEX) * L
    offs_m = start_m + tl.arange(0, BLOCK_M)
    q = _load(q_ptr, b, h, start_m, L, E, q_b, q_h, q_l, q_e, BLOCK_M, BLOCK_E, True, PADDED_E, INDEX, False)
    grad = _load(grad_ptr, b, h, start_m, L, Ev, g_b, g_h, g_l, g_e, BLOCK_M, BLOCK_EV, True, PADDED_EV, INDEX, False)
    dq = tl.zeros((BLOCK_M, BLOCK_E), tl.float32)
    end = S
    if CAUSAL:
        end = tl.minimum(S, start_m + BLOCK_M)
    for start_n in range(0, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        k = _load(
            k_ptr, b, h // kv_group, start_n, S, E, k_b, k_h, k_s, k_e, BLOCK_N, BLOCK_E, True, PADDED_E, INDEX, False
        )
        v = _load(
            v_ptr,
            b,
            h // kv_group,
            start_n,
            S,
            Ev,
            v_b,
            v_h,
            v_s,
            v_e,
            BLOCK_N,
            BLOCK_EV,
            True,
            PADDED_EV,
            INDEX,
            False,
        )
        _, ds = _weights(
            q, k, v, grad, lse_ptr + rows, delta_ptr + rows, offs_m, offs_n, L, S, scale, ZERO_SCALE, CAUSAL, PRECISION
        )
        dq = tl.dot(ds.to(k.dtype), _finite(k), dq, input_precision=PRECISION)
    offs_e = tl.arange(0, BLOCK_E)
    mask = (offs_m[:, None] < L) & (offs_e < E)
    tl.store(dq_ptr + (rows + offs_m)[:, None] * E + offs_e, (dq * scale).to(dq_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _weights(
    q, k, v, grad, lse_ptr, delta_ptr, offs_m, offs_n, L, S, scale,
    ZERO_SCALE: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """P and dS of one tile of logits; zero where the mask hides them."""
    lse = tl.load(lse_ptr + offs_m, mask=offs_m < L, other=0.0)
    # Where a row saw no key (lse = -inf), +inf makes all weights zero.
    lse = tl.where(lse == float("-inf"), float("inf"), lse)
    delta = tl.load(delta_ptr + offs_m, mask=offs_m < L, other=0.0)
    if ZERO_SCALE:  # as in the forward pass: a product that overflows is no logit of NaN then
        q = (q * 0).to(q.dtype)
    logits = tl.dot(q, k.T, input_precision=PRECISION) * scale
    # No weight is larger than 1; at large logits the rounding of lse could make one overflow.
    exponent = logits - lse[:, None]
    exponent = tl.where(exponent > 0.0, 0.0, exponent)
    seen = (offs_n[None, :] < S) & (offs_m[:, None] < L)
    if CAUSAL:
        seen = seen & (offs_n[None, :] <= offs_m[:, None])
    p = tl.where(seen, tl.exp2(exponent * LOG2_E), 0.0)
    dp = tl.dot(grad, v.T, input_precision=PRECISION)
    ds = tl.where(seen, p * (dp - delta[:, None]), 0.0)
    return p, ds


@triton.jit
def _finite(tile):
    """A logit of -inf has weight 0 and moves nothing, but 0 times the infinity that made it would be NaN."""
    return tl.where(tl.abs(tile.to(tl.float32)) == float("inf"), 0.0, tile).to(tile.dtype)


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, is_causal, scale, tf32) -> dict[str, Plan]:
    """The launches by name: ``"delta"``, ``"key_value"`` and ``"query"``.

    `shapes` and `strides` are those of query, key, value and the gradient of the result, in 4-D.
    """
    (batch, heads, rows, channels), (_, kv_heads, keys, _), (_, _, _, value_channels), _ = shapes
    block_e, block_ev = (max(16, next_power_of_2(n)) for n in (channels, value_channels))
    block_m, block_n, options, shared = _tiles(rows, keys, block_e, block_ev, dtype, limits, tf32)
    # A tile that reaches past the end computes offsets, masked off, up to a tile further.
    slack = zip(
        shapes, strides, (block_m, block_n, block_n, block_m), (block_e, block_e, block_ev, block_ev), strict=True
    )
    reach = [((*shape[:2], shape[2] + r, c), stride) for shape, stride, r, c in slack]
    most = max(block_e, block_ev)
    results = (batch, heads, rows + block_m, most), (batch, kv_heads, keys + block_n, most)
    index = _triton.INDEX[index_bits(*reach, *((shape, contiguous_strides(shape)) for shape in results))]
    bits = index.primitive_bitwidth
    largest = torch.finfo(torch.float32).max
    zero = abs(scale) < torch.finfo(torch.float32).tiny
    constants = {
        "ZERO_SCALE": zero, "CAUSAL": is_causal, "PADDED_E": block_e != channels, "PADDED_EV": block_ev != value_channels,
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_E": block_e, "BLOCK_EV": block_ev,
        "PRECISION": "tf32" if tf32 else "ieee", "INDEX": index,
    }  # fmt: skip
    scalars = (heads, heads // kv_heads, rows, keys, channels, value_channels)
    scalars = (*scalars, *(step for stride in strides for step in stride), max(-largest, min(float(scale), largest)))
    delta_m = min(next_power_of_2(rows), 4096 // block_ev if not limits.interpreted else 1024)
    return {
        "delta": Plan(
            grid_of(batch, heads, cdiv(rows, delta_m)), (heads, rows, value_channels, *strides[3]),
            {"BLOCK_M": delta_m, "BLOCK_EV": block_ev, "INDEX": index}, {"num_warps": 4}, bits,
        ),
        "key_value": Plan(grid_of(batch, kv_heads, cdiv(keys, block_n)), scalars, constants, options, bits, shared),
        "query": Plan(grid_of(batch, heads, cdiv(rows, block_m)), scalars, constants, options, bits, shared),
    }  # fmt: skip


# Channels (64 or fewer, 128, 256) -> BLOCK_M, BLOCK_N, warps, stages. On Hopper and the B200 tiles have 32 rows: larger
# ones would take the wide matrix instruction, which Triton 3.6 gets wrong where an operand comes from registers (see the
# forward plan), and here the weights always do.
_HALF = {64: (64, 64, 4, 2), 128: (32, 64, 4, 2), 256: (32, 32, 4, 1)}
_HOPPER = {64: (32, 32, 4, 2), 128: (32, 32, 4, 2), 256: (32, 32, 8, 1)}
_TF32 = {64: (32, 32, 4, 2), 128: (32, 32, 4, 1), 256: (16, 32, 8, 1)}
_NO_TENSOR_CORES = {64: (32, 32, 8, 1), 128: (32, 16, 8, 1), 256: (16, 16, 8, 1)}
_INTERPRETED = dict.fromkeys((64, 128, 256), (128, 128, 4, 1))
_SMALLER = ((32, 32, 4, 1), (16, 16, 4, 1))


def _tiles(rows, keys, block_e, block_ev, dtype, limits, tf32) -> tuple[int, int, dict, int]:
    """BLOCK_M, BLOCK_N, the compiler's hints, and the bytes of shared memory they need."""
    tensor_cores = _tensor_cores(dtype, limits, tf32)
    if limits.interpreted:
        table = _INTERPRETED
    elif not tensor_cores:
        table = _NO_TENSOR_CORES
    elif _hopper(limits):
        table = _HOPPER
    else:
        table = _TF32 if dtype.itemsize == 4 else _HALF
    for most_m, most_n, num_warps, num_stages in (table[max(64, block_e, block_ev)], *_SMALLER):
        block_m = min(most_m, max(16, next_power_of_2(rows)))
        block_n = min(most_n, max(16, next_power_of_2(keys)))
        # The walked pair of tiles once a stage, the owned pair, and the weights on their way to a product.
        shared = (num_stages * max(block_m, block_n) + min(block_m, block_n)) * (block_e + block_ev)
        if tensor_cores:
            shared = (shared + block_m * block_n) * dtype.itemsize + 1024
        else:  # everything there is float32, and the weights take the place of what has been read
            shared *= 4
        if shared <= limits.shared_memory or limits.interpreted:
            return block_m, block_n, {"num_warps": num_warps, "num_stages": num_stages}, shared
    raise CannotServe(
        f"needs {shared:,} bytes of shared memory for the gradients' smallest tiles of {block_e} and {block_ev} channels, "
        f"and a block has {limits.shared_memory:,} on this device (use backend='torch')"
    )


def launch(grad, grad_lse, query, key, value, out, lse, is_causal, scale, needs):
    """dquery, dkey and dvalue, contiguous; ``None`` where `needs` does not ask for it."""
    return gradients(_launch, grad, grad_lse, query, key, value, out, lse, is_causal, scale, needs)


def _launch(arrays, grad_lse, delta, results, is_causal, scale):
    query, key, value, grad, out, lse = arrays
    dq, dk, dv = results
    tf32 = query.dtype is torch.float32 and arguments.tf32_allowed()
    inputs = (query, key, value, grad)
    plans = plan(
        tuple(a.shape for a in inputs), tuple(a.stride() for a in inputs), query.dtype, limits_of(query.device),
        is_causal, scale, tf32,
    )  # fmt: skip
    _triton.launch(delta_kernel, plans["delta"], out, grad, delta)
    if grad_lse is not None:
        delta.sub_(grad_lse)
    if dk is not None:
        _triton.launch(key_value_kernel, plans["key_value"], *inputs, lse, delta, dk, dv)
    if dq is not None:
        _triton.launch(query_kernel, plans["query"], *inputs, lse, delta, dq)
