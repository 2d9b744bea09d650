"""Measures kernels: time, bytes moved, operations done, and the share of what the device can do at most.

Everything that is compared is timed in turn, A B A B, within one process, because a GPU's clock falls while it
works; a comparison is the median of the ratios of neighbouring runs. Times are those of the device, between CUDA
events, with launch overhead hidden behind the work before.
"""

import json
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

import torch
import torch.nn.functional as F

import tilekit
from tilekit import environment, kernels
from tilekit.exercises.spec import Work


@dataclass(frozen=True)
class Measurement:
    """One way of computing one problem. Times in milliseconds; `ratio` is the first way's time over this one's."""

    kernel: str
    problem: str
    way: str
    milliseconds: float
    gigabytes_per_second: float
    teraflops_per_second: float
    ratio: float


def interleaved(functions: Mapping[str, Callable[[], object]], rounds: int = 25) -> dict[str, list[float]]:
    """Time functions in turn on the current CUDA device.

    Args:
        functions: by name; each queues its work on the current stream.
        rounds: how often each is timed, after two runs that are not counted.

    Returns:
        For each name, the milliseconds of its runs, in order: the i-th of one name and of another are neighbours.

    Raises:
        RuntimeError: there is no CUDA device.

    >>> times = interleaved({"sum": lambda: torch.ones(1, device="cuda").sum()})  # doctest: +SKIP
    """
    if not torch.cuda.is_available():
        raise RuntimeError("interleaved: there is no CUDA device to time; on a CPU there is nothing to compare")
    for function in functions.values():
        for _ in range(2):
            function()
    torch.cuda.synchronize()
    # Work for the device ahead of each timed region, so that the host's launch overhead is hidden.
    ahead = torch.empty(64 * 2**20, dtype=torch.int8, device="cuda")
    events = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            ahead.zero_()
            start.record()
            function()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {name: [start.elapsed_time(end) for start, end in pairs] for name, pairs in events.items()}


def compare(
    kernel: str,
    problem: str,
    work: Work,
    ways: Mapping[str, Callable],
    rounds: int = 25,
    roof: tuple[str, Callable, Work] | None = None,
) -> list[Measurement]:
    """Time several ways of one problem in turn; the first is what the others are compared with.

    `roof` is a name, a function and its own work: something of the machine's that is timed in the same turns.
    """
    times = interleaved(ways if roof is None else {**ways, roof[0]: roof[1]}, rounds)
    base = next(iter(times.values()))
    ways_work = {way: work for way in ways}
    if roof is not None:
        ways_work = {roof[0]: roof[2], **ways_work}
    measurements = []
    for way, work in ways_work.items():
        own = times[way]
        milliseconds = statistics.median(own)
        ratio = statistics.median(b / o for b, o in zip(base, own, strict=True))
        measurements.append(
            Measurement(
                kernel,
                problem,
                way,
                milliseconds,
                work.bytes / milliseconds / 1e6,
                work.flops / milliseconds / 1e9,
                ratio,
            )  # fmt: skip
        )
    return measurements


@dataclass(frozen=True)
class Problem:
    """A benchmark: a kernel, its size in words, the inputs on a device, and what torch would call."""

    kernel: str
    name: str
    inputs: Callable[[], tuple]
    torch_way: Callable
    keywords: Mapping[str, object]
    memory_bound: bool


def half() -> torch.dtype:
    """The 16-bit type to measure with: bfloat16, or float16 where the GPU has no bfloat16 arithmetic (a T4)."""
    return torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16


def _randn(*shape, dtype=None):
    return torch.randn(*shape, dtype=dtype or half(), device="cuda")


def _sdpa_flash(query, key, value, **keywords):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if torch.cuda.get_device_capability() < (8, 0):  # torch's flash kernel needs Ampere or newer
        return F.scaled_dot_product_attention(query, key, value, **keywords)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(query, key, value, **keywords)


def _torch_gelu(x, w, b):
    return F.gelu(x * w + b, approximate="tanh")


def _softmax(x):
    return torch.softmax(x, -1)


