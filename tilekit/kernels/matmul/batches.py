"""Batch dimensions: how a product of many matrices becomes what the kernels walk."""

import torch

from tilekit.plans import CannotServe, collapse, contiguous_strides


def broadcast(a, b):
    """Views of a and b with the same batch dimensions, as ``torch.matmul`` broadcasts them."""
    if a.shape[:-2] == b.shape[:-2]:
        return a, b
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.expand(*batch, -1, -1), b.expand(*batch, -1, -1)


def merged(shapes, strides):
    """Shapes and strides of a, b and out with as few batch dimensions as do: ``((shape, strides), ...)``.

    Where every batch has the same b and a's rows go on from one batch to the next, the batches are one taller matrix:
    its tiles hold rows of several batches, and b is read once instead of once a batch.

    >>> merged(((8, 5, 7), (8, 7, 9)), ((35, 7, 1), (0, 9, 1)))
    (((40, 7), (7, 1)), ((7, 9), (9, 1)), ((40, 9), (9, 1)))
    """
    (*batch, M, K), N = shapes[0], shapes[1][-1]
    (*a_batch, a_m, a_k), (*b_batch, b_k, b_n) = strides
    *out_batch, out_m, out_n = contiguous_strides((*batch, M, N))
    if all(size == 1 for size in batch):
        batch = a_batch = b_batch = out_batch = ()
    elif all(step == 0 or size == 1 for step, size in zip(b_batch, batch, strict=True)):
        rows, a_rows, out_rows = collapse((*batch, M), (*a_batch, a_m), (*out_batch, out_m))
        (*batch, M), (*a_batch, a_m), (*out_batch, out_m) = rows, a_rows, out_rows
        b_batch = (0,) * len(batch)
    else:
        batch, a_batch, b_batch, out_batch = collapse(batch, a_batch, b_batch, out_batch)
    return (
        ((*batch, M, K), (*a_batch, a_m, a_k)),
        ((*batch, K, N), (*b_batch, b_k, b_n)),
        ((*batch, M, N), (*out_batch, out_m, out_n)),
    )


def two_batch_dimensions(a, b, out):
    """The product as products whose batch dimensions merge into two at most: views, no copies."""
    if a.dim() > 4 and len(merged((a.shape, b.shape), (a.stride(), b.stride()))[0][0]) > 4:
        for parts in zip(a.unbind(0), b.unbind(0), out.unbind(0), strict=True):
            yield from two_batch_dimensions(*parts)
    else:
        yield a, b, out


def four_dimensions(shapes, strides):
    """:func:`merged`, filled up to two batch dimensions.

    A filled-in dimension has the stride that the next matrix would have. Any other would do, as its index is always 0,
    but one that is no multiple of 16 bytes keeps cuTile from loading tiles by TMA.
    """
    layouts = merged(shapes, strides)
    if len(layouts[0][0]) > 4:
        raise CannotServe("walks at most two batch dimensions that do not merge")
    return tuple(_filled(shape, steps) for shape, steps in layouts)


def _filled(shape, steps):
    missing = 4 - len(shape)
    extent = max(size * step for size, step in zip(shape, steps, strict=True))
    return (1,) * missing + shape, (extent,) * missing + steps
