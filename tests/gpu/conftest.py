"""Tests that need an NVIDIA GPU and a process in which Triton compiles; without one they skip themselves."""

import pytest
import torch

from tilekit import triton_mode


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        reason = "there is no CUDA device; `make gpu-test` on a machine with one runs these"
    elif triton_mode.mode() == "interpreted":
        reason = "this process interprets Triton; run with TRITON_INTERPRET=0"
    else:
        return
    for item in items:
        if "/gpu/" in str(item.path).replace("\\", "/"):
            item.add_marker(pytest.mark.skip(reason=reason))
