"""The gradients of attention in cuTile, without the L x S matrix in memory.

With P = softmax(scale * query @ key.mT) and dP = grad @ value.mT, and row by row delta = sum(grad * out):
dS = P * (dP - delta), dvalue = P.mT @ grad, dkey = scale * dS.mT @ query, dquery = scale * dS @ key.
P is computed again, tile by tile, from the log-sum-exp that the forward pass kept: P = exp(logits - lse).

Shapes: as in the forward kernel; grad is of out's shape and any strides; lse and delta are (B, H, L, 1) in float32.
Work: B * H * L * S * 2 (3 E + 2 Ev) FLOPs once, and (2 E + Ev) more, because two kernels compute dS each for
itself: sums of one block go nowhere else, so no atomics are needed and the result is the same each time.
One block of the first kernel takes TILE_M rows of delta. One of the second owns TILE_N keys and walks the queries
that see them, of all heads that share these keys. One of the third owns TILE_M queries and walks the keys they see.
"""

import math
from functools import lru_cache

import cuda.tile as ct
import torch

from tilekit import arguments
from tilekit.kernels import _cutile
from tilekit.kernels.flash_attention.cutile_kernel import INF, ZERO, product
from tilekit.kernels.flash_attention.layout import gradients
from tilekit.plans import (
    GRID_MAX_CUTILE,
    CannotServe,
    Plan,
    cdiv,
    contiguous_strides,
    grid_of,
    index_bits,
    limits_of,
    next_power_of_2,
)

LOG2_E = math.log2(math.e)


@ct.kernel
def delta_kernel(out, grad, delta, TILE_M: ct.Constant[int], TILE_EV: ct.Constant[int]):
    tiles = ct.cdiv(out.shape[2], TILE_M)
    head, tile_m = ct.bid(0) // tiles, ct.bid(0) % tiles
    index = (head // out.shape[1], head % out.shape[1], tile_m, 0)
    out_tile = ct.load(out, index, (1, 1, TILE_M, TILE_EV), padding_mode=ZERO).astype(ct.float32)
    grad_tile = ct.load(grad, index, (1, 1, TILE_M, TILE_EV), padding_mode=ZERO).astype(ct.float32)
    ct.store(delta, index, ct.sum(out_tile * grad_tile, 3, keepdims=True))


@ct.kernel
def key_value_kernel(
    query, key, value, grad, lse, delta, dkey, dvalue, scale,
    ZERO_SCALE: ct.Constant[bool], CAUSAL: ct.Constant[bool],
    TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], TILE_E: ct.Constant[int], TILE_EV: ct.Constant[int],
    TF32: ct.Constant[bool],
):  # fmt: skip
    # The first keys come first: under a causal mask the most queries see them.
    heads, kv_heads, L = query.shape[1], key.shape[1], query.shape[2]
    all_heads = key.shape[0] * kv_heads
    tile_n, kv_head = ct.bid(0) // all_heads, ct.bid(0) % all_heads
    b, kv_h, group = kv_head // kv_heads, kv_head % kv_heads, heads // kv_heads
    k = ct.load(key, (b, kv_h, tile_n, 0), (1, 1, TILE_N, TILE_E), padding_mode=ZERO).reshape((TILE_N, TILE_E))
    v = ct.load(value, (b, kv_h, tile_n, 0), (1, 1, TILE_N, TILE_EV), padding_mode=ZERO).reshape((TILE_N, TILE_EV))
    dk = ct.zeros((TILE_N, TILE_E), ct.float32)
    dv = ct.zeros((TILE_N, TILE_EV), ct.float32)
    first = 0
    if CAUSAL:  # query i sees the keys 0 to i, so those before this block's first key see none of it
        first = tile_n * TILE_N // TILE_M
    for member in range(group):
        h = kv_h * group + member
        for tile_m in range(first, ct.cdiv(L, TILE_M)):
            q = ct.load(query, (b, h, tile_m, 0), (1, 1, TILE_M, TILE_E), padding_mode=ZERO).reshape((TILE_M, TILE_E))
            g = ct.load(grad, (b, h, tile_m, 0), (1, 1, TILE_M, TILE_EV), padding_mode=ZERO).reshape((TILE_M, TILE_EV))
            p, ds = weights(
                q, k, v, g, lse, delta, b, h, tile_m, tile_n, L, key.shape[2], scale,
                ZERO_SCALE, CAUSAL, TILE_M, TILE_N, TF32,
            )  # fmt: skip
            dv = product(p.astype(grad.dtype).transpose(), g, dv, TF32)
            dk = product(ds.astype(query.dtype).transpose(), finite(q), dk, TF32)
    dk = (dk * scale).astype(dkey.dtype).reshape((1, 1, TILE_N, TILE_E))
    ct.store(dkey, (b, kv_h, tile_n, 0), dk)
    ct.store(dvalue, (b, kv_h, tile_n, 0), dv.astype(dvalue.dtype).reshape((1, 1, TILE_N, TILE_EV)))


