"""What this machine has, and which backends that allows: facts -> rules -> verdicts.

:func:`collect_facts` looks at the machine and never raises for what it finds. :func:`assess` turns facts into verdicts
and looks at nothing, so a simulated machine is a :class:`Facts`. :func:`probe` does both, once a device.
"""

import ctypes
import functools
import html
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

from tilekit import triton_mode

# The rules' numbers, each with what makes it true.
CUTILE_CAPABILITY = (8, 0)  # cuda-tile's documentation, "Requirements": Ampere and newer
CUTILE_DRIVER_CUDA = (13, 0)  # release 580
TILEIRAS_FOR = {8: (13, 2), 9: (13, 3), 10: (13, 1), 11: (13, 1), 12: (13, 1)}  # by the capability's major number
TRITON_CAPABILITY = (7, 5)  # what Triton 3.4 and newer are tested for
BFLOAT16_CAPABILITY = (8, 0)  # also the first with tensor cores that Triton uses since 3.3
TRITON_OLDEST, TORCH_OLDEST, CUTILE_OLDEST = (3, 4), (2, 8), (1, 7)

CUTILE_REQUIREMENTS = (
    "cuda-tile>=1.7",
    "nvidia-cuda-tileiras==13.4.*",
    "nvidia-cuda-nvcc==13.4.*",
    "nvidia-nvvm==13.4.*",
)
INSTALL_CUTILE = "pip install " + " ".join(f'"{requirement}"' for requirement in CUTILE_REQUIREMENTS)
INSTALL_TRITON = 'pip install "triton>=3.4"'
INSTALL_TORCH = 'pip install "torch>=2.8"'
UPDATE_DRIVER = "update the NVIDIA driver to release 580 or newer (on Windows and WSL2: the Windows driver)"

_DRIVER_TIMEOUT_S = 20


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
    device: str = ""  # "cuda:0", "cpu"; empty: the GPU if there is one that torch can use
    numpy_version: str | None = None
    triton_mode: str | None = None  # of this process; None: what suits the device
    triton_obstacle: tuple[str, str] | None = None  # why the mode does not suit, and the way out
    import_problems: Mapping[str, str] = field(default_factory=dict)  # package -> what its import raised
    driver_problem: str | None = None
    gpu_is_amd: bool = False

    @property
    def on_gpu(self) -> bool:
        """Whether torch's tensors can be on this GPU, so that kernels would be compiled for it."""
        if self.device:
            return self.device.startswith("cuda")
        has_gpu = self.compute_capability is not None and self.driver_cuda is not None
        return has_gpu and self.torch_version is not None and self.torch_cuda is not None and self.torch_hip is None


@dataclass(frozen=True)
class Verdict:
    """Whether a backend is usable for tensors of one device, how, why, and what would change it."""

    usable: bool
    mode: str | None  # "compiled", "interpreted" or None
    reason: str
    fix: str | None = None


@dataclass(frozen=True)
class Environment:
    """The verdicts for tensors on one device. Prints as a table; renders as one in a notebook."""

    device: str
    gpu: str | None
    backends: dict[str, Verdict]
    best: str

    def __str__(self):
        lines = [f"device: {self.device}" + (f" ({self.gpu})" if self.gpu else ""), f"best backend: {self.best}", ""]
        for name, verdict in self.backends.items():
            head = f"{name:<8}{'usable' if verdict.usable else 'not usable':<12}{verdict.mode or '-':<13}"
            text = verdict.reason + (f" To change that: {verdict.fix}" if verdict.fix else "")
            body = textwrap.wrap(text, 100 - len(head), break_long_words=False, break_on_hyphens=False) or [""]
            lines += [head + body[0], *(" " * len(head) + line for line in body[1:])]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self):
        rows = "".join(
            f"<tr><td><b>{html.escape(name)}</b></td><td>{'&#10003; usable' if v.usable else '&#10007; not usable'}</td>"
            f"<td>{html.escape(v.mode or '-')}</td><td style='text-align:left'>{html.escape(v.reason)}</td>"
            f"<td style='text-align:left'>{f'<code>{html.escape(v.fix)}</code>' if v.fix else ''}</td></tr>"
            for name, v in self.backends.items()
        )
        gpu = f" ({html.escape(self.gpu)})" if self.gpu else ""
        return (
            f"<p>Tensors on <b>{html.escape(self.device)}</b>{gpu}; best backend: <b>{html.escape(self.best)}</b></p>"
            "<table><thead><tr><th>backend</th><th>usable?</th><th>mode</th><th>why</th><th>what would change it</th>"
            f"</tr></thead><tbody>{rows}</tbody></table>"
        )


