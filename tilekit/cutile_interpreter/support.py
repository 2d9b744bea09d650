"""What of ``cuda.tile`` the interpreter does: every public name, and every method of the objects that kernels meet."""

import inspect
import types
from collections import Counter
from dataclasses import dataclass
from enum import EnumMeta

from tilekit.cutile_interpreter import api, dtypes
from tilekit.cutile_interpreter.namespace import FUNCTIONS, namespace

RUNS, ACCEPTED, REFUSED = "runs", "accepted", "refused"

# Checked as the documentation says, and without an effect on a CPU.
_ACCEPTED = {
    "ByTarget": "a hint for the compiler",
    "compiler_timeout": "nothing is compiled when a kernel is interpreted",
    "grid_dependency_control_wait": "a launch ends before the next begins",
    "grid_dependency_control_launch_dependents": "a launch ends before the next begins",
    "kernel.replace_hints": "hints for the compiler",
    "TileCompilerExecutionError": "can be caught; only NVIDIA's compiler raises it",
    "TileCompilerTimeoutError": "can be caught; only NVIDIA's compiler raises it",
    "TileInternalError": "can be caught; only NVIDIA's compiler raises it",
}
_REFUSED = {
    "tune": "it times kernels on a GPU; what an interpreter takes says nothing about that",
    "compilation": "it makes code for a GPU; NVIDIA's package does so without one, where there is a wheel",
}
_NOTES = {
    "assume_divisible_by": "checked while the kernel runs",
    "kernel": "its options are hints for the compiler: checked, and without effect",
    "launch": "in `interpreting()`, and always in the stand-in",
    "load": "`latency` and `allow_tma` are hints: checked, and without effect",
    "store": "`latency` and `allow_tma` are hints: checked, and without effect",
    "gather": "`latency` is a hint: checked, and without effect",
    "scatter": "`latency` is a hint: checked, and without effect",
    "mma": "`use_fast_acc` is a hint: checked, and without effect",
    "Array.foreign_pointer": "for `Array.from_foreign`; there is no foreign code to pass it to",
}
_UNKNOWN = "newer than the cuda-tile that this version of tilekit knows"


@dataclass(frozen=True)
class Entry:
    """One name, and what becomes of it.

    Attributes:
        name: ``"load"`` for ``ct.load``; ``"Tile.reshape"`` for a method or property.
        kind: function, dtype, class, enumeration, exception, annotation, module, method or property.
        status: ``"runs"``; ``"accepted"`` where it is checked and has no effect on a CPU; ``"refused"`` with an error.
        note: the reason, or what is to be known about it.
    """

    name: str
    kind: str
    status: str
    note: str = ""


def classes() -> dict[str, tuple[type, type]]:
    """The classes whose methods kernels call, by name: NVIDIA's and the interpreter's."""
    theirs = {name: getattr(api.tile, name) for name in ("Array", "Tile", "TiledView")}
    # Without a public name, but what Array.get_raw_memory returns.
    raw = inspect.getmodule(theirs["Array"])
    theirs["RawArrayMemory"] = getattr(raw, "RawArrayMemory", None)
    return {name: (cls, getattr(namespace, name)) for name, cls in theirs.items() if cls is not None}


def table() -> tuple[Entry, ...]:
    """The whole of it: first the names in ``cuda.tile.__all__``, then methods and properties, each sorted by name."""
    names = [_entry(name, _kind(name), _implemented(name)) for name in sorted(api.tile.__all__, key=str.lower)]
    methods = [
        _entry(f"{name}.{member}", "property" if isinstance(value, property) else "method", hasattr(ours, member))
        for name, (theirs, ours) in classes().items()
        for member, value in sorted(vars(theirs).items())
        if _is_public(member, value)
    ]
    return (*names, *methods, _entry("kernel.replace_hints", "method", hasattr(api.kernel, "replace_hints")))


def _is_public(name: str, value) -> bool:
    if name.startswith("__"):
        return isinstance(value, types.FunctionType)  # operators
    return not name.startswith("_") and (callable(value) or isinstance(value, property | staticmethod | classmethod))


