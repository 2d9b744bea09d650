"""The backends by name, and the choice among them.

A backend is one way of writing a kernel: ``cutile``, ``triton``, ``cuda`` (CUDA C++) or ``torch``. Every kernel's
folder has one file for each, ``kernels/softmax/triton_kernel.py`` say, whose ``launch`` takes the tensors and
returns the result. :func:`run` finds the right ``launch`` and calls it; nothing lies between the two.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module

import torch
from torch import Tensor
from torch.compiler import is_compiling

from tilekit import arguments, environment, kernels, operators, triton_mode
from tilekit.plans import CannotServe


class BackendUnavailable(RuntimeError):
    """A backend that was asked for by name cannot run here. The text says why and what would change it."""


@dataclass(frozen=True)
class Backend:
    """What a backend can do at all, whatever the kernel."""

    name: str
    dtypes: frozenset[torch.dtype]
    device_types: frozenset[str] | None  # None: wherever torch has tensors


_HALF_AND_SINGLE = frozenset({torch.float16, torch.bfloat16, torch.float32})

BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("cutile", _HALF_AND_SINGLE, frozenset({"cpu", "cuda"})),
        Backend("triton", _HALF_AND_SINGLE, frozenset({"cpu", "cuda"})),
        Backend("cuda", _HALF_AND_SINGLE, frozenset({"cuda"})),
        Backend("torch", _HALF_AND_SINGLE | {torch.float64}, None),
    )
}
_NAMES = ("auto", *BACKENDS)
_AUTO_ON_GPU = ("cutile", "triton", "torch")

_NO_TRANSFORMS = (
    "takes plain tensors only, not those inside torch.func's transforms or forward-mode differentiation, nor subclasses "
    "with their own operators; use backend='torch'"
)

_LATER = ""  # an operator's backend where the caller named none: settled when the operator runs

_in_context: ContextVar[str | None] = ContextVar("tilekit backend", default=None)


def available() -> tuple[str, ...]:
    """The names of the backends that are usable on the current device: first those that auto tries, in its order.

    >>> "torch" in available()
    True
    """
    verdicts = environment.probe().backends
    return tuple(name for name in (*_AUTO_ON_GPU, "cuda") if verdicts[name].usable)


def everywhere() -> tuple[tuple[str, str], ...]:
    """Each backend that runs in this process, with the device for its tensors: the CPU where only that is served.

    A T4, say, has triton, torch and cuda on the GPU, and cutile interpreted on the CPU.

    >>> ("torch", environment.probe().device) in everywhere()
    True
    """
    here, on_cpu = environment.probe(), environment.probe("cpu")
    names = (*_AUTO_ON_GPU, "cuda")
    chosen = {name: next((e for e in (here, on_cpu) if e.backends[name].usable), None) for name in names}
    return tuple((name, found.device) for name, found in chosen.items() if found)


@contextmanager
def use_backend(name: str | None) -> Iterator[None]:
    """Run every kernel in the ``with`` block on one backend; ``None`` or ``"auto"`` gives the choice back to auto.

    A ``backend=`` on the call itself goes before it; the environment variable ``TILEKIT_BACKEND`` comes after.
    Holds for the current thread or task only. Put it around the call of a compiled function, not into the function:
    what is compiled asks for the backend whenever it runs. (Its backward pass may run in a thread of torch's own, where
    auto chooses; name the backend on the call where that matters.)

    >>> import tilekit, torch
    >>> with tilekit.use_backend("torch"):
    ...     tilekit.vadd(torch.ones(2), torch.ones(2))
    tensor([2., 2.])
    """
    token = _in_context.set(_checked("auto" if name is None else name, "use_backend"))
    try:
        yield
    finally:
        _in_context.reset(token)


def _checked(name: str, where: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{where}: a backend's name is a string, or None for auto's choice; got {type(name).__name__}")
    if name not in _NAMES:
        known = ", ".join(map(repr, _NAMES))
        raise ValueError(f"{where}: unknown backend {name!r}; wanted one of {known}")
    return name


def run(kernel: str, backend: str | None, arrays: tuple[Tensor, ...], *parameters):
    """Launch `kernel` for these tensors, which share dtype and device, on the backend that the caller chose.

    Raises :class:`BackendUnavailable` when a backend named by the user cannot run here, ``ValueError`` when it
    cannot serve these arguments. Auto takes the next one instead, and says so once.
    """
    if is_compiling():
        name = _LATER if backend is None else _checked(backend, kernel)
        if arguments.in_transform():  # to which an operator is a constant, or an error
            if name not in (_LATER, "auto", "torch"):
                raise ValueError(f"{kernel}: backend {name!r} {_NO_TRANSFORMS}")
            return _TORCHS_LAUNCH[kernel](*arrays, *parameters)
        return operators.call(kernel, name, (*arrays, *parameters))
    if backend is None:
        name = _in_context.get() or _from_environment() or "auto"
    else:
        name = backend if type(backend) is str else _checked(backend, kernel)
    return _launch(kernel, name, arguments.wanted_besides(arrays), arrays, parameters)


def _launch(kernel, name, besides, arrays, parameters):
    first = arrays[0]
    device = first.device
    key = (kernel, name, device, first.dtype, besides)
    launches = _launches.get(key)
    if launches is None:
        launches = _launches[key] = _find_launches(*key)
    if _several_gpus and device.type == "cuda" and device.index != _current_device():
        with torch.cuda.device(device):
            return _first_that_serves(kernel, launches, arrays, parameters)
    return _first_that_serves(kernel, launches, arrays, parameters)


def _run_operator(kernel, name, *inputs):
    """What torch calls when an operator is to run at last: plain tensors, and gradients are its own concern."""
    return _launch(kernel, _now(name), "", inputs, ())


def _run_backward(kernel, name, *inputs):
    return _launch(kernel, _now(name), "a backward pass", inputs, ())


def _now(name: str) -> str:
    return (_in_context.get() or _from_environment() or "auto") if name == _LATER else name


operators.register(_run_operator, _run_backward)


def _from_environment() -> str | None:
    name = os.environ.get("TILEKIT_BACKEND")
    return name if name in (None, "", *_NAMES) else _checked(name, "environment variable TILEKIT_BACKEND")


def _first_that_serves(kernel, launches, arrays, parameters):
    for name, launch in launches:
        try:
            return launch(*arrays, *parameters)
        except CannotServe as refusal:
            whose = f"{kernel}: backend {name!r} "
            reason = str(refusal).removeprefix(whose)  # an operator within this launch has said so already
            if name == launches[-1][0]:
                raise CannotServe(whose + reason) from None
            _warn_once(kernel, name, reason)


_several_gpus = torch.cuda.device_count() > 1  # with one GPU it is always the current one
# Half a microsecond less than torch's own function, which first asks whether CUDA is there: a tensor lies on it.
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)

# (kernel, backend name, device, dtype, what is wanted besides) -> the launches to try, with their backends' names.
_launches: dict[tuple, list[tuple[str, Callable]]] = {}


def forget() -> None:
    """Forget which backends were found usable: for tests, and after ``probe(refresh=True)``."""
    _launches.clear()


def _find_launches(kernel, name, device, dtype, besides) -> list[tuple[str, Callable]]:
    _checked(name, kernel)
    if name != "auto":
        _require(kernel, name, device)
        refusal = _refusal(name, device, dtype, besides)
        if refusal:
            raise ValueError(f"{kernel}: backend {name!r} {refusal}")
        return [(name, _launch_of(kernel, name, device, dtype, besides))]
    if device.type != "cuda":
        return [("torch", _launch_of(kernel, "torch", device, dtype, besides))]
    found = []
    verdicts = environment.probe(device).backends
    for candidate in _AUTO_ON_GPU:
        if candidate != "torch" and not verdicts[candidate].usable:
            continue
        refusal = _refusal(candidate, device, dtype, besides)
        if refusal:
            _warn_once(kernel, candidate, refusal)
        else:
            found.append((candidate, _launch_of(kernel, candidate, device, dtype, besides)))
    return found


def _require(kernel: str, name: str, device: torch.device) -> None:
    """Raise :class:`BackendUnavailable` unless `name` can run on `device`. No trial run: the call is the trial."""
    if name == "torch":
        return
    if name == "triton" and device.type in ("cpu", "cuda"):
        obstacle = triton_mode.obstacle(device.type)
        if obstacle:
            raise BackendUnavailable(_sentence(kernel, name, device, *obstacle))
    served = BACKENDS[name].device_types
    if device.type not in served and device.type != "cpu":
        fix = f"use a tensor on {' or '.join(sorted(served))}, or backend='torch'"
        raise BackendUnavailable(_sentence(kernel, name, device, f"it has no kernels for {device.type} tensors", fix))
    verdict = environment.probe(device, trial=False).backends[name]
    if not verdict.usable:
        raise BackendUnavailable(_sentence(kernel, name, device, verdict.reason, verdict.fix))


def _sentence(kernel, name, device, reason, fix) -> str:
    text = f"{kernel}: backend {name!r} cannot run on {device}: {reason.rstrip('.')}."
    return text + (f" To change that: {fix.rstrip('.')}." if fix else "")


def _refusal(name: str, device: torch.device, dtype: torch.dtype, besides: str) -> str | None:
    """Why a backend that runs here does not serve this dtype or transforms; ``None`` when it does."""
    backend = BACKENDS[name]
    if dtype not in backend.dtypes:
        return f"has no {str(dtype).removeprefix('torch.')} kernels; use backend='torch', or another dtype"
    if besides == "a transform" and name != "torch":
        return _NO_TRANSFORMS
    if name in ("triton", "cuda") and device.type == "cuda" and dtype is torch.bfloat16:
        capability = torch.cuda.get_device_capability(device)
        if capability < (8, 0):
            return (
                f"does not serve bfloat16 on compute capability {capability[0]}.{capability[1]}, which has no bfloat16 "
                "arithmetic; use float16"
            )
    return None


def _launch_of(kernel: str, name: str, device: torch.device, dtype: torch.dtype, besides: str = "") -> Callable:
    if name == "torch":
        part = "backward" if besides == "a backward pass" else "kernel"
        return _without_autocast(_imported(kernel, name, part, device))
    if besides == "a trace":
        return lambda *inputs: operators.call(kernel, name, inputs)
    in_float32 = name == "triton" and device.type == "cpu" and dtype is torch.bfloat16
    if besides != "a backward pass":
        forward = _imported(kernel, name, "kernel", device)
        forward = _in_float32(forward) if in_float32 else forward
        if besides != "gradients":
            return forward
    passes = operators.Passes(
        lambda *inputs: run(kernel, name, inputs),
        lambda *inputs: (
            operators.call_backward(kernel, name, inputs) if is_compiling() else _run_backward(kernel, name, *inputs)
        ),
    )
    if besides == "gradients":
        return operators.differentiable(kernel, name, forward, passes)
    backward = _imported(kernel, name, "backward", device)
    return _in_float32(backward, all_results=True) if in_float32 else backward


def _imported(kernel: str, name: str, part: str, device: torch.device) -> Callable:
    try:
        if name == "cutile" and device.type == "cpu":
            from tilekit import cutile_interpreter

            cutile_interpreter.install_standin()  # does nothing where the package cuda-tile is installed
        return import_module(f"tilekit.kernels.{kernel}.{name}_{part}").launch
    except BaseException as error:  # a package may raise anything while it is imported, SystemExit too
        if type(error) is KeyboardInterrupt:
            raise
        reason = f"its package does not import ({environment.in_words(error)})"
        raise BackendUnavailable(_sentence(kernel, name, device, reason, environment.TRY_AGAIN)) from error


def _without_autocast(launch: Callable) -> Callable:
    """The inputs have the dtype that autocast wants already; torch must not cast again inside the torch backend."""

    def launch_without_autocast(first, *rest):
        if not arguments.autocast_is_on(first.device.type):
            return launch(first, *rest)
        with torch.autocast(first.device.type, enabled=False):
            return launch(first, *rest)

    return launch_without_autocast


def _in_float32(launch: Callable, all_results: bool = False) -> Callable:
    """Run a launch in float32 and round its result once, or all of its results.

    Triton's interpreter does bfloat16 arithmetic on the bits as if they were integers, and truncates when it
    stores; both silently. No kernel of ours does arithmetic in bfloat16 anyway, so only the rounding of the
    probabilities in attention is lost on the CPU.
    """

    def launch_in_float32(*arguments):
        result = launch(*(a.float() if isinstance(a, Tensor) else a for a in arguments))
        if all_results and isinstance(result, tuple):
            return tuple(None if part is None else part.to(torch.bfloat16) for part in result)
        if isinstance(result, tuple):  # attention's log-sum-exp is float32 by promise
            return (result[0].to(torch.bfloat16), *result[1:])
        return result.to(torch.bfloat16)

    return launch_in_float32


_warned: set[tuple[str, str]] = set()


def _warn_once(kernel: str, name: str, reason: str) -> None:
    if (name, reason) not in _warned:
        _warned.add((name, reason))
        warnings.warn(f"tilekit.{kernel}: auto leaves {name!r} out: it {reason}", RuntimeWarning, stacklevel=6)


# torch.compile traces no import, and these need nothing but torch.
_TORCHS_LAUNCH = {kernel: import_module(f"tilekit.kernels.{kernel}.torch_kernel").launch for kernel in kernels.NAMES}
