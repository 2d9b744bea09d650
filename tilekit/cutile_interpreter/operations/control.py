"""Printing, assertions and compile-time evaluation; and Python's built-in functions as a kernel has them."""

import builtins
import functools
import types

import numpy as np

from tilekit.cutile_interpreter import dtypes, formats
from tilekit.cutile_interpreter.api import (
    StaticException,
    TileError,
    TileStaticAssertionError,
    TileStaticEvalError,
    TileSyntaxError,
    TileTypeError,
)
from tilekit.cutile_interpreter.dtypes import FORMATS, INT
from tilekit.cutile_interpreter.memory import block_name
from tilekit.cutile_interpreter.operations import arithmetic
from tilekit.cutile_interpreter.operations.shapes import constructor
from tilekit.cutile_interpreter.run import Diverged, NeedsOrder, StepLimit, running
from tilekit.cutile_interpreter.tile import Tile, as_tile, common_dtype, describe, is_number, scalar, unsure

# Printing -------------------------------------------------------------------------------------------------------------


def print(*args, sep=" ", end="\n"):
    run = running()
    run.require_order()
    run.output.write(sep.join(map(_text, args)) + end)


def _text(value) -> str:
    """What ``str`` makes of a value: a float constant is a float32 to the compiler."""
    if isinstance(value, float):
        return str(float(np.float32(value)))
    return _words(value) if type(value) is tuple else str(value)


def _words(value) -> str:
    """What ``repr`` makes of a value, and so what a tuple shows of its items."""
    if type(value) is tuple:
        return "(" + ", ".join(map(_words, value)) + ("," if len(value) == 1 else "") + ")"
    return _text(value) if isinstance(value, (Tile, float)) else repr(value)


def _piece(value):
    """What stands in the braces of an f-string: a constant number is printed as one of the run."""
    if is_number(value):
        return as_tile(value)
    return _text(value) if type(value) is tuple else value


def printf(format, *args):
    if not isinstance(format, str):
        raise TileTypeError(f"Expected a string constant; got {describe(format)}")
    tiles = [as_tile(a) for a in args]
    specifiers = [m for m in formats.CONVERSION.finditer(format) if m.group(0) != "%%"]
    for match in specifiers:
        if match["kind"] not in formats.INTEGERS + formats.FLOATS:
            what = "is not supported" if match["kind"] in "cspn" else "is none: Invalid format string"
            raise TileTypeError(
                f"Specifier {match.group(0)} {what}. printf knows {' '.join(formats.INTEGERS + formats.FLOATS)}"
            )
    if len(specifiers) != len(tiles):
        many = "Too many" if len(specifiers) < len(tiles) else "Not enough"
        raise TileTypeError(f"{many} arguments for the format: {len(specifiers)} specifiers, {len(tiles)} values")
    for match, tile in zip(specifiers, tiles, strict=True):
        if not formats.kind_fits(match["kind"], tile.dtype):
            raise TileTypeError(f"Specifier {match.group(0)} got a value of unexpected type: {describe(tile)}")
    run = running()
    run.require_order()
    pending = iter(tiles)

    def replace(match):
        if match.group(0) == "%%":
            return "%"
        tile = next(pending)
        return formats.text(tile.data[0].tolist(), match.group(0), tile.dtype)

    run.output.write(formats.CONVERSION.sub(replace, format))


# Assertions -----------------------------------------------------------------------------------------------------------


def assert_(cond, /, message=None):
    cond = as_tile(cond, "cond")
    if cond.dtype is not dtypes.bool_:
        raise TileTypeError(f"Type of condition must be bool, got {describe(cond)}")
    if message is not None and not isinstance(message, str):
        raise TileTypeError(f"Expected a string constant; got {describe(message)}")
    if not cond.data.all():
        good = cond.data.reshape((len(cond.data), -1))
        block = int(np.argmin(good.all(1)))
        element = tuple(int(i) for i in np.unravel_index(int(np.argmin(good[block])), cond.shape))
        where = f" at element {element}" if element else ""
        raise AssertionError(
            f"ct.assert_ failed in block {block_name(block)}{where}" + (f": {message}" if message else "")
        )


