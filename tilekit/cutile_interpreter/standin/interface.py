"""The public interface of ``cuda.tile`` 1.7 in pure Python, for machines that NVIDIA has no wheel for.

Kernels, annotations, dtypes and exceptions are made here as they are there; what a kernel calls is the interpreter's.
Nothing here imports the interpreter until a kernel is launched: the interpreter itself is built on these classes.
"""

import contextlib
import dataclasses
import functools
import inspect
import types
import typing
from enum import Enum
from typing import Annotated, Any, Generic, Protocol, TypeVar

__version__ = "1.7.0+tilekit"  # the version whose interface this is, and who speaks

T = TypeVar("T")

NO_GPU = (
    "the stand-in for cuda.tile interprets kernels on the CPU; install cuda-tile on a machine with an NVIDIA GPU for "
)


def _module_of(name: str):
    import importlib

    return importlib.import_module(f"tilekit.cutile_interpreter.{name}")


def _in_kernel() -> bool:
    """Whether the caller is a kernel that the interpreter is executing in this thread."""
    return _module_of("run").current.run is not None


def _outside(name: str):
    return RuntimeError(f"{name} works only inside a kernel; launch the kernel with ct.launch instead of calling it")


# Data types -----------------------------------------------------------------------------------------------------------


class DType:
    """How the elements of an array or tile are stored and calculated with: ``ct.float32`` and its like.

    Inside a kernel a numeric dtype can be called: ``ct.int16(5)`` is a scalar of it.
    """

    __slots__ = ("_bitwidth", "_name")

    def __new__(cls, *args, **kwargs):
        raise TypeError("A DType cannot be made; use the ones there are: ct.float32, ct.int8, ...")

    @property
    def name(self) -> str:
        return self._name

    @property
    def bitwidth(self) -> int:
        """Bits of one element in memory."""
        return self._bitwidth

    def __call__(self, value=0, /):
        if not _in_kernel():
            raise _outside(f"ct.{self}(...)")
        return _module_of("namespace").DTYPES[self](value)

    def __repr__(self):
        return f"<DType '{self._name}'>"

    def __str__(self):
        return self._name

    def __reduce__(self):
        # A dtype is known by its identity, so a copy or an unpickled one is the same object.
        return _dtype_named, (self._name,)


def _make_dtype(name: str, bitwidth: int) -> DType:
    dtype = object.__new__(DType)
    dtype._name, dtype._bitwidth = name, bitwidth
    return dtype


def _dtype_named(name: str) -> DType:
    if name.startswith("foreign_pointer["):
        return foreign_pointer_dtype(_dtype_named(name[len("foreign_pointer[") : -1]))
    return globals()[name]


