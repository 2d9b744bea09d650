"""Softmax in cuTile: out[i, j] = exp(x[i, j] - max_i) / sum over j of exp(x[i, j] - max_i).

Shapes: x and out have one shape and dtype (float16, bfloat16, float32); x has any strides, and any of its dimensions
is the row. Arithmetic is float32.
Work: reads n and writes n elements, about 5n FLOPs, so memory is the limit; a row that does not fit into a tile is read
twice.
One block computes TILE_M rows: at once where they fit into one tile, else walking along them in steps of TILE_N.
"""

import math
from functools import lru_cache

import cuda.tile as ct
import torch

from tilekit.kernels import _cutile
from tilekit.kernels.softmax.rows import as_rows, least_rows, walkable
from tilekit.plans import GRID_MAX_CUTILE, Plan, cdiv, grid_of, index_bits, limits_of, next_power_of_2

INF = math.inf
LOG2_E = math.log2(math.e)
# Past the end of a row lies -inf: it is never the maximum, and its exponential adds nothing.
PADDING = ct.PaddingMode.NEG_INF


@ct.kernel
def softmax_kernel(x, out, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int]):
    tiles = ct.cdiv(x.shape[1], TILE_M)
    index = (ct.bid(0) // tiles, ct.bid(0) % tiles, 0)
    # Plain loads are five times faster here than the copy engine (TMA): a row is too short to be worth its set-up.
    tile = ct.load(x, index, (1, TILE_M, TILE_N), padding_mode=PADDING, allow_tma=False).astype(ct.float32)
    exponentials = exp(tile - ct.max(tile, 2, keepdims=True))
    scale = 1.0 / ct.sum(exponentials, 2, keepdims=True)
    ct.store(out, index, (exponentials * scale).astype(out.dtype), allow_tma=False)


def exp(x):
    """exp by the hardware's power of two."""
    return ct.exp2(x * LOG2_E, flush_to_zero=True)


@ct.kernel
def softmax_wide_kernel(x, out, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int]):
    tiles, steps = ct.cdiv(x.shape[1], TILE_M), ct.cdiv(x.shape[2], TILE_N)
    outer, row, shape = ct.bid(0) // tiles, ct.bid(0) % tiles, (1, TILE_M, TILE_N)
    largest = ct.full((1, TILE_M, 1), -INF, ct.float32)
    total = ct.zeros((1, TILE_M, 1), ct.float32)
    for j in range(steps):
        tile = ct.load(x, (outer, row, j), shape, padding_mode=PADDING, allow_tma=False).astype(ct.float32)
        new = ct.maximum(largest, ct.max(tile, 2, keepdims=True))
        # Where all so far is -inf, (-inf) - (-inf) would be NaN; subtract 0 instead.
        safe = ct.where(new == -INF, 0.0, new)
        # The sum so far is relative to the old maximum.
        total = total * exp(largest - safe) + ct.sum(exp(tile - safe), 2, keepdims=True)
        largest = new
    scale = 1.0 / total
    for j in range(steps):
        tile = ct.load(x, (outer, row, j), shape, padding_mode=PADDING, allow_tma=False).astype(ct.float32)
        ct.store(out, (outer, row, j), (exp(tile - largest) * scale).astype(out.dtype), allow_tma=False)


_TILE = 16_384  # elements of the largest tile


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, dim=-1) -> Plan:
    """Tiles and grid; `shapes` and `strides` are those of x, whose outer dimensions merge into two at most."""
    shape, x, out = as_rows(shapes[0], strides[0], dim % len(shapes[0]))
    outer, rows, N = shape
    width = next_power_of_2(N)
    least = least_rows(rows, x, out)
    variant = "" if least * width <= _TILE else "wide"
    tile_n = 8192 // least if variant else width
    tile_m = min(max(least, 8192 // tile_n), next_power_of_2(rows))
    reach = (outer, rows + tile_m, N + tile_n)
    bits = index_bits((reach, x), (reach, out))
    constants = {"TILE_M": tile_m, "TILE_N": tile_n}
    views = ((shape, x), (shape, out))
    hints = {"occupancy": 4}  # timed on an H200, with tiles of 8192 elements
    grid = grid_of(outer, cdiv(rows, tile_m), most=GRID_MAX_CUTILE)
    return Plan(grid, (), constants, hints, bits, variant=variant, views=views)


def launch(x, dim):
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if out.numel() == 0:
        return out
    x = walkable(x, dim)
    p = plan((x.shape,), (x.stride(),), x.dtype, limits_of(x.device), dim)
    _cutile.launch(softmax_wide_kernel if p.variant else softmax_kernel, p, x, out)
    return out
