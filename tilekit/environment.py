"""What this machine has, and which backends that allows: facts -> rules -> verdicts.

:func:`collect_facts` looks at the machine and never raises for what it finds. :func:`assess` turns facts into verdicts
and looks at nothing, so a simulated machine is a :class:`Facts`. :func:`probe` does both, once a device.
"""

import ctypes
import functools
import glob
import html
import importlib
import json
import os
import platform
import re
import shutil
import sys
import textwrap
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

from tilekit import trial as trials
from tilekit import triton_mode

# The rules' numbers, each with what makes it true.
CUTILE_CAPABILITY = (8, 0)  # cuda-tile's documentation, "Requirements": Ampere and newer
CUTILE_DRIVER_CUDA = (13, 0)  # release 580
TILEIRAS_FOR = {8: (13, 2), 9: (13, 3), 10: (13, 1), 11: (13, 1), 12: (13, 1)}  # by the capability's major number
# What tilekit compiles its kernels for in its tests. Triton's own promise is 8.0 and newer; a vector addition still
# compiles with Triton 3.7.1 for 5.0, but nobody tests what it computes there.
TRITON_CAPABILITY = (7, 5)
BFLOAT16_CAPABILITY = (8, 0)  # also the first whose tensor cores Triton uses, since 3.3
# NumPy 2.4 made int() of a one-element array an error, which Triton's interpreter relied on in loops until 3.7.
INTERPRETS_WITH_OLD_NUMPY, NUMPY_TOO_NEW = (3, 6), (2, 4)
NVRTC_OLDEST_FOR = {10: (12, 8), 11: (13, 0), 12: (12, 8)}  # CUDA's release notes; all NVRTC know 7.5 to 9.0
NVRTC_CAPABILITY = (7, 5)  # CUDA 13 compiles for nothing older
TRITON_OLDEST, TORCH_OLDEST, CUTILE_OLDEST = (3, 4), (2, 8), (1, 7)

CUTILE_REQUIREMENTS = (
    "cuda-tile>=1.7",
    "nvidia-cuda-tileiras==13.4.*",
    "nvidia-cuda-nvcc==13.4.*",
    "nvidia-nvvm==13.4.*",
)
INSTALL_CUTILE = "pip install " + " ".join(f'"{requirement}"' for requirement in CUTILE_REQUIREMENTS)
# The versions that torch's own CUDA build brings along satisfy these, so installing them beside it changes nothing.
CUDA_REQUIREMENTS = ("cuda-bindings>=13.0.3,<14", "nvidia-cuda-nvrtc>=13,<14", "nvidia-cuda-runtime>=13,<14")
INSTALL_CUDA = "pip install " + " ".join(f'"{requirement}"' for requirement in CUDA_REQUIREMENTS)
INSTALL_TRITON = 'pip install "triton>=3.4"'
INSTALL_TORCH = 'pip install "torch>=2.8"'
UPDATE_DRIVER = "update the NVIDIA driver to release 580 or newer (under WSL2, the driver of Windows)"
TRY_AGAIN = "python -m tilekit doctor --refresh"
ASK_DRIVER = "run nvidia-smi: it says what the driver sees"
USE_COLAB = "open the lesson in Colab with a GPU runtime (or install the driver, if this machine has an NVIDIA GPU)"

_TIMEOUT_S = 20  # for the driver and the compilers to say their version


@dataclass(frozen=True)
class Facts:
    """What one device and this Python have. Every default means "absent", or for the later fields "no objection"."""

    platform: str = ""  # sys.platform
    machine: str = ""  # platform.machine()
    python: tuple[int, int] = (0, 0)
    torch_version: str | None = None
    torch_cuda: str | None = None  # the CUDA version torch was built for
    torch_hip: str | None = None  # the ROCm version torch was built for
    torch_archs: tuple[str, ...] = ()  # ("sm_90", ...)
    gpu_name: str | None = None
    compute_capability: tuple[int, int] | None = None
    driver_cuda: tuple[int, int] | None = None  # the newest CUDA that the driver supports
    triton_version: str | None = None
    cuda_tile_version: str | None = None
    tileiras_version: str | None = None
    tileiras_problem: str | None = None
    nvrtc_version: str | None = None
    trial_errors: Mapping[str, str] = field(default_factory=dict)
    # Fields below: their defaults object to nothing.
    device: str = ""  # "cuda:0", "cpu"; empty: the GPU if torch can use it
    numpy_version: str | None = None
    triton_obstacle: tuple[str, str] | None = None  # why this process's mode does not suit the device, and the way out
    import_problems: Mapping[str, str] = field(default_factory=dict)  # package -> what its import raised
    driver_problem: str | None = None
    cuda_obstacle: str | None = None  # what CUDA C++ lacks besides NVRTC

    @property
    def on_gpu(self) -> bool:
        """Whether these facts speak of tensors on a GPU: an NVIDIA one, or an AMD one, which torch calls "cuda" too."""
        if self.device:
            return self.device.startswith("cuda")
        return self.torch_version is not None and (self.torch_hip is not None or self.torch_reaches_gpu)

    @property
    def has_gpu(self) -> bool:
        """Whether there is an NVIDIA GPU, of use or not."""
        return self.compute_capability is not None or (self.gpu_name is not None and not self.torch_hip)

    @property
    def torch_reaches_gpu(self) -> bool:
        """Whether torch could have tensors on that GPU."""
        there = self.compute_capability is not None and self.driver_cuda is not None and not self.driver_problem
        return there and self.torch_cuda is not None and not self.driver_older_than_torch

    @property
    def driver_older_than_torch(self) -> bool:
        """Whether torch was built for a newer major release of CUDA than the driver supports; a minor one may be."""
        return self.driver_cuda is not None and self.driver_cuda[0] < _pair(self.torch_cuda)[0]


