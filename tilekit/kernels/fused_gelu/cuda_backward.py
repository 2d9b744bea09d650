"""The gradients of GELU(x * w + b) in CUDA C++, in one pass.

With z = x * w + b and dz = grad * gelu'(z): dx = dz * w, dw = sum(dz * x) and db = sum(dz), the sums over what w and b
repeat along. z is computed again, so nothing but the inputs is kept from the forward pass.

Shapes: as in the forward kernel; grad has x's shape and any strides. Sums are float32.
Work: reads 2n elements and writes n (and more where w and b have x's shape); about 30 FLOPs an element, so memory is
the limit.
One block computes a tile of dx, its threads 16 bytes of neighbours each where the arrays allow it, and one row (or one
number) of sums for each parameter; torch adds those up. No atomics, so the result is the same each time.
"""

from functools import lru_cache

from tilekit.kernels import _cuda
from tilekit.kernels.fused_gelu.layout import COLUMNS, FULL, NONE, TOTAL, as_tiles, gradients
from tilekit.plans import Plan, cdiv, grid_of, index_bits, limits_of

_THREADS = 256


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, tanh=True, dx=True, kinds=(NONE, NONE), aligned=True) -> Plan:
    """Tiles and grid; `shapes` and `strides` are those of grad, x, w and b, all expanded to x's shape.

    `dx` says whether x's gradient is wanted, `kinds` what becomes of those of w and b (see ``layout.py``). `aligned`
    says that all four begin at a multiple of 16 bytes.
    """
    shape, *layouts = as_tiles(shapes[1], *strides)
    vec = 16 // dtype.itemsize
    if not aligned or not _rows_of_vectors(shape, layouts, vec):
        vec = 1
    # A warp a row; where there is one row only, the whole block.
    column_threads = 32 if shape[2] > 1 else _THREADS
    tile_m, tile_n = 32, column_threads * vec
    grid = grid_of(shape[0], shape[1], cdiv(shape[2], tile_m), cdiv(shape[3], tile_n))
    reach = (shape[0], shape[1], shape[2] + tile_m, shape[3] + tile_n)
    bits = index_bits(*((reach, layout) for layout in layouts))
    constants = {
        "TANH": tanh, "DX": dx, "DW": kinds[0], "DB": kinds[1], "FULL": FULL, "COLUMNS": COLUMNS, "TOTAL": TOTAL,
        "VEC": vec, "TILE_M": tile_m, "COLUMN_THREADS": column_threads,
    }  # fmt: skip
    scalars = (*shape[1:], *(step for layout in layouts for step in layout))
    return Plan(grid, scalars, constants, {"threads": _THREADS}, bits)


def _rows_of_vectors(shape, layouts, vec) -> bool:
    """Whether all rows are whole vectors that begin at multiples of their size, or repeat one element (not x's)."""
    _, x, _, _, out = layouts
    if shape[3] % vec or x[3] != 1 or out[3] != 1:
        return False
    outer = [axis for axis in range(3) if shape[axis] > 1]
    return all(layout[3] == 0 or layout[3] == 1 and all(layout[a] % vec == 0 for a in outer) for layout in layouts)


def launch(grad, x, w, b, tanh, needs):
    """dx, dw and db, contiguous and of their inputs' shapes; ``None`` where `needs` does not ask for it."""
    return gradients(_launch, grad, x, w, b, tanh, needs)


def _launch(arrays, dx, kinds, room, tanh):
    shapes, strides = tuple(a.shape for a in arrays), tuple(a.stride() for a in arrays)
    x = arrays[1]
    p = plan(shapes, strides, x.dtype, limits_of(x.device), tanh, dx is not None, kinds, _cuda.aligned(*arrays))
    tiles_n = cdiv(x.shape[-1], p.constants["COLUMN_THREADS"] * p.constants["VEC"])
    # What is not wanted is not written, so any array may stand in its place.
    results = (x if a is None else a for a in (dx, *room(p.grid[0] // tiles_n, tiles_n)))
    _cuda.launch("fused_gelu backward", p, *arrays, *results)
