"""Elementwise arithmetic, comparison and mathematics."""

import builtins
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tilekit.cutile_interpreter import dtypes
from tilekit.cutile_interpreter.api import RoundingMode, TileTypeError, TileValueError
from tilekit.cutile_interpreter.dtypes import BOOL, FLOAT, FORMATS, INT, DType
from tilekit.cutile_interpreter.tile import (
    Tile,
    aligned,
    as_tile,
    broadcast_shapes,
    choice,
    common_dtype,
    constant_bool,
    describe,
    is_number,
    of_unsure,
    operand,
    pair,
    result,
    scalar,
    unsure,
)

RN, RZ, RM, RP = RoundingMode.RN, RoundingMode.RZ, RoundingMode.RM, RoundingMode.RP
FULL, APPROX = RoundingMode.FULL, RoundingMode.APPROX
_BASIC = (RN, RZ, RM, RP)


@dataclass(frozen=True)
class Op:
    """One elementwise function: how Python does it to two constants, and what modes the compiler knows for it."""

    name: str
    python: Callable
    values: Callable
    rounding: tuple = ()
    flushes: bool = False


_TINY = np.finfo(np.float32).tiny


def flush(values: np.ndarray) -> np.ndarray:
    """Subnormal float32 numbers as zeros of their sign."""
    return values * (np.abs(values) >= _TINY)  # keeps the sign of zero


def check_modes(op: Op, rounding_mode, flush_to_zero, dtype: DType) -> RoundingMode | None:
    mode = choice(rounding_mode, RoundingMode, "rounding_mode", optional=True)
    if mode is not None:
        if mode not in op.rounding:
            raise TileTypeError(f"Rounding mode {mode.value} is not supported for {op.name}")
        if FORMATS[dtype].category != FLOAT or FORMATS[dtype].restricted:
            raise TileTypeError(f"Rounding mode can only be used for unrestricted float types, but got {dtype}")
        if mode in (FULL, APPROX) and dtype is not dtypes.float32:
            raise TileTypeError(f"Rounding mode {mode.value} can only be used for float32 type, but got {dtype}")
    if constant_bool(flush_to_zero, "flush_to_zero"):
        if not op.flushes:
            raise TileTypeError(f"Flush to zero is not supported for {op.name}")
        if dtype is not dtypes.float32:
            raise TileTypeError(f"Flush to zero can only be used for float32 type, but got {dtype}")
    return mode


def constant_of(value):
    """The Python number behind a constant, or ``None`` where only the run knows."""
    return value if is_number(value) else value.const


def fold(op: Callable, *values):
    """What constants give, by Python's own rules, as the compiler folds them."""
    try:
        folded = op(*values)
        if isinstance(folded, complex):
            raise ValueError(f"The constant {folded} is not a real number")
        return folded
    except (ZeroDivisionError, ValueError, OverflowError) as error:
        raise TileValueError(str(error)) from None
    except TypeError as error:
        raise TileTypeError(str(error)) from None


def check_operand(value, side: str) -> None:
    if isinstance(value, Tile):
        if value.dtype not in FORMATS or FORMATS[value.dtype].restricted:
            raise TileTypeError(f"{side} has non-arithmetic dtype {value.dtype}. Cast it with .astype(ct.float32)")
    elif not is_number(value):
        raise TileTypeError(f"Expected a tile or a number; got {describe(value)}")


def strict(value, dtype: DType) -> Tile:
    """A constant that keeps its dtype."""
    value = (
        bool(value) if FORMATS[dtype].category == BOOL else float(value) if FORMATS[dtype].category == FLOAT else value
    )
    return scalar(value, dtype, value, exact=True)


def constants_in(dtype: DType, x, y):
    """Two constants' values in their common dtype."""
    return (scalar(constant_of(v), dtype, 0, exact=isinstance(v, Tile)).const for v in (x, y))


