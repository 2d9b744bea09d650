"""Comparing a kernel with its reference, and telling a learner what is wrong."""

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tilekit import arguments, environment, kernels
from tilekit.exercises import triton_memory
from tilekit.exercises.spec import Case, Make, Spec


def tolerance(spec: Spec, args: tuple, kwargs: dict, reference: Tensor, torch_result: Tensor | None) -> float:
    """How far any element of a result may lie from the float64 `reference`.

    The kernel's error is at most the larger of twice the error of torch's own result in the same dtype and a
    floor of sqrt(K) * eps of the arithmetic's dtype, plus one unit in the last place of the result's dtype; the
    last two relative to the scale of the output, its largest finite magnitude.
    """
    dtype = args[0].dtype
    finite = reference[reference.isfinite()].abs()
    scale = finite.max().item() if finite.numel() else 0.0
    arithmetic = torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps
    on_gpu = args[0].device.type == "cuda"
    if spec.matrix_product and dtype is torch.float32 and on_gpu and arguments.tf32_allowed():
        arithmetic = 2.0**-10
    floor = max(1, spec.reduction_length(*args, **kwargs)) ** 0.5 * arithmetic * scale
    torch_error = 0.0
    if torch_result is not None and torch_result.shape == reference.shape:
        both = torch_result.isfinite() & reference.isfinite()
        if both.any():
            torch_error = (torch_result.double()[both] - reference[both]).abs().max().item()
    return max(2 * torch_error, floor) + torch.finfo(dtype).eps * scale


@dataclass(frozen=True)
class Difference:
    """Where a result is wrong: a sentence, and the index of the worst element (``None`` for a wrong shape).

    `result` names the one that is wrong, where a kernel has several.
    """

    message: str
    index: tuple[int, ...] | None = None
    result: str = ""

    def __str__(self):
        return self.message


def difference(result, reference: Tensor, allowed: float, dtype: torch.dtype) -> Difference | None:
    """``None`` when `result` is within `allowed` of `reference` everywhere; NaN and infinities must agree exactly."""
    if not isinstance(result, Tensor):
        return Difference(f"returned {type(result).__name__}; wanted a tensor")
    if result.is_nested:
        return Difference("returned a nested tensor; wanted a dense one")
    if result.shape != reference.shape:
        got, wanted = tuple(result.shape), tuple(reference.shape)
        return Difference(f"returned shape {got}; wanted {wanted}")
    if result.dtype is not dtype:
        return Difference(f"returned dtype {result.dtype}; wanted {dtype}")
    if result.layout is not torch.strided:
        return Difference(f"returned a tensor of layout {result.layout}; wanted a dense one")
    result, reference = result.detach().double().cpu(), reference.double().cpu()
    error = (result - reference).abs()
    # The same infinity on both sides differs by NaN, and NaN on both sides is right.
    same = (result == reference) | (result.isnan() & reference.isnan())
    # What overflows the result's dtype is an infinity there, though float64 still holds it.
    overflow = (reference.abs() > torch.finfo(dtype).max) & (result == reference.sign() * float("inf"))
    wrong = ~(same | overflow) & ~(error <= allowed)
    if not wrong.any():
        return None
    worst = torch.where(wrong, error.nan_to_num(nan=float("inf"), posinf=float("inf")), -1.0).argmax()
    index = tuple(int(i) for i in torch.unravel_index(worst, error.shape))
    count = int(wrong.sum())
    return Difference(
        f"{count} of {wrong.numel()} elements are wrong; the worst is {list(index)}: got "
        f"{result[index].item():.8g}, wanted {reference[index].item():.8g} (allowed error {allowed:.2g})",
        index,
    )


