"""The dtypes of the cases under their three names: cuda.tile's, NumPy's (with ml_dtypes) and torch's."""

import cuda.tile as ct
import ml_dtypes
import numpy as np
import torch

# name: (cuda.tile, NumPy, torch). A tf32 or fp4 array does not exist outside a kernel: cases make such tiles by a cast.
_TABLE = {
    "bool": (ct.bool_, np.dtype(bool), torch.bool),
    "int8": (ct.int8, np.dtype(np.int8), torch.int8),
    "int16": (ct.int16, np.dtype(np.int16), torch.int16),
    "int32": (ct.int32, np.dtype(np.int32), torch.int32),
    "int64": (ct.int64, np.dtype(np.int64), torch.int64),
    "uint8": (ct.uint8, np.dtype(np.uint8), torch.uint8),
    "uint16": (ct.uint16, np.dtype(np.uint16), torch.uint16),
    "uint32": (ct.uint32, np.dtype(np.uint32), torch.uint32),
    "uint64": (ct.uint64, np.dtype(np.uint64), torch.uint64),
    "float16": (ct.float16, np.dtype(np.float16), torch.float16),
    "bfloat16": (ct.bfloat16, np.dtype(ml_dtypes.bfloat16), torch.bfloat16),
    "float32": (ct.float32, np.dtype(np.float32), torch.float32),
    "float64": (ct.float64, np.dtype(np.float64), torch.float64),
    "float8_e4m3fn": (ct.float8_e4m3fn, np.dtype(ml_dtypes.float8_e4m3fn), torch.float8_e4m3fn),
    "float8_e5m2": (ct.float8_e5m2, np.dtype(ml_dtypes.float8_e5m2), torch.float8_e5m2),
    "float8_e8m0fnu": (ct.float8_e8m0fnu, np.dtype(ml_dtypes.float8_e8m0fnu), torch.float8_e8m0fnu),
    "tfloat32": (ct.tfloat32, None, None),
    "float4_e2m1fn": (ct.float4_e2m1fn, np.dtype(ml_dtypes.float4_e2m1fn), None),
}
TILE = {name: row[0] for name, row in _TABLE.items()}
NUMPY = {name: row[1] for name, row in _TABLE.items() if row[1] is not None}
TORCH = {name: row[2] for name, row in _TABLE.items() if row[2] is not None}
NAME_OF_NUMPY = {dtype: name for name, dtype in NUMPY.items()}
NAME_OF_TORCH = {dtype: name for name, dtype in TORCH.items()}

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
FLOATS = ("float16", "bfloat16", "float32", "float64")
FLOATS8 = ("float8_e4m3fn", "float8_e5m2")
ARITHMETIC = INTEGERS + FLOATS

_UNSIGNED_OF_SIZE = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def to_torch(array: np.ndarray) -> torch.Tensor:
    """The same memory as a torch tensor, strides included, for every dtype that both have."""
    dtype = TORCH[NAME_OF_NUMPY[array.dtype]]
    if array.dtype.kind in "biuf" and array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(_UNSIGNED_OF_SIZE[array.itemsize])).view(dtype)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's content as a NumPy array of the same dtype."""
    dtype = NUMPY[NAME_OF_TORCH[tensor.dtype]]
    tensor = tensor.detach().cpu()
    if dtype.isbuiltin == 1:
        return tensor.numpy()
    integer = {1: torch.uint8, 2: torch.int16}[dtype.itemsize]
    return tensor.view(integer).numpy().view(dtype)


def random(rng: np.random.Generator, dtype: str, shape=(), low=None, high=None) -> np.ndarray:
    """Values that exercise the dtype: integers over [low, high] or its whole range, floats in [low, high] or [-4, 4]."""
    numpy = NUMPY[dtype]
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in INTEGERS:
        info = np.iinfo(numpy)
        low = info.min if low is None else low
        high = info.max if high is None else high
        return rng.integers(low, high, shape, numpy, endpoint=True)
    low, high = -4 if low is None else low, 4 if high is None else high
    return np.asarray(rng.uniform(low, high, shape)).astype(numpy)
