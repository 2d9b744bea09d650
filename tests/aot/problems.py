"""Which calls are compiled ahead of time: for each kernel, every variant that a plan can choose.

An entry is (kernel, what is special about it, function of a dtype that gives the launch's arguments).
"""

import torch


def _array(*shape):
    return lambda dtype: torch.empty(*shape, dtype=dtype, device="meta")


def _transposed(*shape):
    return lambda dtype: torch.empty(*shape, dtype=dtype, device="meta").mT


def _call(*arguments):
    return lambda dtype: tuple(a(dtype) if callable(a) else a for a in arguments)


def _attention(array, is_causal=False):
    return lambda dtype: (array(dtype), array(dtype), array(dtype), is_causal, 0.125, True)


def _attention_backward(array, is_causal=False):
    def call(dtype):
        a = array(dtype)
        lse = torch.empty(a.shape[:-1], dtype=torch.float32, device="meta")
        return a, None, a, a, a, a, lse, is_causal, 0.125, (True, True, True)

    return call


PROBLEMS = (
    ("vadd", "contiguous", _call(_array(1 << 20), _array(1 << 20))),
    ("vadd", "transposed", _call(_transposed(512, 256), _array(256, 512))),
    ("vadd", "64-bit index", _call(_array(2**31 + 8), _array(2**31 + 8))),
    ("matmul", "every tile full", _call(_array(4096, 4096), _array(4096, 4096))),
    ("matmul", "small and ragged", _call(_array(3, 100, 99), _transposed(3, 101, 99))),
    ("matmul", "64-bit index", _call(_array(16, 128), _array(128, 2**25))),
    ("matmul", "one row, one column, one step", _call(_array(1, 1), _array(1, 1))),
    ("fused_gelu", "one shape", _call(_array(1 << 20), _array(1 << 20), _array(1 << 20), True)),
    ("fused_gelu", "last dimension, exact", _call(_array(512, 4096), _array(4096), _array(4096), False)),
    ("softmax", "a row in a tile", _call(_array(512, 4096), 1)),
    ("softmax", "long rows", _call(_array(8, 131_072), 1)),
    ("softmax", "first dimension", _call(_array(300, 4096), 0)),
    ("flash_attention", "128 channels", _attention(_array(2, 4, 1024, 128))),
    ("flash_attention", "64 channels, causal", _attention(_array(2, 4, 1024, 64), is_causal=True)),
    ("flash_attention", "80 channels, ragged, causal", _attention(_array(2, 4, 1000, 80), is_causal=True)),
    ("flash_attention", "256 channels", _attention(_array(2, 4, 1024, 256))),
    ("fused_gelu backward", "one shape", _call(*[_array(1 << 20)] * 4, True, (True, True, True))),
    (
        "fused_gelu backward",
        "last dimension, exact",
        _call(_array(512, 4096), _array(512, 4096), _array(4096), _array(4096), False, (True, True, True)),
    ),
    (
        "fused_gelu backward",
        "0-d, transposed",
        _call(_transposed(512, 300), _array(300, 512), _array(()), _array(()), True, (True, True, True)),
    ),
    ("softmax backward", "a row in a tile", _call(_array(512, 4096), _array(512, 4096), 1)),
    ("softmax backward", "long rows", _call(_array(8, 131_072), _array(8, 131_072), 1)),
    ("softmax backward", "first dimension", _call(_transposed(4096, 300), _array(300, 4096), 0)),
    ("flash_attention backward", "128 channels", _attention_backward(_array(2, 4, 1024, 128))),
    ("flash_attention backward", "80 channels, ragged, causal", _attention_backward(_array(2, 4, 1000, 80), True)),
    ("flash_attention backward", "256 channels", _attention_backward(_array(2, 4, 1024, 256))),
)

# Registers that spill to memory, in bytes a thread, where a plan has some: everything else has none on the architectures
# below. They are the price of IEEE float32 products without tensor cores, of tiles that only just fit into sm_80's
# registers, and of the transposition in cuTile's softmax along a first dimension. (Measured with Triton 3.7.1 and
# tileiras 13.4.92, and rounded up; another compiler may do with more or fewer.)
SPILL_FREE = ("sm_80", "sm_90")
_HALF, _SINGLE = (torch.float16, torch.bfloat16), (torch.float32,)
_ATTENTION_SINGLE = {
    "128 channels": 192,
    "64 channels, causal": 320,
    "80 channels, ragged, causal": 192,
    "256 channels": 1344,
}
_ATTENTION_HALF = {
    "64 channels, causal": 64,
    "128 channels": 64,
    "80 channels, ragged, causal": 64,
    "256 channels": 256,
}


def _backward(to_128: int, at_256: int) -> dict[str, int]:
    return {"128 channels": to_128, "80 channels, ragged, causal": to_128, "256 channels": at_256}


SPILLS = {
    ("triton", "sm_90", "flash_attention", _SINGLE): {"80 channels, ragged, causal": 64},
    ("cutile", "sm_80", "softmax", _HALF + _SINGLE): {"first dimension": 512},
    ("cutile", "sm_90", "softmax", _HALF + _SINGLE): {"first dimension": 512},
    ("cutile", "sm_80", "flash_attention", _HALF): _ATTENTION_HALF,
    ("cutile", "sm_80", "flash_attention", _SINGLE): _ATTENTION_SINGLE,
    ("cutile", "sm_90", "flash_attention", _SINGLE): _ATTENTION_SINGLE,
    ("triton", "sm_80", "flash_attention backward", _HALF): {"256 channels": 64},
    ("cutile", "sm_80", "softmax backward", _HALF): {"first dimension": 128},
    ("cutile", "sm_90", "softmax backward", _HALF + _SINGLE): {"first dimension": 128},
    ("cutile", "sm_80", "flash_attention backward", _HALF): _backward(704, 1152),
    ("cutile", "sm_90", "flash_attention backward", _HALF): _backward(704, 320),
    ("cutile", "sm_80", "flash_attention backward", _SINGLE): _backward(1024, 6144),
    ("cutile", "sm_90", "flash_attention backward", _SINGLE): _backward(1024, 2560),
    ("cutile", "sm_80", "matmul", _SINGLE): {"every tile full": 128, "64-bit index": 128},
    ("cutile", "sm_90", "matmul", _SINGLE): {"64-bit index": 128},
}


# CUDA C++ is held to it on all architectures, but for a few registers that NVRTC may put aside outside the loops. (Measured:
# 40 bytes at most with NVRTC 13.0, and none for most calls.)
MOST_SPILLED_BY_CUDA = 40
MOST_SPILLED_IN_TF32 = 64  # attention's gradients at 80 channels, element by element; all others keep to the 40


def allowed_spill(backend: str, architecture: str, kernel: str, what: str, dtype: torch.dtype) -> int:
    """The most bytes of registers that this call may spill."""
    return sum(
        by_problem.get(what, 0)
        for (*key, dtypes), by_problem in SPILLS.items()
        if key == [backend, architecture, kernel] and dtype in dtypes
    )
