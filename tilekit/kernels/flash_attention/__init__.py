"""Scaled dot-product attention with an online softmax: the L x S matrix of weights is never in memory."""

import math
import numbers

from torch.compiler import is_compiling

from tilekit import arguments, backends
from tilekit.kernels.flash_attention.layout import default_scale

_NAMES = ("query", "key", "value")


def flash_attention(
    query, key, value, *, is_causal=False, scale=None, enable_gqa=False, return_lse=False, backend=None
):
    """Attention: ``softmax(scale * query @ key.mT) @ value``, block by block.

    Args:
        query: Tensor (..., L, E) of any strides; float16, bfloat16, float32 (float64 on the torch backend). NumPy
            and CuPy arrays, and anything with ``__dlpack__``, are taken too, and answered in kind.
        key: Tensor (..., S, E) of query's dtype and device.
        value: Tensor (..., S, Ev) of query's dtype and device. All have the same leading dimensions, zero or more
            of them. The tile backends serve E and Ev to 256.
        is_causal: row i of query sees the keys 0 to i only. Upper-left aligned, also for L != S, as in torch.
        scale: what the logits are multiplied by, any finite float; ``E ** -0.5`` by default.
        enable_gqa: let dimension -3, the heads, be a multiple of key's and value's; query's head h then uses
            their head ``h // (query heads / key heads)``.
        return_lse: return the natural logarithm of each row's sum of exponentials as well.
        backend: ``"cutile"``, ``"triton"``, ``"cuda"``, ``"torch"``; ``None`` leaves the choice to
            :func:`tilekit.use_backend`, ``TILEKIT_BACKEND`` and auto, in this order.

    Returns:
        A new contiguous array (..., L, Ev) of the inputs' dtype; with `return_lse` a pair of it and the log-sum-exp,
        (..., L) in float32 (float64 for float64). A row that sees no key, because S = 0 or because all its logits
        are -inf, is zero and its log-sum-exp -inf. A row that sees a logit of NaN or +inf is NaN, in both. The mask
        hides logits: a NaN or infinity in `value` may reach rows that do not see its key, for 0 * NaN is NaN, as in
        torch.

    Differentiable with cuTile, Triton, CUDA C++ and torch, both results; a second time with torch only. A row that sees no
    key has gradients of zero.

    Raises:
        ValueError: shapes, dtypes or devices do not go together, `scale` is not finite, or the named backend does
            not serve these arguments.
        TypeError: something is no array, or has a dtype that is not floating point, `scale` is no number, or a flag
            is no bool.
        tilekit.BackendUnavailable: the named backend cannot run on the inputs' device.

    Source: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023; the
    arguments are those of ``torch.nn.functional.scaled_dot_product_attention``.

    >>> import torch, tilekit
    >>> query = key = torch.zeros(2, 1)
    >>> tilekit.flash_attention(query, key, torch.tensor([[1.0], [3.0]]), is_causal=True)
    tensor([[1.],
            [2.]])
    """
    (query, key, value), answer = arguments.prepare("flash_attention", _NAMES, "lower_precision_fp", query, key, value)
    for name, flag in (("is_causal", is_causal), ("enable_gqa", enable_gqa), ("return_lse", return_lse)):
        if flag is not True and flag is not False:
            _check_flag(name, flag)
    check_shapes(query, key, value, enable_gqa)
    # A compiled function is for any number of channels: the operator settles its default scale when it runs.
    if scale is not None or not is_compiling() or arguments.in_transform():
        scale = _checked_scale(scale, query.shape[-1])
    arrays = (query, key, value)
    return answer(backends.run("flash_attention", backend, arrays, bool(is_causal), scale, bool(return_lse)))


def _check_flag(name: str, flag) -> None:
    """A mask, or the text "False", must not pass for True; NumPy's booleans may pass for Python's."""
    if type(flag).__name__ not in ("bool", "bool_"):
        hint = " (there is no attn_mask: tilekit's attention knows the causal mask only)" if name == "is_causal" else ""
        raise TypeError(f"flash_attention: {name} must be True or False; got {type(flag).__name__}{hint}")


def check_shapes(query, key, value, enable_gqa: bool) -> None:
    q, k, v = query.shape, key.shape, value.shape
    if len(q) == len(k) == len(v) >= 2 and q[-1] == k[-1] and k[:-1] == v[:-1]:
        if q[:-2] == k[:-2]:
            return
        grouped = len(q) > 2 and q[:-3] == k[:-3] and k[-3] > 0 and q[-3] % k[-3] == 0
        if enable_gqa and grouped:
            return
        fix = " (pass enable_gqa=True if query heads share key heads)" if grouped else ""
        wanted = "query's heads (dimension -3) a multiple of key's, and the other" if enable_gqa else "equal"
        problem = f"wanted {wanted} leading dimensions{' equal' if enable_gqa else ''}{fix}"
    else:
        problem = "wanted query (..., L, E), key (..., S, E) and value (..., S, Ev), of two or more dimensions"
    raise ValueError(f"flash_attention: got query {tuple(q)}, key {tuple(k)} and value {tuple(v)}; {problem}")


def _checked_scale(scale, channels: int) -> float:
    if scale is None:
        return default_scale(channels)
    if not isinstance(scale, numbers.Real):
        raise TypeError(f"flash_attention: scale must be a number or None; got {type(scale).__name__}")
    try:
        scale = float(scale)
    except OverflowError:
        scale = math.inf
    if not math.isfinite(scale):
        raise ValueError(f"flash_attention: scale must be finite; got {scale}")
    return scale
