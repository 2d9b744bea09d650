"""Literals, constants and scalar arguments beside tiles; Python's operators; rounding modes; flush_to_zero."""

import math
import operator
from fractions import Fraction

import cuda.tile as ct
import numpy as np

from . import kernels
from .dtypes import FLOATS, INTEGERS, NUMPY, SIGNED, TILE, random
from .harness import EXACT, Case, blank, ulp
from .kernels import expression

CASES = []


def _wide(array):
    return array.astype(np.float64) if array.dtype.kind not in "iub" else array


def _accept(name, function, dtype, to, expected, low=None, high=None, tolerance=EXACT):
    """A function of one tile whose result is documented to be of dtype `to`."""
    CASES.append(
        Case(
            name,
            kernels.unary(function, result=TILE[to]),
            (4,),
            lambda rng: [random(rng, dtype, 50, low, high), blank(to, 50)],
            lambda x, out: expected(_wide(x)),
            tolerance=tolerance,
        )
    )


def _refuse(name, function, dtype, error=ct.TileTypeError, match="", to="float64", needs=()):
    CASES.append(
        Case(
            name,
            kernels.unary(function),
            (4,),
            lambda rng: [random(rng, dtype, 50, 0, 50), blank(to, 50)],
            error=error,
            match=match,
            needs=needs,
        )
    )


# ---- literals are loosely typed: they take the tile's dtype, unless their category is stronger ------------------------

for _dtype in INTEGERS:
    _accept(f"literal/tile+int/{_dtype}", expression("x + 3"), _dtype, _dtype, lambda x: x + x.dtype.type(3))
    _accept(f"literal/int-tile/{_dtype}", expression("100 - x"), _dtype, _dtype, lambda x: x.dtype.type(100) - x)
    _accept(
        f"literal/tile*float/{_dtype}", expression("x * 0.5"), _dtype, "float32", lambda x: x.astype(np.float32) * 0.5
    )
    _accept(
        f"literal/tile-over-int/{_dtype}", expression("x / 4"), _dtype, "float32", lambda x: x.astype(np.float32) / 4.0
    )
    _accept(f"literal/tile+True/{_dtype}", expression("x + True"), _dtype, _dtype, lambda x: x + x.dtype.type(1))
    _info = np.iinfo(NUMPY[_dtype])

    def _too_large(x, value=int(_info.max) + 1):
        return x + value

    def _too_small(x, value=int(_info.min) - 1):
        return x + value

    if _dtype != "uint64":
        _refuse(f"literal/too-large/{_dtype}", _too_large, _dtype, ct.TileValueError, "out of range")
    if _dtype != "int64":
        _refuse(f"literal/too-small/{_dtype}", _too_small, _dtype, ct.TileValueError, "out of range")
for _dtype in FLOATS:
    _accept(f"literal/tile+int/{_dtype}", expression("x + 3"), _dtype, _dtype, lambda x: x + 3)
    _accept(f"literal/float-tile/{_dtype}", expression("1.5 - x"), _dtype, _dtype, lambda x: 1.5 - x)
    _accept(f"literal/tile-over-int/{_dtype}", expression("x / 4"), _dtype, _dtype, lambda x: x / 4)
    _accept(f"literal/int-over-tile/{_dtype}", expression("4 / x"), _dtype, _dtype, lambda x: 4 / x, 0.5, 4)
    _accept(f"literal/comparison/{_dtype}", expression("x > 0"), _dtype, "bool", lambda x: x > 0)
_accept("literal/bool+int", expression("x + 3"), "bool", "int32", lambda x: x.astype(np.int32) + 3)
_accept("literal/bool*float", expression("x * 0.5"), "bool", "float32", lambda x: x * 0.5)
# 0.1 is a float32, as the compiled bytecode of every case here has it, and then rounded to the tile's dtype.
for _dtype in FLOATS:
    _accept(
        f"literal/rounded-to-the-tile's/{_dtype}",
        expression("x * 0 + 0.1"),
        _dtype,
        _dtype,
        lambda x, d=_dtype: np.full(x.shape, float(NUMPY[d].type(np.float32(0.1)))),
    )
