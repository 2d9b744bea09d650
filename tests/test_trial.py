"""Trial runs: what each way of failing says, what is remembered and for how long, and that nothing can hold us."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tilekit
from tilekit import environment, trial
from tilekit.environment import Facts

FACTS = Facts(
    platform="linux",
    device="cuda:0",
    torch_version="2.13.0",
    torch_cuda="13.0",
    gpu_name="NVIDIA H100",
    compute_capability=(9, 0),
    driver_cuda=(13, 0),
    triton_version="3.7.1",
    cuda_tile_version="1.7.0",
    tileiras_version="13.4.92",
)
only_posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and process groups are POSIX")


@pytest.fixture
def child(monkeypatch, tmp_path):
    """Let this code run in place of the trial; the list has the backend of every run."""
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path / "cache"))
    runs = []

    def imitate(code):
        def command(backend, index):
            runs.append(backend)
            return [sys.executable, "-c", code]

        monkeypatch.setattr(trial, "_command", command)
        return runs

    return imitate


def at(monkeypatch, seconds):
    now = time.time()
    monkeypatch.setattr(trial.time, "time", lambda: now + seconds)


HOUR, DAY = 3600, 24 * 3600
FAILURES = {
    "an exception": ("raise ValueError('no\\n such thing')", "such thing", DAY),
    "a C compiler": ("import sys; sys.exit('a.c:1:10: fatal error: Python.h: No such file\\nCalledProcessError')",
                     "Python.h", DAY),
    "a silent exit": ("import sys; sys.exit(5)", "ended with status 5", DAY),
    "a crash": ("import os; os.abort()", "ended by SIGABRT", DAY),
    "memory": ("raise RuntimeError('CUDA error: out of memory')", "out of memory", HOUR),
    "a kill": ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL", HOUR),
    "a timeout": ("import time; time.sleep(60)", "did not finish within 1 seconds", HOUR),
}  # fmt: skip


@only_posix
@pytest.mark.parametrize("name", FAILURES)
def test_failure(child, monkeypatch, name):
    code, words, holds_s = FAILURES[name]
    runs = child(code)
    problem = trial.run("triton", 0, FACTS, timeout_s=1 if name == "a timeout" else 60)
    assert words in problem and "\n" not in problem
    at(monkeypatch, holds_s - 60)
    assert trial.run("triton", 0, FACTS) == problem
    assert len(runs) == 1, "a failure is believed for a while"
    at(monkeypatch, holds_s + 60)
    child("")
    assert trial.run("triton", 0, FACTS) is None


def test_success_is_remembered_for_good(child, monkeypatch):
    runs = child("")
    assert trial.run("triton", 0, FACTS) is None
    at(monkeypatch, 1000 * DAY)
    assert trial.run("triton", 0, FACTS) is None
    assert runs == ["triton"]


@pytest.mark.parametrize(
    "change",
    [
        {"torch_version": "2.14.0"},
        {"triton_version": "3.8.0"},
        {"cuda_tile_version": "1.8.0"},
        {"tileiras_version": "13.5.1"},
        {"driver_cuda": (13, 1)},
        {"gpu_name": "NVIDIA B200", "compute_capability": (10, 0)},
        {"python": (3, 13)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_any_other_version_or_device_is_tried_anew(child, change):
    runs = child("")
    for facts in (FACTS, replace(FACTS, **change), FACTS):
        trial.run("triton", 0, facts)
    assert len(runs) == 2


def test_backends_and_devices_are_tried_apart(child):
    runs = child("")
    for backend, index in (("triton", 0), ("cutile", 0), ("triton", 1), ("triton", 0)):
        trial.run(backend, index, FACTS)
    assert runs == ["triton", "cutile", "triton"]


def test_forget(child):
    runs = child("")
    trial.run("triton", 0, FACTS)
    trial.forget()
    trial.run("triton", 0, FACTS)
    assert len(runs) == 2


def test_a_cache_that_cannot_be_written(child, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path / "file" / "below"))
    runs = child("")
    assert trial.run("triton", 0, FACTS) is None is trial.run("triton", 0, FACTS)
    assert len(runs) == 2
    trial.forget()


@pytest.mark.parametrize("content", ["", "null", "[]", "{}", '{"problem": null}', '{"until": null}', "\x00"])
def test_a_damaged_cache_counts_as_none(child, content):
    runs = child("")
    trial.run("triton", 0, FACTS)
    (file,) = trial.cache_folder().iterdir()
    file.write_text(content)
    trial.run("triton", 0, FACTS)
    assert len(runs) == 2


def test_cache_folder_without_a_home(monkeypatch):
    for name in ("TILEKIT_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(trial.os.path, "expanduser", lambda path: path)
    assert trial.cache_folder().is_absolute()


def test_cache_folder(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.delenv("TILEKIT_CACHE_DIR", raising=False)
    assert trial.cache_folder() == Path("/somewhere/tilekit")
    monkeypatch.setenv("TILEKIT_CACHE_DIR", "/chosen")
    assert trial.cache_folder() == Path("/chosen")


@only_posix
def test_what_the_child_started_ends_with_it(tmp_path):
    """A compiler that hangs is the child's child; ending the child alone would leave it, and its pipe, behind."""
    code = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(p.pid, flush=True); p.wait()"
    )
    start = time.monotonic()
    status, out, _ = trial.in_a_process([sys.executable, "-c", code], 3)
    assert status is None and time.monotonic() - start < 20
    grandchild = int(out)
    for _ in range(100):
        if not _runs(grandchild):
            return
        time.sleep(0.1)
    pytest.fail("the grandchild still runs")


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not (state.exists() and ") Z" in state.read_text())  # dead, and waiting for its parent to notice


