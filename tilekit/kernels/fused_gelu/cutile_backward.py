"""The gradients of GELU(x * w + b) in cuTile, in one pass.

With z = x * w + b and dz = grad * gelu'(z): dx = dz * w, dw = sum(dz * x) and db = sum(dz), the sums over what w and b
repeat along. z is computed again, so nothing but the inputs is kept from the forward pass.

Shapes: as in the forward kernel; grad has x's shape and any strides. Sums are float32.
Work: reads 2n elements and writes n (and more where w and b have x's shape); about 30 FLOPs an element, so memory is
the limit.
One block computes one tile of dx, of TILE_M x TILE_N elements, and one row (or one number) of sums for each
parameter; torch adds those up. No atomics, so the result is the same each time.
"""

from functools import lru_cache

import cuda.tile as ct

from tilekit.kernels import _cutile
from tilekit.kernels.fused_gelu.cutile_kernel import normal_cdf, repeated
from tilekit.kernels.fused_gelu.layout import COLUMNS, FULL, NONE, TOTAL, as_tiles, gradients
from tilekit.plans import (
    GRID_MAX_CUTILE,
    Plan,
    cdiv,
    contiguous_strides,
    grid_of,
    index_bits,
    limits_of,
    next_power_of_2,
)

ZERO = ct.PaddingMode.ZERO


@ct.kernel
def fused_gelu_backward_kernel(
    grad, x, w, b, dx, dw, db,
    TANH: ct.Constant[bool], DX: ct.Constant[bool], DW: ct.Constant[int], DB: ct.Constant[int],
    TILE_M: ct.Constant[int], TILE_N: ct.Constant[int],
    W_M: ct.Constant[int], W_N: ct.Constant[int], B_M: ct.Constant[int], B_N: ct.Constant[int],
):  # fmt: skip
    tiles_m, tiles_n = ct.cdiv(x.shape[2], TILE_M), ct.cdiv(x.shape[3], TILE_N)
    tile, outer = ct.bid(0) % (tiles_m * tiles_n), ct.bid(0) // (tiles_m * tiles_n)
    i_0, i_1, i_m, i_n = outer // x.shape[1], outer % x.shape[1], tile // tiles_n, tile % tiles_n
    index, shape = (i_0, i_1, i_m, i_n), (1, 1, TILE_M, TILE_N)
    # Zeros past the ends add nothing to the sums.
    grad_tile = ct.load(grad, index, shape, padding_mode=ZERO).astype(ct.float32)
    x_tile = ct.load(x, index, shape, padding_mode=ZERO).astype(ct.float32)
    # Where w or b repeats along an axis, its array has size 1 there, and its tile is broadcast.
    w_index, b_index = repeated(i_0, i_1, i_m, i_n, w, W_M, W_N), repeated(i_0, i_1, i_m, i_n, b, B_M, B_N)
    w_tile = ct.load(w, w_index, (1, 1, W_M, W_N), padding_mode=ZERO).astype(ct.float32)
    b_tile = ct.load(b, b_index, (1, 1, B_M, B_N), padding_mode=ZERO).astype(ct.float32)
    dz = grad_tile * slope(x_tile * w_tile + b_tile, TANH)
    if DX:
        ct.store(dx, index, (dz * w_tile).astype(dx.dtype))
    parameter(dw, index, dz * x_tile, DW)
    parameter(db, index, dz, DB)


def parameter(array, index, tile, KIND):
    """Store a parameter's gradient, or what this tile adds to it."""
    if KIND == FULL:
        ct.store(array, index, tile.astype(array.dtype))
    elif KIND == COLUMNS:
        ct.store(array, index, ct.sum(tile, 2, keepdims=True))
    elif KIND == TOTAL:
        ct.store(array, index, ct.sum(ct.sum(tile, 3, keepdims=True), 2, keepdims=True))


def slope(z, TANH):
    """gelu'(z), with the limits at both ends: 1 at inf, 0 at -inf."""
    # At 100 and beyond both forms are at their limits; inf itself would give inf * 0. A NaN stays one.
    z = ct.where(z < -100.0, -100.0, ct.where(z > 100.0, 100.0, z))
    if TANH:
        # gelu is z s(u) with s(u) = 1 / (1 + exp(-u)), u = z (1.5958 + 0.07135 z^2), so its slope is s + z s (1 - s) u'.
        gate = 1.0 / (1.0 + ct.exp2(z * (-2.302208198144325 - 0.1029432395800235 * z * z)))
        return gate + z * gate * (1.0 - gate) * (1.5957691216057308 + 0.21406444881780076 * z * z)
    else:
        return normal_cdf(z) + z * 0.3989422804014327 * ct.exp(-0.5 * z * z)


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, tanh=True, dx=True, kinds=(NONE, NONE)) -> Plan:
    """Tiles and grid; `shapes` and `strides` are those of grad, x, w and b, all expanded to x's shape.

    `dx` says whether x's gradient is wanted, `kinds` what becomes of those of w and b (see ``layout.py``).
    """
    shape, *layouts = as_tiles(shapes[1], *strides)
    out = layouts[4]
    wide = 128 if all(layout[3] in (0, 1) for layout in layouts) else 64
    area = 2048 if shape[2] > 1 else 1024
    tile_n = min(area if shape[2] == 1 else wide, next_power_of_2(shape[3]))
    tile_m = min(area // tile_n, next_power_of_2(shape[2]))
    tiles_m, tiles_n = cdiv(shape[2], tile_m), cdiv(shape[3], tile_n)
    grid = grid_of(shape[0], shape[1], tiles_m, tiles_n, most=GRID_MAX_CUTILE)
    reach = (shape[0], shape[1], shape[2] + tile_m, shape[3] + tile_n)
    bits = index_bits(*((reach, layout) for layout in layouts))
    constants = {"TANH": tanh, "DX": dx, "DW": kinds[0], "DB": kinds[1], "TILE_M": tile_m, "TILE_N": tile_n}
    views = [(shape, layouts[0]), (shape, layouts[1])]
    for name, layout in (("W", layouts[2]), ("B", layouts[3])):
        sizes = tuple(1 if step == 0 else size for size, step in zip(shape, layout, strict=True))
        views.append((sizes, tuple(step or 1 for step in layout)))
        constants |= {f"{name}_M": tile_m if layout[2] else 1, f"{name}_N": tile_n if layout[3] else 1}
    sums = {COLUMNS: (*shape[:2], tiles_m, shape[3]), TOTAL: (*shape[:2], tiles_m, tiles_n)}
    # What is not wanted is not written, so x stands in its place.
    views.append((shape, out) if dx else views[1])
    for kind in kinds:
        view = {NONE: views[1], FULL: (shape, out)}.get(kind)
        views.append(view or (sums[kind], contiguous_strides(sums[kind])))
    return Plan(grid, constants=constants, index_bits=bits, views=tuple(views))


def launch(grad, x, w, b, tanh, needs):
    """dx, dw and db, contiguous and of their inputs' shapes; ``None`` where `needs` does not ask for it."""
    return gradients(_launch, grad, x, w, b, tanh, needs)


def _launch(arrays, dx, kinds, room, tanh):
    shapes, strides = tuple(a.shape for a in arrays), tuple(a.stride() for a in arrays)
    x = arrays[1]
    p = plan(shapes, strides, x.dtype, limits_of(x.device), tanh, dx is not None, kinds)
    tiles_n = cdiv(x.shape[-1], p.constants["TILE_N"])
    results = (x if a is None else a for a in (dx, *room(p.grid[0] // tiles_n, tiles_n)))
    _cutile.launch(fused_gelu_backward_kernel, p, *arrays, *results)
