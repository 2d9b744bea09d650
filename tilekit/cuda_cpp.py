"""Compiles CUDA C++ with NVRTC, NVIDIA's compiler as a library, and launches it on torch's tensors.

Compiling needs no GPU: :func:`compile` makes the code for any architecture, :meth:`Kernel.report` says what became of
it. Launching loads that code through the driver, on the tensors' own device and torch's current stream there.

Both go through ``cuda.bindings``, NVIDIA's bindings of NVRTC and the driver, one function for each of theirs: a reader can
see every step, and it works without a driver, too. ``cuda.core``, which is built on them, is not needed for it.
"""

import functools
import hashlib
import os
import re
import struct
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from tilekit import trial
from tilekit.cubin import of_cubin, parameter_sizes
from tilekit.environment import INSTALL_CUDA

DEFAULT_OPTIONS = ("--std=c++17",)
STATIC_SHARED_MEMORY = 48 * 1024  # bytes a block may have without opting in, on every architecture
GRID_MAX, BLOCK_MAX, THREADS_MAX = (2**31 - 1, 65_535, 65_535), (1024, 1024, 64), 1024


class CompileError(RuntimeError):
    """NVRTC refused the source. The text is its log, with the line numbers of the source.

    `log` is the log alone.
    """

    def __init__(self, message: str, log: str):
        super().__init__(message)
        self.log = log


# --- compiling -----------------------------------------------------------------------------------------------------


def compile(
    source: str,
    arch: str,
    options: Sequence[str] = (),
    *,
    headers: Mapping[str, str] | None = None,
    include_dirs: Sequence[str] = (),
) -> bytes:
    """Compile CUDA C++ to the machine code of one architecture: a cubin, as bytes. Needs no GPU.

    Args:
        source: the text of a ``.cu`` file.
        arch: the architecture by the compiler's name, such as ``"sm_90"``.
        options: NVRTC's options, such as ``"-DBLOCK=128"``; they come after C++17 and the include paths.
        headers: texts that the source includes by these names.
        include_dirs: folders for ``#include``, before that of CUDA's own headers (``cuda_fp16.h``).

    Results are kept in memory, and on disk below ``TILEKIT_CACHE_DIR`` or the user's cache folder, by source, headers,
    options, architecture and NVRTC's version. Nothing is kept where the source includes files of your own, because what
    is in them may change.

    Raises:
        TypeError: an argument is of the wrong kind.
        CompileError: NVRTC refuses the source; the text has its log.
        ValueError: NVRTC does not know `arch`, or an option names another.
        RuntimeError: the packages for it are not installed.

    Source: NVIDIA, "NVRTC", https://docs.nvidia.com/cuda/nvrtc/.

    >>> compile("__global__ void nothing() {}", "sm_90")[:4]
    b'\\x7fELF'
    """
    if not isinstance(arch, str):
        raise TypeError(f"cuda_cpp.compile: arch is a name such as 'sm_90'; got {arch!r}")
    if isinstance(options, str) or isinstance(include_dirs, (str, os.PathLike)):
        raise TypeError("cuda_cpp.compile: options and include_dirs are sequences of strings, such as ('-DN=1',)")
    options = tuple(options)
    for option in options:
        if not isinstance(option, str):
            raise TypeError(f"cuda_cpp.compile: options are strings such as '-DN=1'; got {option!r}")
        if re.match(r"(-arch|--gpu-architecture)\b", option):
            raise ValueError(
                f"cuda_cpp.compile: the architecture is given by arch, here {arch!r}; got the option {option!r}"
            )
    headers = tuple(sorted((headers or {}).items()))
    arguments = source, arch, options, headers, tuple(map(os.fspath, include_dirs))
    return (_compiled if _is_whole(*arguments) else _compile)(*arguments)


