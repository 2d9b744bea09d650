"""The kernels, one folder each: open a folder and see every spelling of one kernel side by side."""

from importlib import import_module

NAMES = ("vadd", "fused_gelu", "softmax", "matmul", "flash_attention")


def spec(name: str):
    """The :class:`tilekit.exercises.Spec` of a kernel: its reference, its cases and its least work."""
    if name not in NAMES:
        raise ValueError(f"unknown kernel {name!r}; wanted one of {', '.join(map(repr, NAMES))}")
    return import_module(f"tilekit.kernels.{name}.spec").SPEC