def probe(device=None, *, refresh: bool = False, trial: bool = True) -> Environment:
    """What tensors on `device` can be computed with.

    Args:
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, an index or a ``torch.device``; ``None`` is the current CUDA device,
            or the CPU where torch has none.
        refresh: look again, and repeat the trial runs, instead of answering from what was found before.
        trial: on a GPU, have each compiled backend run one tiny kernel first (in a process of its own, remembered on
            disk). Without it, the verdicts follow from the versions alone.

    Raises:
        ValueError: `device` names no device, or one that is not there.

    >>> probe("cpu").best
    'torch'
    """
    name = _device_name(device)
    if refresh:
        _probed.cache_clear()
        from tilekit import trial as trials

        trials.forget()
        backends = sys.modules.get("tilekit.backends")
        if backends is not None:
            backends.forget()
    return _probed(name, trial)


@functools.cache
def _probed(name: str, trial: bool) -> Environment:
    return assess(collect_facts(name, trial=trial))


def _torch():
    """torch, or ``None`` where its import fails, whatever it raises."""
    try:
        import torch

        torch.version.cuda  # noqa: B018  a half-imported torch lacks it
        return torch
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def _cuda_count(torch) -> int:
    """How many CUDA devices torch can use. ROCm's GPUs do not count, though torch calls them "cuda" too."""
    try:
        return torch.cuda.device_count() if torch.version.cuda and torch.cuda.is_available() else 0
    except Exception:
        return 0


def _device_name(device) -> str:
    torch = _torch()
    count = _cuda_count(torch) if torch else 0
    if device is None:
        return f"cuda:{torch.cuda.current_device()}" if count else "cpu"
    text = f"cuda:{device}" if isinstance(device, int) and not isinstance(device, bool) else str(device)
    if text == "cpu":
        return text
    match = re.fullmatch(r"cuda(?::(\d+))?", text)
    if not match:
        if torch and isinstance(device, torch.device):
            return "cpu"  # mps, xpu, meta: what holds there is what holds on a CPU, torch alone
        raise ValueError(f"probe: device must be 'cpu', 'cuda', 'cuda:N' or an index; got {device!r}")
    if not count:
        raise ValueError(f"probe: there is no {text} that torch can use; this machine has: cpu")
    index = int(match[1]) if match[1] else torch.cuda.current_device()
    if index >= count:
        there = ", ".join(["cpu", *(f"cuda:{i}" for i in range(count))])
        raise ValueError(f"probe: there is no cuda:{index}; this machine has: {there}")
    return f"cuda:{index}"


# --- facts ---------------------------------------------------------------------------------------------------------


def collect_facts(device=None, *, trial: bool = True) -> Facts:
    """Look at the machine. Raises for a wrong `device` only, never for what the machine is like; see :func:`probe`."""
    import platform

    name = _device_name(device)
    facts = {
        "platform": sys.platform,
        "machine": platform.machine(),
        "python": sys.version_info[:2],
        "device": name,
        "numpy_version": _version("numpy"),
        "triton_version": _version("triton") or _version("triton-windows"),
        "cuda_tile_version": _version("cuda-tile"),
        "nvrtc_version": _version("nvidia-cuda-nvrtc") or _version("nvidia-cuda-nvrtc-cu12"),
        "torch_version": _version("torch"),
    }
    problems = {}
    torch = _torch()
    if torch is None:
        if facts["torch_version"]:
            problems["torch"] = _import_problem("torch")
    else:
        facts |= {
            "torch_version": str(torch.__version__),
            "torch_cuda": torch.version.cuda,
            "torch_hip": getattr(torch.version, "hip", None),
        }
    facts["driver_cuda"], facts["driver_problem"] = _driver()
    facts |= _gpu(torch, name)
    facts["tileiras_version"], facts["tileiras_problem"] = _tileiras()
    if facts["triton_version"]:
        facts["triton_mode"] = triton_mode.mode()
        facts["triton_obstacle"] = triton_mode.obstacle("cuda" if name != "cpu" else "cpu")
    on_gpu = name != "cpu"
    packages = (("triton", "triton_version", True), ("cuda.tile", "cuda_tile_version", on_gpu))
    for package, key, wanted in packages:
        if facts[key] and wanted and (problem := _import_problem(package)):
            problems[package] = problem
    facts["import_problems"] = problems
    found = Facts(**facts)
    return Facts(**{**facts, "trial_errors": _trial_errors(found, trial)})


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except Exception:
        return None


