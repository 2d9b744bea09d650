"""Comparing a kernel's gradients with those of its reference in float64, on any device."""

from dataclasses import replace

import torch
from torch import Tensor

import tilekit
from tilekit import kernels
from tilekit.exercises import Make
from tilekit.exercises.checker import difference, tolerance

LAYOUTS = ("contiguous", "transposed", "expanded")


def gradient_like(make: Make, out: Tensor, layout: str) -> Tensor:
    """A gradient for `out` with the strides that autograd may well bring."""
    if layout == "expanded":  # what .sum().backward() sends back
        return make.tensor(1.25).to(out.dtype).expand(out.shape)
    if layout == "transposed":
        return make.randn(*reversed(out.shape)).to(out.dtype).permute(tuple(reversed(range(out.dim()))))
    return make.randn(*out.shape).to(out.dtype)


def cases():
    """The shared cases without those about infinities, which have tests of their own.

    And without logits of a million, at which float32 leaves the log-sum-exp no digits after the point: there the gradients
    of all kernels that keep it, torch's too, are off by a thousandth.
    """
    for name in kernels.NAMES:
        for case in kernels.spec(name).cases:
            args, _ = case.arguments(Make(0, torch.float32)) if not case.needs_gpu else ((), {})
            finite = "sum past" not in case.id and all(
                a.isfinite().all() for a in args if isinstance(a, Tensor) and a.numel()
            )
            if not case.needs_gpu and finite and (not case.expected or "no keys" in case.id or "far mask" in case.id):
                yield name, case


def terms(name: str, args, kwargs) -> int:
    """How many terms an element of a gradient sums up at most."""
    first = args[0]
    if name == "flash_attention":
        query, key, value = args[:3]
        heads = query.shape[-3] // max(key.shape[-3], 1) if query.dim() > 2 else 1
        return query.shape[-1] + value.shape[-1] + max(query.shape[-2] * heads, key.shape[-2])
    if name == "matmul":
        return max(first.numel(), args[1].numel()) // max(
            1, min(first.shape[-1], *first.shape[-2:], *args[1].shape[-2:])
        )
    return {"vadd": 1, "fused_gelu": max(8, first.numel()), "softmax": max(first.shape, default=1)}[name]


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def gradients(function, args, kwargs, grads):
    """The gradients of all tensors among the arguments, given those of the results."""
    leaves = [a.detach().requires_grad_() if isinstance(a, Tensor) else a for a in args]
    results = as_tuple(function(*leaves, **kwargs))
    return torch.autograd.grad(results, [a for a in leaves if isinstance(a, Tensor)], grads)


def check(name, case, dtype, device, backend, seed, layout="contiguous"):
    """``None``, or what is wrong with the gradients of `backend` on this case."""
    spec = kernels.spec(name)
    make = Make(seed, dtype, device)
    args, kwargs = case.arguments(make)
    before = [a.clone() if isinstance(a, Tensor) else a for a in args]

    def function(*a, **k):
        return getattr(tilekit, name)(*a, **k, backend=backend)

    with torch.no_grad():
        results = as_tuple(function(*args, **kwargs))
    grads = [gradient_like(make, r, layout) for r in results]
    grads_before = [g.clone() for g in grads]
    got = gradients(function, args, kwargs, grads)
    wide = [a.double() if isinstance(a, Tensor) else a for a in args]
    # The reference's gate overflows where its slope is zero, and torch's does not.
    reference = spec.torch_own if name == "fused_gelu" else spec.reference
    wanted = gradients(reference, wide, kwargs, [g.double() for g in grads])
    own = gradients(spec.torch_own, args, kwargs, grads) if len(results) == 1 else [None] * len(got)
    for old, new in zip([*before, *grads_before], [*args, *grads], strict=True):
        if isinstance(old, Tensor) and not torch.equal(old.nan_to_num(), new.nan_to_num()):
            return "wrote to an input or a gradient"
    spec = replace(spec, reduction_length=lambda *_, **__: terms(name, args, kwargs))
    tensors = [a for a in args if isinstance(a, Tensor)]
    for number, (g, w, o, a) in enumerate(zip(got, wanted, own, tensors, strict=True)):
        if g.device != a.device:
            return f"gradient {number} is on {g.device}"
        allowed = tolerance(spec, args, kwargs, w, o)
        # Where the terms of a sum cancel, their own size, not that of what is left, is what rounding is relative to.
        if name in ("fused_gelu", "matmul") and w.numel():
            largest = max(t.abs().max().item() for t in (*grads, *tensors) if t.numel())
            allowed += 2 * terms(name, args, kwargs) ** 0.5 * torch.finfo(torch.float32).eps * max(largest, largest**2)
        if name == "softmax" and w.numel():
            # Its sum is a mean of the gradient, with the result's elements as weights, rounded to the dtype.
            largest = grads[0].abs().max().item() * results[0].abs().max().item()
            rounding = torch.finfo(dtype).eps + terms(name, args, kwargs) ** 0.5 * torch.finfo(torch.float32).eps
            allowed += rounding * largest
        if name == "flash_attention" and w.numel():
            # A weight is exp(logit - lse), so its relative error is the absolute one of the log-sum-exp.
            _, lse = spec.reference(*wide, **{**kwargs, "return_lse": True})
            lse = lse[lse.isfinite()]
            largest = lse.abs().max().item() if lse.numel() else 0.0
            allowed += 2 * torch.finfo(torch.float32).eps * largest * w.abs().max().item()
            # Weights and slopes are rounded before their products, as tensor cores want them; torch on a CPU keeps them.
            allowed += torch.finfo(dtype).eps * w.abs().max().item()
        found = difference(g, w, allowed, dtype)
        if found:
            return f"gradient {number}: {found}"
    return None


def error_of_gelus_slope(approximate, backend, device="cpu"):
    """The largest one, and the mean: a wrong constant shows there, however small next to the rounding of each."""
    z = torch.linspace(0, 3, 8192, device=device)
    slopes = []
    for b, way in ((z.clone(), backend), (z.double(), "torch")):
        b.requires_grad_()
        ones = torch.ones_like(b)
        out = tilekit.fused_gelu(torch.zeros_like(b), ones, b, approximate=approximate, backend=way)
        slopes.append(torch.autograd.grad(out, b, ones)[0].double())
    error = slopes[0] - slopes[1]
    return error.abs().max().item(), error.mean().abs().item()
