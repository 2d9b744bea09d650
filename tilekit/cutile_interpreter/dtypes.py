"""The dtypes of cuTile: how each is stored, what carries its values between operations, and how values round.

Values of formats that NumPy cannot calculate in (float16, bfloat16, tfloat32, the 8- and 4-bit floats) are carried as
float32 numbers that the format can represent; every arithmetic operation rounds its result to the format again.
"""

import functools
import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tilekit.cutile_interpreter.api import DType, RoundingMode, TileTypeError, TileValueError, tile

bool_ = tile.bool_
int8, int16, int32, int64 = tile.int8, tile.int16, tile.int32, tile.int64
uint8, uint16, uint32, uint64 = tile.uint8, tile.uint16, tile.uint32, tile.uint64
float16, bfloat16, float32, float64 = tile.float16, tile.bfloat16, tile.float32, tile.float64
tfloat32 = tile.tfloat32
float8_e4m3fn, float8_e5m2 = tile.float8_e4m3fn, tile.float8_e5m2
float8_e8m0fnu, float8_e5m3fnu, float4_e2m1fn = tile.float8_e8m0fnu, tile.float8_e5m3fnu, tile.float4_e2m1fn


@dataclass(frozen=True, slots=True)
class Format:
    """How values of one dtype are kept. `category` orders bool < int < float, as promotion does."""

    carrier: np.dtype  # of the arrays that hold a tile's values
    storage: np.dtype | None  # of memory; None where an array cannot have this dtype
    category: int  # BOOL, INT, FLOAT
    bits: int
    signed: bool = True
    restricted: bool = False  # only mma, casts and moves: no arithmetic, no implicit promotion


BOOL, INT, FLOAT = 0, 1, 2


def _number(numpy_type, category, signed=True) -> Format:
    dtype = np.dtype(numpy_type)
    return Format(dtype, dtype, category, dtype.itemsize * 8, signed)


def _small(storage, bits, signed=True, restricted=False) -> Format:
    return Format(np.dtype(np.float32), storage and np.dtype(storage), FLOAT, bits, signed, restricted)


FORMATS = {
    bool_: Format(np.dtype(bool), np.dtype(bool), BOOL, 8, signed=False),
    **{d: _number(n, INT) for d, n in ((int8, "i1"), (int16, "i2"), (int32, "i4"), (int64, "i8"))},
    **{d: _number(n, INT, signed=False) for d, n in ((uint8, "u1"), (uint16, "u2"), (uint32, "u4"), (uint64, "u8"))},
    float16: _small(np.float16, 16),
    bfloat16: _small(ml_dtypes.bfloat16, 16),
    float32: _number("f4", FLOAT),
    float64: _number("f8", FLOAT),
    tfloat32: _small(None, 32, restricted=True),
    float8_e4m3fn: _small(ml_dtypes.float8_e4m3fn, 8, restricted=True),
    float8_e5m2: _small(ml_dtypes.float8_e5m2, 8, restricted=True),
    float8_e8m0fnu: _small(ml_dtypes.float8_e8m0fnu, 8, signed=False, restricted=True),
    float8_e5m3fnu: _small(None, 8, signed=False, restricted=True),
    float4_e2m1fn: _small(ml_dtypes.float4_e2m1fn, 4, restricted=True),
}

BY_STORAGE = {f.storage: d for d, f in FORMATS.items() if f.storage is not None and d is not float4_e2m1fn}
BY_NAME = {d.name: d for d in FORMATS}
_TORCH = {f"torch.{name}" for name in BY_NAME} | {"torch.bool"}


class CallableDType:
    """A dtype as kernels see it: equal to the dtype, and called, ``ct.int16(5)``, a scalar of it.

    NVIDIA's own objects refuse the call outside of a compiled kernel.

    Attributes:
        host: the object that stands for it in Python: cuTile's own, or the dtype of another library.
    """

    __slots__ = ("dtype", "host", "make")

    def __init__(self, dtype: DType, make, host=None):
        self.dtype = dtype
        self.make = make
        self.host = dtype if host is None else host

    def __call__(self, x=0, /):
        return self.make(x)

    def __getattr__(self, name):
        return getattr(self.dtype, name)

    def __eq__(self, other):
        return self.dtype == (other.dtype if isinstance(other, CallableDType) else other)

    def __hash__(self):
        return hash(self.dtype)

    def __repr__(self):
        return repr(self.dtype)

    def __str__(self):
        return str(self.dtype)