def _is_whole(source, arch, options, headers, include_dirs) -> bool:
    """Whether nothing is read besides these arguments and CUDA's own headers, which come with NVRTC's version."""
    paths = ("-I", "--include-path", "-include", "--pre-include")
    if include_dirs or any(option.startswith(paths) for option in options):
        return False
    own, known = include_directory(), dict(headers)
    for text in (source, *known.values()):
        for name in re.findall(r"^[ \t]*#[ \t]*include[ \t]*([^\n]*)", text, re.MULTILINE):
            name = re.split(r"[<>\"]", name + ' " "')[1]
            if name not in known and not (own and os.path.exists(os.path.join(own, name))):
                return False
    return True


@functools.lru_cache(maxsize=1024)
def _compiled(source, arch, options, headers, include_dirs) -> bytes:
    """What :func:`_compile` returns, kept in memory and on disk."""
    content = (source, arch, options, headers, include_directory(), _version(), DEFAULT_OPTIONS)
    file = trial.cache_folder() / "cuda_cpp" / f"{hashlib.sha256(repr(content).encode()).hexdigest()[:40]}.cubin"
    code = _remembered(file)
    if not code:
        code = _compile(source, arch, options, headers, include_dirs)
        _remember(file, code)
    return code


def _compile(source, arch, options, headers, include_dirs) -> bytes:
    nvrtc = _nvrtc()
    if not re.fullmatch(r"sm_\d+[af]?", arch) or int(re.search(r"\d+", arch)[0]) not in _architectures():
        known = ", ".join(f"sm_{number}" for number in _architectures())
        raise ValueError(f"cuda_cpp.compile: NVRTC {_version()} does not compile for {arch!r}; it knows {known}")
    own = include_directory()
    folders = (*include_dirs, *([own] if own else []))
    wanted = [f"--gpu-architecture={arch}", *DEFAULT_OPTIONS, *(f"--include-path={f}" for f in folders), *options]
    names, texts = [name.encode() for name, _ in headers], [text.encode() for _, text in headers]
    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", len(names), texts, names))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(wanted), [option.encode() for option in wanted])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
            _checked(nvrtc.nvrtcGetProgramLog(program, log))
            log = log.rstrip(b"\0").decode(errors="replace").strip()
            raise CompileError(_explained(log, own), log)
        code = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))
        _checked(nvrtc.nvrtcGetCUBIN(program, code))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return code


def _explained(log: str, own: str | None) -> str:
    text = f"NVRTC does not compile this (the number in parentheses is the line):\n{log}"
    if missing := re.search(r'could not open source file "(cuda\w*\.h|mma\.h|vector_types\.h)"', log):
        where = f"only {own} was found" if own else "no folder with them was found"
        text += f"\n{missing[1]} is one of CUDA's own headers, and {where}. To install them: {INSTALL_CUDA}"
    return text


@functools.cache
def _nvrtc():
    """The library's Python bindings; a RuntimeError says what to install."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        raise RuntimeError(
            f"CUDA C++ is compiled by NVRTC, which is not usable here ({error}). To install it: {INSTALL_CUDA}"
        ) from error
    return nvrtc


@functools.cache
def _version() -> str:
    return "{}.{}".format(*_checked(_nvrtc().nvrtcVersion()))


@functools.cache
def _architectures() -> tuple[int, ...]:
    return tuple(_checked(_nvrtc().nvrtcGetSupportedArchs()))


def architectures() -> tuple[str, ...]:
    """The architectures that the installed NVRTC compiles for, such as ``("sm_75", "sm_80", ...)``."""
    return tuple(f"sm_{number}" for number in _architectures())


def _checked(answer):
    """What a function of the bindings returned besides its status; an error is raised."""
    status, *values = answer
    if int(status) != 0:
        raise RuntimeError(f"{type(status).__name__}: {status.name}")
    return values[0] if len(values) == 1 else tuple(values)


@functools.cache
def include_directory() -> str | None:
    """The folder with CUDA's own headers: that of the pip package nvidia-cuda-runtime, of conda, or of a toolkit."""
    try:
        from cuda import pathfinder

        found = pathfinder.find_nvidia_header_directory("cudart")
    except Exception:  # an old pathfinder, or a toolkit that it cannot read
        return None
    return found or None


