"""Shows the package's own source in a notebook: one kernel in several spellings, side by side.

The text is read from the files, so it is what runs, and reading it needs none of the backends' packages.
"""

import ast
import html
import re
import textwrap
from importlib import resources

from tilekit import kernels

_TITLES = {
    "cutile": "cuTile",
    "triton": "Triton",
    "torch": "torch",
    "cuda": "CUDA C++",
    "reference": "reference (float64)",
}
_TITLES |= {f"{name}_backward": f"{_TITLES[name]}, backward" for name in ("cutile", "triton", "cuda", "torch")}


def source(kernel: str, backend: str, function: str | None = None) -> str:
    """The source of one function of a kernel's file.

    Args:
        kernel: ``"vadd"``, ``"softmax"``, ...
        backend: ``"cutile"``, ``"triton"``, ``"cuda"`` (CUDA C++), ``"torch"``, or ``"reference"``;
            ``"triton_backward"`` and so on for the kernels of the backward pass.
        function: its name; by default the kernel: the first function of the file, in CUDA C++ the first kernel.

    Raises:
        ValueError: there is no such kernel, file or function; the text lists what there is.

    >>> print(source("vadd", "torch", "launch").splitlines()[0])
    def launch(a, b):
    """
    if kernel not in kernels.NAMES:
        raise ValueError(f"unknown kernel {kernel!r}; wanted one of {', '.join(map(repr, kernels.NAMES))}")
    if backend not in _TITLES:
        raise ValueError(f"unknown backend {backend!r}; wanted one of {', '.join(map(repr, _TITLES))}")
    suffix = "" if backend == "reference" or backend.endswith("_backward") else "_kernel"
    name = f"{backend}{suffix}.{'cu' if backend.startswith('cuda') else 'py'}"
    file = resources.files("tilekit").joinpath("kernels", kernel, name)
    if not file.is_file():
        raise ValueError(f"{kernel} is not written for backend {backend!r} yet")
    text = file.read_text(encoding="utf-8")
    if backend.startswith("cuda"):
        return _definition(
            text, name, kernel, function or re.search(r"__global__ void __launch_bounds__\([^)]*\) (\w+)\(", text)[1]
        )
    functions = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    if function is None:
        function = next(iter(functions))
    if function not in functions:
        raise ValueError(f"{name} of {kernel} has no function {function!r}; it has {', '.join(functions)}")
    node = functions[function]
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])


def _definition(text: str, name: str, kernel: str, function: str) -> str:
    """A function or struct of a C++ file: from the start of its statement to the brace that closes it."""
    found = re.search(rf"^[^\n/#]*\b{re.escape(function)}\b[^;{{]*\{{", text, re.MULTILINE)
    if not found:
        raise ValueError(f"{name} of {kernel} has no function {function!r}")
    # A template's or a kernel's own line may come before the name's.
    first, depth = found.start(), 0
    for position in range(found.end() - 1, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return textwrap.dedent(text[first : text.find("\n", position)])
    raise ValueError(f"{name} of {kernel}: {function!r} does not end")


class SideBySide:
    """Several sources as columns: highlighted HTML in a notebook, one after the other as text."""

    def __init__(self, columns: list[tuple[str, str]]):
        self.columns = columns

    def __repr__(self):
        return "\n\n".join(f"# {title}\n{text}" for title, text in self.columns)

    def _repr_html_(self):
        cells = "".join(
            f'<div style="flex: 1 1 28em; min-width: 0"><b>{html.escape(title)}</b>'
            f'<pre style="line-height: 1.35; font-size: 85%; font-family: monospace">{_lines(text, title)}</pre></div>'
            for title, text in self.columns
        )
        return f'<div style="display: flex; flex-wrap: wrap; gap: 1.5em; text-align: left">{cells}</div>'


def side_by_side(kernel: str, *backends: str, function: str | None = None) -> SideBySide:
    """One kernel's spellings beside each other, from the package's own files.

    >>> side_by_side("vadd", "cutile", "triton").columns[0][0]
    'cuTile'
    """
    return SideBySide([(_TITLES.get(b, b), source(kernel, b, function)) for b in backends or ("cutile", "triton")])


def _lines(text: str, title: str = "") -> str:
    """One element a line, so that a line too long for its column goes on below, further to the right."""
    made = []
    text = text.replace("  # fmt: skip", "")  # for the formatter of the package's source, and no reader
    for line, marked in zip(text.splitlines(), _highlighted(text, title).splitlines(), strict=True):
        hang = len(line) - len(line.lstrip()) + 4
        style = f"padding-left: {hang}ch; text-indent: -{hang}ch; white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere"
        made.append(f'<div style="{style}">{marked or "&nbsp;"}</div>')
    return "".join(made)


def _highlighted(text: str, title: str = "") -> str:
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import CudaLexer, PythonLexer
    except ImportError:  # comes with IPython; outside a notebook plain text does as well
        return html.escape(text)
    return highlight(
        text, CudaLexer() if title == _TITLES["cuda"] else PythonLexer(), HtmlFormatter(nowrap=True, noclasses=True)
    )
