"""Reductions, argmax, prefix sums, and both with functions of the user's own.

The order in which elements are combined is not documented. Sums of floats are therefore taken of small integers, products
of powers of two: exact in any order, so that the comparison can be exact as well.
"""

import operator

import cuda.tile as ct
import numpy as np

from . import kernels
from .dtypes import ARITHMETIC, FLOATS, INTEGERS, NUMPY, TILE, random
from .harness import EXACT, Case, blank, ulp
from .kernels import expression

CASES = []
nan, inf = np.nan, np.inf
_AXES = [
    ((16,), None),
    ((16,), 0),
    ((16,), -1),
    ((4, 8), None),
    ((4, 8), 0),
    ((4, 8), 1),
    ((4, 8), (0, 1)),
    ((2, 4, 8), 1),
    ((2, 4, 8), -1),
    ((2, 4, 8), (0, 2)),
    ((2, 4, 8), (-1, 1)),
    ((1, 8), 0),
]


def _numbers(rng, name, dtype, shape):
    if dtype == "bool" or (dtype in INTEGERS and name not in ("prod", "cumprod")):
        return random(rng, dtype, shape)
    if name in ("prod", "cumprod"):
        if dtype in INTEGERS:
            return random(rng, dtype, shape, 0 if dtype.startswith("u") else -3, 3)
        return rng.choice([-2.0, -1.0, 0.5, 1.0, 2.0, -0.5], shape).astype(NUMPY[dtype])
    if name in ("sum", "cumsum"):
        return rng.integers(-3, 4, shape).astype(NUMPY[dtype])
    return random(rng, dtype, shape)


_NUMPY = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "argmax": np.argmax, "argmin": np.argmin}


def _reduced(name, x, axis, keepdims=False):
    """In the tile's dtype for integers, which wrap; bools are counted in int32; floats in float64."""
    if name in ("argmax", "argmin"):
        if x.dtype.kind not in "iub":
            x = x.astype(np.float64)
        return _NUMPY[name](x, axis, keepdims=keepdims)
    x = x.astype(np.int32) if x.dtype == bool else x if x.dtype.kind in "iu" else x.astype(np.float64)
    options = {"dtype": x.dtype} if name in ("sum", "prod") else {}
    with np.errstate(all="ignore"):
        return _NUMPY[name](x, axis, keepdims=keepdims, **options)


def _result(name, dtype):
    return "int32" if name in ("argmax", "argmin") or dtype == "bool" else dtype


def _reduction(case, text, name, dtype, shape, axis, keepdims=False, tolerance=EXACT):
    result = _result(name, dtype)
    like = np.shape(_reduced(name, np.zeros(shape, NUMPY[dtype]), axis, keepdims))
    CASES.append(
        Case(
            case,
            kernels.whole(expression(text), shape, len(like), TILE[result]),
            (1,),
            lambda rng: [_numbers(rng, name, dtype, shape), blank(result, like or 1)],
            lambda x, out: _reduced(name, x, axis, keepdims),
            tolerance=tolerance,
        )
    )


_number = 0
for _name in ("sum", "prod", "max", "min"):
    for _dtype in ("bool", *ARITHMETIC):
        _shape, _axis = _AXES[_number % len(_AXES)]
        _number += 1
        _reduction(f"{_name}/{_dtype}", f"ct.{_name}(x, {_axis})", _name, _dtype, _shape, _axis)
    for _shape, _axis in _AXES:
        for _keep in (False, True):
            _reduction(
                f"{_name}/{_shape}/axis={_axis}/keepdims={_keep}",
                f"ct.{_name}(x, axis={_axis}, keepdims={_keep})",
                _name,
                "int32" if _keep else "float32",
                _shape,
                _axis,
                _keep,
            )