def _import_problem(package: str) -> str | None:
    """What importing a package raises, as one line; ``None`` when it imports."""
    try:
        __import__(package)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        words = " ".join(str(error).split())
        return f"{type(error).__name__}: {words}" if words else type(error).__name__
    return None


_ASK_DRIVER = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
version = ctypes.c_int()
code = library.cuDriverGetVersion(ctypes.byref(version)) or library.cuInit(0)
print(version.value, code)
"""


@functools.cache
def _driver() -> tuple[tuple[int, int] | None, str | None]:
    """The newest CUDA that the driver supports, and what is wrong with the driver. Asked in a process of its own,
    because a broken driver can hang or crash whoever calls it."""
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    if sys.platform == "darwin" or not _loadable(library):
        return None, None
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _ASK_DRIVER, library],
            capture_output=True,
            text=True,
            timeout=_DRIVER_TIMEOUT_S,
        )
        version, code = map(int, done.stdout.split())
    except subprocess.TimeoutExpired:
        return None, f"the NVIDIA driver did not answer within {_DRIVER_TIMEOUT_S} seconds"
    except (OSError, ValueError):
        return None, "the NVIDIA driver's library is there, but calling it fails"
    cuda = (version // 1000, version % 1000 // 10) if version else None
    if code == 100:
        return cuda, "the NVIDIA driver is there, but it finds no GPU"
    if code:
        return cuda, f"the NVIDIA driver does not start (CUDA error {code}; after an update, reboot)"
    return cuda, None


def _loadable(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _gpu(torch, name: str) -> dict:
    """Name, capability and torch's architectures. For the CPU, too, the first GPU that torch sees is named."""
    if torch is None or not _cuda_count(torch):
        amd = bool(torch is not None and getattr(torch.version, "hip", None))
        return {"gpu_name": _gpu_name_from_driver(), "gpu_is_amd": amd}
    index = 0 if name == "cpu" else int(name.partition(":")[2])
    try:
        return {
            "gpu_name": torch.cuda.get_device_name(index),
            "compute_capability": torch.cuda.get_device_capability(index),
            "torch_archs": tuple(torch.cuda.get_arch_list()),
        }
    except Exception as error:
        return {"driver_problem": f"torch cannot use the GPU: {' '.join(str(error).split())}"}


def _gpu_name_from_driver() -> str | None:
    """The first GPU as ``nvidia-smi`` names it, for a torch that cannot see it."""
    command = shutil.which("nvidia-smi")
    if not command:
        return None
    try:
        ask = [command, "--query-gpu=name", "--format=csv,noheader"]
        done = subprocess.run(ask, capture_output=True, text=True, timeout=_DRIVER_TIMEOUT_S)
        return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else None
    except (OSError, subprocess.SubprocessError):
        return None


_COMPILER_PARTS = {"tileiras": "nvidia-cuda-tileiras", "ptxas": "nvidia-cuda-nvcc", "libnvvm": "nvidia-nvvm"}


def _tileiras() -> tuple[str | None, str | None]:
    """The version of the compiler that cuda-tile would take, and what is wrong with it.

    cuda-tile looks for pip's wheels first, then on the PATH, then under CUDA_HOME.
    """
    versions = {part: _version(distribution) for part, distribution in _COMPILER_PARTS.items()}
    if versions["tileiras"]:
        missing = [part for part, version in versions.items() if not version]
        if missing:
            return versions["tileiras"], f"{' and '.join(missing)} of the compiler is not installed beside tileiras"
        if len({_pair(version) for version in versions.values()}) > 1:
            words = ", ".join(f"{part} {version}" for part, version in versions.items())
            return versions["tileiras"], f"the compiler's parts are of different versions ({words})"
        return versions["tileiras"], None
    home = os.environ.get("CUDA_PATH" if sys.platform == "win32" else "CUDA_HOME") or os.environ.get("CUDA_HOME")
    path = shutil.which("tileiras") or (home and shutil.which("tileiras", path=os.path.join(home, "bin")))
    if not path:
        return None, None
    version = _version_that_prints([path, "--version"])
    if home:
        toolkit = _toolkit_version(Path(home))
        if version and toolkit and _pair(toolkit) != _pair(version):
            return version, f"CUDA_HOME points at toolkit {toolkit}, whose libnvvm hides that of tileiras {version}"
    return version, None if version else "tileiras is on the PATH, but does not say its version"


