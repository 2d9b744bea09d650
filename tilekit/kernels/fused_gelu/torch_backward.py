"""The gradients of fused_gelu by torch's gelu_backward, in float32 inside: for the operator, where torch's autograd has
no say."""

import torch


def launch(grad, x, w, b, tanh, needs):
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    z = torch.addcmul(b.to(wide), x.to(wide), w.to(wide))
    # As in the forward pass: at the ends torch's own slope is NaN; from 100 on it is 1, down from -100 it is 0.
    slope = torch.ops.aten.gelu_backward(
        torch.ones_like(z), z.clamp(-100.0, 100.0), approximate="tanh" if tanh else "none"
    )
    dz = grad.to(wide) * slope
    dx = (dz * w.to(wide)).to(x.dtype).contiguous() if needs[0] else None
    dw = (dz * x.to(wide)).sum_to_size(w.shape).to(w.dtype).contiguous() if needs[1] else None
    return dx, dw, dz.sum_to_size(b.shape).to(b.dtype, copy=True).contiguous() if needs[2] else None
