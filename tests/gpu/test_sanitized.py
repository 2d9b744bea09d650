"""The CUDA C++ kernels under compute-sanitizer: no access outside an array, and no race in shared memory."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_kernels_on_gpu import usable

from tilekit import kernels

COMMAND = shutil.which("compute-sanitizer")
CALLS = Path(__file__).with_name("sanitized_calls.py")
TOOLS = ("memcheck", "racecheck")

needs_the_tool = pytest.mark.skipif(
    COMMAND is None, reason="compute-sanitizer is not installed (it comes with the CUDA toolkit)"
)


def sanitized(tool: str, call: str) -> subprocess.CompletedProcess:
    command = [COMMAND, f"--tool={tool}", "--error-exitcode=9", sys.executable, str(CALLS), call]
    if tool == "memcheck":  # how cuda-bindings finds out which functions a driver has is no mistake of ours
        command.insert(2, "--report-api-errors=no")
    # Every tensor gets an allocation of its own, so that what lies beyond its end is nobody's.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=540, env=environment)


@needs_the_tool
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("name", kernels.NAMES)
def test_kernel_is_clean(name, tool):
    usable("cuda")
    done = sanitized(tool, name)
    assert done.returncode == 0 and "0 errors" in done.stdout + done.stderr, done.stdout[-3000:] + done.stderr[-2000:]


@needs_the_tool
@pytest.mark.parametrize("tool", TOOLS)
def test_a_planted_mistake_is_found(tool):
    usable("cuda")
    done = sanitized(tool, f"planted for {tool}")
    assert done.returncode == 9 and "planted" in done.stdout, done.stdout[-3000:] + done.stderr[-2000:]