def _version_that_prints(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DRIVER_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"\b[Vv]?(\d+\.\d+(?:\.\d+)?)", done.stdout)
    return match[1] if match else None


def _toolkit_version(home: Path) -> str | None:
    try:
        return json.loads((home / "version.json").read_text())["cuda"]["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _trial_errors(facts: Facts, trial: bool) -> dict[str, str]:
    """What failed when each backend that the versions allow computed something small."""
    if not facts.on_gpu:
        if facts.triton_mode == "interpreted" and "triton" not in facts.import_problems and facts.torch_version:
            problem = triton_mode.self_test()
            return {"triton": problem} if problem else {}
        return {}
    if not trial:
        return {}
    from tilekit import trial as trials

    verdicts = assess(facts).backends
    errors = {}
    for backend in ("cutile", "triton"):
        if verdicts[backend].usable and (problem := trials.run(backend, int(facts.device.partition(":")[2]), facts)):
            errors[backend] = problem
    return errors


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
        "torch": _torch_verdict(facts),
    }
    best = "torch"
    if facts.on_gpu:
        best = next((n for n in ("cutile", "triton") if verdicts[n].usable and verdicts[n].mode == "compiled"), "torch")
    device = facts.device or ("cuda:0" if facts.on_gpu else "cpu")
    return Environment(device, facts.gpu_name, verdicts, best)


def _no(reason: str, fix: str | None = None) -> Verdict:
    return Verdict(False, None, reason, fix)


def _capability(facts: Facts) -> str:
    return "{}.{}".format(*facts.compute_capability)


def _pair(version: str | None) -> tuple[int, int]:
    """``"13.4.92"`` as ``(13, 4)``; what is no version counts as too old."""
    match = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _dotted(pair: tuple[int, int]) -> str:
    return ".".join(map(str, pair))


def _torch_missing(facts: Facts) -> Verdict | None:
    if "torch" in facts.import_problems:
        return _no(
            f"torch is installed but does not import ({facts.import_problems['torch']}).",
            INSTALL_TORCH + " --force-reinstall",
        )
    if not facts.torch_version:
        return _no("torch is not installed, and every backend works on its tensors.", INSTALL_TORCH)
    return None


def _no_gpu(facts: Facts, what: str) -> Verdict | None:
    """Why there is no NVIDIA GPU that torch's tensors could be on: hardware first, then the driver, then torch."""
    if facts.on_gpu and facts.compute_capability is not None:
        return None
    if facts.platform == "darwin":
        return _no(f"macOS has no NVIDIA GPU, and {what} needs one.", "run the lesson in Colab")
    if facts.torch_hip or facts.gpu_is_amd:
        return _no(
            f"torch is a ROCm build, for AMD GPUs, and {what} needs an NVIDIA GPU.",
            "use a machine with an NVIDIA GPU, such as Colab",
        )
    if facts.device == "cpu" and facts.compute_capability is not None and facts.torch_cuda:
        return _no(
            f"A CPU tensor cannot be computed by {what}, which runs on the GPU.",
            "move the tensors to the GPU: x.to('cuda')",
        )
    if facts.driver_problem:
        return _no(f"{facts.driver_problem[0].upper()}{facts.driver_problem[1:]}.", UPDATE_DRIVER)
    has_gpu = facts.gpu_name is not None or facts.compute_capability is not None
    if facts.driver_cuda is None:
        if has_gpu:
            return _no("The NVIDIA driver is missing or does not load, so the GPU cannot be used.", UPDATE_DRIVER)
        return _no(
            f"There is no NVIDIA GPU with a driver here, and {what} needs one.",
            "run the lesson in Colab, or install the NVIDIA driver",
        )
    if not facts.torch_cuda:
        return _no(
            "There is a GPU, but torch is a CPU build, so tensors can only be on the CPU.",
            "pip uninstall torch, then pip install torch (from the default index: a CUDA build on Linux)",
        )
    return _no(
        "The NVIDIA driver is there, but torch finds no GPU it can use.",
        "check CUDA_VISIBLE_DEVICES, and run nvidia-smi",
    )


