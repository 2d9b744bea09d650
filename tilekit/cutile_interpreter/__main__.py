"""``python -m tilekit.cutile_interpreter``: run a program with ``ct.launch`` interpreted, or list what is supported."""

import argparse
import contextlib
import importlib.util
import os
import pathlib
import runpy
import sys


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tilekit.cutile_interpreter",
        description="Run a Python program whose cuda.tile kernels are interpreted on the CPU.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("script", nargs="?", help="a Python file")
    what.add_argument("-m", dest="module", metavar="MODULE", help="a module, as for python -m: -m pytest tests/")
    what.add_argument(
        "--support", nargs="?", const="", metavar="FILE",
        help="list every name of cuda.tile and what becomes of it; with a Markdown file, renew the table in it",
    )  # fmt: skip
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own arguments")
    # What follows -m MODULE belongs to the program, a word that looks like a script included.
    arguments = sys.argv[1:] if arguments is None else arguments
    given = parser.parse_args(arguments if not arguments or arguments[0] != "-m" else arguments[:2])
    if arguments[:1] == ["-m"]:
        given.arguments = arguments[2:]
    if given.support is not None:
        from tilekit.cutile_interpreter import support

        if given.support:
            document = pathlib.Path(given.support)
            document.write_text(support.in_document(document.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            print(support.as_text())
        return 0
    if given.script and not os.path.exists(given.script):
        parser.error(f"there is no file {given.script}")
    run(given.script, given.module, given.arguments)
    return 0


def run(script: str | None, module: str | None, arguments: list[str]) -> None:
    """Run a script, or a module by its name, as Python would, but on the CPU: kernels and torch's CUDA tensors."""
    from tilekit import cutile_interpreter

    cutile_interpreter.install_standin()
    on_cpu = contextlib.nullcontext
    if importlib.util.find_spec("torch"):
        from tilekit.cutile_interpreter.cuda_tensors import on_cpu
    sys.argv = [script or module, *arguments]
    # As for Python itself: the script's folder, or the current one for a module.
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)) if script else os.getcwd())
    with cutile_interpreter.interpreting(), on_cpu():
        if script:
            runpy.run_path(script, run_name="__main__")
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    sys.exit(main())