for _name in ("argmax", "argmin"):
    for _dtype in ("bool", *ARITHMETIC):
        _shape, _axis = [row for row in _AXES if not isinstance(row[1], tuple)][_number % 9]
        _number += 1
        _reduction(f"{_name}/{_dtype}", f"ct.{_name}(x, {_axis})", _name, _dtype, _shape, _axis)
    for _shape, _axis in _AXES:
        if not isinstance(_axis, tuple):
            for _keep in (False, True):
                _reduction(
                    f"{_name}/{_shape}/axis={_axis}/keepdims={_keep}",
                    f"ct.{_name}(x, axis={_axis}, keepdims={_keep})",
                    _name,
                    "int16" if _keep else "float32",
                    _shape,
                    _axis,
                    _keep,
                )
    # Ties: the smallest index wins.
    CASES.append(
        Case(
            f"{_name}/ties",
            kernels.whole(expression(f"ct.{_name}(x, 1)"), (4, 16), 1, ct.int32),
            (1,),
            lambda rng: [random(rng, "int8", (4, 16), 0, 2), blank("int32", 4)],
            lambda x, out, n=_name: _NUMPY[n](x, 1),
        )
    )
# Default axes: all of them.
for _name in ("sum", "prod", "max", "min", "argmax", "argmin"):
    _reduction(f"{_name}/default-axis", f"ct.{_name}(x)", _name, "int64", (4, 8), None)

# Sums that round: the error of any order is below (n - 1) units of the partial sums.
for _dtype in FLOATS:
    _eps = float(np.finfo(np.float64 if _dtype == "float64" else np.float32).eps)
    _eps = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(_dtype, _eps)
    CASES.append(
        Case(
            f"sum/{_dtype}/rounding",
            kernels.whole(expression("ct.sum(x, 1)"), (8, 64), 1, TILE[_dtype]),
            (1,),
            lambda rng, d=_dtype: [random(rng, d, (8, 64), 0, 1), blank(d, 8)],
            lambda x, out: x.astype(np.float64).sum(1),
            tolerance=ulp(1, absolute=63 * 40 * _eps),
        )
    )

# ---- NaN and infinities ----------------------------------------------------------------------------------------------

_ROWS = np.asarray(
    [
        [1, nan, 3, 2],
        [nan, nan, -1, nan],
        [inf, 1, -inf, nan],
        [nan, -inf, -inf, -inf],
        [2, 5, 5, 1],
        [nan, 4, nan, 4],
        [-inf, -inf, -inf, -inf],
        [inf, inf, inf, inf],
    ]
)


def _best(x, name, propagate):
    """argmax: a NaN is the worst value, or the best when NaNs propagate; among equals the smallest index."""
    x = x.astype(np.float64)
    sign = 1 if name == "argmax" else -1
    keys = np.where(np.isnan(x), np.nan, sign * x)
    order = [
        min(
            range(len(row)),
            key=lambda i: (
                (0 if propagate else 1) if np.isnan(row[i]) else (1 if propagate else 0),
                -row[i] if row[i] == row[i] else 0,
                i,
            ),
        )
        for row in keys
    ]
    return order


for _dtype in FLOATS:
    for _propagate in (False, True):
        for _name in ("max", "min"):
            _function = {
                ("max", False): np.fmax.reduce,
                ("min", False): np.fmin.reduce,
                ("max", True): np.max,
                ("min", True): np.min,
            }[_name, _propagate]
            CASES.append(
                Case(
                    f"{_name}/{_dtype}/NaN/propagate={_propagate}",
                    kernels.whole(expression(f"ct.{_name}(x, 1, propagate_nan={_propagate})"), (8, 4), 1, TILE[_dtype]),
                    (1,),
                    lambda rng, d=_dtype: [_ROWS.astype(NUMPY[d]), np.full(8, -77.0).astype(NUMPY[d])],
                    lambda x, out, f=_function: f(x.astype(np.float64), axis=1),
                )
            )
        for _name in ("argmax", "argmin"):
            CASES.append(
                Case(
                    f"{_name}/{_dtype}/NaN/propagate={_propagate}",
                    kernels.whole(expression(f"ct.{_name}(x, 1, propagate_nan={_propagate})"), (8, 4), 1, ct.int32),
                    (1,),
                    lambda rng, d=_dtype: [_ROWS.astype(NUMPY[d]), blank("int32", 8)],
                    lambda x, out, n=_name, p=_propagate: _best(x, n, p),
                )
            )
    CASES.append(
        Case(
            f"sum/{_dtype}/NaN",
            kernels.whole(expression("ct.sum(x, 1)"), (8, 4), 1),
            (1,),
            lambda rng, d=_dtype: [_ROWS.astype(NUMPY[d]), np.full(8, -77.0).astype(NUMPY[d])],
            lambda x, out: [nan, nan, nan, nan, 13, nan, -inf, inf],
        )
    )