def _remembered(file: Path) -> bytes | None:
    """What :func:`_remember` wrote, unless something else has been at the file."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    digest, cubin = content[:32], content[32:]
    return cubin if hashlib.sha256(cubin).digest() == digest else None


def _remember(file: Path, cubin: bytes) -> None:
    """Written beside it first and then moved, because another process may be reading."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            new = Path(folder) / file.name
            new.write_bytes(hashlib.sha256(cubin).digest() + cubin)
            os.replace(new, file)
    except OSError:
        pass  # a cache that cannot be written only costs time


# --- a kernel's parameters -----------------------------------------------------------------------------------------


class Parameter(NamedTuple):
    """One parameter of a kernel: its name, its type without const, and whether it is a pointer to that type."""

    name: str
    type: str
    is_pointer: bool


# C++ type -> how `struct` packs it, with the platform's own sizes, and NumPy's type of that width.
_SCALARS = {
    "bool": ("?", np.bool_),
    "char": ("b", np.int8), "signed char": ("b", np.int8), "unsigned char": ("B", np.uint8),
    "short": ("h", np.int16), "unsigned short": ("H", np.uint16),
    "int": ("i", np.int32), "unsigned int": ("I", np.uint32),
    "long": ("l", np.dtype("l").type), "unsigned long": ("L", np.dtype("L").type),
    "long long": ("q", np.int64), "unsigned long long": ("Q", np.uint64),
    "__half": ("e", np.float16), "float": ("f", np.float32), "double": ("d", np.float64),
}  # fmt: skip
_ALIASES = {
    "size_t": "unsigned long long", "half": "__half", "nv_bfloat16": "__nv_bfloat16",
    **{f"int{n}_t": name for n, name in ((8, "signed char"), (16, "short"), (32, "int"), (64, "long long"))},
    **{f"uint{n}_t": f"unsigned {name}" for n, name in ((8, "char"), (16, "short"), (32, "int"), (64, "long long"))},
}  # fmt: skip
_LONG = (torch.int64, torch.uint64) if struct.calcsize("l") == 8 else (torch.int32, torch.uint32)
# For unsigned numbers torch's signed type of that width is taken too: torch can do little with its unsigned ones.
_POINTEES = {
    "float": (torch.float32,), "double": (torch.float64,), "__half": (torch.float16,),
    "__nv_bfloat16": (torch.bfloat16,), "bool": (torch.bool,), "char": (torch.int8, torch.uint8),
    "signed char": (torch.int8,), "unsigned char": (torch.uint8,), "short": (torch.int16,), "int": (torch.int32,),
    "unsigned short": (torch.uint16, torch.int16), "unsigned int": (torch.uint32, torch.int32), "long": _LONG[:1],
    "unsigned long": _LONG[::-1], "long long": (torch.int64,), "unsigned long long": (torch.uint64, torch.int64),
}  # fmt: skip
_ADDRESSES = (torch.int64, torch.uint64)  # what a pointer to pointers points at
_INTEGERS = "bBhHiIlLqQ"


