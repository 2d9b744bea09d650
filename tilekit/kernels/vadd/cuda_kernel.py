"""Vector addition in CUDA C++: out[i] = a[i] + b[i].

Shapes: a, b and out have one shape and dtype (float16, bfloat16, float32); a and b have any strides.
Work: reads 2n and writes n elements, n additions: 1/12 FLOP a byte in float32, so memory is the only limit.
One thread adds 16 bytes of neighbouring elements, or one element where the arrays do not begin at multiples of 16
bytes; where the strides do not merge into one, a block adds a tile of 32 columns.
"""

from functools import lru_cache

import torch

from tilekit.kernels import _cuda
from tilekit.plans import MAX_DIMS, Plan, cdiv, collapse, contiguous_strides, grid_of, index_bits, limits_of, walkable

_THREADS = 256


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, aligned=True) -> Plan:
    """Grid and vectors for ``vadd``; `shapes` and `strides` are those of a and b, `aligned` their bases to 16 bytes."""
    shape = shapes[0]
    shape, *layouts = collapse(shape, *strides, contiguous_strides(shape))
    if len(shape) == 1 and all(layout == (1,) for layout in layouts):
        vec = 16 // dtype.itemsize if aligned else 1
        bits = index_bits((shape, (1,)), slack=_THREADS * vec)
        grid = grid_of(cdiv(shape[0], _THREADS * vec))
        return Plan(grid, (shape[0],), {"VEC": vec, "TILE_M": 1}, {"threads": _THREADS}, bits)
    shape = (1,) * (4 - len(shape)) + shape
    layouts = [(0,) * (4 - len(layout)) + layout for layout in layouts]
    tile_m = 32
    grid = grid_of(shape[0], shape[1], cdiv(shape[2], tile_m), cdiv(shape[3], 32))
    reach = (shape[0], shape[1], shape[2] + tile_m, shape[3] + 32)
    bits = index_bits(*((reach, layout) for layout in layouts))
    scalars = (*shape[1:], *layouts[0], *layouts[1], *layouts[2])
    constants = {"VEC": 1, "TILE_M": tile_m}
    return Plan(grid, scalars, constants, {"threads": _THREADS}, bits, variant="vadd_strided")


def launch(a, b):
    out = torch.empty_like(a, memory_format=torch.contiguous_format)
    if out.numel() == 0:
        return out
    if a.dim() > MAX_DIMS:
        a, b = walkable(a, b)
    shapes, strides = (a.shape, b.shape), (a.stride(), b.stride())
    p = plan(shapes, strides, a.dtype, limits_of(a.device), _cuda.aligned(a, b))
    _cuda.launch("vadd", p, a, b, out)
    return out
