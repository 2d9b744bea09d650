"""How attention's leading dimensions become the two that the kernels walk, batch and heads; and its default scale."""

from collections.abc import Iterator

import torch
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


def gradients(launch, grad, grad_lse, query, key, value, out, lse, is_causal, scale, needs):
    """What the backward passes of the tile backends share: arrays for the results, and what needs no kernel.

    `launch` gets four-dimensional views of the inputs, the gradient of the log-sum-exp (or ``None``), room for delta,
    and its results. A log-sum-exp's gradient by a logit is that logit's weight, so it is subtracted from delta.
    """
    if 0 in (query.shape[-1], value.shape[-1]):
        # As in the forward pass: a channel of zeros changes nothing.
        arrays = (a if a.shape[-1] else a.new_zeros((*a.shape[:-1], 1)) for a in (query, key, value, out))
        query_, key_, value_, out_ = arrays
        grad_ = grad if grad.shape[-1] else torch.zeros_like(out_)
        found = gradients(launch, grad_, grad_lse, query_, key_, value_, out_, lse, is_causal, scale, needs)
        return tuple(
            None if d is None else d[..., : a.shape[-1]].contiguous()
            for d, a in zip(found, (query, key, value), strict=True)
        )
    need_q, need_kv = needs[0], needs[1] or needs[2]
    device, dtype = query.device, query.dtype
    dq = torch.empty(query.shape, dtype=dtype, device=device) if need_q else None
    dk, dv = (torch.empty(a.shape, dtype=dtype, device=device) if need_kv else None for a in (key, value))
    if lse.numel() == 0 or key.shape[-2] == 0:
        for d in (dq, dk, dv):
            if d is not None:
                d.zero_()
    else:
        out, lse = out.contiguous(), lse.contiguous()[..., None]
        inputs = [query, key, value, grad, out, lse, torch.empty_like(lse)]
        extra = [d for d in (dq, dk, dv) if d is not None] + ([] if grad_lse is None else [grad_lse[..., None]])
        for q, k, v, g, o, s, delta, *views in batches(*inputs, *extra):
            views = iter(views)
            results = tuple(next(views) if needed else None for needed in (need_q, need_kv, need_kv))
            launch((q, k, v, g, o, s), next(views, None), delta, results, is_causal, scale)
    return dq if needs[0] else None, dk if needs[1] else None, dv if needs[2] else None


def default_scale(channels: int) -> float:
    """What logits of so many channels are multiplied by."""
    return max(channels, 1) ** -0.5
