"""Matrix products of tiles: one NumPy product for all blocks of the group."""

import numpy as np

from tilekit.cutile_interpreter import dtypes
from tilekit.cutile_interpreter.api import TileTypeError
from tilekit.cutile_interpreter.dtypes import FORMATS, DType
from tilekit.cutile_interpreter.tile import Tile, as_tile, constant_bool, describe, result

# The accumulators of each input; ct.matmul takes the first.
_ACCUMULATORS = {
    dtypes.float8_e4m3fn: (dtypes.float16, dtypes.float32),
    dtypes.float8_e5m2: (dtypes.float16, dtypes.float32),
    dtypes.float16: (dtypes.float16, dtypes.float32),
    dtypes.bfloat16: (dtypes.float32,),
    dtypes.float32: (dtypes.float32,),
    dtypes.tfloat32: (dtypes.float32,),
    dtypes.float64: (dtypes.float64,),
    dtypes.int8: (dtypes.int32,),
    dtypes.uint8: (dtypes.int32,),
}
_BYTES = (dtypes.int8, dtypes.uint8)
_FP8 = (dtypes.float8_e4m3fn, dtypes.float8_e5m2)

# Input -> dtype of the scales -> how many elements along K may share one.
_SCALES = {
    dtypes.float8_e4m3fn: {dtypes.float8_e8m0fnu: (32,)},
    dtypes.float8_e5m2: {dtypes.float8_e8m0fnu: (32,)},
    dtypes.float4_e2m1fn: {
        dtypes.float8_e8m0fnu: (16, 32),
        dtypes.float8_e4m3fn: (16,),
        dtypes.float8_e5m3fnu: (16, 32),
    },
}


def mma(x, y, /, acc, *, use_fast_acc=False):
    fast = constant_bool(use_fast_acc, "use_fast_acc")
    x, y, acc = _matrix(x, "x"), _matrix(y, "y"), as_tile(acc, "acc")
    _check_accumulator_shape(x, y, acc)
    if fast and x.dtype not in _FP8:
        raise TileTypeError(
            f"use_fast_acc is only supported for fp8 input dtypes (float8_e4m3fn, float8_e5m2), got {x.dtype}"
        )
    _check_inputs(x.dtype, y.dtype)
    if acc.dtype not in _ACCUMULATORS[x.dtype]:
        raise TileTypeError(
            f"Unsupported acc dtype {acc.dtype} for inputs of {x.dtype}, supported dtypes are "
            f"{_names(_ACCUMULATORS[x.dtype])}. Create it with ct.zeros(shape, {_ACCUMULATORS[x.dtype][-1]})"
        )
    return _accumulate(_product(x, y), acc)


def matmul(x, y, /):
    x, y = as_tile(x, "x"), as_tile(y, "y")
    if not 1 <= x.ndim <= 3 or not 1 <= y.ndim <= 3:
        raise TileTypeError(
            f"A matrix product takes tiles of one to three dimensions; got {describe(x)}, {describe(y)}"
        )
    row, column = x.ndim == 1, y.ndim == 1
    a = x.data[:, None, :] if row else x.data
    b = y.data[:, :, None] if column else y.data
    _product_shape(a.shape[1:], b.shape[1:])
    dtype = dtypes.promote(x.dtype, y.dtype)
    _check_inputs(dtype, dtype)
    a, b = dtypes.cast(a, x.dtype, dtype), dtypes.cast(b, y.dtype, dtype)
    accumulator = _ACCUMULATORS[dtype][0]
    values = _rounded(_product(Tile(a, dtype), Tile(b, dtype)), accumulator)
    if column:
        values = values[..., 0]
    if row:
        values = values[..., 0] if column else values[..., 0, :]
    return result(dtypes.cast(values, accumulator, dtype), dtype)


def mma_scaled(x, x_scale, y, y_scale, /, acc):
    tiles = {"x": x, "y": y, "acc": acc, "x_scale": x_scale, "y_scale": y_scale}
    x, y, acc, x_scale, y_scale = (_matrix(value, name) for name, value in tiles.items())
    for a, b, names in ((x, y, "x and y"), (x_scale, y_scale, "x_scale and y_scale")):
        if a.dtype is not b.dtype:
            raise TileTypeError(f"{names} must have the same dtype, got {a.dtype} and {b.dtype}")
    if x.dtype not in _SCALES:
        raise TileTypeError(
            f"Unsupported input dtype {x.dtype} for mma_scaled, supported input dtypes are {_names(_SCALES)}"
        )
    if x_scale.dtype not in _SCALES[x.dtype]:
        raise TileTypeError(
            f"Unsupported scale dtype {x_scale.dtype} for input dtype {x.dtype}, supported scale dtypes are "
            f"{_names(_SCALES[x.dtype])}"
        )
    if acc.dtype is not dtypes.float32:
        raise TileTypeError(f"Unsupported acc dtype {acc.dtype} for mma_scaled, expected float32")
    # In float64 neither a product of scales overflows halfway nor is anything rounded before the accumulator.
    a, b = _scaled(x, x_scale, -1, "x"), _scaled(y, y_scale, -2, "y")
    _check_accumulator_shape(x, y, acc)
    return _accumulate(np.matmul(a, b), acc)