@dataclass(frozen=True)
class Verdict:
    """Whether a backend is usable for tensors of one device, how, why, and what would change it."""

    usable: bool
    mode: str | None  # "compiled" or "interpreted"; None when it is not usable
    reason: str
    fix: str | None = None  # one command or one piece of advice; None: nothing would change it


@dataclass(frozen=True)
class Environment:
    """The verdicts for tensors on one device. Prints as a table; renders as one in a notebook.

    >>> print(assess(Facts(platform="linux", torch_version="2.13.0")).device)
    cpu
    """

    device: str
    gpu: str | None
    backends: dict[str, Verdict]
    best: str

    def __str__(self):
        device = f"device: {self.device}" + (f" ({self.gpu})" if self.gpu else "")
        lines = [*textwrap.wrap(device, 100), f"best backend: {self.best}", ""]
        for name, verdict in self.backends.items():
            head = f"{name:<8}{'usable' if verdict.usable else 'not usable':<12}{verdict.mode or '-':<13}"
            first, *rest = _wrapped(verdict.reason, 100 - len(head)) or [""]
            lines += [head + first, *(" " * len(head) + line for line in rest)]
            if verdict.fix:
                fix = _wrapped(verdict.fix, 100 - len("        to change it: ") - len(" \\"))
                # A command in several lines must still be one command when it is pasted.
                joint = " \\\n" if _is_command(verdict.fix) else "\n"
                lines.append("        to change it: " + (joint + " " * 22).join(fix))
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self):
        rows = []
        for name, verdict in self.backends.items():
            fix = html.escape(verdict.fix or "")
            cells = (
                f"<b>{html.escape(name)}</b>",
                "&#10003; usable" if verdict.usable else "&#10007; not usable",
                html.escape(verdict.mode or "-"),
                html.escape(verdict.reason),
                f"<code>{fix}</code>" if fix and _is_command(verdict.fix) else fix,
            )
            rows.append("".join(f"<td style='text-align:left'>{cell}</td>" for cell in cells))
        heads = "".join(f"<th>{head}</th>" for head in ("backend", "usable?", "mode", "why", "what would change it"))
        gpu = f" ({html.escape(self.gpu)})" if self.gpu else ""
        return (
            f"<p>Tensors on <b>{html.escape(self.device)}</b>{gpu}; best backend: <b>{html.escape(self.best)}</b></p>"
            f"<table><thead><tr>{heads}</tr></thead><tbody><tr>{'</tr><tr>'.join(rows)}</tr></tbody></table>"
        )


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


def _is_command(fix: str) -> bool:
    return fix.split()[0] in ("pip", "python", "unset", "sudo")


def probe(device=None, *, refresh: bool = False, trial: bool = True) -> Environment:
    """What tensors on `device` can be computed with.

    Args:
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, an index or a ``torch.device``; ``None`` is the current CUDA
            device, or the CPU where torch has none.
        refresh: look again, and repeat the trial runs, instead of answering from what was found before.
        trial: on a GPU, have each compiled backend run one tiny kernel first (in a process of its own, remembered on
            disk). Without it, the verdicts follow from the versions alone.

    Raises:
        ValueError: `device` names no device, or one that is not there.

    >>> probe("cpu").best
    'torch'
    """
    if refresh:
        forget()
    return _probed(_device_name(device), trial)


@functools.cache
def _probed(name: str, trial: bool) -> Environment:
    return assess(collect_facts(name, trial=trial))


def forget() -> None:
    """Forget what was found, in this process and on disk: the next probe looks again and repeats the trial runs."""
    for found in (_probed, try_import, _driver):
        found.cache_clear()
    trials.forget()
    backends = sys.modules.get("tilekit.backends")
    if backends is not None:
        backends.forget()


# --- the device ----------------------------------------------------------------------------------------------------


def _device_name(device) -> str:
    torch, _ = _torch()
    if torch and isinstance(device, torch.device) and device.type not in ("cpu", "cuda"):
        return "cpu"  # mps, xpu, meta: what holds there is what holds on a CPU, torch alone
    text = f"cuda:{device}" if type(device) is int else str(device)
    match = re.fullmatch(r"cuda(?::(\d+))?", text)
    if re.fullmatch(r"cpu(:\d+)?", text):
        return "cpu"
    if device is not None and not match:
        raise ValueError(f"probe: device must be 'cpu', 'cuda', 'cuda:N' or an index; got {device!r}")
    count = _gpu_count(torch)
    if device is None and not count:
        return "cpu"
    index = int(match[1]) if match and match[1] else _current_gpu(torch)
    if index >= count:
        there = ", ".join(["cpu", *(f"cuda:{i}" for i in range(count))])
        raise ValueError(f"probe: there is no {text} that torch can use; this machine has: {there}")
    return f"cuda:{index}"