def parameters(source: str, name: str, options: Sequence[str] = ()) -> tuple[Parameter, ...]:
    """The parameters of the kernel `name`, read from its declaration in `source`.

    Types that `options` define (``-DTYPE=float``), and those of a ``typedef``, ``using`` or ``#define`` in the source, are
    resolved; ``#if`` is not evaluated, so a name with two meanings is left as it is. The kernel must be ``extern "C"``,
    so that it keeps its name.

    Raises ``ValueError`` where there is no such kernel, naming those that there are, and where its parameters are not
    the same in all its declarations.

    >>> parameters('extern "C" __global__ void f(const float* x, int n) {}', "f")
    (Parameter(name='x', type='float', is_pointer=True), Parameter(name='n', type='int', is_pointer=False))
    """
    text = _without_attributes(re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL))
    found = [(match[1], match.start(), match.end()) for match in re.finditer(r"\b__global__\b[\w\s]*?(\w+)\s*\(", text)]
    if name not in [n for n, _, _ in found]:
        there = ", ".join(dict.fromkeys(n for n, _, _ in found)) or "none"
        raise ValueError(
            f'the source has no kernel {name!r}; it has: {there} (a kernel is extern "C" __global__ void name(...))'
        )
    if not any(n == name and _keeps_its_name(text, start) for n, start, _ in found):
        raise ValueError(f'the kernel {name!r} must be extern "C", or the compiler changes its name')
    aliases = _aliases(text, options)
    declared = {}
    for _, _, end in (one for one in found if one[0] == name):
        parts = (" ".join(part.split()) for part in _split(text[end : _closing(text, end - 1)]))
        read = tuple(_parameter(part, aliases) for part in parts if part not in ("", "void"))
        declared[tuple(parameter[1:] for parameter in read)] = read  # the last one, a definition, has the names
    if len(declared) > 1:
        raise ValueError(
            f"the kernel {name!r} is declared with different parameters, and #if is not evaluated here; keep one "
            "declaration, with a type from an option (-DTYPE=float)"
        )
    return next(iter(declared.values()))


_PAIRS = {"(": ")", "{": "}", "<": ">"}


def _closing(text: str, start: int) -> int:
    """Where the bracket at `start` is closed; the text's end if it is not."""
    depth, opening = 0, text[start]
    for place in range(start, len(text)):
        depth += (text[place] == opening) - (text[place] == _PAIRS[opening])
        if depth == 0:
            return place
    return len(text)


def _without_attributes(text: str) -> str:
    """Without ``__launch_bounds__(...)`` and whatever else stands between a kernel's words."""
    while match := re.search(r"\b__(?:launch_bounds|cluster_dims|block_size|maxnreg|attribute)__\s*\(", text):
        text = f"{text[: match.start()]} {text[_closing(text, match.end() - 1) + 1 :]}"
    return text


def _keeps_its_name(text: str, place: int) -> bool:
    """Whether the declaration there is ``extern "C"``, by itself or by the block around it."""
    for match in re.finditer(r'extern\s+"C"\s*(\{?)', text[:place]):
        if match[1]:
            if _closing(text, match.end() - 1) > place:
                return True
        elif not re.search(r"[;{}]", text[match.end() : place]):
            return True
    return False


def _split(text: str) -> list[str]:
    """The parts between commas that are not in brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "(<{[") - (letter in ")>}]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _aliases(text: str, options: Sequence[str]) -> dict[str, str]:
    found = [(m[1], m[2]) for m in re.finditer(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\S.*)$", text, re.MULTILINE)]
    found += [(m[2], m[1]) for m in re.finditer(r"\btypedef\s+([^;{}()]+?)\s*\b(\w+)\s*;", text)]
    found += [(m[1], m[2]) for m in re.finditer(r"\busing\s+(\w+)\s*=\s*([^;{}()]+);", text)]
    meanings: dict[str, set[str]] = {}
    for name, meaning in found:
        meanings.setdefault(name, set()).add(" ".join(meaning.split()))
    aliases = _ALIASES | {name: next(iter(each)) for name, each in meanings.items() if len(each) == 1}
    for name in (name for name, each in meanings.items() if len(each) > 1):
        aliases.pop(name, None)
    for option in options:
        if match := re.fullmatch(r"(?:-D\s*|--define-macro[= ])(\w+)=(.*)", option):
            aliases[match[1]] = match[2].strip()
    return aliases


_QUALIFIERS = {"const", "volatile", "__restrict__", "__restrict", "__grid_constant__", "struct", "enum", "typename"}
_WORDS_OF_INTEGERS = {"unsigned", "signed", "char", "short", "int", "long"}


def _words(text: str) -> list[str]:
    """A declaration's words and signs, without qualifiers and namespaces."""
    words = re.findall(r"\w+|[^\w\s]", re.sub(r"\w+\s*::|::", "", text))
    return [word for word in words if word not in _QUALIFIERS]


