"""Vector addition in Triton: out[i] = a[i] + b[i].

Shapes: a, b and out have one shape and dtype (float16, bfloat16, float32); a and b have any strides.
Work: reads 2n and writes n elements, n additions: 1/12 FLOP a byte in float32, so memory is the only limit.
One block adds one tile: BLOCK consecutive elements, or BLOCK_M x BLOCK_N where the strides do not merge into one.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl

from tilekit.kernels import _triton
from tilekit.plans import (
    MAX_DIMS,
    Plan,
    cdiv,
    collapse,
    contiguous_strides,
    index_bits,
    limits_of,
    next_power_of_2,
    walkable,
)


@triton.jit
def vadd_kernel(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    offs = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n  # the last tile may reach past the end
    a = tl.load(a_ptr + offs, mask=mask)
    b = tl.load(b_ptr + offs, mask=mask)
    out = a.to(tl.float32) + b.to(tl.float32)
    tl.store(out_ptr + offs, out, mask=mask)


@triton.jit
def vadd_strided_kernel(
    a_ptr, b_ptr, out_ptr,
    size_1, size_m, size_n,
    a_0, a_1, a_m, a_n,
    b_0, b_1, b_m, b_n,
    out_0, out_1, out_m, out_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(size_m, BLOCK_M), tl.cdiv(size_n, BLOCK_N)
    pid = tl.program_id(0)
    tile, outer = pid % (tiles_m * tiles_n), pid // (tiles_m * tiles_n)
    i_0, i_1 = (outer // size_1).to(INDEX), (outer % size_1).to(INDEX)
    offs_m = ((tile // tiles_n).to(INDEX) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    offs_n = ((tile % tiles_n).to(INDEX) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    mask = (offs_m < size_m) & (offs_n < size_n)
    a = tl.load(a_ptr + i_0 * a_0 + i_1 * a_1 + offs_m * a_m + offs_n * a_n, mask=mask)
    b = tl.load(b_ptr + i_0 * b_0 + i_1 * b_1 + offs_m * b_m + offs_n * b_n, mask=mask)
    out = a.to(tl.float32) + b.to(tl.float32)
    tl.store(out_ptr + i_0 * out_0 + i_1 * out_1 + offs_m * out_m + offs_n * out_n, out, mask=mask)


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits) -> Plan:
    """Tiles and grid for ``vadd``; `shapes` and `strides` are those of a and b."""
    shape = shapes[0]
    shape, *layouts = collapse(shape, *strides, contiguous_strides(shape))
    if len(shape) == 1 and all(layout == (1,) for layout in layouts):
        # Two 16-byte accesses a thread keep enough bytes in flight; fewer blocks are faster to interpret.
        block = 16_384 if limits.interpreted else 8192 // dtype.itemsize
        block = min(block, next_power_of_2(shape[0]))
        bits = index_bits((shape, (1,)), slack=block)
        constants = {"BLOCK": block, "INDEX": _triton.INDEX[bits]}
        return Plan((cdiv(shape[0], block),), (shape[0],), constants, {"num_warps": 4}, bits)
    shape = (1,) * (4 - len(shape)) + shape
    layouts = [(0,) * (4 - len(layout)) + layout for layout in layouts]
    area = 16_384 if limits.interpreted else 2048
    block_n = min(64, next_power_of_2(shape[3]))
    block_m = min(area // block_n, next_power_of_2(shape[2]))
    grid = shape[0] * shape[1] * cdiv(shape[2], block_m) * cdiv(shape[3], block_n)
    # A tile that reaches past the end computes offsets, masked off, up to a tile further.
    reach = (shape[0], shape[1], shape[2] + block_m, shape[3] + block_n)
    bits = index_bits(*((reach, layout) for layout in layouts))
    constants = {"BLOCK_M": block_m, "BLOCK_N": block_n, "INDEX": _triton.INDEX[bits]}
    scalars = (*shape[1:], *layouts[0], *layouts[1], *layouts[2])
    return Plan((grid,), scalars, constants, {"num_warps": 4}, bits, variant="strided")


def launch(a, b):
    out = torch.empty_like(a, memory_format=torch.contiguous_format)
    if out.numel() == 0:
        return out
    if a.dim() > MAX_DIMS:
        a, b = walkable(a, b)
    p = plan((a.shape, b.shape), (a.stride(), b.stride()), a.dtype, limits_of(a.device))
    _triton.launch(vadd_strided_kernel if p.variant else vadd_kernel, p, a, b, out)
    return out
