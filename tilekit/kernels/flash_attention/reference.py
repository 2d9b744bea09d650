"""Attention in float64: the oracle."""

import torch

_INF, _NAN = float("inf"), float("nan")


def flash_attention(query, key, value, *, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    query, key, value = query.double(), key.double(), value.double()
    if enable_gqa and query.shape[:-2] != key.shape[:-2]:
        group = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(group, -3), value.repeat_interleave(group, -3)
    scale = max(query.shape[-1], 1) ** -0.5 if scale is None else scale
    logits = query @ key.mT * scale
    if is_causal:
        seen = torch.ones_like(logits, dtype=torch.bool).tril()
        logits = logits.masked_fill(~seen, -_INF)
    lse = logits.logsumexp(-1)
    lse = lse.masked_fill(lse == _INF, _NAN)
    # A row that sees no key: its logits are all -inf, and so is its lse.
    weights = (logits - lse.masked_fill(lse == -_INF, 0.0)[..., None]).exp()
    out = weights @ value
    return (out, lse) if return_lse else out
