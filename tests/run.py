"""Run all tests, in the processes they need, and close with one count over everything.

Triton either interprets or compiles for the whole of a process, so the suite is three runs of pytest: the tests with
Triton interpreting, the ahead-of-time compilation with Triton compiling, and the lessons. `python tests/run.py gpu` runs
the tests that need a GPU instead.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CELL_TIMEOUT_S = 120
NBVAL = ["--nbval-lax", "--nbval-current-env", f"--nbval-cell-timeout={CELL_TIMEOUT_S}"]
WORKERS = ["-n", str(min(4, os.cpu_count() or 1)), "--dist", "loadfile"]
GROUPS = {
    "interpreted": ("1", ["tests", "--ignore=tests/aot", "--ignore=tests/gpu", *WORKERS]),
    "ahead of time": ("0", ["tests/aot", *WORKERS[:2], "--dist", "load"]),
    "lessons": (None, [*NBVAL, "notebooks", *WORKERS]),
}


def gpu_groups():
    """Several processes share the GPU, as many as its memory allows; what measures time has it to itself."""
    import torch

    memory = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 0
    workers = ["-n", str(max(1, min(8, os.cpu_count() or 1, memory // 14_000_000_000))), "--dist", "load"]
    return {
        "GPU": ("0", ["tests/gpu", "-m", "not timing", *workers]),
        "GPU, timing": ("0", ["tests/gpu", "-m", "timing"]),
        "lessons": (None, [*NBVAL, "notebooks"]),
    }


def run_group(name: str, interpret: str | None, arguments: list[str]) -> tuple[int, dict[str, int]]:
    """pytest's exit status and its counts by word; the output is passed on as it comes."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment.pop("TRITON_INTERPRET", None)
    if interpret is not None:
        environment["TRITON_INTERPRET"] = interpret
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    print(f"\n=== {name}: pytest {' '.join(arguments)}", flush=True)
    start, last = time.monotonic(), ""
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            if re.search(r"\bin \d+\.\d+s", line):
                last = line
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error|skipped|xfailed)", last)}
    print(f"=== {name}: {time.monotonic() - start:.0f} s", flush=True)
    return process.returncode, counts


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["gpu"]):
        print("usage: python tests/run.py [gpu]; for one file: python -m pytest tests/test_softmax.py", file=sys.stderr)
        return 2
    groups = gpu_groups() if arguments == ["gpu"] else GROUPS
    total, status = {"passed": 0, "failed": 0, "skipped": 0}, 0
    for name, (interpret, options) in groups.items():
        code, counts = run_group(name, interpret, options)
        for word, number in counts.items():
            total["failed" if word == "error" else word] = total.get("failed" if word == "error" else word, 0) + number
        if code or not counts.get("passed"):
            status = 1
            if not counts.get("failed") and not counts.get("error"):
                total["failed"] += 1  # the run itself broke, or ran nothing
                print(f"=== {name}: pytest ended with status {code}, and {counts.get('passed', 0)} tests passed")
    print(f"\n{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
