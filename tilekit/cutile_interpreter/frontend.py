"""NVIDIA's own type check of a kernel, without a GPU, a driver or a compiled kernel.

cuda.tile translates a kernel to typed code in Python, and finds there what no execution finds: a loop that changes a
variable's type, a variable that is undefined on a path not taken, syntax that tile code does not have. That half of
the compiler needs only a signature. On a GPU the launcher infers it from the arguments; the inference needs the
driver, so it is done here, by the same rules.

Where the package cuda-tile is not installed there is nothing to ask, and :func:`check` does nothing.
"""

import dataclasses
import functools
import inspect
import io
import re
import warnings
import weakref
from collections.abc import Sequence
from types import FunctionType, SimpleNamespace

import numpy as np

INT32 = range(-(2**31), 2**31)
INT64 = range(-(2**63), 2**63)
CONSTANT_INTEGERS = range(-(2**63), 2**64)


def check(kernel, args: Sequence, *, arch: str | None = None) -> None:
    """Have NVIDIA's front end check `kernel` for these arguments; return if it would compile them.

    Each new combination of argument types and constants is checked once (some 10 ms for a small kernel) and
    remembered with the kernel.

    Args:
        kernel: a function decorated with ``@ct.kernel``.
        args: as for ``ct.launch``: arrays (NumPy, torch on any device, or any object with ``shape``, ``strides`` and
            ``dtype``), int, float and bool, tuples of these, lists of arrays.
        arch: an architecture such as ``"sm_90"``, to be told as well of dtypes that it lacks.

    Raises:
        cuda.tile.TileError: whichever of its subclasses the front end raises, with the file, the line, the source and
            a hint in the message.
        TypeError, ValueError, OverflowError: an argument that the launcher does not take.

    >>> import numpy as np
    >>> import cuda.tile as ct
    >>> @ct.kernel
    ... def halve(x, y):
    ...     ct.store(y, 0, ct.load(x, 0, 16) * 0.5)
    >>> x = np.ones(16, np.float32)
    >>> check(halve, (x, x))
    >>> check(halve, (x, x.astype(np.float16)))
    Traceback (most recent call last):
    ...
    cuda.tile._exception.TypeCheckingError: Stored tile is incompatible with array's dtype: ...
    """
    if _skipped or _internals() is None:
        return
    try:
        known = _definition(kernel)
    except UnknownVersion as change:
        return _skip(str(change))
    key = (arch, len(args), *map(_typing_key, args, known.annotations))
    if key in known.checked:
        return
    problem = None
    try:
        _translate(kernel, signature(kernel, args), arch)
    except UnknownVersion as change:
        _skip(str(change))
        return
    except OSError as missing:
        _warn_of_source(str(missing))
    except _internals().tile.TileInternalError as error:
        # A fault of the front end's own, but for this one: the interpreter says what is wrong, if anything is.
        if "broadcastable" in str(error):
            problem = for_learners(error)
    except Exception as error:
        problem = for_learners(error)
    if problem is not None:
        # Raised here, so that a traceback shows the caller's lines and none of NVIDIA's.
        raise problem
    known.checked.add(key)


def available() -> bool:
    """Whether NVIDIA's front end is there: the package cuda-tile, of a version that is known."""
    return not _skipped and _internals() is not None


def _warn_of_source(missing: str) -> None:
    """A kernel typed into ``python -c`` or a plain prompt has no source to read."""
    warnings.warn(
        f"NVIDIA's front end could not read the kernel's source ({missing}), so its types are checked only as it runs; "
        "ct.launch needs the source too: put the kernel into a file or a notebook",
        RuntimeWarning,
        stacklevel=5,
    )


# --- what is used of cuda.tile beyond its documentation ----------------------------------------------------------------


class UnknownVersion(RuntimeError):
    """This version of cuda-tile has other internals than tilekit knows."""


@functools.cache
def _internals() -> SimpleNamespace | None:
    """cuda.tile, with what only its internals say; None where there is no such package, or an unknown one."""
    try:
        import cuda.tile as tile
        import cuda.tile._cext  # noqa: F401  a stand-in for cuda.tile has no compiled part
        from cuda.tile import compilation
    except ImportError:
        return None
    try:
        from cuda.tile._compile import _SUPPORTED_VERSIONS

        bytecode = _SUPPORTED_VERSIONS[-1].as_string()
    except Exception as error:
        _skip(f"{type(error).__name__}: {error}")
        return None
    return SimpleNamespace(tile=tile, compilation=compilation, bytecode=bytecode)


