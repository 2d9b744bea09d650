"""The kernels as functions that torch differentiates and traces.

A kernel's ``gradient.py`` says what is kept for the backward pass and how the gradients come from it. Here that becomes
an ``autograd.Function`` for calls with gradients, and an operator of torch, ``torch.ops.tilekit.softmax`` and so on,
for whatever only records what is called: ``torch.compile``, ``torch.export``, fake tensors.
"""

import functools
import re
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

import torch
from torch import Tensor, library
from torch.autograd import Function, forward_ad
from torch.compiler import is_compiling

from tilekit import arguments, kernels


class Passes(NamedTuple):
    """How a formula for gradients reaches kernels: `forward` is the kernel itself, differentiable, `backward` its own."""

    forward: Callable
    backward: Callable


def _gradient(kernel: str):
    return import_module(f"tilekit.kernels.{kernel}.gradient")


def differentiable(kernel: str, backend: str, launch: Callable, passes_given: Passes) -> Callable:
    """The launch of a backend that has no gradients of its own, as a function with gradients."""
    gradient = _gradient(kernel)
    attention = kernel == "flash_attention"
    passes = Passes(
        lambda *inputs: passes_given.forward(*_readable(kernel, backend, inputs)),
        _once(kernel, backend, lambda *inputs: passes_given.backward(*_readable(kernel, backend, inputs))),
    )

    def forward(*inputs):
        # The log-sum-exp is kept whether the caller wants it or not.
        return launch(*inputs[:-1], True) if attention else launch(*inputs)

    def backward(ctx, *grads):
        return gradient.backward(ctx, passes, *grads)

    # Made by hand for its name, which is what a result's grad_fn shows: softmax_tritonBackward.
    members = {"forward": forward, "setup_context": gradient.save, "backward": backward}
    members = {name: staticmethod(function) for name, function in members.items()}
    Differentiable = type(f"{kernel}_{backend}", (Function,), members)
    if not attention:
        return Differentiable.apply

    def call(*inputs):
        result = Differentiable.apply(*inputs)
        return result if inputs[-1] else result[0]

    return call


def _readable(kernel: str, backend: str, inputs):
    """A backward pass's inputs, of which autograd may bring gradients that are not the numbers in their memory."""
    if is_compiling():  # autograd's own graph, which torch can compile, too; the operator sees to it
        return inputs
    for value in inputs:
        # vmap over a backward pass, which is not there in the forward pass to be refused.
        if isinstance(value, Tensor) and not torch._C._has_storage(value):
            raise RuntimeError(
                f"{kernel}: backend {backend!r} takes no batch of gradients at once (is_grads_batched=True, or "
                "vectorize=True of torch.autograd.functional); differentiate them one by one, or use backend='torch'"
            )
    return tuple(value.resolve_neg() if isinstance(value, Tensor) else value for value in inputs)


def _twice(kernel: str, backend: str) -> RuntimeError:
    return RuntimeError(
        f"{kernel}: backend {backend!r} has no gradients of gradients (its backward kernel is not differentiable); "
        "use backend='torch' for them, outside torch.compile, or differentiate once, without create_graph=True"
    )


def _once(kernel: str, backend: str, launch: Callable) -> Callable:
    """A backward pass that refuses to be differentiated, when and only when somebody tries."""

    class Once(Function):
        @staticmethod
        def forward(ctx, *inputs):
            return launch(*inputs)

        @staticmethod
        def backward(ctx, *grads):
            raise _twice(kernel, backend)

    Once.__name__ = Once.__qualname__ = f"{kernel}_{backend}_backward"
    return lambda *inputs: Once.apply(*inputs) if torch.is_grad_enabled() else launch(*inputs)