def _gpu_count(torch) -> int:
    """How many GPUs torch can use."""
    # With a driver that hangs, torch would hang: it is asked only once the driver has answered elsewhere.
    if torch is None or (torch.version.cuda and _driver().cuda is None):
        return 0
    cuda_tensors = sys.modules.get("tilekit.cutile_interpreter.cuda_tensors")
    if cuda_tensors is not None and getattr(torch.cuda, "Stream", None) is cuda_tensors.Stream:
        return 0  # its tensors for "cuda" are on the CPU, and what torch says of a GPU is made up
    try:
        return torch.cuda.device_count() if torch.cuda.is_available() else 0
    except Exception:
        return 0


def _current_gpu(torch) -> int:
    return torch.cuda.current_device() if torch and torch.cuda.is_initialized() else 0


# --- facts ---------------------------------------------------------------------------------------------------------


def collect_facts(device=None, *, trial: bool = True) -> Facts:
    """Look at the machine. Raises for a wrong `device` only, never for what the machine is like; see :func:`probe`."""
    name = _device_name(device)
    torch, torch_problem = _torch()
    driver = _driver()
    problems = {"torch": torch_problem}
    facts = {
        "platform": sys.platform,
        "machine": platform.machine(),
        "python": sys.version_info[:2],
        "device": name,
        "numpy_version": _version("numpy"),
        "torch_version": str(torch.__version__) if torch else _version("torch"),
        "driver_cuda": driver.cuda,
        "driver_problem": driver.problem,
        "gpu_name": driver.gpu_name,
        "compute_capability": driver.compute_capability,
    }
    if torch:
        facts |= {"torch_cuda": torch.version.cuda, "torch_hip": getattr(torch.version, "hip", None)}
    on_nvidia = name != "cpu" and not facts.get("torch_hip")
    if name != "cpu":
        facts |= _gpu(torch, int(name.partition(":")[2]))
    triton, problems["triton"] = try_import("triton")
    facts["triton_version"] = _version("triton", "triton-windows") or getattr(triton, "__version__", None)
    if triton:
        facts["triton_obstacle"] = triton_mode.obstacle("cpu" if name == "cpu" else "cuda")
    facts["cuda_tile_version"] = _version("cuda-tile")
    if (on_nvidia or name == "cpu") and (facts["cuda_tile_version"] or _hidden_by("cuda")):
        problems["cuda.tile"] = try_import("cuda.tile")[1]
    if name == "cpu":
        for package in _INTERPRETER_NEEDS:
            module, problem = try_import(package)
            problems[package] = problem or (None if module else "it is not installed")
    facts["tileiras_version"], facts["tileiras_problem"] = tileiras()
    facts["nvrtc_version"] = _version("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12") or _system_nvrtc()
    if on_nvidia:
        facts["cuda_obstacle"] = _cuda_obstacle()
    facts["import_problems"] = {package: problem for package, problem in problems.items() if problem}
    found = Facts(**facts)
    return Facts(**{**facts, "trial_errors": _trial_errors(found, trial)})


def _version(*distributions: str) -> str | None:
    """The version of the first of these that is installed. A damaged installation counts as none."""
    for distribution in distributions:
        try:
            if version := metadata.version(distribution):
                return version
        except Exception:
            continue
    return None


@functools.cache
def try_import(package: str):
    """The imported module, or ``None`` and what its import raised, as one line; ``(None, None)`` when it is absent.

    Asked once: a second attempt at a failed import often raises something else, which hides the cause.
    """
    if hidden := _hidden_by(package.partition(".")[0]):
        return None, f"{hidden} is imported in its place"
    try:
        return importlib.import_module(package), None
    except BaseException as error:
        if type(error) is KeyboardInterrupt:  # the user's; a package's own kind of it is not
            raise
        absent = isinstance(error, ModuleNotFoundError) and error.name in (package, package.partition(".")[0])
        if absent and not _version(package.replace(".", "-")):
            return None, None
        words = " ".join(in_words(error).split())
        for needed in _OFTEN_HIDDEN:
            if (hidden := _hidden_by(needed)) and (re.search(rf"\b{needed}\b", words) or _came_through(error, hidden)):
                return None, f"{hidden} is imported in place of the package {needed}; {words}"
        return None, words


_OFTEN_HIDDEN = ("torch", "triton", "cuda", "numpy", "ml_dtypes")  # all of them are folders


def _hidden_by(package: str) -> str | None:
    """The file that Python would import for this package: a learner's own script ``triton.py``, for example."""
    if hasattr(sys.modules.get(package), "__path__"):  # the package itself is imported already
        return None
    try:
        spec = PathFinder.find_spec(package)
    except Exception:  # of an entry of sys.path that is no path
        return None
    return spec.origin if spec and spec.submodule_search_locations is None else None


def _came_through(error: BaseException, file: str) -> bool:
    return any(frame.f_code.co_filename == file for frame, _ in traceback.walk_tb(error.__traceback__))


