"""GELU of a scaled and shifted input, in one pass over memory."""

from tilekit import arguments, backends

_NAMES = ("x", "w", "b")


def fused_gelu(x, w, b, *, approximate="tanh", backend=None):
    """``gelu(x * w + b)``, element by element.

    Args:
        x: Tensor of any shape and strides; float16, bfloat16, float32 (float64 on the torch backend). NumPy and
            CuPy arrays, and anything with ``__dlpack__``, are taken too, and answered in kind.
        w: The factor: of x's shape, of the shape of its last dimension, or 0-d; of x's dtype and device.
        b: The shift: likewise, and independently of w.
        approximate: ``"tanh"`` for ``0.5 z (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3)))``, ``"none"`` for the exact
            ``0.5 z (1 + erf(z / sqrt(2)))``, as in torch.
        backend: ``"cutile"``, ``"triton"``, ``"cuda"``, ``"torch"``; ``None`` leaves the choice to
            :func:`tilekit.use_backend`, ``TILEKIT_BACKEND`` and auto, in this order.

    Returns:
        A new contiguous array of x's shape and dtype. At the ends it takes the limits: inf at inf, -0 at -inf.

    Differentiable with cuTile, Triton, CUDA C++ and torch; a second time with torch only. The gradients of w and b have
    their own shapes, summed in float32.

    Raises:
        ValueError: shapes, dtypes or devices do not fit, approximate is neither, or the named backend does not serve
            these arguments.
        TypeError: something is no array, or has a dtype that is not floating point.
        tilekit.BackendUnavailable: the named backend cannot run on the inputs' device.

    Source: D. Hendrycks, K. Gimpel, "Gaussian Error Linear Units (GELUs)", 2016.

    >>> import torch, tilekit
    >>> tilekit.fused_gelu(torch.tensor([-1.0, 0.0, 1.0]), torch.tensor(1.0), torch.tensor(0.0))
    tensor([-0.1588,  0.0000,  0.8412])
    """
    (x, w, b), answer = arguments.prepare("fused_gelu", _NAMES, "promote", x, w, b)
    if approximate not in ("tanh", "none"):
        raise ValueError(f"fused_gelu: approximate must be 'tanh' or 'none'; got {approximate!r}")
    check_shapes(x, w, b)
    return answer(backends.run("fused_gelu", backend, (x, w, b), approximate == "tanh"))


def check_shapes(x, w, b) -> None:
    for name, array in (("w", w), ("b", b)):
        # By rank: torch compares symbolic shapes of different ranks, too, and what it traces then depends on the answer.
        rank = array.dim()
        if rank and array.shape != (x.shape if rank == x.dim() else x.shape[-1:]):
            raise ValueError(
                f"fused_gelu: {name} must have x's shape {arguments.shape_of(x)}, its last dimension's "
                f"{tuple(x.shape[-1:])}, or be 0-d; got {arguments.shape_of(array)}"
            )
