"""Attention in Triton: out = softmax(scale * query @ key.mT) @ value, without the L x S matrix in memory.

Shapes: query (B, H, L, E), key (B, H', S, E), value (B, H', S, Ev) of any strides, H a multiple of H'; out
(B, H, L, Ev) of their dtype (float16, bfloat16, float32), lse (B, H, L) in float32.
Work: moves each array once at least, B * H * L * S * 2 (E + Ev) FLOPs, half of it for L = S if causal: at 4096 keys
some 2000 FLOPs a byte, so the tensor cores are the limit.
One block owns BLOCK_M rows of query of one head. It walks the keys in tiles of BLOCK_N and keeps, for each row, the
largest logit so far (m_i), the sum of exponentials relative to it (l_i) and the weighted sum of values (acc). When a
tile brings a larger logit, what was summed so far shrinks by exp(old - new).
"""

import math
from functools import lru_cache

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tilekit import arguments
from tilekit.kernels import _triton
from tilekit.kernels.flash_attention.layout import batches
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

LN_2: tl.constexpr = tl.constexpr(math.log(2.0))


@triton.jit
def flash_attention_kernel(
    q_array, k_array, v_array, out_ptr, lse_ptr,
    heads, kv_group, L, S, E, Ev,
    q_b, q_h, q_l, q_e,
    k_b, k_h, k_s, k_e,
    v_b, v_h, v_s, v_e,
    scale_log2,
    SIGN: tl.constexpr, CAUSAL: tl.constexpr, PADDED_E: tl.constexpr, PADDED_EV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_EV: tl.constexpr,
    HEADS_TOGETHER: tl.constexpr, PRECISION: tl.constexpr, INDEX: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    head, tile_m = _place(tl.num_programs(0), tl.cdiv(L, BLOCK_M), HEADS_TOGETHER)
    b, h = head // heads, head % heads
    start_m = tile_m * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)
    q = _load(q_array, b, h, start_m, L, E, q_b, q_h, q_l, q_e, BLOCK_M, BLOCK_E, True, PADDED_E, INDEX, TMA)
    if SIGN != 1:
        q = (q * SIGN).to(q.dtype)
    acc = tl.zeros((BLOCK_M, BLOCK_EV), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    m_i = tl.full((BLOCK_M,), float("-inf"), tl.float32)

    # All rows of this block see all keys before `full`, and no row sees a key from `end` on. So only the second
    # walk, over one or two tiles, has to mask.
    full, end = S // BLOCK_N * BLOCK_N, S
    if CAUSAL:
        full = tl.minimum(full, (start_m + 1) // BLOCK_N * BLOCK_N)
        end = tl.minimum(end, start_m + BLOCK_M)
    for MASKED in tl.static_range(2):
        acc, l_i, m_i = _walk(
            acc, l_i, m_i, q, full if MASKED else 0, end if MASKED else full, offs_m,
            k_array, v_array, b, h // kv_group, S, E, Ev, k_b, k_h, k_s, k_e, v_b, v_h, v_s, v_e, scale_log2,
            MASKED, CAUSAL, PADDED_E, PADDED_EV, BLOCK_N, BLOCK_E, BLOCK_EV, PRECISION, INDEX, TMA,
        )  # fmt: skip

    # A row that saw no key has l_i = 0, acc = 0 and m_i = -inf.
    out = acc / tl.where(l_i == 0.0, 1.0, l_i)[:, None]
    lse = (m_i * scale_log2 + tl.log2(l_i)) * LN_2
    row = head.to(INDEX) * L + offs_m
    offs_e = tl.arange(0, BLOCK_EV)
    tl.store(lse_ptr + row, lse, mask=offs_m < L)
    tl.store(out_ptr + row[:, None] * Ev + offs_e, out, mask=(offs_m[:, None] < L) & (offs_e < Ev))


@triton.jit
def _walk(
    acc, l_i, m_i, q, first, end, offs_m,
    k_array, v_array, b, h, S, E, Ev, k_b, k_h, k_s, k_e, v_b, v_h, v_s, v_e, scale_log2,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, PADDED_E: tl.constexpr, PADDED_EV: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_EV: tl.constexpr,
    PRECISION: tl.constexpr, INDEX: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Add the keys from `first` to `end` to what each row of the block has summed so far."""
    for start_n in range(first, end, BLOCK_N):
        k = _load(k_array, b, h, start_n, S, E, k_b, k_h, k_s, k_e, BLOCK_N, BLOCK_E, MASKED, PADDED_E, INDEX, TMA)
        logits = tl.dot(q, k.T, input_precision=PRECISION)
        if MASKED:
            offs_n = start_n + tl.arange(0, BLOCK_N)
            seen = offs_n[None, :] < S
            if CAUSAL:
                seen = seen & (offs_n[None, :] <= offs_m[:, None])
            logits = tl.where(seen, logits, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(logits, 1))
        # While a row has seen nothing but -inf, any finite number will do: exp2 gives 0 instead of NaN.
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        # Subtracted before it is scaled: however large the logits are, the largest one gives exactly 1.
        p = tl.exp2((logits - m_safe[:, None]) * scale_log2)
        alpha = tl.exp2((m_i - m_safe) * scale_log2)
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_new
        v = _load(v_array, b, h, start_n, S, Ev, v_b, v_h, v_s, v_e, BLOCK_N, BLOCK_EV, MASKED, PADDED_EV, INDEX, TMA)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision=PRECISION)
    return acc, l_i, m_i


@triton.jit
def _load(
    array, b, h, start, rows, channels, stride_b, stride_h, stride_r, stride_c,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, MASK_R: tl.constexpr, MASK_C: tl.constexpr,
    INDEX: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """A tile of rows from `start` on, with all channels; zeros where it reaches past either end."""
    if TMA:
        tile = array.load([b, h, start, 0]).reshape(BLOCK_R, BLOCK_C)
    else:
        offs_r, offs_c = tl.arange(0, BLOCK_R)[:, None], tl.arange(0, BLOCK_C)[None, :]
        first = b.to(INDEX) * stride_b + h.to(INDEX) * stride_h + tl.cast(start, INDEX) * stride_r
        ptrs = array + first + (offs_r.to(INDEX) * stride_r + offs_c.to(INDEX) * stride_c)
        mask = offs_c < channels
        if MASK_R:
            mask = mask & (offs_r < rows - start)
        if MASK_R or MASK_C:
            tile = tl.load(ptrs, mask=mask, other=0.0)
        else:
            tile = tl.load(ptrs)
    return tile


@triton.jit
def _place(blocks, tiles, HEADS_TOGETHER: tl.constexpr):
    """Which head and which tile of rows this block works on.

    The last rows come first: under a causal mask they see the most keys, and a long block that starts late keeps
    all others waiting. A few heads take turns, so that short blocks remain for the end, while their keys and
    values still fit in the L2 cache.
    """
    pid = tl.program_id(0)
    first = pid // (HEADS_TOGETHER * tiles) * HEADS_TOGETHER
    together = tl.minimum(HEADS_TOGETHER, blocks // tiles - first)
    within = pid % (HEADS_TOGETHER * tiles)
    return first + within % together, tiles - 1 - within // together


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, is_causal, scale, tf32, aligned) -> Plan:
    """Tiles and grid for ``flash_attention``; `shapes` and `strides` are those of query, key and value in 4-D.

    `aligned` says that all three begin at a multiple of 16 bytes.
    """
    (batch, heads, rows, channels), (_, kv_heads, keys, _), (_, _, _, value_channels) = shapes
    if max(channels, value_channels) > 256:
        raise CannotServe(
            f"serves at most 256 channels; got {channels} in query and {value_channels} in value (use backend='torch')"
        )
    block_e, block_ev = (max(16, next_power_of_2(n)) for n in (channels, value_channels))
    tma = aligned and keys > 0 and channels > 0 and value_channels > 0
    tma = tma and _hopper(limits) and _tensor_cores(dtype, limits, tf32)
    tma = tma and all(_strides_suit_tma(stride, dtype.itemsize) for stride in strides)
    # Triton 3.6 multiplies wrongly on Hopper where a tile of 64 or more rows (one for the wide matrix instruction, wgmma)
    # meets operands that reach shared memory through registers, as unaligned ones do: all rows but the first 16 of
    # 64 were wrong on an H200. Tiles of 32 rows take the older instruction.
    most = 32 if _hopper(limits) and not tma else rows
    tiles = _tiles(min(rows, most), keys, block_e, block_ev, dtype, limits, tf32)
    block_m, block_n, num_warps, num_stages, shared = tiles
    grid = grid_of(batch, heads, cdiv(rows, block_m))
    # A tile that reaches past the end computes offsets, masked off, up to a tile further.
    layouts = zip(shapes, strides, (block_m, block_n, block_n), (block_e, block_e, block_ev), strict=True)
    reach = [((*shape[:2], shape[2] + r, c), stride) for shape, stride, r, c in layouts]
    out = (batch, heads, rows + block_m, block_ev)
    bits = index_bits(*reach, (out, contiguous_strides(out)))
    # The largest product is the largest logit only if the scale is positive, so the sign goes to the query.
    sign = 0 if abs(scale) < torch.finfo(torch.float32).tiny else int(math.copysign(1, scale))
    scale_log2 = min(abs(scale) * math.log2(math.e), torch.finfo(torch.float32).max) if sign else 1.0
    constants = {
        "SIGN": sign, "CAUSAL": is_causal, "PADDED_E": block_e != channels, "PADDED_EV": block_ev != value_channels,
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_E": block_e, "BLOCK_EV": block_ev,
        "HEADS_TOGETHER": 16 if is_causal else 1,
        "PRECISION": "tf32" if tf32 else "ieee", "INDEX": _triton.INDEX[bits], "TMA": tma,
    }  # fmt: skip
    scalars = (heads, heads // kv_heads, rows, keys, channels, value_channels)
    scalars = (*scalars, *strides[0], *strides[1], *strides[2], scale_log2)
    options = {"num_warps": num_warps, "num_stages": num_stages}
    return Plan(grid, scalars, constants, options, bits, shared, "tma" if tma else "")


def _strides_suit_tma(stride, itemsize: int) -> bool:
    """A descriptor of a tensor wants neighbouring channels, and everything else at a distance of 16-byte steps."""
    return stride[3] == 1 and all(s > 0 and s * itemsize % 16 == 0 for s in stride[:3])


# Channels (64 or fewer, 128, 256) -> BLOCK_M, BLOCK_N, warps, stages. What limits a tile besides shared memory
# are registers: acc and the logits take BLOCK_M * (Ev + BLOCK_N) of them, spread over 32 threads a warp.
_HOPPER_HALF = {64: (128, 128, 8, 3), 128: (128, 128, 8, 2), 256: (128, 64, 8, 2)}
_HALF = {64: (128, 64, 4, 2), 128: (128, 64, 8, 2), 256: (64, 64, 8, 2)}
_TF32 = {64: (64, 64, 4, 2), 128: (64, 64, 4, 1), 256: (64, 32, 8, 1)}
_NO_TENSOR_CORES = {64: (64, 32, 8, 1), 128: (64, 16, 8, 1), 256: (32, 16, 8, 1)}
_IEEE = {**_NO_TENSOR_CORES, 128: (32, 64, 8, 1)}  # on GPUs that have them; timed on an H200
_INTERPRETED = dict.fromkeys((64, 128, 256), (128, 128, 4, 1))
_SMALLER = ((64, 32, 4, 2), (64, 32, 8, 1), (32, 32, 4, 1), (16, 16, 4, 1))


def _tiles(rows, keys, block_e, block_ev, dtype, limits, tf32) -> tuple[int, int, int, int, int]:
    """BLOCK_M, BLOCK_N, warps, stages, and the bytes of shared memory they need."""
    tensor_cores = _tensor_cores(dtype, limits, tf32)
    if limits.interpreted:
        table = _INTERPRETED
    elif not tensor_cores:
        table = _IEEE if limits.tensor_cores else _NO_TENSOR_CORES
    elif dtype.itemsize == 4:
        table = _TF32
    else:
        table = _HOPPER_HALF if _hopper(limits) else _HALF
    for most_m, most_n, num_warps, num_stages in (table[max(64, block_e, block_ev)], *_SMALLER):
        block_m = min(most_m, max(16, next_power_of_2(rows)))
        block_n = min(most_n, max(16, next_power_of_2(keys)))
        shared = block_m * block_e + num_stages * block_n * (block_e + block_ev)
        if tensor_cores:
            shared *= dtype.itemsize
        else:  # p passes through shared memory as well, and everything there is float32
            shared = (shared + block_m * block_n) * 4
        shared += 1024  # what barriers and reductions take is less
        if shared <= limits.shared_memory or limits.interpreted:
            return block_m, block_n, num_warps if block_m == most_m else 4, num_stages, shared
    raise CannotServe(
        f"needs {shared:,} bytes of shared memory for its smallest tiles of {block_e} and {block_ev} channels, "
        f"and a block has {limits.shared_memory:,} on this device (use backend='torch')"
    )


def _tensor_cores(dtype, limits, tf32) -> bool:
    return limits.tensor_cores and (dtype.itemsize == 2 or tf32)


def _hopper(limits) -> bool:
    """Whether tensor cores read shared memory and a copy engine (TMA) can fill it: Hopper and the B200."""
    return limits.compute_capability is not None and limits.compute_capability[0] in (9, 10)


def launch(query, key, value, is_causal, scale, return_lse):
    out = torch.empty((*query.shape[:-1], value.shape[-1]), dtype=query.dtype, device=query.device)
    lse = torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device)
    if out.numel() or lse.numel():
        tf32 = query.dtype is torch.float32 and arguments.tf32_allowed()
        limits = limits_of(query.device)
        for q, k, v, o, s in batches(query, key, value, out, lse[..., None]):
            shapes, strides = (q.shape, k.shape, v.shape), (q.stride(), k.stride(), v.stride())
            aligned = all(a.data_ptr() % 16 == 0 for a in (q, k, v))
            p = plan(shapes, strides, q.dtype, limits, is_causal, scale, tf32, aligned)
            if p.variant == "tma":
                c = p.constants
                q = TensorDescriptor(q, q.shape, q.stride(), [1, 1, c["BLOCK_M"], c["BLOCK_E"]])
                k = TensorDescriptor(k, k.shape, k.stride(), [1, 1, c["BLOCK_N"], c["BLOCK_E"]])
                v = TensorDescriptor(v, v.shape, v.stride(), [1, 1, c["BLOCK_N"], c["BLOCK_EV"]])
            _triton.launch(flash_attention_kernel, p, q, k, v, o, s)
    return (out, lse) if return_lse else out