def in_words(error: BaseException) -> str:
    """An exception's type and what it says, if it says anything."""
    try:
        words = str(error).strip()
    except Exception:  # its own __str__ may be broken, too
        words = ""
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _torch():
    """torch and what is wrong with it, as :func:`try_import`."""
    torch, problem = try_import("torch")
    if torch is not None and not (hasattr(torch, "__version__") and hasattr(getattr(torch, "version", None), "cuda")):
        where = getattr(torch, "__file__", None) or "a folder without code"
        return None, f"Python finds something else under that name: {where}"
    return torch, problem


class _Driver(NamedTuple):
    cuda: tuple[int, int] | None = None
    problem: str | None = None
    gpu_name: str | None = None
    compute_capability: tuple[int, int] | None = None


_NOT_ASKED = "the NVIDIA driver could not be asked, because no process could be started"
_DRIVER_STATUS = {  # CUresult in cuda.h
    100: "the NVIDIA driver is there, but it shows no GPU",
    802: "the NVIDIA driver is not ready: on a machine with NVSwitch, its fabric manager has to run",
    803: "the NVIDIA driver's library and its kernel module are of different releases: after an update, reboot",
}


@functools.cache
def _driver() -> _Driver:
    if sys.platform == "darwin":
        return _Driver()
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized() and torch.version.cuda:
            from tilekit import driver

            return _driver_of(driver.ask())
    except Exception:
        pass  # a half-imported torch, or a driver that torch does not use: ask from outside
    command = [sys.executable or "python3", "-I", "-S", str(Path(__file__).with_name("driver.py"))]
    try:
        status, out, _ = trials.in_a_process(command, _TIMEOUT_S)
        if status is None:
            return _Driver(problem=f"the NVIDIA driver did not answer within {_TIMEOUT_S} seconds: reboot")
        return _driver_of(json.loads(out))
    except OSError as error:
        return _Driver(problem=f"{_NOT_ASKED} ({error})")
    except ValueError:
        return _Driver(problem="the NVIDIA driver's library is there, but calling it fails")


def _driver_of(answer: dict) -> _Driver:
    if not answer:
        return _Driver()
    status = answer["status"]
    problem = _DRIVER_STATUS.get(status, f"the NVIDIA driver does not start (CUDA error {status})") if status else None
    if status == 100 and "CUDA_VISIBLE_DEVICES" in os.environ:
        problem += f", for CUDA_VISIBLE_DEVICES is set to {os.environ['CUDA_VISIBLE_DEVICES']!r}"
    capability = answer.get("compute_capability")
    cuda = tuple(answer["cuda"]) if answer["cuda"][0] else None
    return _Driver(cuda, problem, answer.get("gpu"), tuple(capability) if capability else None)


def _gpu(torch, index: int) -> dict:
    try:
        name, capability = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
        return {"gpu_name": name, "compute_capability": capability, "torch_archs": tuple(torch.cuda.get_arch_list())}
    except Exception as error:
        return {"driver_problem": f"torch cannot use the GPU: {' '.join(str(error).split())}"}


def _cuda_obstacle() -> str | None:
    """What CUDA C++ lacks besides NVRTC: the Python bindings, or CUDA's own headers."""
    if not _version("cuda-bindings"):
        return "the package cuda-bindings, NVIDIA's Python bindings for NVRTC and the driver, is not installed"
    pathfinder, problem = try_import("cuda.pathfinder")
    if problem or pathfinder is None:
        return f"the package cuda-pathfinder does not import ({problem})"
    try:
        headers = pathfinder.find_nvidia_header_directory("cudart")
    except Exception as error:
        return f"CUDA's headers cannot be looked for: {error}"
    return None if headers else "CUDA's own headers, such as cuda_fp16.h, are not installed"


def _system_nvrtc() -> str | None:
    """NVRTC's version where it comes with a CUDA toolkit, as on a Jetson or in NVIDIA's containers."""
    names = (
        ("nvrtc64_130_0.dll", "nvrtc64_120_0.dll") if sys.platform == "win32" else ("libnvrtc.so.13", "libnvrtc.so.12")
    )
    for name in names:
        major, minor = ctypes.c_int(), ctypes.c_int()
        try:
            if ctypes.CDLL(name).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0:
                return f"{major.value}.{minor.value}"
        except (OSError, AttributeError):
            continue
    return None


_COMPILER_PARTS = {"tileiras": "nvidia-cuda-tileiras", "ptxas": "nvidia-cuda-nvcc", "libnvvm": "nvidia-nvvm"}


