"""The matrix product in cuTile: out[i, j] = sum over k of a[i, k] * b[k, j].

Shapes: a is (batch..., M, K), b is (batch..., K, N), out is (batch..., M, N), one dtype (float16, bfloat16,
float32); a and b have any strides. Sums are float32.
Work: 2 M N K FLOPs on at least (M K + K N + M N) elements: at M = N = K = 8192 in bfloat16 that is 2730 FLOPs a
byte, so the arithmetic is the limit, if tiles are reused before they leave the cache.
One block computes one TILE_M x TILE_N tile of out, walking along K in steps of TILE_K.
"""

import math
from functools import lru_cache

import cuda.tile as ct
import torch

from tilekit import arguments
from tilekit.kernels import _cutile
from tilekit.kernels.matmul.batches import broadcast, four_dimensions, two_batch_dimensions
from tilekit.plans import (
    GRID_MAX_CUTILE,
    CannotServe,
    Plan,
    cdiv,
    grid_of,
    index_bits,
    limits_of,
    next_power_of_2,
)


@ct.kernel
def matmul_kernel(
    a, b, out,
    TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], TILE_K: ct.Constant[int], GROUP_M: ct.Constant[int],
    TF32: ct.Constant[bool],
):  # fmt: skip
    tiles_m, tiles_n = ct.cdiv(out.shape[2], TILE_M), ct.cdiv(out.shape[3], TILE_N)
    batch = ct.bid(0) // (tiles_m * tiles_n)
    tile_m, tile_n = grouped(ct.bid(0) % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_M)
    i_0, i_1 = batch // out.shape[1], batch % out.shape[1]
    acc = ct.zeros((TILE_M, TILE_N), ct.float32)
    for k in range(ct.cdiv(a.shape[3], TILE_K)):
        # Zeros past the end of K add nothing to the sum.
        a_tile = ct.load(a, (i_0, i_1, tile_m, k), (1, 1, TILE_M, TILE_K), padding_mode=ct.PaddingMode.ZERO)
        b_tile = ct.load(b, (i_0, i_1, k, tile_n), (1, 1, TILE_K, TILE_N), padding_mode=ct.PaddingMode.ZERO)
        a_tile, b_tile = a_tile.reshape((TILE_M, TILE_K)), b_tile.reshape((TILE_K, TILE_N))
        if TF32:
            acc = ct.mma(a_tile.astype(ct.tfloat32), b_tile.astype(ct.tfloat32), acc)
        else:
            acc = ct.mma(a_tile, b_tile, acc)
    ct.store(out, (i_0, i_1, tile_m, tile_n), acc.astype(out.dtype).reshape((1, 1, TILE_M, TILE_N)))


def grouped(pid, tiles_m, tiles_n, GROUP_M):
    """Walk the tiles in bands of GROUP_M rows, column by column, so that blocks that run together share inputs."""
    band = pid // (GROUP_M * tiles_n)
    first = band * GROUP_M
    rows = ct.minimum(tiles_m - first, GROUP_M)
    inside = pid % (GROUP_M * tiles_n)
    return first + inside % rows, inside // rows


# (TILE_M, TILE_N, TILE_K, hints) for 16-bit inputs, largest first; timed on an H200, where a tile of 128 x 256
# runs 17 times slower without the hint.
_HALF_TILES = (
    (128, 256, 64, {"num_worker_warps": 8}),
    (128, 128, 64, {"occupancy": 2}),
    (64, 64, 64, {}),
    (32, 32, 32, {}),
)
_TF32_TILES = ((64, 64, 32, {}), (32, 32, 32, {}))
# Without tensor cores the compiler keeps all of TILE_K in registers at once: shallow tiles, or they spill. (The
# interpreter has none, and takes the deeper ones.)
_SINGLE_TILES = ((128, 128, 8, {"num_worker_warps": 8}), (64, 64, 16, {}), (32, 32, 32, {}))


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, tf32=False) -> Plan:
    """Tiles and grid; `shapes` and `strides` are those of a and b, which have at most two batch dimensions."""
    views = four_dimensions(shapes, strides)
    (*batch, M, K), N = views[0][0], views[1][0][-1]
    tile_m, tile_n, tile_k, hints = _tiles(math.prod(batch), M, N, K, dtype, limits, tf32)
    slack = max(tile_m, tile_n, tile_k)
    bits = index_bits(*(((*shape[:2], shape[2] + slack, shape[3] + slack), layout) for shape, layout in views))
    constants = {"TILE_M": tile_m, "TILE_N": tile_n, "TILE_K": tile_k, "GROUP_M": 8, "TF32": tf32}
    grid = grid_of(*batch, cdiv(M, tile_m), cdiv(N, tile_n), most=GRID_MAX_CUTILE)
    shared = 2 * (tile_m + tile_n) * tile_k * dtype.itemsize
    return Plan(grid, (), constants, hints, bits, shared, views=views)


def _tiles(batch, M, N, K, dtype, limits, tf32):
    tiles = _HALF_TILES if dtype.itemsize == 2 else _TF32_TILES if tf32 or limits.interpreted else _SINGLE_TILES
    for tile_m, tile_n, tile_k, hints in tiles:
        if 2 * (tile_m + tile_n) * tile_k * dtype.itemsize > limits.shared_memory:
            continue
        enough = batch * cdiv(M, tile_m) * cdiv(N, tile_n) >= limits.multiprocessors
        if enough or tile_m <= 32:
            return tile_m, tile_n, min(tile_k, max(16, next_power_of_2(K))), hints
    raise CannotServe(f"finds no tile that fits into {limits.shared_memory:,} bytes of shared memory")


def launch(a, b):
    a, b = broadcast(a, b)
    out = torch.empty((*a.shape[:-1], b.shape[-1]), dtype=a.dtype, device=a.device)
    if out.numel() == 0:
        return out
    if a.shape[-1] == 0:
        return out.zero_()
    tf32 = a.dtype is torch.float32 and arguments.tf32_allowed()
    for part_a, part_b, part_out in two_batch_dimensions(a, b, out):
        shapes, strides = (part_a.shape, part_b.shape), (part_a.stride(), part_b.stride())
        p = plan(shapes, strides, a.dtype, limits_of(a.device), tf32)
        _cutile.launch(matmul_kernel, p, part_a, part_b, part_out)
    return out
