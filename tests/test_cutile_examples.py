"""Every example in cuda.tile's own docstrings, interpreted: it must print what the docstring says it prints."""

import contextlib
import inspect
import io
import re
import textwrap

import cuda.tile as ct
import pytest

from tilekit import cutile_interpreter
from tilekit.cutile_interpreter import cuda_tensors

DIRECTIVE = re.compile(r"^( *)\.\. (testcode|testoutput)::.*\n((?:\1 +\S.*\n|[ ]*\n)*)", re.MULTILINE)

# The docstrings call them by the names of cuda.tile's own modules.
STATIC = {"StaticAssertionError": ct.TileStaticAssertionError, "StaticException": ct.StaticException}


def documented():
    """Everything of cuda.tile's with a docstring of its own, by name."""
    for name in sorted(ct.__all__):
        value = getattr(ct, name)
        yield name, value
        if isinstance(value, type) and value.__module__.startswith("cuda.tile"):
            for member, of_class in sorted(vars(value).items()):
                if not member.startswith("__"):
                    yield f"{name}.{member}", getattr(of_class, "__func__", of_class)


def examples():
    """One parameter for each ``testcode``: its template, its code, and what it prints, where the docstring says so."""
    found, seen = [], set()
    for name, value in documented():
        text = inspect.getdoc(value) or ""
        if text in seen or (type(value).__doc__ == value.__doc__ and not isinstance(value, type)):
            continue
        seen.add(text)
        for match in DIRECTIVE.finditer(text + "\n"):
            body = textwrap.dedent(match[3])
            options = dict(re.findall(r"^:(\w+): *(.*)$", body, re.MULTILINE))
            body = re.sub(r"^:\w+:.*\n", "", body, flags=re.MULTILINE).strip("\n")
            if match[2] == "testcode":
                found.append([name, options.get("template"), body, None])
            else:
                found[-1][3] = body
    return [pytest.param(*e, id=f"{e[0]}-{sum(f[0] == e[0] for f in found[:i])}") for i, e in enumerate(found)]


def program(template: str | None, code: str) -> str:
    """The example as a whole program. Some are a kernel's body only."""
    start = "import torch\nimport cuda.tile as ct\nstream = torch.cuda.current_stream()\n"
    if template == "kernel_wrapper.py":
        return (
            f"{start}@ct.kernel\ndef kernel():\n{textwrap.indent(code, '    ')}\nct.launch(stream, (1,), kernel, ())\n"
        )
    return start + code + "\n"


EXAMPLES = examples()


@pytest.mark.parametrize(("name", "template", "code", "wanted"), EXAMPLES)
def test_an_example_prints_what_its_docstring_says(name, template, code, wanted, tmp_path):
    # A file, because the interpreter and the compiler read a kernel's source.
    script = tmp_path / "example.py"
    script.write_text(program(template, code), encoding="utf-8")
    printed, raised = io.StringIO(), None
    with contextlib.redirect_stdout(printed), cutile_interpreter.interpreting(), cuda_tensors.on_cpu():
        try:
            exec(compile(script.read_text(encoding="utf-8"), str(script), "exec"), {"__name__": "__main__"})
        except Exception as error:
            raised = error
    if wanted is not None and wanted.startswith("Traceback"):
        kind, _, message = wanted.splitlines()[-1].partition(": ")
        # Sphinx ignores the details of exceptions here; the message holds all the same, but for its dots.
        assert isinstance(raised, STATIC[kind])
        for part in message.split("..."):
            assert part in str(raised)
        return
    if raised is not None:
        raise raised
    if wanted is not None:
        assert [line.rstrip() for line in printed.getvalue().splitlines()] == wanted.splitlines()


def test_the_examples_are_found():
    assert len(EXAMPLES) >= 120
    assert sum(e.values[3] is not None for e in EXAMPLES) >= 90