_SCHEMAS = {
    "vadd": "(Tensor a, Tensor b, *, str backend) -> Tensor",
    "fused_gelu": "(Tensor x, Tensor w, Tensor b, bool tanh, *, str backend) -> Tensor",
    "softmax": "(Tensor x, int dim, *, str backend) -> Tensor",
    "matmul": "(Tensor a, Tensor b, *, str backend) -> Tensor",
    "flash_attention": "(Tensor query, Tensor key, Tensor value, bool is_causal, float? scale, bool return_lse, *, "
    "str backend) -> (Tensor, Tensor)",
}
_BACKWARD_SCHEMAS = {
    "fused_gelu": "(Tensor grad, Tensor x, Tensor w, Tensor b, bool tanh, bool[] needs, *, str backend) "
    "-> (Tensor, Tensor, Tensor)",
    "softmax": "(Tensor grad, Tensor out, int dim, *, str backend) -> Tensor",
    "flash_attention": "(Tensor grad, Tensor? grad_lse, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, "
    "bool is_causal, float? scale, bool[] needs, *, str backend) -> (Tensor, Tensor, Tensor)",
}


def _fake_result(kernel: str, *inputs):
    """What a kernel returns, without values: contiguous, in the first array's dtype."""
    first = inputs[0]
    if kernel == "matmul":
        b = inputs[1]
        return first.new_empty((*torch.broadcast_shapes(first.shape[:-2], b.shape[:-2]), first.shape[-2], b.shape[-1]))
    if kernel == "flash_attention":
        out = first.new_empty((*first.shape[:-1], inputs[2].shape[-1]))
        lse = first.new_empty(first.shape[:-1] if inputs[5] else 0, dtype=_dtype_of_lse(first))
        return out, lse
    return first.new_empty(first.shape)


def _dtype_of_lse(query: Tensor) -> torch.dtype:
    return torch.float64 if query.dtype is torch.float64 else torch.float32


def _fake_gradients(kernel: str, *inputs):
    if kernel == "softmax":
        return inputs[1].new_empty(inputs[1].shape)
    arrays = inputs[1:4] if kernel == "fused_gelu" else inputs[2:5]
    return tuple(a.new_empty(a.shape if needed else 0) for a, needed in zip(arrays, inputs[-1], strict=True))


@functools.cache
def _front(kernel: str) -> tuple:
    """The module of the public function, and the names of the operator's arrays."""
    schema = _SCHEMAS[kernel].partition("->")[0]
    return import_module(f"tilekit.kernels.{kernel}"), re.findall(r"Tensor (\w+)", schema)


def _checked(kernel: str, inputs):
    """An operator's inputs, found right: torch checks their types only, and a kernel reads what it is told to read."""
    front, names = _front(kernel)
    arrays = inputs[: len(names)]
    arguments.check(kernel, names, *arrays)
    if kernel == "softmax":
        return arrays[0], front.checked_dim(arrays[0], inputs[1])
    front.check_shapes(*arrays, *((True,) if kernel == "flash_attention" else ()))
    return inputs


def _checked_backward(kernel: str, inputs):
    """The same for the operator of a backward pass, whose other arrays follow from the forward pass's."""
    if kernel == "softmax":
        grad, out, dim = inputs
        _, dim = _checked(kernel, (out, dim))
        inputs, alike = (grad, out, dim), {"grad": (grad, out.shape, out.dtype)}
    elif kernel == "fused_gelu":
        grad, x, *_ = inputs
        _checked(kernel, inputs[1:4])
        alike = {"grad": (grad, x.shape, x.dtype)}
    else:
        grad, grad_lse, query, key, value, out, lse, *_ = inputs
        _checked(kernel, (query, key, value))
        shape, of_lse = (*query.shape[:-1], value.shape[-1]), (query.shape[:-1], _dtype_of_lse(query))
        alike = {"grad": (grad, shape, query.dtype), "out": (out, shape, query.dtype), "lse": (lse, *of_lse)}
        if grad_lse is not None:
            alike["grad_lse"] = grad_lse, *of_lse
    first = inputs[1 if kernel != "flash_attention" else 2]
    for name, (array, shape, dtype) in alike.items():
        if array.shape != shape or array.dtype is not dtype or array.device != first.device:
            raise ValueError(
                f"{kernel}_backward: {name} must have shape {tuple(shape)} and dtype {dtype}, on {first.device}; got "
                f"{tuple(array.shape)} and {array.dtype}, on {array.device}"
            )
    return inputs


