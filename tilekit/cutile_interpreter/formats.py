"""C's printf formats, in which kernels print: what Python's format specifications become, and how a number looks."""

import functools
import math
import re

from tilekit.cutile_interpreter.api import TileTypeError
from tilekit.cutile_interpreter.dtypes import FLOAT, FORMATS, DType

INTEGERS, FLOATS = "diuoxX", "eEfFgGaA"
CONVERSION = re.compile(
    r"%(?:%|(?P<flags>[-+ #0]*)(?P<width>\d*)(?:\.(?P<precision>\d+))?(?:hh|h|ll|l|j|z|t|L)?(?P<kind>[a-zA-Z]))"
)
_PYTHON = re.compile(r"([<>^])?([+ -])?(#)?(0)?(\d+)?(?:\.(\d+))?([diouxXeEfFgGaA])?")


def kind_fits(kind: str, dtype: DType) -> bool:
    return kind in (FLOATS if FORMATS[dtype].category == FLOAT else INTEGERS)


@functools.cache
def from_python(spec: str, dtype: DType) -> str:
    """A Python format specification as a conversion of printf, which knows fewer alignments and other defaults.

    Raises:
        ValueError: what printf has nothing for: other fill characters, grouping, other types.
        TileTypeError: a type that the dtype is not printed by.
    """
    found = _PYTHON.fullmatch(spec)
    if found is None:
        raise ValueError(
            f"print(): unsupported format spec '{spec}'. It may have an alignment (<), a sign, #, 0, a width, a precision "
            f"and one of {' '.join(INTEGERS + FLOATS)}"
        )
    align, sign, alternative, zero, width, precision, kind = found.groups(default="")
    if kind and not kind_fits(kind, dtype):
        raise TileTypeError(f"print(): format spec '{spec}' is incompatible with dtype {dtype}")
    kind = kind or ("f" if FORMATS[dtype].category == FLOAT else "d" if FORMATS[dtype].signed else "u")
    flags = ("-" if align == "<" else "") + sign.strip("-") + alternative + (zero if align != "<" else "")
    return f"%{flags}{width}{'.' if precision else ''}{precision}{kind}"


def text(value, conversion: str, dtype: DType) -> str:
    """A number, or nested lists of numbers, by a conversion of printf."""
    if isinstance(value, list):
        return "[" + ", ".join(text(v, conversion, dtype) for v in value) + "]"
    found = CONVERSION.fullmatch(conversion)
    flags, width, precision, kind = found["flags"], found["width"], found["precision"], found["kind"]
    after = "" if precision is None else f".{precision}"
    if kind in FLOATS:
        value = float(value)
        if not math.isfinite(value):
            flags = flags.replace("0", "")
        if kind not in "aA":
            return f"%{flags}{width}{after}{kind}" % value
        digits = _hexadecimal(abs(value), precision, "#" in flags)
        sign = "-" if math.copysign(1, value) < 0 else "+" if "+" in flags else " " if " " in flags else ""
        front = sign + digits[:2] if "0" in flags and "-" not in flags else ""
        digits = front + digits[2:].rjust(int(width or 0) - len(front), "0") if front else sign + digits
        digits = digits.ljust(int(width or 0)) if "-" in flags else digits.rjust(int(width or 0))
        return digits.upper() if kind == "A" else digits
    value, bits = int(value), max(32, FORMATS[dtype].bits)  # narrower integers are passed as int
    if kind in "uoxX":
        value %= 1 << bits
        flags = flags.replace("+", "").replace(" ", "")
    elif bits == 32 and value >= 1 << 31:
        value -= 1 << 32
    if precision is not None:
        flags = flags.replace("0", "")
        if int(precision) == value == 0 and not (kind == "o" and "#" in flags):
            sign = "+" if "+" in flags else " " if " " in flags else ""
            return sign.ljust(int(width or 0)) if "-" in flags else sign.rjust(int(width or 0))
    if kind == "o" and "#" in flags:
        flags = flags.replace("#", "")
        after = f".{max(int(precision or 0), len(f'{value:o}') + (value != 0))}"
    if kind in "xX" and value == 0:
        flags = flags.replace("#", "")
    return f"%{flags}{width}{after}{'d' if kind in 'iu' else kind}" % value


def _hexadecimal(value: float, precision: str | None, point: bool) -> str:
    """``%a`` without a sign: as many digits as the number has, or `precision` of them, rounded to nearest."""
    if not math.isfinite(value):
        return str(value)
    mantissa, exponent = math.frexp(value)
    whole, exponent = (int(mantissa * 2**53), exponent - 1) if value else (0, 0)  # 52 bits behind the point
    places = 13
    if precision is not None and int(precision) < 13:
        places = int(precision)
        whole = round(whole / 16 ** (13 - places))
    digits = f"{whole:x}".rjust(places + 1, "0")
    front, behind = digits[: len(digits) - places], digits[len(digits) - places :]
    behind = behind.rstrip("0") if precision is None else behind.ljust(int(precision), "0")
    return f"0x{front}{'.' if behind or point else ''}{behind}p{exponent:+d}"