_accept("literal/int-tile-and-mask", expression("x & 15"), "uint8", "uint8", lambda x: x & np.uint8(15))
_accept("literal/shift-by-literal", expression("x << 3"), "int16", "int16", lambda x: x << np.int16(3))
_accept("literal/literal-shifted", expression("1 << x"), "int32", "int32", lambda x: np.int32(1) << x, 0, 30)
_accept("literal/floordiv", expression("x // 7"), "int32", "int32", lambda x: x // np.int32(7))
_accept("literal/mod-negative", expression("x % -7"), "int32", "int32", lambda x: x % np.int32(-7))
_accept("literal/pow-2", expression("x ** 2"), "float32", "float32", lambda x: x**2, tolerance=ulp(1))
_accept("literal/base-2", expression("2.0 ** x"), "float32", "float32", lambda x: 2.0**x, tolerance=ulp(8))
_accept("literal/chain-of-literals", expression("x + (2 * 3 - 1) // 2"), "int8", "int8", lambda x: x + np.int8(2))
_accept("literal/inf", expression("min(x, float('inf'))"), "float16", "float16", lambda x: x)
_accept("literal/math-pi", expression("x * math.pi"), "float64", "float64", lambda x: x * float(np.float32(math.pi)))
_accept("literal/min-with-literal", expression("min(x, 0)"), "int64", "int64", lambda x: np.minimum(x, np.int64(0)))
_accept("literal/max-with-literal", expression("max(0.5, x)"), "bfloat16", "bfloat16", lambda x: np.maximum(x, 0.5))
_refuse("literal/int-and-float-bitwise", expression("x & 1.0"), "int32", match="bitwise")
_refuse("literal/shift-by-float", expression("x << 1.0"), "int32", match="requires an integer")
_refuse("literal/constant-division-by-zero", expression("x + 1 // 0"), "int32", ct.TileValueError, needs=("compiler",))
_refuse("literal/string", expression("x + 'one'"), "int32", needs=("compiler",))
_refuse("literal/None", expression("x + None"), "int32", needs=("compiler",))

# A dtype called on a number makes a typed constant: it takes part in promotion like a tile.
for _dtype, _of, _to in (
    ("int8", "int16", "int16"),
    ("int8", "int8", "int8"),
    ("int32", "int64", "int64"),
    ("float16", "float32", "float32"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("float32", "float16", "float32"),
    ("float32", "int64", "float32"),
    ("uint8", "uint32", "uint32"),
    ("int64", "float16", "float16"),
    ("bool", "int8", "int8"),
):

    def _typed(x, constructor=TILE[_of]):
        return x + constructor(3)

    _accept(
        f"typed-constant/{_dtype}+{_of}",
        _typed,
        _dtype,
        _to,
        lambda x, to=_to: x.astype(NUMPY[to]).astype(NUMPY[to] if to in INTEGERS else np.float64) + NUMPY[to].type(3),
        0,
        50,
    )
_refuse("typed-constant/int8+uint8", expression("x + ct.uint8(3)"), "int8")
_refuse("typed-constant/float16+bfloat16", expression("x + ct.bfloat16(3)"), "float16")
_refuse("typed-constant/bitwise", expression("x & ct.int64(3)"), "int32", match="same data type")

# ---- scalar arguments: a Python int is an int32, a float is a float32, a bool is a bool -------------------------------


def _plus(x, scalar):
    return x + scalar


def _over(x, scalar):
    return x / scalar


def _scalar(name, function, dtype, value, to, expected, constant=False):
    make = kernels.with_constant if constant else kernels.with_scalar
    CASES.append(
        Case(
            name,
            make(function, TILE[to]),
            (4,),
            lambda rng: [random(rng, dtype, 50, 0, 50), value, blank(to, 50)],
            lambda x, scalar, out: expected(x, scalar),
        )
    )


def _sum_in(to):
    wide = NUMPY[to] if to in INTEGERS else np.float64
    return lambda x, s: x.astype(NUMPY[to]).astype(wide) + np.asarray(s).astype(NUMPY[to]).astype(wide)


for _dtype, _to in (("int8", "int32"), ("int16", "int32"), ("int32", "int32"), ("int64", "int64"), ("bool", "int32")):
    _scalar(f"scalar/int32+{_dtype}", _plus, _dtype, 1000, _to, _sum_in(_to))
for _dtype in FLOATS:
    _scalar(f"scalar/int32+{_dtype}", _plus, _dtype, 7, _dtype, _sum_in(_dtype))
for _dtype in ("uint8", "uint16", "uint32", "uint64"):
    CASES.append(
        Case(
            f"scalar/int32+{_dtype}/refused",
            kernels.with_scalar(_plus),
            (4,),
            lambda rng, d=_dtype: [random(rng, d, 50, 0, 50), 7, blank("int64", 50)],
            error=ct.TileTypeError,
            match="not supported",
        )
    )
for _dtype, _to in (
    ("float16", "float32"),
    ("bfloat16", "float32"),
    ("float32", "float32"),
    ("float64", "float64"),
    ("int64", "float32"),
    ("uint8", "float32"),
    ("bool", "float32"),
):
    _scalar(f"scalar/float32+{_dtype}", _plus, _dtype, 0.25, _to, _sum_in(_to))
_scalar("scalar/bool+int8", _plus, "int8", True, "int8", _sum_in("int8"))
_scalar("scalar/float32-rounds-the-argument", _plus, "float64", 0.1, "float64", lambda x, s: x + float(np.float32(s)))
_scalar("scalar/int-over-int", _over, "int32", 7, "float32", lambda x, s: x.astype(np.float64) / s)

# Constant arguments are loosely typed, as literals are.
for _dtype in INTEGERS:
    _scalar(f"constant/int+{_dtype}", _plus, _dtype, 7, _dtype, _sum_in(_dtype), constant=True)
for _dtype in FLOATS:
    _scalar(f"constant/float+{_dtype}", _plus, _dtype, 0.25, _dtype, _sum_in(_dtype), constant=True)
_scalar("constant/float+int16", _plus, "int16", 0.25, "float32", _sum_in("float32"), constant=True)
_scalar("constant/bool+int16", _plus, "int16", True, "int16", _sum_in("int16"), constant=True)
CASES.append(
    Case(
        "constant/out-of-range",
        kernels.with_constant(_plus),
        (4,),
        lambda rng: [random(rng, "int8", 50), 128, blank("int8", 50)],
        error=ct.TileValueError,
        match="out of range",
    )
)


@ct.kernel
def _int64_argument(x, scalar: ct.ScalarInt64, out):
    value = ct.load(x, ct.bid(0), (16,)) + scalar
    ct.static_assert(value.dtype == ct.int64)
    ct.store(out, ct.bid(0), value)


CASES.append(
    Case(
        "scalar/ScalarInt64",
        _int64_argument,
        (4,),
        lambda rng: [random(rng, "int32", 50, 0, 50), 2**40, blank("int64", 50)],
        lambda x, scalar, out: x.astype(np.int64) + scalar,
    )
)


@ct.kernel
def _scalar_arithmetic(a, b, out):
    """Scalars alone are 0-d tiles: // and % as Python's, int32 wraps."""
    ct.store(out, 0, ct.astile((a // b, a % b, a * 1_000_003, a - b), dtype=ct.int32))


def _wrapped(value):
    return (value + 2**31) % 2**32 - 2**31


for _a, _b in ((17, 5), (-17, 5), (17, -5), (-17, -5), (2**31 - 1, 2)):
    CASES.append(
        Case(
            f"scalar/arithmetic/{_a},{_b}",
            _scalar_arithmetic,
            (1,),
            lambda rng, a=_a, b=_b: [a, b, blank("int32", 4)],
            lambda a, b, out: [a // b, a % b, _wrapped(a * 1_000_003), _wrapped(a - b)],
        )
    )


@ct.kernel
def _logic(a, b, out):
    """`and`, `or`, `not` and conditional expressions on scalars that are not constant."""
    both = 1 if a > 0 and b > 0 else 0
    either = 1 if a > 0 or b > 0 else 0
    neither = 1 if not (a > 0) and not (b > 0) else 0
    between = 1 if 0 < a < b else 0
    ct.store(out, 0, ct.astile((both, either, neither, between), dtype=ct.int32))


for _a, _b in ((3, 5), (-3, 5), (3, -5), (-3, -5), (5, 3)):
    CASES.append(
        Case(
            f"scalar/logic/{_a},{_b}",
            _logic,
            (1,),
            lambda rng, a=_a, b=_b: [a, b, blank("int32", 4)],
            lambda a, b, out: [a > 0 and b > 0, a > 0 or b > 0, not a > 0 and not b > 0, 0 < a < b],
        )
    )

_refuse("operator/and-of-tiles", expression("x and x"), "int32")
_refuse("operator/or-of-tiles", expression("x or x"), "bool")
_refuse("operator/if-of-a-tile", expression("x if x > 0 else -x"), "int32")

# ---- Python's unary operators, builtins and augmented assignment ------------------------------------------------------

for _dtype in SIGNED:
    _accept(f"operator/neg/{_dtype}", expression("-x"), _dtype, _dtype, lambda x: -x)
    _accept(f"operator/abs/{_dtype}", expression("abs(x)"), _dtype, _dtype, lambda x: np.abs(x))
    _accept(f"operator/invert/{_dtype}", expression("~x"), _dtype, _dtype, lambda x: ~x)
for _dtype in ("uint8", "uint16", "uint32", "uint64"):
    _accept(f"operator/invert/{_dtype}", expression("ct.bitwise_not(x)"), _dtype, _dtype, lambda x: ~x)
    _accept(f"operator/neg/{_dtype}", expression("-x"), _dtype, _dtype, lambda x: x.dtype.type(0) - x)
for _dtype in FLOATS:
    _accept(f"operator/neg/{_dtype}", expression("ct.negative(x)"), _dtype, _dtype, lambda x: -x)
    _accept(f"operator/abs/{_dtype}", expression("ct.abs(x)"), _dtype, _dtype, lambda x: np.abs(x))
    _refuse(f"operator/invert/{_dtype}", expression("~x"), _dtype)
_accept("operator/invert/bool", expression("~x"), "bool", "bool", lambda x: ~x)
_accept("operator/neg/bool", expression("-x"), "bool", "int32", lambda x: -x.astype(np.int32))
_accept("operator/pos/bool", expression("+x"), "bool", "int32", lambda x: x.astype(np.int32))
_accept("operator/pos/int16", expression("+x"), "int16", "int16", lambda x: x)
_accept("operator/neg-zero/float32", expression("-(x * 0.0)"), "float32", "float32", lambda x: -(x * 0.0))


def _augmented(x):
    x += 3
    x *= 2
    x -= 1
    x //= 2
    x %= 7
    x <<= 2
    x >>= 1
    x |= 8
    x &= 13
    x ^= 5
    return x


def _augmented_expected(x):
    x = ((x + 3) * 2 - 1) // 2 % 7
    return (((x << 2 >> 1) | 8) & 13) ^ 5


_accept("operator/augmented/int32", _augmented, "int32", "int32", _augmented_expected, -1000, 1000)


def _augmented_floats(x):
    x /= 4
    x **= 2
    return x


_accept("operator/augmented/float32", _augmented_floats, "float32", "float32", lambda x: (x / 4) ** 2, tolerance=ulp(2))
_accept(
    "operator/chained-comparison-of-parts",
    expression("(x > -1) & (x < 1)"),
    "float32",
    "bool",
    lambda x: (x > -1) & (x < 1),
)

# ---- broadcasting ----------------------------------------------------------------------------------------------------

for _first, _second in (
    ((4, 8), (8,)),
    ((4, 8), (1, 8)),
    ((4, 8), (4, 1)),
    ((4, 1), (1, 8)),
    ((2, 4, 8), (4, 8)),
    ((8,), (4, 8)),
    ((2, 1, 8), (4, 1)),
    ((1,), (8,)),
):

    def _sum_of(a, b):
        a_start, b_start, start = (0,) * len(a), (0,) * len(b), (0,) * max(len(a), len(b))

        @ct.kernel
        def kernel(x, y, out):
            total = ct.load(x, a_start, a) + ct.load(y, b_start, b)
            ct.store(out, start, total)

        return kernel

    CASES.append(
        Case(
            f"broadcast/{_first}+{_second}",
            _sum_of(_first, _second),
            (1,),
            lambda rng, a=_first, b=_second: [
                random(rng, "float32", a),
                random(rng, "float32", b),
                blank("float32", np.broadcast_shapes(a, b)),
            ],
            lambda x, y, out: x.astype(np.float64) + y,
        )
    )
for _first, _second in (((4, 8), (4,)), ((8,), (16,)), ((2, 4, 8), (2, 8))):
    CASES.append(
        Case(
            f"broadcast/{_first}+{_second}/refused",
            _sum_of(_first, _second),
            (1,),
            lambda rng, a=_first, b=_second: [
                random(rng, "float32", a),
                random(rng, "float32", b),
                blank("float32", a),
            ],
            # The front end's class for it is an accident of its own (TileInternalError).
            error=ct.TileError,
            match="broadcast",
        )
    )
CASES.append(
    Case(
        "broadcast/0-d+1-d",
        kernels.with_scalar(expression("x + ct.full((), s, ct.int32)", "x, s"), ct.int32),
        (4,),
        lambda rng: [random(rng, "int32", 50, -50, 50), 7, blank("int32", 50)],
        lambda x, s, out: x + s,
    )
)
for _name, _operator in (("add", operator.add), ("mul", operator.mul), ("lt", operator.lt)):

    def _apply(a, b, function=_operator):
        return function(a, b)

    CASES.append(
        Case(
            f"broadcast/0-d/{_name}",
            kernels.scalar_binary(_apply),
            (9,),
            lambda rng, n=_name: [
                random(rng, "int32", 9, -50, 50),
                random(rng, "int32", 9, -50, 50),
                blank("bool" if n == "lt" else "int32", 9),
            ],
            lambda x, y, out, f=_operator: f(x, y),
        )
    )

# ---- rounding modes: exact rational arithmetic, rounded once ----------------------------------------------------------

_MODES = {"RN": ct.RoundingMode.RN, "RZ": ct.RoundingMode.RZ, "RM": ct.RoundingMode.RM, "RP": ct.RoundingMode.RP}


def directed(exact: Fraction, dtype: str, mode: str) -> float:
    """The exact number rounded to float32 or float64 in the direction that the mode says (no overflow here)."""
    kind = NUMPY[dtype].type
    nearest = kind(float(exact)) if dtype == "float64" else _nearest_float32(exact)
    below = nearest if Fraction(float(nearest)) <= exact else np.nextafter(nearest, kind(-np.inf))
    above = nearest if Fraction(float(nearest)) >= exact else np.nextafter(nearest, kind(np.inf))
    return float({"RN": nearest, "RM": below, "RP": above, "RZ": below if exact > 0 else above}[mode])


def _nearest_float32(exact: Fraction) -> np.float32:
    # float(exact) is rounded to odd's cousin only by chance: compare the two candidates exactly instead.
    guess = np.float32(float(exact))
    candidates = [guess, np.nextafter(guess, np.float32(np.inf)), np.nextafter(guess, np.float32(-np.inf))]
    return min(candidates, key=lambda c: (abs(Fraction(float(c)) - exact), int(c.view(np.int32)) & 1))


def _each(function):
    def expected(x, y, out, dtype, mode):
        return [directed(function(Fraction(float(a)), Fraction(float(b))), dtype, mode) for a, b in zip(x, y)]

    return expected


for _name, _stub, _exact in (
    ("add", ct.add, operator.add),
    ("sub", ct.sub, operator.sub),
    ("mul", ct.mul, operator.mul),
    ("truediv", ct.truediv, operator.truediv),
):
    for _mode, _value in _MODES.items():
        for _dtype in ("float32", "float64"):

            def _rounded(a, b, stub=_stub, mode=_value):
                return stub(a, b, rounding_mode=mode)

            CASES.append(
                Case(
                    f"rounding/{_name}/{_mode}/{_dtype}",
                    kernels.binary(_rounded, result=TILE[_dtype]),
                    (4,),
                    # Magnitudes apart, so that an addition has digits to round.
                    lambda rng, d=_dtype: [
                        random(rng, d, 50),
                        random(rng, d, 50, 0.001, 0.01) * np.where(rng.random(50) < 0.5, -1, 1).astype(NUMPY[d]),
                        blank(d, 50),
                    ],
                    lambda x, y, out, e=_each(_exact), d=_dtype, m=_mode: e(x, y, out, d, m),  # noqa: B008
                )
            )
for _mode, _value in _MODES.items():
    for _dtype in ("float32", "float64"):

        def _root(x, mode=_value):
            return ct.sqrt(x, rounding_mode=mode)

        def _root_expected(x, mode=_mode):
            results = []
            for number in x:
                exact = Fraction(float(number))
                scaled = math.isqrt(int(exact * 2**240))
                # One more bit says that the root goes on: between two floats it lies on the right side.
                inexact = scaled * scaled != exact * 2**240
                results.append(Fraction(2 * scaled + inexact, 2**121))
            return results

        CASES.append(
            Case(
                f"rounding/sqrt/{_mode}/{_dtype}",
                kernels.unary(_root, result=TILE[_dtype]),
                (4,),
                lambda rng, d=_dtype: [random(rng, d, 50, 0.1, 9), blank(d, 50)],
                lambda x, out, e=_root_expected, d=_dtype, m=_mode: [directed(v, d, m) for v in e(x)],
            )
        )

for _name, _function in {
    "truediv/APPROX": expression("ct.truediv(x, 3.0, rounding_mode=ct.RoundingMode.APPROX)"),
    "truediv/FULL": expression("ct.truediv(x, 3.0, rounding_mode=ct.RoundingMode.FULL)"),
}.items():
    _accept(f"rounding/{_name}", _function, "float32", "float32", lambda x: x / 3.0, tolerance=ulp(4))
_accept(
    "rounding/sqrt/APPROX",
    expression("ct.sqrt(x, rounding_mode=ct.RoundingMode.APPROX)"),
    "float32",
    "float32",
    np.sqrt,
    0.1,
    9,
    tolerance=ulp(4),
)
_accept(
    "rounding/exp/FULL",
    expression("ct.exp(x, rounding_mode=ct.RoundingMode.FULL)"),
    "float32",
    "float32",
    np.exp,
    tolerance=ulp(4),
)
_accept(
    "rounding/exp/APPROX",
    expression("ct.exp(x, rounding_mode=ct.RoundingMode.APPROX)"),
    "float32",
    "float32",
    np.exp,
    tolerance=ulp(32),
)
_accept(
    "rounding/tanh/FULL",
    expression("ct.tanh(x, rounding_mode=ct.RoundingMode.FULL)"),
    "float32",
    "float32",
    np.tanh,
    tolerance=ulp(4),
)
_accept(
    "rounding/tanh/APPROX",
    expression("ct.tanh(x, rounding_mode=ct.RoundingMode.APPROX)"),
    "float32",
    "float32",
    np.tanh,
    # tanh.approx.f32 is good to 2^-11.
    tolerance=ulp(0, absolute=2**-10),
)

for _name, _function, _dtype in (
    ("add/RA", expression("ct.add(x, x, rounding_mode=ct.RoundingMode.RA)"), "float32"),
    ("add/FULL", expression("ct.add(x, x, rounding_mode=ct.RoundingMode.FULL)"), "float32"),
    ("add/int32", expression("ct.add(x, x, rounding_mode=ct.RoundingMode.RZ)"), "int32"),
    ("truediv/APPROX/float64", expression("ct.truediv(x, x, rounding_mode=ct.RoundingMode.APPROX)"), "float64"),
    ("truediv/APPROX/float16", expression("ct.truediv(x, x, rounding_mode=ct.RoundingMode.APPROX)"), "float16"),
    ("sqrt/FULL", expression("ct.sqrt(x, rounding_mode=ct.RoundingMode.FULL)"), "float32"),
    ("exp/RN", expression("ct.exp(x, rounding_mode=ct.RoundingMode.RN)"), "float32"),
    ("exp/APPROX/float64", expression("ct.exp(x, rounding_mode=ct.RoundingMode.APPROX)"), "float64"),
    ("exp/FULL/float16", expression("ct.exp(x, rounding_mode=ct.RoundingMode.FULL)"), "float16"),
    ("tanh/RZ", expression("ct.tanh(x, rounding_mode=ct.RoundingMode.RZ)"), "float32"),
    ("tanh/APPROX/float64", expression("ct.tanh(x, rounding_mode=ct.RoundingMode.APPROX)"), "float64"),
):
    _refuse(f"rounding/{_name}/refused", _function, _dtype)

# ---- flush_to_zero ---------------------------------------------------------------------------------------------------

_TINY = np.asarray([1e-40, -1e-40, 2e-38, -2e-38, 1.0, -1.0, 0.0, 1.2e-38], np.float32)


def _flush(values):
    """Subnormals become zeros of the same sign."""
    values = np.asarray(values).astype(np.float32)
    return np.where(np.abs(values) < np.finfo(np.float32).smallest_normal, np.copysign(np.float32(0), values), values)


for _name, _stub, _exact in (
    ("add", ct.add, np.add),
    ("sub", ct.sub, np.subtract),
    ("mul", ct.mul, np.multiply),
    ("truediv", ct.truediv, np.divide),
    ("minimum", ct.minimum, np.minimum),
    ("maximum", ct.maximum, np.maximum),
):
    for _flushed in (True, False):

        def _flushing(a, b, stub=_stub, flush=_flushed):
            return stub(a, b, flush_to_zero=flush)

        def _expected(x, y, out, exact=_exact, flush=_flushed):
            if flush:
                return _flush(exact(_flush(x).astype(np.float64), _flush(y).astype(np.float64)))
            return exact(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)

        CASES.append(
            Case(
                f"flush_to_zero/{_name}/{_flushed}",
                kernels.binary(_flushing),
                (1,),
                lambda rng, n=_name: [
                    _TINY,
                    np.full(8, 0.5 if n in ("mul", "truediv") else 1e-39, np.float32),
                    blank("float32", 8),
                ],
                _expected,
                tolerance=ulp(0) if _name in ("minimum", "maximum") else EXACT,
            )
        )
    for _dtype in ("float16", "float64"):

        def _flushing_other(x, stub=_stub):
            return stub(x, x, flush_to_zero=True)

        _refuse(f"flush_to_zero/{_name}/{_dtype}/refused", _flushing_other, _dtype, match="float32")
for _name, _function, _exact in (
    ("sqrt", expression("ct.sqrt(x, flush_to_zero=True)"), np.sqrt),
    ("exp2", expression("ct.exp2(x, flush_to_zero=True)"), np.exp2),
):
    CASES.append(
        Case(
            f"flush_to_zero/{_name}",
            kernels.unary(_function),
            (1,),
            lambda rng: [np.asarray([1e-40, 0, 1, 4, 2e-38, 16], np.float32), blank("float32", 6)],
            lambda x, out, e=_exact: e(_flush(x).astype(np.float64)),
            tolerance=ulp(2),
        )
    )
_refuse("flush_to_zero/sqrt/float64/refused", expression("ct.sqrt(x, flush_to_zero=True)"), "float64", match="float32")
_refuse(
    "flush_to_zero/rsqrt/float16/refused", expression("ct.rsqrt(x, flush_to_zero=True)"), "float16", match="float32"
)
