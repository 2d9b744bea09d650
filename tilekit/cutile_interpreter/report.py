"""What NVIDIA's compiler makes of a cuTile kernel: registers, shared memory, spills. It needs no GPU."""

import importlib.metadata
import io
import math
import re
import subprocess
from collections.abc import Sequence

from tilekit import environment
from tilekit.cubin import CompileReport, resources
from tilekit.cutile_interpreter import frontend


def compile_report(kernel, args: Sequence, arch: str = "sm_90", *, grid: Sequence[int] | None = None) -> CompileReport:
    """Compile `kernel` as a launch with these arguments would on a GPU of architecture `arch`.

    Args:
        kernel: a function decorated with ``@ct.kernel``.
        args: as for ``ct.launch``; only their types, shapes and strides count, so torch's "meta" tensors will do.
        arch: the architecture, by the compiler's name.
        grid: the launch's grid, for the number of blocks in the report.

    Returns:
        A :class:`CompileReport`, which prints as a short table.

    Raises:
        RuntimeError: no compiler is installed, it is not whole, or cuda-tile is of a version that is not known.
        ValueError: the compiler does not know `arch`; the message lists those that it knows.
        cuda.tile.TileError, TypeError, OverflowError: as :func:`tilekit.cutile_interpreter.frontend.check`, and what
            the compiler itself refuses. Tiles far too large keep it busy for minutes: see ``ct.compiler_timeout``.

    >>> import numpy as np
    >>> import cuda.tile as ct
    >>> @ct.kernel
    ... def double(x):
    ...     ct.store(x, ct.bid(0), ct.load(x, ct.bid(0), 256) * 2)
    >>> report = compile_report(double, (np.ones(4096, np.float32),), "sm_80")
    >>> report.spill_bytes
    0
    >>> report.registers <= 255
    True
    """
    version = _compiler()
    frontend.check(kernel, args)
    from cuda.tile import TileCompilerExecutionError, TileCompilerTimeoutError, TileError
    from cuda.tile.compilation import export_kernel

    if not (isinstance(arch, str) and re.fullmatch(r"sm_\d+", arch)):
        raise _unknown(arch)
    cubin, problem = io.BytesIO(), None
    try:
        export_kernel(kernel, [frontend.signature(kernel, args)], cubin, gpu_code=arch, output_format="cubin")
    except (TileCompilerExecutionError, TileCompilerTimeoutError) as error:
        problem = _unknown(arch) if "Cannot find option named" in error.message else _readable(error)
    except TileError as error:
        problem = frontend.for_learners(error)
    if problem is not None:
        raise problem
    blocks = None if grid is None else math.prod(grid)
    return CompileReport(
        kernel=frontend.name_of(kernel),
        arch=arch,
        compiler=version,
        blocks=blocks,
        cubin=cubin.getvalue(),
        **resources(cubin),
    )


def _compiler() -> str:
    """The version of the compiler; it must be there and whole."""
    try:
        importlib.metadata.version("cuda-tile")
    except importlib.metadata.PackageNotFoundError:
        raise RuntimeError(
            f"The package cuda-tile is not installed. To install it: {environment.INSTALL_CUTILE}"
        ) from None
    if not frontend.available():
        raise RuntimeError(f"The package cuda-tile does not import here. To install it: {environment.INSTALL_CUTILE}")
    version, problem = environment.tileiras()
    if problem:
        raise RuntimeError(f"cuTile's compiler, tileiras, is not whole: {problem}. {environment.INSTALL_CUTILE}")
    if not version:
        raise RuntimeError(
            f"cuTile's compiler, tileiras, is not installed. To install it: {environment.INSTALL_CUTILE}"
        )
    return version


def _unknown(arch: str) -> ValueError:
    known = ", ".join(architectures()) or "those in the output of tileiras --help"
    return ValueError(f"tileiras does not compile for arch={arch!r}. It compiles for {known}.")


def architectures() -> tuple[str, ...]:
    """The architectures that the installed tileiras compiles for, as it says itself.

    >>> "sm_90" in architectures()
    True
    """
    try:
        from cuda.tile._compile import _find_compiler_bin

        printed = subprocess.run([_find_compiler_bin().path, "--help"], capture_output=True, text=True, timeout=60)
    except (ImportError, AttributeError, OSError, subprocess.SubprocessError):
        return ()
    return tuple(re.findall(r"^\s*=(sm_\d+)\b", printed.stdout, re.MULTILINE))


def _readable(error):
    """The compiler's error; str() of one that names a line is itself an error in cuda-tile 1.7."""
    place = error.loc
    if not place.is_unknown():
        error.message += f'\n  File "{place.filename}", line {place.line}'
        error.loc = type(place).unknown()
    if "must be tile of" in error.message:
        error.message += (
            "\n  Hint: the compiler has no such operation for this dtype: cast the tile, as in .astype(ct.float32)."
        )
    else:
        error.message += "\n  Hint: what passes the type check and fails here is mostly too large: try smaller tiles."
    error.__suppress_context__ = True
    return error.with_traceback(None)