# ---- options and errors of reductions --------------------------------------------------------------------------------

for _text, _name in (
    ("ct.sum(x, 0, rounding_mode=ct.RoundingMode.RZ)", "sum"),
    ("ct.prod(x, 0, rounding_mode=ct.RoundingMode.RM)", "prod"),
    ("ct.sum(x, 0, flush_to_zero=True)", "sum"),
    ("ct.max(x, 0, flush_to_zero=True)", "max"),
    ("ct.min(x, 0, flush_to_zero=False)", "min"),
):
    # Exact sums are the same in every rounding mode.
    _reduction(f"{_name}/options/{_text}", _text, _name, "float32", (16, 4), 0)


def _refused(name, text, shape=(4, 8), dtype="float32", match="", error=ct.TileTypeError, needs=(), **values):
    CASES.append(
        Case(
            f"{name}/refused",
            kernels.whole(expression(text, **values), shape, 1),
            (1,),
            lambda rng: [random(rng, dtype, shape), blank("float64", 64)],
            error=error,
            match=match,
            needs=needs,
        )
    )


_AXIS_ERRORS = (ct.TileTypeError, ct.TileValueError)
for _name in ("sum", "prod", "max", "min", "argmax", "argmin"):
    _refused(f"{_name}/axis-beyond", f"ct.{_name}(x, 2)", error=_AXIS_ERRORS)
    _refused(f"{_name}/axis-before", f"ct.{_name}(x, -3)", error=_AXIS_ERRORS)
    _refused(f"{_name}/axis-not-constant", f"ct.{_name}(x, ct.bid(0))")
    _refused(f"{_name}/axis-a-float", f"ct.{_name}(x, 1.0)")
    _refused(f"{_name}/keepdims-not-constant", f"ct.{_name}(x, 0, keepdims=ct.bid(0) > 0)")
    _refused(f"{_name}/not-a-tile", f"ct.{_name}((1, 2), 0)")
for _name in ("sum", "prod", "max", "min"):
    _refused(f"{_name}/axis-twice", f"ct.{_name}(x, (0, 0))", match="repeated")
    for _dtype in ("tfloat32", "float8_e5m2"):
        _refused(f"{_name}/{_dtype}", f"ct.{_name}(x.astype(d), 0)", match="non-arithmetic", d=TILE[_dtype])
for _name in ("argmax", "argmin"):
    _refused(f"{_name}/two-axes", f"ct.{_name}(x, (0, 1))")
_refused("sum/RA", "ct.sum(x, 0, rounding_mode=ct.RoundingMode.RA)", match="rounding mode")
_refused("sum/rounding-of-int", "ct.sum(x, 0, rounding_mode=ct.RoundingMode.RZ)", dtype="int32", match="rounding mode")
_refused("sum/flush-float64", "ct.sum(x, 0, flush_to_zero=True)", dtype="float64", match="flush to zero")
_refused("max/flush-float16", "ct.max(x, 0, flush_to_zero=True)", dtype="float16", match="flush to zero")
_refused("max/rounding_mode", "ct.max(x, 0, rounding_mode=ct.RoundingMode.RZ)", needs=("compiler",))

# ---- prefix sums and products ----------------------------------------------------------------------------------------


