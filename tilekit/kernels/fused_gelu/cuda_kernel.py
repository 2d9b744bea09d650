"""GELU(x * w + b) in CUDA C++, in one pass.

Shapes: x and out have one shape and dtype (float16, bfloat16, float32), any strides; w and b have x's shape, that of
its last dimension, or are 0-d, and are read through strides of 0 where they repeat.
Work: reads n elements of x (and as many of w and b where they have x's shape) and writes n; about 20 FLOPs an element,
so memory is the limit. Unfused, x * w, + b and gelu would move 6n elements instead of 2n.
One thread computes 16 bytes of neighbouring elements where the arrays allow it, else one element; where the strides do
not merge into one, a block computes a tile of rows.
"""

from functools import lru_cache

import torch

from tilekit.kernels import _cuda
from tilekit.plans import Plan, cdiv, collapse, contiguous_strides, grid_of, index_bits, limits_of, walkable

_THREADS = 256


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, tanh=True, aligned=True) -> Plan:
    """Grid and vectors; `shapes` and `strides` are those of x, w and b, all expanded to x's shape."""
    shape = shapes[0]
    shape, *layouts = collapse(shape, *strides, contiguous_strides(shape))
    vec = 16 // dtype.itemsize if aligned else 1
    if len(shape) == 1 and layouts[0] == (1,) and all(step in ((0,), (1,)) for step in layouts):
        bits = index_bits((shape, (1,)), slack=_THREADS * vec)
        grid = grid_of(cdiv(shape[0], _THREADS * vec))
        scalars = (shape[0], layouts[1][0], layouts[2][0])
        return Plan(
            grid,
            scalars,
            {"TANH": tanh, "VEC": vec, "TILE_M": 8, "W_ROWS": True, "B_ROWS": True},
            {"threads": _THREADS},
            bits,
        )
    shape = (1,) * (4 - len(shape)) + shape
    layouts = [(0,) * (4 - len(layout)) + layout for layout in layouts]
    if not _rows_of_vectors(shape, layouts, vec):
        vec = 1
    tile_m = 32
    grid = grid_of(shape[0], shape[1], cdiv(shape[2], tile_m), cdiv(shape[3], 32 * vec))
    reach = (shape[0], shape[1], shape[2] + tile_m, shape[3] + 32 * vec)
    bits = index_bits(*((reach, layout) for layout in layouts))
    scalars = (*shape[1:], *layouts[0], *layouts[1], *layouts[2], *layouts[3])
    rows = {"W_ROWS": layouts[1][2] != 0, "B_ROWS": layouts[2][2] != 0}
    constants = {"TANH": tanh, "VEC": vec, "TILE_M": tile_m, **rows}
    return Plan(grid, scalars, constants, {"threads": _THREADS}, bits, variant="fused_gelu_strided")


def _rows_of_vectors(shape, layouts, vec) -> bool:
    """Whether every row is whole vectors that begin at multiples of their size, in x and out, and in w and b or they repeat."""
    if shape[3] % vec or layouts[0][3] != 1 or layouts[3][3] != 1:
        return False
    return all(layout[3] == 0 or layout[3] == 1 and all(step % vec == 0 for step in layout[:3]) for layout in layouts)


def launch(x, w, b, tanh):
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if out.numel() == 0:
        return out
    x, w, b = walkable(x, w.expand(x.shape), b.expand(x.shape))
    shapes, strides = (x.shape, w.shape, b.shape), (x.stride(), w.stride(), b.stride())
    p = plan(shapes, strides, x.dtype, limits_of(x.device), tanh, _cuda.aligned(x, w, b))
    _cuda.launch("fused_gelu", p, x, w, b, out)
    return out
