"""Execute the lessons on what this machine has: a line each, with its result and time, and progress while it works.

python notebooks/tools/run.py [WORD ...]      only the lessons whose names contain a word
"""

import re
import sys
import time
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import NoSuchKernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

FOLDER = Path(__file__).resolve().parent.parent
LOG_EVERY_S = 10
CELL_TIMEOUT_S = 300  # a full-size lesson on a slow GPU compiles many kernels


def lessons(words: list[str], folder: Path = FOLDER) -> list[Path]:
    """The notebooks, in reading order, whose names contain one of the words."""
    found = sorted(path for path in folder.glob("*.ipynb"))
    return [path for path in found if not words or any(word in path.stem for word in words)]


def execute(path: Path, timeout_s: float = CELL_TIMEOUT_S, progress=lambda done, total: None) -> str | None:
    """``None`` when every cell ran, else what happened in which cell. The file is left as it is."""
    notebook = nbformat.read(path, as_version=4)
    total = sum(cell.cell_type == "code" for cell in notebook.cells)
    done = 0
    current = ""

    def started(cell, cell_index):
        nonlocal current
        current = cell.source

    def finished(cell, cell_index, execute_reply):
        nonlocal done
        done += cell.cell_type == "code"
        progress(done, total)

    client = NotebookClient(
        notebook, timeout=timeout_s, resources={"metadata": {"path": str(path.parent)}},
        on_cell_execute=started, on_cell_executed=finished,
        extra_arguments=["--log-level=ERROR"],  # its warnings about sockets are no news of the lesson
    )  # fmt: skip
    try:
        client.execute()
    except CellExecutionError as error:
        return (
            f"a cell raised {error.ename}: {error.evalue}\n{_indented(current)}\n{_indented(_plain(error.traceback))}"
        )
    except CellTimeoutError:
        return f"a cell ran longer than {timeout_s:g} s and was stopped:\n{_indented(current)}"
    except DeadKernelError:
        return f"the kernel died while it ran this cell:\n{_indented(current)}"
    except NoSuchKernel as error:
        return f"its kernel is not installed ({error}); a lesson's is 'python3': python -m pip install ipykernel"
    except RuntimeError as error:  # what nbclient raises when the kernel never comes up
        return f"its kernel did not start: {error}"
    return None


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines()[-40:])


class Line:
    """A lesson's line: rewritten in place in a terminal, and in a log a sign of life now and then."""

    def __init__(self, name: str):
        self.name, self.start, self.said = name, time.monotonic(), time.monotonic()
        self.terminal = sys.stdout.isatty()
        self._print("starts" if self.terminal else "running ...")

    def progress(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self.terminal or now - self.said > LOG_EVERY_S:
            self.said = now
            self._print(f"cell {done}/{total}, {now - self.start:.0f} s")

    def close(self, result: str) -> None:
        self._print(f"{result:<7} {time.monotonic() - self.start:6.1f} s", last=True)

    def _print(self, text: str, last: bool = False) -> None:
        begin, end = ("\r", "" if not last else "\n") if self.terminal else ("", "\n")
        padding = 24 if self.terminal else 0  # overwrites what a longer text left
        print(f"{begin}  {self.name:<22} {text:<{padding}}", end=end, flush=True)


def main(words: list[str], folder: Path = FOLDER, timeout_s: float = CELL_TIMEOUT_S) -> int:
    paths = lessons(words, folder)
    if not paths:
        there = ", ".join(path.stem for path in lessons([], folder)) or "none"
        print(f"no lesson's name contains {' or '.join(words)!r}; in {folder.name} there are: {there}")
        return 2
    failures = []
    begin = time.monotonic()
    for path in paths:
        line = Line(path.stem)
        problem = execute(path, timeout_s, line.progress)
        line.close("failed" if problem else "ok")
        if problem:
            failures.append((path, problem))
    for path, problem in failures:
        print(f"\n{path.name}: {problem}")
    count = len(paths)
    print(f"\n{count - len(failures)} of {count} lessons ran to their end in {time.monotonic() - begin:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("\nstopped")
