"""Arrays in, tensors checked, arrays out: what every public kernel does before it asks for a backend."""

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _unchanged(result):
    return result


# One call instead of one for each device type; torch's own tracing uses it as well.
_autocast_is_on_somewhere = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def prepare(kernel: str, names: Sequence[str], policy: str, *arrays) -> tuple[Sequence[Tensor], Callable]:
    """The arrays as torch tensors of one dtype on one device, without a copy, and the function that answers in kind.

    Takes torch tensors, NumPy and CuPy arrays, and whatever has ``__dlpack__``; one kind a call. A producer on a GPU is
    told torch's current stream, so the kernel runs after the producer's work; the consumer is ordered after the kernel
    in the same way when the answer is handed back.

    `policy` is torch's name for what its own operator of this kind does under autocast: ``"lower_precision_fp"``
    (matmul, attention), ``"fp32"`` (softmax) or ``"promote"`` (elementwise).

    Raises ``TypeError`` for what is no array, for kinds that are mixed, and for dtypes that no kernel serves;
    ``ValueError`` for dtypes or devices that differ. The text names the argument.
    """
    first = arrays[0]
    if isinstance(first, Tensor) and not is_compiling():  # torch.compile cannot record is_neg
        dtype, device = first.dtype, first.device
        for array in arrays:  # a plain loop, because it runs at every call, and a generator costs half a microsecond
            if not isinstance(array, Tensor) or array.layout is not torch.strided or array.is_nested or array.is_neg():
                break
            if array is not first and (array.dtype is not dtype or array.device != device):
                break
        else:
            if dtype in DTYPES and not _autocast_is_on_somewhere():
                return arrays, _unchanged
    arrays, answer = tensors(kernel, names, *arrays)
    if answer is _unchanged:  # autocast is about torch's tensors; NumPy could not be answered in bfloat16
        arrays = autocast(policy, *arrays)
    check(kernel, names, *arrays)
    return arrays, answer


def tensors(kernel: str, names: Sequence[str], *arrays) -> tuple[Sequence[Tensor], Callable]:
    """The arrays as torch tensors, and the function that answers in kind."""
    if all(isinstance(array, Tensor) for array in arrays):
        for name, array in zip(names, arrays, strict=True):
            if array.is_nested:
                raise TypeError(f"{kernel}: {name} is a nested tensor; wanted a dense one (try .to_padded_tensor(0.0))")
        # A lazily negated view (the imaginary part of a conjugate) has other values than its memory.
        return tuple(array.resolve_neg() for array in arrays), _unchanged
    kinds = {}
    for name, array in zip(names, arrays, strict=True):
        if not (isinstance(array, Tensor) or hasattr(array, "__dlpack__")):
            raise TypeError(
                f"{kernel}: {name} must be a torch tensor, a NumPy or CuPy array, or an object with __dlpack__; "
                f"got {type(array).__name__}{_way_in(name, array)}"
            )
        kinds.setdefault(_namespace_name(array), name)
    if len(kinds) > 1:
        got = ", ".join(f"{name} is from {kind}" for kind, name in kinds.items())
        raise TypeError(f"{kernel}: all arrays of one call must be of one kind; {got}")
    answer = _answer_in_kind(kernel, arrays[0])
    return tuple(_imported(kernel, name, array) for name, array in zip(names, arrays, strict=True)), answer


def _way_in(name: str, array) -> str:
    if isinstance(array, (bool, int, float, list, tuple)):
        return f" (try torch.tensor({name}))"
    return f" (try numpy.asarray({name}))" if _namespace_name(array) == "numpy" else ""


def _namespace_name(array) -> str:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(array, numpy.ndarray):
        return "numpy"
    return type(array).__module__.partition(".")[0]


def _imported(kernel: str, name: str, array) -> Tensor:
    if type(array).__module__.startswith("numpy.ma"):
        raise TypeError(
            f"{kernel}: {name} is a masked array, and kernels know no mask (try {name}.filled(0) for the value that you mean)"
        )
    if any(stride < 0 for stride in getattr(array, "strides", None) or ()):
        array = array.copy(order="C")  # torch has no negative strides, so a[::-1] cannot be taken as it is
    with warnings.catch_warnings():
        # torch warns that it cannot keep a read-only array from being written; no kernel writes its inputs.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        try:
            if _namespace_name(array) == "numpy":
                return torch.from_numpy(array)
            return torch.from_dlpack(array)
        except (TypeError, RuntimeError, BufferError, ValueError) as error:
            dtype = getattr(array, "dtype", type(array).__name__)
            raise TypeError(f"{kernel}: {name} (dtype {dtype}) cannot be taken as a torch tensor: {error}") from error


def _answer_in_kind(kernel: str, like) -> Callable:
    kind = _namespace_name(like)
    if kind == "numpy":
        return _each(lambda tensor: tensor.numpy())
    namespace = like.__array_namespace__() if hasattr(like, "__array_namespace__") else sys.modules.get(kind)
    if not hasattr(namespace, "from_dlpack"):
        raise TypeError(
            f"{kernel}: an answer as {type(like).__name__} needs a from_dlpack function in {kind}, and there is "
            "none; pass torch.from_dlpack(array) to get a torch tensor back"
        )
    return _each(namespace.from_dlpack)


