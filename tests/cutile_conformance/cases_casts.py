"""Casts between all dtypes, rounding modes of casts, bitcast, bytes, and tiles made from values."""

from fractions import Fraction

import cuda.tile as ct
import ml_dtypes
import numpy as np

from . import kernels
from .dtypes import ARITHMETIC, FLOATS, FLOATS8, INTEGERS, NUMPY, SIGNED, TILE, random
from .harness import EXACT, Case, blank, ulp
from .kernels import expression

CASES = []
nan, inf = np.nan, np.inf
STORED = ("bool", *ARITHMETIC, *FLOATS8)
_SHAPES = [((16,), (4,), (50,)), ((8, 4), (2,), (13, 4)), ((2, 2, 8), (2,), (3, 2, 8))]

# ---- astype: every pair ----------------------------------------------------------------------------------------------


def _source(rng, source, target, shape):
    """Values whose cast is defined: inside the range of an integer target, 0 or 1 for a bool made of floats."""
    if source == "bool":
        return random(rng, source, shape)
    if target == "bool":
        return rng.integers(0, 2, shape).astype(NUMPY[source])
    floats = FLOATS + FLOATS8
    if source in floats and target in INTEGERS:
        low = -100 if target in SIGNED else 0
        return random(rng, source, shape, low, 100)
    if source in INTEGERS and target in floats:
        # Wider than the significand, so that the cast has to round; inside the range of the narrow formats.
        limit = {"float16": 60000, "float8_e4m3fn": 440, "float8_e5m2": 50000}.get(target)
        info = np.iinfo(NUMPY[source])
        values = random(
            rng, source, shape, max(info.min, -limit) if limit else None, min(info.max, limit) if limit else None
        )
    elif source in floats:
        values = random(rng, source, shape, -200, 200)
    else:
        return random(rng, source, shape)
    by_way_of = _by_way_of(source, target)  # exact in that format too; the ties have cases of their own
    return values.astype(NUMPY[by_way_of]).astype(values.dtype) if by_way_of else values


def _by_way_of(source, target):
    """The format in which tileiras 13.4 rounds first, where it rounds twice (seen on an H200)."""
    if target == "float8_e5m2" and source in INTEGERS:
        return "float16"
    if target in FLOATS8 and source == "float64":
        return "float32"
    return None


def _cast(x, target):
    if target == "bool":
        return x.astype(np.float64) != 0
    if target in INTEGERS:
        if x.dtype.kind in "iub":
            return x.astype(NUMPY[target])  # integers to integers keep the low bits
        return np.trunc(x.astype(np.float64)).astype(NUMPY[target])
    if x.dtype.kind in "iu":
        return _nearest(x, target)
    return x.astype(np.float64).astype(NUMPY[target])


def _nearest(x, target):
    """Integers rounded once: those of 64 bits to the narrow formats not by way of float64."""
    if target in ("float32", "float64"):
        return x.astype(NUMPY[target])
    # float64 is exact for what is left: sources are limited to the narrow format's range, bfloat16's 8 bits aside.
    if target != "bfloat16":
        return x.astype(np.float64).astype(NUMPY[target])
    return np.asarray([directed(Fraction(int(v)), "bfloat16", "RN") for v in x.flat]).reshape(x.shape)


def directed(exact: Fraction, dtype: str, mode: str) -> float:
    """The exact number rounded to the format in the direction of the mode, among the format's finite values."""
    info = ml_dtypes.finfo(NUMPY[dtype]) if dtype != "tfloat32" else None
    digits = 10 if info is None else info.nmant
    smallest = -126 if info is None else int(np.log2(float(info.smallest_normal)))
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, smallest) - digits)
    steps, rest = divmod(size, unit)
    up = {
        "RN": rest * 2 > unit or (rest * 2 == unit and steps % 2),
        "RA": rest * 2 >= unit,
        "RZ": False,
        "RM": exact < 0 and rest > 0,
        "RP": exact > 0 and rest > 0,
    }[mode]
    return float((steps + bool(up)) * unit) * (1 if exact > 0 else -1)


