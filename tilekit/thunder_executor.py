"""An executor for Lightning Thunder that computes attention, softmax and GELU with tilekit.

Thunder turns a PyTorch function into a trace, a list of operations, and hands each operation to an *executor*. The
executor here, :data:`executor`, claims ``torch.nn.functional.scaled_dot_product_attention``, ``torch.softmax`` and
``torch.nn.functional.gelu`` where tilekit serves the arguments. What it does not claim goes to Thunder's next executor,
in the end to PyTorch, with the same result.

Claimed are float16, bfloat16 and float32 on CUDA and CPU devices; attention with head dimensions to 256, without a mask
and without dropout; softmax whose result has its input's dtype. Which backend computes is settled at each call, as
everywhere in tilekit: ``tilekit.use_backend``, ``TILEKIT_BACKEND``, or auto (torch on a CPU tensor).

Importing this module imports Thunder. Thunder 0.2.6 names five methods of ``torch.Tensor`` that torch 2.13 no longer
has (those of named tensors), and fails to import there. While it is being imported, and only then, this module lends
torch these methods; :data:`lent` says which. Each raises if it is called. So import this module before ``thunder``.

>>> import torch
>>> from tilekit import thunder_executor
>>> import thunder
>>> jitted = thunder.jit(lambda x: torch.softmax(x, -1), executors=[thunder_executor.executor])
>>> jitted(torch.zeros(4))
tensor([0.2500, 0.2500, 0.2500, 0.2500])
>>> "tilekit_softmax" in str(thunder.last_traces(jitted)[-1])
True

Source: Thunder's documentation, "Adding custom operators", and its module ``thunder.extend``.
"""

import math
import sys
from importlib import metadata
from numbers import Number

import torch

import tilekit

_TESTED = "0.2.6"
_NAMED_TENSOR_METHODS = ("align_as", "align_to", "has_names", "refine_names", "rename")


def _missing_methods() -> tuple[str, ...]:
    """The methods of ``torch.Tensor`` that the installed Thunder takes for granted and the installed torch lacks."""
    if "thunder" in sys.modules:
        return ()
    version = metadata.version("lightning-thunder")
    # Later versions are left to themselves: if they still fail, their own error says what they lack.
    if tuple(int(part) for part in version.split(".")[:3] if part.isdigit()) > (0, 2, 6):
        return ()
    return tuple(name for name in _NAMED_TENSOR_METHODS if not hasattr(torch.Tensor, name))


def _absent(name: str):
    def method(self, *args, **kwargs):
        raise NotImplementedError(f"torch {torch.__version__} has no Tensor.{name}, and tilekit only lent its name")

    method.__name__ = name  # Thunder checks it
    return method


def _import_thunder():
    """Thunder, and the names of the methods that torch was lent while it was imported.

    Raises ``ImportError`` where Thunder is not installed.
    """
    try:
        missing = _missing_methods()
    except metadata.PackageNotFoundError:
        raise ImportError(
            f'tilekit.thunder_executor needs Lightning Thunder: pip install "lightning-thunder=={_TESTED}"'
        ) from None
    for name in missing:
        setattr(torch.Tensor, name, _absent(name))
    try:
        import thunder
    finally:
        for name in missing:
            delattr(torch.Tensor, name)
    return thunder, missing


thunder, lent = _import_thunder()

from thunder import TensorProxy  # noqa: E402  these need thunder, which had to be imported with care
from thunder.core.proxies import pyval  # noqa: E402
from thunder.core.transforms import get_grad, put_grad, put_grads  # noqa: E402
from thunder.extend import OperatorExecutor, register_executor  # noqa: E402

executor = OperatorExecutor("tilekit", version=tilekit.__version__)
register_executor(executor)

_DTYPES = (thunder.float16, thunder.bfloat16, thunder.float32)
_DEVICES = (thunder.devices.DeviceType.CUDA, thunder.devices.DeviceType.CPU)
_LARGEST_HEAD_DIM = 256


def _serves(*arrays: TensorProxy) -> bool:
    """Whether tilekit has kernels for tensors like these, which must agree in dtype and device."""
    first = arrays[0]
    return (
        all(a.dtype == first.dtype and a.device == first.device for a in arrays)
        and first.dtype in _DTYPES
        and first.device.devicetype in _DEVICES
    )


