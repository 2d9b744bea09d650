"""Tiles: a value for each block of the running group, with a dtype; and how operands come to a common dtype and shape."""

import functools
import sys
from collections.abc import Callable

import numpy as np

from tilekit.cutile_interpreter import dtypes, formats
from tilekit.cutile_interpreter.api import TileTypeError, TileValueError
from tilekit.cutile_interpreter.dtypes import FORMATS, DType
from tilekit.cutile_interpreter.run import Diverged, current, running


class Tile:
    """A tile of every block in the group.

    Attributes:
        data: ``(n, *shape)``, or ``(1, *shape)`` where all blocks have the same; in the dtype's carrier.
        dtype: cuTile's dtype.
        const: the Python number, if the compiler knows it, as for ``ct.int16(5)``; else ``None``.
        unsure: `const` came one of several ways, through an ``if`` or a loop of the run. The compiler knows it only if
            all ways give the same, which a run does not show: it calculates as what is known at run time only, and
            stays at hand for where the compiler must know a number.
    """

    __slots__ = ("const", "data", "dtype", "unsure")
    __array_ufunc__ = None  # NumPy scalars leave operators to the tile

    def __init__(self, data: np.ndarray, dtype: DType, const=None, unsure=False):
        self.data = data
        self.dtype = dtype
        self.const = const
        self.unsure = unsure

    @property
    def known(self) -> bool:
        """A constant for certain."""
        return self.const is not None and not self.unsure

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape[1:]

    @property
    def ndim(self) -> int:
        return self.data.ndim - 1

    __hash__ = None

    # Decisions -------------------------------------------------------------------------------------------------------

    def _decide(self, what: str) -> np.ndarray:
        if self.data.ndim != 1:
            raise TileTypeError(
                f"{what} needs a scalar, and this tile has shape {self.shape}. Reduce it (ct.max, ct.sum) or choose "
                "element by element with ct.where"
            )
        running().step()
        return self.data

    def __bool__(self) -> bool:
        values = self._decide("A truth value (`if`, `while`, `and`, `or`, `not`)")
        if len(values) > 1:
            values = values.astype(bool, copy=False)
            if values.any() != values.all():
                raise Diverged(values)
        return bool(values[0])

    def __index__(self) -> int:
        if FORMATS[self.dtype].category == dtypes.FLOAT:
            raise TileTypeError(f"Expected an integer scalar; got one of dtype {self.dtype}")
        values = self._decide("An index or a loop bound")
        if len(values) > 1 and (values != values[0]).any():
            raise Diverged(values)
        return int(values[0])

    # Words -----------------------------------------------------------------------------------------------------------

    def __repr__(self):
        """For a debugger: shape, dtype and the values of the group's first block."""
        run = current.run
        if run is not None and run.static:
            return self.type_name()
        if run is not None and sys._getframe(1).f_code in run.codes:
            return str(self)  # inside a tuple that the kernel itself formats
        return f"<tile[{self.dtype}, {self.shape}] {np.array2string(self.data[0], threshold=64)}>"

    def __str__(self):
        # A constant is in the compiler's text already, in Python's words; an f-string alone leaves it to the run.
        return self._words(None) if self.const is None else str(self.const)

    def __format__(self, spec):
        return self._words(spec)

    def type_name(self) -> str:
        """All that a compile-time expression can say of it."""
        return f"<tile[{self.dtype}, {self.shape}]>"

    def _words(self, spec) -> str:
        if running().static:
            return format(self.type_name(), spec or "")
        conversion = formats.from_python(spec or "", self.dtype)
        running().require_order()
        return formats.text(self.data[0].tolist(), conversion, self.dtype)


def scalar(value, dtype: DType, const=None, exact=False) -> Tile:
    """A 0-d tile with one Python number for all blocks; a constant, if `const` is given, with the value that it takes.

    A Python float is a float32 to the compiler before it is anything else: 0.1 in a float64 tile is 0.1 rounded to
    float32. Unless it is `exact`: a typed constant's value.
    """
    fmt = FORMATS[dtype]
    if fmt.category == dtypes.FLOAT:
        number = np.array([value], np.float64)
        if not exact and isinstance(value, float):
            number = number.astype(np.float32).astype(np.float64)
        data = dtypes.round_to(dtype, number)
    else:
        # Modulo 2**64, as what constants of 64 bits add up to may need.
        data = np.array([int(value) % 2**64], np.uint64).view(np.int64)
        data = data.astype(fmt.carrier)
    return Tile(data, dtype, None if const is None else data[0].item())


