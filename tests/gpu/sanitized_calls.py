"""What test_sanitized.py runs under compute-sanitizer: one kernel, forward and backward, at sizes that fit no tile."""

import sys

import torch

import tilekit
from tilekit import cuda_cpp

PLANTED = {
    # The last block writes past the end.
    "planted for memcheck": """
extern "C" __global__ void planted(float* x, int n) { x[blockIdx.x * blockDim.x + threadIdx.x] = n; }
""",
    # Between the write and the neighbour's read a __syncthreads() is missing.
    "planted for racecheck": """
extern "C" __global__ void planted(float* x, int n) {
    __shared__ float tile[256];
    tile[threadIdx.x] = threadIdx.x;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = tile[255 - threadIdx.x];
}
""",
}


def arguments(name: str, dtype: torch.dtype):
    """Arrays that begin off a 16-byte boundary or have strides, and keyword arguments."""

    def randn(*shape):  # made on the CPU, so that only tilekit's kernels run checked
        flat = torch.randn(torch.Size(shape).numel() + 1).to(dtype).cuda()
        return flat[1:].view(shape).detach().requires_grad_()

    if name == "vadd":
        return (randn(3, 1001), randn(1001, 3).mT), {}
    if name == "fused_gelu":
        return (randn(37, 1001), randn(1001), randn(1001)), {}
    if name == "softmax":
        return (randn(67, 1003),), {}
    if name == "matmul":
        return (randn(2, 131, 77), randn(85, 77).mT), {}
    queries, keys, values = randn(1, 4, 131, 72), randn(1, 2, 77, 72), randn(1, 2, 77, 40)
    return (queries, keys, values), {"is_causal": True, "enable_gqa": True}


def main(call: str) -> None:
    if call in PLANTED:
        x = torch.empty(2**22 // 4 + 1, device="cuda")
        n = x.numel() if "memcheck" in call else 1000
        blocks = 2**22 // 256 if "memcheck" in call else 4
        cuda_cpp.kernel(PLANTED[call], "planted").launch(blocks, 256, x, n)
        torch.cuda.synchronize()
        return
    for dtype in (torch.float32, torch.float16):
        args, kwargs = arguments(call, dtype)
        out = getattr(tilekit, call)(*args, **kwargs, backend="cuda")
        torch.autograd.grad(out, args, torch.ones(out.shape, dtype=dtype).cuda())
    torch.cuda.synchronize()


main(sys.argv[1])
