"""The matrix product in CUDA C++: out[i, j] = sum over k of a[i, k] * b[k, j].

Shapes: a is (batch..., M, K), b is (batch..., K, N), out is (batch..., M, N), one dtype (float16, bfloat16,
float32); a and b have any strides. Sums are float32; float32 products are in TF32 where
torch's setting allows it and the GPU has it (compute capability 8.0), else IEEE.
Work: 2 M N K FLOPs on at least (M K + K N + M N) elements: at M = N = K = 8192 in bfloat16 that is 2730 FLOPs a
byte, so the arithmetic is the limit, if tiles are reused before they leave the cache.
One block computes one BLOCK_M x BLOCK_N tile of out, walking along K in steps of BLOCK_K: on tensor cores for 16-bit
types, and with 8 x 8 results a thread for float32.
"""

import math
from functools import lru_cache

import torch

from tilekit.kernels import _cuda
from tilekit.kernels.matmul.batches import broadcast, four_dimensions, two_batch_dimensions
from tilekit.plans import CannotServe, Plan, cdiv, grid_of, index_bits, limits_of

# BLOCK_M, BLOCK_N, BLOCK_K, WARP_M, WARP_N, stages; the first one that fits and gives every multiprocessor a block.
_HALF_TILES = ((128, 128, 32, 64, 32, 3), (64, 64, 32, 32, 32, 3), (64, 64, 32, 32, 32, 2), (32, 32, 32, 16, 16, 2))
_TF32_TILES = ((128, 128, 16, 64, 32, 3), (64, 64, 16, 32, 32, 3), (64, 64, 16, 32, 32, 2), (32, 32, 16, 16, 16, 2))
_SINGLE_TILES = ((128, 128, 16, 0, 0, 3), (64, 64, 16, 0, 0, 3), (64, 64, 16, 0, 0, 2))


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, aligned=True, tf32=False) -> Plan:
    """Tiles and grid; `shapes` and `strides` are those of a and b, which have at most two batch dimensions."""
    (a_shape, a_strides), (b_shape, b_strides), (out_shape, out_strides) = four_dimensions(shapes, strides)
    (*batch, M, K), N = a_shape, b_shape[-1]
    block_m, block_n, block_k, warp_m, warp_n, stages, shared = _tiles(math.prod(batch), M, N, dtype, limits, tf32)
    ahead = block_k * stages  # steps along K are loaded before they are due
    bits = index_bits(
        ((*batch, M + block_m, K + ahead), a_strides),
        ((*batch, K + ahead, N + block_n), b_strides),
        ((*batch, M + block_m, N + block_n), out_strides),
    )
    tensor_cores = dtype.itemsize == 2 or tf32
    vec = 16 // dtype.itemsize
    constants = {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "STAGES": stages, "TENSOR_CORES": tensor_cores,
        **_access("A", "M", M, K, a_strides, vec, tensor_cores, aligned),
        **_access("B", "K", K, N, b_strides, vec, tensor_cores, aligned),
    }  # fmt: skip
    threads = 256
    if tensor_cores:
        threads = 32 * (block_m // warp_m) * (block_n // warp_n)
        constants |= {"WARP_M": warp_m, "WARP_N": warp_n, "OUT_PAIRS": N % 2 == 0}
    scalars = (M, N, K, batch[1], *a_strides, *b_strides, *out_strides[:3])
    grid = grid_of(*batch, cdiv(M, block_m), cdiv(N, block_n))
    return Plan(grid, scalars, constants, {"threads": threads}, bits, shared)


def _access(name, outer, rows, cols, strides, vec, transposable, aligned) -> dict[str, int]:
    """How a tile of an operand gets into shared memory: as it is or transposed, in vectors or element by element.

    The tensor cores take a tile from shared memory either way, so it lies there as it does in the array; the products
    in float32 want rows.
    """
    *others, row_step, col_step = strides
    whole_rows = col_step == 1 and cols % vec == 0 and all(step % vec == 0 for step in (*others, row_step))
    whole_cols = row_step == 1 and rows % vec == 0 and all(step % vec == 0 for step in (*others, col_step))
    across = row_step < col_step
    down = transposable and across
    vectors = aligned and (whole_cols if down else whole_rows)
    return {
        f"{name}_DOWN": down,
        f"{name}_VEC": vec if vectors else 1,
        f"{name}_ALONG_{outer}": across and not vectors,
    }


def _tiles(batch, M, N, dtype, limits, tf32):
    candidates = _HALF_TILES if dtype.itemsize == 2 else _TF32_TILES if tf32 else _SINGLE_TILES
    for block_m, block_n, block_k, warp_m, warp_n, stages in candidates:
        # Transposed tiles have fewer, longer rows, with less padding; this is the most that either way takes.
        padding = 8 if dtype.itemsize == 2 or tf32 else 4
        a, b = block_m * block_k, block_k * block_n
        padded = padding * (max(block_m, block_k) + max(block_n, block_k))
        shared = stages * (a + b + padded) * dtype.itemsize
        blocks = batch * cdiv(M, block_m) * cdiv(N, block_n)
        last = (block_m, block_n) == candidates[-1][:2]
        if shared <= limits.shared_memory and (last or blocks >= limits.multiprocessors):
            return block_m, block_n, block_k, warp_m, warp_n, stages, shared
    raise CannotServe(f"finds no tile that fits into {limits.shared_memory:,} bytes of shared memory")


def launch(a, b):
    a, b = broadcast(a, b)
    out = torch.empty((*a.shape[:-1], b.shape[-1]), dtype=a.dtype, device=a.device)
    if out.numel() == 0:
        return out
    if a.shape[-1] == 0:
        return out.zero_()
    limits = limits_of(a.device)
    tf32 = _cuda.tf32(a.dtype, limits)
    for part_a, part_b, part_out in two_batch_dimensions(a, b, out):
        shapes, strides = (part_a.shape, part_b.shape), (part_a.stride(), part_b.stride())
        p = plan(shapes, strides, a.dtype, limits, _cuda.aligned(part_a, part_b), tf32)
        _cuda.launch("matmul", p, part_a, part_b, part_out)
    return out