def test_a_program_that_is_not_there(child, monkeypatch):
    child("")
    monkeypatch.setattr(trial, "_command", lambda *_: ["/nowhere/python"])
    assert "could not be started" in trial.run("triton", 0, FACTS)


def test_a_relative_folder_on_the_path_counts_for_the_child(child, monkeypatch, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "only_there.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("lib")
    child("import only_there")
    assert trial.run("triton", 0, FACTS) is None


class TestTheRealChild:
    def test_it_finds_this_tilekit_from_any_folder(self, monkeypatch, tmp_path):
        """Also where a file of the user's has the name of a package; and its last line says why it failed."""
        if torch.cuda.is_available():
            pytest.skip("with a GPU the trial succeeds; the GPU tests have it")
        monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path / "cache"))
        (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')")
        monkeypatch.chdir(tmp_path)
        problem = trial.run("torch", 0, FACTS)
        assert "CUDA" in problem or "NVIDIA" in problem, problem

    def test_right_and_wrong_results(self, monkeypatch, capsys):
        monkeypatch.setattr(torch, "device", lambda *_: "cpu")
        assert trial.main("torch", 0) == 0
        right = tilekit.vadd
        monkeypatch.setattr(tilekit, "vadd", lambda a, b, backend: right(a, b, backend=backend).index_fill(
            0, torch.tensor([1024]), 0.0))  # fmt: skip
        assert trial.main("torch", 0) == 1
        assert capsys.readouterr().err == "it gave a wrong result\n"


class TestProbe:
    @pytest.fixture
    def on_h100(self, monkeypatch):
        """The probe of this process, on facts of another machine; which backends it tried."""
        tried = []

        def run(backend, index, facts):
            tried.append((backend, index))
            return "it crashed" if backend == "cutile" else None

        monkeypatch.setattr(trial, "run", run)
        return tried

    def test_only_what_the_versions_allow_is_tried(self, on_h100):
        assert environment._trial_errors(FACTS, True) == {"cutile": "it crashed"}
        assert on_h100 == [("cutile", 0), ("triton", 0)]
        on_h100.clear()
        old = replace(FACTS, device="cuda:3", compute_capability=(7, 5))
        assert environment._trial_errors(old, True) == {}
        assert on_h100 == [("triton", 3)]

    def test_without_a_trial_nothing_is_tried(self, on_h100):
        assert environment._trial_errors(FACTS, False) == {} and on_h100 == []

    @pytest.mark.parametrize("other", [{"device": "cpu"}, {"torch_hip": "7.0"}])
    def test_nothing_is_tried_where_no_nvidia_gpu_is_meant(self, on_h100, other):
        environment._trial_errors(replace(FACTS, triton_version=None, **other), True)
        assert on_h100 == []
