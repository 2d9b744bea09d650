"""The checkout's own files, for tests that build or install from a copy of them."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OF_THE_PACKAGE = ("tilekit", "pyproject.toml", "README.md", "LICENSE")


def tracked(*patterns: str) -> list[str]:
    """Names of the files that git tracks and that are there."""
    done = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("this is no git checkout, so there is no list of its files")
    return [name for name in done.stdout.splitlines() if (ROOT / name).exists()]


def copy_of_package(folder: Path) -> Path:
    """A clean copy, as the working tree has it, of what a wheel is built from."""
    for name in tracked(*OF_THE_PACKAGE):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    return folder
