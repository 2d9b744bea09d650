"""GELU(x * w + b) in Triton, in one pass.

Shapes: x and out have one shape and dtype (float16, bfloat16, float32), any strides; w and b have x's shape, that of
its last dimension, or are 0-d, and are read through strides of 0 where they repeat.
Work: reads n elements of x (and as many of w and b where they have x's shape) and writes n; about 20 FLOPs an element,
so memory is the limit. Unfused, x * w, + b and gelu would move 6n elements instead of 2n.
One block computes one tile: BLOCK consecutive elements, or BLOCK_M x BLOCK_N where the strides do not merge into one.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl

from tilekit.kernels import _triton
from tilekit.plans import (
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


@triton.jit
def fused_gelu_kernel(
    x_ptr, w_ptr, b_ptr, out_ptr, n,
    TANH: tl.constexpr, W_SCALAR: tl.constexpr, B_SCALAR: tl.constexpr, BLOCK: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    offs = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask).to(tl.float32)
    # A 0-d w or b is one load a block; read through a stride of 0 it would be one narrow load an element.
    w = tl.load(w_ptr) if W_SCALAR else tl.load(w_ptr + offs, mask=mask)
    b = tl.load(b_ptr) if B_SCALAR else tl.load(b_ptr + offs, mask=mask)
    out = gelu(x * w.to(tl.float32) + b.to(tl.float32), TANH)
    tl.store(out_ptr + offs, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def gelu(z, TANH: tl.constexpr):
    """z * Phi(z), with the limits at both ends: z at inf, -0 at -inf."""
    # Both forms are -0 from here down; -inf itself would become (-inf) / inf or (-inf) * 0. A NaN stays one.
    # A literal -0.0 would not do: Triton makes +0 of it.
    z = tl.where(z < -100.0, -100.0, z)
    if TANH:
        # 0.5 z (1 + tanh(u)) is z / (1 + exp(-2u)), here in powers of two: -2u = z (-2.302 - 0.1029 z^2) ln 2.
        # The power may overflow to inf, and z / inf is the limit.
        return z / (1.0 + tl.exp2(z * (-2.302208198144325 - 0.1029432395800235 * z * z)))
    else:
        return 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))


@triton.jit
def fused_gelu_strided_kernel(
    x_ptr, w_ptr, b_ptr, out_ptr,
    size_1, size_m, size_n,
    x_0, x_1, x_m, x_n,
    w_0, w_1, w_m, w_n,
    b_0, b_1, b_m, b_n,
    out_0, out_1, out_m, out_n,
    TANH: tl.constexpr, W_ROWS: tl.constexpr, B_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(size_m, BLOCK_M), tl.cdiv(size_n, BLOCK_N)
    pid = tl.program_id(0)
    tile, outer = pid % (tiles_m * tiles_n), pid // (tiles_m * tiles_n)
    i_0, i_1 = (outer // size_1).to(INDEX), (outer % size_1).to(INDEX)
    offs_m = ((tile // tiles_n).to(INDEX) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    offs_n = ((tile % tiles_n).to(INDEX) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    mask = (offs_m < size_m) & (offs_n < size_n)
    x = tl.load(x_ptr + i_0 * x_0 + i_1 * x_1 + offs_m * x_m + offs_n * x_n, mask=mask).to(tl.float32)
    w = operand(w_ptr + i_0 * w_0 + i_1 * w_1, offs_m, offs_n, size_m, size_n, w_m, w_n, W_ROWS)
    b = operand(b_ptr + i_0 * b_0 + i_1 * b_1, offs_m, offs_n, size_m, size_n, b_m, b_n, B_ROWS)
    out_ptrs = out_ptr + i_0 * out_0 + i_1 * out_1 + offs_m * out_m + offs_n * out_n
    tl.store(out_ptrs, gelu(x * w + b, TANH).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def operand(ptr, offs_m, offs_n, size_m, size_n, stride_m, stride_n, ROWS: tl.constexpr):
    """The tile of w or b; one row of it, to be broadcast, where it repeats from row to row."""
    if ROWS:
        mask = (offs_m < size_m) & (offs_n < size_n)
        tile = tl.load(ptr + offs_m * stride_m + offs_n * stride_n, mask=mask)
    else:
        tile = tl.load(ptr + offs_n * stride_n, mask=offs_n < size_n)
    return tile.to(tl.float32)


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, tanh=True) -> Plan:
    """Tiles and grid; `shapes` and `strides` are those of x, w and b, all expanded to x's shape."""
    shape = shapes[0]
    shape, *layouts = collapse(shape, *strides, contiguous_strides(shape))
    if len(shape) == 1 and layouts[0] == (1,) and all(step in ((0,), (1,)) for step in layouts):
        block = 16_384 if limits.interpreted else 8192 // dtype.itemsize
        block = min(block, next_power_of_2(shape[0]))
        bits = index_bits((shape, (1,)), slack=block)
        scalar = {"W_SCALAR": layouts[1] == (0,), "B_SCALAR": layouts[2] == (0,)}
        constants = {"TANH": tanh, **scalar, "BLOCK": block, "INDEX": _triton.INDEX[bits]}
        return Plan(grid_of(cdiv(shape[0], block)), (shape[0],), constants, {"num_warps": 4}, bits)
    shape = (1,) * (4 - len(shape)) + shape
    layouts = [(0,) * (4 - len(layout)) + layout for layout in layouts]
    # Wide tiles where rows are contiguous, squarer ones where they are not and columns may be; timed on an H200.
    area = 16_384 if limits.interpreted else 4096
    wide = 2048 if all(layout[3] in (0, 1) for layout in layouts) else 64
    block_n = min(wide, next_power_of_2(shape[3]))
    block_m = min(area // block_n, next_power_of_2(shape[2]))
    grid = grid_of(shape[0], shape[1], cdiv(shape[2], block_m), cdiv(shape[3], block_n))
    reach = (shape[0], shape[1], shape[2] + block_m, shape[3] + block_n)
    bits = index_bits(*((reach, layout) for layout in layouts))
    rows = {"W_ROWS": layouts[1][2] != 0, "B_ROWS": layouts[2][2] != 0}
    constants = {"TANH": tanh, **rows, "BLOCK_M": block_m, "BLOCK_N": block_n, "INDEX": _triton.INDEX[bits]}
    scalars = (*shape[1:], *layouts[0], *layouts[1], *layouts[2], *layouts[3])
    return Plan(grid, scalars, constants, {"num_warps": 8 if block_n == 2048 else 4}, bits, variant="strided")


def launch(x, w, b, tanh):
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if out.numel() == 0:
        return out
    x, w, b = walkable(x, w.expand(x.shape), b.expand(x.shape))
    shapes, strides = (x.shape, w.shape, b.shape), (x.stride(), w.stride(), b.stride())
    p = plan(shapes, strides, x.dtype, limits_of(x.device), tanh)
    _triton.launch(fused_gelu_strided_kernel if p.variant else fused_gelu_kernel, p, x, w, b, out)
    return out