def _scanned(name, x, axis, reverse):
    x = x.astype(np.int32) if x.dtype == bool else x if x.dtype.kind in "iu" else x.astype(np.float64)
    x = np.flip(x, axis) if reverse else x
    x = {"cumsum": np.cumsum, "cumprod": np.cumprod}[name](x, axis, dtype=x.dtype)
    return np.flip(x, axis) if reverse else x


def _prefix(case, text, name, dtype, shape, axis, reverse):
    result = _result(name, dtype)
    CASES.append(
        Case(
            case,
            kernels.whole(expression(text), shape, len(shape), TILE[result]),
            (1,),
            lambda rng: [_numbers(rng, name, dtype, shape), blank(result, shape)],
            lambda x, out: _scanned(name, x, axis, reverse),
        )
    )


for _name in ("cumsum", "cumprod"):
    for _dtype in ("bool", *ARITHMETIC):
        _shape, _axis = (((16,), 0), ((4, 8), 0), ((4, 8), 1), ((2, 4, 8), 1))[_number % 4]
        _number += 1
        _prefix(f"{_name}/{_dtype}", f"ct.{_name}(x, {_axis})", _name, _dtype, _shape, _axis, False)
    for _shape, _axis in (
        ((16,), 0),
        ((16,), -1),
        ((4, 8), 0),
        ((4, 8), 1),
        ((2, 4, 8), 1),
        ((2, 4, 8), -1),
        ((1,), 0),
    ):
        _prefix(
            f"{_name}/{_shape}/axis={_axis}/reverse",
            f"ct.{_name}(x, axis={_axis}, reverse=True)",
            _name,
            "int32",
            _shape,
            _axis,
            True,
        )
    _prefix(f"{_name}/default-axis", f"ct.{_name}(x)", _name, "int32", (4, 8), 0, False)
    _refused(f"{_name}/axis-beyond", f"ct.{_name}(x, 2)", error=_AXIS_ERRORS)
    _refused(f"{_name}/axis-None", f"ct.{_name}(x, None)")
    _refused(f"{_name}/axis-a-tuple", f"ct.{_name}(x, (0, 1))")
    _refused(f"{_name}/axis-not-constant", f"ct.{_name}(x, ct.bid(0))")
    _refused(f"{_name}/reverse-not-constant", f"ct.{_name}(x, 0, reverse=ct.bid(0) > 0)")
    _refused(f"{_name}/float8", f"ct.{_name}(x.astype(ct.float8_e4m3fn), 0)", match="non-arithmetic")
    _refused(f"{_name}/flush-float64", f"ct.{_name}(x, 0, flush_to_zero=True)", dtype="float64", match="flush to zero")

# ---- reduce and scan with functions of the user's --------------------------------------------------------------------


def _add(a, b):
    return a + b


def _larger(a, b):
    return a if a > b else b


def _larger_by_where(a, b):
    return ct.where(a > b, a, b)


def _absolute_maximum(a, b):
    return max(abs(a), abs(b))


@ct.function
def _decorated(a, b):
    return a * b


def _best_and_where(a, i, b, j):
    first = (a > b) | ((a == b) & (i < j))
    return ct.where(first, a, b), ct.where(first, i, j)


def _sum_and_count(a, n, b, m):
    return a + b, n + m


def _online_softmax(m, s, n, t):
    top = max(m, n)
    return top, s * ct.exp(m - top) + t * ct.exp(n - top)


