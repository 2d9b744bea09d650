"""Rows: how an array of any shape becomes rows under two outer dimensions, for a softmax along any dimension."""

from tilekit.plans import collapse, contiguous_strides, next_power_of_2


def as_rows(shape, strides, dim):
    """``(outer_0, outer_1, N)`` and the strides of the input and of a contiguous output under that shape.

    Returns ``None`` where more than two outer dimensions do not merge.

    >>> as_rows((2, 3, 4), (12, 4, 1), 1)
    ((2, 4, 3), (12, 1, 4), (12, 1, 4))
    """
    out = contiguous_strides(shape)
    outer, *steps = collapse(*((*t[:dim], *t[dim + 1 :]) for t in (shape, strides, out)))
    if len(outer) > 2:
        return None
    pad = 2 - len(outer)
    rows = (*(1,) * pad, *outer, shape[dim])
    return rows, *((*(0,) * pad, *s, t[dim]) for s, t in zip(steps, (strides, out), strict=True))


def least_rows(rows, *layouts):
    """How many of `rows` rows a tile takes at least, given the strides of x and of the output.

    Where neighbouring rows lie closer together than a row's elements do, in either, it is 32 of them, so that
    every access is of whole lines of memory.

    >>> least_rows(4096, (0, 1, 4096), (0, 1, 4096)), least_rows(4096, (0, 300, 1), (0, 300, 1))
    (32, 1)
    """
    across = any(0 < row_step < step for _, row_step, step in layouts)
    return min(32, next_power_of_2(rows)) if across else 1


def walkable(x, dim):
    """x, or a contiguous copy where more than two outer dimensions do not merge; 0-d becomes 1-d."""
    if x.dim() == 0:
        return x.reshape(1)
    return x if as_rows(x.shape, x.stride(), dim) else x.contiguous()