_number = 0
for _from in STORED:
    for _to in STORED:
        if _from == _to:
            continue
        _number += 1
        _tile, _grid, _shape = _SHAPES[_number % len(_SHAPES)]
        CASES.append(
            Case(
                f"astype/{_from}-{_to}",
                kernels.unary(
                    expression("x.astype(d)" if _number % 2 else "ct.astype(x, d)", d=TILE[_to]), _tile, TILE[_to]
                ),
                _grid,
                lambda rng, a=_from, b=_to, s=_shape: [_source(rng, a, b, s), blank(b, s)],
                lambda x, out, b=_to: _cast(x, b),
            )
        )
for _dtype in STORED:
    CASES.append(
        Case(
            f"astype/{_dtype}-itself",
            kernels.unary(expression("x.astype(d)", d=TILE[_dtype]), result=TILE[_dtype]),
            (4,),
            lambda rng, d=_dtype: [random(rng, d, 50), blank(d, 50)],
            lambda x, out: x,
        )
    )

# ---- ties: a cast rounds once ----------------------------------------------------------------------------------------

_DIGITS = {n: ml_dtypes.finfo(NUMPY[n]).nmant + 1 for n in FLOATS + FLOATS8}
_DIGITS |= {n: int(np.iinfo(NUMPY[n]).max).bit_length() for n in INTEGERS}


def _ties(rng, source, target, count=256):
    """Numbers halfway between two of the target, and beside such a tie, half of them by the last bit of the source."""
    room = _DIGITS[source] - _DIGITS[target] - 1
    most = float(ml_dtypes.finfo(NUMPY[target]).max)
    if source in INTEGERS:
        room = min(room, int(np.log2(most)) - _DIGITS[target])
    values = []
    while len(values) < count:
        digits = 2 * int(rng.integers(2 ** (_DIGITS[target] - 1), 2 ** _DIGITS[target])) + 1
        behind = int(rng.integers(1, room + 1)) if source in INTEGERS and rng.integers(2) else room
        value = (digits << behind) + (int(rng.integers(-1, 2)) << int(rng.integers(behind) * rng.integers(2)))
        if source in FLOATS:
            value = float(value) / 2.0 ** int(_DIGITS[source] - rng.integers(-2, 6))
        if source in FLOATS + SIGNED and rng.integers(2):
            value = -value
        if abs(value) < most:
            values.append(value)
    return np.asarray(values, dtype=NUMPY[source])


for _from in INTEGERS + FLOATS:
    for _to in FLOATS + FLOATS8:
        if _DIGITS[_from] - _DIGITS[_to] > 1:
            _first = _by_way_of(_from, _to) if _DIGITS[_from] > 8 else None  # what has 8 bits is exact in float16
            CASES.append(
                Case(
                    f"astype/ties/{_from}-{_to}",
                    kernels.unary(expression("x.astype(d)", d=TILE[_to]), (16,), TILE[_to]),
                    (16,),
                    lambda rng, a=_from, b=_to: [_ties(rng, a, b), blank(b, 256)],
                    lambda x, out, b=_to: np.asarray([directed(Fraction(v), b, "RN") for v in x.tolist()]),
                    differs_in_value=_first and f"tileiras 13.4 rounds to {_first} first" or "",
                )
            )

# Infinities and NaN among the floats that have them, and the sign of zero.
for _from in FLOATS:
    for _to in FLOATS:
        if _from != _to:
            CASES.append(
                Case(
                    f"astype/specials/{_from}-{_to}",
                    kernels.unary(expression("x.astype(d)", d=TILE[_to]), (8,)),
                    (1,),
                    lambda rng, d=_from, t=_to: [
                        np.asarray([nan, inf, -inf, 0.0, -0.0]).astype(NUMPY[d]),
                        np.full(5, -77.0).astype(NUMPY[t]),
                    ],
                    lambda x, out: [nan, inf, -inf, 0.0, -0.0],
                )
            )