for _name, _call, _dtype, _expected in (
    ("a-function", "ct.reduce(x, 1, f, 0)", "int32", lambda x: x.sum(1, dtype=x.dtype)),
    ("a-function/float64", "ct.reduce(x, 1, f, 0.0)", "float64", lambda x: x.sum(1)),
    ("operator.add", "ct.reduce(x, 0, operator.add, 0)", "int64", lambda x: x.sum(0)),
    ("operator.mul", "ct.reduce(x, 0, operator.mul, 1)", "int32", lambda x: x.prod(0, dtype=x.dtype)),
    ("lambda", "ct.reduce(x, 1, lambda a, b: a ^ b, 0)", "uint8", lambda x: np.bitwise_xor.reduce(x, 1)),
    ("lambda/and", "ct.reduce(x, -1, lambda a, b: a & b, -1)", "int32", lambda x: np.bitwise_and.reduce(x, 1)),
    ("bool/or", "ct.reduce(x, 1, lambda a, b: a | b, False)", "bool", lambda x: x.any(1)),
    ("keepdims", "ct.reduce(x, 1, f, 0, keepdims=True).reshape((4,))", "int32", lambda x: x.sum(1, dtype=x.dtype)),
    ("where", "ct.reduce(x, 1, where, -math.inf)", "float32", lambda x: x.max(1)),
    ("builtin-max", "ct.reduce(x, 1, absolute, 0)", "int16", lambda x: np.abs(x).max(1)),
    ("ct.function", "ct.reduce(x, 1, decorated, 1)", "int8", lambda x: x.prod(1, dtype=x.dtype)),
    ("ct.maximum", "ct.reduce(x, 1, lambda a, b: ct.maximum(a, b), 0)", "uint32", lambda x: x.max(1)),
):
    CASES.append(
        Case(
            f"reduce/{_name}",
            kernels.whole(
                expression(
                    _call,
                    f=_add,
                    where=_larger_by_where,
                    absolute=_absolute_maximum,
                    decorated=_decorated,
                    operator=operator,
                ),
                (4, 8),
                1,
                TILE[_dtype],
            ),
            (1,),
            lambda rng, d=_dtype, n=_name: [
                random(rng, d, (4, 8))
                if d in ("bool", "float32") or d.startswith("u")
                else _numbers(rng, "sum", d, (4, 8))
                if d in FLOATS
                else random(rng, d, (4, 8), -5, 5),
                np.zeros(4, bool) if d == "bool" else blank(d, 8 if "operator" in n else 4),
            ],
            lambda x, out, e=_expected: e(x),
        )
    )


@ct.kernel
def _reduce_pairs(x, best, where):
    tile = ct.load(x, (0, 0), (4, 8))
    index = ct.arange(8, dtype=ct.int32)[None, :]
    top, at = ct.reduce((tile, index), 1, _best_and_where, (-float("inf"), 0))
    ct.store(best, (0,), top)
    ct.store(where, (0,), at)


CASES.append(
    Case(
        "reduce/pairs-that-broadcast",
        _reduce_pairs,
        (1,),
        lambda rng: [random(rng, "float32", (4, 8)), blank("float32", 4), blank("int32", 4)],
        lambda x, best, where: {1: x.max(1), 2: x.argmax(1)},
    )
)


@ct.kernel
def _reduce_mean(x, out):
    tile = ct.load(x, (0, 0), (4, 8))
    total, count = ct.reduce((tile, ct.full((4, 8), 1, ct.int32)), 1, _sum_and_count, (0.0, 0))
    ct.store(out, (0,), total / count)


CASES.append(
    Case(
        "reduce/pairs-of-two-dtypes",
        _reduce_mean,
        (1,),
        lambda rng: [_numbers(rng, "sum", "float32", (4, 8)), blank("float32", 4)],
        lambda x, out: x.astype(np.float64).mean(1),
    )
)


@ct.kernel
def _reduce_logsumexp(x, out):
    tile = ct.load(x, (0, 0), (4, 16))
    top, total = ct.reduce((tile, ct.full((4, 16), 1.0, ct.float32)), 1, _online_softmax, (-1e30, 0.0))
    ct.store(out, (0,), top + ct.log(total))


CASES.append(
    Case(
        "reduce/online-softmax",
        _reduce_logsumexp,
        (1,),
        lambda rng: [random(rng, "float32", (4, 16)), blank("float32", 4)],
        lambda x, out: np.log(np.exp(x.astype(np.float64)).sum(1)),
        tolerance=ulp(32),
    )
)

