"""The elementwise functions: on every floating dtype, on integers and bools, and at IEEE's special numbers.

The documentation states no accuracy. What is allowed here is what CUDA documents for its fp32 functions, rounded up,
and one unit more than correct rounding for the 16-bit dtypes; fp64 as the C library's, within a few units.
"""

import cuda.tile as ct
import numpy as np

from . import kernels
from .dtypes import FLOATS, NUMPY, SIGNED, TILE, random
from .harness import EXACT, Case, blank, ulp
from .kernels import expression

CASES = []
nan, inf, pi = np.nan, np.inf, np.pi

# name: (NumPy's in float64, low, high, ulps in fp32, specials {argument: result})
_FUNCTIONS = {
    "exp": (np.exp, -8, 8, 4, {0: 1, -inf: 0, inf: inf, nan: nan, 1: np.e}),
    "exp2": (np.exp2, -8, 8, 4, {0: 1, -inf: 0, inf: inf, nan: nan, 5: 32, -3: 0.125}),
    "log": (np.log, 0.01, 50, 4, {1: 0, 0.0: -inf, inf: inf, -1: nan, nan: nan}),
    "log2": (np.log2, 0.01, 50, 4, {1: 0, 0.0: -inf, inf: inf, -1: nan, nan: nan, 8: 3, 0.25: -2}),
    "sqrt": (np.sqrt, 0, 50, 0.5, {0.0: 0.0, 1: 1, 4: 2, inf: inf, -1: nan, nan: nan}),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.01, 50, 4, {0.0: inf, 1: 1, 4: 0.5, inf: 0, -1: nan, nan: nan}),
    "sin": (np.sin, -6, 6, 4, {0.0: 0.0, inf: nan, -inf: nan, nan: nan}),
    "cos": (np.cos, -6, 6, 4, {0.0: 1, inf: nan, -inf: nan, nan: nan}),
    "tan": (np.tan, -1.5, 1.5, 8, {0.0: 0.0, inf: nan, -inf: nan, nan: nan}),
    "sinh": (np.sinh, -8, 8, 8, {0.0: 0.0, inf: inf, -inf: -inf, nan: nan}),
    "cosh": (np.cosh, -8, 8, 8, {0.0: 1, inf: inf, -inf: inf, nan: nan}),
    "tanh": (np.tanh, -4, 4, 4, {0.0: 0.0, inf: 1, -inf: -1, nan: nan}),
    "floor": (np.floor, -20, 20, 0, {0.5: 0, -0.5: -1, 2: 2, inf: inf, -inf: -inf, nan: nan}),
    "ceil": (np.ceil, -20, 20, 0, {0.5: 1, -0.5: -0.0, 2: 2, inf: inf, -inf: -inf, nan: nan}),
    "abs": (np.abs, -20, 20, 0, {-0.0: 0.0, -1: 1, inf: inf, -inf: inf, nan: nan}),
    "negative": (np.negative, -20, 20, 0, {0.0: -0.0, 1.5: -1.5, inf: -inf, nan: nan}),
}
# Near a zero of the function the error is one of the argument's reduction: absolute, not in units of the result.
_ABSOLUTE = {"sin": 2.0**-21, "cos": 2.0**-21, "log": 2.0**-21, "log2": 2.0**-21}
_SHAPES = [((16,), (4,), (50,)), ((8, 4), (2,), (13, 4)), ((2, 2, 8), (2,), (3, 2, 8)), ((64,), (1,), (33,))]


def _quietly(function, x):
    with np.errstate(all="ignore"):
        return function(x.astype(np.float64))


def _tolerance(name, dtype):
    units = _FUNCTIONS[name][3]
    if units == 0:
        return EXACT
    absolute = _ABSOLUTE.get(name, 0.0)
    return {
        "float16": ulp(1.5 if units > 0.5 else 0.5, absolute),
        "bfloat16": ulp(1.5 if units > 0.5 else 0.5, absolute),
        "float32": ulp(units, absolute),
        "float64": ulp(max(units, 4), absolute * 2.0**-29),
    }[dtype]


for _name, (_expected, _low, _high, _units, _specials) in _FUNCTIONS.items():
    for _number, _dtype in enumerate(FLOATS):
        _tile, _grid, _shape = _SHAPES[_number]
        CASES.append(
            Case(
                f"math/{_name}/{_dtype}",
                kernels.unary(expression(f"ct.{_name}(x)"), _tile, TILE[_dtype]),
                _grid,
                lambda rng, d=_dtype, low=_low, high=_high, s=_shape: [random(rng, d, s, low, high), blank(d, s)],
                lambda x, out, f=_expected: _quietly(f, x),
                tolerance=_tolerance(_name, _dtype),
            )
        )
        CASES.append(
            Case(
                f"math/{_name}/{_dtype}/specials",
                kernels.unary(expression(f"ct.{_name}(x)"), (8,)),
                (1,),
                lambda rng, d=_dtype, s=_specials: [
                    np.asarray(list(s)).astype(NUMPY[d]),
                    # NaN is among the results, so something else says that an element was not written.
                    np.full(len(s), -77.0).astype(NUMPY[d]),
                ],
                lambda x, out, s=_specials: list(s.values()),
                tolerance=EXACT if _units == 0 else ulp(2, _ABSOLUTE.get(_name, 0.0)),
            )
        )