for _from, _to, _values, _results in (
    # ties to even, in the last place of the narrower format
    ("float32", "bfloat16", [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20], [1, 1 + 2**-6, 1 + 2**-7]),
    ("float32", "float16", [1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-11 + 2**-20], [1, 1 + 2**-9, 1 + 2**-10]),
    ("float64", "float32", [1 + 2.0**-24, 1 + 3 * 2.0**-24], [1, 1 + 2.0**-22]),
    ("float32", "float8_e4m3fn", [1.0625, 1.1875, 17, 18.1, 0.0009765625], [1, 1.25, 16, 18, 0]),
    ("float32", "float8_e5m2", [1.125, 1.375, 9, 11.1, 2.0**-17], [1, 1.5, 8, 12, 0]),
    # once, not by way of float32: 1 + 2^-8 + 2^-40 rounds up in bfloat16, and to a tie in float32
    ("float64", "bfloat16", [1 + 2.0**-8 + 2.0**-40], [1 + 2**-7]),
    ("float64", "float16", [1 + 2.0**-11 + 2.0**-40], [1 + 2**-10]),
    # out of range, and into the subnormals
    ("float32", "float16", [65519.0, 65520.0, -1e30, 2.0**-24, 2.0**-25], [65504, inf, -inf, 2.0**-24, 0]),
    ("float64", "float32", [1e39, -1e39, 1e-45, 1e-46], [inf, -inf, 1.401298464324817e-45, 0]),
    ("int32", "float32", [2**24 + 1, 2**24 + 3, -(2**24) - 1], [2**24, 2**24 + 4, -(2**24)]),
    ("int64", "float64", [2**53 + 1, 2**53 + 3], [2**53, 2**53 + 4]),
    ("uint64", "float64", [2**64 - 1, 2**63], [2.0**64, 2.0**63]),
    ("uint32", "float32", [2**32 - 1, 2**31], [2.0**32, 2.0**31]),
    ("float32", "int32", [1.9, -1.9, 0.5, -0.5, 2147483520.0, -(2.0**31)], [1, -1, 0, 0, 2147483520, -(2**31)]),
    ("float32", "uint8", [0.9, 1.5, 255.9], [0, 1, 255]),
    ("int32", "int8", [127, 128, 255, 256, -129], [127, -128, -1, 0, 127]),
    ("int8", "uint32", [-1, 5], [2**32 - 1, 5]),
    ("uint8", "int8", [255, 128, 1], [-1, -128, 1]),
    ("int64", "int32", [2**31, 2**32 + 5, -1], [-(2**31), 5, -1]),
    ("int32", "bool", [0, 1, 2, 256, -1], [False, True, True, True, True]),
    ("uint16", "bool", [0, 256], [False, True]),
):
    CASES.append(
        Case(
            f"astype/values/{_from}-{_to}/{_values[0]}",
            kernels.unary(expression("x.astype(d)", d=TILE[_to]), (8,), TILE[_to]),
            (1,),
            lambda rng, v=_values, d=_from, t=_to: [
                np.asarray(v).astype(NUMPY[d]),
                np.zeros(len(v), bool) if t == "bool" else blank(t, len(v)),
            ],
            lambda x, out, r=_results: np.asarray(r).astype(out.dtype) if out.dtype.kind in "iu" else r,
            tolerance=EXACT if _to not in FLOATS + FLOATS8 else ulp(0),
        )
    )

# tf32 keeps 10 bits of the significand: a cast there and back rounds to them.
for _name, _text in (
    ("float32-tfloat32-float32", "x.astype(ct.tfloat32)"),
    ("plus-of-tfloat32", "(+x.astype(ct.tfloat32))"),
):
    CASES.append(
        Case(
            f"astype/{_name}",
            kernels.unary(expression(f"{_text}.astype(ct.float32)"), result=ct.float32),
            (4,),
            lambda rng: [random(rng, "float32", 50), blank("float32", 50)],
            lambda x, out: [directed(Fraction(float(v)), "tfloat32", "RN") for v in x],
        )
    )
# fp4 e2m1 has 16 values: 0, 0.5, 1, 1.5, 2, 3, 4 and 6 with a sign.
CASES.append(
    Case(
        "astype/float32-float4-float32",
        kernels.unary(expression("x.astype(ct.float4_e2m1fn).astype(ct.float32)"), result=ct.float32),
        (4,),
        lambda rng: [random(rng, "float32", 50, -6, 6), blank("float32", 50)],
        lambda x, out: x.astype(ml_dtypes.float4_e2m1fn).astype(np.float32),
        needs=("sm_100",),
    )
)
# e8m0 holds powers of two alone, and its casts name their direction.
for _mode in ("RZ", "RP"):
    CASES.append(
        Case(
            f"astype/float32-float8_e8m0fnu/{_mode}",
            kernels.unary(
                expression(
                    "x.astype(ct.float8_e8m0fnu, rounding_mode=m).astype(ct.float32)", m=getattr(ct.RoundingMode, _mode)
                )
            ),
            (4,),
            lambda rng: [random(rng, "float32", 50, 0.01, 100), blank("float32", 50)],
            lambda x, out, m=_mode: 2.0 ** (np.floor if m == "RZ" else np.ceil)(np.log2(x.astype(np.float64))),
            needs=("sm_100",),
        )
    )