def _cutile(facts: Facts) -> Verdict:
    if missing := _torch_missing(facts):
        return missing
    if not facts.on_gpu and facts.compute_capability is None or facts.device == "cpu":
        verdict = _no_gpu(facts, "cuTile")
        later = " Running it on a CPU comes with a later part of tilekit."
        return verdict and _no(verdict.reason + later, verdict.fix)
    capability = facts.compute_capability
    if capability is not None and capability < CUTILE_CAPABILITY:
        return _no(
            f"This GPU has compute capability {_capability(facts)}, and cuTile needs {_dotted(CUTILE_CAPABILITY)} or newer."
        )
    if no_gpu := _no_gpu(facts, "cuTile"):
        return no_gpu
    if facts.driver_cuda < CUTILE_DRIVER_CUDA:
        return _no(
            f"The NVIDIA driver supports CUDA {_dotted(facts.driver_cuda)}, and cuTile needs "
            f"{_dotted(CUTILE_DRIVER_CUDA)} (driver release 580 or newer).",
            UPDATE_DRIVER,
        )
    if not facts.cuda_tile_version:
        return _no("The package cuda-tile is not installed.", INSTALL_CUTILE)
    if problem := facts.import_problems.get("cuda.tile"):
        return _no(f"The package cuda-tile does not import ({problem}).", INSTALL_CUTILE)
    needed = TILEIRAS_FOR.get(capability[0])
    if needed is None:
        return _no(f"cuTile's compiler has no target for compute capability {_capability(facts)} yet.", INSTALL_CUTILE)
    if not facts.tileiras_version:
        return _no(f"cuTile's compiler, tileiras, is not installed.{_sentence(facts.tileiras_problem)}", INSTALL_CUTILE)
    if facts.tileiras_problem:
        fix = "unset CUDA_HOME CUDA_PATH" if "CUDA_HOME" in facts.tileiras_problem else INSTALL_CUTILE
        return _no(f"cuTile's compiler is not whole:{_sentence(facts.tileiras_problem, capital=False)}", fix)
    if _pair(facts.tileiras_version) < needed:
        return _no(
            f"cuTile's compiler is tileiras {facts.tileiras_version}, and compute capability {_capability(facts)} needs "
            f"{_dotted(needed)} or newer." + _trap(facts),
            INSTALL_CUTILE,
        )
    if _pair(facts.cuda_tile_version) < CUTILE_OLDEST:
        return _no(
            f"cuda-tile is {facts.cuda_tile_version}, and tilekit needs {_dotted(CUTILE_OLDEST)} or newer."
            + _trap(facts),
            INSTALL_CUTILE,
        )
    if error := facts.trial_errors.get("cutile"):
        return _no(f"A tiny cuTile kernel did not run:{_sentence(error, capital=False)}", INSTALL_CUTILE)
    return Verdict(
        True, "compiled", f"Compiled by tileiras {facts.tileiras_version} for compute capability {_capability(facts)}."
    )


def _trap(facts: Facts) -> str:
    """How an old compiler comes beside a new torch."""
    if _pair(facts.torch_version) >= (2, 11):
        return (
            " Installing cuda-tile with its extra 'tileiras' beside torch 2.11 or newer ends there, because torch pins the "
            "CUDA toolkit; naming the compiler's own wheels does not."
        )
    return ""


def _sentence(text: str | None, capital: bool = True) -> str:
    if not text:
        return ""
    text = text.strip().rstrip(".")
    return f" {text[0].upper() if capital else text[0]}{text[1:]}."