def tileiras() -> tuple[str | None, str | None]:
    """The version of the compiler that cuda-tile would take, and what is wrong with it.

    cuda-tile 1.7 takes pip's wheels if there are all three and they agree, else a toolkit's compiler: the one on the
    PATH, in CUDA_HOME, in the default folder. The wheels' compiler, and that in the default folder, look for ptxas and
    libnvvm in their own folder; the others look in CUDA_HOME or CUDA_PATH instead, when one is set.
    """
    versions = {part: _version(distribution) for part, distribution in _COMPILER_PARTS.items()}
    problem = None
    if all(versions.values()) and len({_pair(version) for version in versions.values()}) == 1:
        folder = next(iter(getattr(try_import("nvidia.cu13")[0], "__path__", [])), "")
        if shutil.which("tileiras", path=os.path.join(folder, "bin")):
            return versions["tileiras"], _missing_parts(Path(folder))
        problem = (
            "its wheels are installed, but in another environment than the package nvidia.cu13 that Python finds first"
        )
    elif all(versions.values()):
        words = ", ".join(f"{part} {version}" for part, version in versions.items())
        problem = f"its parts are of different versions ({words})"
    elif versions["tileiras"]:
        missing = [part for part, version in versions.items() if not version]
        problem = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed beside tileiras"

    variables = ("CUDA_PATH", "CUDA_HOME") if sys.platform == "win32" else ("CUDA_HOME",)
    home = next((os.environ[v] for v in variables if os.environ.get(v)), None)
    path = shutil.which("tileiras") or (home and shutil.which("tileiras", path=os.path.join(home, "bin")))
    # What tileiras itself obeys, on every platform.
    override = next((v for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v)), None) if path else None
    path = path or _default_tileiras()
    if not path:
        return versions["tileiras"], problem
    version = _printed_version(path)
    if not version:
        return versions["tileiras"], "tileiras is there, but does not run"
    own = Path(path).resolve().parent.parent
    root = Path(os.environ[override]) if override else own
    return version, _toolkit_problem(version, root, override if root.resolve() != own else None)


def _toolkit_problem(version: str, root: Path, override: str | None) -> str | None:
    """What is wrong with the folder where this tileiras would look for its parts."""
    if problem := _missing_parts(root):
        return f"{override} points at {root}, and {problem} there" if override else problem
    ptxas = _printed_version(root / "bin" / "ptxas")
    if not ptxas or _pair(ptxas) == _pair(version):
        return None
    if override:
        return f"{override} points at a CUDA toolkit {ptxas}, which hides the ptxas and libnvvm of tileiras {version}"
    return f"its parts are of different versions (tileiras {version}, ptxas {ptxas})"


def _missing_parts(root: Path) -> str | None:
    """What tileiras would not find below its root. Windows keeps its libraries elsewhere: there, the trial run tells."""
    if sys.platform == "win32":
        return None
    missing = [] if shutil.which("ptxas", path=str(root / "bin")) else ["ptxas"]
    if not (root / "nvvm/lib64/libnvvm.so").exists() and not (root / "lib/libnvvm.so.4").exists():
        missing.append("libnvvm")
    return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing" if missing else None


def _default_tileiras() -> str | None:
    if sys.platform == "win32":
        folders = glob.glob(r"C:\Program Files\NVIDIA GPU Computing Toolkit\CUDA\v*\bin")
    else:
        folders = glob.glob("/usr/local/cuda-*/bin")
    # 13.10 is newer than 13.9, so the numbers are compared, not the names.
    folders.sort(key=lambda folder: [int(n) for n in re.findall(r"\d+", folder)], reverse=True)
    if sys.platform != "win32":
        folders.insert(0, "/usr/local/cuda/bin")
    return shutil.which("tileiras", path=os.pathsep.join(folders))


def _printed_version(program: str | Path) -> str | None:
    try:
        _, out, _ = trials.in_a_process([str(program), "--version"], _TIMEOUT_S)
    except OSError:
        return None
    match = re.search(r"\bV(\d+\.\d+\.\d+)", out)
    return match[1] if match else None


def _trial_errors(facts: Facts, trial: bool) -> dict[str, str]:
    """What failed when each backend that the versions allow computed something small."""
    verdicts = assess(facts).backends
    if not facts.on_gpu:
        problem = triton_mode.self_test() if verdicts["triton"].usable else None
        return {"triton": problem} if problem else {}
    if not trial:
        return {}
    index = int(facts.device.partition(":")[2])
    errors = {name: trials.run(name, index, facts) for name in ("cutile", "triton", "cuda") if verdicts[name].usable}
    return {name: problem for name, problem in errors.items() if problem}


# --- rules ---------------------------------------------------------------------------------------------------------


def assess(facts: Facts) -> Environment:
    """The verdicts that follow from the facts. Pure: looks at nothing else.

    >>> t4 = Facts(platform="linux", torch_version="2.13.0", torch_cuda="13.0", gpu_name="Tesla T4",
    ...            compute_capability=(7, 5), driver_cuda=(13, 0), triton_version="3.7.1", cuda_tile_version="1.7.0")
    >>> assess(t4).best
    'triton'
    >>> assess(t4).backends["cutile"].reason
    'This GPU has compute capability 7.5, and cuTile needs 8.0 or newer.'
    """
    verdicts = {
        "cutile": _cutile(facts),
        "triton": _triton(facts),
        "cuda": _cuda(facts),
        "torch": _torch_itself(facts),
    }
    compiled = (n for n in ("cutile", "triton") if verdicts[n].usable and verdicts[n].mode == "compiled")
    best = next(compiled, "torch") if facts.on_gpu else "torch"
    return Environment(facts.device or ("cuda:0" if facts.on_gpu else "cpu"), facts.gpu_name, verdicts, best)


def _no(reason: str, fix: str | None = None) -> Verdict:
    return Verdict(False, None, reason, fix)


def _pair(version: str | None) -> tuple[int, int]:
    """``"13.4.92"`` as ``(13, 4)``; what is no version counts as too old."""
    match = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _dotted(pair: tuple[int, int]) -> str:
    return ".".join(map(str, pair))