def run_case(spec: Spec, case: Case, function: Callable, make: Make, *, torch_bar: bool = True) -> Difference | None:
    """Call `function` on one case and compare every result with the reference."""
    args, kwargs = case.arguments(make)
    input_dtype, device = args[0].dtype, args[0].device  # `function` may change its inputs
    before = [a.clone() if isinstance(a, Tensor) else a for a in args]
    with torch.no_grad():
        wanted = (case.expected or spec.reference)(*args, **kwargs)
        own = spec.torch_own(*args, **kwargs) if torch_bar and not case.expected else None
        result = function(*args, **kwargs)
    for number, (old, new) in enumerate(zip(before, args, strict=True)):
        if isinstance(old, Tensor) and not _same(old, new):
            return Difference(f"wrote to its input number {number}; inputs must stay as they are")
    if isinstance(result, list) or (isinstance(result, tuple) and len(result) == 1 and not isinstance(wanted, tuple)):
        return Difference(
            f"returned {type(result).__name__}; wanted {'a tuple' if isinstance(wanted, tuple) else 'a tensor'}"
        )
    if result is None:
        return Difference("returned None; wanted a tensor (does it end with a return?)")
    wanted, result, own = _tuple(wanted), _tuple(result), _tuple(own)
    if len(result) != len(wanted):
        return Difference(f"returned {len(result)} result{'s' * (len(result) != 1)}; wanted {len(wanted)}")
    for position, reference in enumerate(wanted):
        # Attention's second result, the log-sum-exp, is float32 whatever the inputs are.
        dtype = input_dtype
        if position == 1 and dtype is not torch.float64:
            dtype = torch.float32
        bar = own[position] if position < len(own) else None
        allowed = tolerance(spec, args, kwargs, reference.double(), bar)
        if isinstance(result[position], Tensor) and result[position].device != device:
            found = Difference(f"returned a tensor on {result[position].device}; wanted {device}")
        else:
            found = difference(result[position], reference, allowed, dtype)
        if found is None and not result[position].is_contiguous():
            found = Difference("returned a result that is not contiguous")
        if found and len(wanted) > 1:
            name = spec.results[position]
            found = replace(found, message=f"result {position}, {name}: {found}", result=name)
        if found:
            return found
    return None


def _same(old: Tensor, new: Tensor) -> bool:
    """Whether the values are the same, where NaN is NaN and nothing else is."""
    if old.dtype is not new.dtype or old.shape != new.shape:
        return False
    return bool(((old == new) | (old.isnan() & new.isnan())).all())


def _tuple(value) -> tuple:
    return value if isinstance(value, tuple) else () if value is None else (value,)


_SHOWN = 3  # findings: one mistake often shows in several ways


@dataclass(frozen=True)
class Verdict:
    """What :func:`check` found. True when everything was right; prints as a few lines for the learner.

    `findings` are the sanitizer's (``tilekit.cutile_interpreter.sanitizer.Finding``), of the case that failed.
    """

    kernel: str
    passed: int
    failed_case: str = ""
    call: str = ""
    problem: str = ""
    hint: str = ""
    seed: int = 0
    findings: tuple = ()

    def __bool__(self):
        return not self.problem

    def __repr__(self):
        if self:
            return f"Right: {self.kernel} passed all {self.passed} cases."
        lines = [
            f"Not yet: {self.kernel} failed the case '{self.failed_case}' (after {self.passed} that passed).",
            f"  call: {self.call}",
            f"  {self.problem}",
        ]
        for number, finding in enumerate(self.findings[:_SHOWN], 1):
            lines += [f"  {line}" for line in f"{number}. {finding}".splitlines()]
        if len(self.findings) > _SHOWN:
            lines.append(f"  ... and {len(self.findings) - _SHOWN} more in .findings")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        lines.append(f"  to repeat: tilekit.check(function, {self.kernel!r}, seed={self.seed})")
        return "\n".join(lines)


def check(
    function: Callable, kernel: str, *, dtype=torch.float32, device=None, seed: int | None = None, sanitize: bool = True
) -> Verdict:
    """Check a learner's `function` against a kernel's specification.

    On CPU tensors ``ct.launch`` interprets inside `function`, and cuTile's kernels are watched: two blocks that write one
    element, a tile out of bounds or a result that depends on padding is a failure, even if the numbers came out right.
    So is an address outside of its arrays that an interpreted Triton kernel reads or writes, which is stopped before it does.

    Args:
        function: takes what ``tilekit.<kernel>`` takes (without ``backend``) and returns the result.
        kernel: ``"vadd"``, ``"fused_gelu"``, ``"softmax"``, ``"matmul"`` or ``"flash_attention"``.
        dtype: dtype of the inputs. float32 by default, where rounding hides the least.
        device: where the inputs are; by default the GPU if this process compiles kernels for one, else the CPU.
        seed: for the same random inputs again; the answer names the one that was used.
        sanitize: whether to watch cuTile kernels for such mistakes, where they are interpreted.

    Returns:
        A verdict that is true when every case was right. Otherwise it prints which case failed, on which
        elements, and how to repeat it. An exception from `function` is part of the verdict, not raised.

    Raises:
        ValueError: `kernel` is no kernel of tilekit's, no case is of this dtype, `device` is not there, or wrong numbers
            in bfloat16 come from Triton's interpreter, which calculates wrongly with it.
        TypeError: `function` cannot be called, `dtype` is no dtype, or `seed` no integer.

    >>> import torch, tilekit
    >>> tilekit.check(lambda a, b: a + b, "vadd")
    Right: vadd passed all ... cases.
    >>> bool(tilekit.check(lambda a, b: a - b, "vadd"))
    False
    """
    spec = kernels.spec(kernel)
    if not callable(function):
        raise TypeError(f"check: function must be callable; got {type(function).__name__}")
    _check_dtype(spec, dtype)
    device = _device(device)
    if seed is not None and not (type(seed) is int and -(2**63) <= seed < 2**63):
        raise TypeError(f"check: seed must be a 64-bit integer or None; got {seed!r}")
    seed = random.randrange(2**31) if seed is None else seed
    passed = 0
    for case in spec.cases:
        if dtype not in case.dtypes or case.needs_gpu:
            continue
        make = Make(seed, dtype, device)
        with _cutile_on(device, sanitize) as findings, _triton_on(device) as triton:
            try:
                problem = run_case(spec, case, _contiguous_answer(function), make)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # SystemExit too: a verdict is no function's to prevent
                problem = f"raised {environment.in_words(error)}"
        if triton.outside:
            problem = f"{triton.outside[0]} Mask what lies past an array's end; on a GPU it may be another array."
        elif triton.bfloat16 and isinstance(problem, Difference) and problem.index is not None:
            raise ValueError(
                "check: the numbers are wrong, and that may be Triton's interpreter, which calculates with bfloat16 as if its "
                "bits were integers; use dtype=torch.float32 or torch.float16, or a GPU"
            )
        if findings:
            problem = f"{problem}." if problem else "The numbers came out right, but that was luck."
            problem += " The sanitizer found in your cuTile kernel:"
        if problem:
            args, kwargs = case.arguments(Make(seed, dtype, device))
            hint = "" if findings else _hint(spec, case, problem)
            call = _describe(kernel, args, kwargs)
            return Verdict(kernel, passed, case.id, call, str(problem), hint, seed, tuple(findings))
        passed += 1
    return Verdict(kernel, passed, seed=seed)


