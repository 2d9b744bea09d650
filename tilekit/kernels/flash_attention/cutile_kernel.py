"""Flash attention in cuTile: out = softmax(scale * query @ key^T) @ value, one pass over the keys.

Shapes: query is (..., L, E), key (..., S, E), value (..., S, Ev), one dtype (float16, bfloat16, float32), any strides;
out is (..., L, Ev), lse (..., L) in float32. E and Ev up to 256, padded to powers of two inside.
Work: 2 L S (E + Ev) FLOPs a head, half of it when causal, on L E + S (E + Ev) + L Ev elements: the matrix of logits
exists one tile at a time and never leaves the multiprocessor.
One block computes TILE_M rows of out, walking along the keys in steps of TILE_N. m_i, l_i and acc are the paper's:
the row's maximum so far (in powers of two), the sum of exponentials, and the weighted sum of values.
Source: T. Dao, "FlashAttention-2", 2023, algorithm 1.
"""

import math
from functools import lru_cache

import cuda.tile as ct
import torch

from tilekit import arguments
from tilekit.kernels import _cutile
from tilekit.kernels.flash_attention.heads import problems
from tilekit.plans import CannotServe, Plan, cdiv, contiguous_strides, index_bits, limits_of, next_power_of_2

INF = math.inf
LN_2 = math.log(2)
ZERO = ct.PaddingMode.ZERO


