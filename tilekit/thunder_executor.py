"""An executor for Lightning Thunder that computes attention, softmax and GELU with tilekit.

Thunder turns a PyTorch function into a trace, a list of operations, and hands each operation to an *executor*. The
executor here, :data:`executor`, claims ``torch.nn.functional.scaled_dot_product_attention``, ``torch.softmax`` and
``torch.nn.functional.gelu`` where tilekit serves the arguments. What it does not claim goes to Thunder's next executor,
in the end to PyTorch, with the same result.

Claimed are float16, bfloat16 and float32 on CUDA and CPU devices; attention with head dimensions to 256, without a mask
and without dropout; softmax whose result has its input's dtype. Which backend computes is settled at each call, as
everywhere in tilekit: ``tilekit.use_backend``, ``TILEKIT_BACKEND``, or auto (torch on a CPU tensor). On a GPU, autograd
runs the backward pass in a thread of its own, which ``use_backend`` does not reach; ``TILEKIT_BACKEND`` does.

With the executor, tilekit's own functions are operators in a jitted function, forward and backward; this is the way to
grouped heads, for which Thunder 0.2.6 has no option. A trace names the operators ``tilekit_flash_attention``,
``tilekit_softmax`` and so on, and those of the backward pass ``tilekit_flash_attention_backward``.

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
from functools import lru_cache, reduce
from importlib import metadata

import torch

import tilekit
from tilekit import backends  # noqa: F401  registers torch.ops.tilekit
from tilekit.kernels import flash_attention

_TESTED = "0.2.6"
_NAMED_TENSOR_METHODS = ("align_as", "align_to", "has_names", "refine_names", "rename")


def _missing_methods() -> tuple[str, ...]:
    """The methods of ``torch.Tensor`` that the installed Thunder takes for granted and the installed torch lacks."""
    from packaging.version import Version

    if "thunder" in sys.modules:
        return ()
    # Later versions are left to themselves: if they still fail, their own error says what they lack.
    if Version(metadata.version("lightning-thunder")).release > (0, 2, 6):
        return ()
    return tuple(name for name in _NAMED_TENSOR_METHODS if not hasattr(torch.Tensor, name))


def _absent(name: str):
    def method(self, *args, **kwargs):
        raise NotImplementedError(f"torch {torch.__version__} has no Tensor.{name}, and tilekit only lent its name")

    method.__name__ = name  # Thunder checks it
    return method


def _import_thunder():
    """Thunder, and the names of the methods that torch was lent while it was imported.

    Raises ``ModuleNotFoundError`` where Thunder is not installed, ``ImportError`` after an import of it that failed.
    """
    try:
        missing = _missing_methods()
    except ModuleNotFoundError:  # of its metadata, or of packaging, which comes with it
        raise ModuleNotFoundError(
            f'tilekit.thunder_executor needs Lightning Thunder: pip install "lightning-thunder=={_TESTED}"'
        ) from None
    if any(name.startswith("thunder.") for name in sys.modules) and "thunder" not in sys.modules:
        raise ImportError(
            "an import of thunder failed earlier in this process and left half of it behind; restart Python, and "
            "import tilekit.thunder_executor before thunder"
        )
    for name in missing:
        setattr(torch.Tensor, name, _absent(name))
    try:
        import thunder
    finally:
        for name in missing:
            delattr(torch.Tensor, name)
    return thunder, missing


thunder, lent = _import_thunder()

# These need thunder, which had to be imported with care.
from thunder import TensorProxy  # noqa: E402
from thunder.core.devices import DeviceType  # noqa: E402
from thunder.core.dtypes import to_dtype, to_torch_dtype  # noqa: E402
from thunder.core.prims import OpTags  # noqa: E402
from thunder.core.proxies import NumberProxy, pyval  # noqa: E402
from thunder.core.transforms import get_grad, put_grad, put_grads  # noqa: E402
from thunder.extend import OperatorExecutor, register_executor  # noqa: E402
from thunder.transforms.autocast import maybe_downcast_to, register_autocast_rule  # noqa: E402

executor = OperatorExecutor("tilekit", version=tilekit.__version__)
register_executor(executor)

_DTYPES = (thunder.float16, thunder.bfloat16, thunder.float32)
_DEVICES = (DeviceType.CUDA, DeviceType.CPU)
_LARGEST_HEAD_DIM = 256


def _serves(*arrays: TensorProxy) -> bool:
    """Whether tilekit has kernels for tensors like these, which must agree in dtype and device."""
    first = arrays[0]
    return (
        all(a.dtype == first.dtype and a.device == first.device for a in arrays)
        and first.dtype in _DTYPES
        and first.device.devicetype in _DEVICES
    )


def _make_constant(*values) -> None:
    """Let a trace hold for these numbers only: under cache="symbolic values" they may be others at the next call."""
    for value in values:
        if isinstance(value, NumberProxy):
            value.make_static_constrained()


def _are_constant(*values) -> bool:
    """Whether the trace holds for these numbers only; when an executor is asked, it is too late to see to it."""
    return not any(isinstance(value, NumberProxy) and not value.is_static_constrained() for value in values)


def _operator(function, meta):
    """An operator with the name and signature of a tilekit function, which also stands for it in a jitted function."""
    # An operator's results are not computed again in the backward pass.
    tags = (OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD,)
    name = f"tilekit_{function.__name__}"
    return executor.register_operator(name, meta=meta, fn=function, tags=tags, replaces=function)


def _backward_operator(kernel: str, meta):
    """The operator of a kernel's backward pass; it takes what torch's operator of that name takes."""

    def backward(*inputs, backend):
        # An empty name is settled when the operator runs.
        return getattr(torch.ops.tilekit, f"{kernel}_backward")(*inputs, backend=backend or "")

    return executor.register_operator(f"tilekit_{kernel}_backward", meta=meta, fn=backward)


# Attention


def _attention_meta(
    query, key, value, *, is_causal=False, scale=None, enable_gqa=False, return_lse=False, backend=None
):
    _make_constant(is_causal, scale, enable_gqa, return_lse)
    flash_attention.check_shapes(query, key, value, enable_gqa)
    out = TensorProxy(like=query, shape=(*query.shape[:-1], value.shape[-1]))
    if not return_lse:
        return out
    wide = thunder.float64 if query.dtype == thunder.float64 else thunder.float32
    return out, TensorProxy(like=query, shape=query.shape[:-1], dtype=wide)


tilekit_flash_attention = _operator(tilekit.flash_attention, _attention_meta)
tilekit_flash_attention_backward = _backward_operator(
    "flash_attention",
    lambda grad, grad_lse, query, key, value, out, lse, is_causal, scale, needs, *, backend: tuple(
        TensorProxy(like=a) for a in (query, key, value)
    ),
)


def _differentiate_attention(
    query, key, value, *, is_causal=False, scale=None, enable_gqa=False, return_lse=False, backend=None
):
    out, lse = tilekit_flash_attention(
        query, key, value, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa, return_lse=True, backend=backend
    )
    scale = query.shape[-1] ** -0.5 if scale is None else float(pyval(scale))
    grad_lse = get_grad(lse) if return_lse else None
    inputs = get_grad(out), grad_lse, query, key, value, out, lse, bool(pyval(is_causal)), scale, (True, True, True)
    put_grads((query, key, value), tilekit_flash_attention_backward(*inputs, backend=backend))
    return (out, lse) if return_lse else out


def _can_attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None) -> bool:
    q, k, v = query.shape, key.shape, value.shape
    return (
        attn_mask is None
        and _are_constant(dropout_p, is_causal, scale)
        and pyval(dropout_p) == 0
        and _serves(query, key, value)
        and len(q) == len(k) == len(v) >= 2
        and q[:-2] == k[:-2]
        and k[:-1] == v[:-1]
        and q[-1] == k[-1]
        and 0 < q[-1] <= _LARGEST_HEAD_DIM
        and v[-1] <= _LARGEST_HEAD_DIM
        and (scale is None or math.isfinite(pyval(scale)))
    )


def _attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None):
    return tilekit_flash_attention(query, key, value, is_causal=is_causal, scale=scale)


def _attend_and_differentiate(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None):
    return _differentiate_attention(query, key, value, is_causal=is_causal, scale=scale)


executor.register_implementation(
    tilekit_flash_attention, tilekit_flash_attention, grad_transform=_differentiate_attention
)
executor.register_implementation(
    thunder.torch.scaled_dot_product_attention,
    checker=_can_attend,
    execution_transform=_attend,
    grad_transform=_attend_and_differentiate,
)

# Softmax


def _softmax_meta(x, dim=-1, *, backend=None):
    _make_constant(dim)
    return TensorProxy(like=x)


tilekit_softmax = _operator(tilekit.softmax, _softmax_meta)
tilekit_softmax_backward = _backward_operator("softmax", lambda grad, out, dim, *, backend: TensorProxy(like=out))


def _differentiate_softmax(x, dim=-1, *, backend=None):
    out = tilekit_softmax(x, dim, backend=backend)
    put_grad(x, tilekit_softmax_backward(get_grad(out), out, pyval(dim) % max(x.ndim, 1), backend=backend))
    return out


def _can_softmax(a, /, dim, *, dtype=None) -> bool:
    return _serves(a) and _are_constant(dim) and (dtype is None or to_dtype(dtype) == a.dtype)


executor.register_implementation(tilekit_softmax, tilekit_softmax, grad_transform=_differentiate_softmax)
executor.register_implementation(
    thunder.torch._softmax,
    checker=_can_softmax,
    execution_transform=lambda a, /, dim, *, dtype=None: tilekit_softmax(a, dim),
    grad_transform=lambda a, /, dim, *, dtype=None: _differentiate_softmax(a, dim),
)

# GELU

tilekit_fused_gelu = _operator(
    tilekit.fused_gelu, lambda x, w, b, *, approximate="tanh", backend=None: TensorProxy(like=x)
)
tilekit_fused_gelu_backward = _backward_operator(
    "fused_gelu", lambda grad, x, w, b, tanh, needs, *, backend: tuple(TensorProxy(like=a) for a in (x, w, b))
)


def _differentiate_fused_gelu(x, w, b, *, approximate="tanh", backend=None):
    out = tilekit_fused_gelu(x, w, b, approximate=approximate, backend=backend)
    inputs = get_grad(out), x, w, b, approximate == "tanh", (True, True, True)
    put_grads((x, w, b), tilekit_fused_gelu_backward(*inputs, backend=backend))
    return out


executor.register_implementation(tilekit_fused_gelu, tilekit_fused_gelu, grad_transform=_differentiate_fused_gelu)


@lru_cache(maxsize=64)
def _one_and_zero(dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The w and b with which ``gelu(x * w + b)`` is ``gelu(x)``."""
    return torch.ones((), dtype=dtype, device=device), torch.zeros((), dtype=dtype, device=device)