def binary(op: Op, x, y, rounding_mode=None, flush_to_zero=False, force_float=False, **extra):
    """An arithmetic function of two operands."""
    check_operand(x, "Left-hand side")
    check_operand(y, "Right-hand side")
    if is_number(x) and is_number(y):
        return fold(op.python, x, y)
    dtype = common_dtype(x, y, force_float)
    if dtype is dtypes.bool_:
        raise TileTypeError(f"Binary arithmetic op `{op.name}` does not support bool, please cast bool to int")
    if constant_of(x) is not None and constant_of(y) is not None:
        folded = of_unsure(lambda x, y: binary(op, x, y, rounding_mode, flush_to_zero, force_float, **extra), x, y)
        return strict(fold(op.python, *constants_in(dtype, x, y)), dtype) if folded is None else folded
    a, b = pair(x, y, dtype)
    if op is FLOORDIV and FORMATS[dtype].category == FLOAT:
        # The compiler divides, and takes the floor of what is rounded to the dtype by then.
        a, b = result(TRUEDIV.values(a, b), dtype).data, 1
    if rounding_mode is None and flush_to_zero is False:
        return result(op.values(a, b, **extra), dtype)
    mode = check_modes(op, rounding_mode, flush_to_zero, dtype)
    if flush_to_zero:
        a, b = flush(a), flush(b)
    if mode in (RZ, RM, RP):
        return Tile(_directed(op, a, b, dtype, mode), dtype)
    values = result(op.values(a, b, **extra), dtype)
    return Tile(flush(values.data), dtype) if flush_to_zero else values


def _directed(op: Op, a, b, dtype, mode):
    """Rounded down, up or to zero: from the exact result where float64 holds it, else from the sign of the error."""
    if dtype is not dtypes.float64:
        exact = op.values(a.astype(np.float64), b.astype(np.float64))
        return dtypes.round_to(dtype, exact, mode)
    return beside(op.values(a, b), mode, _REMAINDERS[op.name], a, b)


def beside(nearest, mode, remainder, *operands):
    """float64 results rounded down, up or to zero: `remainder` gives the sign of the exact result less the nearest."""
    operands = np.broadcast_arrays(*operands)

    def sign(n, *values):
        if not all(map(math.isfinite, values)) or math.isnan(n):
            return 0
        return (
            -1
            if n == math.inf
            else 1
            if n == -math.inf
            else int(np.sign(remainder(Fraction(n), *map(Fraction, values))))
        )

    error = np.frompyfunc(sign, 1 + len(operands), 1)(nearest, *operands).astype(int)
    down = (error < 0) & ((mode is RM) | ((mode is RZ) & (nearest > 0)))
    up = (error > 0) & ((mode is RP) | ((mode is RZ) & (nearest < 0)))
    return np.where(down, np.nextafter(nearest, -np.inf), np.where(up, np.nextafter(nearest, np.inf), nearest))


# The sign of the exact result less `n`, in exact fractions.
_REMAINDERS = {
    "add": lambda n, a, b: a + b - n,
    "sub": lambda n, a, b: a - b - n,
    "mul": lambda n, a, b: a * b - n,
    "truediv": lambda n, a, b: a / b - n if b else 0,
    "sqrt": lambda n, a: a - n * n,
}


# Values ---------------------------------------------------------------------------------------------------------------


def _floor_divide(a, b):
    if a.dtype.kind == "f":
        return np.floor(a / b)
    return np.floor_divide(a, b)


def _remainder(a, b):
    """The sign follows the divisor, as in Python."""
    return np.remainder(a, b) if a.dtype.kind != "f" else _float_remainder(a, b)


def _float_remainder(a, b):
    value = np.fmod(a, b)
    return np.where(((value < 0) != (b < 0)) & (value != 0), value + b, value)


def _ceil_divide(a, b):
    return np.floor_divide(a, b) + (np.remainder(a, b) != 0).astype(a.dtype)


def _power(a, b):
    return np.power(a, b)


def _maximum(a, b, propagate_nan=False):
    return np.maximum(a, b) if propagate_nan or a.dtype.kind != "f" else np.fmax(a, b)


def _minimum(a, b, propagate_nan=False):
    return np.minimum(a, b) if propagate_nan or a.dtype.kind != "f" else np.fmin(a, b)