# exp, log and the like make float32 of integers and bools; floor and ceil take floats alone.
for _name in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh"):
    for _dtype in ("int32", "uint8", "int64", "bool"):
        CASES.append(
            Case(
                f"math/{_name}/{_dtype}",
                kernels.unary(expression(f"ct.{_name}(x)"), result=ct.float32),
                (4,),
                lambda rng, d=_dtype: [
                    np.ones(50, bool) if d == "bool" else random(rng, d, 50, 1, 8),
                    blank("float32", 50),
                ],
                lambda x, out, f=_FUNCTIONS[_name][0]: _quietly(f, x),
                tolerance=ulp(max(_FUNCTIONS[_name][3], 2), _ABSOLUTE.get(_name, 0.0)),
            )
        )
for _name in ("floor", "ceil"):
    for _dtype in ("int32", "uint8", "bool"):
        CASES.append(
            Case(
                f"math/{_name}/{_dtype}/refused",
                kernels.unary(expression(f"ct.{_name}(x)")),
                (4,),
                lambda rng, d=_dtype: [random(rng, d, 50), blank("float32", 50)],
                error=ct.TileTypeError,
            )
        )
for _dtype in SIGNED:
    CASES.append(
        Case(
            f"math/abs/{_dtype}",
            kernels.unary(expression("ct.abs(x)"), result=TILE[_dtype]),
            (4,),
            lambda rng, d=_dtype: [random(rng, d, 50, np.iinfo(NUMPY[d]).min + 1), blank(d, 50)],
            lambda x, out: np.abs(x),
        )
    )
    CASES.append(
        Case(
            f"math/negative/{_dtype}",
            kernels.unary(expression("ct.negative(x)"), result=TILE[_dtype]),
            (4,),
            lambda rng, d=_dtype: [random(rng, d, 50, np.iinfo(NUMPY[d]).min + 1), blank(d, 50)],
            lambda x, out: -x,
        )
    )

for _dtype in FLOATS:
    CASES.append(
        Case(
            f"math/isnan/{_dtype}",
            kernels.unary(expression("ct.isnan(x)"), (8,), ct.bool_),
            (1,),
            lambda rng, d=_dtype: [
                np.asarray([nan, inf, -inf, 0.0, 1.0, -nan, 2.0]).astype(NUMPY[d]),
                blank("bool", 7),
            ],
            lambda x, out: [True, False, False, False, False, True, False],
        )
    )
for _dtype in ("int32", "bool"):
    CASES.append(
        Case(
            f"math/isnan/{_dtype}/refused",
            kernels.unary(expression("ct.isnan(x)")),
            (4,),
            lambda rng, d=_dtype: [random(rng, d, 50), blank("bool", 50)],
            error=ct.TileTypeError,
        )
    )
for _name in ("exp", "sqrt", "sin", "tanh"):
    CASES.append(
        Case(
            f"math/{_name}/0-d",
            kernels.scalar_binary(expression(f"ct.{_name}(x) + y", "x, y"), ct.float32),
            (9,),
            lambda rng: [random(rng, "float32", 9, 0, 4), random(rng, "float32", 9, 1, 2), blank("float32", 9)],
            lambda x, y, out, f=_FUNCTIONS[_name][0]: f(x.astype(np.float64)) + y,
            tolerance=ulp(5),
        )
    )
# On constants the functions fold at compile time, to a constant that is loosely typed.
for _text, _value in (
    ("ct.exp(0.5)", np.exp(0.5)),
    ("ct.sqrt(2.0)", np.sqrt(2)),
    ("ct.log2(8.0)", 3),
    ("ct.cos(0.0)", 1),
    ("ct.floor(2.5)", 2),
    ("ct.ceil(2.5)", 3),
    ("abs(-2.5)", 2.5),
    ("-ct.negative(1.5)", 1.5),
    ("ct.rsqrt(4.0)", 0.5),
    ("ct.tanh(0.0) + 1", 1),
    ("ct.minimum(2, 3)", 2),
    ("max(2, 3)", 3),
    ("ct.cdiv(9, 4)", 3),
    ("7 // -2", -4),
    ("7 % -2", -1),
    ("2 ** 5", 32),
    ("divmod(17, 5)[1]", 2),
):
    for _dtype in ("float16", "float64"):
        CASES.append(
            Case(
                f"math/constant/{_text}/{_dtype}",
                kernels.unary(expression(f"x * 0 + {_text}"), result=TILE[_dtype]),
                (4,),
                lambda rng, d=_dtype: [random(rng, d, 50), blank(d, 50)],
                # A constant is a float32 before it meets the tile.
                lambda x, out, v=_value: np.full(x.shape, float(np.float32(v))),
                tolerance=ulp(1),
            )
        )
for _dtype in ("float8_e4m3fn", "tfloat32"):
    for _name in ("pow", "maximum"):
        CASES.append(
            Case(
                f"math/{_name}/{_dtype}/refused",
                kernels.unary(expression(f"ct.{_name}(x.astype(d), x.astype(d))", d=TILE[_dtype])),
                (4,),
                lambda rng: [random(rng, "float32", 50), blank("float32", 50)],
                error=ct.TileTypeError,
                match="non-arithmetic",
            )
        )
for _name in ("exp", "sin", "floor", "abs", "isnan"):
    CASES.append(
        Case(
            f"math/{_name}/too-many-arguments",
            kernels.unary(expression(f"ct.{_name}(x, x)")),
            (4,),
            lambda rng: [random(rng, "float32", 50), blank("float32", 50)],
            error=ct.TileTypeError,
            needs=("compiler",),
        )
    )