def is_foreign(value) -> bool:
    """Is `value` a dtype of torch, NumPy or ml_dtypes that cuTile has too?"""
    kind = type(value)
    if kind.__module__ == "torch":
        return kind.__name__ == "dtype" and str(value) in _TORCH
    if isinstance(value, type):
        return issubclass(value, np.generic) and np.dtype(value) in BY_STORAGE
    return isinstance(value, np.dtype) and value in BY_STORAGE


def to_dtype(value) -> DType:
    """`value` as a dtype: cuTile's own, or torch's, NumPy's and ml_dtypes' for the same format."""
    if isinstance(value, DType):
        return value
    if type(value) is CallableDType:
        return value.dtype
    name = str(value).removeprefix("torch.") if type(value).__module__ == "torch" else None
    if name is None and (isinstance(value, np.dtype) or isinstance(value, type) and value not in (int, float, bool)):
        try:
            name = np.dtype(value).name
        except TypeError:
            name = None
    found = BY_NAME.get({"bool": "bool_"}.get(name, name))
    if found is None:
        raise TileTypeError(f"Expected a dtype constant such as ct.float32; got {value!r}")
    return found


@functools.cache
def integer_range(dtype: DType) -> tuple[int, int]:
    info = np.iinfo(FORMATS[dtype].carrier)
    return int(info.min), int(info.max)


def dtype_of_number(value) -> DType:
    """The dtype that a Python number takes when nothing else decides."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, float):
        return float32
    for dtype in (int32, int64, uint64):
        low, high = integer_range(dtype)
        if low <= value <= high:
            return dtype
    raise TileValueError(f"Constant {value} is out of range of any supported integer type")


def promote(a: DType, b: DType) -> DType:
    """The common dtype of two tiles: the wider one, if every value of both keeps its meaning in it."""
    if a is b:
        return a
    fa, fb = FORMATS.get(a), FORMATS.get(b)
    if fa is None or fb is None:
        raise TileTypeError("Implicit promotion of pointer dtypes is not supported")
    if fa.restricted or fb.restricted:
        raise TileTypeError(
            f"Implicit promotion of {a} and {b} is not supported as it involves restricted float dtypes. "
            "Cast one of them with .astype()"
        )
    if fa.category != fb.category:
        return a if fa.category > fb.category else b
    if fa.category == INT and fa.signed != fb.signed or {a, b} == {float16, bfloat16}:
        raise TileTypeError(f"Implicit promotion of {a} and {b} is not supported. Cast one of them with .astype()")
    return a if fa.bits >= fb.bits else b


def promote_number(dtype: DType, value, force_float: bool = False) -> DType:
    """The common dtype of a tile and a bare Python number: the tile's, unless the number is of a higher category."""
    own = dtype_of_number(value)
    category = FORMATS[dtype].category
    if FORMATS[own].category == category:
        result = dtype
        if category == INT and not force_float:
            check_in_range(value, dtype)
    else:
        result = own if FORMATS[own].category > category else dtype
    return float32 if force_float and FORMATS[result].category != FLOAT else result


def check_in_range(value: int, dtype: DType) -> None:
    low, high = integer_range(dtype)
    if not low <= value <= high:
        raise TileValueError(f"Integer constant {value} is out of range of {dtype}")


def implicit_cast_problem(source: DType, target: DType) -> str | None:
    """Why a value of `source` does not become `target` by itself; ``None`` where it does. Only widening is implicit."""
    if source is target:
        return None
    try:
        common = promote(source, target)
    except TileTypeError:
        common = None
    return None if common is target else f"cannot implicitly cast {source} to {target}"


# Rounding ------------------------------------------------------------------------------------------------------------