for _name, _text, _dtype in (
    ("wrong-dtype", "ct.reduce(x, 0, lambda a, b: (a + b).astype(ct.float64), 0.0)", "float32"),
    ("int-to-float", "ct.reduce(x, 0, lambda a, b: (a + b) * 0.5, 0)", "int32"),
    ("not-scalar", "ct.reduce(x, 0, lambda a, b: ct.zeros((4,), ct.float32), 0.0)", "float32"),
    ("returns-None", "ct.reduce(x, 0, lambda a, b: None, 0.0)", "float32"),
    ("returns-a-tuple", "ct.reduce(x, 0, lambda a, b: (a, b), 0.0)", "float32"),
    ("tuple-expected", "ct.reduce((x, x), 0, lambda a, b, c, d: a + c, (0.0, 0.0))[0]", "float32"),
    ("tuple-length", "ct.reduce((x, x), 0, lambda a, b, c, d: (a, b, c), (0.0, 0.0))[0]", "float32"),
    ("identities", "ct.reduce((x, x), 0, lambda a, b, c, d: (a, b), (0.0,))[0]", "float32"),
    ("identity-not-constant", "ct.reduce(x, 0, lambda a, b: a + b, ct.bid(0))", "float32"),
    ("arguments", "ct.reduce(x, 0, lambda a: a, 0.0)", "float32"),
    ("no-function", "ct.reduce(x, 0, 3, 0.0)", "float32"),
    ("axis-None", "ct.reduce(x, None, lambda a, b: a + b, 0.0)", "float32"),
    ("axis-a-tuple", "ct.reduce(x, (0, 1), lambda a, b: a + b, 0.0)", "float32"),
    ("no-identity", "ct.reduce(x, 0, lambda a, b: a + b)", "float32"),
    ("shapes", "ct.reduce((x, ct.zeros((2, 8), ct.float32)), 0, lambda a, b, c, d: (a, b), (0.0, 0.0))[0]", "float32"),
):
    _python = _name in ("arguments", "no-function", "no-identity")
    _refused(f"reduce/{_name}", _text, dtype=_dtype, needs=("compiler",) if _python else ())
_refused(
    "reduce/branch",
    "ct.reduce(x, 0, f, -math.inf)",
    error=ct.TileSyntaxError,
    match="branch",
    needs=("compiler",),
    f=_larger,
)
_refused("reduce/axis-beyond", "ct.reduce(x, 2, lambda a, b: a + b, 0.0)", error=_AXIS_ERRORS)

for _name, _call, _dtype, _expected in (
    ("a-function", "ct.scan(x, 1, f, 0)", "int32", lambda x: x.cumsum(1, dtype=x.dtype)),
    ("operator.add", "ct.scan(x, 0, operator.add, 0)", "float32", lambda x: x.cumsum(0)),
    ("reverse", "ct.scan(x, 1, f, 0, reverse=True)", "int64", lambda x: x[:, ::-1].cumsum(1)[:, ::-1]),
    ("lambda", "ct.scan(x, -1, lambda a, b: a ^ b, 0)", "uint16", lambda x: np.bitwise_xor.accumulate(x, 1)),
    (
        "running-maximum",
        "ct.scan(x, 0, lambda a, b: max(a, b), -math.inf)",
        "float64",
        lambda x: np.maximum.accumulate(x, 0),
    ),
    (
        "running-minimum/reverse",
        "ct.scan(x, 1, lambda a, b: min(a, b), 127, reverse=True)",
        "int8",
        lambda x: np.minimum.accumulate(x[:, ::-1], 1)[:, ::-1],
    ),
    ("bool/or", "ct.scan(x, 1, lambda a, b: a | b, False)", "bool", lambda x: np.logical_or.accumulate(x, 1)),
    ("operator.mul", "ct.scan(x, 1, operator.mul, 1.0)", "bfloat16", lambda x: x.astype(np.float64).cumprod(1)),
):
    CASES.append(
        Case(
            f"scan/{_name}",
            kernels.whole(expression(_call, f=_add, operator=operator), (4, 8), 2, TILE[_dtype]),
            (1,),
            lambda rng, d=_dtype: [
                _numbers(rng, "prod" if d == "bfloat16" else "sum", d, (4, 8))
                if d in FLOATS
                else rng.random((4, 8)) < 0.2
                if d == "bool"
                else random(rng, d, (4, 8), None if d.startswith("u") else -5, None if d.startswith("u") else 5),
                np.ones((4, 8), bool) if d == "bool" else blank(d, (4, 8)),
            ],
            lambda x, out, e=_expected: e(x),
        )
    )


