"""The gradients of attention by their formulas, a block of rows at a time: for the operator, where torch's autograd has
no say."""

import torch

from tilekit.kernels.flash_attention.torch_kernel import _ROWS

_INF = float("inf")


def launch(grad, grad_lse, query, key, value, out, lse, is_causal, scale, needs):
    dtype, kv_shapes = query.dtype, (key.shape, value.shape)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    grad, query, key, value, out = (a.to(wide) for a in (grad, query, key, value, out))
    delta = (grad * out).sum(-1)
    if grad_lse is not None:
        delta = delta - grad_lse
    group = 1
    if query.shape[:-2] != key.shape[:-2]:
        group = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(group, -3), value.repeat_interleave(group, -3)
    # A row that saw no key has weights of zero.
    lse = lse.masked_fill(lse == -_INF, _INF)
    dq, dk, dv = [], torch.zeros_like(key), torch.zeros_like(value)
    for first in range(0, max(query.shape[-2], 1), _ROWS):
        rows = slice(first, first + _ROWS)
        q, g = query[..., rows, :], grad[..., rows, :]
        weights = (q @ key.mT * scale - lse[..., rows, None]).exp()
        if is_causal:
            seen = torch.ones(weights.shape[-2:], dtype=torch.bool, device=weights.device).tril(first)
            weights = weights.masked_fill(~seen, 0.0)
        d_logits = weights * (g @ value.mT - delta[..., rows, None])
        if is_causal:
            d_logits = d_logits.masked_fill(~seen, 0.0)
        dq.append(d_logits @ finite(key) * scale)
        dk += d_logits.mT @ finite(q) * scale
        dv += weights.mT @ g
    if group > 1:
        dk, dv = (d.unflatten(-3, (-1, group)).sum(-3) for d in (dk, dv))
    dk, dv = (d.reshape(shape) for d, shape in zip((dk, dv), kv_shapes, strict=True))
    found = (torch.cat(dq, -2), dk, dv)
    return tuple(d.to(dtype).contiguous() if needed else None for d, needed in zip(found, needs, strict=True))


def finite(array):
    """A logit of -inf has weight 0 and moves nothing, but 0 times the infinity that made it would be NaN."""
    return array.masked_fill(array.isinf(), 0.0)