def _parameter(text: str, aliases: Mapping[str, str]) -> Parameter:
    text, _, array = text.partition("=")[0].partition("[")
    words = _words(text)
    # The last word is the name, unless it is the only one, or a part of the type.
    has_name = len(words) > 1 and re.fullmatch(r"\w+", words[-1]) and words[-1] not in _WORDS_OF_INTEGERS
    name = words.pop() if has_name else ""
    for _ in range(8):  # an alias of an alias; the bound ends a circle
        if not any(word in aliases for word in words):
            break
        words = [other for word in words for other in (_words(aliases[word]) if word in aliases else [word])]
    pointers = words.count("*") + bool(array)  # an array as a parameter is a pointer
    words = [word for word in words if word != "*"]
    if words and set(words) <= _WORDS_OF_INTEGERS:
        # C++ takes these words in any order, and "int" may be left out.
        size = "char" if "char" in words else "short" if "short" in words else " ".join(["long"] * words.count("long"))
        sign = "unsigned " if "unsigned" in words else "signed " if "signed" in words and size == "char" else ""
        words = [sign + (size or "int")]
    return Parameter(name, " ".join(words) + "*" * (pointers - 1), pointers > 0)


def _as_pointer(kernel: str, parameter: Parameter, value) -> torch.Tensor:
    """The tensor that a pointer parameter points at."""
    if not isinstance(value, torch.Tensor):
        if not hasattr(value, "__dlpack__") or isinstance(value, np.generic):
            raise TypeError(
                f"{kernel}: parameter {parameter.name!r} is a pointer to {parameter.type}; wanted a tensor, got "
                f"{type(value).__name__}"
            )
        if any(stride < 0 for stride in getattr(value, "strides", None) or ()):  # torch would end the process
            raise TypeError(f"{kernel}: {parameter.name!r} is an array with negative strides; pass a copy of it")
        try:
            value = torch.from_dlpack(value)  # orders the producer's stream before torch's
        except (TypeError, RuntimeError, BufferError, ValueError) as error:
            raise TypeError(f"{kernel}: {parameter.name!r} cannot be taken as a torch tensor: {error}") from error
    if value.layout is not torch.strided or value.is_neg() or value.is_conj() or not torch._C._has_storage(value):
        raise TypeError(
            f"{kernel}: {parameter.name!r} is a tensor whose numbers are not those in its memory; wanted a dense one "
            "(try .to_dense(), .resolve_neg() or .resolve_conj())"
        )
    wanted = _ADDRESSES if parameter.type.endswith("*") else _POINTEES.get(parameter.type)
    if wanted is not None and value.dtype not in wanted:
        raise TypeError(
            f"{kernel}: parameter {parameter.name!r} points at {parameter.type}; wanted a tensor of "
            f"{' or '.join(map(str, wanted))}, got {value.dtype}"
        )
    return value


def _as_scalar(kernel: str, parameter: Parameter, code: str, scalar_type, value):
    """The number as `struct` takes it. A Python number becomes the parameter's type, a NumPy scalar must have it."""
    said = f"{kernel}: parameter {parameter.name!r} is {parameter.type or 'of no type that is known'}"
    if isinstance(value, np.generic):
        # np.float64 is a Python float too, so this question comes first.
        if value.dtype != np.dtype(scalar_type):
            raise TypeError(f"{said}; wanted {scalar_type.__name__} or a Python number, got {type(value).__name__}")
        return value.item()
    if type(value) is bool and code == "?":
        return value
    if type(value) is int and code in _INTEGERS:
        least, bits = (0 if code.isupper() else 1), 8 * struct.calcsize(code)
        if not -(2 ** (bits - 1)) * least <= value < 2 ** (bits - least):
            raise ValueError(f"{said}, which cannot hold {value}")
        return value
    if type(value) in (int, float) and code in "efd":
        try:
            # In the machine's own byte order, as without "<", a number that is too large becomes an infinity.
            struct.pack("<" + code, value)
        except (OverflowError, struct.error):
            raise ValueError(
                f"{said}, which cannot hold {value:.4g}"
                if type(value) is float
                else f"{said}, which cannot hold this integer"
            ) from None
        return value
    wanted = "a bool" if code == "?" else "an integer" if code in _INTEGERS else "a number"
    raise TypeError(f"{said}; wanted {wanted}, got {type(value).__name__}")


