"""The page for cuTile authors: each of its programs runs, as the page says that it is run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.tile")


PAGE = (Path(__file__).parent.parent / "docs" / "cutile_interpreter.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def name_of(block):
    return re.search(r"^(?:@ct.kernel\ndef (\w+)|cutile_interpreter\.(\w+))", block, re.MULTILINE).group(1, 2)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: next(filter(None, name_of(block))))
def test_programs_run(block, tmp_path):
    tests = "def test_" in block
    file = tmp_path / ("test_page.py" if tests else "page.py")
    file.write_text(block)
    command = [sys.executable, *(["-m", "pytest", "-q", "-p", "no:cacheprovider"] if tests else []), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not tests or "1 passed" in done.stdout


def test_the_page_has_programs():
    assert len(BLOCKS) >= 5
