"""Tile kernels for GPUs, each in several spellings, for learning and teaching.

``import tilekit`` costs a few milliseconds: it imports neither torch, triton nor cuda.tile and touches no
driver. Every public name is imported when it is first used. The one thing it does at once is to settle how
Triton will run in this process (see :mod:`tilekit.triton_mode`), because Triton decides that for good when it
is imported.
"""

from importlib import import_module as _import_module

from tilekit import triton_mode as _triton_mode

__version__ = "0.1.0"

_triton_mode.settle()

# Public name -> the module that defines it.
_HOMES = {
    "vadd": "tilekit.kernels.vadd",
    "fused_gelu": "tilekit.kernels.fused_gelu",
    "softmax": "tilekit.kernels.softmax",
    "matmul": "tilekit.kernels.matmul",
    "flash_attention": "tilekit.kernels.flash_attention",
    "probe": "tilekit.environment",
    "use_backend": "tilekit.backends",
    "BackendUnavailable": "tilekit.backends",
    "check": "tilekit.exercises",
}
_MODULES = ("backends", "benchmark", "environment", "exercises", "kernels", "pictures")

__all__ = [*_HOMES, *_MODULES, "__version__"]


def __getattr__(name):
    if name not in __all__:
        raise AttributeError(f"module 'tilekit' has no attribute {name!r}")
    try:
        module = _import_module(_HOMES.get(name, f"tilekit.{name}"))
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        advice = 'pip install "torch>=2.8"; python -m tilekit doctor says what else is missing'
        raise ModuleNotFoundError(f"tilekit.{name} needs the package torch: {advice}", name="torch") from error
    value = getattr(module, name) if name in _HOMES else module
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