def _sentence(text: str) -> str:
    text = " ".join(text.split()).rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def _mend_import(problem: str, package: str, otherwise: str) -> str:
    """What to do where a package does not import: rename the file that hides it, or install what it needs itself."""
    if hidden := re.match(r"(.+) is imported in (its )?place", problem):
        return f"rename {hidden[1]}"
    missing = re.search(r"ModuleNotFoundError: No module named '(\w+)", problem)
    return f"pip install {missing[1]}" if missing and missing[1] != package else otherwise


def _no_torch(facts: Facts) -> Verdict | None:
    if problem := facts.import_problems.get("torch"):
        fix = _mend_import(problem, "torch", f"{INSTALL_TORCH} --force-reinstall")
        return _no(_sentence(f"the package torch does not import ({problem})"), fix)
    if not facts.torch_version:
        return _no("torch is not installed, and every backend works on its tensors.", INSTALL_TORCH)
    return None


def _no_gpu(facts: Facts, what: str, oldest: tuple[int, int], oldest_driver=(0, 0)) -> Verdict | None:
    """What is between `what` and tensors on an NVIDIA GPU: the hardware first, then the driver, then torch's build.

    `oldest` is the compute capability that it needs, `oldest_driver` the CUDA version.
    """
    capability = facts.compute_capability
    if facts.platform == "darwin":
        return _no(f"macOS has no NVIDIA GPU, and {what} needs one.", "open the lesson in Colab with a GPU runtime")
    if facts.torch_hip:
        return _no(
            f"torch is a ROCm build, for AMD GPUs, and {what} needs an NVIDIA GPU.",
            "use a machine with an NVIDIA GPU, such as Colab's",
        )
    if capability is not None and capability < oldest:
        needs = f"{what} needs {_dotted(oldest)} or newer"
        return _no(f"This GPU has compute capability {_dotted(capability)}, and {needs}.")
    if facts.driver_problem:
        hidden = "CUDA_VISIBLE_DEVICES" in facts.driver_problem
        silent = facts.driver_cuda is None and _NOT_ASKED not in facts.driver_problem
        fix = UPDATE_DRIVER if silent else ASK_DRIVER
        return _no(_sentence(facts.driver_problem), "unset CUDA_VISIBLE_DEVICES" if hidden else fix)
    if facts.driver_cuda is None:
        if not facts.has_gpu:
            return _no(f"There is no NVIDIA GPU with a driver here, and {what} needs one.", USE_COLAB)
        return _no("The NVIDIA driver is missing or does not load, so the GPU cannot be used.", UPDATE_DRIVER)
    if facts.driver_cuda < oldest_driver:
        needs = f"{what} needs {_dotted(oldest_driver)} (driver release 580 or newer)"
        return _no(f"The NVIDIA driver supports CUDA {_dotted(facts.driver_cuda)}, and {needs}.", UPDATE_DRIVER)
    if not facts.torch_cuda:
        return _no(
            f"torch {facts.torch_version} is a build without CUDA, so tensors can only be on the CPU.",
            _install_cuda_torch(facts),
        )
    if facts.driver_older_than_torch and not facts.on_gpu:
        return _no(
            f"The NVIDIA driver supports CUDA {_dotted(facts.driver_cuda)}, and torch {facts.torch_version} is built for "
            f"CUDA {facts.torch_cuda}, so torch cannot use the GPU.",
            f"{UPDATE_DRIVER}, or install a torch built for CUDA {facts.driver_cuda[0]}",
        )
    if not facts.on_gpu:
        if capability is None:
            return _no("The NVIDIA driver is there, but torch finds no GPU that it can use.", ASK_DRIVER)
        return _no(f"These are tensors on the CPU, and {what} needs them on the GPU.", "move them there: x.to('cuda')")
    if capability is None:
        return _no("torch does not say which GPU this is.", ASK_DRIVER)
    return None


def _install_cuda_torch(facts: Facts) -> str:
    if facts.platform == "win32":
        return "install a CUDA build of torch: PyTorch's page 'Start Locally' has the command for Windows"
    return "pip uninstall -y torch && pip install torch"


