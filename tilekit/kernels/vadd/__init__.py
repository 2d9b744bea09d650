"""Vector addition: the smallest tile kernel."""

from tilekit import arguments, backends

_NAMES = ("a", "b")


def vadd(a, b, *, backend=None):
    """Add two arrays of one shape, element by element.

    Args:
        a: Tensor of any shape and strides; float16, bfloat16, float32 (float64 on the torch backend). NumPy and
            CuPy arrays, and anything with ``__dlpack__``, are taken too, and answered in kind.
        b: Tensor of a's shape, dtype and device. There is no broadcasting: expand first.
        backend: ``"cutile"``, ``"triton"``, ``"cuda"``, ``"torch"``; ``None`` leaves the choice to
            :func:`tilekit.use_backend`, ``TILEKIT_BACKEND`` and auto, in this order.

    Returns:
        ``a + b``, a new contiguous array of the inputs' shape and dtype.

    Differentiable with cuTile, Triton, CUDA C++ and torch, any number of times.

    Raises:
        ValueError: shapes, dtypes or devices differ, or the named backend does not serve these arguments.
        TypeError: something is no array, or has a dtype that is not floating point.
        tilekit.BackendUnavailable: the named backend cannot run on the inputs' device.

    Source: the definition, as in ``torch.add``.

    >>> import torch, tilekit
    >>> tilekit.vadd(torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0]))
    tensor([11., 22.])
    """
    (a, b), answer = arguments.prepare("vadd", _NAMES, "promote", a, b)
    if a.shape != b.shape:  # here and not in a function: it runs at every call
        check_shapes(a, b)
    return answer(backends.run("vadd", backend, (a, b)))


def check_shapes(a, b) -> None:
    if a.shape != b.shape:
        raise ValueError(
            f"vadd: a and b must have one shape; got {arguments.shape_of(a)} and {arguments.shape_of(b)} "
            "(use torch.broadcast_tensors(a, b) first)"
        )
