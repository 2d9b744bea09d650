"""``python -m tilekit doctor``, as a user calls it."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tilekit
from tilekit import __main__ as command_line
from tilekit import environment, trial

ROOT = Path(tilekit.__file__).parent.parent


def doctor(*arguments, **variables):
    """In an environment that has next to nothing."""
    bare = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "tilekit", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=bare)


def test_the_table():
    done = doctor()
    assert done.returncode == 0, done.stderr
    first_words = [line.split()[0] for line in done.stdout.splitlines() if line[:1].isalpha()]
    assert first_words == ["device:", "best", "cutile", "triton", "cuda", "torch", "found"]
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_json():
    done = doctor("--json", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"facts", "device", "gpu", "backends", "best"}
    assert set(found["facts"]) == {field.name for field in dataclasses.fields(environment.Facts)}
    assert found["facts"]["python"] == list(sys.version_info[:2])
    assert found["device"] == "cpu" and found["best"] == "torch"
    for verdict in found["backends"].values():
        assert set(verdict) == {"usable", "mode", "reason", "fix"}


@pytest.mark.parametrize("device", ["cuda:77", "banana"])
def test_a_wrong_device_is_the_callers_mistake(device):
    done = doctor("--device", device)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "this machine has: cpu" in done.stderr or "'cuda:N'" in done.stderr


def test_it_looks_also_where_torch_does_not_import(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('broken')")
    done = doctor("--json", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 0, done.stderr
    assert "SystemExit: broken" in json.loads(done.stdout)["backends"]["torch"]["reason"]


def test_refresh_forgets_what_was_tried(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path))
    outcome = tmp_path / "trial-0.json"
    outcome.touch()
    assert command_line.main(["doctor", "--device", "cpu"]) == 0 and outcome.exists()
    assert command_line.main(["doctor", "--device", "cpu", "--refresh"]) == 0 and not outcome.exists()
    assert trial.cache_folder() == tmp_path
