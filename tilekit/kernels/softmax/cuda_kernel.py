"""Softmax in CUDA C++: out[i, j] = exp(x[i, j] - max_i) / sum over j of exp(x[i, j] - max_i).

Shapes: x and out have one shape and dtype (float16, bfloat16, float32); x has any strides, and any of its dimensions
is the row. Arithmetic is float32.
Work: reads n and writes n elements, about 5n FLOPs, so memory is the limit; a row that does not fit into a block's
registers is read twice.
One warp or one block holds a row in its registers; longer rows, and rows whose neighbours lie closer together than
their own elements, are walked along by a few threads each.
"""

from functools import lru_cache

import torch

from tilekit.kernels import _cuda
from tilekit.kernels.softmax.rows import as_rows, least_rows, walkable
from tilekit.plans import Plan, cdiv, grid_of, index_bits, limits_of, next_power_of_2

_MOST_IN_REGISTERS = 32  # elements a thread
_MOST_THREADS = 512  # a row


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, dim=-1, aligned=True) -> Plan:
    """Grid and threads a row; `shapes` and `strides` are those of x, whose outer dimensions merge into two at most."""
    (outer, rows, N), x, out = as_rows(shapes[0], strides[0], dim % len(shapes[0]))
    bits = index_bits(((outer, rows + 32, N + _MOST_THREADS * 8), x), ((outer, rows + 32, N + _MOST_THREADS * 8), out))
    scalars = (outer, rows, N, *x, *out)
    together = least_rows(rows, x, out)
    vec = 16 // dtype.itemsize
    if not aligned or N % vec or x[2] != 1 or out[2] != 1 or any(step % vec for step in (*x[:2], *out[:2])):
        vec = 1
    if together > 1 or N > _MOST_IN_REGISTERS * _MOST_THREADS:
        threads = 512
        slices = threads // together
        constants = {
            "ONLINE": True, "BLOCK_ROWS": together, "SLICES": slices, "ROW_THREADS": slices,
            "VEC": vec if together == 1 else 1, "PER_THREAD": 1,
        }  # fmt: skip
        grid = grid_of(outer, cdiv(rows, together))
        return Plan(grid, scalars, constants, {"threads": threads}, bits, variant="softmax_online")
    # A warp a row, which needs no shared memory, while its registers hold one.
    row_threads = 32 if N <= 1024 else min(_MOST_THREADS, next_power_of_2(cdiv(N, 16)))
    threads = max(128, row_threads) if row_threads == 32 else row_threads
    # Powers of two, so that lengths that differ a little share one kernel.
    vectors = next_power_of_2(cdiv(N, row_threads * vec))
    constants = {"ONLINE": False, "ROW_THREADS": row_threads, "VEC": vec, "PER_THREAD": vectors}
    grid = grid_of(cdiv(outer * rows, threads // row_threads))
    return Plan(grid, scalars, constants, {"threads": threads}, bits)


def launch(x, dim):
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if out.numel() == 0:
        return out
    x = walkable(x, dim)
    p = plan((x.shape,), (x.stride(),), x.dtype, limits_of(x.device), dim, _cuda.aligned(x))
    _cuda.launch("softmax", p, x, out)
    return out
