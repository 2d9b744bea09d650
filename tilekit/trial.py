"""Trial runs: a backend counts as usable on a GPU once one tiny kernel has compiled there and run with the right result.

Each runs in a process of its own with a timeout, because a compiler or driver that crashes takes its process along.
The outcome is remembered on disk by versions and device, so a machine pays once.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import tilekit

TIMEOUT_S = 120  # a cold start of torch from a network drive alone may take half a minute

# How long a failure is believed. What versions cannot tell may change: a C compiler gets installed, a GPU gets free.
_FAILURE_HOLDS_S = 24 * 3600
_PASSING_FAILURE_HOLDS_S = 3600
_PASSING = ("out of memory", "busy or unavailable", "No space left")


def run(backend: str, device_index: int, facts, timeout_s: float = TIMEOUT_S) -> str | None:
    """``None`` when the backend's vector addition is right on that device, else what went wrong, in one line."""
    file = cache_folder() / f"trial-{_key(backend, device_index, facts)}.json"
    known = _remembered(file)
    if known is not None:
        return known["problem"]
    problem, holds_s = _try(_command(backend, device_index), timeout_s)
    _remember(file, {"backend": backend, "problem": problem, "until": holds_s and time.time() + holds_s})
    return problem


def forget() -> None:
    """Forget all outcomes, so that the next probe tries again."""
    for file in cache_folder().glob("trial-*.json"):
        try:
            file.unlink()
        except OSError:
            pass


def cache_folder() -> Path:
    """Where outcomes are kept: ``TILEKIT_CACHE_DIR``, else the user's cache folder."""
    if chosen := os.environ.get("TILEKIT_CACHE_DIR"):
        return Path(chosen)
    base = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else os.environ.get("XDG_CACHE_HOME")
    home = base or os.path.expanduser("~/.cache")
    # Without a home "~" stays as it is, and would be a folder of that name wherever Python runs.
    return Path(tempfile.gettempdir() if home.startswith("~") else home) / "tilekit"


def in_a_process(command: list[str], timeout_s: float, **options) -> tuple[int | None, str, str]:
    """Run a command to its end, or end it and all that it started.

    Returns its exit status (``None`` when it was not done within `timeout_s` seconds), stdout and stderr. Raises
    ``OSError`` when it cannot be started. `options` are those of ``subprocess.Popen``.
    """
    # Files, because a compiler that outlives its parent would keep a pipe open, and us waiting for its end.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, **options
        )
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.returncode is None:
                _end(process)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return status, *texts


def _end(process: subprocess.Popen) -> None:
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait(2)
    except (OSError, subprocess.TimeoutExpired):
        pass  # stuck inside the driver, it cannot be ended; waiting for it would make us hang too


def _command(backend: str, device_index: int) -> list[str]:
    return [sys.executable or "python3", "-m", "tilekit.trial", backend, str(device_index)]


def _try(command: list[str], timeout_s: float) -> tuple[str | None, float | None]:
    """The problem, if any, and for how many seconds to believe it; ``None`` is for as long as the versions stay."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    environment.pop("TILEKIT_BACKEND", None)
    # The folder that has tilekit comes first on the child's path in any case; the user's may hold anything.
    home = Path(tilekit.__file__).parent.parent
    try:
        status, _, stderr = in_a_process(command, timeout_s, env=environment, cwd=home)
    except OSError as error:
        return f"its process could not be started ({error})", _PASSING_FAILURE_HOLDS_S
    if status == 0:
        return None, None
    if status is None:
        return f"it did not finish within {timeout_s:g} seconds", _PASSING_FAILURE_HOLDS_S
    problem = _gist(stderr)
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        problem = f"its process was ended by {name}" + (f" ({problem})" if problem else "")
        # SIGKILL is how the system takes memory back, SIGTERM how a batch system says stop.
        passing = -status in (9, 15)
    else:
        problem = problem or f"its process ended with status {status}"
        passing = any(words in stderr for words in _PASSING)
    return problem, _PASSING_FAILURE_HOLDS_S if passing else _FAILURE_HOLDS_S


def _gist(stderr: str) -> str:
    """The one line that says most: a C compiler's "fatal error", else the exception's, else the last."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    fatal = [line for line in lines if "fatal error:" in line]
    # Of a traceback, from the line on that has a class's name at its very beginning; the message may have more lines.
    raised = [i for i, line in enumerate(lines) if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Unavailable)\b", line)]
    gist = fatal[-1:] or (lines[raised[-1] :] if raised else lines[-1:])
    return " ".join(" ".join(gist).split())[:300]


def _key(backend: str, device_index: int, facts) -> str:
    # What failed before must not be part of the question.
    content = asdict(replace(facts, trial_errors={}))
    content |= {"backend": backend, "index": device_index, "tilekit": tilekit.__version__, "prefix": sys.prefix}
    content |= {"driver": _driver_release()}
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _driver_release() -> str:
    """Finer than the CUDA version that a driver supports; empty where there is no such file."""
    try:
        return Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""


def _remembered(file: Path) -> dict | None:
    try:
        content = json.loads(file.read_text())
        until = content["until"]
        return content if "problem" in content and (until is None or time.time() < until) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(file: Path, outcome: dict) -> None:
    """Written beside it first and then moved, because another process may be reading."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, suffix=".tmp") as new:
            json.dump(outcome, new)
        os.replace(new.name, file)
    except OSError:
        pass  # a cache that cannot be written only costs time


def main(backend: str, device_index: int) -> int:
    """The trial itself: a vector addition whose last tile is ragged."""
    import torch

    device = torch.device("cuda", device_index)
    a = torch.arange(1025, dtype=torch.float32, device=device)
    with torch.no_grad():
        out = tilekit.vadd(a, a, backend=backend)
    if not torch.equal(out, a * 2):
        print("it gave a wrong result", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
