"""Launching a Triton kernel as its plan says."""

import triton.language as tl

from tilekit import triton_mode

INDEX = {32: tl.int32, 64: tl.int64}

_INTERPRETED = triton_mode.mode() == "interpreted"
if _INTERPRETED:
    import numpy as np


def launch(kernel, plan, *arrays) -> None:
    """Queue `kernel` on torch's current stream: arrays first, then the plan's scalars, constants and hints."""
    if not _INTERPRETED:
        kernel[plan.grid](*arrays, *plan.arguments, **plan.keywords)
        return
    with (
        triton_mode.INTERPRETING,
        np.errstate(all="ignore"),
    ):  # inf - inf is NaN without a word on a GPU; NumPy, which computes it here, warns
        kernel[plan.grid](*arrays, *plan.arguments, **plan.keywords)