def _scaled(tile: Tile, scale: Tile, k: int, name: str) -> np.ndarray:
    """The elements of a tile times the scale of their block along K, in float64."""
    axis = tile.ndim + k
    rest, rest_of_scale = (t.shape[:axis] + t.shape[axis + 1 :] for t in (tile, scale))
    if tile.ndim != scale.ndim or rest != rest_of_scale:
        raise TileTypeError(
            f"{name}_scale shape {scale.shape} is not compatible with {name} shape {tile.shape}. All dimensions except "
            f"K axis {axis} must match"
        )
    allowed = _SCALES[tile.dtype][scale.dtype]
    block, rest = divmod(tile.shape[axis], scale.shape[axis])
    if rest or block not in allowed:
        raise TileTypeError(
            f"For mma_scaled with dtype={tile.dtype}, scale_dtype={scale.dtype}: {name}.shape[{axis}] must be an exact "
            f"multiple of {name}_scale.shape[{axis}] with scaling block size B = K // K_s in {set(allowed)}, got "
            f"{tile.shape[axis]} and {scale.shape[axis]}"
        )
    factors = np.repeat(scale.data.astype(np.float64), block, axis=axis + 1)
    return tile.data * factors


def _matrix(value, name: str) -> Tile:
    tile = as_tile(value, name)
    if tile.ndim not in (2, 3):
        raise TileTypeError(f"Expect `{name}` to be at least 2D, and at most 3D; got shape {tile.shape}")
    return tile


def _product_shape(x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...]:
    if x[-1] != y[-2]:
        raise TileTypeError(
            f"Incompatible shapes for matrix mul on tiles: {x}, {y}. The last dimension of the left one must be the "
            "next-to-last one of the right"
        )
    try:
        return (*np.broadcast_shapes(x[:-2], y[:-2]), x[-2], y[-1])
    except ValueError:
        raise TileTypeError(f"Incompatible shapes for matrix mul on tiles: {x}, {y}") from None


def _check_accumulator_shape(x: Tile, y: Tile, acc: Tile) -> None:
    shape = _product_shape(x.shape, y.shape)
    if acc.shape != shape:
        raise TileTypeError(f"Expect acc shape to be {shape}, got {acc.shape}")


def _check_inputs(x: DType, y: DType) -> None:
    if x is not y and not (x in _BYTES and y in _BYTES):
        raise TileTypeError(
            f"x and y must have the same dtype unless they are int8/uint8, got {x} {y}. Cast one of them with .astype()"
        )
    if x not in _ACCUMULATORS:
        raise TileTypeError(f"Unsupported input dtype {x}, supported dtypes are {_names(_ACCUMULATORS)}")


def _names(of) -> str:
    return ", ".join(d.name for d in of)


def _product(x: Tile, y: Tile) -> np.ndarray:
    """``x @ y`` for every block, unrounded: float32 for floats of up to 32 bits, float64 for others."""
    a, b = x.data, y.data
    if x.dtype in _BYTES:  # exact: the sums stay far below 2**53
        a, b = a.astype(np.float64), b.astype(np.float64)
    rank = max(a.ndim, b.ndim)
    a, b = (m if m.ndim == rank else m.reshape(m.shape[:1] + (1,) * (rank - m.ndim) + m.shape[1:]) for m in (a, b))
    return np.matmul(_for_blas(a), _for_blas(b))


def _for_blas(matrices: np.ndarray) -> np.ndarray:
    """A copy where BLAS could not read the strides, as of permuted or broadcast tiles: NumPy's own loop is far slower."""
    (rows, columns), size = matrices.shape[-2:], matrices.itemsize
    outer, inner = matrices.strides[-2:]
    if (inner == size and outer >= columns * size) or (outer == size and inner >= rows * size):
        return matrices
    return np.ascontiguousarray(matrices)


def _rounded(values: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype is dtypes.int32:
        return values.astype(np.int64).astype(np.int32)
    return dtypes.round_to(dtype, values)


def _accumulate(product: np.ndarray, acc: Tile) -> Tile:
    """``product + acc``, rounded once to the accumulator's dtype."""
    if acc.dtype is dtypes.int32:
        return result((product.astype(np.int64) + acc.data).astype(np.int32), acc.dtype)
    if len(product) >= len(acc.data) and product.dtype == FORMATS[acc.dtype].carrier:
        product += acc.data
    else:
        product = product + acc.data
    return result(product, acc.dtype)


Tile.__matmul__ = lambda self, other: matmul(self, other)
Tile.__rmatmul__ = lambda self, other: matmul(other, self)

__all__ = ["matmul", "mma", "mma_scaled"]
