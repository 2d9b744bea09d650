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
)
