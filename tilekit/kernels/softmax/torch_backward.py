"""The gradient of softmax by its formula, in float32 inside: for the operator, where torch's autograd has no say."""

import torch


def launch(grad, out, dim):
    wide = torch.float64 if out.dtype is torch.float64 else torch.float32
    grad, y = grad.to(wide), out.to(wide)
    return (y * (grad - (grad * y).sum(dim, keepdim=True))).to(out.dtype).contiguous()
