"""The gradient of softmax in Triton: dx[i, j] = out[i, j] * (grad[i, j] - sum over j of grad[i, j] * out[i, j]).

Shapes: grad, out and dx have one shape and dtype (float16, bfloat16, float32); grad has any strides, out and dx are
contiguous, and any of their dimensions is the row. Arithmetic is float32.
Work: reads 2n and writes n elements, about 4n FLOPs, so memory is the limit; a row that does not fit into a tile is read
twice.
One block computes BLOCK_M rows: at once where they fit into one tile, else walking along them in steps of BLOCK_N.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl

from tilekit.kernels import _triton
from tilekit.kernels.softmax import triton_kernel
from tilekit.kernels.softmax.rows import walkable
from tilekit.plans import Plan, limits_of


@triton.jit
def softmax_backward_kernel(
    grad_ptr, out_ptr, dx_ptr, rows, N, grad_0, grad_1, grad_n, out_0, out_1, out_n,
    WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(rows, BLOCK_M)
    outer = (tl.program_id(0) // tiles).to(INDEX)
    offs_m = ((tl.program_id(0) % tiles).to(INDEX) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    offs_n = tl.arange(0, BLOCK_N).to(INDEX)[None, :]
    grad_ptrs = grad_ptr + outer * grad_0 + offs_m * grad_1 + offs_n * grad_n
    offs_out = outer * out_0 + offs_m * out_1 + offs_n * out_n
    if WIDE:
        length = tl.cast(N, INDEX)  # `start` takes its type, and passes N by up to a tile
        total = tl.zeros((BLOCK_M,), tl.float32)
        for start in range(0, length, BLOCK_N):
            mask = (offs_m < rows) & (offs_n < length - start)
            grad, out = _pair(grad_ptrs, out_ptr + offs_out, tl.cast(start, INDEX), grad_n, out_n, mask)
            total += tl.sum(grad * out, 1)
        for start in range(0, length, BLOCK_N):
            mask = (offs_m < rows) & (offs_n < length - start)
            grad, out = _pair(grad_ptrs, out_ptr + offs_out, tl.cast(start, INDEX), grad_n, out_n, mask)
            dx = (out * (grad - total[:, None])).to(dx_ptr.dtype.element_ty)
            tl.store(dx_ptr + offs_out + tl.cast(start, INDEX) * out_n, dx, mask=mask)
    else:
        mask = (offs_m < rows) & (offs_n < N)
        grad, out = _pair(grad_ptrs, out_ptr + offs_out, 0, grad_n, out_n, mask)
        dx = out * (grad - tl.sum(grad * out, 1)[:, None])
        tl.store(dx_ptr + offs_out, dx.to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _pair(grad_ptrs, out_ptrs, start, grad_n, out_n, mask):
    grad = tl.load(grad_ptrs + start * grad_n, mask=mask, other=0.0).to(tl.float32)
    return grad, tl.load(out_ptrs + start * out_n, mask=mask, other=0.0).to(tl.float32)


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, dim=-1) -> Plan:
    """Tiles and grid, those of the forward pass over the gradient; `shapes` and `strides` are the gradient's."""
    forward = triton_kernel.plan(shapes, strides, dtype, limits, dim)
    constants = {"WIDE": forward.variant == "wide", **forward.constants}
    # Two arrays in one order and one in another pass through shared memory one after the other.
    return Plan(
        forward.grid, forward.arguments, constants, forward.options, forward.index_bits, forward.shared_memory,
        forward.variant,
    )  # fmt: skip


def launch(grad, out, dim):
    dx = torch.empty_like(out, memory_format=torch.contiguous_format)
    if dx.numel() == 0:
        return dx
    grad, out = walkable(grad, dim), out.contiguous()
    p = plan((grad.shape,), (grad.stride(),), out.dtype, limits_of(out.device), dim)
    _triton.launch(softmax_backward_kernel, p, grad, out, dx)
    return dx
