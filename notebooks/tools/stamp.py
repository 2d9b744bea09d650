"""Write the repository's owner everywhere it stands: python notebooks/tools/stamp.py NAME

pyproject.toml is the one place that says who it is; badges, bootstrap cells and the README follow.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
URL = re.compile(r"(github\.com/|colab\.research\.google\.com/github/)([A-Za-z0-9-]+)(?=/tilekit)")


def files(root: Path = ROOT) -> list[Path]:
    return [
        root / "pyproject.toml",
        root / "README.md",
        *sorted((root / "docs").glob("*.md")),
        root / "notebooks/tools/bootstrap.py",
        *sorted((root / "notebooks").glob("*.ipynb")),
    ]


def owners(root: Path = ROOT) -> dict[str, set[str]]:
    """The owners that each file names."""
    return {path.name: {match[2] for match in URL.finditer(path.read_text(encoding="utf-8"))} for path in files(root)}


def stamp(owner: str, root: Path = ROOT) -> int:
    """Write `owner` into every file; returns how many changed."""
    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})", owner):
        raise ValueError(f"an owner's name has letters, digits and hyphens, at most 39; got {owner!r}")
    changed = 0
    for path in files(root):
        text = path.read_text(encoding="utf-8")
        new = URL.sub(lambda match: match[1] + owner, text)
        if new != text:
            path.write_text(new, encoding="utf-8")
            changed += 1
    return changed


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make stamp OWNER=name")
    try:
        print(f"{stamp(sys.argv[1])} files changed")
    except ValueError as error:
        sys.exit(str(error))