@dataclasses.dataclass(frozen=True)
class _Definition:
    """What a kernel says about itself, and the specialisations of it that were found right."""

    function: FunctionType
    names: tuple[str, ...]
    annotations: tuple
    checked: set = dataclasses.field(default_factory=set)


_skipped = False
_definitions = weakref.WeakKeyDictionary()


def _definition(kernel) -> _Definition:
    if not isinstance(kernel, _internals().tile.kernel):
        raise TypeError(f"ct.launch wants a function decorated with @ct.kernel; got {_described(kernel)}.")
    if (known := _definitions.get(kernel)) is not None:
        return known
    try:
        annotated = kernel._annotated_function
        known = _Definition(annotated.pyfunc, tuple(annotated.pysig.parameters), tuple(annotated.parameter_annotations))
        for node in known.annotations:
            _parts_of(node)
    except AttributeError as error:
        raise UnknownVersion(str(error)) from None
    _definitions[kernel] = known
    return known


def _parts_of(node) -> tuple | None:
    """The nodes of a tuple annotation: a tuple of them, one node for all items, or None if it is no tuple's."""
    if node.KIND == "leaf":
        node.constant, node.scalar, node.array, node.list  # noqa: B018  asked so that an unknown shape shows here
        return None
    if node.KIND == "homogeneous_tuple":
        return (node.each,)
    if node.KIND == "heterogeneous_tuple":
        return node.items
    raise UnknownVersion(f"an annotation of kind {node.KIND}")


def _translate(kernel, signature, arch: str | None) -> None:
    internals = _internals()
    try:
        internals.compilation.export_kernel(
            kernel,
            [signature],
            io.BytesIO(),
            gpu_code=arch,
            output_format="tileir_bytecode",
            bytecode_version=internals.bytecode,
        )
    except (TypeError, AttributeError) as error:
        if error.__traceback__.tb_next is None:  # the call itself does not fit, nothing ran
            raise UnknownVersion(str(error)) from None
        raise


def _skip(problem: str) -> None:
    """Do without the check from now on, and say so once."""
    global _skipped
    if _skipped:
        return
    _skipped = True
    warnings.warn(
        f"Kernels are interpreted without NVIDIA's type check: this version of cuda-tile is not one that tilekit knows "
        f"({problem}).",
        stacklevel=3,
    )


# --- the signature that the launcher infers ----------------------------------------------------------------------------


def signature(kernel, args: Sequence):
    """The ``compilation.KernelSignature`` that ``ct.launch`` infers from these arguments.

    Strides of 1 and, where annotated, sizes and strides are constants of it; sizes divisible by 16 and strides
    divisible by 16 bytes are known to be; the base address too, unless the array is a view that begins in between
    (where the CPU's memory happens to begin says nothing about a GPU's, which is always aligned).

    Raises:
        TypeError, ValueError, OverflowError: an argument that the launcher does not take, and why.
    """
    known = _definition(kernel)
    cc = _internals().compilation
    function = known.function
    if len(args) != len(known.names):
        raise TypeError(
            f"{function.__name__}() takes {len(known.names)} arguments ({', '.join(known.names)}), and "
            f"{len(args)} {'was' if len(args) == 1 else 'were'} given. A launch gives each of them, in this order.\n"
            f"{_place_of(function)}"
        )
    parameters = []
    for name, value, node in zip(known.names, args, known.annotations, strict=True):
        try:
            parameters.append(_constraint(value, node))
        except (TypeError, ValueError, OverflowError) as error:
            raise type(error)(f"Argument '{name}' of {function.__name__}(): {error}\n{_place_of(function)}") from None
    return cc.KernelSignature(parameters, cc.CallingConvention.cutile_python_v2())


