"""tilekit's cuTile kernels on the same inputs twice: interpreted on the CPU, and compiled on the GPU beside it.

    python benchmarks/interpreted_and_compiled.py [--seed N] [--record FILE]

Needs a GPU that cuTile compiles for. Both results are compared with the float64 reference and with each other, and every
error is given as a share of what the tolerance policy allows (tilekit.exercises.checker.tolerance): below 1 is right.
"""

import argparse
import json
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

import tilekit
from tilekit import kernels
from tilekit.exercises import Make
from tilekit.exercises.checker import difference, tolerance


@dataclass(frozen=True)
class Agreement:
    """One result of one case: the largest errors as shares of the allowed one, and whether both have the same bits."""

    interpreted: float
    compiled: float
    between: float
    same_bits: bool
    problem: str


def _tuple(value) -> tuple:
    return value if isinstance(value, tuple) else (value,)


def _share(result, reference, allowed: float) -> float:
    """The largest finite error over the allowed one."""
    error = (result.double() - reference.double()).abs()
    error = error[error.isfinite()]
    largest = error.max().item() if error.numel() else 0.0
    return 0.0 if largest == 0 else largest / allowed


def compare(name: str, case, dtype: torch.dtype, seed: int) -> list[Agreement]:
    """Run the case both ways on the numbers of this seed."""
    spec, function = kernels.spec(name), getattr(tilekit, name)
    args, kwargs = case.arguments(Make(seed, dtype))
    on_gpu, _ = case.arguments(Make(seed, dtype, "cuda"))
    with torch.no_grad():
        wanted = _tuple((case.expected or spec.reference)(*args, **kwargs))
        own = _tuple(spec.torch_own(*args, **kwargs)) if not case.expected else ()
        interpreted = _tuple(function(*args, **kwargs, backend="cutile"))
        compiled = tuple(r.cpu() for r in _tuple(function(*on_gpu, **kwargs, backend="cutile")))
    found = []
    for number, (one, other, reference) in enumerate(zip(interpreted, compiled, wanted, strict=True)):
        bar = own[number] if number < len(own) else None
        allowed = tolerance(spec, args, kwargs, reference.double(), bar)
        problems = [
            f"{what}: {problem}"
            for what, a, b in (
                ("interpreted against the reference", one, reference),
                ("compiled against the reference", other, reference),
                ("interpreted against compiled", one, other),
            )
            if (problem := difference(a, b.double(), allowed, one.dtype))
        ]
        same = one.isnan() & other.isnan() | (one == other)
        found.append(
            Agreement(
                _share(one, reference, allowed), _share(other, reference, allowed), _share(one, other, allowed),
                bool(same.all()), "; ".join(problems),
            )
        )  # fmt: skip
    return found


def cases():
    """Every shared case that fits an interpreter, in every dtype it is for."""
    for name in kernels.NAMES:
        for case in kernels.spec(name).cases:
            if not case.needs_gpu:
                yield from ((name, case, dtype) for dtype in case.dtypes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**31)
    parser.add_argument("--record", metavar="FILE", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args()
    rows, problems = {}, []
    for name, case, dtype in cases():
        label = f"{name}, {str(dtype).removeprefix('torch.')}"
        for one in compare(name, case, dtype, arguments.seed):
            row = rows.setdefault(label, {"results": 0, "same bits": 0, "interpreted": 0, "compiled": 0, "between": 0})
            row["results"] += 1
            row["same bits"] += one.same_bits
            for what in ("interpreted", "compiled", "between"):
                row[what] = max(row[what], round(getattr(one, what), 3))
            if one.problem:
                problems.append(f"{label}, {case.id}: {one.problem}")
    print(f"seed {arguments.seed}; largest errors as shares of the allowed one")
    print(f"{'':28}{'results':>8}{'same bits':>11}{'interpreted':>13}{'compiled':>10}{'between':>9}")
    for label, row in rows.items():
        figures = f"{row['interpreted']:13.3f}{row['compiled']:10.3f}{row['between']:9.3f}"
        print(f"{label:28}{row['results']:8}{row['same bits']:11}{figures}")
    print(*problems or ["no difference beyond the tolerance"], sep="\n")
    if arguments.record:
        packages = {p: version(p) for p in ("numpy", "torch", "cuda-tile")}
        machine = {"gpu": torch.cuda.get_device_name(), "packages": packages}
        record = {"seed": arguments.seed, "machine": machine, "largest_shares": rows, "problems": problems}
        arguments.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