def round_to(dtype: DType, values: np.ndarray, mode: RoundingMode | None = None) -> np.ndarray:
    """Float values rounded to what `dtype` can represent, in its carrier; to nearest, ties to even, unless told."""
    fmt = FORMATS[dtype]
    if mode not in (None, RoundingMode.RN, RoundingMode.FULL, RoundingMode.APPROX):
        return _round_directed(dtype, values, mode)
    if dtype is float32 or dtype is float64:
        return values.astype(fmt.carrier, copy=False)
    if dtype is tfloat32:
        return _round_mantissa(values.astype(np.float32, copy=False), 13)
    if dtype is float8_e5m3fnu:
        return _round_by_table(values, _E5M3)
    if dtype in _SATURATING:
        values = _saturate(dtype, values)
    if dtype is float8_e8m0fnu:
        values = np.where(values == 0, 2.0**-127, values)  # it has no zero
    if values.dtype == np.float64 and dtype is not float16:
        values = _to_odd(values)
    return values.astype(fmt.storage).astype(np.float32)


def _to_odd(values: np.ndarray) -> np.ndarray:
    """float64 as float32 with what is lost kept in the last bit, so that rounding once more still rounds rightly."""
    near = values.astype(np.float32)
    toward_zero = np.where(np.abs(near) > np.abs(values), np.nextafter(near, np.float32(0)), near)
    lost = (toward_zero != values) & np.isfinite(values)
    return np.where(lost, (toward_zero.view(np.uint32) | 1).view(np.float32), near)


def _whole_to_odd(values: np.ndarray) -> np.ndarray:
    """Integers that float64 holds: beyond 2**53 without the last 11 bits, with what is lost kept in the bit above."""
    if values.dtype.itemsize < 8:
        return values
    bits = values.view(np.uint64)
    kept = (bits & ~np.uint64(0x7FF)) | (((bits & np.uint64(0x7FF)) != 0).astype(np.uint64) << np.uint64(11))
    small = values < 2**53 if values.dtype.kind == "u" else (values > -(2**53)) & (values < 2**53)
    return np.where(small, values, kept.view(values.dtype))


def _round_mantissa(values: np.ndarray, dropped: int) -> np.ndarray:
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32((1 << (dropped - 1)) - 1) + ((bits >> dropped) & 1)) & np.uint32(
        -(1 << dropped) % 2**32
    )
    return np.where(np.isfinite(values), rounded.view(np.float32), values)


# The hardware's conversions to these saturate: what is too large becomes the largest finite number, never an infinity.
_SATURATING = (float8_e4m3fn, float8_e5m2, float4_e2m1fn)


def _saturate(dtype: DType, values: np.ndarray) -> np.ndarray:
    most = float(ml_dtypes.finfo(FORMATS[dtype].storage).max)
    return np.where(np.isnan(values), values, np.clip(values, -most, most))


def _e5m3_values() -> np.ndarray:
    """All non-negative values of float8_e5m3fnu: no sign, 5 exponent bits with bias 15, 3 mantissa bits; 0xFF is NaN."""
    code = np.arange(255)
    exponent, mantissa = code >> 3, code & 7
    return np.where(exponent == 0, mantissa / 8 * 2.0**-14, (1 + mantissa / 8) * 2.0 ** (exponent - 15.0)).astype(
        np.float32
    )


_E5M3 = _e5m3_values()