@ct.kernel
def _scan_pairs(x, best, where):
    tile = ct.load(x, (0, 0), (4, 8))
    index = ct.arange(8, dtype=ct.int32)[None, :]
    top, at = ct.scan((tile, index), 1, _best_and_where, (-2147483648, 0))
    ct.store(best, (0, 0), top)
    ct.store(where, (0, 0), at)


CASES.append(
    Case(
        "scan/pairs",
        _scan_pairs,
        (1,),
        lambda rng: [random(rng, "int32", (4, 8), -4, 4), blank("int32", (4, 8)), blank("int32", (4, 8))],
        lambda x, best, where: {
            1: np.maximum.accumulate(x, 1),
            2: [[int(np.argmax(row[: i + 1])) for i in range(8)] for row in x],
        },
    )
)
for _name, _text in (
    ("wrong-dtype", "ct.scan(x, 0, lambda a, b: (a + b).astype(ct.float64), 0.0)"),
    ("not-scalar", "ct.scan(x, 0, lambda a, b: ct.zeros((4,), ct.float32), 0.0)"),
    ("tuple-expected", "ct.scan((x, x), 0, lambda a, b, c, d: a + c, (0.0, 0.0))[0]"),
    ("identities", "ct.scan((x, x), 0, lambda a, b, c, d: (a, b), (0.0,))[0]"),
    ("no-function", "ct.scan(x, 0, 3, 0.0)"),
    ("axis-None", "ct.scan(x, None, lambda a, b: a + b, 0.0)"),
    ("reverse-not-constant", "ct.scan(x, 0, lambda a, b: a + b, 0.0, reverse=ct.bid(0) > 0)"),
):
    _refused(f"scan/{_name}", _text, needs=("compiler",) if _name == "no-function" else ())
_refused("scan/axis-beyond", "ct.scan(x, 2, lambda a, b: a + b, 0.0)", error=_AXIS_ERRORS)

# A learner's softmax and layer norm, several rows a block: reductions feed elementwise work of the same tile.


@ct.kernel
def _softmax(x, out):
    tile = ct.load(x, (ct.bid(0), 0), (2, 32), padding_mode=ct.PaddingMode.NEG_INF)
    weights = ct.exp(tile - ct.max(tile, 1, keepdims=True))
    ct.store(out, (ct.bid(0), 0), weights / ct.sum(weights, 1, keepdims=True))


def _softmax_expected(x, out):
    weights = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


CASES.append(
    Case(
        "kernel/softmax-of-ragged-rows",
        _softmax,
        (4,),
        lambda rng: [random(rng, "float32", (7, 27)), blank("float32", (7, 27))],
        _softmax_expected,
        tolerance=ulp(16),
    )
)


@ct.kernel
def _layer_norm(x, out, eps):
    tile = ct.load(x, (ct.bid(0), 0), (1, 32))
    mean = ct.sum(tile, 1, keepdims=True) / 32
    centred = tile - mean
    variance = ct.sum(centred * centred, 1, keepdims=True) / 32
    ct.store(out, (ct.bid(0), 0), centred * ct.rsqrt(variance + eps))


def _layer_norm_expected(x, out, eps):
    x = x.astype(np.float64)
    return {1: (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + eps)}


CASES.append(
    Case(
        "kernel/layer-norm",
        _layer_norm,
        (5,),
        lambda rng: [random(rng, "float32", (5, 32)), blank("float32", (5, 32)), 1e-5],
        _layer_norm_expected,
        tolerance=ulp(16, absolute=2e-6),
    )
)
