"""Runs ``cuda.tile`` kernels on the CPU: on NumPy arrays or CPU tensors, without a GPU, driver or compiler.

>>> import numpy as np, cuda.tile as ct
>>> from tilekit import cutile_interpreter
>>> @ct.kernel
... def double(x, out, TILE: ct.Constant[int]):
...     tile = ct.load(x, ct.bid(0), TILE)
...     ct.store(out, ct.bid(0), tile + tile)
>>> x = np.arange(8, dtype=np.float32)
>>> out = np.empty_like(x)
>>> cutile_interpreter.launch(None, (2,), double, (x, out, 4))
>>> out
array([ 0.,  2.,  4.,  6.,  8., 10., 12., 14.], dtype=float32)
"""

from tilekit.cutile_interpreter.execution import launch, watching
from tilekit.cutile_interpreter.patching import from_environment, interpret_if_needed, interpreting
from tilekit.cutile_interpreter.report import compile_report
from tilekit.cutile_interpreter.standin import install as install_standin

__all__ = ["compile_report", "install_standin", "interpret_if_needed", "interpreting", "launch", "watching"]

from_environment()