def constant(value, dtype: DType) -> Tile:
    """A Python number as a constant of `dtype`, converted as Python converts."""
    whole = isinstance(value, int)
    try:
        value = (bool, int, float)[FORMATS[dtype].category](value)
    except (ValueError, OverflowError, TypeError):
        raise TileTypeError(f"Invalid argument for {dtype}: {value!r}") from None
    return scalar(value, dtype, value, exact=whole)


def is_number(value) -> bool:
    return isinstance(value, (bool, int, float))


def unsure(tile: Tile) -> Tile:
    """A scalar with the same value in all blocks, which the compiler may know or not."""
    return Tile(tile.data, tile.dtype, tile.data[0].item(), unsure=True)


def of_unsure(function: Callable, *constants) -> Tile | None:
    """What `function` gives, at run time, for constants of which one is unsure; ``None`` if all are known."""
    if not any(isinstance(value, Tile) and value.unsure for value in constants):
        return None
    return unsure(function(*(Tile(v.data, v.dtype) if isinstance(v, Tile) else v for v in constants)))


def as_tile(value, what: str = "value") -> Tile:
    """`value` as a tile; a bare Python number takes its default dtype."""
    if isinstance(value, Tile):
        return value
    if is_number(value):
        return scalar(value, dtypes.dtype_of_number(value), value)
    raise TileTypeError(f"Expected {what} to be a tile or a number; got {describe(value)}")


def need_tile(value, what: str = "the argument") -> Tile:
    """`value`, which must be a tile of some rank; numbers count as 0-d tiles."""
    return as_tile(value, what)


def describe(value) -> str:
    """What a value is, in words for an error message."""
    if isinstance(value, Tile):
        return f"tile[{value.dtype}, {value.shape}]"
    kind = type(value).__name__
    return f"{kind} {value!r}" if isinstance(value, (int, float, str, bool)) else f"an object of type {kind}"


# Common shapes and dtypes -----------------------------------------------------------------------------------------------


def broadcast_shapes(*shapes) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise TileTypeError(f"Shapes are not broadcastable: {', '.join(map(str, shapes))}") from None


def aligned(data: np.ndarray, ndim: int) -> np.ndarray:
    """`data` with axes of length 1 after its block axis, so that it broadcasts with tiles of rank `ndim`."""
    missing = ndim - (data.ndim - 1)
    return data.reshape(data.shape[:1] + (1,) * missing + data.shape[1:]) if missing > 0 else data


