"""Softmax along any dimension."""

import operator

from tilekit import arguments, backends

_NAMES = ("x",)


def softmax(x, dim=-1, *, backend=None):
    """``exp(x - max) / sum(exp(x - max))`` along one dimension.

    Args:
        x: Tensor of any shape and strides; float16, bfloat16, float32 (float64 on the torch backend). NumPy and
            CuPy arrays, and anything with ``__dlpack__``, are taken too, and answered in kind.
        dim: the dimension that sums to 1, of any length; negative ones count from the end.
        backend: ``"cutile"``, ``"triton"``, ``"cuda"``, ``"torch"``; ``None`` leaves the choice to
            :func:`tilekit.use_backend`, ``TILEKIT_BACKEND`` and auto, in this order.

    Returns:
        A new contiguous array of x's shape and dtype; the arithmetic is float32. A row with a NaN or +inf, or of -inf
        only, is NaN, as in torch.

    Differentiable with cuTile, Triton, CUDA C++ and torch; a second time with torch only.

    Raises:
        ValueError: dim is out of range, or the named backend does not serve these arguments.
        TypeError: x is no array or not floating point, or dim is no integer.
        tilekit.BackendUnavailable: the named backend cannot run on x's device.

    Source: the definition, as in ``torch.softmax``; for rows longer than a tile: M. Milakov, N. Gimelshein, "Online
    normalizer calculation for softmax", 2018.

    >>> import torch, tilekit
    >>> tilekit.softmax(torch.zeros(4))
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    (x,), answer = arguments.prepare("softmax", _NAMES, "fp32", x)
    try:
        position = None if isinstance(dim, bool) else operator.index(dim)
    except TypeError:
        position = None
    if position is None:
        raise TypeError(f"softmax: dim must be an integer; got {type(dim).__name__}")
    return answer(backends.run("softmax", backend, (x,), checked_dim(x, position)))


def checked_dim(x, dim: int) -> int:
    """`dim` counted from the front."""
    rank = max(x.dim(), 1)
    if not -rank <= dim < rank:
        raise ValueError(f"softmax: dim must be in [{-rank}, {rank - 1}] for shape {arguments.shape_of(x)}; got {dim}")
    return dim % rank