def _evaluated(expression, where: str):
    """A compile-time expression's value, by Python's rules."""
    run = running()
    run.static += 1
    try:
        return static_value(expression())
    except (TileError, Diverged, NeedsOrder, StepLimit):
        raise
    except Exception as error:
        raise StaticException(f"Exception was raised inside {where} ({type(error).__name__}: {error})") from error
    finally:
        run.static -= 1


def static_assert(condition, message=None, /):
    _static_assert(lambda: condition, lambda: message)


def _static_assert(condition, message=lambda: None, /):
    condition = _evaluated(condition, "static_assert() condition")
    if isinstance(condition, Tile) and condition.unsure:
        condition = condition.const
    if isinstance(condition, Tile):
        raise TileTypeError("static_assert() condition must be a compile-time constant")
    if not isinstance(condition, bool):
        raise TileTypeError(f"static_assert() condition must be a boolean, not {describe(condition)}")
    if not condition:
        message = _evaluated(message, "static_assert() message")
        raise TileStaticAssertionError("" if message is None else str_of(message))


def str_of(value) -> str:
    return value.type_name() if isinstance(value, Tile) else str(value)


def ensure_constant(value, /):
    if isinstance(value, Tile) and value.const is None:
        raise TileStaticAssertionError("Argument of ensure_constant() is not a compile-time constant")
    return value


def static_value(value):
    """What the compiler knows at this point: the numbers behind typed constants."""
    if isinstance(value, Tile) and value.known:
        return value.const
    if type(value) in (tuple, list):
        return type(value)(static_value(v) for v in value)
    return value


def _host(value):
    """What a name stands for in a compile-time expression: the number behind a constant, the dtype behind its view."""
    kind = type(value)
    if kind is dtypes.CallableDType:
        return value.host
    if kind is _Number:
        return value.python
    if kind is functools.partial:
        return kind(_host(value.func), *map(_host, value.args), **_host(value.keywords))
    if kind is tuple or kind is list:
        return kind(map(_host, value))
    if kind is dict:
        return {key: _host(of) for key, of in value.items()}
    return static_value(running().translator.value(value, in_static=True))


def _local(value):
    """`_host` of a variable of the kernel's. A float that one holds is of float32, an int no member of an enumeration."""
    if type(value) is tuple:
        return tuple(map(_local, value))
    if isinstance(value, float):
        return float(np.float32(value))
    if isinstance(value, int):
        return value if type(value) is bool else int(value)
    return value.dtype if type(value) is dtypes.CallableDType else _host(value)


def _callable(value):
    """What is called in a kernel: a dtype makes a scalar."""
    return constructor(value) if type(value) is dtypes.DType and value in FORMATS else value


def static_eval(expr, /):
    return static_value(expr)


def _known(value):
    """The result of a compile-time expression as the kernel goes on with it."""
    if isinstance(value, np.generic) and (dtype := dtypes.BY_STORAGE.get(value.dtype)) is not None:
        return scalar(value.item(), dtype, value.item(), exact=True)
    if dtypes.is_foreign(value):
        return dtypes.CallableDType(dtypes.to_dtype(value), constructor(dtypes.to_dtype(value)), value)
    if type(value) is float:
        return float(np.float32(value))
    if isinstance(value, _CALLED):
        return running().translator.value(value)
    return tuple(map(_known, value)) if type(value) is tuple else value


# What a kernel may go on to call.
_CALLED = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)


def _static_eval(expression):
    return _known(_evaluated(expression, "static_eval()"))


MOST_STATIC_ITERATIONS = 1000


