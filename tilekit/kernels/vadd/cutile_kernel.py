"""Vector addition in cuTile: out[i] = a[i] + b[i].

Shapes: a, b and out have one shape and dtype (float16, bfloat16, float32); a and b have any strides.
Work: reads 2n and writes n elements, n additions: 1/12 FLOP a byte in float32, so memory is the only limit.
One block adds one tile: TILE consecutive elements, or TILE_M x TILE_N where the strides do not merge into one.
"""

from functools import lru_cache

import cuda.tile as ct
import torch

from tilekit.kernels import _cutile
from tilekit.plans import (
    GRID_MAX_CUTILE,
    MAX_DIMS,
    Plan,
    cdiv,
    collapse,
    contiguous_strides,
    grid_of,
    index_bits,
    limits_of,
    next_power_of_2,
    walkable,
)


@ct.kernel
def vadd_kernel(a, b, out, TILE: ct.Constant[int]):
    i = ct.bid(0)
    a_tile = ct.load(a, (i,), (TILE,)).astype(ct.float32)
    b_tile = ct.load(b, (i,), (TILE,)).astype(ct.float32)
    # A store leaves out what reaches past the array's end, so what the loads padded there is never seen.
    ct.store(out, (i,), (a_tile + b_tile).astype(out.dtype))


@ct.kernel
def vadd_strided_kernel(a, b, out, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int]):
    tiles_m, tiles_n = ct.cdiv(out.shape[2], TILE_M), ct.cdiv(out.shape[3], TILE_N)
    tile, outer = ct.bid(0) % (tiles_m * tiles_n), ct.bid(0) // (tiles_m * tiles_n)
    index = (outer // out.shape[1], outer % out.shape[1], tile // tiles_n, tile % tiles_n)
    a_tile = ct.load(a, index, (1, 1, TILE_M, TILE_N)).astype(ct.float32)
    b_tile = ct.load(b, index, (1, 1, TILE_M, TILE_N)).astype(ct.float32)
    ct.store(out, index, (a_tile + b_tile).astype(out.dtype))


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits) -> Plan:
    """Tiles and grid for ``vadd``; `shapes` and `strides` are those of a and b."""
    shape = shapes[0]
    shape, *layouts = collapse(shape, *strides, contiguous_strides(shape))
    if len(shape) == 1 and all(layout == (1,) for layout in layouts):
        tile = min(1024, next_power_of_2(shape[0]))  # timed on an H200; tiles of 8192 are half as fast
        bits = index_bits((shape, (1,)), slack=tile)
        # An array that has one dimension already is passed as it is: making a view costs microseconds.
        views = () if len(shapes[0]) == 1 else tuple((shape, layout) for layout in layouts)
        return Plan(
            grid_of(cdiv(shape[0], tile), most=GRID_MAX_CUTILE), constants={"TILE": tile}, index_bits=bits, views=views
        )
    shape = (1,) * (4 - len(shape)) + shape
    layouts = [(0,) * (4 - len(layout)) + layout for layout in layouts]
    tile_n = min(64, next_power_of_2(shape[3]))
    tile_m = min(2048 // tile_n, next_power_of_2(shape[2]))
    grid = grid_of(shape[0], shape[1], cdiv(shape[2], tile_m), cdiv(shape[3], tile_n), most=GRID_MAX_CUTILE)
    reach = (shape[0], shape[1], shape[2] + tile_m, shape[3] + tile_n)
    bits = index_bits(*((reach, layout) for layout in layouts))
    constants = {"TILE_M": tile_m, "TILE_N": tile_n}
    views = tuple((shape, layout) for layout in layouts)
    return Plan(grid, constants=constants, index_bits=bits, variant="strided", views=views)


def launch(a, b):
    out = torch.empty_like(a, memory_format=torch.contiguous_format)
    if out.numel() == 0:
        return out
    if a.dim() > MAX_DIMS:
        a, b = walkable(a, b)
    p = plan((a.shape, b.shape), (a.stride(), b.stride()), a.dtype, limits_of(a.device))
    _cutile.launch(vadd_strided_kernel if p.variant else vadd_kernel, p, a, b, out)
    return out