# Attention


def _attention_meta(query, key, value, is_causal, scale, return_lse):
    out = TensorProxy(like=query, shape=(*query.shape[:-1], value.shape[-1]))
    if not return_lse:
        return out
    return out, TensorProxy(like=query, shape=query.shape[:-1], dtype=thunder.float32)


def _attention(query, key, value, is_causal, scale, return_lse):
    return tilekit.flash_attention(query, key, value, is_causal=is_causal, scale=scale, return_lse=return_lse)


def _attention_backward_meta(grad, query, key, value, out, lse, is_causal, scale):
    return tuple(TensorProxy(like=a) for a in (query, key, value))


def _attention_backward(grad, query, key, value, out, lse, is_causal, scale):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    dtype = query.dtype
    grad, query, key, value, out = (a.float() for a in (grad, query, key, value, out))
    weights = (query @ key.mT * scale - lse.masked_fill(lse.isneginf(), math.inf)[..., None]).exp()
    if is_causal:
        weights = weights.tril()
    d_logits = weights * (grad @ value.mT - (grad * out).sum(-1, keepdim=True))
    found = d_logits @ key * scale, d_logits.mT @ query * scale, weights.mT @ grad
    return tuple(d.to(dtype) for d in found)


tilekit_flash_attention = executor.register_operator(
    "tilekit_flash_attention", meta=_attention_meta, fn=_attention, tags=(thunder.core.prims.OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD,)
)
tilekit_flash_attention_backward = executor.register_operator(
    "tilekit_flash_attention_backward", meta=_attention_backward_meta, fn=_attention_backward
)


def _can_attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None) -> bool:
    q, k, v = query.shape, key.shape, value.shape
    return (
        attn_mask is None
        and pyval(dropout_p) == 0
        and _serves(query, key, value)
        and len(q) == len(k) == len(v) >= 2
        and q[:-2] == k[:-2]
        and k[:-1] == v[:-1]
        and q[-1] == k[-1]
        and 0 < q[-1] <= _LARGEST_HEAD_DIM
        and v[-1] <= _LARGEST_HEAD_DIM
        and (scale is None or isinstance(scale, Number) and math.isfinite(pyval(scale)))
    )


def _attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None):
    return tilekit_flash_attention(query, key, value, is_causal, scale, False)


def _attend_with_gradients(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None):
    out, lse = tilekit_flash_attention(query, key, value, is_causal, scale, True)
    grads = tilekit_flash_attention_backward(get_grad(out), query, key, value, out, lse, is_causal, scale)
    put_grads((query, key, value), grads)
    return out


executor.register_implementation(
    thunder.torch.scaled_dot_product_attention,
    checker=_can_attend,
    execution_transform=_attend,
    grad_transform=_attend_with_gradients,
)

# Softmax


def _softmax_backward(grad, out, dim):
    grad, wide = grad.float(), out.float()
    return (wide * (grad - (grad * wide).sum(dim, keepdim=True))).to(out.dtype)


tilekit_softmax = executor.register_operator(
    "tilekit_softmax", meta=lambda x, dim: TensorProxy(like=x), fn=lambda x, dim: tilekit.softmax(x, dim)
)
tilekit_softmax_backward = executor.register_operator(
    "tilekit_softmax_backward", meta=lambda grad, out, dim: TensorProxy(like=out), fn=_softmax_backward
)


def _can_take_softmax(a, /, dim, *, dtype=None) -> bool:
    return _serves(a) and (dtype is None or thunder.dtypes.to_dtype(dtype) == a.dtype)


def _take_softmax(a, /, dim, *, dtype=None):
    return tilekit_softmax(a, dim)


def _take_softmax_with_gradients(a, /, dim, *, dtype=None):
    out = tilekit_softmax(a, dim)
    put_grad(a, tilekit_softmax_backward(get_grad(out), out, dim))
    return out


executor.register_implementation(
    thunder.torch._softmax,
    checker=_can_take_softmax,
    execution_transform=_take_softmax,
    grad_transform=_take_softmax_with_gradients,
)
