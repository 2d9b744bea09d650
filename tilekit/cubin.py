"""What is in a cubin, the file that NVIDIA's compilers make: what a kernel takes of a GPU, and what it wants to be given."""

import dataclasses
import html
import io
import math
import struct

from tilekit.plans import Limits

THREADS_MAX = 1024  # a block, where the kernel says nothing
REGISTERS_MAX = 255  # a thread, CUDA programming guide, "Technical Specifications per Compute Capability"

# Attributes in the sections .nv.info of a cubin, by the numbers that cuobjdump -elf names.
_MAX_THREADS, _REQUIRED_THREADS, _STACK, _PARAMETER, _REGISTERS = 0x05, 0x10, 0x12, 0x17, 0x2F
_WITH_SIZE = 4  # the format of a record whose value follows its four bytes of header


@dataclasses.dataclass(frozen=True)
class CompileReport:
    """What one kernel became on one architecture. Sizes are in bytes.

    Attributes:
        kernel: the name of the Python function.
        arch: the architecture, such as ``"sm_90"``.
        compiler: the version of the compiler.
        compiler_name: ``"tileiras"``, or ``"NVRTC"`` for CUDA C++.
        threads: threads a block.
        registers: registers a thread, at most 255.
        shared_memory: static shared memory a block; what a launch of CUDA C++ asks for comes on top.
        spill_bytes: local memory a thread. A cuTile kernel has no arrays of its own there, so this is where registers
            are put that do not fit; each access then goes to the cache or to memory.
        code_bytes: machine instructions.
        blocks: blocks of the grid, if one was given.
        cubin: the compiled code, an ELF file.
    """

    kernel: str
    arch: str
    compiler: str
    threads: int
    registers: int
    shared_memory: int
    spill_bytes: int
    code_bytes: int
    blocks: int | None = None
    cubin: bytes = dataclasses.field(default=b"", repr=False)
    compiler_name: str = "tileiras"

    def _rows(self) -> list[tuple[str, str]]:
        try:
            available = f" of {_kib(Limits.of(self.arch).shared_memory)}"
        except ValueError:
            available = ""
        rows = [
            ("threads", f"{self.threads} a block"),
            ("registers", f"{self.registers} of {REGISTERS_MAX} a thread"),
            ("spilled registers", f"{self.spill_bytes} bytes a thread" if self.spill_bytes else "none"),
            ("shared memory", f"{_kib(self.shared_memory)}{available} a block"),
            ("code", _kib(self.code_bytes)),
        ]
        return rows if self.blocks is None else [("blocks", f"{self.blocks:,}"), *rows]

    def __str__(self):
        lines = [f"{self.kernel}, compiled for {self.arch} by {self.compiler_name} {self.compiler}"]
        return "\n".join(lines + [f"  {what:<18} {value}" for what, value in self._rows()])

    __repr__ = __str__

    def _repr_html_(self):
        cells = "<tr><th scope='row' style='text-align:left'>{}</th><td style='text-align:left'>{}</td></tr>"
        rows = "".join(cells.format(*map(html.escape, row)) for row in self._rows())
        title = f"<b>{html.escape(self.kernel)}</b>, compiled for {html.escape(self.arch)} by {self.compiler_name} {self.compiler}"
        return f"<table><caption style='text-align:left'>{title}</caption><tbody>{rows}</tbody></table>"


def _kib(size: int) -> str:
    return f"{size / 1024:.1f} KiB"


def of_cubin(cubin: bytes, kernel: str, arch: str, compiler_name: str, compiler: str) -> CompileReport:
    """The report on one kernel of a cubin that is there already."""
    found = resources(io.BytesIO(cubin), kernel)
    return CompileReport(kernel=kernel, arch=arch, compiler=compiler, compiler_name=compiler_name, cubin=cubin, **found)


def resources(cubin, symbol: str | None = None) -> dict[str, int]:
    """What the sections of a cubin say about a kernel in it; the only one, if `symbol` does not name it."""
    try:
        from elftools.elf.elffile import ELFFile
    except ImportError:
        raise RuntimeError("A compile report reads the compiled file with pyelftools: pip install pyelftools") from None
    sections = {section.name: section for section in ELFFile(cubin).iter_sections()}
    if symbol is None:
        (symbol,) = (name.removeprefix(".nv.info.") for name in sections if name.startswith(".nv.info."))
    index = next(i for i, s in enumerate(sections[".symtab"].iter_symbols()) if s.name == symbol)
    of_all = {
        (attribute, values[0]): values[1]
        for attribute, values in _records(sections[".nv.info"].data())
        if len(values) == 2
    }
    own = dict(_records(sections[f".nv.info.{symbol}"].data()))
    shared = sections.get(f".nv.shared.{symbol}")
    return {
        "threads": math.prod(own.get(_REQUIRED_THREADS) or own.get(_MAX_THREADS) or (THREADS_MAX,)),
        "registers": of_all[_REGISTERS, index],
        "spill_bytes": of_all[_STACK, index],
        "shared_memory": shared["sh_size"] if shared is not None else 0,
        "code_bytes": sections[f".text.{symbol}"]["sh_size"],
    }


def parameter_sizes(cubin: bytes, symbol: str) -> list[int]:
    """The sizes in bytes of a kernel's parameters; none where the cubin does not state them.

    Raises ``ValueError`` where it has no kernel of that name.
    """
    from elftools.elf.elffile import ELFFile

    sections = {section.name: section for section in ELFFile(io.BytesIO(cubin)).iter_sections()}
    if f".text.{symbol}" not in sections:
        there = ", ".join(name.removeprefix(".text.") for name in sections if name.startswith(".text.")) or "none"
        raise ValueError(f"what was compiled has no kernel {symbol!r}; it has: {there}")
    sizes = {}
    for attribute, words in _records(sections[f".nv.info.{symbol}"].data()):
        if attribute == _PARAMETER:  # index; ordinal and offset; then the size, from bit 18 on
            sizes[words[1] & 0xFFFF] = words[2] >> 18
    return [sizes[i] for i in range(len(sizes))]


def _records(data: bytes):
    """The records of a section .nv.info: an attribute, and its value as 32-bit words."""
    place = 0
    while place < len(data):
        kind, attribute, size = struct.unpack_from("<BBH", data, place)
        place += 4
        if kind == _WITH_SIZE:
            yield attribute, struct.unpack_from(f"<{size // 4}I", data, place)
            place += size