ADD = Op("add", operator.add, np.add, _BASIC, True)
SUB = Op("sub", operator.sub, np.subtract, _BASIC, True)
MUL = Op("mul", operator.mul, np.multiply, _BASIC, True)
TRUEDIV = Op("truediv", operator.truediv, np.divide, (*_BASIC, FULL, APPROX), True)
FLOORDIV = Op("floordiv", operator.floordiv, _floor_divide)
CDIV = Op("cdiv", lambda x, y: -((-x) // y), _ceil_divide)
MOD = Op("mod", operator.mod, _remainder)
POW = Op("pow", operator.pow, _power)
ATAN2 = Op("atan2", math.atan2, np.arctan2)
MAX = Op("max", builtins.max, _maximum, (), True)
MIN = Op("min", builtins.min, _minimum, (), True)


def add(x, y, /, *, rounding_mode=None, flush_to_zero=False):
    return binary(ADD, x, y, rounding_mode, flush_to_zero)


def sub(x, y, /, *, rounding_mode=None, flush_to_zero=False):
    return binary(SUB, x, y, rounding_mode, flush_to_zero)


def mul(x, y, /, *, rounding_mode=None, flush_to_zero=False):
    return binary(MUL, x, y, rounding_mode, flush_to_zero)


def truediv(x, y, /, *, rounding_mode=None, flush_to_zero=False):
    return binary(TRUEDIV, x, y, rounding_mode, flush_to_zero, force_float=True)


def floordiv(x, y, /):
    return binary(FLOORDIV, x, y)


def cdiv(x, y, /):
    if not (is_number(x) and is_number(y)):
        dtype = common_dtype(as_tile(x), as_tile(y)) if not (is_number(x) or is_number(y)) else common_dtype(x, y)
        if FORMATS[dtype].category != INT:
            raise TileTypeError(f"cdiv takes integers; got {dtype}")
    return binary(CDIV, x, y)


def mod(x, y, /):
    return binary(MOD, x, y)


def divmod(x, y, /):
    if is_number(x) and is_number(y):
        return fold(builtins.divmod, x, y)
    constants = constant_of(x) is not None and constant_of(y) is not None
    if FORMATS[common_dtype(x, y)].category == FLOAT and not constants:
        raise TileTypeError("divmod() is not implemented for floating point values")
    return binary(FLOORDIV, x, y), binary(MOD, x, y)


def pow(x, y, /):
    # A float to an integer power keeps the float's dtype; the compiler has an instruction for it.
    if isinstance(x, Tile) and not is_number(y) and FORMATS[x.dtype].category == FLOAT:
        if FORMATS[y.dtype].category == INT and not y.known and dtypes.FORMATS[y.dtype].bits <= 32:
            check_operand(x, "Left-hand side")
            a, b = operand(x, x.dtype), y.data
            ndim = builtins.max(a.ndim, b.ndim) - 1
            a, b = aligned(a, ndim), aligned(b, ndim)
            broadcast_shapes(a.shape[1:], b.shape[1:])
            return result(np.power(a.astype(np.float64), b), x.dtype)
    _refuse_integers(POW, x, y)
    return binary(POW, x, y)


def _refuse_integers(op: Op, x, y) -> None:
    """The compiler types these for integers, and then has no instruction for them."""
    for value, side in ((x, "Left-hand side"), (y, "Right-hand side")):
        check_operand(value, side)
    if constant_of(x) is not None and constant_of(y) is not None:
        return
    dtype = common_dtype(x, y)
    if FORMATS[dtype].category == INT:
        raise TileTypeError(
            f"{op.name} of {dtype} has no implementation in cuda.tile: cast one operand, as in x.astype(ct.float32), or "
            "multiply"
        )


def atan2(x1, x2, /):
    _refuse_integers(ATAN2, x1, x2)
    return binary(ATAN2, x1, x2)


def maximum(x, y, /, *, flush_to_zero=False, propagate_nan=False):
    return binary(MAX, x, y, None, flush_to_zero, propagate_nan=constant_bool(propagate_nan, "propagate_nan"))


def minimum(x, y, /, *, flush_to_zero=False, propagate_nan=False):
    return binary(MIN, x, y, None, flush_to_zero, propagate_nan=constant_bool(propagate_nan, "propagate_nan"))


# Bits -----------------------------------------------------------------------------------------------------------------


def _bitwise(name, python, values, x, y):
    if is_number(x) and is_number(y):
        return fold(python, x, y)
    of = [v.dtype if isinstance(v, Tile) else dtypes.dtype_of_number(v) if is_number(v) else None for v in (x, y)]
    if None in of:
        raise TileTypeError(f"Expected tiles or numbers; got {describe(x)} and {describe(y)}")
    if any(d not in FORMATS or FORMATS[d].category == FLOAT for d in of):
        raise TileTypeError(
            "Bitwise operations require integers or booleans. Use an explicit cuda.tile.bitcast() for non-integer operands."
        )
    if isinstance(x, Tile) and isinstance(y, Tile) and of[0] is not of[1]:
        raise TileTypeError(f"Bitwise operands must have same data type, got: {of[0]} and {of[1]}")
    if set(of) == {dtypes.bool_, dtypes.int8}:
        raise TileTypeError("Bitwise op does not support bool and int8")
    dtype = common_dtype(x, y)
    if constant_of(x) is not None and constant_of(y) is not None:
        folded = of_unsure(lambda x, y: _bitwise(name, python, values, x, y), x, y)
        return strict(fold(python, constant_of(x), constant_of(y)), dtype) if folded is None else folded
    return result(values(*pair(x, y, dtype)), dtype)


def bitwise_and(x, y, /):
    return _bitwise("and", operator.and_, np.bitwise_and, x, y)


def bitwise_or(x, y, /):
    return _bitwise("or", operator.or_, np.bitwise_or, x, y)


def bitwise_xor(x, y, /):
    return _bitwise("xor", operator.xor, np.bitwise_xor, x, y)


def _shift(python, values, x, y):
    if is_number(x) and is_number(y):
        return fold(python, x, y)
    for value, side in ((x, "left"), (y, "right")):
        own = value.dtype if isinstance(value, Tile) else dtypes.dtype_of_number(value) if is_number(value) else None
        if own not in FORMATS or FORMATS[own].category != INT:
            raise TileTypeError(
                f"Bitwise shift requires an integer for {side}-hand side, got: {own or describe(value)}"
            )
    dtype = common_dtype(x, y)
    if constant_of(x) is not None and constant_of(y) is not None:
        folded = of_unsure(lambda x, y: _shift(python, values, x, y), x, y)
        return strict(fold(python, constant_of(x), constant_of(y)), dtype) if folded is None else folded
    return result(values(*pair(x, y, dtype)), dtype)


def bitwise_lshift(x, y, /):
    return _shift(operator.lshift, np.left_shift, x, y)


def bitwise_rshift(x, y, /):
    return _shift(operator.rshift, np.right_shift, x, y)


def bitwise_not(x, /):
    if isinstance(x, bool):
        return not x
    if isinstance(x, int):
        return ~x
    x = as_tile(x)
    if FORMATS[x.dtype].category == FLOAT:
        raise TileTypeError(f"bitwise_not takes booleans and integers; got {x.dtype}")
    return _constant_or_not(~x.data, x.dtype, x)


# Comparison -----------------------------------------------------------------------------------------------------------


def compare(python, values, x, y):
    if is_number(x) and is_number(y):
        return python(x, y)
    for value in (x, y):
        if not isinstance(value, Tile) and not is_number(value):
            raise TileTypeError(f"Expected a tile or a number; got {describe(value)}")
        if isinstance(value, Tile) and value.dtype not in FORMATS:
            raise TileTypeError(f"Pointers are not compared; got {describe(value)}")
    dtype = common_dtype(x, y)
    if constant_of(x) is not None and constant_of(y) is not None:
        folded = of_unsure(lambda x, y: compare(python, values, x, y), x, y)
        return strict(python(*constants_in(dtype, x, y)), dtypes.bool_) if folded is None else folded
    _refuse_restricted(dtype, "compared")
    return Tile(values(*pair(x, y, dtype)), dtypes.bool_)


def _refuse_restricted(dtype: DType, what: str) -> None:
    """The compiler's front end types it, and the compiler itself has no instruction for it."""
    if FORMATS[dtype].restricted:
        raise TileTypeError(f"Values of {dtype} cannot be {what}. Cast them with .astype(ct.float32)")


def greater(x, y, /):
    return compare(operator.gt, np.greater, x, y)


def greater_equal(x, y, /):
    return compare(operator.ge, np.greater_equal, x, y)


def less(x, y, /):
    return compare(operator.lt, np.less, x, y)


def less_equal(x, y, /):
    return compare(operator.le, np.less_equal, x, y)


def equal(x, y, /):
    return compare(operator.eq, np.equal, x, y)


def not_equal(x, y, /):
    return compare(operator.ne, np.not_equal, x, y)


# One operand ----------------------------------------------------------------------------------------------------------


def unary(op: Op, x, rounding_mode=None, flush_to_zero=False):
    """A mathematical function of floats. Integers become float32 first, as the compiler has it."""
    if is_number(x):
        return fold(op.python, x)
    x = as_tile(x)
    check_operand(x, "The operand")
    dtype = x.dtype if FORMATS[x.dtype].category == FLOAT else dtypes.float32
    if x.const is not None:
        folded = of_unsure(lambda x: unary(op, x, rounding_mode, flush_to_zero), x)
        return strict(fold(op.python, x.const), dtype) if folded is None else folded
    mode = None
    if rounding_mode is not None or flush_to_zero is not False:
        mode = check_modes(op, rounding_mode, flush_to_zero, dtype)
    values = operand(x, dtype)
    if flush_to_zero:
        values = flush(values)
    if mode in (RZ, RM, RP):
        if dtype is dtypes.float64:
            return Tile(beside(op.values(values), mode, _REMAINDERS[op.name], values), dtype)
        return Tile(dtypes.round_to(dtype, op.values(values.astype(np.float64)), mode), dtype)
    values = result(op.values(values), dtype)
    return Tile(flush(values.data), dtype) if flush_to_zero else values


def _rsqrt(values):
    return 1 / np.sqrt(values)


EXP = Op("exp", math.exp, np.exp, (FULL, APPROX))
EXP2 = Op("exp2", lambda x: 2**x, np.exp2, (), True)
LOG = Op("log", math.log, np.log)
LOG2 = Op("log2", math.log2, np.log2)
SQRT = Op("sqrt", math.sqrt, np.sqrt, (*_BASIC, APPROX), True)
RSQRT = Op("rsqrt", lambda x: x**-0.5, _rsqrt, (), True)
SIN, COS, TAN = Op("sin", math.sin, np.sin), Op("cos", math.cos, np.cos), Op("tan", math.tan, np.tan)
SINH, COSH = Op("sinh", math.sinh, np.sinh), Op("cosh", math.cosh, np.cosh)
TANH = Op("tanh", math.tanh, np.tanh, (FULL, APPROX))
FLOOR, CEIL = Op("floor", math.floor, np.floor), Op("ceil", math.ceil, np.ceil)


def exp(x, /, *, rounding_mode=None):
    return unary(EXP, x, rounding_mode)


def exp2(x, /, *, flush_to_zero=False):
    return unary(EXP2, x, None, flush_to_zero)


def log(x, /):
    return unary(LOG, x)


def log2(x, /):
    return unary(LOG2, x)


def sqrt(x, /, *, rounding_mode=None, flush_to_zero=False):
    return unary(SQRT, x, rounding_mode, flush_to_zero)


def rsqrt(x, /, *, flush_to_zero=False):
    return unary(RSQRT, x, None, flush_to_zero)


def sin(x, /):
    return unary(SIN, x)


def cos(x, /):
    return unary(COS, x)


def tan(x, /):
    return unary(TAN, x)


def sinh(x, /):
    return unary(SINH, x)


def cosh(x, /):
    return unary(COSH, x)


def tanh(x, /, *, rounding_mode=None):
    return unary(TANH, x, rounding_mode)


def _floats_only(op, x):
    if is_number(x):
        return fold(op.python, x)
    x = as_tile(x)
    if FORMATS[x.dtype].category != FLOAT or FORMATS[x.dtype].restricted:
        raise TileTypeError(f"{op.name} takes floats; got {x.dtype}")
    return unary(op, x)


def floor(x, /):
    return _floats_only(FLOOR, x)


def ceil(x, /):
    return _floats_only(CEIL, x)


def abs(x, /):
    if is_number(x):
        return builtins.abs(x)
    x = as_tile(x)
    check_operand(x, "The operand")
    if x.unsure:
        return of_unsure(abs, x)
    return Tile(np.abs(x.data), x.dtype) if x.const is None else strict(builtins.abs(x.const), x.dtype)


def negative(x, /):
    if is_number(x):
        return -x
    x = as_tile(x)
    check_operand(x, "The operand")
    x = counted(x)
    if x.unsure:
        return of_unsure(negative, x)
    return Tile(-x.data, x.dtype) if x.const is None else strict(-x.const, x.dtype)


def _plus(x):
    if x.dtype not in FORMATS:
        raise TileTypeError(f"Pointers have no sign; got {describe(x)}")
    return counted(x)


def counted(x: Tile) -> Tile:
    """A boolean as the integer that counts it; anything else as it is."""
    return _constant_or_not(x.data.astype(np.int32), dtypes.int32, x) if x.dtype is dtypes.bool_ else x


def _constant_or_not(values: np.ndarray, dtype: DType, x: Tile) -> Tile:
    """What `x` became: a constant if it was one."""
    became = Tile(values, dtype, values[0].item() if x.known else None)
    return unsure(became) if x.unsure else became


def isnan(x, /):
    if is_number(x):
        return math.isnan(x)
    x = as_tile(x)
    if FORMATS[x.dtype].category != FLOAT:
        raise TileTypeError(f"isnan takes floats; got {x.dtype}")
    if not x.known:
        _refuse_restricted(x.dtype, "tested for NaN")
    return _constant_or_not(np.isnan(x.data), dtypes.bool_, x)


def where(cond, x, y, /):
    cond = as_tile(cond, "cond")
    dtype = common_dtype(x, y)
    a, b = pair(x, y, dtype)
    c = operand(cond, dtypes.bool_)
    shape = broadcast_shapes(a.shape[1:], b.shape[1:], c.shape[1:])
    rank = len(shape)
    return Tile(np.where(aligned(c, rank), aligned(a, rank), aligned(b, rank)), dtype)


# Operators of Tile ----------------------------------------------------------------------------------------------------


def _forward(function):
    def method(self, other):
        if not isinstance(other, Tile) and not is_number(other):
            return NotImplemented
        return function(self, other)

    return method


def _reflected(function):
    def method(self, other):
        if not is_number(other):
            return NotImplemented
        return function(other, self)

    return method


def _equal(self, other):
    return equal(self, other) if isinstance(other, Tile) or is_number(other) else NotImplemented


_OPERATORS = {
    "add": add, "sub": sub, "mul": mul, "truediv": truediv, "floordiv": floordiv, "mod": mod, "pow": pow,
    "divmod": divmod, "and": bitwise_and, "or": bitwise_or, "xor": bitwise_xor, "lshift": bitwise_lshift,
    "rshift": bitwise_rshift,
}  # fmt: skip
for _name, _function in _OPERATORS.items():
    setattr(Tile, f"__{_name}__", _forward(_function))
    setattr(Tile, f"__r{_name}__", _reflected(_function))
for _name, _function in {
    "gt": greater,
    "ge": greater_equal,
    "lt": less,
    "le": less_equal,
    "eq": equal,
    "ne": not_equal,
}.items():
    setattr(Tile, f"__{_name}__", _forward(_function))
Tile.__neg__ = negative
Tile.__pos__ = _plus
Tile.__invert__ = bitwise_not
Tile.__abs__ = abs

NAMES = (
    "abs", "add", "atan2", "bitwise_and", "bitwise_lshift", "bitwise_not", "bitwise_or", "bitwise_rshift", "bitwise_xor",
    "cdiv", "ceil", "cos", "cosh", "divmod", "equal", "exp", "exp2", "floor", "floordiv", "greater", "greater_equal",
    "isnan", "less", "less_equal", "log", "log2", "maximum", "minimum", "mod", "mul", "negative", "not_equal", "pow",
    "rsqrt", "sin", "sinh", "sqrt", "sub", "tan", "tanh", "truediv", "where",
)  # fmt: skip