CASES.append(
    Case(
        "astype/float32-float8_e8m0fnu/default/refused",
        kernels.unary(expression("x.astype(ct.float8_e8m0fnu)")),
        (4,),
        lambda rng: [random(rng, "float32", 50), blank("float8_e8m0fnu", 50)],
        error=ct.TileTypeError,
        match="rounding_mode",
    )
)

# ---- astype's rounding modes -----------------------------------------------------------------------------------------

for _from, _to, _modes in (
    ("float64", "float32", ("RN", "RZ", "RM", "RP")),
    ("float32", "tfloat32", ("RN", "RZ", "RA")),
    ("float32", "float16", ("RN", "RZ")),
    ("float32", "bfloat16", ("RN", "RZ")),
):
    for _mode in _modes:
        _back = ".astype(ct.float32)" if _to == "tfloat32" else ""
        _stored = "float32" if _to == "tfloat32" else _to
        CASES.append(
            Case(
                f"astype/rounding/{_from}-{_to}/{_mode}",
                kernels.unary(
                    expression(
                        f"ct.astype(x, d, rounding_mode=m){_back}", d=TILE[_to], m=getattr(ct.RoundingMode, _mode)
                    ),
                    result=TILE[_stored],
                ),
                (4,),
                lambda rng, d=_from, s=_stored: [random(rng, d, 50), blank(s, 50)],
                lambda x, out, t=_to, m=_mode: [directed(Fraction(float(v)), t, m) for v in x],
            )
        )
for _from, _to, _mode, _error in (
    ("float32", "int32", "RZ", ct.TileTypeError),
    ("int32", "float32", "RN", ct.TileTypeError),
    ("float32", "float8_e4m3fn", "RZ", ct.TileTypeError),
    ("float32", "float16", "RA", ct.TileTypeError),
    ("float32", "bfloat16", "RP", ct.TileTypeError),
    ("float32", "float64", "APPROX", ct.TileTypeError),
    ("float32", "float64", "RZI", ct.TileTypeError),
):
    CASES.append(
        Case(
            f"astype/rounding/{_from}-{_to}/{_mode}/refused",
            kernels.unary(
                expression("x.astype(d, rounding_mode=m)", d=TILE[_to], m=getattr(ct.RoundingMode, _mode)),
            ),
            (4,),
            lambda rng, d=_from, t=_to: [random(rng, d, 50), blank(t, 50)],
            error=_error,
            match="rounding_mode",
        )
    )
for _name, _text in {
    "no-dtype": "x.astype(3)",
    "a-string": 'x.astype("float16")',
    "nothing": "x.astype()",
    "a-tile": "x.astype(x)",
}.items():
    CASES.append(
        Case(
            f"astype/{_name}/refused",
            kernels.unary(expression(_text)),
            (4,),
            lambda rng: [random(rng, "float32", 50), blank("float32", 50)],
            error=ct.TileTypeError,
            # A missing argument is a TypeError of Python where there is no compiler.
            needs=("compiler",) if _name == "nothing" else (),
        )
    )

# ---- bitcast ---------------------------------------------------------------------------------------------------------

_BY_SIZE = {
    1: ("int8", "uint8", "float8_e4m3fn", "float8_e5m2"),
    2: ("int16", "uint16", "float16", "bfloat16"),
    4: ("int32", "uint32", "float32"),
    8: ("int64", "uint64", "float64"),
}
for _group in _BY_SIZE.values():
    for _from in _group:
        for _to in _group:
            if _from == _to:
                continue
            CASES.append(
                Case(
                    f"bitcast/{_from}-{_to}",
                    kernels.unary(expression("ct.bitcast(x, d)", d=TILE[_to]), result=TILE[_to]),
                    (4,),
                    lambda rng, d=_from, t=_to: [random(rng, d, 50), blank(t, 50)],
                    lambda x, out: x.view(out.dtype),
                )
            )