_N = 2**27
_F32 = torch.float32
# "half" in a name stands for the 16-bit type that is measured: see half().
PROBLEMS = (
    Problem("vadd", "2^27 half", lambda: (_randn(_N), _randn(_N)), torch.add, {}, True),
    Problem("vadd", "2^27 float32", lambda: (_randn(_N, dtype=_F32), _randn(_N, dtype=_F32)), torch.add, {}, True),
    Problem("fused_gelu", "(32768, 4096) half, w and b of the same shape",
            lambda: tuple(_randn(32768, 4096) for _ in range(3)), _torch_gelu, {}, True),
    Problem("fused_gelu", "(32768, 4096) half, w and b (4096,)",
            lambda: (_randn(32768, 4096), _randn(4096), _randn(4096)), _torch_gelu, {}, True),
    Problem("softmax", "(32768, 4096) half", lambda: (_randn(32768, 4096),), _softmax, {}, True),
    Problem("softmax", "(1024, 131072) half", lambda: (_randn(1024, 131072),), _softmax, {}, True),
    Problem("matmul", "8192^3 half", lambda: (_randn(8192, 8192), _randn(8192, 8192)), torch.matmul, {}, False),
    Problem("matmul", "4096^3 half", lambda: (_randn(4096, 4096), _randn(4096, 4096)), torch.matmul, {}, False),
    Problem("flash_attention", "(4, 16, 4096, 128) half",
            lambda: tuple(_randn(4, 16, 4096, 128) for _ in range(3)), _sdpa_flash, {}, False),
    Problem("flash_attention", "(4, 16, 4096, 128) half, causal",
            lambda: tuple(_randn(4, 16, 4096, 128) for _ in range(3)), _sdpa_flash, {"is_causal": True}, False),
    # A demonstration of Lightning Thunder's. In three dimensions torch has no fused kernel for it, in four it has.
    Problem("flash_attention", "(96, 512, 128) float32",
            lambda: tuple(_randn(96, 512, 128, dtype=_F32) for _ in range(3)),
            F.scaled_dot_product_attention, {}, False),
    Problem("flash_attention", "(1, 96, 512, 128) float32",
            lambda: tuple(_randn(1, 96, 512, 128, dtype=_F32) for _ in range(3)),
            F.scaled_dot_product_attention, {}, False),
)  # fmt: skip


def run(kernel: str | None = None, rounds: int = 25) -> list[Measurement]:
    """Measure every usable backend on the problems of one kernel, or of all, on the current CUDA device.

    Memory-bound kernels are compared with torch's copy of one operand (the roof) as well as with torch's own way.
    """
    results = []
    verdicts = environment.probe("cuda").backends
    for problem in PROBLEMS:
        if kernel not in (None, problem.kernel):
            continue
        arrays = problem.inputs()
        name = problem.name.replace("half", str(half()).removeprefix("torch."))
        function = getattr(tilekit, problem.kernel)
        ways = {"torch's own": lambda p=problem, a=arrays: p.torch_way(*a, **p.keywords)}
        for backend in ("triton", "cutile", "cuda"):
            if verdicts[backend].usable:
                ways[backend] = lambda n=backend, a=arrays, f=function, p=problem: f(*a, **p.keywords, backend=n)
        work = kernels.spec(problem.kernel).work(*arrays, **problem.keywords)
        with torch.no_grad():
            roof = None
            if problem.memory_bound:
                source, target = arrays[0], torch.empty_like(arrays[0])
                copied = Work(2 * source.numel() * source.element_size(), 0)
                roof = "torch's copy", lambda s=source, t=target: t.copy_(s), copied
            results += compare(problem.kernel, name, work, ways, rounds, roof)
        del arrays, ways
        torch.cuda.empty_cache()
    return results


def table(measurements: list[Measurement]) -> str:
    """The measurements as a plain table."""
    head = ("kernel", "problem", "way", "ms", "GB/s", "TFLOP/s", "times torch's own")
    rows = [
        (m.kernel, m.problem, m.way, f"{m.milliseconds:.3f}", f"{m.gigabytes_per_second:.0f}",
         f"{m.teraflops_per_second:.1f}", "" if m.way.startswith("torch") else f"{m.ratio:.2f}")
        for m in measurements
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    )


