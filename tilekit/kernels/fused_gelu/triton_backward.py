"""The gradients of GELU(x * w + b) in Triton, in one pass.

With z = x * w + b and dz = grad * gelu'(z): dx = dz * w, dw = sum(dz * x) and db = sum(dz), the sums over what w and b
repeat along. z is computed again, so nothing but the inputs is kept from the forward pass.

Shapes: as in the forward kernel; grad has x's shape and any strides. Sums are float32.
Work: reads 2n elements and writes n (and more where w and b have x's shape); about 30 FLOPs an element, so memory is
the limit.
One block computes one tile of dx, of BLOCK_M x BLOCK_N elements, and one row (or one number) of sums for each
parameter; torch adds those up. No atomics, so the result is the same each time.
"""

from functools import lru_cache

import triton
import triton.language as tl

from tilekit.kernels import _triton
from tilekit.kernels.fused_gelu.layout import COLUMNS, FULL, NONE, TOTAL, as_tiles, gradients
from tilekit.kernels.fused_gelu.triton_kernel import operand
from tilekit.plans import Plan, cdiv, grid_of, index_bits, limits_of, next_power_of_2

_FULL, _COLUMNS, _TOTAL = tl.constexpr(FULL), tl.constexpr(COLUMNS), tl.constexpr(TOTAL)