def static_iter(iterable):
    try:
        items = iter(iterable.numbers() if isinstance(iterable, Range) else iterable)
    except TypeError as error:
        raise TileTypeError(f"Invalid static_iter() iterable: {error}") from None
    kept = []
    for item in items:
        kept.append(_known(static_value(item)))
        if len(kept) > MOST_STATIC_ITERATIONS:
            raise TileStaticEvalError(
                f"Maximum number of iterations ({MOST_STATIC_ITERATIONS}) has been reached while unpacking the "
                "static_iter() iterable"
            )
    return kept


def _static_iter(expression):
    return static_iter(_evaluated(expression, "static_iter() iterable"))


def _static_exception(expression):
    return static_exception(_evaluated(expression, "static_exception()"))


def static_exception(exc, /):
    if not isinstance(exc, BaseException):
        raise TileTypeError(f"static_exception() takes an exception object; got {describe(exc)}")
    return StaticException(f"Exception was raised at compile time ({type(exc).__name__}: {exc})")


# Built-in functions ---------------------------------------------------------------------------------------------------


class Range:
    """``range`` in a kernel: its variable is an integer scalar at run time, so that it cannot be a tile's shape."""

    __slots__ = ("dtype", "start", "step", "stop")

    def __new__(cls, *args):
        # In a compile-time expression it is Python's own, with negative steps, slices and all.
        return builtins.range(*args) if running().static else object.__new__(cls)

    def __init__(self, *args):
        if not 1 <= len(args) <= 3:
            raise TileTypeError(f"range expected 1 to 3 arguments, got {len(args)}")
        self.dtype = dtypes.int32
        for arg in args:
            if isinstance(arg, Tile):
                if FORMATS[arg.dtype].category != INT or arg.ndim:
                    raise TileTypeError(f"range takes integer scalars; got {describe(arg)}")
                self.dtype = common_dtype(arg, Tile(arg.data, self.dtype)) if arg.dtype is not self.dtype else arg.dtype
            elif isinstance(arg, bool) or not isinstance(arg, int):
                raise TileTypeError(f"range takes integers; got {describe(arg)}")
        values = [a.__index__() for a in args]
        self.start, self.stop, self.step = (0, values[0], 1) if len(values) == 1 else (*values, 1)[:3]
        if self.step <= 0:
            raise TileTypeError(f"Step must be positive, got {self.step}")

    def numbers(self):
        return builtins.range(self.start, self.stop, self.step)

    def __iter__(self):
        carrier, run = FORMATS[self.dtype].carrier, running()
        for i in self.numbers():
            run.step()
            yield Tile(np.array([i], carrier), self.dtype)

    def __len__(self):
        return len(self.numbers())


def _number_or(function, python):
    """A built-in function of two operands: cuTile's if one of them is a tile, else Python's."""

    def call(*args, **kwargs):
        if len(args) == 2 and not kwargs and any(isinstance(a, Tile) for a in args):
            return function(*args)
        return python(*args, **kwargs)

    return call


def _abs(x):
    return arithmetic.abs(x)


# `a and b` in a kernel is a boolean of the run as soon as one operand is: __boolean__(__choosing__(), __truth__(a) and ...).


def _choosing() -> None:
    running().choices.append(False)


def _truth(value):
    if not isinstance(value, Tile):
        return bool(value) if is_number(value) else value
    if not value.known:
        running().choices[-1] = True
    if value.ndim:
        value._decide("An operand of `and` or `or`")
    return value if value.dtype is dtypes.bool_ else arithmetic.not_equal(value, 0)


def _boolean(_, value):
    at_run_time = running().choices.pop()
    return scalar(value, dtypes.bool_) if at_run_time and isinstance(value, bool) else value


def _carried(value):
    """What a variable holds at the top of a loop's body that assigns it: nothing that the compiler knows."""
    kind = type(value)
    if kind is int or kind is float or kind is bool:
        return Tile(as_tile(value).data, dtypes.dtype_of_number(value))
    if kind is Tile:
        return value if value.const is None else Tile(value.data, value.dtype)
    return tuple(map(_carried, value)) if kind is tuple else value