def _gelu(x, approximate):
    return tilekit.fused_gelu(x, *_one_and_zero(x.dtype, x.device), approximate=approximate)


def _gelu_backward(grad, x, approximate):
    inputs = grad, x, *_one_and_zero(x.dtype, x.device), approximate == "tanh", (True, False, False)
    return torch.ops.tilekit.fused_gelu_backward(*inputs, backend="")[0]


tilekit_gelu = executor.register_operator("tilekit_gelu", meta=lambda x, approximate: TensorProxy(like=x), fn=_gelu)
tilekit_gelu_backward = executor.register_operator(
    "tilekit_gelu_backward", meta=lambda grad, x, approximate: TensorProxy(like=x), fn=_gelu_backward
)


def _can_gelu(a, /, *, approximate="none") -> bool:
    return _serves(a) and approximate in ("none", "tanh")


def _differentiate_gelu(a, /, *, approximate="none"):
    out = tilekit_gelu(a, approximate)
    put_grad(a, tilekit_gelu_backward(get_grad(out), a, approximate))
    return out


executor.register_implementation(
    thunder.torch.gelu,
    checker=_can_gelu,
    execution_transform=lambda a, /, *, approximate="none": tilekit_gelu(a, approximate),
    grad_transform=_differentiate_gelu,
)

