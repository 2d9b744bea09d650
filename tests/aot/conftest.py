"""Ahead-of-time compilation needs a process in which Triton compiles; the rest of the suite interprets."""

import pytest

from tilekit import triton_mode


def pytest_collection_modifyitems(items):
    if triton_mode.mode() == "interpreted":
        skip = pytest.mark.skip(reason="this process interprets Triton; run tests/aot with TRITON_INTERPRET=0")
        for item in items:
            if "/aot/" in str(item.path).replace("\\", "/"):
                item.add_marker(skip)
