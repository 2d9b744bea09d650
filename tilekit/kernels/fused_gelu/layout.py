"""How the gradient of fused_gelu walks its arrays, and how those of w and b come to their own shapes."""

import torch

from tilekit.plans import collapse, contiguous_strides

# What becomes of a tile of a parameter's gradient: nothing, an element for each of x's, or sums over rows or over all.
NONE, FULL, COLUMNS, TOTAL = range(4)


def kind(parameter, x, needed: bool) -> int:
    """How a parameter's gradient is reduced: `needed` or not, and of which of its three shapes."""
    if not needed:
        return NONE
    if parameter.shape == x.shape:
        return FULL
    return COLUMNS if parameter.dim() else TOTAL


def as_tiles(shape, *strides):
    """Three dimensions of rows and one of columns: the shape, then the strides of each array and of a contiguous one.

    The last dimension stays one of its own, because w and b may repeat along all others. Returns ``None`` where the
    others do not merge into three.

    >>> as_tiles((2, 3, 4), (12, 4, 1), (0, 0, 1))
    ((1, 1, 6, 4), (0, 0, 4, 1), (0, 0, 0, 1), (0, 0, 4, 1))
    """
    layouts = (*strides, contiguous_strides(shape))
    rows, *merged = collapse(shape[:-1], *(layout[:-1] for layout in layouts))
    if len(rows) > 3:
        return None
    pad = 3 - len(rows)
    return (
        (*(1,) * pad, *rows, shape[-1]),
        *((*(0,) * pad, *steps, layout[-1]) for steps, layout in zip(merged, layouts, strict=True)),
    )


def gradients(launch, grad, x, w, b, tanh, needs):
    """dx, dw and db, each of its input's own shape and dtype, ``None`` where `needs` does not ask for it.

    `launch` gets views that :func:`as_tiles` takes, the kinds of dw and db, and a function that makes room for their
    sums, one row for each row of tiles. Those are added up here: in float32, and in the same order each time.
    """
    kinds = kind(w, x, needs[1]), kind(b, x, needs[2])
    dx = torch.empty_like(x, memory_format=torch.contiguous_format) if needs[0] else None
    if x.numel() == 0:
        return dx, *(torch.zeros_like(a) if k else None for a, k in zip((w, b), kinds, strict=True))
    flat = x.reshape(1) if x.dim() == 0 else x
    arrays = [a.expand(flat.shape) for a in (grad, flat, w, b)]
    if not as_tiles(flat.shape, *(a.stride() for a in arrays)):
        # What repeats merges with anything; contiguous copies of the others do.
        arrays = [a if not any(a.stride()[:-1]) else a.contiguous() for a in arrays]
    sums = []

    def room(tiles_m: int, tiles_n: int):
        """Where the kernel writes dw and db: the gradient itself, or sums over one tile each."""
        for k in kinds:
            shape = {FULL: x.shape, COLUMNS: (tiles_m, flat.shape[-1]), TOTAL: (tiles_m, tiles_n)}.get(k)
            dtype = x.dtype if k == FULL else torch.float32
            sums.append(None if shape is None else torch.empty(shape, dtype=dtype, device=x.device))
        return sums

    launch(arrays, dx, kinds, room, tanh)
    found = []
    for k, part in zip(kinds, sums, strict=True):
        if k == COLUMNS:
            part = part.sum(0).to(x.dtype)
        elif k == TOTAL:
            part = part.sum().to(x.dtype)
        found.append(part)
    return dx, *found
