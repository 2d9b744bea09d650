"""The gradient of softmax in CUDA C++: dx[i, j] = out[i, j] * (grad[i, j] - sum over j of grad[i, j] * out[i, j]).

Shapes: grad, out and dx have one shape and dtype (float16, bfloat16, float32); grad has any strides, out and dx are
contiguous, and any of their dimensions is the row. Arithmetic is float32.
Work: reads 2n and writes n elements, about 4n FLOPs, so memory is the limit; rows that do not fit into a block's
registers are read twice.
Threads share rows as in the forward pass: a warp or a block holds one of grad and one of out, or walks along them.
"""

from dataclasses import replace
from functools import lru_cache

import torch

from tilekit.kernels import _cuda
from tilekit.kernels.softmax import cuda_kernel
from tilekit.kernels.softmax.rows import walkable
from tilekit.plans import Plan, limits_of


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, dim=-1, aligned=True) -> Plan:
    """Grid and threads a row, those of the forward pass over the gradient; `shapes` and `strides` are the gradient's."""
    forward = cuda_kernel.plan(shapes, strides, dtype, limits, dim, aligned)
    constants = dict(forward.constants)
    wide = constants["WIDE"] = constants.pop("ONLINE")
    return replace(forward, constants=constants, variant="softmax_backward_wide" if wide else "")


def launch(grad, out, dim):
    dx = torch.empty_like(out, memory_format=torch.contiguous_format)
    if dx.numel() == 0:
        return dx
    grad, out = walkable(grad, dim), out.contiguous()
    p = plan((grad.shape,), (grad.stride(),), out.dtype, limits_of(out.device), dim, _cuda.aligned(grad, out))
    _cuda.launch("softmax backward", p, grad, out, dx)
    return dx
