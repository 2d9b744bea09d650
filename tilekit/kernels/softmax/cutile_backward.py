"""The gradient of softmax in cuTile: dx[i, j] = out[i, j] * (grad[i, j] - sum over j of grad[i, j] * out[i, j]).

Shapes: grad, out and dx have one shape and dtype (float16, bfloat16, float32); grad has any strides, out and dx are
contiguous, and any of their dimensions is the row. Arithmetic is float32.
Work: reads 2n and writes n elements, about 4n FLOPs, so memory is the limit; a row that does not fit into a tile is read
twice.
One block computes TILE_M rows: at once where they fit into one tile, else walking along them in steps of TILE_N.
"""

from functools import lru_cache

import cuda.tile as ct
import torch

from tilekit.kernels import _cutile
from tilekit.kernels.softmax import cutile_kernel
from tilekit.kernels.softmax.rows import walkable
from tilekit.plans import Plan, limits_of


@ct.kernel
def softmax_backward_kernel(grad, out, dx, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int]):
    tiles = ct.cdiv(out.shape[1], TILE_M)
    outer, row, shape = ct.bid(0) // tiles, ct.bid(0) % tiles, (1, TILE_M, TILE_N)
    grad_tile, out_tile = pair(grad, out, (outer, row, 0), shape)
    dx_tile = out_tile * (grad_tile - ct.sum(grad_tile * out_tile, 2, keepdims=True))
    ct.store(dx, (outer, row, 0), dx_tile.astype(dx.dtype), allow_tma=False)


def pair(grad, out, index, shape):
    """Tiles of both, with zeros past the end of a row, which add nothing to its sum."""
    zero = ct.PaddingMode.ZERO
    grad_tile = ct.load(grad, index, shape, padding_mode=zero, allow_tma=False).astype(ct.float32)
    return grad_tile, ct.load(out, index, shape, padding_mode=zero, allow_tma=False).astype(ct.float32)


@ct.kernel
def softmax_backward_wide_kernel(grad, out, dx, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int]):
    tiles, steps = ct.cdiv(out.shape[1], TILE_M), ct.cdiv(out.shape[2], TILE_N)
    outer, row, shape = ct.bid(0) // tiles, ct.bid(0) % tiles, (1, TILE_M, TILE_N)
    total = ct.zeros((1, TILE_M, 1), ct.float32)
    for j in range(steps):
        grad_tile, out_tile = pair(grad, out, (outer, row, j), shape)
        total = total + ct.sum(grad_tile * out_tile, 2, keepdims=True)
    for j in range(steps):
        grad_tile, out_tile = pair(grad, out, (outer, row, j), shape)
        ct.store(dx, (outer, row, j), (out_tile * (grad_tile - total)).astype(dx.dtype), allow_tma=False)


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, dim=-1) -> Plan:
    """Tiles and grid, those of the forward pass over the gradient; `shapes` and `strides` are the gradient's."""
    p = cutile_kernel.plan(shapes, strides, dtype, limits, dim)
    grad, out = p.views
    # The forward pass's hint is left out: two inputs take twice the registers.
    return Plan(p.grid, (), p.constants, {}, p.index_bits, variant=p.variant, views=(grad, out, out))


def launch(grad, out, dim):
    dx = torch.empty_like(out, memory_format=torch.contiguous_format)
    if dx.numel() == 0:
        return dx
    grad, out = walkable(grad, dim), out.contiguous()
    p = plan((grad.shape,), (grad.stride(),), out.dtype, limits_of(out.device), dim)
    _cutile.launch(softmax_backward_wide_kernel if p.variant else softmax_backward_kernel, p, grad, out, dx)
    return dx
