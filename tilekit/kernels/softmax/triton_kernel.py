"""Softmax in Triton: out[i, j] = exp(x[i, j] - max_i) / sum over j of exp(x[i, j] - max_i).

Shapes: x and out have one shape and dtype (float16, bfloat16, float32); x has any strides, and any of its dimensions
is the row. Arithmetic is float32.
Work: reads n and writes n elements, about 5n FLOPs, so memory is the limit; a row that does not fit into a tile is read
twice.
One block computes BLOCK_M rows: at once where they fit into one tile, else walking along them in steps of BLOCK_N.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl

from tilekit.kernels import _triton
from tilekit.kernels.softmax.rows import as_rows, least_rows, walkable
from tilekit.plans import Plan, cdiv, grid_of, index_bits, limits_of, next_power_of_2


@triton.jit
def softmax_kernel(
    x_ptr, out_ptr, rows, N, x_0, x_1, x_n, out_0, out_1, out_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(rows, BLOCK_M)
    outer = (tl.program_id(0) // tiles).to(INDEX)
    offs_m = ((tl.program_id(0) % tiles).to(INDEX) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    offs_n = tl.arange(0, BLOCK_N).to(INDEX)[None, :]
    mask = (offs_m < rows) & (offs_n < N)
    # Past the end of a row lies -inf: it is never the maximum, and its exponential adds nothing.
    x = tl.load(x_ptr + outer * x_0 + offs_m * x_1 + offs_n * x_n, mask=mask, other=float("-inf")).to(tl.float32)
    exponentials = tl.exp(x - tl.max(x, 1)[:, None])
    out = exponentials / tl.sum(exponentials, 1)[:, None]
    out_ptrs = out_ptr + outer * out_0 + offs_m * out_1 + offs_n * out_n
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def softmax_wide_kernel(
    x_ptr, out_ptr, rows, N, x_0, x_1, x_n, out_0, out_1, out_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(rows, BLOCK_M)
    outer = (tl.program_id(0) // tiles).to(INDEX)
    offs_m = ((tl.program_id(0) % tiles).to(INDEX) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    offs_n = tl.arange(0, BLOCK_N).to(INDEX)[None, :]
    x_ptrs = x_ptr + outer * x_0 + offs_m * x_1 + offs_n * x_n
    out_ptrs = out_ptr + outer * out_0 + offs_m * out_1 + offs_n * out_n
    length = tl.cast(N, INDEX)  # `start` takes its type, and passes N by up to a tile
    largest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(0, length, BLOCK_N):
        mask = (offs_m < rows) & (offs_n < length - start)
        x = tl.load(x_ptrs + tl.cast(start, INDEX) * x_n, mask=mask, other=float("-inf")).to(tl.float32)
        new = tl.maximum(largest, tl.max(x, 1))
        # Where all so far is -inf, (-inf) - (-inf) would be NaN; subtract 0 instead.
        safe = tl.where(new == float("-inf"), 0.0, new)
        # The sum so far is relative to the old maximum.
        total = total * tl.exp(largest - safe) + tl.sum(tl.exp(x - safe[:, None]), 1)
        largest = new
    for start in range(0, length, BLOCK_N):
        mask = (offs_m < rows) & (offs_n < length - start)
        x = tl.load(x_ptrs + tl.cast(start, INDEX) * x_n, mask=mask, other=float("-inf")).to(tl.float32)
        out = tl.exp(x - largest[:, None]) / total[:, None]
        tl.store(out_ptrs + tl.cast(start, INDEX) * out_n, out.to(out_ptr.dtype.element_ty), mask=mask)


_TILE = 16_384  # elements of the largest tile: 64 registers a thread in float32 with 8 warps


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, dim=-1) -> Plan:
    """Tiles and grid; `shapes` and `strides` are those of x, whose outer dimensions merge into two at most."""
    (outer, rows, N), x, out = as_rows(shapes[0], strides[0], dim % len(shapes[0]))
    width, least, most = next_power_of_2(N), least_rows(rows, x, out), _TILE
    # Between x's order and another one of the output, a tile goes through shared memory.
    while least > 1 and most * 4 > limits.shared_memory:
        most //= 2
    variant = "" if least * width <= most else "wide"
    block_n = min(8192, most) // least if variant else width
    area = 1024
    if limits.interpreted:  # few large tiles: the interpreter pays for each operation
        block_n, area = min(block_n * 8, width), 2**18
    block_m = min(max(least, area // block_n), next_power_of_2(rows))
    warps = min(8, max(1, block_m * block_n // 512))
    reach = (outer, rows + block_m, N + block_n)
    bits = index_bits((reach, x), (reach, out))
    constants = {"BLOCK_M": block_m, "BLOCK_N": block_n, "INDEX": _triton.INDEX[bits]}
    shared = block_m * block_n * 4 if least > 1 else 0
    grid = grid_of(outer, cdiv(rows, block_m))
    return Plan(grid, (rows, N, *x, *out), constants, {"num_warps": warps}, bits, shared, variant)


def launch(x, dim):
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if out.numel() == 0:
        return out
    x = walkable(x, dim)
    p = plan((x.shape,), (x.stride(),), x.dtype, limits_of(x.device), dim)
    _triton.launch(softmax_wide_kernel if p.variant else softmax_kernel, p, x, out)
    return out
