"""Attention in CUDA C++: out = softmax(scale * query @ key.mT) @ value, without the L x S matrix in memory.

Shapes: query (B, H, L, E), key (B, H', S, E), value (B, H', S, Ev) of any strides, H a multiple of H'; out
(B, H, L, Ev) of their dtype (float16, bfloat16, float32), lse (B, H, L) in float32. float32 products are in TF32
where torch's setting allows it and the GPU has it (compute capability 8.0), else IEEE.
Work: moves each array once at least, B * H * L * S * 2 (E + Ev) FLOPs, half of it for L = S if causal: at 4096 keys
some 2000 FLOPs a byte, so the arithmetic is the limit.
One block owns BLOCK_M rows of query of one head and walks the keys in tiles of BLOCK_N: on tensor cores for 16-bit
types and TF32, one warp for each 16 rows; for IEEE float32 with 8 threads for each 2 or 4 rows.
"""

import math
from functools import lru_cache

import torch

from tilekit.kernels import _cuda
from tilekit.kernels.flash_attention.layout import batches
from tilekit.plans import CannotServe, Plan, cdiv, contiguous_strides, grid_of, index_bits, limits_of


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, is_causal, scale, aligned=True, tf32=False) -> Plan:
    """Tiles and grid; `shapes` and `strides` are those of query, key and value in 4-D.

    `aligned` says that all three begin at a multiple of 16 bytes.
    """
    (batch, heads, rows, channels), (_, kv_heads, keys, _), (_, _, _, value_channels) = shapes
    if max(channels, value_channels) > 256:
        raise CannotServe(
            f"serves at most 256 channels; got {channels} in query and {value_channels} in value (use backend='torch')"
        )
    tensor_cores = dtype.itemsize == 2 or tf32
    # Whole fragments of 16, or four neighbours for each of 8 threads.
    padded_e = _up(channels, 16)
    padded_ev = _up(value_channels, 16 if tensor_cores else 32)
    block_m, block_n, threads, shared = _tiles(rows, keys, padded_e, padded_ev, dtype, limits, tensor_cores)
    grid = grid_of(batch, heads, cdiv(rows, block_m))
    layouts = zip(shapes, strides, (block_m, block_n, block_n), strict=True)
    reach = [((*shape[:2], shape[2] + 2 * more, shape[3] + 64), stride) for shape, stride, more in layouts]
    out = (batch, heads, rows + block_m, padded_ev)
    bits = index_bits(*reach, (out, contiguous_strides(out)))
    vec = 16 // dtype.itemsize
    if not aligned or channels % vec or value_channels % vec:
        vec = 1
    if any(stride[3] != 1 or any(step % vec for step in stride[:3]) for stride in strides):
        vec = 1
    # The largest product is the largest logit only if the scale is positive, so the sign goes to the query.
    sign = 0 if abs(scale) < torch.finfo(torch.float32).tiny else int(math.copysign(1, scale))
    scale_log2 = min(abs(scale) * math.log2(math.e), torch.finfo(torch.float32).max) if sign else 1.0
    constants = {
        "TENSOR_CORES": tensor_cores, "SIGN": sign, "CAUSAL": is_causal, "VEC": vec,
        "BLOCK_M": block_m, "BLOCK_N": block_n, "PADDED_E": padded_e, "PADDED_EV": padded_ev,
    }  # fmt: skip
    scalars = (heads, heads // kv_heads, rows, keys, channels, value_channels)
    scalars = (*scalars, *strides[0], *strides[1], *strides[2], scale_log2)
    return Plan(grid, scalars, constants, {"threads": threads}, bits, shared)


def _up(n: int, step: int) -> int:
    return max(1, cdiv(n, step)) * step


# BLOCK_M, BLOCK_N: the first one that fits into shared memory, and whose part of acc fits into a thread's registers.
_HALF = ((128, 64), (128, 32), (64, 32), (32, 32), (16, 16))
_SINGLE = ((128, 64), (64, 64), (64, 32), (32, 32), (32, 16), (16, 16))


def _tiles(rows, keys, padded_e, padded_ev, dtype, limits, tensor_cores) -> tuple[int, int, int, int]:
    """BLOCK_M, BLOCK_N, the block's threads, and the bytes of shared memory they need."""
    padding = 16 // dtype.itemsize
    for block_m, block_n in _HALF if tensor_cores else _SINGLE:
        # Few rows need no large block; tiles stay a power of two, so that there are few kernels to compile.
        while block_m > 16 and block_m // 2 >= rows:
            block_m //= 2
        while block_n > 16 and block_n // 2 >= keys:
            block_n //= 2
        if tensor_cores:
            threads = 2 * block_m
            registers = padded_ev // 2 + block_n // 2
        else:
            rows_of_a_thread = 4 if padded_ev <= 128 else 2
            threads = block_m // rows_of_a_thread * 8
            registers = rows_of_a_thread * (padded_ev + block_n) // 8
        shared = block_m * (padded_e + padding) + block_n * (padded_e + padded_ev + 2 * padding)
        if not tensor_cores:
            shared += block_m * (block_n + padding)
        shared *= dtype.itemsize
        if registers <= (144 if tensor_cores else 96) and shared <= limits.shared_memory:
            return block_m, block_n, threads, shared
    raise CannotServe(
        f"needs {shared:,} bytes of shared memory for its smallest tiles of {padded_e} and {padded_ev} channels, "
        f"and a block has {limits.shared_memory:,} on this device (use backend='torch')"
    )


def launch(query, key, value, is_causal, scale, return_lse):
    out = torch.empty((*query.shape[:-1], value.shape[-1]), dtype=query.dtype, device=query.device)
    lse = torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device)
    if out.numel() or lse.numel():
        limits = limits_of(query.device)
        tf32 = _cuda.tf32(query.dtype, limits)
        for q, k, v, o, s in batches(query, key, value, out, lse[..., None]):
            shapes, strides = (q.shape, k.shape, v.shape), (q.stride(), k.stride(), v.stride())
            p = plan(shapes, strides, q.dtype, limits, is_causal, scale, _cuda.aligned(q, k, v), tf32)
            _cuda.launch("flash_attention", p, q, k, v, o, s)
    return (out, lse) if return_lse else out