# Sums and products: claimed only where tilekit's own functions are called.


def _matmul_meta(a, b, *, backend=None):
    try:
        # Not torch's function: under cache="symbolic values" these are no numbers.
        batch = thunder.clang.compute_broadcast_shape(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        batch = None
    if batch is None or a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matmul: got a {tuple(a.shape)} and b {tuple(b.shape)}; wanted (..., M, K) and (..., K, N)")
    return TensorProxy(like=a, shape=(*batch, a.shape[-2], b.shape[-1]))


tilekit_vadd = _operator(tilekit.vadd, lambda a, b, *, backend=None: TensorProxy(like=a))
tilekit_matmul = _operator(tilekit.matmul, _matmul_meta)


def _differentiate_vadd(a, b, *, backend=None):
    out = tilekit_vadd(a, b, backend=backend)
    put_grads((a, b), (get_grad(out), get_grad(out)))
    return out


def _differentiate_matmul(a, b, *, backend=None):
    out = tilekit_matmul(a, b, backend=backend)
    grad = get_grad(out)
    grad_a = tilekit_matmul(grad, thunder.torch.transpose(b, -2, -1), backend=backend)
    grad_b = tilekit_matmul(thunder.torch.transpose(a, -2, -1), grad, backend=backend)
    put_grads((a, b), (_summed_to(grad_a, a.shape), _summed_to(grad_b, b.shape)))
    return out


def _summed_to(grad, shape):
    """The sum over the dimensions that were broadcast."""
    more = grad.ndim - len(shape)
    dims = [d for d in range(grad.ndim) if d < more or shape[d - more] == 1 != grad.shape[d]]
    return thunder.torch.reshape(thunder.torch.sum(grad, dims, keepdim=True), shape) if dims else grad


executor.register_implementation(tilekit_vadd, tilekit_vadd, grad_transform=_differentiate_vadd)
executor.register_implementation(tilekit_matmul, tilekit_matmul, grad_transform=_differentiate_matmul)


# Autocast, of which Thunder has a rule for each operation: the inputs become what they become outside a jitted function.


def _follow_autocast(operator, *, precision: str):
    @register_autocast_rule(operator.id)
    def rule(*args, dtype, **kwargs):
        arrays = [a for a in args if isinstance(a, TensorProxy)]
        wanted = {
            "lower": lambda: dtype,
            "float32": lambda: arrays[0].dtype if arrays[0].device.devicetype == DeviceType.CPU else thunder.float32,
            "promoted": lambda: reduce(_promoted, (a.dtype for a in arrays if a.ndim or not arrays[0].ndim)),
        }[precision]()
        return operator(*maybe_downcast_to(wanted, args), **kwargs)


def _promoted(a, b):
    return to_dtype(torch.promote_types(to_torch_dtype(a), to_torch_dtype(b)))


_follow_autocast(tilekit_flash_attention, precision="lower")
_follow_autocast(tilekit_matmul, precision="lower")
_follow_autocast(tilekit_softmax, precision="float32")
_follow_autocast(tilekit_vadd, precision="promoted")
_follow_autocast(tilekit_fused_gelu, precision="promoted")