def _hint(spec: Spec, case: Case, problem: Difference | str) -> str:
    """What the case is about, or the result that is wrong. A finding of the sanitizer has advice of its own."""
    named = spec.hints.get(problem.result) if isinstance(problem, Difference) else None
    return named or next((text for word, text in spec.hints.items() if word in case.id), "")


def _triton_on(device: torch.device):
    # The interpreter works on copies of a GPU's arrays, whose memory is not that of the arguments.
    return triton_memory.watching() if device.type == "cpu" else contextlib.nullcontext(triton_memory.Seen())


@contextlib.contextmanager
def _cutile_on(device: torch.device, sanitize: bool):
    """Inside, ``ct.launch`` runs where the tensors are; gives the list of mistakes that its kernels make."""
    if device.type != "cpu":
        yield []
        return
    cutile_interpreter, _ = environment.try_import("tilekit.cutile_interpreter")
    if cutile_interpreter is None:  # with a cuda-tile that does not import, there is no kernel to watch
        yield []
        return
    watching = cutile_interpreter.watching() if sanitize else contextlib.nullcontext([])
    with cutile_interpreter.interpreting(), watching as findings:
        yield findings


def _check_dtype(spec: Spec, dtype) -> None:
    """A dtype of which there is no case would pass without having been tried."""
    known = list(dict.fromkeys(known for case in spec.cases for known in case.dtypes))
    words = ", ".join(map(str, known))
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"check: dtype must be one of {words}; got {dtype!r}")
    if dtype not in known:
        raise ValueError(f"check: {spec.name} has cases for {words}; got {dtype}")


def _device(device) -> torch.device:
    if device is None:
        from tilekit import triton_mode

        return torch.device("cuda" if torch.cuda.is_available() and triton_mode.mode() != "interpreted" else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found).cpu()  # "meta" has no values to check
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        said = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"check: there is no device {device!r} for torch here ({said}); leave it out for the best one"
        ) from None
    return found


def _contiguous_answer(function: Callable) -> Callable:
    """Strides are a promise of the package, not part of an exercise."""

    def contiguous(part):
        dense = isinstance(part, Tensor) and part.layout is torch.strided and not part.is_nested
        return part.contiguous() if dense else part

    def call(*args, **kwargs):
        result = function(*args, **kwargs)
        if isinstance(result, tuple):
            return tuple(map(contiguous, result))
        return contiguous(result)

    return call


def _describe(kernel: str, args: tuple, kwargs: dict) -> str:
    words = []
    for a in args:
        if isinstance(a, Tensor):
            strided = "" if a.is_contiguous() else f", strides {tuple(a.stride())}"
            words.append(f"tensor{tuple(a.shape)} {str(a.dtype).removeprefix('torch.')}{strided}")
        else:
            words.append(repr(a))
    words += [f"{name}={value!r}" for name, value in kwargs.items()]
    return f"{kernel}({'; '.join(words)})"