@ct.kernel
def flash_attention_kernel(
    query, key, value, out, lse, scale, group,
    TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], TILE_E: ct.Constant[int], TILE_EV: ct.Constant[int],
    CAUSAL: ct.Constant[bool], MASKED: ct.Constant[bool], TF32: ct.Constant[bool],
):  # fmt: skip
    tiles_m, heads, S = ct.cdiv(query.shape[2], TILE_M), query.shape[1], key.shape[2]
    # Causal rows further down see more keys; the longest start first, so that none is left alone at the end.
    tile = tiles_m - 1 - ct.bid(0) % tiles_m
    batch, head = ct.bid(0) // tiles_m // heads, ct.bid(0) // tiles_m % heads
    rows = tile * TILE_M + ct.arange(TILE_M, dtype=ct.int32)[:, None]
    q_tile = ct.load(query, (batch, head, tile, 0), (1, 1, TILE_M, TILE_E), padding_mode=ZERO)
    q_tile = q_tile.reshape((TILE_M, TILE_E))
    m_i = ct.full((TILE_M, 1), -INF, ct.float32)
    l_i = ct.zeros((TILE_M, 1), ct.float32)
    acc = ct.zeros((TILE_M, TILE_EV), ct.float32)
    # Tiles of keys before `whole` are seen by every row of this tile; from there to `end` some are masked.
    whole, end = S // TILE_N, ct.cdiv(S, TILE_N)
    if CAUSAL:
        whole, end = ct.minimum(whole, tile * TILE_M // TILE_N), ct.minimum(end, ct.cdiv((tile + 1) * TILE_M, TILE_N))
    for j in range(end):
        # `order` swaps the last two axes: the tile comes transposed, at no cost.
        k_index = (batch, head // group, 0, j)
        k_tile = ct.load(key, k_index, (1, 1, TILE_E, TILE_N), order=(0, 1, 3, 2), padding_mode=ZERO, latency=2)
        logits = product(q_tile, k_tile.reshape((TILE_E, TILE_N)), ct.zeros((TILE_M, TILE_N), ct.float32), TF32)
        logits = logits * scale
        if MASKED:
            if j >= whole:
                keys = j * TILE_N + ct.arange(TILE_N, dtype=ct.int32)[None, :]
                seen = keys < S
                if CAUSAL:
                    seen = seen & (rows >= keys)
                logits = ct.where(seen, logits, -INF)
        m_new = ct.maximum(m_i, ct.max(logits, 1, keepdims=True))
        # Where a row has seen nothing but -inf, (-inf) - (-inf) would be NaN; subtract 0 instead.
        m_safe = ct.where(m_new == -INF, 0.0, m_new)
        p = ct.exp2(logits - m_safe, flush_to_zero=True)
        alpha = ct.exp2(m_i - m_safe, flush_to_zero=True)  # what was summed so far is relative to the old maximum
        l_i = l_i * alpha + ct.sum(p, 1, keepdims=True)
        v_index = (batch, head // group, j, 0)
        v_tile = ct.load(value, v_index, (1, 1, TILE_N, TILE_EV), padding_mode=ZERO, latency=4)
        acc = product(p.astype(value.dtype), v_tile.reshape((TILE_N, TILE_EV)), acc * alpha, TF32)
        m_i = m_new
    o_tile = acc / ct.where(l_i == 0.0, 1.0, l_i)  # a row that saw no key stays zero
    ct.store(out, (batch, head, tile, 0), o_tile.astype(out.dtype).reshape((1, 1, TILE_M, TILE_EV)))
    lse_tile = (m_i + ct.log2(l_i)) * LN_2  # back from powers of two
    ct.store(lse, (batch, head, tile), lse_tile.reshape((1, 1, TILE_M)))


def product(x, y, acc, TF32):
    """x @ y + acc; a float32 product is IEEE unless its operands say TF32."""
    if TF32:
        return ct.mma(x.astype(ct.tfloat32), y.astype(ct.tfloat32), acc)
    return ct.mma(x, y, acc)


# (TILE_M, TILE_N, hints), largest first; the first that fits is taken. Timed on an H200, where 128 x 128 runs 2.4
# times slower without its hint.
_HALF_TILES = ((128, 128, {"num_worker_warps": 8}), (64, 64, {"occupancy": 2}), (64, 32, {}), (32, 32, {}), (16, 16, {}))
_SINGLE_TILES = ((32, 32, {}), (16, 32, {}), (16, 16, {}))


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, is_causal=False, scale=1.0, tf32=False) -> Plan:
    """Tiles and grid; `shapes` and `strides` are those of query, key and value with (batch, heads) in front."""
    (batch, heads, L, E), (_, kv_heads, S, _), (*_, Ev) = shapes
    if max(E, Ev) > 256:
        raise CannotServe(f"serves E and Ev up to 256; got E = {E} and Ev = {Ev} (backend='torch' serves any)")
    tile_e, tile_ev = (max(16, next_power_of_2(size)) for size in (E, Ev))
    tile_m, tile_n, hints = _tiles(tile_e, tile_ev, dtype, limits)
    out = (batch, heads, L, Ev)
    views = (*zip(shapes, strides, strict=True), (out, contiguous_strides(out)), (out[:3], contiguous_strides(out[:3])))
    reach = [tuple(size + max(tile_m, tile_n) for size in shape) for shape, _ in views]
    bits = index_bits(*((size, layout) for size, (_, layout) in zip(reach, views, strict=True)))
    masked = is_causal or S % tile_n != 0
    constants = {
        "TILE_M": tile_m, "TILE_N": tile_n, "TILE_E": tile_e, "TILE_EV": tile_ev,
        "CAUSAL": is_causal, "MASKED": masked, "TF32": tf32,
    }  # fmt: skip
    # exp2 is what the hardware has, so the logits are scaled into powers of two.
    scalars = (scale * math.log2(math.e), heads // kv_heads)
    shared = _shared(tile_m, tile_n, tile_e, tile_ev, dtype)
    return Plan((cdiv(L, tile_m) * batch * heads,), scalars, constants, hints, bits, shared)


def _tiles(tile_e, tile_ev, dtype, limits):
    for tile_m, tile_n, hints in _SINGLE_TILES if dtype is torch.float32 else _HALF_TILES:
        # Wide heads leave no registers for tall tiles.
        if tile_m > 64 and max(tile_e, tile_ev) > 128:
            continue
        if _shared(tile_m, tile_n, tile_e, tile_ev, dtype) <= limits.shared_memory:
            return tile_m, tile_n, hints
    raise CannotServe(
        f"finds no tile for E = {tile_e} and Ev = {tile_ev} in {str(dtype).removeprefix('torch.')} that fits into "
        f"{limits.shared_memory:,} bytes of shared memory"
    )


def _shared(tile_m, tile_n, tile_e, tile_ev, dtype):
    """Bytes of shared memory: the query's tile and two pairs of key and value tiles in flight."""
    return (tile_m * tile_e + 2 * tile_n * (tile_e + tile_ev)) * dtype.itemsize


def launch(query, key, value, is_causal, scale, return_lse):
    # The log-sum-exp costs one store a row, so it is written whether or not somebody wants it.
    out = torch.empty((*query.shape[:-1], value.shape[-1]), dtype=query.dtype, device=query.device)
    lse = torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device)
    if out.numel() == 0:
        return out, lse
    if key.shape[-2] == 0:
        return out.zero_(), lse.fill_(-INF)
    tf32 = query.dtype is torch.float32 and arguments.tf32_allowed()
    for arrays in problems(query, key, value, out, lse):
        inputs = arrays[:3]
        shapes, strides = tuple(t.shape for t in inputs), tuple(t.stride() for t in inputs)
        p = plan(shapes, strides, query.dtype, limits_of(query.device), is_causal, scale, tf32)
        _cutile.launch(flash_attention_kernel, p, *arrays)
    return out, lse