def _constraint(value, node):
    cc, tile = _internals().compilation, _internals().tile
    parts = _parts_of(node)
    if parts is not None:
        if not isinstance(value, tuple):
            raise TypeError(f"it is annotated as a tuple; got {_described(value)}.")
        if node.KIND == "homogeneous_tuple":
            parts *= len(value)
        if len(parts) != len(value):
            raise TypeError(f"it is annotated as a tuple of {len(parts)} items; got one of {len(value)}.")
        return cc.TupleConstraint(list(map(_constraint, value, parts)))
    if isinstance(value, tuple):
        return cc.TupleConstraint([_constraint(item, node) for item in value])
    if node.constant:
        if not isinstance(value, (int, float)):
            raise TypeError(f"a ct.Constant is an int, float or bool, or a tuple of these; got {_described(value)}.")
        plain = next(t for t in (bool, int, float) if isinstance(value, t))  # an IntEnum's value, not its member
        value = plain(value)
        if plain is int and value not in CONSTANT_INTEGERS:
            raise OverflowError(f"{value} is out of the range of 64-bit integers.")
        return cc.ConstantConstraint(value)
    if isinstance(value, bool):
        return cc.ScalarConstraint(tile.bool_)
    if isinstance(value, int):
        value = int(value)  # of an IntEnum, which a range would look for one number after the other
        dtype, fits = (node.scalar.dtype, INT64) if node.scalar is not None else (tile.int32, INT32)
        if dtype is tile.int32:
            fits = INT32
        if value not in fits:
            wider = " Annotate the parameter with ct.ScalarInt64." if fits is INT32 and value in INT64 else ""
            raise OverflowError(f"{value} is out of the range of {dtype}, which an int argument becomes.{wider}")
        return cc.ScalarConstraint(dtype)
    if isinstance(value, float):
        return cc.ScalarConstraint(tile.float32)
    if isinstance(value, list):
        return _list_constraint(value, node.list.element if node.list is not None else None)
    if _is_array(value):
        return _array_constraint([value], node.array)
    if isinstance(value, np.generic):
        raise TypeError(f"got {_described(value)}; pass a Python number, such as {value.item()!r}.")
    wanted = "a kernel takes arrays, int, float, bool, tuples of these, and lists of arrays"
    raise TypeError(f"{wanted}; got {_described(value)}.")


def _list_constraint(arrays: list, annotation):
    if not arrays:
        raise TypeError("a list must hold at least one array, which tells its dtype and rank.")
    for array in arrays:
        if not _is_array(array):
            raise TypeError(f"a list holds arrays and nothing else; got {_described(array)} in it.")
    if len({_dtype_of(array) for array in arrays}) > 1:
        raise TypeError(f"the arrays of a list have one dtype; got {', '.join(str(_dtype_of(a)) for a in arrays)}.")
    if len({len(array.shape) for array in arrays}) > 1:
        raise TypeError(f"the arrays of a list have one rank; got {', '.join(str(len(a.shape)) for a in arrays)}.")
    element = _array_constraint(arrays, annotation)
    return _internals().compilation.ListConstraint(element, alias_groups=(), elements_may_alias=True)


def _array_constraint(arrays: list, annotation):
    """What holds for all of these arrays, of one dtype and rank."""
    dtype = _dtype_of(arrays[0])
    rank = len(arrays[0].shape)
    wide = dtype.bitwidth
    all_shapes = list(zip(*(tuple(map(int, a.shape)) for a in arrays), strict=True))
    all_strides = list(zip(*(_strides_of(a) for a in arrays), strict=True))
    static_shape = _static_axes("static_shape_dims", annotation, rank)
    static_stride = _static_axes("static_stride_dims", annotation, rank)
    for what, axes, sizes in (("size", static_shape, all_shapes), ("stride", static_stride, all_strides)):
        for axis in axes:
            if len(set(sizes[axis])) > 1:
                raise ValueError(f"the arrays of this list must have one {what} along axis {axis}; got {sizes[axis]}.")

    def the_one(sizes, wanted=True):
        return sizes[0] if wanted and len(set(sizes)) == 1 else None

    # Naming any axis as static turns off the inference of sizes and strides of 1 for all of them.
    shape_constant = [
        the_one(sizes, axis in static_shape if static_shape else sizes[0] == 1) for axis, sizes in enumerate(all_shapes)
    ]
    stride_constant = [
        the_one(strides, axis in static_stride if static_stride else strides[0] == 1)
        for axis, strides in enumerate(all_strides)
    ]
    return _internals().compilation.ArrayConstraint(
        dtype,
        rank,
        index_dtype=annotation.index_dtype if annotation is not None else _internals().tile.int32,
        stride_lower_bound_incl=[None if constant is not None else 0 for constant in stride_constant],
        alias_groups=(),
        may_alias_internally=any(_may_overlap(array) for array in arrays),
        stride_constant=stride_constant,
        shape_constant=shape_constant,
        stride_divisible_by=[
            1 if constant is not None or any(s * wide % 128 for s in strides) else max(1, 128 // wide)
            for constant, strides in zip(stride_constant, all_strides, strict=True)
        ],
        shape_divisible_by=[
            1 if constant is not None or any(size % 16 for size in sizes) else 16
            for constant, sizes in zip(shape_constant, all_shapes, strict=True)
        ],
        base_addr_divisible_by=1 if any(_offset_in_bytes(a) % 16 for a in arrays) else 16,
    )


def _static_axes(field: str, annotation, rank: int) -> set[int]:
    axes = getattr(annotation, field) if annotation is not None else ()
    found = set()
    for axis in axes:
        if not -rank <= axis < rank:
            raise ValueError(f"its annotation names axis {axis} in {field}, and the array has rank {rank}.")
        if axis % rank in found:
            raise ValueError(f"its annotation names axis {axis % rank} twice in {field}.")
        found.add(axis % rank)
    return found


# --- arrays of any library ---------------------------------------------------------------------------------------------


def _is_array(value) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, np.generic)


