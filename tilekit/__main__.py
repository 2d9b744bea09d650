"""``python -m tilekit``: doctor, bench, check."""

import argparse
import importlib.util
import json
import sys
import textwrap
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tilekit", description="Tile kernels for GPUs, for learning.")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="what this machine can run, why, and what would change it")
    doctor.add_argument("--device", help="cpu, cuda, cuda:1, ...; by default the current GPU, else the CPU")
    doctor.add_argument("--json", action="store_true", help="facts and verdicts as JSON")
    doctor.add_argument("--refresh", action="store_true", help="repeat the trial runs")
    bench = commands.add_parser("bench", help="time the kernels; without a GPU, show recorded figures")
    bench.add_argument("kernel", nargs="?", help="one kernel; by default all")
    bench.add_argument("--record", metavar="FILE", help="write the measurements there as JSON")
    check = commands.add_parser("check", help="check a function in a Python file against a kernel's specification")
    check.add_argument("kernel", help="vadd, fused_gelu, softmax, matmul or flash_attention")
    check.add_argument("file", help="a Python file")
    check.add_argument("--function", help="its name in the file; by default the kernel's")
    given = parser.parse_args(arguments)
    try:
        return {"doctor": _doctor, "bench": _bench, "check": _check}[given.command](given)
    except ValueError as error:
        parser.error(str(error))
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        parser.error(str(error))


def _doctor(given) -> int:
    """Exit status 0 whenever it could look: what it finds is the answer, not a failure."""
    from tilekit import environment

    if given.refresh:
        environment.forget()
    facts = environment.collect_facts(given.device)
    if given.json:
        print(json.dumps(environment.as_dict(facts), indent=2))
        return 0
    versions = {
        "Python": ".".join(map(str, facts.python)),
        "torch": facts.torch_version,
        "Triton": facts.triton_version,
        "NumPy": facts.numpy_version,
        "cuda-tile": facts.cuda_tile_version,
        "tileiras": facts.tileiras_version,
        "driver for CUDA": facts.driver_cuda and ".".join(map(str, facts.driver_cuda)),
    }
    print(environment.assess(facts))
    found = ", ".join(f"{name} {version or 'absent'}" for name, version in versions.items())
    print("\n" + textwrap.fill(f"found on {facts.platform} {facts.machine}: {found}", 100, subsequent_indent="  "))
    return 0


def _bench(given) -> int:
    from tilekit import benchmark, kernels

    if given.kernel is not None:
        kernels.spec(given.kernel)  # raises for an unknown name
    return benchmark.main(given.kernel, given.record)


def _check(given) -> int:
    """Exit status 0 when the function is right, 1 when it is not."""
    from tilekit import check, kernels

    path = Path(given.file)
    if not path.is_file():
        raise ValueError(f"check: there is no file {given.file}")
    if path.suffix == ".ipynb":
        call = f"tilekit.check(function, {given.kernel!r})"
        raise ValueError(f"check: {given.file} is a notebook, not a Python file; in a cell of it, call {call}")
    kernels.spec(given.kernel)  # raises for an unknown name
    # What lies beside the file can be imported, as where Python runs it, but hides nothing: it may be called torch.py.
    sys.path.append(str(path.resolve().parent))
    loader = SourceFileLoader(f"checked_{path.stem}", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module  # Triton looks a kernel's source up by its module
    try:
        loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: the exit status is the verdict, and not the file's to choose
        traceback.print_exception(error.with_traceback(_from_file(error.__traceback__, str(path))))
        print(f"Not yet: {given.file} does not run to its end, so its functions cannot be checked.")
        return 1
    name = given.function or given.kernel
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"check: {given.file} defines no function {name}; name another with --function")
    verdict = check(function, given.kernel)
    print(verdict)
    return 0 if verdict else 1


def _from_file(trace, file: str):
    """The traceback from the first line of the learner's file on, or none where not even that line is reached."""
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    sys.exit(main())
