"""Arithmetic: promotion, every binary operation on every dtype, literals and scalars, rounding modes."""

import itertools
import operator

import cuda.tile as ct
import numpy as np

from . import kernels
from .dtypes import ARITHMETIC, FLOATS, INTEGERS, NUMPY, SIGNED, TILE, UNSIGNED, random
from .harness import EXACT, Case, blank, ulp

CASES = []
_NO_UNSIGNED_FLOORDIV = "tileiras 13.4 refuses the bytecode of an unsigned // (rounding to minus infinity)"
# Tile shapes and the array that a grid of them covers: ragged ends, and a tile larger than the array.
SHAPES = [((16,), (4,), (50,)), ((4, 8), (2,), (7, 8)), ((2, 4, 4), (3,), (5, 3, 4)), ((64,), (1,), (23,))]


# ---- promotion -------------------------------------------------------------------------------------------------------


def promoted(a: str, b: str) -> str | None:
    """The documented table of implicit promotion in words; None where it says that there is none."""
    if a == b:
        return a
    if "bool" in (a, b):
        other = b if a == "bool" else a
        return other if other in ARITHMETIC else None
    if a not in ARITHMETIC or b not in ARITHMETIC:
        return None
    if a in FLOATS and b in FLOATS:
        return None if {a, b} == {"float16", "bfloat16"} else max(a, b, key=lambda d: NUMPY[d].itemsize)
    if a in FLOATS or b in FLOATS:
        return a if a in FLOATS else b
    if (a in SIGNED) != (b in SIGNED):
        return None
    return max(a, b, key=lambda d: NUMPY[d].itemsize)


def _add(a, b):
    return a + b


def _in(dtype: str, *arrays):
    """The arrays as `dtype` holds them, widened for exact arithmetic (ints wrap as two's complement)."""
    wide = NUMPY[dtype] if dtype in INTEGERS else np.float64
    return [array.astype(NUMPY[dtype]).astype(wide) for array in arrays]


for _number, (_a, _b) in enumerate(itertools.combinations_with_replacement(("bool", *ARITHMETIC), 2)):
    if _number % 2:
        _a, _b = _b, _a
    _to = promoted(_a, _b)
    _args = lambda rng, a=_a, b=_b: [random(rng, a, 50, 0, 60), random(rng, b, 50, 0, 60)]  # noqa: E731
    if _to is None or _to == "bool":
        CASES.append(
            Case(
                f"promotion/{_a}+{_b}",
                kernels.binary(_add),
                (4,),
                lambda rng, a=_args: [*a(rng), blank("float64", 50)],
                error=ct.TileTypeError,
            )
        )
    else:
        CASES.append(
            Case(
                f"promotion/{_a}+{_b}",
                kernels.binary(_add, result=TILE[_to]),
                (4,),
                lambda rng, a=_args, to=_to: [*a(rng), blank(to, 50)],
                lambda x, y, out, to=_to: operator.add(*_in(to, x, y)),
            )
        )

for _a, _b in itertools.product(("float8_e4m3fn", "float8_e5m2", "tfloat32"), ("float32", "int32", "float8_e5m2")):
    if _a == _b:
        continue

    def _mixed(x, y, a=TILE[_a], b=TILE[_b]):
        return x.astype(a) + y.astype(b)

    CASES.append(
        Case(
            f"promotion/{_a}+{_b}",
            kernels.binary(_mixed),
            (4,),
            lambda rng: [random(rng, "float32", 50), random(rng, "float32", 50), blank("float64", 50)],
            error=ct.TileTypeError,
        )
    )

for _a in ("float8_e4m3fn", "float8_e5m2", "tfloat32", "float4_e2m1fn"):

    def _restricted(x, a=TILE[_a]):
        return x.astype(a) + x.astype(a)

    CASES.append(
        Case(
            f"promotion/no-arithmetic-in-{_a}",
            kernels.unary(_restricted),
            (4,),
            lambda rng: [random(rng, "float32", 50), blank("float32", 50)],
            error=ct.TileTypeError,
            match="non-arithmetic",
        )
    )

# ---- every operation on every dtype ----------------------------------------------------------------------------------


def _wide(dtype: str, array):
    """What the array holds, in float64 for floats and in the dtype itself for integers, which wrap."""
    return array.astype(np.float64) if dtype in FLOATS else array


def _rounded(dtype: str, value):
    """A float64 result as the dtype holds it, widened again: for operations documented as two roundings."""
    return np.asarray(value).astype(NUMPY[dtype]).astype(np.float64)


