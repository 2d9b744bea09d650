"""GELU(x * w + b) with torch: what a torch user would write, in float32 inside.

torch's GELU is NaN at -inf, where it computes (-inf) * 0, and some of its kernels are at inf, too. Below -100 both
forms are -0 in every floating-point format and above 100 they are z, so going around it there changes nothing
else, gradients included: filling lets NaN through, whose gradient clamp would call zero.
"""

import math

import torch
import torch.nn.functional as F


def launch(x, w, b, tanh):
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    z = torch.addcmul(b.to(wide), x.to(wide), w.to(wide))
    filled = z.masked_fill(z.abs() > 100.0, -100.0)
    if z.is_cpu and not tanh:
        # Not F.gelu: there it is oneDNN's, which loses the sign of zero on processors without AVX-512.
        inside = filled * (0.5 * torch.erfc(filled * -math.sqrt(0.5)))
    else:
        inside = F.gelu(filled, approximate="tanh" if tanh else "none")
    return torch.where(z > 100.0, z, inside).to(x.dtype).contiguous()