@ct.kernel
def query_kernel(
    query, key, value, grad, lse, delta, dquery, scale,
    ZERO_SCALE: ct.Constant[bool], CAUSAL: ct.Constant[bool],
    TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], TILE_E: ct.Constant[int], TILE_EV: ct.Constant[int],
    TF32: ct.Constant[bool],
):  # fmt: skip
    # The last queries come first: under a causal mask they see the most keys.
    heads, L, S = query.shape[1], query.shape[2], key.shape[2]
    all_heads = query.shape[0] * heads
    head, tile_m = ct.bid(0) % all_heads, ct.cdiv(L, TILE_M) - 1 - ct.bid(0) // all_heads
    b, h = head // heads, head % heads
    kv_h = h // (heads // key.shape[1])
    q = ct.load(query, (b, h, tile_m, 0), (1, 1, TILE_M, TILE_E), padding_mode=ZERO).reshape((TILE_M, TILE_E))
    g = ct.load(grad, (b, h, tile_m, 0), (1, 1, TILE_M, TILE_EV), padding_mode=ZERO).reshape((TILE_M, TILE_EV))
    dq = ct.zeros((TILE_M, TILE_E), ct.float32)
    end = ct.cdiv(S, TILE_N)
    if CAUSAL:
        end = ct.minimum(end, ct.cdiv((tile_m + 1) * TILE_M, TILE_N))
    for tile_n in range(end):
        k = ct.load(key, (b, kv_h, tile_n, 0), (1, 1, TILE_N, TILE_E), padding_mode=ZERO).reshape((TILE_N, TILE_E))
        v = ct.load(value, (b, kv_h, tile_n, 0), (1, 1, TILE_N, TILE_EV), padding_mode=ZERO).reshape((TILE_N, TILE_EV))
        _, ds = weights(
            q, k, v, g, lse, delta, b, h, tile_m, tile_n, L, S, scale, ZERO_SCALE, CAUSAL, TILE_M, TILE_N, TF32
        )
        dq = product(ds.astype(key.dtype), finite(k), dq, TF32)
    ct.store(dquery, (b, h, tile_m, 0), (dq * scale).astype(dquery.dtype).reshape((1, 1, TILE_M, TILE_E)))


def weights(
    q, k, v, g, lse, delta, b, h, tile_m, tile_n, L, S, scale, ZERO_SCALE, CAUSAL, TILE_M, TILE_N, TF32
):  # fmt: skip
    """P and dS of one tile of logits; zero where the mask hides them."""
    row_lse = ct.load(lse, (b, h, tile_m, 0), (1, 1, TILE_M, 1), padding_mode=ZERO).reshape((TILE_M, 1))
    row_delta = ct.load(delta, (b, h, tile_m, 0), (1, 1, TILE_M, 1), padding_mode=ZERO).reshape((TILE_M, 1))
    if ZERO_SCALE:  # as in the forward pass: a product that overflows is no logit of NaN then
        q = (q.astype(ct.float32) * 0.0).astype(q.dtype)
    logits = product(q, k.transpose(), ct.zeros((TILE_M, TILE_N), ct.float32), TF32) * scale
    # Where a row saw no key (lse = -inf), +inf makes all weights zero. No weight is larger than 1; at large logits
    # the rounding of lse could make one overflow.
    exponent = logits - ct.where(row_lse == -INF, INF, row_lse)
    exponent = ct.where(exponent > 0.0, 0.0, exponent)
    offs_m = tile_m * TILE_M + ct.arange(TILE_M, dtype=ct.int32)[:, None]
    offs_n = tile_n * TILE_N + ct.arange(TILE_N, dtype=ct.int32)[None, :]
    seen = (offs_m < L) & (offs_n < S)
    if CAUSAL:
        seen = seen & (offs_n <= offs_m)
    p = ct.where(seen, ct.exp2(exponent * LOG2_E, flush_to_zero=True), 0.0)
    dp = product(g, v.transpose(), ct.zeros((TILE_M, TILE_N), ct.float32), TF32)
    return p, ct.where(seen, p * (dp - row_delta), 0.0)


