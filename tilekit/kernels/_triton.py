"""Launching a Triton kernel as its plan says."""

import triton.language as tl

INDEX = {32: tl.int32, 64: tl.int64}


def launch(kernel, plan, *arrays) -> None:
    """Queue `kernel` on torch's current stream: arrays first, then the plan's scalars, constants and hints."""
    kernel[plan.grid](*arrays, *plan.arguments, **plan.keywords)