def _floordiv(dtype, x, y):
    x, y = _wide(dtype, x), _wide(dtype, y)
    return np.floor(_rounded(dtype, x / y)) if dtype in FLOATS else x // y


def _ceildiv(dtype, x, y):
    return np.asarray([-(-int(a) // int(b)) for a, b in zip(x.flat, y.flat, strict=True)], object).reshape(x.shape)


def _number(function):
    return lambda dtype, x, y: function(_wide(dtype, x), _wide(dtype, y))


def _nonzero(rng, dtype, shape):
    values = random(rng, dtype, shape, *((1, 20) if dtype in UNSIGNED else (-20, 20)))
    return np.where(np.abs(values.astype(np.float64)) < 0.25, np.asarray(3).astype(values.dtype), values)


def _any(rng, dtype, shape):
    """The whole range of integers but the most negative, whose quotient by -1 does not exist."""
    if dtype in SIGNED:
        return random(rng, dtype, shape, low=np.iinfo(NUMPY[dtype]).min + 1)
    return random(rng, dtype, shape)


def _function(name):
    return getattr(ct, name)


# name: (the functions that spell it, dtypes, expected(dtype, x, y), result dtype or None for the operands', y's values)
_DIVISOR = _nonzero
_BINARY = {
    "add": ((operator.add, ct.add), ARITHMETIC, _number(np.add), None, _any),
    "sub": ((operator.sub, ct.sub), ARITHMETIC, _number(np.subtract), None, _any),
    "mul": ((operator.mul, ct.mul), ARITHMETIC, _number(np.multiply), None, _any),
    "floordiv": ((operator.floordiv, ct.floordiv), ARITHMETIC, _floordiv, None, _DIVISOR),
    "mod": ((operator.mod, ct.mod), ARITHMETIC, _number(np.mod), None, _DIVISOR),
    "min": ((min, ct.minimum), ARITHMETIC, _number(np.minimum), None, _any),
    "max": ((max, ct.maximum), ARITHMETIC, _number(np.maximum), None, _any),
    "cdiv": ((ct.cdiv,), INTEGERS, _ceildiv, None, _DIVISOR),
    "and": ((operator.and_, ct.bitwise_and), ("bool", *INTEGERS), _number(np.bitwise_and), None, _any),
    "or": ((operator.or_, ct.bitwise_or), ("bool", *INTEGERS), _number(np.bitwise_or), None, _any),
    "xor": ((operator.xor, ct.bitwise_xor), ("bool", *INTEGERS), _number(np.bitwise_xor), None, _any),
}


def _function_of(spelling):
    """A function in Python source that uses the spelling: kernels call it as they would a learner's helper."""

    def apply(a, b):
        return spelling(a, b)

    return apply


for _name, (_spellings, _dtypes, _expected, _result, _divisor) in _BINARY.items():
    for _number_of_dtype, _dtype in enumerate(_dtypes):
        for _which, _spelling in enumerate(_spellings):
            _tile, _grid, _shape = SHAPES[(_number_of_dtype + _which) % len(SHAPES)]
            CASES.append(
                Case(
                    f"binary/{_name}/{_dtype}/{'operator' if len(_spellings) > 1 and not _which else 'function'}",
                    kernels.binary(_function_of(_spelling), _tile, TILE[_result or _dtype]),
                    _grid,
                    lambda rng, d=_dtype, s=_shape, second=_divisor: [
                        _any(rng, d, s),
                        second(rng, d, s),
                        blank(d, s),
                    ],
                    lambda x, y, out, d=_dtype, e=_expected: e(d, x, y),
                    tolerance=ulp(1) if _name == "mod" and _dtype in FLOATS else EXACT,
                    differs=_NO_UNSIGNED_FLOORDIV if _name == "floordiv" and _dtype in UNSIGNED else "",
                )
            )

for _dtype in ("bool", *ARITHMETIC):
    for _which, _spelling in enumerate((operator.truediv, ct.truediv)):
        _to = _dtype if _dtype in FLOATS else "float32"
        if _dtype == "bool":
            # "The strongest category wins" has no float here: division makes float32 of two integers or bools.
            _divisor = lambda rng, d, s: np.ones(s, bool)  # noqa: E731
        else:
            _divisor = _nonzero
        CASES.append(
            Case(
                f"binary/truediv/{_dtype}/{'function' if _which else 'operator'}",
                kernels.binary(_function_of(_spelling), result=TILE[_to]),
                (4,),
                lambda rng, d=_dtype, second=_divisor, to=_to: [random(rng, d, 50), second(rng, d, 50), blank(to, 50)],
                lambda x, y, out, to=_to: np.divide(*(v.astype(NUMPY[to]).astype(np.float64) for v in (x, y))),
            )
        )


# Quotients just below an integer that bfloat16 rounds up to it: the floor is of what has been rounded.
_JUST_BELOW = {
    "x": [-3.5625, -3.03125, 1.609375, -3.890625, 3.109375],
    "y": [0.5078125, 0.50390625, -0.53515625, 0.77734375, 0.345703125],
}
CASES.append(
    Case(
        "binary/floordiv/bfloat16/of the rounded quotient",
        kernels.binary(_function_of(operator.floordiv), result=TILE["bfloat16"]),
        (4,),
        lambda rng: [*(np.tile(v, 10).astype(NUMPY["bfloat16"]) for v in _JUST_BELOW.values()), blank("bfloat16", 50)],
        lambda x, y, out: np.tile([-7.0, -6.0, -3.0, -5.0, 9.0], 10),
    )
)


def _quotient_and_remainder(x, y):
    quotient, remainder = divmod(x, y)
    return quotient * 1000 + remainder


def _quotient_and_remainder_of_the_function(x, y):
    quotient, remainder = ct.divmod(x, y)
    return quotient * 1000 + remainder


for _dtype in ("int16", "int32", "int64", "uint16", "uint32", "uint64"):
    for _which, _spelling in enumerate((_quotient_and_remainder, _quotient_and_remainder_of_the_function)):
        CASES.append(
            Case(
                f"binary/divmod/{_dtype}/{'function' if _which else 'builtin'}",
                kernels.binary(_spelling, result=TILE[_dtype]),
                (4,),
                lambda rng, d=_dtype: [
                    random(rng, d, 50, 0 if d in UNSIGNED else -200, 200),
                    _nonzero(rng, d, 50) if d in UNSIGNED else random(rng, d, 50, 7, 9),
                    blank(d, 50),
                ],
                lambda x, y, out: x // y * 1000 + x % y,
                differs=_NO_UNSIGNED_FLOORDIV if _dtype in UNSIGNED else "",
            )
        )

for _dtype in FLOATS:
    CASES.append(
        Case(
            f"binary/divmod/{_dtype}/not-implemented",
            kernels.binary(_quotient_and_remainder),
            (4,),
            lambda rng, d=_dtype: [random(rng, d, 50), _nonzero(rng, d, 50), blank(d, 50)],
            error=ct.TileTypeError,
            match="not implemented for floating",
        )
    )

for _name in ("floordiv", "mod", "min", "max", "add", "sub", "mul"):
    CASES.append(
        Case(
            f"binary/{_name}/bool/refused",
            kernels.binary(_function_of(_BINARY[_name][0][1])),
            (4,),
            lambda rng: [random(rng, "bool", 50), random(rng, "bool", 50), blank("int32", 50)],
            error=ct.TileTypeError,
            match="does not support bool",
        )
    )

# Negative operands of // and %, all four signs: Python's convention, quotient to minus infinity and the divisor's sign.
for _dtype in SIGNED + FLOATS:
    for _name in ("floordiv", "mod"):
        CASES.append(
            Case(
                f"binary/{_name}/{_dtype}/signs",
                kernels.binary(_function_of(_BINARY[_name][0][0])),
                (1,),
                lambda rng, d=_dtype: [
                    np.asarray([7, -7, 7, -7, 6, -6, 6, -6]).astype(NUMPY[d]),
                    np.asarray([2, 2, -2, -2, 3, 3, -3, -3]).astype(NUMPY[d]),
                    blank(d, 8),
                ],
                lambda x, y, out, n=_name: (
                    [3, -4, -4, 3, 2, -2, -2, 2] if n == "floordiv" else [1, 1, -1, -1, 0, 0, 0, 0]
                ),
                tolerance=ulp(0) if _dtype in FLOATS else EXACT,
            )
        )
CASES.append(
    Case(
        "binary/floordiv/float64/the-docstring's",
        kernels.binary(_function_of(operator.floordiv)),
        (1,),
        lambda rng: [np.asarray([5.5, -5.5]), np.asarray([2.2, 2.2]), blank("float64", 2)],
        lambda x, y, out: [2.0, -3.0],
    )
)

# Shifts: the amount is below the width; >> is arithmetic on signed and logical on unsigned dtypes.
for _name, _spellings in {
    "lshift": (operator.lshift, ct.bitwise_lshift),
    "rshift": (operator.rshift, ct.bitwise_rshift),
}.items():
    for _number_of_dtype, _dtype in enumerate(INTEGERS):
        _spelling = _spellings[_number_of_dtype % 2]
        CASES.append(
            Case(
                f"binary/{_name}/{_dtype}",
                kernels.binary(_function_of(_spelling), result=TILE[_dtype]),
                (4,),
                lambda rng, d=_dtype: [
                    random(rng, d, 50),
                    random(rng, d, 50, 0, 8 * NUMPY[d].itemsize - 1),
                    blank(d, 50),
                ],
                lambda x, y, out, n=_name: np.left_shift(x, y) if n == "lshift" else np.right_shift(x, y),
            )
        )
    for _bad in ("float32", "bool"):
        CASES.append(
            Case(
                f"binary/{_name}/{_bad}/refused",
                kernels.binary(_function_of(_spellings[0])),
                (4,),
                lambda rng, d=_bad: [random(rng, d, 50), random(rng, d, 50), blank(d, 50)],
                error=ct.TileTypeError,
                match="requires an integer",
            )
        )

for _name in ("and", "or", "xor"):
    for _a, _b in (("int32", "int64"), ("uint8", "int32"), ("bool", "int32"), ("bool", "int8"), ("float32", "float32")):
        CASES.append(
            Case(
                f"binary/{_name}/{_a}-{_b}/refused",
                kernels.binary(_function_of(_BINARY[_name][0][0])),
                (4,),
                lambda rng, a=_a, b=_b: [random(rng, a, 50), random(rng, b, 50), blank("int64", 50)],
                error=ct.TileTypeError,
                match="bitwise",
            )
        )

# ---- pow and atan2 ---------------------------------------------------------------------------------------------------

# A power loses about |y log2 x| of a unit in the last place of the exponent it is computed from.
_POW = {"float16": ulp(2), "bfloat16": ulp(2), "float32": ulp(16), "float64": ulp(16)}
for _dtype in FLOATS:
    for _which, _spelling in enumerate((operator.pow, ct.pow)):
        CASES.append(
            Case(
                f"binary/pow/{_dtype}/{'function' if _which else 'operator'}",
                kernels.binary(_function_of(_spelling), result=TILE[_dtype]),
                (4,),
                lambda rng, d=_dtype: [random(rng, d, 50, 0.1, 4), random(rng, d, 50, -3, 3), blank(d, 50)],
                lambda x, y, out: np.power(x.astype(np.float64), y.astype(np.float64)),
                tolerance=_POW[_dtype],
            )
        )
    for _exponent in ("int8", "uint8", "int16", "uint16", "int32"):
        CASES.append(
            Case(
                f"binary/pow/{_dtype}-{_exponent}",
                kernels.binary(_function_of(operator.pow), result=TILE[_dtype]),
                (4,),
                lambda rng, d=_dtype, e=_exponent: [
                    random(rng, d, 50, -2, 2),
                    random(rng, e, 50, 0, 4),
                    blank(d, 50),
                ],
                lambda x, y, out: np.power(x.astype(np.float64), y.astype(np.float64)),
                tolerance=_POW[_dtype],
            )
        )
    CASES.append(
        Case(
            f"binary/atan2/{_dtype}",
            kernels.binary(_function_of(ct.atan2), result=TILE[_dtype]),
            (4,),
            lambda rng, d=_dtype: [random(rng, d, 50), random(rng, d, 50), blank(d, 50)],
            lambda x, y, out: np.arctan2(x.astype(np.float64), y.astype(np.float64)),
            tolerance=ulp(4),
        )
    )

CASES.append(
    Case(
        "binary/pow/float32/specials",
        kernels.binary(_function_of(operator.pow)),
        (1,),
        lambda rng: [
            np.asarray([0, 0, 1, -1, np.inf, 2, -2, -2, np.nan, np.nan], np.float32),
            np.asarray([0, 2, np.nan, np.inf, 0, -np.inf, 3, 0.5, 0, 1], np.float32),
            blank("float32", 10),
        ],
        # IEEE 754's pow: 1 for a zero exponent or a base of 1, NaN for a negative base and a fractional exponent.
        lambda x, y, out: [1, 0, 1, 1, 1, 0, -8, np.nan, 1, np.nan],
        tolerance=ulp(4),
    )
)
CASES.append(
    Case(
        "binary/atan2/float32/axes",
        kernels.binary(_function_of(ct.atan2)),
        (1,),
        lambda rng: [
            np.asarray([0, 0, 1, -1, 1, np.nan], np.float32),
            np.asarray([1, -1, 0, 0, -1, 1], np.float32),
            blank("float32", 6),
        ],
        lambda x, y, out: [0, np.pi, np.pi / 2, -np.pi / 2, 3 * np.pi / 4, np.nan],
        tolerance=ulp(4),
    )
)

# ---- IEEE specials ---------------------------------------------------------------------------------------------------

_SPECIALS = np.asarray([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.5])
_PAIRS = np.asarray(list(itertools.product(_SPECIALS, _SPECIALS)))


def _quietly(function, x, y):
    with np.errstate(all="ignore"):
        return function(x, y)


def _propagating_minimum(a, b):
    return ct.minimum(a, b, propagate_nan=True)


def _propagating_maximum(a, b):
    return ct.maximum(a, b, propagate_nan=True)


for _dtype in FLOATS:
    for _name, _spelling, _expected in (
        ("add", operator.add, np.add),
        ("sub", operator.sub, np.subtract),
        ("mul", operator.mul, np.multiply),
        ("truediv", operator.truediv, np.divide),
        ("min", ct.minimum, np.fmin),
        ("max", ct.maximum, np.fmax),
        ("min-propagate_nan", _propagating_minimum, np.minimum),
        ("max-propagate_nan", _propagating_maximum, np.maximum),
    ):
        CASES.append(
            Case(
                f"specials/{_name}/{_dtype}",
                kernels.binary(_function_of(_spelling)),
                (4,),
                lambda rng, d=_dtype: [*(_PAIRS.T.astype(NUMPY[d]).copy()), blank(d, 64)],
                lambda x, y, out, e=_expected: _quietly(e, x.astype(np.float64), y.astype(np.float64)),
                # Which zero min(0.0, -0.0) gives is not documented.
                tolerance=ulp(0) if _name[:3] in ("min", "max") else EXACT,
            )
        )

# ---- comparisons -----------------------------------------------------------------------------------------------------

for _name, _spellings, _expected in (
    ("lt", (operator.lt, ct.less), np.less),
    ("le", (operator.le, ct.less_equal), np.less_equal),
    ("gt", (operator.gt, ct.greater), np.greater),
    ("ge", (operator.ge, ct.greater_equal), np.greater_equal),
    ("eq", (operator.eq, ct.equal), np.equal),
    ("ne", (operator.ne, ct.not_equal), np.not_equal),
):
    for _number_of_dtype, _dtype in enumerate(("bool", *ARITHMETIC)):
        CASES.append(
            Case(
                f"comparison/{_name}/{_dtype}",
                kernels.binary(_function_of(_spellings[_number_of_dtype % 2]), result=ct.bool_),
                (4,),
                lambda rng, d=_dtype: (
                    [*(_PAIRS.T.astype(NUMPY[d]).copy()), blank("bool", 64)]
                    if d in FLOATS
                    else [
                        np.concatenate([x := random(rng, d, 32), x[::-1]]),
                        np.concatenate([random(rng, d, 32), x[::-1]]),
                        blank("bool", 64),
                    ]
                ),
                lambda x, y, out, e=_expected, d=_dtype: e(_wide(d, x), _wide(d, y)),
            )
        )
for _a, _b in (("uint8", "int8"), ("uint32", "int64"), ("float16", "bfloat16")):
    CASES.append(
        Case(
            f"comparison/lt/{_a}-{_b}/refused",
            kernels.binary(_function_of(operator.lt)),
            (4,),
            lambda rng, a=_a, b=_b: [random(rng, a, 50), random(rng, b, 50), blank("bool", 50)],
            error=ct.TileTypeError,
        )
    )
CASES.append(
    Case(
        "comparison/lt/int32-float64/promotes",
        kernels.binary(_function_of(operator.lt), result=ct.bool_),
        (1,),
        lambda rng: [np.arange(4, dtype=np.int32), np.asarray([0.5, 0.5, 2.0, 3.5]), blank("bool", 4)],
        lambda x, y, out: [True, False, False, True],
    )
)