def _cutile(facts: Facts) -> Verdict:
    if missing := _no_torch(facts):
        return missing
    if no_gpu := _no_gpu(facts, "cuTile", CUTILE_CAPABILITY, CUTILE_DRIVER_CUDA):
        return no_gpu if facts.on_gpu else _interpreted_cutile(facts, no_gpu)
    capability = f"compute capability {_dotted(facts.compute_capability)}"
    needed = TILEIRAS_FOR.get(facts.compute_capability[0])
    if needed is None:
        return _no(f"This GPU has {capability}, and cuTile's compiler is not known to have code for it.")
    if problem := facts.import_problems.get("cuda.tile"):
        fix = _mend_import(problem, "cuda", f"{INSTALL_CUTILE} --force-reinstall")
        return _no(_sentence(f"the package cuda-tile does not import ({problem})"), fix)
    if not facts.cuda_tile_version:
        return _no("The package cuda-tile is not installed.", INSTALL_CUTILE)
    if problem := facts.tileiras_problem:
        hidden = "CUDA_HOME" in problem or "CUDA_PATH" in problem
        return _no(
            f"cuTile's compiler, tileiras, is not whole: {problem.rstrip('.')}.",
            "unset CUDA_HOME CUDA_PATH" if hidden else INSTALL_CUTILE,
        )
    if not facts.tileiras_version:
        return _no("cuTile's compiler, tileiras, is not installed.", INSTALL_CUTILE)
    if _pair(facts.tileiras_version) < needed:
        return _no(
            f"cuTile's compiler is tileiras {facts.tileiras_version}, and {capability} needs {_dotted(needed)} or newer."
            + _trap(facts),
            INSTALL_CUTILE,
        )
    if _pair(facts.cuda_tile_version) < CUTILE_OLDEST:
        return _no(
            f"cuda-tile is {facts.cuda_tile_version}, and tilekit needs {_dotted(CUTILE_OLDEST)} or newer."
            + _trap(facts),
            INSTALL_CUTILE,
        )
    if error := facts.trial_errors.get("cutile"):
        return _failed_trial(facts, "cuTile", error)
    return Verdict(True, "compiled", f"Compiled by tileiras {facts.tileiras_version} for {capability}.")


_INTERPRETER_NEEDS = ("numpy", "ml_dtypes")


def _interpreted_cutile(facts: Facts, no_gpu: Verdict) -> Verdict:
    """tilekit's own interpreter; the package cuda-tile, where it is there, checks the kernels' types before."""
    for package in _INTERPRETER_NEEDS:
        if problem := facts.import_problems.get(package):
            reason = f"tilekit's interpreter of cuTile needs the package {package}, which does not import ({problem})."
            fix = f"pip install {package}"
            if problem != "it is not installed":
                fix = _mend_import(problem, package, f"{fix} --force-reinstall")
            return _no(reason, fix)
    if problem := facts.import_problems.get("cuda.tile"):
        fix = _mend_import(problem, "cuda", f"{INSTALL_CUTILE} --force-reinstall")
        return _no(_sentence(f"the package cuda-tile does not import ({problem})"), fix)
    if facts.cuda_tile_version and _pair(facts.cuda_tile_version) < CUTILE_OLDEST:
        return _no(
            f"cuda-tile is {facts.cuda_tile_version}, and tilekit needs {_dotted(CUTILE_OLDEST)} or newer."
            + _trap(facts),
            INSTALL_CUTILE,
        )
    reason = "tilekit interprets cuTile kernels on the CPU: right, but slow."
    if not facts.cuda_tile_version:
        reason += " Types are checked as the kernel runs, because the package cuda-tile is not installed."
    if facts.has_gpu and not facts.torch_reaches_gpu:
        return Verdict(True, "interpreted", f"{reason} {no_gpu.reason}", no_gpu.fix)
    return Verdict(True, "interpreted", reason)


def _trap(facts: Facts) -> str:
    """How an old compiler comes beside a new torch."""
    if _pair(facts.torch_version) < (2, 11):
        return ""
    return (
        " Installing cuda-tile[tileiras] beside torch 2.11 or newer ends there, because torch pins the CUDA toolkit; "
        "naming the compiler's own wheels does not."
    )


# What a trial's error contains -> what mends it.
_CURES = {
    "Python.h": "sudo apt-get install python3-dev",
    "C compiler": "sudo apt-get install gcc",
    "active drivers": "leave one of Triton's backends installed, and a torch build for this GPU",
    "out of memory": f"free memory on the GPU, then: {TRY_AGAIN}",
}


def _failed_trial(facts: Facts, what: str, error: str) -> Verdict:
    cure = next((cure for words, cure in _CURES.items() if words in error), TRY_AGAIN)
    if "no kernel image" in error:
        cure = _torch_with_code(facts)
    return _no(_sentence(f"A tiny {what} kernel did not run: {error}"), cure)


def _triton(facts: Facts) -> Verdict:
    if missing := _no_torch(facts):
        return missing
    no_gpu = _no_gpu(facts, "Triton", TRITON_CAPABILITY)
    if no_gpu and (facts.on_gpu or facts.platform == "darwin"):
        return no_gpu if facts.on_gpu else _no("Triton has no package for macOS.", no_gpu.fix)
    if problem := facts.import_problems.get("triton"):
        wanted = f"triton=={facts.triton_version}" if facts.triton_version else "triton"
        fix = _mend_import(problem, "triton", f"pip install --force-reinstall {wanted}")
        return _no(_sentence(f"the package triton does not import ({problem})"), fix)
    if not facts.triton_version and facts.platform == "win32":
        return _no(
            "Triton has no package of its own for Windows; triton-windows is a third party's, and WSL2 runs Triton's.",
            "pip install triton-windows",
        )
    if not facts.triton_version:
        return _no("The package triton is not installed.", INSTALL_TRITON)
    if _pair(facts.triton_version) < TRITON_OLDEST:
        return _no(
            f"Triton is {facts.triton_version}, and tilekit needs {_dotted(TRITON_OLDEST)} or newer.", INSTALL_TRITON
        )
    if facts.triton_obstacle:
        reason, fix = facts.triton_obstacle
        return _no(_sentence(reason), fix)
    return _compiled_triton(facts) if facts.on_gpu else _interpreted_triton(facts, no_gpu)