bool_ = _make_dtype("bool_", 8)
int8, int16, int32, int64 = (_make_dtype(f"int{b}", b) for b in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (_make_dtype(f"uint{b}", b) for b in (8, 16, 32, 64))
float16, float32, float64 = (_make_dtype(f"float{b}", b) for b in (16, 32, 64))
bfloat16 = _make_dtype("bfloat16", 16)
tfloat32 = _make_dtype("tfloat32", 32)
float8_e4m3fn, float8_e5m2, float8_e8m0fnu, float8_e5m3fnu = (
    _make_dtype(f"float8_{form}", 8) for form in ("e4m3fn", "e5m2", "e8m0fnu", "e5m3fnu")
)
float4_e2m1fn = _make_dtype("float4_e2m1fn", 4)

_foreign_pointers: dict[DType, DType] = {}


def foreign_pointer_dtype(pointee_dtype: DType) -> DType:
    """The dtype of a pointer to elements of `pointee_dtype` for foreign code; the same object for the same pointee."""
    if not isinstance(pointee_dtype, DType):
        raise TypeError(f"pointee_dtype must be a cuda.tile dtype; got {pointee_dtype!r}")
    if pointee_dtype in _foreign_pointers.values():
        raise TypeError("nested foreign pointer dtypes are not supported")
    if pointee_dtype not in _foreign_pointers:
        _foreign_pointers[pointee_dtype] = _make_dtype(f"foreign_pointer[{pointee_dtype}]", 64)
    return _foreign_pointers[pointee_dtype]


# Enumerations ---------------------------------------------------------------------------------------------------------


class MemoryScope(Enum):
    """Which threads take part in the ordering of a memory operation."""

    NONE = "none"
    BLOCK = "block"
    CLUSTER = "cluster"
    DEVICE = "device"
    SYS = "sys"


class MemoryOrder(Enum):
    """How a memory operation is ordered with others."""

    WEAK = "weak"
    RELAXED = "relaxed"
    ACQUIRE = "acquire"
    RELEASE = "release"
    ACQ_REL = "acq_rel"


class RoundingMode(Enum):
    """How a floating-point result is rounded."""

    RN = "nearest_even"
    RZ = "zero"
    RM = "negative_inf"
    RP = "positive_inf"
    RA = "nearest_away"
    FULL = "full"
    APPROX = "approx"
    RZI = "nearest_int_to_zero"


class PaddingMode(Enum):
    """What a load gives for elements that lie outside of the array."""

    UNDETERMINED = "undetermined"
    ZERO = "zero"
    NEG_ZERO = "neg_zero"
    NAN = "nan"
    POS_INF = "pos_inf"
    NEG_INF = "neg_inf"


# Exceptions -----------------------------------------------------------------------------------------------------------


class TileError(Exception):
    """What the compiler refuses.

    Attributes:
        message: the reason, without the place.
        loc: the place in the source, or ``None``.
    """

    def __init__(self, message: str, loc=None):
        super().__init__(message)
        self.message = message
        self.loc = loc

    def __str__(self):
        return self.message if self.loc is None else f"{self.message}\n{self.loc}"


class TileSyntaxError(TileError):
    """Python syntax that kernels cannot use."""


class TileTypeError(TileError):
    """A type or dtype that does not fit."""


class TileRecursionError(TileError):
    """Functions of a kernel call each other without end."""


class TileValueError(TileError):
    """A value that does not fit."""


class TileUnsupportedFeatureError(TileError):
    """A feature that this compiler or architecture does not have."""


class TileInternalError(TileError):
    """A fault of the compiler's own."""


class TileStaticEvalError(TileError):
    """The expression of a ``ct.static_eval`` cannot be evaluated at compile time."""


class StaticException(TileStaticEvalError):
    """``raise ct.static_exception(...)`` was reached."""


class TileStaticAssertionError(TileError):
    """The condition of a ``ct.static_assert`` is false."""

    def __init__(self, message: str, loc=None):
        super().__init__("Static assertion failed" + (f": {message}" if message else ""), loc)


class _TileCompilerError(TileInternalError):
    def __init__(self, message, loc, compiler_flags, compiler_version):
        super().__init__(message, loc)
        self.compiler_flags = compiler_flags
        self.compiler_version = compiler_version


class TileCompilerExecutionError(_TileCompilerError):
    """The tile compiler failed. The stand-in has none and never raises this."""

    def __init__(self, return_code, message, loc, compiler_flags, compiler_version):
        super().__init__(f"Return code {return_code}\n{message}", loc, compiler_flags, compiler_version)


class TileCompilerTimeoutError(_TileCompilerError):
    """The tile compiler took too long. The stand-in has none and never raises this."""

    def __init__(self, message, compiler_flags, compiler_version):
        super().__init__(message, None, compiler_flags, compiler_version)


# Annotations ----------------------------------------------------------------------------------------------------------


class ConstantAnnotation:
    """Metadata of ``Annotated``: the parameter is a constant of the compilation."""

    def __repr__(self):
        return "ConstantAnnotation()"


def _require_index_dtype(name: str, dtype) -> None:
    if dtype is not int32 and dtype is not int64:
        raise ValueError(f"`{name}` must be int32 or int64, got {dtype}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArrayAnnotation:
    """Metadata of ``Annotated`` for an array: the dtype of its shape and strides, and which of them are constants."""

    index_dtype: DType = int32
    static_shape_dims: tuple[int, ...] = ()
    static_stride_dims: tuple[int, ...] = ()

    def __post_init__(self):
        _require_index_dtype("index_dtype", self.index_dtype)
        for name in ("static_shape_dims", "static_stride_dims"):
            dims = getattr(self, name)
            if not isinstance(dims, tuple):
                raise TypeError(f"`{name}` must be a tuple of integers")
            for i, dim in enumerate(dims):
                if isinstance(dim, bool) or not isinstance(dim, int):
                    raise TypeError(f"Element #{i} of `{name}` must be int, got {dim}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScalarAnnotation:
    """Metadata of ``Annotated`` for an integer: its dtype."""

    dtype: DType

    def __post_init__(self):
        _require_index_dtype("dtype", self.dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListAnnotation:
    """Metadata of ``Annotated`` for a list of arrays: the annotation of each."""

    element: Any

    def __post_init__(self):
        if typing.get_origin(self.element) is Annotated:
            found = [m for m in self.element.__metadata__ if isinstance(m, ArrayAnnotation)]
            if len(found) != 1:
                raise TypeError(
                    f"`element` must contain exactly one ArrayAnnotation; {self.element!r} has {len(found)}"
                )
            object.__setattr__(self, "element", found[0])
        if not isinstance(self.element, ArrayAnnotation):
            raise TypeError(f"`element` must be an ArrayAnnotation, got {type(self.element).__name__}")


Constant = Annotated[T, ConstantAnnotation()]
IndexedWithInt64 = Annotated[T, ArrayAnnotation(index_dtype=int64)]
ScalarInt64 = Annotated[T, ScalarAnnotation(dtype=int64)]


class _ScalarLike(Protocol):
    def __index__(self) -> int: ...


Scalar = int | float | _ScalarLike


# Kernels and functions ------------------------------------------------------------------------------------------------

_UNSPECIFIED = object()


class ByTarget(Generic[T]):
    """A compiler hint that differs between GPU architectures: ``ByTarget(sm_90=2, default=1)``."""

    def __init__(self, *, default=_UNSPECIFIED, **value_by_target):
        for name in value_by_target:
            if not (name.startswith("sm_") and name[3:].isdigit()):
                raise ValueError(f"Invalid GPU architecture name: {name}, expected sm_<major><minor>")
        self._default = default
        self._by_target = value_by_target

    def _values(self) -> list:
        return [*self._by_target.values(), *([] if self._default is _UNSPECIFIED else [self._default])]

    def __repr__(self):
        entries = [f"{name}={value!r}" for name, value in self._by_target.items()]
        if self._default is not _UNSPECIFIED:
            entries.append(f"default={self._default!r}")
        return f"ByTarget({', '.join(entries)})"

    def __eq__(self, other):
        if not isinstance(other, ByTarget):
            return False
        return self._default == other._default and self._by_target == other._by_target


_HINTS = {
    "num_ctas": (1, 16, True),
    "occupancy": (1, 32, False),
    "opt_level": (0, 3, False),
    "num_worker_warps": (1, 32, True),
}


def _check_hint(name: str, value) -> None:
    lowest, highest, power_of_two = _HINTS[name]
    for number in value._values() if isinstance(value, ByTarget) else [value]:
        if number is None:
            continue
        if not isinstance(number, int):
            raise TypeError(f"{name} must be an int, a ByTarget or None; got {number!r}")
        if not lowest <= number <= highest:
            raise ValueError(f"{name} should be [{lowest}, {highest}], got {number}")
        if power_of_two and number & (number - 1):
            raise ValueError(f"{name} should be power of 2, got {number}")


class kernel:
    """Decorator: the function is a kernel, which each block of a grid executes. Launch it with ``ct.launch``.

    The options are hints for a compiler; they are checked here and have no effect on a CPU.

    Args:
        num_ctas: CTAs in a cluster: 1, 2, 4, 8 or 16.
        occupancy: expected active CTAs per SM: 1 to 32.
        opt_level: 0 to 3.
        num_worker_warps: 1, 2, 4, 8, 16 or 32.

    Raises:
        TypeError: it decorates something else than a Python function, or an option has the wrong type.
        ValueError: an option is out of range.
    """

    def __new__(cls, function=None, /, **options):
        if function is None:
            return lambda decorated: cls(decorated, **options)
        return super().__new__(cls)

    def __init__(self, function=None, /, *, num_ctas=None, occupancy=None, opt_level=3, num_worker_warps=None):
        if not isinstance(function, types.FunctionType):
            raise TypeError("`kernel` decorator must be applied to a Python function")
        self._options = {
            "num_ctas": num_ctas, "occupancy": occupancy, "opt_level": opt_level, "num_worker_warps": num_worker_warps,
        }  # fmt: skip
        for name, value in self._options.items():
            _check_hint(name, value)
        typing.get_type_hints(function, include_extras=True)  # raises for annotations that name nothing
        self._pyfunc = function

    def replace_hints(self, **hints):
        """The same kernel with other hints; those not named stay."""
        return kernel(self._pyfunc, **{**self._options, **hints})

    def __call__(self, *args, **kwargs):
        raise TypeError("Tile kernels cannot be called directly. Use cuda.tile.launch() instead.")


def function(func=None, /, *, host=False, tile=True):
    """Decorator: where a function may be called. Without options only in kernels.

    Args:
        host: whether ordinary Python code may call it.
        tile: whether kernels may call it.
    """

    def decorate(func):
        if host:
            func._cutile_tile_function = tile
            return func

        @functools.wraps(func)
        def wrapped(*args, **kwargs):
            if not _in_kernel():
                raise _outside(f"{func.__name__}()")
            return func(*args, **kwargs)

        wrapped._cutile_tile_function = tile
        wrapped._cutile_function_wrapper = True
        return wrapped

    return decorate if func is None else decorate(func)


def launch(stream, grid, kernel, kernel_args, /, *, programmatic_dependent_launch=False):
    """Run a kernel over a grid, on the CPU, before returning. See ``tilekit.cutile_interpreter.launch``."""
    _module_of("patching").launch(
        stream, grid, kernel, kernel_args, programmatic_dependent_launch=programmatic_dependent_launch
    )


# What kernels call ----------------------------------------------------------------------------------------------------


class Array:
    """For annotations: the type of an array parameter."""


class Tile:
    """For annotations: the type of a tile."""


class TiledView:
    """For annotations: the type of what ``array.tiled_view`` returns."""


class Slice:
    """``ct.Slice(start, length)``: a dense dimension of ``load_advanced_indexing``; made inside kernels."""

    def __new__(cls, start, length, /):
        if not _in_kernel():
            raise _outside("ct.Slice")
        return _module_of("namespace").namespace.Slice(start, length)


_TILE_ONLY = """
abs add arange argmax argmin assert_ assume_divisible_by astile astype atan2 atomic_add atomic_and atomic_cas atomic_max
atomic_min atomic_or atomic_xchg atomic_xor bid bitcast bitwise_and bitwise_lshift bitwise_not bitwise_or bitwise_rshift
bitwise_xor broadcast_to cat ceil cos cosh cumprod cumsum divmod ensure_constant equal exp exp2 expand_dims extract floor
floordiv full gather greater greater_equal grid_dependency_control_launch_dependents grid_dependency_control_wait insert
isnan less less_equal load load_advanced_indexing log log2 matmul max maximum min minimum mma mma_scaled mod mul negative
not_equal num_blocks num_tiles ones pack_to_bytes permute pow print printf prod reduce reshape rsqrt scan scatter sin sinh
sqrt static_assert static_eval store store_advanced_indexing sub sum tan tanh transpose truediv unpack_from_bytes where
zeros
""".split()


def _tile_function(name: str, on_host=None):
    """One of the functions of ``cuda.tile``. A kernel that finds it by name gets the interpreter's own; one that reaches
    it through a dict, an enum or an attribute calls this."""

    def call(*args, **kwargs):
        if _in_kernel():
            return getattr(_module_of("namespace").namespace, name)(*args, **kwargs)
        if on_host is None:
            raise _outside(f"ct.{name}")
        return on_host(*args, **kwargs)

    if on_host is not None:
        functools.update_wrapper(call, on_host)
        call.__signature__ = inspect.signature(on_host)
    call.__name__ = call.__qualname__ = name
    call.__module__ = "cuda.tile"
    # What it wraps runs on the host only: the interpreter must not look through it.
    call.__dict__.pop("__wrapped__", None)
    return call


def _cdiv(x, y, /):
    """ceil(x / y), also outside of kernels."""
    return -((-x) // y)


def _static_iter(iterable, /):
    """In a kernel: a loop that is unrolled at compile time. Outside: the iterable itself."""
    return iterable


def _static_exception(exc, /):
    """In a kernel: an exception to raise at compile time. Outside: the exception itself."""
    return exc


globals().update({name: _tile_function(name) for name in _TILE_ONLY})
cdiv = _tile_function("cdiv", _cdiv)
static_iter = _tile_function("static_iter", _static_iter)
static_exception = _tile_function("static_exception", _static_exception)


# What needs a GPU or the compiler -------------------------------------------------------------------------------------


@contextlib.contextmanager
def compiler_timeout(timeout_sec: float):
    """Accepted, and without effect: nothing is compiled."""
    yield


def _refused(module: str, name: str, purpose: str):
    def refuse(*args, **kwargs):
        raise RuntimeError(f"cuda.tile.{module}.{name}: {NO_GPU}{purpose}")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__module__ = f"cuda.tile.{module}"
    return refuse


def _submodule(name: str, doc: str, purpose: str, members: str) -> types.ModuleType:
    module = types.ModuleType(f"cuda.tile.{name}", doc)
    module.__all__ = members.split()
    for member in module.__all__:
        setattr(module, member, _refused(name, member, purpose))
    return module


tune = _submodule(
    "tune", "Timing configurations on a GPU: not in the stand-in.", "timing kernels",
    "exhaustive_search TuningResult Measurement",
)  # fmt: skip
compilation = _submodule(
    "compilation", "Compiling ahead of time: not in the stand-in.", "compiling them",
    "ScalarConstraint ArrayConstraint ListConstraint TupleConstraint ConstantConstraint ParameterConstraint ConstantValue "
    "KernelSignature CallingConvention export_kernel mangle_kernel_name demangle_kernel_name",
)  # fmt: skip

__all__ = sorted([
    *_TILE_ONLY, "cdiv", "static_iter", "static_exception",
    "Array", "ArrayAnnotation", "ByTarget", "Constant", "ConstantAnnotation", "DType", "IndexedWithInt64", "ListAnnotation",
    "MemoryOrder", "MemoryScope", "PaddingMode", "RoundingMode", "Scalar", "ScalarInt64", "Slice", "StaticException",
    "Tile", "TileCompilerExecutionError", "TileCompilerTimeoutError", "TileError", "TileInternalError",
    "TileRecursionError", "TileStaticAssertionError", "TileStaticEvalError", "TileSyntaxError", "TileTypeError",
    "TileUnsupportedFeatureError", "TileValueError", "TiledView",
    "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64", "tfloat32", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e5m3fnu", "float4_e2m1fn",
    "compilation", "compiler_timeout", "foreign_pointer_dtype", "function", "kernel", "launch", "tune",
])  # fmt: skip
