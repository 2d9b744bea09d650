"""Execute the lessons on what this machine has: a line each, with its result and time, and progress while it works.

python notebooks/tools/run.py [WORD ...]      only the lessons whose names contain a word
"""

import sys
import time
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import NoSuchKernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

FOLDER = Path(__file__).resolve().parent.parent
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
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines()[-40:])


def main(words: list[str], folder: Path = FOLDER, timeout_s: float = CELL_TIMEOUT_S) -> int:
    paths = lessons(words, folder)
    if not paths:
        print(f"no lesson's name contains {' or '.join(words)!r}" if words else f"no lessons in {folder}")
        return 2
    terminal = sys.stdout.isatty()
    failures = []
    begin = time.monotonic()
    for path in paths:
        start = time.monotonic()

        def progress(done, total, path=path, start=start):
            if terminal:
                print(f"\r  {path.stem:<22} cell {done}/{total}, {time.monotonic() - start:.0f} s", end="", flush=True)

        if not terminal:
            print(f"  {path.stem:<22} running ...", flush=True)
        problem = execute(path, timeout_s, progress)
        word = "failed" if problem else "ok"
        print(
            f"{chr(13) if terminal else ''}  {path.stem:<22} {word:<7} {time.monotonic() - start:6.1f} s" + " " * 12,
            flush=True,
        )
        if problem:
            failures.append((path, problem))
    for path, problem in failures:
        print(f"\n{path.name}: {problem}")
    count = len(paths)
    print(f"\n{count - len(failures)} of {count} lessons ran to their end in {time.monotonic() - begin:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