def _compiled_triton(facts: Facts) -> Verdict:
    if error := facts.trial_errors.get("triton"):
        return _failed_trial(facts, "Triton", error)
    reason = f"Compiled by Triton {facts.triton_version} for compute capability {_dotted(facts.compute_capability)}."
    if facts.compute_capability < BFLOAT16_CAPABILITY:
        reason += " Dots run without tensor cores there, so matrix kernels are slow; bfloat16 is refused, use float16."
    return Verdict(True, "compiled", reason)


def _interpreted_triton(facts: Facts, no_gpu: Verdict) -> Verdict:
    if _pair(facts.triton_version) <= INTERPRETS_WITH_OLD_NUMPY and _pair(facts.numpy_version) >= NUMPY_TOO_NEW:
        return _no(
            f"Triton {facts.triton_version} cannot interpret loops beside NumPy {facts.numpy_version}.",
            f'pip install "numpy<{_dotted(NUMPY_TOO_NEW)}"',
        )
    if error := facts.trial_errors.get("triton"):
        return _no(_sentence(f"Triton's interpreter failed its self-test: {error}"), TRY_AGAIN)
    reason = f"Triton {facts.triton_version} interprets kernels on the CPU: right, but slow."
    if facts.has_gpu and not facts.torch_reaches_gpu:
        return Verdict(True, "interpreted", f"{reason} {no_gpu.reason}", no_gpu.fix)
    return Verdict(True, "interpreted", reason)


def _cuda(facts: Facts) -> Verdict:
    if obstacle := _no_torch(facts) or _no_gpu(facts, "CUDA C++", NVRTC_CAPABILITY):
        return obstacle
    capability = facts.compute_capability
    needed = NVRTC_OLDEST_FOR.get(capability[0], (0, 0))
    if not facts.nvrtc_version:
        return _no("NVRTC, the compiler of CUDA C++, is not installed.", INSTALL_CUDA)
    if _pair(facts.nvrtc_version) < needed:
        return _no(
            f"NVRTC is {facts.nvrtc_version}, and compute capability {_dotted(capability)} needs {_dotted(needed)} or "
            "newer.",
            INSTALL_CUDA,
        )
    if facts.cuda_obstacle:
        return _no(
            _sentence(facts.cuda_obstacle), _mend_import(facts.cuda_obstacle.partition("(")[2], "cuda", INSTALL_CUDA)
        )
    if error := facts.trial_errors.get("cuda"):
        return _failed_trial(facts, "CUDA C++", error)
    reason = f"Compiled by NVRTC {facts.nvrtc_version} for compute capability {_dotted(capability)}."
    if capability < BFLOAT16_CAPABILITY:
        reason += " bfloat16 is refused there, use float16."
    return Verdict(True, "compiled", reason)


def _torch_itself(facts: Facts) -> Verdict:
    if missing := _no_torch(facts):
        return missing
    fix = None
    no_gpu = None if facts.torch_hip else _no_gpu(facts, "it", (0, 0))
    if facts.on_gpu and facts.torch_hip:
        reason = f"torch {facts.torch_version} runs on this AMD GPU, by ROCm {facts.torch_hip}."
    elif facts.on_gpu and no_gpu:
        reason, fix = f"torch {facts.torch_version} is here, but: {no_gpu.reason}", no_gpu.fix
    elif not facts.on_gpu:
        reason = f"torch {facts.torch_version} runs on the CPU."
        if no_gpu and facts.has_gpu and not facts.torch_reaches_gpu:
            reason, fix = f"{reason} {no_gpu.reason}", no_gpu.fix
    elif facts.torch_archs and not _has_code(facts):
        capability = _dotted(facts.compute_capability)
        reason = f"torch {facts.torch_version} has no code for compute capability {capability}, so CUDA tensors fail."
        fix = _torch_with_code(facts)
    else:
        reason = f"torch {facts.torch_version} runs on this GPU."
    if _pair(facts.torch_version) < TORCH_OLDEST:
        reason += f" tilekit needs {_dotted(TORCH_OLDEST)} or newer."
        fix = fix or INSTALL_TORCH
    return Verdict(True, "compiled", reason, fix)


def _torch_with_code(facts: Facts) -> str:
    if facts.compute_capability is None:
        return INSTALL_TORCH
    if facts.compute_capability < (7, 5):
        return "install a torch build for CUDA 12.6, whose code goes back to sm_50"
    return "install a newer torch build, with code for sm_{}{}".format(*facts.compute_capability)


def _has_code(facts: Facts) -> bool:
    """Binary code runs on the same major capability and newer minors; PTX ("compute_90") on everything newer."""
    capability = facts.compute_capability
    for name in facts.torch_archs:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
        if not match:
            continue
        code = (int(match[2]), int(match[3]))
        # "a" code runs on exactly its own architecture.
        same_family = code == capability if match[4] == "a" else code[0] == capability[0] and code <= capability
        if same_family or (match[1] == "compute" and not match[4] and code <= capability):
            return True
    return False


def as_dict(facts: Facts) -> dict:
    """Facts and what follows from them as plain data, for ``doctor --json``."""
    return {"facts": asdict(facts), **asdict(assess(facts))}
