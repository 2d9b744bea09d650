"""How attention's leading dimensions become the two that the kernels walk: batch and heads."""

from collections.abc import Iterator

from torch import Tensor

from tilekit.plans import collapse


def batches(*arrays: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views of the arrays with exactly four dimensions, (batch, heads, rows, channels); no copies.

    One set of views where the dimensions before the heads merge into one in all arrays, else one for each index
    of the outermost.

    >>> import torch
    >>> [q.shape for q, k in batches(torch.ones(2, 3, 4, 5, 6), torch.ones(2, 3, 1, 7, 6))]
    [torch.Size([6, 4, 5, 6])]
    """
    rank = arrays[0].dim()
    if rank <= 4:
        yield tuple(a[(None,) * (4 - rank)] for a in arrays)
        return
    shape, *layouts = collapse(arrays[0].shape[:-3], *(a.stride()[:-3] for a in arrays))
    if len(shape) == 1:
        yield tuple(
            a.as_strided((*shape, *a.shape[-3:]), (*steps, *a.stride()[-3:]))
            for a, steps in zip(arrays, layouts, strict=True)
        )
        return
    for slices in zip(*arrays, strict=True):
        yield from batches(*slices)
