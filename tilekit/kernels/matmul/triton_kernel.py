"""The matrix product in Triton: out[i, j] = sum over k of a[i, k] * b[k, j].

Shapes: a is (batch..., M, K), b is (batch..., K, N), out is (batch..., M, N), one dtype (float16, bfloat16,
float32); a and b have any strides. Sums are float32.
Work: 2 M N K FLOPs on at least (M K + K N + M N) elements: at M = N = K = 8192 in bfloat16 that is 2730 FLOPs a
byte, so the arithmetic is the limit, if tiles are reused before they leave the cache.
One block computes one BLOCK_M x BLOCK_N tile of out, walking along K in steps of BLOCK_K.
"""

import math
from functools import lru_cache

import torch
import triton
import triton.language as tl

from tilekit import arguments
from tilekit.kernels import _triton
from tilekit.kernels.matmul.batches import broadcast, four_dimensions, two_batch_dimensions
from tilekit.plans import (
    CannotServe,
    Plan,
    cdiv,
    grid_of,
    index_bits,
    limits_of,
    next_power_of_2,
)


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, out_ptr,
    M, N, K, batch_1,
    a_0, a_1, a_m, a_k,
    b_0, b_1, b_k, b_n,
    out_0, out_1, out_m, out_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr, PRECISION: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    # A size just below 2**31 leaves 32 bits when it is rounded up to whole tiles.
    M, N, K = tl.cast(M, INDEX), tl.cast(N, INDEX), tl.cast(K, INDEX)
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    batch = tl.program_id(0) // (tiles_m * tiles_n)
    tile_m, tile_n = grouped(tl.program_id(0) % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_M)
    i_0, i_1 = (batch // batch_1).to(INDEX), (batch % batch_1).to(INDEX)
    offs_m = tile_m.to(INDEX) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n.to(INDEX) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K).to(INDEX)
    # Rows and columns past the end wrap around to ones that exist: no mask is needed, and nobody stores them.
    a_ptrs = a_ptr + i_0 * a_0 + i_1 * a_1 + (offs_m % M)[:, None] * a_m + offs_k[None, :] * a_k
    b_ptrs = b_ptr + i_0 * b_0 + i_1 * b_1 + offs_k[:, None] * b_k + (offs_n % N)[None, :] * b_n
    a_step, b_step = tl.cast(a_k, INDEX) * BLOCK_K, tl.cast(b_k, INDEX) * BLOCK_K
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        if EVEN_K:
            a, b = tl.load(a_ptrs), tl.load(b_ptrs)
        else:
            a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_K, other=0.0)
            b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        a_ptrs += a_step
        b_ptrs += b_step
    out_ptrs = out_ptr + i_0 * out_0 + i_1 * out_1 + offs_m[:, None] * out_m + offs_n[None, :] * out_n
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=(offs_m < M)[:, None] & (offs_n < N)[None, :])


@triton.jit
def grouped(pid, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Walk the tiles in bands of GROUP_M rows, column by column, so that blocks that run together share inputs."""
    band = pid // (GROUP_M * tiles_n)
    first = band * GROUP_M
    rows = tl.minimum(tiles_m - first, GROUP_M)
    inside = pid % (GROUP_M * tiles_n)
    return first + inside % rows, inside // rows


# (BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages) for 16-bit inputs, largest first; timed on an H200.
_HALF_TILES = ((128, 256, 64, 8, 3), (128, 128, 64, 4, 4), (128, 128, 32, 4, 3), (64, 64, 32, 4, 2), (32, 32, 32, 4, 1))
_SINGLE_TILES = ((128, 128, 32, 8, 3), (64, 64, 32, 4, 3), (64, 64, 32, 4, 2), (32, 32, 32, 4, 1))
_TILES_WITHOUT_TENSOR_CORES = ((64, 64, 16, 4, 2), (32, 32, 16, 4, 1))  # a float16 tile with BLOCK_K = 32 spills


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, precision="ieee") -> Plan:
    """Tiles and grid; `shapes` and `strides` are those of a and b, which have at most two batch dimensions."""
    (a_shape, a_strides), (b_shape, b_strides), (out_shape, out_strides) = four_dimensions(shapes, strides)
    (*batch, M, K), N = a_shape, b_shape[-1]
    block_m, block_n, block_k, warps, stages = _tiles(math.prod(batch), M, N, K, dtype, limits)
    # Pointers run up to a step past the end of K, and those of out up to a tile past its edges; nothing is read there.
    bits = index_bits(
        ((*batch, M, K + block_k), a_strides),
        ((*batch, K + block_k, N), b_strides),
        ((*batch, M + block_m, N + block_n), out_strides),
    )
    constants = {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": 8,
        "EVEN_K": K % block_k == 0, "PRECISION": precision, "INDEX": _triton.INDEX[bits],
    }  # fmt: skip
    scalars = (M, N, K, batch[1], *a_strides, *b_strides, *out_strides)
    grid = grid_of(*batch, cdiv(M, block_m), cdiv(N, block_n))
    shared = _shared(block_m, block_n, block_k, stages, dtype)
    return Plan(grid, scalars, constants, {"num_warps": warps, "num_stages": stages}, bits, shared)


def _tiles(batch, M, N, K, dtype, limits):
    if limits.interpreted:  # few large tiles: the interpreter pays for each operation, not for each element
        return *(max(16, min(128, next_power_of_2(size))) for size in (M, N, K)), 4, 1
    candidates = _SINGLE_TILES if dtype is torch.float32 else _HALF_TILES
    if not limits.tensor_cores:
        candidates = _TILES_WITHOUT_TENSOR_CORES
    for block_m, block_n, block_k, warps, stages in candidates:
        blocks = batch * cdiv(M, block_m) * cdiv(N, block_n)
        last = (block_m, block_n) == candidates[-1][:2]
        if _shared(block_m, block_n, block_k, stages, dtype) > limits.shared_memory:
            continue
        # A large tile reuses more, if there are enough of them to keep every multiprocessor busy.
        if last or blocks >= limits.multiprocessors or block_m <= 64:
            return block_m, block_n, block_k, warps, stages
    raise CannotServe(f"finds no tile that fits into {limits.shared_memory:,} bytes of shared memory")


def _shared(block_m, block_n, block_k, stages, dtype):
    """Bytes of shared memory: `stages` pairs of input tiles in flight, or the result's tile on its way out.

    And a few for the barriers by which compute capability 10 waits for its tensor cores.
    """
    return max(stages * (block_m + block_n) * block_k, block_m * block_n) * dtype.itemsize + 64


def launch(a, b):
    a, b = broadcast(a, b)
    out = torch.empty((*a.shape[:-1], b.shape[-1]), dtype=a.dtype, device=a.device)
    if out.numel() == 0:
        return out
    if a.shape[-1] == 0:
        return out.zero_()
    precision = "tf32" if a.dtype is torch.float32 and a.is_cuda and arguments.tf32_allowed() else "ieee"
    for part_a, part_b, part_out in two_batch_dimensions(a, b, out):
        shapes, strides = (part_a.shape, part_b.shape), (part_a.stride(), part_b.stride())
        p = plan(shapes, strides, a.dtype, limits_of(a.device), precision)
        _triton.launch(matmul_kernel, p, part_a, part_b, part_out)
    return out