def _merged(value, test=None):
    """What a variable holds after a loop, or after an ``if``, which the compiler settles if it knows the test.

    A number is of a dtype there. It is a constant where both ways give the same.
    """
    if test is not None and not _at_run_time(test):
        return value
    kind = type(value)
    if kind is int or kind is float or kind is bool:
        return unsure(as_tile(value))
    if kind is Tile:
        return unsure(value) if value.known else value
    return tuple(_merged(v) for v in value) if kind is tuple else value


def _at_run_time(test) -> bool:
    """Is a decision the run's, and not the compiler's?"""
    return isinstance(test, Tile) and not test.known


def _returned(value, decided: bool):
    """What a function returns: a merged value, if the run has `decided` between this ``return`` and another one."""
    return _merged(value) if decided else value


def _turn(test):
    """What decides on a turn of ``while``. A tile counts as a step by itself, and a number of Python's here."""
    if not isinstance(test, Tile):
        running().step()
    return test


def _not(value):
    """``not``, element by element."""
    if isinstance(value, Tile):
        return arithmetic.bitwise_not(value) if value.dtype is dtypes.bool_ else arithmetic.equal(value, 0)
    return not value


def _tile(value):
    """What an attribute of tiles is asked of."""
    return as_tile(value) if is_number(value) else value


def _str(*args):
    """``str`` in a kernel. Elsewhere than in a call it is Python's own."""
    return _text(*args) if len(args) == 1 else str(*args)


class _Number(type):
    """``int``, ``float`` and ``bool``: a call of one casts a tile; in all else they are Python's."""

    def __call__(cls, *args):
        if args and isinstance(args[0], Tile) and args[0].const is None:
            return cls.cast(*args)
        return cls.python(*(a.const if isinstance(a, Tile) else a for a in args))

    def __instancecheck__(cls, value):
        return isinstance(value, cls.python)

    def __eq__(cls, other):
        return other is cls.python or other is cls

    def __hash__(cls):
        return hash(cls.python)


def _number(python, dtype):
    return _Number(python.__name__, (), {"python": python, "cast": staticmethod(constructor(dtype))})


def _refused(name, instead):
    def refuse(*args, **kwargs):
        raise TileSyntaxError(f"{name}() has no place in a kernel{instead}")

    return refuse


BUILTINS = {
    **vars(builtins),
    "range": Range,
    "max": _number_or(arithmetic.maximum, builtins.max),
    "min": _number_or(arithmetic.minimum, builtins.min),
    "pow": _number_or(arithmetic.pow, builtins.pow),
    "divmod": _number_or(arithmetic.divmod, builtins.divmod),
    "abs": _abs,
    "print": print,
    "repr": _words,
    "float": _number(float, dtypes.float32),
    "int": _number(int, dtypes.int32),
    "bool": _number(bool, dtypes.bool_),
    "__boolean__": _boolean,
    "__callable__": _callable,
    "__host__": _host,
    "__local__": _local,
    "__carried__": _carried,
    "__merged__": _merged,
    "__at_run_time__": _at_run_time,
    "__returned__": _returned,
    "__choosing__": _choosing,
    "__truth__": _truth,
    "__not__": _not,
    "__piece__": _piece,
    "__str__": _str,
    "__tile__": _tile,
    "__turn__": _turn,
    "__static_eval__": _static_eval,
    "__static_assert__": _static_assert,
    "__static_iter__": _static_iter,
    "__static_exception__": _static_exception,
    "open": _refused("open", ""),
    "input": _refused("input", ""),
}

__all__ = [
    "assert_",
    "ensure_constant",
    "print",
    "printf",
    "static_assert",
    "static_eval",
    "static_exception",
    "static_iter",
]
