"""Attention in cuTile: out = softmax(scale * query @ key.mT) @ value, without the L x S matrix in memory.

Shapes: query (B, H, L, E), key (B, H', S, E), value (B, H', S, Ev) of any strides, H a multiple of H'; out
(B, H, L, Ev) of their dtype (float16, bfloat16, float32), lse (B, H, L, 1) in float32.
Work: moves each array once at least, B * H * L * S * 2 (E + Ev) FLOPs, half of it for L = S if causal: at 4096 keys
some 2000 FLOPs a byte, so the tensor cores are the limit.
One block owns TILE_M rows of query of one head. It walks the keys in tiles of TILE_N and keeps, for each row, the
largest logit so far (m_i), the sum of exponentials relative to it (l_i) and the weighted sum of values (acc). When a
tile brings a larger logit, what was summed so far shrinks by exp(old - new).
"""

import math
from functools import lru_cache

import cuda.tile as ct
import torch

from tilekit import arguments
from tilekit.kernels import _cutile
from tilekit.kernels.flash_attention.layout import batches
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

INF = float("inf")
LN_2 = math.log(2.0)
ZERO = ct.PaddingMode.ZERO


@ct.kernel
def flash_attention_kernel(
    query, key, value, out, lse, scale_log2,
    SIGN: ct.Constant[int], CAUSAL: ct.Constant[bool],
    TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], TILE_E: ct.Constant[int], TILE_EV: ct.Constant[int],
    HEADS_TOGETHER: ct.Constant[int], LATENCY: ct.Constant[int], TF32: ct.Constant[bool],
):  # fmt: skip
    heads, S = query.shape[1], key.shape[2]
    head, tile_m = place(ct.num_blocks(0), ct.cdiv(query.shape[2], TILE_M), HEADS_TOGETHER)
    b, h = head // heads, head % heads
    kv_h = h // (heads // key.shape[1])
    start_m = tile_m * TILE_M
    offs_m = start_m + ct.arange(TILE_M, dtype=ct.int32)[:, None]
    q = ct.load(query, (b, h, tile_m, 0), (1, 1, TILE_M, TILE_E), padding_mode=ZERO).reshape((TILE_M, TILE_E))
    if SIGN != 1:
        q = (q.astype(ct.float32) * SIGN).astype(query.dtype)
    acc = ct.zeros((TILE_M, TILE_EV), ct.float32)
    l_i = ct.zeros((TILE_M, 1), ct.float32)
    m_i = ct.full((TILE_M, 1), -INF, ct.float32)

    # All rows of this block see all keys of the tiles before `full`, and no row sees a key from tile `end` on. So
    # only the second walk, over one or two tiles, has to mask.
    full, end = S // TILE_N, ct.cdiv(S, TILE_N)
    if CAUSAL:
        full = ct.minimum(full, (start_m + 1) // TILE_N)
        end = ct.minimum(end, ct.cdiv(start_m + TILE_M, TILE_N))
    acc, l_i, m_i = walk(
        acc, l_i, m_i, q, 0, full, offs_m, key, value, b, kv_h, scale_log2,
        False, CAUSAL, TILE_N, TILE_E, TILE_EV, LATENCY, TF32,
    )  # fmt: skip
    acc, l_i, m_i = walk(
        acc, l_i, m_i, q, full, end, offs_m, key, value, b, kv_h, scale_log2,
        True, CAUSAL, TILE_N, TILE_E, TILE_EV, LATENCY, TF32,
    )  # fmt: skip

    # A row that saw no key has l_i = 0, acc = 0 and m_i = -inf.
    out_tile = ct.truediv(acc, ct.where(l_i == 0.0, 1.0, l_i), flush_to_zero=True, rounding_mode=ct.RoundingMode.APPROX)
    lse_tile = (m_i * scale_log2 + ct.log2(l_i)) * LN_2
    ct.store(lse, (b, h, tile_m, 0), lse_tile.reshape((1, 1, TILE_M, 1)))
    ct.store(out, (b, h, tile_m, 0), out_tile.astype(out.dtype).reshape((1, 1, TILE_M, TILE_EV)))


def walk(
    acc, l_i, m_i, q, first, end, offs_m, key, value, b, h, scale_log2,
    MASKED, CAUSAL, TILE_N, TILE_E, TILE_EV, LATENCY, TF32,
):  # fmt: skip
    """Add the tiles of keys from `first` to `end` to what each row of the block has summed so far."""
    for tile_n in range(first, end):
        # The key's tile is loaded transposed: its last two dimensions change places.
        k = ct.load(
            key, (b, h, 0, tile_n), (1, 1, TILE_E, TILE_N), order=(0, 1, 3, 2), padding_mode=ZERO, latency=LATENCY
        )
        logits = product(q, k.reshape((TILE_E, TILE_N)), ct.zeros((q.shape[0], TILE_N), ct.float32), TF32)
        if MASKED:
            offs_n = tile_n * TILE_N + ct.arange(TILE_N, dtype=ct.int32)[None, :]
            seen = offs_n < key.shape[2]
            if CAUSAL:
                seen = seen & (offs_n <= offs_m)
            logits = ct.where(seen, logits, -INF)
        m_new = ct.maximum(m_i, ct.max(logits, 1, keepdims=True))
        # While a row has seen nothing but -inf, any finite number will do: exp2 gives 0 instead of NaN.
        m_safe = ct.where(m_new == -INF, 0.0, m_new)
        # Subtracted before it is scaled: however large the logits are, the largest one gives exactly 1.
        p = ct.exp2((logits - m_safe) * scale_log2, flush_to_zero=True)
        alpha = ct.exp2((m_i - m_safe) * scale_log2, flush_to_zero=True)
        l_i = l_i * alpha + ct.sum(p, 1, keepdims=True)
        m_i = m_new
        v = ct.load(value, (b, h, tile_n, 0), (1, 1, TILE_N, TILE_EV), padding_mode=ZERO, latency=LATENCY)
        acc = product(p.astype(value.dtype), v.reshape((TILE_N, TILE_EV)), acc * alpha, TF32)
    return acc, l_i, m_i


def product(x, y, acc, TF32):
    if TF32:
        x, y = x.astype(ct.tfloat32), y.astype(ct.tfloat32)
    return ct.mma(x, y, acc)


def place(blocks, tiles, HEADS_TOGETHER):
    """Which head and which tile of rows this block works on.

    The last rows come first: under a causal mask they see the most keys, and a long block that starts late keeps
    all others waiting. A few heads take turns, so that short blocks remain for the end, while their keys and
    values still fit in the L2 cache.
    """
    first = ct.bid(0) // (HEADS_TOGETHER * tiles) * HEADS_TOGETHER
    together = ct.minimum(HEADS_TOGETHER, blocks // tiles - first)
    within = ct.bid(0) % (HEADS_TOGETHER * tiles)
    return first + within % together, tiles - 1 - within // together


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, is_causal, scale, tf32) -> Plan:
    """Tiles and grid for ``flash_attention``; `shapes` and `strides` are those of query, key and value in 4-D."""
    (batch, heads, rows, channels), (_, _, keys, _), (_, _, _, value_channels) = shapes
    if max(channels, value_channels) > 256:
        raise CannotServe(
            f"serves at most 256 channels; got {channels} in query and {value_channels} in value (use backend='torch')"
        )
    tile_e, tile_ev = (max(16, next_power_of_2(n)) for n in (channels, value_channels))
    tile_m, tile_n, latency, hints, shared = _tiles(rows, keys, tile_e, tile_ev, dtype, limits, tf32)
    grid = grid_of(batch, heads, cdiv(rows, tile_m), most=GRID_MAX_CUTILE)
    # A tile may reach past the end by as much as its own size.
    layouts = zip(shapes, strides, (tile_m, tile_n, tile_n), (tile_e, tile_e, tile_ev), strict=True)
    reach = [((*shape[:2], shape[2] + r, c), stride) for shape, stride, r, c in layouts]
    out = (batch, heads, rows + tile_m, tile_ev)
    bits = index_bits(*reach, (out, contiguous_strides(out)))
    # The largest product is the largest logit only if the scale is positive, so the sign goes to the query.
    sign = 0 if abs(scale) < torch.finfo(torch.float32).tiny else int(math.copysign(1, scale))
    scale_log2 = min(abs(scale) * math.log2(math.e), torch.finfo(torch.float32).max) if sign else 1.0
    constants = {
        "SIGN": sign, "CAUSAL": is_causal, "TILE_M": tile_m, "TILE_N": tile_n, "TILE_E": tile_e, "TILE_EV": tile_ev,
        "HEADS_TOGETHER": 16 if is_causal else 1, "LATENCY": latency, "TF32": tf32,
    }  # fmt: skip
    return Plan(grid, (scale_log2,), constants, hints, bits, shared)


# Channels (64 or fewer, 128, 256) -> TILE_M, TILE_N, latency of the loads of keys and values (1 to 10: how far
# ahead), hints. The compiler chooses warps and stages; what a tile is limited by are registers, of which the interpreter
# has any number.
_HOPPER_HALF = {
    64: (128, 128, 2, {"num_worker_warps": 8}),
    128: (128, 128, 2, {"num_worker_warps": 8}),
    256: (128, 64, 2, {"num_worker_warps": 8}),
}
_HALF = {
    64: (128, 64, 2, {}),
    128: (128, 64, 2, {"num_worker_warps": 8}),
    256: (64, 32, 2, {"num_worker_warps": 8}),
}
_TF32 = {64: (64, 64, 2, {}), 128: (64, 32, 2, {}), 256: (32, 32, 2, {})}
_NO_TENSOR_CORES = {
    64: (32, 16, 1, {"occupancy": 2}),
    128: (16, 16, 1, {"num_worker_warps": 8}),
    256: (16, 16, 1, {"num_worker_warps": 8}),
}
_SMALLER = ((64, 32, 1, {}), (32, 32, 1, {}), (16, 16, 1, {}))


def _tiles(rows, keys, tile_e, tile_ev, dtype, limits, tf32) -> tuple[int, int, int, dict, int]:
    """TILE_M, TILE_N, latency, hints, and the bytes of shared memory that one tile of each array takes."""
    if dtype.itemsize == 2:
        table = _HOPPER_HALF if limits.compute_capability in ((9, 0), (10, 0), (10, 3)) else _HALF
    else:
        table = _TF32 if tf32 or limits.interpreted else _NO_TENSOR_CORES
    for most_m, most_n, latency, hints in (table[max(64, tile_e, tile_ev)], *_SMALLER):
        tile_m = min(most_m, max(16, next_power_of_2(rows)))
        tile_n = min(most_n, max(16, next_power_of_2(keys)))
        shared = (tile_m * tile_e + tile_n * (tile_e + tile_ev)) * dtype.itemsize + 1024
        if shared <= limits.shared_memory:
            # The hint is for the largest tiles: eight warps have nothing to share in a small one.
            return tile_m, tile_n, latency, hints if tile_m == most_m else {}, shared
    raise CannotServe(
        f"needs {shared:,} bytes of shared memory for its smallest tiles of {tile_e} and {tile_ev} channels, "
        f"and a block has {limits.shared_memory:,} on this device (use backend='torch')"
    )


def launch(query, key, value, is_causal, scale, return_lse):
    if 0 in (query.shape[-1], value.shape[-1]):
        # A tile of nothing cannot be loaded, and a channel of zeros changes no logit.
        padded = (a if a.shape[-1] else a.new_zeros((*a.shape[:-1], 1)) for a in (query, key, value))
        out, lse = launch(*padded, is_causal, scale, True)
        out = out[..., : value.shape[-1]]
        return (out, lse) if return_lse else out
    out = torch.empty((*query.shape[:-1], value.shape[-1]), dtype=query.dtype, device=query.device)
    lse = torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device)
    if key.shape[-2] == 0:
        out.zero_()
        lse.fill_(-INF)
    elif out.numel():
        tf32 = query.dtype is torch.float32 and arguments.tf32_allowed()
        limits = limits_of(query.device)
        for q, k, v, o, s in batches(query, key, value, out, lse[..., None]):
            shapes, strides = (q.shape, k.shape, v.shape), (q.stride(), k.stride(), v.stride())
            p = plan(shapes, strides, q.dtype, limits, is_causal, scale, tf32)
            _cutile.launch(flash_attention_kernel, p, q, k, v, o, s)
    return (out, lse) if return_lse else out
