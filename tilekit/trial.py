"""Trial runs: a backend counts as usable on a GPU once one tiny kernel has compiled there and run with the right result.

Each runs in a process of its own with a timeout, because a compiler or driver that crashes takes its process along. The
outcome is remembered on disk by versions and device, so a machine pays once.
"""

import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import tilekit

TIMEOUT_S = 120


def run(backend: str, device_index: int, facts, timeout_s: float = TIMEOUT_S) -> str | None:
    """``None`` when the backend's vector addition is right on that device, else what went wrong, in one line."""
    key = _key(backend, device_index, facts)
    known = _remembered(key)
    if known is not None:
        return known["problem"]
    problem, final = _in_a_process([sys.executable, "-m", "tilekit.trial", backend, str(device_index)], timeout_s)
    if final:
        _remember(key, {"backend": backend, "problem": problem})
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
    return Path(base or os.path.expanduser("~/.cache")) / "tilekit"


def _in_a_process(command: list[str], timeout_s: float) -> tuple[str | None, bool]:
    """The problem, if any, and whether it is worth remembering: a timeout may be a busy machine."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    environment.pop("TILEKIT_BACKEND", None)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment)
    except subprocess.TimeoutExpired:
        return f"it did not finish within {timeout_s:g} seconds", False
    except OSError as error:
        return f"its process could not be started: {error}", False
    if done.returncode == 0:
        return None, True
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    if done.returncode < 0:
        return f"its process was ended by signal {-done.returncode}", True
    return lines[-1] if lines else f"its process ended with status {done.returncode}", True


@functools.cache
def _compiler_stamp() -> float:
    """Changes when the compiler's files do, though its version does not."""
    try:
        import nvidia

        return max(Path(folder, "cu13", "bin", "tileiras").stat().st_mtime for folder in nvidia.__path__)
    except (ImportError, OSError, ValueError):
        return 0.0


def _key(backend: str, device_index: int, facts) -> str:
    # What failed before must not be part of the question.
    content = asdict(replace(facts, trial_errors={}))
    content |= {"backend": backend, "index": device_index, "tilekit": tilekit.__version__, "stamp": _compiler_stamp()}
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _remembered(key: str) -> dict | None:
    try:
        content = json.loads((cache_folder() / f"trial-{key}.json").read_text())
        return content if isinstance(content, dict) and "problem" in content else None
    except (OSError, ValueError):
        return None


def _remember(key: str, outcome: dict) -> None:
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, suffix=".tmp") as file:
            json.dump(outcome, file)
        os.replace(file.name, folder / f"trial-{key}.json")
    except OSError:
        pass  # a cache that cannot be written only costs time


def main(backend: str, device_index: int) -> int:
    """The trial itself: a vector addition whose last tile is ragged. Raises or returns non-zero when it is not right."""
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
