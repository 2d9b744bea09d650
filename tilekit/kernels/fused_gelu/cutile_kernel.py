"""GELU(x * w + b) in cuTile, in one pass.

Shapes: x and out have one shape and dtype (float16, bfloat16, float32), any strides; w and b have x's shape, that of
its last dimension, or are 0-d, and are read through strides of 0 where they repeat.
Work: reads n elements of x (and as many of w and b where they have x's shape) and writes n; about 20 FLOPs an element,
so memory is the limit. Unfused, x * w, + b and gelu would move 6n elements instead of 2n.
One block computes one tile of TILE_M x TILE_N elements.
"""

from functools import lru_cache

import cuda.tile as ct
import torch

from tilekit.kernels import _cutile
from tilekit.plans import (
    GRID_MAX_CUTILE,
    GRID_MAX_YZ,
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
def fused_gelu_kernel(
    x, w, b, out, TANH: ct.Constant[bool], CHECKED: ct.Constant[bool], FLAT: ct.Constant[bool], OUTER: ct.Constant[bool],
    TILE_M: ct.Constant[int], TILE_N: ct.Constant[int],
    W_M: ct.Constant[int], W_N: ct.Constant[int], B_M: ct.Constant[int], B_N: ct.Constant[int],
):  # fmt: skip
    # A division costs as much as two elements of the tile, so the grid has an axis for each of the tile's, if it can.
    i_n, i_m, outer = ct.bid(0), ct.bid(1), ct.bid(2)
    if FLAT:
        tiles_m, tiles_n = ct.cdiv(out.shape[2], TILE_M), ct.cdiv(out.shape[3], TILE_N)
        tile, outer = ct.bid(0) % (tiles_m * tiles_n), ct.bid(0) // (tiles_m * tiles_n)
        i_m, i_n = tile // tiles_n, tile % tiles_n
    i_0, i_1 = ct.int32(0), ct.int32(0)
    if OUTER:
        i_0, i_1 = outer // out.shape[1], outer % out.shape[1]
    # Where all tiles are whole, doing without the check of their bounds saves a third of the instructions.
    x_tile = ct.load(x, (i_0, i_1, i_m, i_n), (1, 1, TILE_M, TILE_N), check_bounds=CHECKED).astype(ct.float32)
    # Where w or b repeats along an axis, its array has size 1 there, and its tile is broadcast.
    w_index, b_index = repeated(i_0, i_1, i_m, i_n, w, W_M, W_N), repeated(i_0, i_1, i_m, i_n, b, B_M, B_N)
    w_tile = ct.load(w, w_index, (1, 1, W_M, W_N), check_bounds=CHECKED).astype(ct.float32)
    b_tile = ct.load(b, b_index, (1, 1, B_M, B_N), check_bounds=CHECKED).astype(ct.float32)
    # A store leaves out what reaches past the array's end, so what the loads padded there is never seen.
    out_tile = gelu(x_tile * w_tile + b_tile, TANH).astype(out.dtype)
    ct.store(out, (i_0, i_1, i_m, i_n), out_tile, check_bounds=CHECKED)


def repeated(i_0, i_1, i_m, i_n, array, TILE_M, TILE_N):
    """The tile's index in an array that has size 1 along the axes where its values repeat."""
    return (
        ct.minimum(i_0, array.shape[0] - 1),
        ct.minimum(i_1, array.shape[1] - 1),
        ct.minimum(i_m, ct.cdiv(array.shape[2], TILE_M) - 1),
        ct.minimum(i_n, ct.cdiv(array.shape[3], TILE_N) - 1),
    )


def gelu(z, TANH):
    """z * Phi(z), with the limits at both ends: z at inf, -0 at -inf."""
    # Both forms are -0 from here down; -inf itself would become (-inf) / inf or (-inf) * 0. A NaN stays one.
    z = ct.where(z < -100.0, -100.0, z)
    if TANH:
        # 0.5 z (1 + tanh(u)) is z / (1 + exp(-2u)), here in powers of two: -2u = z (-2.302 - 0.1029 z^2) ln 2.
        # The power may overflow to inf, and z / inf is the limit.
        power = ct.exp2(z * (-2.302208198144325 - 0.1029432395800235 * z * z), flush_to_zero=True)
        return ct.truediv(z, 1.0 + power, rounding_mode=ct.RoundingMode.APPROX, flush_to_zero=True)
    else:
        return z * normal_cdf(z)


def normal_cdf(z):
    """Phi(z), the share of a normal distribution below z, to about 6e-8; cuTile has no erf.

    Near 0 it is 1/2 plus an odd polynomial, which interpolates at Chebyshev's points of z^2 <= 1.25^2. Elsewhere, with
    s = |z| / sqrt(2) and t = 1 / (1 + s / 2), the tail is t exp(p(t) - s^2) / 2, where p is the polynomial of degree 7
    that interpolates log(erfc(s) / t) + s^2 at Chebyshev's points of 0.2 <= t <= 0.8.
    """
    square = z * z
    near = 1.1540845e-4 + square * (-9.4082204e-6 + square * (6.3756724e-7 - square * 2.9329157e-8))
    near = -0.066490380 + square * (0.0099735550 + square * (-0.0011873179 + square * near))
    near = 0.5 + z * (0.39894228 + square * near)
    size = ct.maximum(z, -z) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.5 * size)
    p = 0.60913375 + t * (-1.3223868 + t * (0.96360169 - t * 0.24551939))
    p = -1.2652342 + t * (0.99424328 + t * (0.42540813 + t * (-0.15934367 + t * p)))
    tail = 0.5 * t * ct.exp(p - size * size)
    return ct.where(size < 1.25 * 0.7071067811865476, near, ct.where(z < 0.0, tail, 1.0 - tail))


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, tanh=True, may_trust=True) -> Plan:
    """Tiles and grid; `shapes` and `strides` are those of x, w and b, all expanded to x's shape.

    `may_trust` says that the compiler can do without checking bounds.
    """
    shape = shapes[0]
    shape, *layouts = collapse(shape, *strides, contiguous_strides(shape))
    shape = (1,) * (4 - len(shape)) + shape
    layouts = [(0,) * (4 - len(layout)) + layout for layout in layouts]
    # Wide tiles where rows are contiguous, squarer ones where they are not and columns may be; timed on an H200.
    wide = 2048 if all(layout[3] in (0, 1) for layout in layouts) else 64
    area = 4096 if shape[2] > 1 else 1024
    tile_n = min(area if shape[2] == 1 else wide, next_power_of_2(shape[3]))
    tile_m = min(area // tile_n, next_power_of_2(shape[2]))
    tiles, outer = (cdiv(shape[3], tile_n), cdiv(shape[2], tile_m)), shape[0] * shape[1]
    flat = tiles[0] > GRID_MAX_CUTILE or max(tiles[1], outer) > GRID_MAX_YZ
    grid = grid_of(outer, *tiles, most=GRID_MAX_CUTILE) if flat else (*tiles, outer)
    reach = (shape[0], shape[1], shape[2] + tile_m, shape[3] + tile_n)
    bits = index_bits(*((reach, layout) for layout in layouts))
    views = [(shape, layouts[0])]
    checked = not may_trust or shape[2] % tile_m != 0 or shape[3] % tile_n != 0
    constants = {"TANH": tanh, "CHECKED": checked, "FLAT": flat, "OUTER": outer > 1, "TILE_M": tile_m, "TILE_N": tile_n}
    for name, layout in (("W", layouts[1]), ("B", layouts[2])):
        sizes = tuple(1 if step == 0 else size for size, step in zip(shape, layout, strict=True))
        views.append((sizes, tuple(step or 1 for step in layout)))
        constants |= {f"{name}_M": tile_m if layout[2] else 1, f"{name}_N": tile_n if layout[3] else 1}
    views.append((shape, layouts[3]))
    return Plan(grid, constants=constants, index_bits=bits, views=tuple(views))


def launch(x, w, b, tanh):
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if out.numel() == 0:
        return out
    x, w, b = walkable(x, w.expand(x.shape), b.expand(x.shape))
    shapes, strides = (x.shape, w.shape, b.shape), (x.stride(), w.stride(), b.stride())
    p = plan(shapes, strides, x.dtype, limits_of(x.device), tanh, _cutile.bounds_are_optional())
    _cutile.launch(fused_gelu_kernel, p, x, w, b, out)
    return out