def _with_scale(kernel: str, inputs, query: int, scale: int):
    """An operator's inputs, with attention's default scale in the place of None; `query` and `scale` are positions."""
    if kernel != "flash_attention" or inputs[scale] is not None:
        return inputs
    layout = import_module("tilekit.kernels.flash_attention.layout")
    return *inputs[:scale], layout.default_scale(inputs[query].shape[-1]), *inputs[scale + 1 :]


def call(kernel: str, backend: str, inputs):
    """The operator, for what records calls instead of making them."""
    operator = getattr(torch.ops.tilekit, kernel)
    if kernel != "flash_attention":
        return operator(*inputs, backend=backend)
    *rest, return_lse = inputs
    gradients = torch.is_grad_enabled() and any(a.requires_grad for a in rest[:3])
    out, lse = operator(*rest, return_lse or gradients, backend=backend)
    return (out, lse) if return_lse else out


def call_backward(kernel: str, backend: str, inputs):
    """The operator of a kernel's backward pass; ``None`` for what is not asked for."""
    found = getattr(torch.ops.tilekit, f"{kernel}_backward")(*inputs, backend=backend)
    if isinstance(found, Tensor):
        return found
    return tuple(d if needed else None for d, needed in zip(found, inputs[-1], strict=True))


def register(run_forward: Callable, run_backward: Callable) -> None:
    """Give every kernel its operator. Both functions take a kernel, a backend's name, and an operator's inputs."""
    for kernel in kernels.NAMES:
        _register(kernel, run_forward, run_backward)


def _register(kernel: str, run_forward: Callable, run_backward: Callable) -> None:
    name, backward_name = f"tilekit::{kernel}", f"tilekit::{kernel}_backward"
    gradient = _gradient(kernel)

    def forward(*inputs, backend):
        if getattr(forward_ad, "_current_level", -1) >= 0:  # torch would answer with a tangent of zero
            raise RuntimeError(
                f"{kernel}: torch.ops.tilekit.{kernel} has no forward-mode derivatives (dual tensors, torch.func.jvp); "
                f"call tilekit.{kernel} with backend='torch' for them"
            )
        inputs = _checked(kernel, inputs)
        result = run_forward(kernel, backend, *_with_scale(kernel, inputs, query=0, scale=4))
        # An operator returns as many tensors at every call.
        if kernel == "flash_attention" and not inputs[-1]:
            result = result, inputs[0].new_empty(0, dtype=_dtype_of_lse(inputs[0]))
        return result

    def save(ctx, inputs, keyword_only_inputs, output):
        ctx.backend = keyword_only_inputs["backend"]
        gradient.save(ctx, inputs, output)

    def backward(ctx, *grads):
        def again(*inputs):
            return getattr(torch.ops.tilekit, kernel)(*inputs, backend=ctx.backend)

        def gradients(*inputs):
            return call_backward(kernel, ctx.backend, inputs)

        return gradient.backward(ctx, Passes(again, gradients), *grads)

    library.define(name, _SCHEMAS[kernel])
    library.impl(name, "default", forward)
    library.register_fake(name, lambda *inputs, backend: _fake_result(kernel, *inputs))
    library.register_autograd(name, backward, setup_context=save)
    if kernel not in _BACKWARD_SCHEMAS:
        return

    def backward_kernel(*inputs, backend):
        inputs = _checked_backward(kernel, inputs)
        found = run_backward(kernel, backend, *_with_scale(kernel, inputs, query=2, scale=8))
        if isinstance(found, Tensor):
            return found
        return tuple(inputs[0].new_empty(0) if d is None else d for d in found)

    def keep_name(ctx, inputs, keyword_only_inputs, output):
        ctx.backend = keyword_only_inputs["backend"]

    def refuse(ctx, *grads):
        raise _twice(kernel, ctx.backend)

    library.define(backward_name, _BACKWARD_SCHEMAS[kernel])
    library.impl(backward_name, "default", backward_kernel)
    library.register_fake(backward_name, lambda *inputs, backend: _fake_gradients(kernel, *inputs))
    library.register_autograd(backward_name, refuse, setup_context=keep_name)