def _round_by_table(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    clipped = np.clip(values, 0.0, table[-1])
    high = np.clip(np.searchsorted(table, clipped), 1, len(table) - 1)
    below, above = table[high - 1], table[high]
    down = clipped - below < above - clipped
    tie = clipped - below == above - clipped
    result = np.where(down | (tie & ((high - 1) % 2 == 0)), below, above)
    return np.where(np.isnan(values), np.nan, result).astype(np.float32)


def _round_directed(dtype: DType, values: np.ndarray, mode: RoundingMode) -> np.ndarray:
    """Rounded in another direction than to nearest: start from the nearest value and step to its neighbour."""
    exact = values.astype(np.float64)
    if dtype is float8_e8m0fnu:
        return _power_of_two(exact, up=mode is RoundingMode.RP)
    nearest = round_to(dtype, values).astype(np.float64)
    if mode is RoundingMode.RZ:
        wrong, toward = np.abs(nearest) > np.abs(exact), 0.0
    elif mode is RoundingMode.RM:
        wrong, toward = nearest > exact, -np.inf
    elif mode is RoundingMode.RP:
        wrong, toward = nearest < exact, np.inf
    elif mode is RoundingMode.RA:
        other = neighbour(dtype, nearest, np.where(nearest < exact, np.inf, -np.inf))
        tie = (nearest != exact) & (np.abs(other - exact) == np.abs(nearest - exact))
        return np.where(tie & (np.abs(other) > np.abs(nearest)), other, nearest).astype(FORMATS[dtype].carrier)
    else:
        raise TileTypeError(f"Rounding mode {mode.value} is not supported for {dtype}")
    stepped = neighbour(dtype, nearest, np.broadcast_to(toward, nearest.shape))
    return np.where(wrong, stepped, nearest).astype(FORMATS[dtype].carrier)


def _power_of_two(exact: np.ndarray, up: bool) -> np.ndarray:
    """The power of two at or beside each value: all that float8_e8m0fnu holds, from 2**-127 to 2**127, and NaN."""
    mantissa, exponent = np.frexp(exact)
    power = np.ldexp(1.0, np.clip(exponent - 1 + (up & (mantissa > 0.5)), -127, 127))
    return np.where(exact >= 0, np.where(exact == 0, 2.0**-127, power), np.nan).astype(np.float32)


def neighbour(dtype: DType, values: np.ndarray, toward: np.ndarray) -> np.ndarray:
    """The next value of `dtype` beside each of `values`, in the direction of `toward`; as float64."""
    if dtype is float64:
        return np.nextafter(values, toward)
    if dtype is float32:
        return np.nextafter(values.astype(np.float32), toward.astype(np.float32)).astype(np.float64)
    if dtype is tfloat32:
        step = np.where((toward > values) == (values >= 0), 1 << 13, -(1 << 13))
        return (values.astype(np.float32).view(np.int32) + step.astype(np.int32)).view(np.float32).astype(np.float64)
    if dtype is float8_e5m3fnu:
        place = np.searchsorted(_E5M3, values.astype(np.float32))
        return _E5M3[np.clip(place + np.where(toward > values, 1, -1), 0, len(_E5M3) - 1)].astype(np.float64)
    storage = FORMATS[dtype].storage
    return np.nextafter(values.astype(storage), toward.astype(storage)).astype(np.float64)


def cast(values: np.ndarray, source: DType, target: DType, mode: RoundingMode | None = None) -> np.ndarray:
    """Carried values of `source` as carried values of `target`: rounds floats, wraps integers, truncates to integers."""
    if source is target:
        return values
    to, of = FORMATS[target], FORMATS[source]
    if to.category == BOOL:
        return values != 0
    if to.category == FLOAT:
        if of.category == FLOAT and of.bits <= to.bits and not to.restricted and mode is None:
            return values.astype(to.carrier, copy=False)
        if of.category != FLOAT and to.carrier == np.float32 and of.bits > 16:
            values = _whole_to_odd(values).astype(np.float64)  # exact, so that only one rounding happens
        return round_to(target, values, mode)
    if of.category == FLOAT:
        low, high = integer_range(target)
        # The hardware's conversion saturates, and NaN becomes 0.
        whole = np.nan_to_num(np.trunc(values.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
        inside = np.clip(whole, low, math.nextafter(high, 0) if to.bits == 64 else high).astype(to.carrier)
        return np.where(whole >= high, to.carrier.type(high), inside)
    return values.astype(to.carrier)


# Bits ----------------------------------------------------------------------------------------------------------------


def to_bits(dtype: DType, values: np.ndarray) -> np.ndarray:
    """Carried values as unsigned integers of the dtype's own width (4-bit formats: one per uint8)."""
    fmt = FORMATS[dtype]
    if dtype is tfloat32:
        return values.view(np.uint32)
    if dtype is float8_e5m3fnu:
        return np.where(np.isnan(values), 255, np.searchsorted(_E5M3, values)).astype(np.uint8)
    stored = np.ascontiguousarray(values.astype(fmt.storage, copy=False))
    return stored.view(np.dtype(f"u{stored.dtype.itemsize}"))


def from_bits(dtype: DType, bits: np.ndarray) -> np.ndarray:
    fmt = FORMATS[dtype]
    if dtype is tfloat32:
        return np.ascontiguousarray(bits).view(np.float32)
    if dtype is float8_e5m3fnu:
        return np.where(bits == 255, np.nan, _E5M3[np.minimum(bits, 254)]).astype(np.float32)
    return np.ascontiguousarray(bits).view(fmt.storage).astype(fmt.carrier, copy=False)