def _entry(name: str, kind: str, implemented: bool) -> Entry:
    if name in _REFUSED:
        return Entry(name, kind, REFUSED, _REFUSED[name])
    if not implemented:
        return Entry(name, kind, REFUSED, _UNKNOWN)
    if name in _ACCEPTED:
        return Entry(name, kind, ACCEPTED, _ACCEPTED[name])
    return Entry(name, kind, RUNS, _NOTES.get(name, ""))


def _kind(name: str) -> str:
    value = getattr(api.tile, name)
    if isinstance(value, types.ModuleType):
        return "module"
    if isinstance(value, api.DType):
        return "dtype"
    if isinstance(value, EnumMeta):
        return "enumeration"
    if isinstance(value, type):
        return "exception" if issubclass(value, Exception) else "class"
    return "function" if callable(value) and inspect.isroutine(value) else "annotation"


# The user's own objects, which the interpreter reads as they are.
_READ = frozenset(
    "ArrayAnnotation ByTarget Constant ConstantAnnotation DType IndexedWithInt64 ListAnnotation MemoryOrder MemoryScope "
    "PaddingMode RoundingMode Scalar ScalarInt64 StaticException TileCompilerExecutionError TileCompilerTimeoutError "
    "TileError TileInternalError TileRecursionError TileStaticAssertionError TileStaticEvalError TileSyntaxError "
    "TileTypeError TileUnsupportedFeatureError TileValueError compiler_timeout function kernel launch".split()
)


def _implemented(name: str) -> bool:
    value = getattr(api.tile, name)
    if isinstance(value, api.DType):
        return value in dtypes.FORMATS
    if name in FUNCTIONS or name in classes():
        return getattr(namespace, name) is not value
    return name in _READ


def counts(entries=None) -> Counter:
    """How many names run, are accepted, are refused."""
    return Counter(entry.status for entry in (table() if entries is None else entries))


def as_markdown() -> str:
    """The table for the documentation: what runs by kind, and each name that does not simply run."""
    entries = table()
    total, found = len(entries), counts(entries)
    share = 100 * (total - found[REFUSED]) / total
    lines = [
        f"Of {total} names and methods of cuda-tile {api.tile.__version__}, {found[RUNS]} run, {found[ACCEPTED]} are "
        f"accepted without effect, {found[REFUSED]} are refused ({share:.1f} % supported).",
        "",
        "| | runs |",
        "|---|---|",
    ]
    for title, members in _groups(entries):
        lines.append(f"| {title} | {' '.join(f'`{m}`' for m in members)} |")
    lines += ["", "| name | | note |", "|---|---|---|"]
    lines += [f"| `{e.name}` | {e.status} | {e.note} |" for e in entries if e.note or e.status != RUNS]
    return "\n".join(lines) + "\n"


BEGIN, END = "<!-- support table: made by python -m tilekit.cutile_interpreter --support FILE -->", "<!-- its end -->"


def in_document(text: str) -> str:
    """A Markdown document with the table of today between its two markers.

    Raises:
        ValueError: the markers are not there.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no support table: it needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{as_markdown()}\n{END}{after}"


_TITLES = {
    "function": "functions", "dtype": "dtypes", "class": "classes", "enumeration": "enumerations",
    "exception": "exceptions", "annotation": "annotations", "module": "modules",
}  # fmt: skip


def _groups(entries):
    """What runs, grouped for reading: names by kind, methods by class."""
    grouped = {}
    for entry in entries:
        if entry.status == RUNS:
            owner, _, member = entry.name.rpartition(".")
            grouped.setdefault(f"`{owner}`" if owner else _TITLES[entry.kind], []).append(member)
    return grouped.items()


def as_text() -> str:
    """The table for a terminal: a line for each name."""
    entries = table()
    width = max(len(e.name) for e in entries)
    lines = [f"{e.name:<{width}}  {e.kind:<11}  {e.status:<8}  {e.note}".rstrip() for e in entries]
    found = counts(entries)
    lines.append("")
    lines.append(
        ", ".join(f"{found[s]} {w}" for s, w in ((RUNS, "run"), (ACCEPTED, "accepted"), (REFUSED, "refused")))
        + f"; cuda-tile {api.tile.__version__}"
    )
    return "\n".join(lines)
