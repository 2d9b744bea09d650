"""Matrix product: tiles of the result, each summed up over K in fp32."""

import torch

from tilekit import arguments, backends

_NAMES = ("a", "b")


def matmul(a, b, *, backend=None):
    """Multiply matrices, or batches of them: ``a @ b``.

    Args:
        a: Tensor of shape ``(..., M, K)``, any strides; float16, bfloat16, float32 (float64 on the torch backend).
            NumPy and CuPy arrays, and anything with ``__dlpack__``, are taken too, and answered in kind.
        b: Tensor of shape ``(..., K, N)``, of a's dtype and device. Batch dimensions broadcast as torch's.
        backend: ``"cutile"``, ``"triton"``, ``"cuda"``, ``"torch"``; ``None`` leaves the choice to
            :func:`tilekit.use_backend`, ``TILEKIT_BACKEND`` and auto, in this order.

    Returns:
        The product, a new contiguous array of shape ``(..., M, N)`` in the inputs' dtype. Sums are accumulated in
        float32. float32 inputs use TF32 where torch's own setting allows it, else IEEE arithmetic. K = 0 gives zeros.

    Differentiable with cuTile, Triton, CUDA C++ and torch, any number of times. The gradient of an operand that was
    broadcast is summed in float32 within the product.

    Raises:
        ValueError: shapes, dtypes or devices do not fit, or the named backend does not serve these arguments.
        TypeError: something is no array, or has a dtype that is not floating point.
        tilekit.BackendUnavailable: the named backend cannot run on the inputs' device.

    Source: the definition, as in ``torch.matmul``.

    >>> import torch, tilekit
    >>> tilekit.matmul(torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[1., 2.],
            [3., 4.]])
    """
    (a, b), answer = arguments.prepare("matmul", _NAMES, "lower_precision_fp", a, b)
    check_shapes(a, b)
    return answer(backends.run("matmul", backend, (a, b)))


def check_shapes(a, b) -> None:
    for name, array in zip(_NAMES, (a, b), strict=True):
        if array.dim() < 2:
            raise ValueError(
                f"matmul: {name} must have two or more dimensions; got shape {arguments.shape_of(array)} "
                "(add one with [None, :] or [:, None])"
            )
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"matmul: the last dimension of a must equal the last but one of b; got {arguments.shape_of(a)} and "
            f"{arguments.shape_of(b)}"
        )
    if a.dim() != b.dim() or a.shape[:-2] != b.shape[:-2]:
        try:
            torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except RuntimeError:
            raise ValueError(
                f"matmul: the batch dimensions of a and b must broadcast; got {arguments.shape_of(a)} and "
                f"{arguments.shape_of(b)}"
            ) from None