def _each(convert: Callable) -> Callable:
    def answer(result):
        return tuple(convert(part) for part in result) if isinstance(result, tuple) else convert(result)

    return answer


def check(kernel: str, names: Sequence[str], *arrays: Tensor) -> None:
    """One dtype that tilekit serves, one device, a dense layout; else ``TypeError`` or ``ValueError``."""
    first = arrays[0]
    dtype, device = first.dtype, first.device
    if dtype not in DTYPES:
        raise TypeError(f"{kernel}: {names[0]} has dtype {_short(dtype)}; wanted float16, bfloat16, float32 or float64")
    for name, array in zip(names, arrays, strict=True):
        if array.layout is not torch.strided:
            raise TypeError(f"{kernel}: {name} has layout {array.layout}; wanted a dense tensor (try .to_dense())")
        if array.dtype is not dtype:
            raise ValueError(
                f"{kernel}: all arrays must have one dtype; {names[0]} is {_short(dtype)}, {name} is "
                f"{_short(array.dtype)} (try {name}.to({names[0]}.dtype))"
            )
        if array.device != device:
            raise ValueError(
                f"{kernel}: all arrays must be on one device; {names[0]} is on {device}, {name} is on {array.device} "
                f"(try {name}.to({names[0]}.device))"
            )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def shape_of(tensor: Tensor) -> str:
    """A shape as error messages print it: ``(2, 3)``."""
    return str(tuple(tensor.shape))


def autocast(policy: str, *arrays: Tensor) -> tuple[Tensor, ...]:
    """The arrays as torch's own operator of this kind would see them under ``torch.autocast``.

    `policy` is torch's name for what it does: ``"lower_precision_fp"`` (matmul, attention), ``"fp32"``
    (softmax; on a CPU torch leaves it alone) or ``"promote"`` (elementwise). Outside autocast the arrays come back as
    they are.

    Source: "Automatic Mixed Precision package", torch's documentation, "Autocast Op Reference".
    """
    kind = arrays[0].device.type
    if not autocast_is_on(kind):
        return arrays
    if policy == "lower_precision_fp":
        dtype = torch.get_autocast_dtype(kind)
    elif policy == "fp32":
        if kind == "cpu":
            return arrays
        dtype = torch.float32
    else:
        # In torch a 0-d array has no say beside one with dimensions, of which the first has as many as any.
        dtype = reduce(torch.promote_types, (array.dtype for array in arrays if array.dim() or not arrays[0].dim()))
    # torch's casts leave float64 alone, and every policy integers.
    stays = () if policy == "promote" else (torch.float64,)
    return tuple(
        array.to(dtype) if array.is_floating_point() and array.dtype not in stays else array for array in arrays
    )


def autocast_is_on(device_type: str) -> bool:
    """Whether the caller is under ``torch.autocast`` for tensors of that device; never raises."""
    try:
        return torch.is_autocast_enabled(device_type)
    except RuntimeError:  # "meta" and others know no autocast
        return False


# Of the ways to ask, the one that torch.compile can trace.
_transforms_are_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


def in_transform() -> bool:
    """Whether the call is inside ``torch.func.vmap`` and its like, or forward-mode differentiation."""
    return _transforms_are_active() or getattr(forward_ad, "_current_level", -1) >= 0


def wanted_besides(arrays: Sequence[Tensor]) -> str:
    """What is wanted besides the values of the result.

    ``"a transform"`` inside ``torch.func.vmap`` and its like, in forward-mode differentiation, and for subclasses that
    answer torch's operators themselves (``DTensor``): the values need not lie in memory for a kernel to read.
    ``"a trace"`` for fake tensors, and where a mode or ``torch.jit.trace`` records which operators are called. Else
    ``"gradients"`` where an array requires them, or ``""``.
    """
    if in_transform():
        return "a transform"
    if _dispatch_modes() or torch.jit.is_tracing():
        return "a trace"
    differentiates, wanted = torch.is_grad_enabled(), ""
    for array in arrays:
        if type(array) is not Tensor and type(array).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            return "a trace" if hasattr(array, "fake_mode") else "a transform"
        if differentiates and array.requires_grad:
            wanted = "gradients"
    return wanted


def tf32_allowed() -> bool:
    """Whether torch lets float32 matrix products on a GPU use TF32 (10 bits of mantissa instead of 23).

    torch has two ways of setting it, and reading one after the other was used for writing can raise; this
    reading never does. "high" and "medium" of ``torch.set_float32_matmul_precision`` both mean TF32.
    """
    settings = torch.backends.cuda.matmul
    try:
        return settings.fp32_precision == "tf32"
    except (AttributeError, AssertionError):  # torch before 2.9
        return settings.allow_tf32