def _triton(facts: Facts) -> Verdict:
    if missing := _torch_missing(facts):
        return missing
    if facts.platform == "darwin":
        return _no("Triton has no package for macOS.", "run the lesson in Colab")
    if facts.on_gpu or facts.compute_capability is not None and facts.device != "cpu":
        capability = facts.compute_capability
        if capability is not None and capability < TRITON_CAPABILITY:
            return _no(
                f"This GPU has compute capability {_capability(facts)}, and Triton needs {_dotted(TRITON_CAPABILITY)} or newer."
            )
        if no_gpu := _no_gpu(facts, "compiled Triton"):
            return no_gpu
    if facts.torch_hip:
        return _no(
            "torch is a ROCm build, for AMD GPUs; tilekit's Triton kernels are made for NVIDIA GPUs.",
            "use a machine with an NVIDIA GPU, such as Colab",
        )
    if not facts.triton_version:
        if facts.platform == "win32":
            return _no(
                "Triton has no official package for Windows.",
                "use WSL2, or the third party's package: pip install triton-windows",
            )
        return _no("The package triton is not installed.", INSTALL_TRITON)
    if problem := facts.import_problems.get("triton"):
        return _no(f"The package triton does not import ({problem}).", INSTALL_TRITON)
    if _pair(facts.triton_version) < TRITON_OLDEST:
        return _no(
            f"Triton is {facts.triton_version}, and tilekit needs {_dotted(TRITON_OLDEST)} or newer.", INSTALL_TRITON
        )
    if facts.triton_obstacle:
        reason, fix = facts.triton_obstacle
        return _no(_sentence(reason).strip(), fix)
    return _compiled_triton(facts) if facts.on_gpu else _interpreted_triton(facts)


def _compiled_triton(facts: Facts) -> Verdict:
    if error := facts.trial_errors.get("triton"):
        return _no(f"A tiny Triton kernel did not run:{_sentence(error, capital=False)}", INSTALL_TRITON)
    reason = f"Compiled by Triton {facts.triton_version} for compute capability {_capability(facts)}."
    if facts.compute_capability < BFLOAT16_CAPABILITY:
        reason += (
            " Dots run without tensor cores there, so matrix kernels are slow, and bfloat16 is refused: use float16."
        )
    return Verdict(True, "compiled", reason)


def _interpreted_triton(facts: Facts) -> Verdict:
    if _pair(facts.triton_version) <= (3, 6) and _pair(facts.numpy_version) >= (2, 4):
        return _no(
            f"Triton {facts.triton_version} cannot interpret loops beside NumPy {facts.numpy_version}.",
            'pip install "triton>=3.7" (or "numpy<2.4")',
        )
    if error := facts.trial_errors.get("triton"):
        return _no(f"Triton's interpreter failed its self-test:{_sentence(error, capital=False)}", INSTALL_TRITON)
    return Verdict(
        True, "interpreted", f"Triton {facts.triton_version} interprets kernels on the CPU: right, but slow."
    )


def _cuda(facts: Facts) -> Verdict:
    if missing := _torch_missing(facts):
        return missing
    if no_gpu := _no_gpu(facts, "CUDA C++"):
        return no_gpu
    ready = f"NVRTC {facts.nvrtc_version} is there to compile them" if facts.nvrtc_version else "NVRTC is not installed"
    return _no(f"The CUDA C++ kernels come with a later part of tilekit. On this machine, {ready}.")


def _torch_verdict(facts: Facts) -> Verdict:
    if missing := _torch_missing(facts):
        return missing
    fix = None
    if not facts.on_gpu:
        reason = f"torch {facts.torch_version} runs on the CPU."
    else:
        reason = f"torch {facts.torch_version} runs on this GPU."
        architecture = "sm_{}{}".format(*facts.compute_capability) if facts.compute_capability else ""
        if architecture and facts.torch_archs and not _has_code(facts):
            reason = f"torch {facts.torch_version} has no code for compute capability {_capability(facts)}, so CUDA tensors fail."
            fix = f"install a torch build that lists {architecture} (for Volta and older, one for CUDA 12.6)"
    if _pair(facts.torch_version) < TORCH_OLDEST:
        reason += f" tilekit is tested with {_dotted(TORCH_OLDEST)} and newer."
        fix = fix or INSTALL_TORCH
    return Verdict(True, "compiled" if facts.on_gpu else None, reason, fix)


def _has_code(facts: Facts) -> bool:
    """Binary code runs on the same major capability and newer minors; PTX ("compute_90") on everything newer."""
    major, minor = facts.compute_capability
    for name in facts.torch_archs:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", name)
        if match and (
            (match[1] == "sm" and int(match[2]) == major and int(match[3]) <= minor)
            or (match[1] == "compute" and (int(match[2]), int(match[3])) <= (major, minor))
        ):
            return True
    return False


def as_dict(facts: Facts, environment: Environment) -> dict:
    """Facts and verdicts as plain data, for ``doctor --json``."""
    return {"facts": asdict(facts), **asdict(environment)}