def recorded(kernel: str | None = None) -> tuple[dict, list[Measurement]]:
    """The figures that were recorded on an H200, for machines that cannot measure their own.

    Returns:
        What machine and versions they come from, and the measurements of `kernel`, or all.

    Raises ``ValueError`` for an unknown kernel.
    """
    if kernel is not None:
        kernels.spec(kernel)
    text = resources.files("tilekit").joinpath("recorded/h200.json").read_text()
    content = json.loads(text)
    measurements = [Measurement(**m) for m in content["measurements"]]
    return content["machine"], [m for m in measurements if kernel in (None, m.kernel)]


@dataclass(frozen=True)
class Report:
    """The measurements of one kernel and where they come from: a table as text, a picture beside it in a notebook."""

    where: str
    measurements: tuple[Measurement, ...]

    def __repr__(self):
        return f"{self.where}\n{table(list(self.measurements))}"

    def picture(self, problem: str):
        """Bars for one problem: GB/s with torch's copy as the roof, or TFLOP/s for what is bound by arithmetic."""
        from tilekit import pictures

        rows = {m.way: m for m in self.measurements if m.problem == problem}
        if not rows:
            known = ", ".join(repr(name) for name in dict.fromkeys(m.problem for m in self.measurements))
            raise ValueError(f"picture: there is no problem {problem!r} in this report; it has {known}")
        copy = rows.pop("torch's copy", None)
        if copy:
            values = {way: m.gigabytes_per_second for way, m in rows.items()}
            return pictures.bars(values, "GB/s", roof=("torch's copy", copy.gigabytes_per_second), title=problem)
        values = {way: m.teraflops_per_second for way, m in rows.items()}
        return pictures.bars(values, "TFLOP/s", title=problem)


def report(kernel: str) -> Report:
    """Measured here where there is a CUDA device that kernels can be compiled for; else the recorded figures, labelled.

    Raises ``ValueError`` for an unknown kernel.

    >>> print(report("vadd").where)  # doctest: +SKIP
    Recorded on NVIDIA H200 (...); this machine has no GPU to measure.
    """
    kernels.spec(kernel)  # raises for an unknown name
    if torch.cuda.is_available() and environment.probe("cuda").best != "torch":
        name = torch.cuda.get_device_name()
        return Report(f"Measured here, on {name}:", tuple(run(kernel, rounds=10)))
    machine, measurements = recorded(kernel)
    versions = ", ".join(f"{what} {version}" for what, version in machine.items() if what != "GPU")
    return Report(
        f"Recorded on {machine['GPU']} ({versions}); this machine has no GPU to measure.", tuple(measurements)
    )


def main(kernel: str | None, record: str | None) -> int:
    """What ``python -m tilekit bench`` does. Returns the exit status."""
    # Before minutes of measuring, not after.
    if record and not Path(record).absolute().parent.is_dir():
        raise ValueError(f"bench: there is no folder for the file {record}")
    if not torch.cuda.is_available():
        if record:
            raise ValueError("bench: there is no CUDA device here to measure, so there is nothing to record")
        machine, measurements = recorded(kernel)
        print("There is no CUDA device here to measure. These figures were recorded elsewhere, on:")
        print("  " + ", ".join(f"{name} {value}" for name, value in machine.items()))
        print(table(measurements))
        return 0
    measurements = run(kernel)
    print(table(measurements))
    if record:
        facts = environment.collect_facts("cuda")
        machine = {
            "GPU": facts.gpu_name, "torch": facts.torch_version, "Triton": facts.triton_version,
            "cuda-tile": facts.cuda_tile_version, "tileiras": facts.tileiras_version,
            "Python": ".".join(map(str, sys.version_info[:3])),
        }  # fmt: skip
        with open(record, "w") as file:
            json.dump({"machine": machine, "measurements": [asdict(m) for m in measurements]}, file, indent=1)
            file.write("\n")
    return 0