for _from, _to in (("float32", "int16"), ("int8", "int32"), ("bool", "int8"), ("uint8", "bool"), ("float64", "int32")):
    CASES.append(
        Case(
            f"bitcast/{_from}-{_to}/refused",
            kernels.unary(expression("ct.bitcast(x, d)", d=TILE[_to])),
            (4,),
            lambda rng, d=_from, t=_to: [random(rng, d, 50), blank(t, 50)],
            error=ct.TileTypeError,
            match="bitcast",
        )
    )
CASES.append(
    Case(
        "bitcast/float-literal",
        kernels.made(expression("ct.full((4,), ct.bitcast(1.0, ct.uint32), ct.uint32)", ""), result=ct.uint32),
        (1,),
        lambda rng: [blank("uint32", 4)],
        lambda out: [0x3F800000] * 4,
    )
)

# ---- bytes -----------------------------------------------------------------------------------------------------------

for _dtype in (*INTEGERS, *FLOATS, *FLOATS8):
    for _shape in ((8,), (2, 4)):
        if _shape == (2, 4) and _dtype not in ("int32", "float16", "uint8"):
            continue
        CASES.append(
            Case(
                f"pack_to_bytes/{_dtype}/{len(_shape)}-d",
                kernels.whole(expression("ct.pack_to_bytes(x)"), _shape, result=ct.uint8),
                (1,),
                lambda rng, d=_dtype, s=_shape: [random(rng, d, s), blank("uint8", 8 * NUMPY[d].itemsize)],
                lambda x, out: np.frombuffer(x.tobytes(), np.uint8),
            )
        )
    CASES.append(
        Case(
            f"unpack_from_bytes/{_dtype}",
            kernels.whole(expression("ct.unpack_from_bytes(x, d)", d=TILE[_dtype]), (16,), result=TILE[_dtype]),
            (1,),
            lambda rng, d=_dtype: [
                # Finite numbers' bytes: what a NaN's payload becomes is nobody's promise.
                np.frombuffer(random(rng, d, 16 // NUMPY[d].itemsize).tobytes(), np.uint8).copy(),
                blank(d, 16 // NUMPY[d].itemsize),
            ],
            lambda x, out: np.frombuffer(x.tobytes(), out.dtype),
        )
    )
for _name, _text, _dtype, _shape in (
    ("pack_to_bytes/bool", "ct.pack_to_bytes(x)", "bool", (16,)),
    ("unpack_from_bytes/2-d", "ct.unpack_from_bytes(x, ct.int32)", "uint8", (4, 4)),
    ("unpack_from_bytes/from-int8", "ct.unpack_from_bytes(x, ct.int32)", "int8", (16,)),
    ("unpack_from_bytes/from-int32", "ct.unpack_from_bytes(x, ct.int8)", "int32", (16,)),
    ("unpack_from_bytes/to-bool", "ct.unpack_from_bytes(x, ct.bool_)", "uint8", (16,)),
    ("unpack_from_bytes/too-few", "ct.unpack_from_bytes(x, ct.float64)", "uint8", (4,)),
):
    CASES.append(
        Case(
            f"{_name}/refused",
            kernels.whole(expression(_text), _shape),
            (1,),
            lambda rng, d=_dtype, s=_shape: [random(rng, d, s), blank("float64", 64)],
            error=ct.TileTypeError,
        )
    )
# Two fp4 values to a byte, the first in the low half.
CASES.append(
    Case(
        "pack_to_bytes/float4_e2m1fn",
        kernels.whole(expression("ct.pack_to_bytes(x.astype(ct.float4_e2m1fn))"), (16,), result=ct.uint8),
        (1,),
        lambda rng: [random(rng, "float32", 16, -6, 6), blank("uint8", 8)],
        lambda x, out: (lambda b: b[0::2] | b[1::2] << 4)(x.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)),
        needs=("sm_100",),
    )
)
CASES.append(
    Case(
        "unpack_from_bytes/float4_e2m1fn",
        kernels.whole(expression("ct.unpack_from_bytes(x, ct.float4_e2m1fn).astype(ct.float32)"), (8,)),
        (1,),
        lambda rng: [random(rng, "uint8", 8), blank("float32", 16)],
        lambda x, out: np.stack([x & 15, x >> 4], 1).ravel().view(ml_dtypes.float4_e2m1fn).astype(np.float32),
        needs=("sm_100",),
    )
)

# ---- tiles made from values ------------------------------------------------------------------------------------------

for _dtype in STORED:
    _fill = True if _dtype == "bool" else 3
    for _name, _value in (("full", _fill), ("ones", 1), ("zeros", 0)):
        _text = f"ct.full((2, 4), {_fill!r}, dtype=d)" if _name == "full" else f"ct.{_name}((2, 4), dtype=d)"
        CASES.append(
            Case(
                f"{_name}/{_dtype}",
                kernels.made(expression(_text, "", d=TILE[_dtype]), 2, TILE[_dtype]),
                (1,),
                lambda rng, d=_dtype, n=_name: [
                    np.zeros((2, 4), bool) if d == "bool" and n != "zeros" else blank(d, (2, 4))
                ],
                lambda out, v=_value: np.full(out.shape, v).astype(out.dtype),
            )
        )
for _text, _ndim, _result in (
    ("ct.full(8, 2.75, dtype=ct.int32)", 1, [2] * 8),
    ("ct.full((4,), -1, dtype=ct.int8)", 1, [-1] * 4),
    ("ct.full((), 5, dtype=ct.int16)", 0, 5),
    ("ct.full((1, 1, 2), True, dtype=ct.float32)", 3, [[[1, 1]]]),
    ("ct.full((4,), 3, dtype=ct.bool_)", 1, [1] * 4),
    ("ct.full((4,), ct.bid(0) + 7, dtype=ct.int64)", 1, [7] * 4),
    ("ct.full((2,), float('inf'), dtype=ct.float16)", 1, [inf] * 2),
    ("ct.zeros(4, ct.float64)", 1, [0] * 4),
    ("ct.ones((4,), ct.uint8)", 1, [1] * 4),
    ("ct.arange(8, dtype=ct.int32)", 1, list(range(8))),
    ("ct.arange(8, start=2, dtype=ct.int32)", 1, list(range(2, 10))),
    ("ct.arange(4, start=2, step=2, dtype=ct.int64)", 1, [2, 4, 6, 8]),
    ("ct.arange(8, start=7, step=-1, dtype=ct.int8)", 1, list(range(7, -1, -1))),
    ("ct.arange(4, dtype=ct.float32)", 1, [0, 1, 2, 3]),
    ("ct.arange(4, start=0.5, step=0.25, dtype=ct.float32)", 1, [0.5, 0.75, 1, 1.25]),
    ("ct.arange(4, start=1, step=2, dtype=ct.bfloat16)", 1, [1, 3, 5, 7]),
    ("ct.arange(1, start=9, dtype=ct.uint16)", 1, [9]),
    ("ct.arange(4, start=ct.bid(0) + 3, dtype=ct.int32)", 1, [3, 4, 5, 6]),
    ("ct.arange(4, step=ct.num_blocks(0), dtype=ct.uint32)", 1, [0, 1, 2, 3]),
    (
        "ct.arange(2, start=ct.arange(4, dtype=ct.int32)[:, None] * 10, dtype=ct.int32)",
        2,
        [[0, 1], [10, 11], [20, 21], [30, 31]],
    ),
    ("ct.arange(4, step=ct.full((4,), 3, ct.int32), dtype=ct.int32)", 1, [0, 3, 6, 9]),
    ("ct.astile(5, dtype=ct.int32)", 0, 5),
    ("ct.astile(2.5, dtype=ct.float16)", 0, 2.5),
    ("ct.astile((1, 2, 3, 4), dtype=ct.int32)", 1, [1, 2, 3, 4]),
    ("ct.astile(((1, 2), (3, 4)), dtype=ct.int32)", 2, [[1, 2], [3, 4]]),
    ("ct.astile((((1, 2),), ((3, 4),)), dtype=ct.float64)", 3, [[[1, 2]], [[3, 4]]]),
    ("ct.astile((1, 2.75), dtype=ct.int32)", 1, [1, 2]),
    ("ct.astile((True, False), dtype=ct.bool_)", 1, [1, 0]),
    ("ct.astile((ct.bid(0), ct.num_blocks(0)), dtype=ct.int32)", 1, [0, 1]),
    ("ct.astile((ct.bid(0) + 3, 7), dtype=ct.float32)", 1, [3, 7]),
    ("ct.astile(((ct.bid(0), 1), (2, ct.bid(0) + 9)), dtype=ct.int16)", 2, [[0, 1], [2, 9]]),
    ("ct.int16(7)", 0, 7),
    ("ct.float32(3)", 0, 3),
    ("ct.int32(3.9)", 0, 3),
    ("ct.bool_(5)", 0, 1),
    ("ct.int8(ct.bid(0) + 300)", 0, 44),
    ("ct.float16(ct.bid(0) + 3)", 0, 3),
):
    _dtype = next(
        d
        for d in ("bfloat16", *STORED, "float8_e8m0fnu")
        if f"ct.{'bool_' if d == 'bool' else d}" in _text and f"u{d}" not in _text
    )
    CASES.append(
        Case(
            f"made/{_text}",
            kernels.made(expression(_text, ""), _ndim, TILE[_dtype]),
            (1,),
            lambda rng, d=_dtype, r=_result: [
                np.zeros(np.shape(r) or 1, bool) if d == "bool" else np.full(np.shape(r) or 1, 77).astype(NUMPY[d])
            ],
            lambda out, r=_result: np.asarray(r).astype(out.dtype),
        )
    )
for _text, _error in (
    ("ct.full((3,), 0, ct.int32)", ct.TileTypeError),
    ("ct.full((0,), 0, ct.int32)", ct.TileTypeError),
    ("ct.full((-4,), 0, ct.int32)", ct.TileTypeError),
    ("ct.full((4.0,), 0, ct.int32)", ct.TileTypeError),
    ("ct.full((ct.bid(0) + 4,), 0, ct.int32)", ct.TileTypeError),
    ("ct.full((4,), 0)", ct.TileTypeError),
    ("ct.full((4,), (1, 2), ct.int32)", ct.TileTypeError),
    ("ct.full((4,), ct.zeros((4,), ct.int32), ct.int32)", ct.TileTypeError),
    ("ct.full((4,), 0, int)", ct.TileTypeError),
    ("ct.zeros((4, 6), ct.int32)", ct.TileTypeError),
    ("ct.ones((4,), 'int32')", ct.TileTypeError),
    ("ct.zeros(ct.bid(0), ct.int32)", ct.TileTypeError),
    ("ct.arange(6, dtype=ct.int32)", ct.TileTypeError),
    ("ct.arange(0, dtype=ct.int32)", ct.TileTypeError),
    ("ct.arange(ct.bid(0) + 4, dtype=ct.int32)", ct.TileTypeError),
    ("ct.arange(4)", ct.TileTypeError),
    ("ct.arange((4,), dtype=ct.int32)", ct.TileTypeError),
    ("ct.astile((1, 2, 3), dtype=ct.int32)", ct.TileTypeError),
    ("ct.astile(((1, 2), (3,)), dtype=ct.int32)", ct.TileTypeError),
    ("ct.astile(((1, 2), 3), dtype=ct.int32)", ct.TileTypeError),
    ("ct.astile((), dtype=ct.int32)", ct.TileTypeError),
    ("ct.astile((ct.zeros((4,), ct.int32), ct.zeros((4,), ct.int32)), dtype=ct.int32)", ct.TileTypeError),
    ("ct.astile(5)", ct.TileTypeError),
    ("ct.astile('five', dtype=ct.int32)", ct.TileTypeError),
    ("ct.int32('five')", ct.TileTypeError),
    ("ct.int32(ct.zeros((4,), ct.int32))", ct.TileTypeError),
):
    CASES.append(
        Case(
            f"made/{_text}/refused",
            kernels.made(expression(_text, "")),
            (1,),
            lambda rng: [blank("int32", 4)],
            error=_error,
            needs=("compiler",) if _text in ("ct.full((4,), 0)", "ct.arange(4)", "ct.astile(5)") else (),
        )
    )
