"""The one form of a lesson's file, so that a change of a lesson is a change of its text.

    python notebooks/tools/canonical.py                  give every lesson that form
    python notebooks/tools/canonical.py --check          name those that do not have it
    python notebooks/tools/canonical.py --execute [WORD] execute lessons here, and keep the outputs that may be kept

Kept are small texts of cells marked NBVAL_CHECK_OUTPUT and pictures (PNG) that carry their text; not execution counts,
times, names of GPUs, paths, widgets or metadata of editors. The bootstrap cell is written from tools/bootstrap.py.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import nbformat

FOLDER = Path(__file__).resolve().parent.parent
BOOTSTRAP = Path(__file__).resolve().parent / "bootstrap.py"
BADGE = re.compile(
    r"\[!\[Open in Colab\]\(https://colab\.research\.google\.com/assets/colab-badge\.svg\)\]\(https://colab\.research\.google\.com/github/[^/]+/tilekit/blob/main/notebooks/(\S+?\.ipynb)\)"
)
METADATA = {
    "accelerator": "GPU",
    "colab": {"provenance": []},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
LONGEST_TEXT = 4000
LONGEST_CELL = 15


def canonical(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """The notebook in its form. Cell ids follow the position, so that they are stable and say where they are."""
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    if len(notebook.cells) > 1:
        notebook.cells[1].source = BOOTSTRAP.read_text(encoding="utf-8").rstrip()
    for position, cell in enumerate(notebook.cells):
        cell.id = f"{name[:2]}-{position:03d}"
        folded = {"cellView": "form"} if position == 1 else {}
        if "hidden" in cell.metadata.get("tags", []):
            folded = {"tags": ["hidden"], "jupyter": {"source_hidden": True}, "cellView": "form"}
        cell.metadata = nbformat.from_dict(folded)
        cell.source = cell.source.rstrip()
        if cell.cell_type == "code":
            cell.outputs = [kept for output in _merged(cell.outputs) if (kept := _kept(output, cell.source))]
            # nbval refuses outputs of a cell that was never run, so such cells all say 1.
            cell.execution_count = 1 if cell.outputs else None
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = 1
    return notebook


def _merged(outputs) -> list:
    """Neighbouring pieces of one stream as one: how a kernel cuts them depends on timing."""
    merged = []
    for output in outputs:
        if output.output_type == "stream" and merged and merged[-1].get("name") == output.name:
            merged[-1].text += output.text
        else:
            merged.append(output)
    return merged


def _kept(output, source: str):
    if output.output_type == "stream":
        if "NBVAL_CHECK_OUTPUT" in source and output.name == "stdout" and len(output.text) <= LONGEST_TEXT:
            return output
        return None
    if output.output_type not in ("display_data", "execute_result"):
        return None
    data = output.data
    if "image/png" in data:
        if not output.metadata.get("image/png", {}).get("alt"):
            return None
        keep = {"image/png": data["image/png"], "text/plain": data.get("text/plain", "")}
        return nbformat.v4.new_output(
            "display_data", keep, metadata={"image/png": {"alt": output.metadata["image/png"]["alt"]}}
        )
    if "NBVAL_CHECK_OUTPUT" in source and len(data.get("text/plain", "")) <= LONGEST_TEXT:
        # nbval compares execute_result with execute_result, so the kind stays.
        new = nbformat.v4.new_output(output.output_type, {"text/plain": data["text/plain"]})
        return new
    return None


def as_text(notebook: nbformat.NotebookNode) -> str:
    return json.dumps(notebook, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


def problems(path: Path) -> list[str]:
    """What of a lesson's form is missing, beyond the bytes."""
    notebook = nbformat.read(path, as_version=4)
    cells, found = notebook.cells, []
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    badge = BADGE.search(cells[0].source) if cells else None
    if not badge or badge[1] != path.name:
        found.append("the first cell must be the Colab badge of this notebook")
    if len(cells) < 3 or cells[1].cell_type != "code":
        found.append("the second cell must be the bootstrap")
    titles = [
        line
        for cell in cells
        if cell.cell_type == "markdown"
        for line in cell.source.splitlines()
        if line.startswith("# ")
    ]
    if len(titles) != 1:
        found.append(f"there must be one title ('# ...'), and there are {len(titles)}")
    if cells[-1].cell_type != "code" or "assert" not in cells[-1].source:
        found.append("the last cell must assert that the lesson completed")
    hidden = ["hidden" in cell.metadata.get("tags", []) for cell in cells if cell.cell_type == "code"]
    if sum(hidden) != sum(hidden[-1 - sum(hidden) : -1]):
        found.append("solutions are hidden cells at the end, just before the last: some viewers show them unfolded")
    for word in ("<details>", "Hint", "Solution"):
        if word not in text:
            found.append(f"the exercise's hidden parts lack {word!r}")
    if re.search(r"!\[\s*\]\(", text) or re.search(r"<img(?![^>]*alt=)", text):
        found.append("an image in the text has no alt text")
    for position, cell in enumerate(cells):
        if cell.cell_type != "code" or position == 1:
            continue
        lines = [line for line in cell.source.splitlines() if line.strip() and not line.startswith("#@title")]
        if len(lines) > LONGEST_CELL:
            found.append(f"cell {position} has {len(lines)} lines; {LONGEST_CELL} at most")
        if "hidden" in cell.metadata.get("tags", []) and not cell.source.startswith("#@title "):
            found.append(f"cell {position} is hidden and does not begin with '#@title ...', which Colab folds by")
        if "NBVAL_CHECK_OUTPUT" in cell.source and not cell.outputs:
            found.append(f"cell {position} is marked NBVAL_CHECK_OUTPUT and has no output")
        if (
            position >= 2
            and cells[position - 1].cell_type == "code"
            and cells[position - 2].cell_type == "code"
            and position > 4
        ):
            found.append(f"cell {position} is the third code cell in a row: say in words what it does")
    return found


def main(arguments: list[str], folder: Path = FOLDER) -> int:
    parser = argparse.ArgumentParser(prog="canonical.py", description="The one form of a lesson's file.")
    parser.add_argument("words", nargs="*", metavar="WORD", help="only the lessons whose name contains it")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="name what has another form, and change nothing")
    mode.add_argument("--execute", action="store_true", help="execute the lessons first")
    given = parser.parse_args(arguments)
    check, run, words = given.check, given.execute, given.words
    paths = [path for path in sorted(folder.glob("*.ipynb")) if not words or any(word in path.stem for word in words)]
    if not paths:
        parser.error(
            f"no lesson's name contains {' or '.join(words)!r}" if words else f"there are no lessons in {folder}"
        )
    wrong = 0
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        if run:
            from nbclient import NotebookClient

            notebook = canonical(notebook, path.stem)
            NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
        new = as_text(canonical(notebook, path.stem))
        if new != path.read_text(encoding="utf-8"):
            if check:
                wrong += 1
                print(f"{path.name}: its bytes are not in their form; make format mends that")
            else:
                path.write_text(new, encoding="utf-8")
                print(f"{path.name} rewritten")
        if check:
            found = problems(path)
            wrong += len(found)
            print("".join(f"{path.name}: {problem}\n" for problem in found), end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
