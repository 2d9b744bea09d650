"""Rows: how an array of any shape becomes rows under two outer dimensions, for a softmax along any dimension."""

from tilekit.plans import collapse, contiguous_strides


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


def walkable(x, dim):
    """x, or a contiguous copy where more than two outer dimensions do not merge; 0-d becomes 1-d."""
    if x.dim() == 0:
        return x.reshape(1)
    return x if as_rows(x.shape, x.stride(), dim) else x.contiguous()