@functools.cache
def _native_dtype(dtype):
    """cuTile's dtype for one of NumPy, ml_dtypes, torch or cuTile itself."""
    tile = _internals().tile
    if isinstance(dtype, tile.DType):
        return dtype
    if not getattr(dtype, "isnative", True):
        raise TypeError(f"cuTile has no arrays in foreign byte order, such as {dtype}.")
    name = getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]
    found = getattr(tile, "bool_" if name == "bool" else name, None)
    if not isinstance(found, tile.DType):
        raise TypeError(f"cuTile has no arrays of dtype {dtype}.")
    return found


def _dtype_of(array):
    return _native_dtype(array.dtype)


def _strides_of(array) -> tuple[int, ...]:
    """The strides in elements, as torch and cuTile count them; NumPy and CuPy count bytes."""
    if callable(getattr(array, "stride", None)):
        return tuple(map(int, array.stride()))
    strides = tuple(map(int, array.strides))
    if isinstance(array.dtype, _internals().tile.DType):
        return strides
    size = array.dtype.itemsize
    if any(stride % size for stride in strides):
        raise ValueError(f"its strides {strides}, in bytes, are no whole numbers of elements of {size} bytes.")
    return tuple(stride // size for stride in strides)


def _offset_in_bytes(array) -> int:
    """How far into its memory an array begins."""
    if callable(getattr(array, "storage_offset", None)):
        return array.storage_offset() * array.dtype.itemsize
    whole = array
    while isinstance(getattr(whole, "base", None), np.ndarray):
        whole = whole.base
    return array.ctypes.data - whole.ctypes.data if isinstance(array, np.ndarray) else 0


def _may_overlap(array) -> bool:
    reach = 0
    pairs = zip(_strides_of(array), array.shape, strict=True)
    for stride, size in sorted(pairs):
        if stride <= 0 or stride < reach:
            return True
        reach = stride * size
    return False


# --- which launches are of one type ------------------------------------------------------------------------------------


def _typing_key(value, node):
    """Equal for arguments with which a kernel is typed alike, as far as this argument goes."""
    kind = type(value)
    if node.KIND != "leaf":
        items = node.items if node.KIND == "heterogeneous_tuple" else (node.each,) * _length(value)
        return (kind, _length(value), *map(_typing_key, value, items)) if kind is tuple else (kind,)
    if kind is tuple:
        return (kind, *(_typing_key(item, node) for item in value))
    if node.constant:
        # 1, 1.0 and True are three constants, and so are 0.0 and -0.0; NaN is one.
        return (kind, value.hex()) if isinstance(value, float) else (kind, value if isinstance(value, int) else None)
    if kind is int:
        return (kind, value in (INT32 if node.scalar is None else INT64))
    if kind is list:
        return (kind, *(_typing_key(item, _Element(node.list)) for item in value))
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return kind
    annotation = node.array
    if annotation is None or not (annotation.static_shape_dims or annotation.static_stride_dims):
        return (kind, dtype, len(value.shape))
    strides = _strides_of(value)
    return (
        kind,
        dtype,
        len(value.shape),
        *(value.shape[axis] if -len(strides) <= axis < len(strides) else None for axis in annotation.static_shape_dims),
        *(strides[axis] if -len(strides) <= axis < len(strides) else None for axis in annotation.static_stride_dims),
    )


class _Element:
    """The annotation of a list's elements, as that of one array."""

    KIND, constant, scalar, list = "leaf", False, None, None

    def __init__(self, annotation):
        self.array = annotation.element if annotation is not None else None


def _length(value) -> int:
    return len(value) if isinstance(value, tuple) else 0


# --- errors for learners -----------------------------------------------------------------------------------------------

# What a message contains -> what to do about it.
_HINTS = (
    (
        r"cannot implicitly cast (\w+) to (\w+)",
        r"A cast to a dtype that holds less is never implicit: write .astype(ct.\2), or y.dtype for an array y.",
    ),
    (
        r"Dimension #\d+ of shape .* is not a power of two",
        r"Tiles have power-of-two sizes. Take the next larger one: a load past the array's end is padded (see "
        r"padding_mode), and a store past it is dropped.",
    ),
    (
        r"Type of `(\w+)` depends on path taken",
        r"A loop or an if may not change a variable's dtype or shape. Let `\1` begin with the type that it ends with, "
        r"as with ct.zeros(shape, dtype), or cast the new value with .astype().",
    ),
    (r"Undefined variable (\w+) used", r"Assign `\1` before this line, or look for a typing error in its name."),
    (
        r"Use of potentially undefined variable `(\w+)`",
        r"Give `\1` a value before the if or the loop: the assignment inside may never run.",
    ),
    (
        r"shape.*given value is not constant",
        r"A tile's shape is settled when the kernel is compiled. Make the size a parameter with the annotation "
        r"ct.Constant[int]; other parameters, array.shape[i] and loop variables are known only when it runs.",
    ),
    (
        r"^Unsupported syntax$",
        r"Tile code is a part of Python: numbers, strings and tuples, if, for, while, functions and calls. It has no "
        r"lists or dicts, list comprehensions, try, classes, imports, del or global.",
    ),
    (
        r"Cannot create constant from value of type .*\bkernel\b",
        r"A kernel is launched by the host's code, with ct.launch; a kernel cannot call or launch another. Share code "
        r"as a plain function.",
    ),
    (r"Index size \d+ does not match the array rank", r"Give one index for each of the array's dimensions."),
    (r"Expected shape length to be \d+", r"Give the tile one size for each of the array's dimensions."),
    (
        r"Shapes are not broadcastable",
        r"Sizes must be equal or 1, counted from the last axis: see ct.expand_dims, ct.reshape and keepdims=True.",
    ),
    (
        r"Expected a scalar value, but given value has type Tile",
        r"An if or while decides for the whole block. To decide for each element, use ct.where(condition, a, b).",
    ),
)


def for_learners(error: Exception) -> Exception:
    """The same exception with a hint, and without the part of the traceback that is inside NVIDIA's package."""
    tile = _internals().tile
    if isinstance(error, tile.TileError):
        try:
            _explain(error)
        except (AttributeError, TypeError):
            pass  # another version builds its exceptions differently; then its own words have to do
    error.__cause__ = error.__context__ = None
    error.__suppress_context__ = True
    return error.with_traceback(None)


def _explain(error) -> None:
    found = ((re.search(pattern, error.message), hint) for pattern, hint in _HINTS)
    hint = next((match.expand(hint) for match, hint in found if match), None)
    written = str(error)
    # str() reads the user's own frames in compile-time code from the cause, which goes.
    cause, error.__cause__ = error.__cause__, None
    frames = written.removeprefix(str(error)).rstrip() if cause is not None else ""
    # A message that quotes another error quotes that one's missing place with it.
    message = error.message.replace("\nUnknown location", "").rstrip()
    error.message = "\n".join(filter(None, (message, hint and f"  Hint: {hint}", frames)))
    error.loc = _shortened(error.loc)


def _shortened(place, most: int = 8):
    """The chain of calls that led to a place, without unknown ones and without the middle of an endless recursion."""
    chain, unknown = [], place
    while place is not None:
        if not place.is_unknown():
            chain.append(place)
        place = place.call_site
    if not chain:
        return unknown
    if len(chain) > most:
        chain = chain[: most // 2] + chain[-most // 2 :]
    called_from = None
    for place in reversed(chain):
        called_from = place.with_call_site(called_from)
    return called_from


def name_of(kernel) -> str:
    """The name of the Python function under ``@ct.kernel``."""
    return _definition(kernel).function.__name__


def _place_of(function) -> str:
    """Where a kernel is defined, in the form in which Python shows a line."""
    code = function.__code__
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        lines, first = [], code.co_firstlineno
    index = next((i for i, line in enumerate(lines) if line.lstrip().startswith("def ")), None)
    source = f"\n    {lines[index].strip()}" if index is not None else ""
    return f'  File "{code.co_filename}", line {first + (index or 0)}, in {function.__name__}{source}'


def _described(value) -> str:
    text = repr(value)
    return f"{text if len(text) <= 40 else '...'} of type {type(value).__qualname__}"