# --- launching -----------------------------------------------------------------------------------------------------


class Kernel:
    """One kernel of a CUDA C++ source, compiled for a device when it is first launched there.

    Args:
        source: the text of a ``.cu`` file.
        name: an ``extern "C" __global__`` function in it.
        options, headers, include_dirs: as for :func:`compile`.

    >>> twice = Kernel('extern "C" __global__ void twice(float* x, float by) { x[threadIdx.x] *= by; }', "twice")
    >>> [parameter.name for parameter in twice.parameters]
    ['x', 'by']
    """

    def __init__(self, source: str, name: str, options: Sequence[str] = (), *, headers=None, include_dirs=()):
        self.name = name
        self.parameters = parameters("\n".join([*(headers or {}).values(), source]), name, options)
        self._compile = functools.partial(
            compile, source, options=tuple(options), headers=headers, include_dirs=include_dirs
        )
        codes = []
        for parameter in self.parameters:
            scalar = ("P", None) if parameter.is_pointer else _SCALARS.get(parameter.type)
            codes.append(scalar or (None, None))
        self._codes = codes
        self._packing = threading.local()
        self._loaded: dict[int, tuple] = {}
        self._lock = threading.Lock()

    def __repr__(self):
        words = (f"{p.type}{'*' if p.is_pointer else ''} {p.name}" for p in self.parameters)
        return f"<CUDA C++ kernel {self.name}({', '.join(words)})>"

    def cubin(self, arch: str) -> bytes:
        """The machine code for an architecture; see :func:`compile`.

        Raises ``TypeError`` where the compiler's parameters have other sizes than those read from the source, which an
        ``#if`` or a template may bring about: arguments would be packed wrongly.
        """
        code = self._compile(arch=arch)
        compiled = parameter_sizes(code, self.name)
        if compiled and len(compiled) != len(self.parameters):
            raise TypeError(
                f"{self.name}: the number of parameters read from the source is {len(self.parameters)}, and the compiler's is "
                f"{len(compiled)}; write them without macros"
            )
        for parameter, (letter, _), size in zip(self.parameters, self._codes, compiled):
            if letter is not None and struct.calcsize(letter) != size:
                raise TypeError(
                    f"{self.name}: parameter {parameter.name!r} was read as {parameter.type}{'*' * parameter.is_pointer}, "
                    f"and the compiler made it {size} bytes; name its type with an option (-DTYPE=float), without #if"
                )
        return code

    def report(self, arch: str = "sm_90"):
        """What the compiler made of this kernel: registers, spills, shared memory. Needs no GPU.

        Returns a :class:`tilekit.cubin.CompileReport`.
        """
        return of_cubin(self.cubin(arch), self.name, arch, "NVRTC", _version())

    def pack(self, *args) -> tuple[list, list[torch.Tensor]]:
        """The arguments as `struct` packs them, and the tensors among them.

        Raises ``TypeError`` for a wrong number or type of arguments, and ``ValueError`` for an integer that does not
        fit; both name the parameter.
        """
        if len(args) != len(self.parameters):
            names = ", ".join(parameter.name for parameter in self.parameters)
            raise TypeError(f"{self.name} takes {len(self.parameters)} arguments ({names}); got {len(args)}")
        values, tensors = [], []
        for parameter, (code, scalar_type), value in zip(self.parameters, self._codes, args):
            if code == "P":
                tensor = _as_pointer(self.name, parameter, value)
                tensors.append(tensor)
                values.append(tensor.data_ptr())
            elif code is None:
                raise TypeError(
                    f"{self.name}: parameter {parameter.name!r} has the type {parameter.type!r}, whose size is not "
                    f"known; wanted one of {', '.join(_SCALARS)}, or a pointer"
                )
            else:
                values.append(_as_scalar(self.name, parameter, code, scalar_type, value))
        return values, tensors

    def launch(self, grid, block, *args, shared_memory: int = 0) -> None:
        """Queue the kernel on torch's current stream of the tensors' device.

        Args:
            grid: the number of blocks along x, y and z: an int or a tuple of one to three.
            block: the number of threads a block, likewise.
            args: one for each parameter: a CUDA tensor, or anything with ``__dlpack__`` such as a CuPy array, for a
                pointer; a NumPy scalar of the parameter's own type; or a Python number, which becomes that type.
            shared_memory: bytes of dynamic shared memory a block; above 48 KiB the kernel is opted in.

        A CuPy array is read after what CuPy has queued so far. What CuPy does afterwards is ordered after this kernel
        where CuPy's current stream is torch's, as both are by default.

        Raises:
            TypeError: a wrong number or type of arguments, before anything is launched.
            ValueError: tensors on the CPU or on several devices, or a grid or block that no device takes.
            CompileError: at the first launch, as :func:`compile`.
            RuntimeError: the driver refuses the launch.
        """
        grid, block = _three("grid", grid, GRID_MAX), _three("block", block, BLOCK_MAX)
        if block[0] * block[1] * block[2] > THREADS_MAX:
            raise ValueError(f"{self.name}: a block has at most {THREADS_MAX} threads; got {block}")
        if not isinstance(shared_memory, int) or shared_memory < 0:
            raise ValueError(f"{self.name}: shared_memory is a number of bytes; got {shared_memory!r}")
        values, tensors = self.pack(*args)
        device = self._device(tensors)
        self.launch_packed(device.index, grid, block, values, shared_memory)

    def _device(self, tensors) -> torch.device:
        if not tensors:
            if not torch.cuda.is_available():
                raise ValueError(f"{self.name}: torch has no CUDA device to launch on")
            return torch.device("cuda", torch.cuda.current_device())
        device = tensors[0].device
        if device.type != "cuda":
            raise ValueError(
                f"{self.name}: the tensors are on {device}, and CUDA C++ runs on a GPU; move them there: x.to('cuda')"
            )
        for tensor in tensors:
            if tensor.device != device:
                raise ValueError(f"{self.name}: all tensors must be on one device; got {device} and {tensor.device}")
        return device

    def launch_packed(self, device_index: int, grid, block, values, shared_memory: int) -> None:
        """:meth:`launch` for arguments that are known to be right: pointers as integers, three sizes each."""
        loaded = self._loaded.get(device_index) or self._load(device_index)
        driver, context, function, opted_in = loaded
        buffer, pack, pointers = self._buffer()
        pack(buffer, 0, *values)
        stream = driver.CUstream(_raw_stream(device_index))
        with _Current(driver, context):
            if shared_memory > opted_in[0]:
                self._opt_in(driver, function, opted_in, shared_memory)
            _driver_checked(
                driver,
                self.name,
                driver.cuLaunchKernel(function, *grid, *block, shared_memory, stream, pointers, 0),
            )

    def _buffer(self):
        """Room for this thread's arguments, and the array of pointers to each of them that the driver reads."""
        made = getattr(self._packing, "made", None)
        if made is None:
            layout = struct.Struct("@" + "".join(code for code, _ in self._codes))
            buffer = np.zeros(max(layout.size, 1), np.uint8)
            offsets = _offsets(code for code, _ in self._codes)
            pointers = np.array([buffer.ctypes.data + offset for offset in offsets] or [0], np.uint64)
            made = self._packing.made = (buffer, layout.pack_into, pointers.ctypes.data, pointers)
        return made[:3]

    def _load(self, device_index: int):
        """Compile for the device, and load the code into the context that torch uses there."""
        from cuda.bindings import driver

        with self._lock:
            if device_index not in self._loaded:
                major, minor = torch.cuda.get_device_capability(device_index)
                cubin = self.cubin(f"sm_{major}{minor}")
                torch.cuda.current_stream(device_index)  # torch initialises CUDA, if it has not yet
                _driver_checked(driver, "cuInit", driver.cuInit(0))
                # Both count the devices that CUDA_VISIBLE_DEVICES leaves.
                device = _driver_checked(driver, "cuDeviceGet", driver.cuDeviceGet(device_index))
                # torch works in each device's primary context.
                context = _driver_checked(driver, "cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(device))
                with _Current(driver, context):
                    module = _driver_checked(driver, "cuModuleLoadData", driver.cuModuleLoadData(cubin))
                    function = _driver_checked(
                        driver, "cuModuleGetFunction", driver.cuModuleGetFunction(module, self.name.encode())
                    )
                    # What the kernel has of static shared memory is taken from the 48 KiB.
                    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
                    static = _driver_checked(driver, self.name, driver.cuFuncGetAttribute(attribute, function))
                self._loaded[device_index] = (driver, context, function, [max(0, STATIC_SHARED_MEMORY - static)])
        return self._loaded[device_index]

    def _opt_in(self, driver, function, opted_in: list[int], shared_memory: int) -> None:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        with self._lock:
            if shared_memory <= opted_in[0]:  # another thread came first, and its limit must not shrink
                return
            (status,) = driver.cuFuncSetAttribute(function, attribute, shared_memory)
            if int(status):
                raise ValueError(
                    f"{self.name}: {shared_memory:,} bytes of shared memory are more than a block has here"
                )
            opted_in[0] = shared_memory


@functools.lru_cache(maxsize=1024)
def _kernel(source: str, name: str, options: tuple[str, ...], headers: tuple[tuple[str, str], ...]) -> Kernel:
    return Kernel(source, name, options, headers=dict(headers))


def kernel(source: str, name: str, options: Sequence[str] = (), *, headers: Mapping[str, str] | None = None) -> Kernel:
    """The :class:`Kernel` for these arguments; the same one at every call."""
    return _kernel(source, name, tuple(options), tuple(sorted((headers or {}).items())))


def _three(what: str, sizes, most) -> tuple[int, int, int]:
    sizes = sizes if isinstance(sizes, (tuple, list)) else (sizes,)
    sizes = tuple(int(size) if isinstance(size, np.integer) else size for size in sizes)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        raise TypeError(f"{what} must be an int or a tuple of one to three; got {sizes!r}")
    sizes = (*sizes, 1, 1)[:3]
    if not all(1 <= size <= limit for size, limit in zip(sizes, most)):
        raise ValueError(f"{what} must be between (1, 1, 1) and {most}; got {sizes}")
    return sizes


def _offsets(codes):
    """Where `struct` puts each value, with the platform's own alignment."""
    place = 0
    for code in codes:
        size = struct.calcsize(code)
        place = -(-place // size) * size
        yield place
        place += size


def _raw_stream(device_index: int) -> int:
    return torch.cuda.current_stream(device_index).cuda_stream


_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _raw_stream)  # a microsecond less than the object


class _Current:
    """Makes a context current while it lasts: a thread of autograd's, or another library, may have none or another."""

    def __init__(self, driver, context):
        self.driver, self.context, self.pushed = driver, context, False

    def __enter__(self):
        current = _driver_checked(self.driver, "cuCtxGetCurrent", self.driver.cuCtxGetCurrent())
        if int(current) != int(self.context):
            _driver_checked(self.driver, "cuCtxPushCurrent", self.driver.cuCtxPushCurrent(self.context))
            self.pushed = True

    def __exit__(self, *_):
        if self.pushed:
            self.driver.cuCtxPopCurrent()


def _driver_checked(driver, what: str, answer):
    status, *values = answer
    if int(status):
        words = driver.cuGetErrorString(status)[1]
        words = words.decode() if isinstance(words, bytes) else ""
        raise RuntimeError(f"{what}: the driver answers {status.name}{f' ({words})' if words else ''}")
    return values[0] if values else None