def expand(data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`data` broadcast to a tile shape; a view."""
    data = aligned(data, len(shape))
    return data if data.shape[1:] == shape else np.broadcast_to(data, data.shape[:1] + shape)


def common_dtype(x, y, force_float: bool = False) -> DType:
    """The dtype that two operands meet in; a bare Python number gives way to a tile's."""
    if isinstance(x, Tile):
        if isinstance(y, Tile):
            result = dtypes.promote(x.dtype, y.dtype)
            return dtypes.float32 if force_float and FORMATS[result].category != dtypes.FLOAT else result
        return dtypes.promote_number(x.dtype, y, force_float)
    if isinstance(y, Tile):
        return dtypes.promote_number(y.dtype, x, force_float)
    return (
        dtypes.dtype_of_number(x)
        if dtypes.dtype_of_number(x) is dtypes.dtype_of_number(y)
        else dtypes.promote(dtypes.dtype_of_number(x), dtypes.dtype_of_number(y))
    )


def operand(value, dtype: DType) -> np.ndarray:
    """The carried values of an operand, cast to `dtype`."""
    if isinstance(value, Tile):
        return value.data if value.dtype is dtype else dtypes.cast(value.data, value.dtype, dtype)
    return _number(value, dtype) if value else scalar(value, dtype).data  # 0.0 and -0.0 are one key


@functools.lru_cache(maxsize=1024, typed=True)
def _number(value, dtype: DType) -> np.ndarray:
    data = scalar(value, dtype).data
    data.flags.writeable = False
    return data


def pair(x, y, dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Two operands in one dtype, ready for a NumPy function."""
    a, b = operand(x, dtype), operand(y, dtype)
    if a.ndim != b.ndim:
        ndim = max(a.ndim, b.ndim) - 1
        if min(a.ndim, b.ndim) == 1:
            return aligned(a, ndim), aligned(b, ndim)
        a, b = aligned(a, ndim), aligned(b, ndim)
    if a.shape[1:] != b.shape[1:]:
        broadcast_shapes(a.shape[1:], b.shape[1:])
    return a, b


def result(values: np.ndarray, dtype: DType) -> Tile:
    """A new tile from what arithmetic in the carrier gave: rounded to the dtype."""
    if FORMATS[dtype].carrier != values.dtype or dtype not in _EXACT:
        values = (
            dtypes.round_to(dtype, values)
            if FORMATS[dtype].category == dtypes.FLOAT
            else values.astype(FORMATS[dtype].carrier)
        )
    run = running()
    size = values.nbytes // len(values)
    if size > run.largest:
        run.largest = size
    return Tile(values, dtype)


_EXACT = frozenset(d for d, f in FORMATS.items() if f.category != dtypes.FLOAT) | {dtypes.float32, dtypes.float64}


# What the compiler must know ------------------------------------------------------------------------------------------


def constant_int(value, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        if isinstance(value, Tile) and isinstance(value.const, int) and not isinstance(value.const, bool):
            return value.const
        if isinstance(value, Tile):
            raise TileTypeError(
                f"Expected {what} to be an integer constant, a compile-time constant; this value is known at run time only. Pass it to "
                "the kernel as a `ct.Constant[int]` parameter"
            )
        raise TileTypeError(f"Expected {what} to be an integer constant; got {describe(value)}")
    return value


def constant_bool(value, what: str) -> bool:
    if isinstance(value, Tile) and isinstance(value.const, bool):
        return value.const
    if not isinstance(value, bool):
        raise TileTypeError(f"Expected {what} to be a boolean constant; got {describe(value)}")
    return value


def constant_ints(value, what: str) -> tuple[int, ...]:
    """A tuple of constant integers, or one integer as a tuple of length 1."""
    if not isinstance(value, tuple):
        return (constant_int(value, what),)
    return tuple(constant_int(v, f"element {i} of {what}") for i, v in enumerate(value))


def tile_shape(value, what: str = "shape", rank: int | None = None, allow_scalar: bool = True) -> tuple[int, ...]:
    """A tile's shape: constants, each a power of two."""
    shape = constant_ints(value, what)
    if rank is not None and len(shape) != rank and not (allow_scalar and shape == ()):
        raise TileTypeError(f"Expected {what} to have length {rank}, the rank of the array; got {shape}")
    for axis, length in enumerate(shape):
        if length <= 0:
            raise TileTypeError(f"Dimension #{axis} of {what} {shape} is not positive")
        if length & (length - 1):
            near = 1 << length.bit_length()
            raise TileTypeError(
                f"Dimension #{axis} of {what} {shape} is not a power of two. Tiles are; use {near} and let the padding "
                f"fill what lies past the end"
            )
    return shape


def axis_of(value, ndim: int, what: str = "axis") -> int:
    axis = constant_int(value, what)
    if not -ndim <= axis < ndim:
        raise TileTypeError(f"Axis {axis} is out of range for rank {ndim}")
    return axis % ndim


def choice(value, kind, what: str, optional: bool = False):
    """A member of an enumeration, given as itself or by its name."""
    if value is None and optional:
        return None
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and value in kind.__members__:
        return kind[value]
    raise TileTypeError(f"Expected {what} to be a {kind.__name__}; got {describe(value)}")


def integer_scalar(value, what: str) -> np.ndarray | int:
    """An index: a Python int, or the integers of the blocks as an int64 array of length n or 1."""
    if isinstance(value, Tile):
        if value.data.ndim != 1 or FORMATS[value.dtype].category != dtypes.INT:
            raise TileTypeError(f"Expected {what} to be an integer scalar; got {describe(value)}")
        return int(value.data[0]) if len(value.data) == 1 else value.data.astype(np.int64, copy=False)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TileTypeError(f"Expected {what} to be an integer scalar; got {describe(value)}")
    return value


def implicit(value, dtype: DType, context: str) -> Tile:
    """`value` in `dtype`, if that needs no explicit cast."""
    if isinstance(value, Tile) and value.const is None:
        problem = dtypes.implicit_cast_problem(value.dtype, dtype)
        if problem:
            raise TileTypeError(f"{context}: {problem}. Cast it with .astype({dtype}) if that is meant")
        return value if value.dtype is dtype else Tile(dtypes.cast(value.data, value.dtype, dtype), dtype)
    if isinstance(value, Tile):
        problem = dtypes.implicit_cast_problem(value.dtype, dtype)
        if problem:
            raise TileTypeError(f"{context}: {problem}")
        converted = scalar(value.const, dtype, value.const, exact=True)
        return unsure(converted) if value.unsure else converted
    if not is_number(value):
        raise TileTypeError(f"{context}: expected a tile or a number; got {describe(value)}")
    own, target = FORMATS[dtypes.dtype_of_number(value)].category, FORMATS[dtype].category
    if (own == dtypes.FLOAT or value not in (0, 1)) if target == dtypes.BOOL else own > target:
        raise TileTypeError(f"{context}: cannot implicitly cast {value} to {dtype}")
    if own == target == dtypes.INT:
        low, high = dtypes.integer_range(dtype)
        if not low <= value <= high:
            raise TileValueError(f"{context}: {value} is out of range of {dtype}")
    return scalar(value, dtype, value)
