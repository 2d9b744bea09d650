"""Attention with torch: what a torch user would write, and the plain formula where that deviates from the promise."""

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.compiler import is_compiling

from tilekit import arguments

_INF, _NAN = float("inf"), float("nan")
# Of two finite numbers, each times this, the product does not overflow.
_SMALL = {torch.float32: 2.0**-80, torch.float64: 2.0**-540}
_ROWS = 1024  # of the logits that are in memory at a time


def launch(query, key, value, is_causal, scale, return_lse):
    if return_lse or not _logits_are_finite(query, key, value, scale):
        out, lse = _plainly(query, key, value, is_causal, scale)
        return (out, lse) if return_lse else out
    if scale < 0:  # torch's fused kernels look for the largest product before they scale
        query, scale = -query, -scale
    # torch's fused kernels take four dimensions only.
    four = (_aligned(_apart(_with_four_dims(a))) for a in (query, key, value))
    gqa = query.dim() > 2 and query.shape[-3] != key.shape[-3]
    out = F.scaled_dot_product_attention(*four, is_causal=is_causal, scale=scale, enable_gqa=gqa)
    out = out.reshape(*query.shape[:-1], value.shape[-1]).contiguous()
    return _TwiceDifferentiable.apply(out, query, key, value, is_causal, scale) if out.requires_grad else out


class _TwiceDifferentiable(Function):
    """The result of torch's fused kernels, whose gradients cannot be differentiated: where that may be wanted
    (create_graph=True), they come from the plain formula instead."""

    @staticmethod
    def forward(ctx, out, query, key, value, is_causal, scale):
        ctx.save_for_backward(query, key, value)  # the fused kernel keeps these anyway
        ctx.is_causal, ctx.scale = is_causal, scale
        return out.detach()

    @staticmethod
    def backward(ctx, grad):
        if is_compiling():  # autograd's own graph, in which None cannot be added up
            return grad, *(torch.zeros_like(a) for a in ctx.saved_tensors), None, None
        if not torch.is_grad_enabled():
            return grad, None, None, None, None, None
        # Views, for an array may be several of the inputs.
        arrays = [a.view_as(a) for a in ctx.saved_tensors]
        out, _ = _plainly(*arrays, ctx.is_causal, ctx.scale)
        wanted = [a for a in arrays if a.requires_grad]
        found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True))
        return None, *(next(found) if a.requires_grad else None for a in arrays), None, None


def _with_four_dims(a):
    return a[(None,) * (4 - a.dim())] if a.dim() < 4 else a.flatten(0, -4)


def _apart(a):
    """The array, or a copy where its rows share elements, as windows of a signal do: torch's kernel for the CPU gives
    what its memory held before for such a query."""
    return a.contiguous() if a.shape[-2] > 1 and a.stride(-2) < a.shape[-1] and a.stride(-1) else a


def _aligned(a):
    """The array, or a copy whose rows begin at multiples of 16 bytes: torch's fused kernels on a GPU take that for
    granted, and read wrong values or stop the process with a misaligned address where it does not hold."""
    if a.is_cuda and (
        a.data_ptr() % 16 or any(s * a.element_size() % 16 for s in a.stride()[:-1]) or a.stride(-1) != 1
    ):
        # Padded, so that the rows of the copy are aligned too, whatever their length is.
        padding = -a.shape[-1] % (16 // a.element_size())
        return F.pad(a, (0, padding))[..., : a.shape[-1]]
    return a


@torch.no_grad()
def _logits_are_finite(query, key, value, scale) -> bool:
    """Whether no logit can be NaN or infinite, nor a mask's -inf times scale be NaN: torch's kernels differ there.

    Has to wait for the device. Where values cannot be read at all, as while a CUDA graph is captured, it says no.
    """
    if query.is_meta or arguments.wanted_besides((query, key, value)):
        return False
    if query.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    if scale == 0 or 0 in (*query.shape, *key.shape, *value.shape):
        return False
    inner = torch.float64 if query.dtype is torch.float64 else torch.float32
    bound = query.abs().amax().to(inner) * key.abs().amax().to(inner) * query.shape[-1] * max(abs(scale), 1.0)
    return bool(bound < torch.finfo(inner).max / 2)


def _logits(query, key):
    """query @ key.mT, whose gradient is zero, not 0 * inf, where an infinite factor makes a logit of weight 0."""
    product = query @ key.mT
    if not (product.requires_grad or arguments.wanted_besides((product,))):
        return product
    query, key = query.masked_fill(query.isinf(), 0.0), key.masked_fill(key.isinf(), 0.0)
    finite = query @ key.mT
    # What is added is 0, or NaN where the logit is, and brings the gradient. Where finite factors overflow it would be
    # inf - inf, so smaller ones bring it: their gradient is of another size, but it is 0 or NaN there.
    less = _SMALL[query.dtype]
    small = (query * less) @ (key * less).mT
    carrier = torch.where(finite.isinf(), small, finite)
    return product.detach() + (carrier - carrier.detach())


def _plainly(query, key, value, is_causal, scale):
    """The result and its lse by the formula, a block of rows at a time."""
    dtype = query.dtype
    if dtype is not torch.float64:
        query, key, value = query.float(), key.float(), value.float()
    if query.shape[:-2] != key.shape[:-2]:
        group = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(group, -3), value.repeat_interleave(group, -3)
    outs, lses = [], []
    for first in range(0, max(query.shape[-2], 1), _ROWS):
        logits = _logits(query[..., first : first + _ROWS, :], key) * scale
        if is_causal:
            seen = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril(first)
            logits = logits.masked_fill(~seen, -_INF)
        # A row that sees no key is spared torch's logsumexp, whose gradient is NaN there.
        unseen = (logits == -_INF).all(-1)
        logits = logits.masked_fill(unseen[..., None], 0.0)
        lse = logits.logsumexp(-1).masked_fill(unseen, -_INF)
        # Not exp(logits - lse): the log-sum-exp's rounding would be an error of all weights.
        weights = logits.softmax(-1).masked_fill(unseen[..., None], 0.0)
        outs.append(weights @ value)
        lses.append(lse.masked_fill(lse == _INF, _NAN))
    return torch.cat(outs, -2).to(dtype), torch.cat(lses, -1)
