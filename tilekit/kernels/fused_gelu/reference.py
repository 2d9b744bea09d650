"""GELU(x * w + b) in float64: the oracle."""

import math

import torch


def fused_gelu(x, w, b, approximate="tanh"):
    z = x.double() * w.double() + b.double()
    if approximate == "tanh":
        # 1 + tanh(u) is 2 / (1 + exp(-2u)), which keeps its digits where tanh(u) comes close to -1.
        gate = 1 / (1 + torch.exp(-2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    else:
        gate = 0.5 * torch.erfc(-z / math.sqrt(2))
    # At -inf the product is (-inf) * 0; its limit is -0.
    return torch.where(z == -math.inf, -0.0, z * gate)