def finite(tile):
    """A logit of -inf has weight 0 and moves nothing, but 0 times the infinity that made it would be NaN."""
    wide = tile.astype(ct.float32)
    return ct.where((wide == INF) | (wide == -INF), 0.0, wide).astype(tile.dtype)


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, is_causal, scale, tf32) -> dict[str, Plan]:
    """The launches by name: ``"delta"``, ``"key_value"`` and ``"query"``.

    `shapes` and `strides` are those of query, key, value and the gradient of the result, in 4-D.
    """
    (batch, heads, rows, channels), (_, kv_heads, keys, _), (_, _, _, value_channels), _ = shapes
    tile_e, tile_ev = (max(16, next_power_of_2(n)) for n in (channels, value_channels))
    tile_m, tile_n, hints, shared = _tiles(rows, keys, tile_e, tile_ev, dtype, limits, tf32)
    # A tile may reach past the end by as much as its own size.
    slack = zip(shapes, strides, (tile_m, tile_n, tile_n, tile_m), (tile_e, tile_e, tile_ev, tile_ev), strict=True)
    reach = [((*shape[:2], shape[2] + r, c), stride) for shape, stride, r, c in slack]
    most = max(tile_e, tile_ev)
    results = (batch, heads, rows + tile_m, most), (batch, kv_heads, keys + tile_n, most)
    bits = index_bits(*reach, *((shape, contiguous_strides(shape)) for shape in results))
    largest = torch.finfo(torch.float32).max
    constants = {
        "ZERO_SCALE": abs(scale) < torch.finfo(torch.float32).tiny, "CAUSAL": is_causal,
        "TILE_M": tile_m, "TILE_N": tile_n, "TILE_E": tile_e, "TILE_EV": tile_ev, "TF32": tf32,
    }  # fmt: skip
    scalars = (max(-largest, min(float(scale), largest)),)
    delta_m = min(next_power_of_2(rows), 4096 // tile_ev)
    delta = {"TILE_M": delta_m, "TILE_EV": tile_ev}

    def grid(heads, tiles):
        return grid_of(batch, heads, tiles, most=GRID_MAX_CUTILE)

    return {
        "delta": Plan(grid(heads, cdiv(rows, delta_m)), (), delta, index_bits=bits),
        "key_value": Plan(grid(kv_heads, cdiv(keys, tile_n)), scalars, constants, hints, bits, shared),
        "query": Plan(grid(heads, cdiv(rows, tile_m)), scalars, constants, hints, bits, shared),
    }


# Channels (64 or fewer, 128, 256) -> TILE_M, TILE_N, hints. What a tile is limited by are registers: the two sums and the
# two tiles of weights.
_HALF = {64: (64, 64, {}), 128: (32, 64, {}), 256: (32, 32, {})}
_TF32 = {64: (32, 32, {}), 128: (32, 32, {}), 256: (16, 16, {})}
_NO_TENSOR_CORES = {64: (32, 16, {}), 128: (16, 16, {}), 256: (16, 16, {})}
_SMALLER = ((32, 32, {}), (16, 16, {}))


def _tiles(rows, keys, tile_e, tile_ev, dtype, limits, tf32) -> tuple[int, int, dict, int]:
    """TILE_M, TILE_N, hints, and the bytes of shared memory that one tile of each array takes."""
    table = _HALF if dtype.itemsize == 2 else _TF32 if tf32 else _NO_TENSOR_CORES
    for most_m, most_n, hints in (table[max(64, tile_e, tile_ev)], *_SMALLER):
        tile_m = min(most_m, max(16, next_power_of_2(rows)))
        tile_n = min(most_n, max(16, next_power_of_2(keys)))
        shared = (tile_m + tile_n) * (tile_e + tile_ev) * dtype.itemsize + 1024
        if shared <= limits.shared_memory:
            return tile_m, tile_n, hints, shared
    raise CannotServe(
        f"needs {shared:,} bytes of shared memory for the gradients' smallest tiles of {tile_e} and {tile_ev} channels, "
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
    _cutile.launch(delta_kernel, plans["delta"], out, grad, delta)
    if grad_lse is not None:
        delta.sub_(grad_lse)
    if dk is not None:
        _cutile.launch(key_value_kernel, plans["key_value"], *inputs, lse, delta, dk, dv)
    if dq is not None:
        _cutile.launch(query_kernel, plans["query"], *inputs, lse, delta, dq)