@triton.jit
def fused_gelu_backward_kernel(
    grad_ptr, x_ptr, w_ptr, b_ptr, dx_ptr, dw_ptr, db_ptr,
    size_1, size_m, size_n,
    grad_0, grad_1, grad_m, grad_n,
    x_0, x_1, x_m, x_n,
    w_0, w_1, w_m, w_n,
    b_0, b_1, b_m, b_n,
    out_0, out_1, out_m, out_n,
    TANH: tl.constexpr, DX: tl.constexpr, DW: tl.constexpr, DB: tl.constexpr,
    W_ROWS: tl.constexpr, B_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(size_m, BLOCK_M), tl.cdiv(size_n, BLOCK_N)
    tile_m, tile_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n  # tile_m counts through all outer rows
    outer = tile_m // tiles_m
    i_0, i_1 = (outer // size_1).to(INDEX), (outer % size_1).to(INDEX)
    offs_m = ((tile_m % tiles_m).to(INDEX) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    offs_n = (tile_n.to(INDEX) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    mask = (offs_m < size_m) & (offs_n < size_n)
    grad_ptrs = grad_ptr + i_0 * grad_0 + i_1 * grad_1 + offs_m * grad_m + offs_n * grad_n
    grad = tl.load(grad_ptrs, mask=mask).to(tl.float32)
    x = tl.load(x_ptr + i_0 * x_0 + i_1 * x_1 + offs_m * x_m + offs_n * x_n, mask=mask).to(tl.float32)
    w = operand(w_ptr + i_0 * w_0 + i_1 * w_1, offs_m, offs_n, size_m, size_n, w_m, w_n, W_ROWS)
    b = operand(b_ptr + i_0 * b_0 + i_1 * b_1, offs_m, offs_n, size_m, size_n, b_m, b_n, B_ROWS)
    dz = grad * slope(x * w + b, TANH)
    offs_out = i_0 * out_0 + i_1 * out_1 + offs_m * out_m + offs_n * out_n
    if DX:
        tl.store(dx_ptr + offs_out, (dz * w).to(dx_ptr.dtype.element_ty), mask=mask)
    _parameter(dw_ptr, dz * x, offs_out, offs_n, mask, tile_m, tile_n, size_n, tiles_n, DW, INDEX)
    _parameter(db_ptr, dz, offs_out, offs_n, mask, tile_m, tile_n, size_n, tiles_n, DB, INDEX)


@triton.jit
def _parameter(
    ptr, tile, offs_out, offs_n, mask, tile_m, tile_n, size_n, tiles_n, KIND: tl.constexpr, INDEX: tl.constexpr
):
    """Store a parameter's gradient, or what this tile adds to it."""
    if KIND == _FULL:
        tl.store(ptr + offs_out, tile.to(ptr.dtype.element_ty), mask=mask)
    elif KIND == _COLUMNS:
        sums = tl.sum(tl.where(mask, tile, 0.0), 0)[None, :]
        tl.store(ptr + tile_m.to(INDEX) * size_n + offs_n, sums, mask=offs_n < size_n)
    elif KIND == _TOTAL:
        tl.store(ptr + tile_m.to(INDEX) * tiles_n + tile_n, tl.sum(tl.sum(tl.where(mask, tile, 0.0), 1), 0))


@triton.jit
def slope(z, TANH: tl.constexpr):
    """gelu'(z), with the limits at both ends: 1 at inf, 0 at -inf."""
    # At 100 and beyond both forms are at their limits; inf itself would give inf * 0. A NaN stays one.
    z = tl.where(z < -100.0, -100.0, tl.where(z > 100.0, 100.0, z))
    if TANH:
        # gelu is z s(u) with s(u) = 1 / (1 + exp(-u)), u = z (1.5958 + 0.07135 z^2), so its slope is s + z s (1 - s) u'.
        gate = 1.0 / (1.0 + tl.exp2(z * (-2.302208198144325 - 0.1029432395800235 * z * z)))
        return gate + z * gate * (1.0 - gate) * (1.5957691216057308 + 0.21406444881780076 * z * z)
    else:
        return 0.5 * (1.0 + tl.erf(z * 0.7071067811865476)) + z * 0.3989422804014327 * tl.exp(-0.5 * z * z)


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, tanh=True, dx=True, kinds=(NONE, NONE)) -> Plan:
    """Tiles and grid; `shapes` and `strides` are those of grad, x, w and b, all expanded to x's shape.

    `dx` says whether x's gradient is wanted, `kinds` what becomes of those of w and b (see ``layout.py``).
    """
    shape, *layouts = as_tiles(shapes[1], *strides)
    area = 16_384 if limits.interpreted else 4096
    wide = 128 if all(layout[3] in (0, 1) for layout in layouts) else 64
    if shape[2] == 1:
        wide = area
    block_n = min(wide, next_power_of_2(shape[3]))
    block_m = min(area // block_n, next_power_of_2(shape[2]))
    grid = grid_of(shape[0], shape[1], cdiv(shape[2], block_m), cdiv(shape[3], block_n))
    reach = (shape[0], shape[1], shape[2] + block_m, shape[3] + block_n)
    bits = index_bits(*((reach, layout) for layout in layouts))
    constants = {
        "TANH": tanh, "DX": dx, "DW": kinds[0], "DB": kinds[1],
        "W_ROWS": layouts[2][2] != 0, "B_ROWS": layouts[3][2] != 0,
        "BLOCK_M": block_m, "BLOCK_N": block_n, "INDEX": _triton.INDEX[bits],
    }  # fmt: skip
    scalars = (*shape[1:], *(step for layout in layouts for step in layout))
    return Plan(grid, scalars, constants, {"num_warps": 4 if kinds == (NONE, NONE) else 8}, bits)


def launch(grad, x, w, b, tanh, needs):
    """dx, dw and db, contiguous and of their inputs' shapes; ``None`` where `needs` does not ask for it."""
    return gradients(_launch, grad, x, w, b, tanh, needs)


def _launch(arrays, dx, kinds, room, tanh):
    shapes, strides = tuple(a.shape for a in arrays), tuple(a.stride() for a in arrays)
    x = arrays[1]
    p = plan(shapes, strides, x.dtype, limits_of(x.device), tanh, dx is not None, kinds)
    tiles_n = cdiv(x.shape[-1], p.constants["BLOCK_N"])
    # What is not wanted is not written, so any array may stand in its place.
    results = (x if a is None else a for a in (dx, *room(p.grid[0] // tiles_n, tiles_n)))
    _triton.launch(fused_gelu_backward_kernel, p, *arrays, *results)
