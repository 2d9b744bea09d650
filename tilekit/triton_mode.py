"""How Triton runs in this process: compiled for a GPU, or interpreted on the CPU.

Triton reads the environment variable ``TRITON_INTERPRET`` when it is first imported and again at every
``@triton.jit``; what it finds then holds for the whole process. So somebody has to settle it before that first
import, and this module is the only place in tilekit that does.
"""

import functools
import glob
import importlib
import os
import sys
import threading

# One of these exists wherever a process can reach an NVIDIA GPU: a plain driver, WSL2, Jetson.
_DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-gpu", "/dev/nvgpu")


# Triton's interpreter exchanges functions of triton.language while a kernel runs, for the whole process, so two threads
# that interpret at once break each other's kernels.
INTERPRETING = threading.RLock()
if hasattr(os, "register_at_fork"):  # in a forked child nobody is left to release a lock that another thread held
    os.register_at_fork(after_in_child=INTERPRETING._at_fork_reinit)


def has_nvidia_device_file() -> bool:
    """Whether this machine shows an NVIDIA device file. Asks no driver, and never raises."""
    if sys.platform == "win32":
        return os.path.exists(os.path.join(os.environ.get("SystemRoot", r"C:\Windows"), "System32", "nvcuda.dll"))
    return any(glob.glob(pattern) for pattern in _DEVICE_FILES)


def settle() -> None:
    """Have Triton interpret kernels where no GPU can run them. ``import tilekit`` calls this.

    Sets ``TRITON_INTERPRET=1`` when the variable is unset, Triton is not imported yet and there is no NVIDIA
    device file. A value that is there already is the user's and stays.
    """
    if not _imported() and "TRITON_INTERPRET" not in os.environ and not has_nvidia_device_file():
        os.environ["TRITON_INTERPRET"] = "1"


def _imported() -> bool:
    return sys.modules.get("triton") is not None  # None stands there where its import was forbidden


def _variable_says_interpret() -> bool:
    return os.environ.get("TRITON_INTERPRET", "").strip().lower() in ("1", "true", "yes", "on", "y")


def mode() -> str | None:
    """``"interpreted"`` or ``"compiled"`` once Triton is imported; before that what it would become.

    ``None`` means that Triton is not imported and ``TRITON_INTERPRET`` is unset: it would be compiled.
    """
    language = sys.modules.get("triton.language")
    if language is not None and hasattr(language, "cdiv"):
        # A function of Triton's own library keeps the form that it was given at Triton's import.
        return "interpreted" if type(language.cdiv).__name__ == "InterpretedFunction" else "compiled"
    if "TRITON_INTERPRET" not in os.environ:
        return None
    return "interpreted" if _variable_says_interpret() else "compiled"


def obstacle(device_type: str) -> tuple[str, str] | None:
    """Why Triton's mode in this process does not serve tensors on `device_type`, and the way out.

    Returns ``None`` where it does: "interpreted" serves ``"cpu"``, "compiled" serves ``"cuda"``.
    """
    interpreted = mode() == "interpreted"
    if _imported() and interpreted != _variable_says_interpret():
        return (
            "TRITON_INTERPRET was changed after Triton had been imported, so this process holds both of Triton's modes",
            "restart Python, set TRITON_INTERPRET (or leave it unset) first, and import tilekit before triton",
        )
    if device_type == "cpu" and not interpreted:
        return (
            "this process compiles Triton kernels for a GPU, and a CPU tensor needs Triton's interpreter",
            "restart Python with TRITON_INTERPRET=1 in the environment and import tilekit before triton "
            "(or move the tensors to the GPU)",
        )
    if device_type == "cuda" and interpreted:
        return (
            "this process interprets Triton kernels on the CPU (TRITON_INTERPRET=1), and a CUDA tensor needs them compiled",
            "unset TRITON_INTERPRET and restart Python (or move the tensors to the CPU)",
        )
    return None


@functools.cache
def self_test() -> str | None:
    """Run a tiny kernel in Triton's interpreter. ``None`` when it is right, else what went wrong.

    Some pairs of Triton and NumPy cannot interpret: Triton 3.6 and older fail in a loop over a computed range
    beside NumPy 2.4 and newer. The kernel here has such a loop, masks, and a dot. Imports torch and Triton.
    """
    answer = []

    def run():
        try:
            with INTERPRETING:
                answer.append(importlib.import_module("tilekit.triton_self_test").run())
        except Exception as error:
            answer.append(f"{type(error).__name__}: {error}")

    # What a caller has switched on (a transform, fake tensors, inference mode) belongs to its thread, not to the test.
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return answer[0]
