"""How fast tilekit's cuTile interpreter is on this CPU, beside Triton's: the same kernels, the same tiles, one run.

    python benchmarks/interpreters.py [--record FILE]

Times are the best of a few runs, taken in turn. Both results are compared with torch's before anything is timed.
"""

import argparse
import json
import math
import os
import platform
import statistics
import time
from importlib.metadata import version
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton.language as tl

from tilekit import cutile_interpreter
from tilekit.kernels.flash_attention import cutile_kernel as attention_ct
from tilekit.kernels.flash_attention import triton_kernel as attention_tl
from tilekit.kernels.matmul import cutile_kernel as matmul_ct
from tilekit.kernels.matmul import triton_kernel as matmul_tl
from tilekit.kernels.softmax import cutile_kernel as softmax_ct
from tilekit.kernels.softmax import triton_kernel as softmax_tl
from tilekit.kernels.vadd import cutile_kernel as vadd_ct
from tilekit.kernels.vadd import triton_kernel as vadd_tl

RUNS = {"cutile": 9, "triton": 3}


def vadd():
    n, tile = 2**20, 1024
    a, b, out = torch.randn(n), torch.randn(n), torch.empty(n)
    grid = (n // tile,)
    return {
        "cutile": lambda: cutile_interpreter.launch(None, grid, vadd_ct.vadd_kernel, (a, b, out, tile)),
        "triton": lambda: vadd_tl.vadd_kernel[grid](a, b, out, n, BLOCK=tile, INDEX=tl.int32),
    }, (out, a + b)


def softmax():
    rows, n = 4096, 1024
    x, out = torch.randn(1, rows, n), torch.empty(1, rows, n)
    grid = (rows,)
    strides = (*x.stride(), *out.stride())
    return {
        "cutile": lambda: cutile_interpreter.launch(None, grid, softmax_ct.softmax_kernel, (x, out, 1, n)),
        "triton": lambda: softmax_tl.softmax_kernel[grid](
            x, out, rows, n, *strides, BLOCK_M=1, BLOCK_N=n, INDEX=tl.int32
        ),
    }, (out, x.softmax(-1))


def matmul():
    n, tile, step = 512, 64, 32
    a, b, out = (torch.randn(1, 1, n, n) for _ in range(3))
    grid = ((n // tile) ** 2,)
    strides = (*a.stride(), *b.stride(), *out.stride())
    return {
        "cutile": lambda: cutile_interpreter.launch(
            None, grid, matmul_ct.matmul_kernel, (a, b, out, tile, tile, step, 8, False)
        ),
        "triton": lambda: matmul_tl.matmul_kernel[grid](
            a, b, out, n, n, n, 1, *strides, BLOCK_M=tile, BLOCK_N=tile, BLOCK_K=step, GROUP_M=8, EVEN_K=True,
            PRECISION="ieee", INDEX=tl.int32,
        ),
    }, (out, a @ b)  # fmt: skip


def attention():
    heads, length, channels, tile = 8, 512, 64, 64
    q, k, v = (torch.randn(1, heads, length, channels) for _ in range(3))
    out = {name: torch.empty_like(q) for name in RUNS}
    lse = torch.empty(1, heads, length, 1)
    scale = 1 / math.sqrt(channels) * math.log2(math.e)
    grid = (heads * length // tile,)
    plan = attention_tl.plan(
        (q.shape, k.shape, v.shape), (q.stride(), k.stride(), v.stride()), q.dtype,
        attention_tl.limits_of(q.device), False, 1 / math.sqrt(channels), False, True,
    )  # fmt: skip
    constants = {**plan.constants, "BLOCK_M": tile, "BLOCK_N": tile}
    return {
        "cutile": lambda: cutile_interpreter.launch(
            None, grid, attention_ct.flash_attention_kernel,
            (q, k, v, out["cutile"], lse, scale, 1, False, tile, tile, channels, channels, 1, 2, False),
        ),
        "triton": lambda: attention_tl.flash_attention_kernel[grid](
            q, k, v, out["triton"], lse, *plan.arguments, **constants
        ),
    }, (out["cutile"], torch.nn.functional.scaled_dot_product_attention(q, k, v), out["triton"])  # fmt: skip


PROBLEMS = {
    "vadd 2^20": vadd,
    "softmax 4096 x 1024": softmax,
    "matmul 512^3": matmul,
    "flash attention (8, 512, 64)": attention,
}


def seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(build) -> dict[str, float]:
    calls, results = build()
    out, wanted = results[0], results[1]
    for name, call in calls.items():
        got = results[2] if name == "triton" and len(results) > 2 else out
        got.fill_(float("nan"))
        call()
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    times = {name: [] for name in calls}
    for turn in range(max(RUNS.values())):
        for name, call in calls.items():
            if turn < RUNS[name]:
                times[name].append(seconds(call))
    return {name: min(values) * 1e3 for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", metavar="FILE", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args()
    rows = {}
    print(f"{'':30}{'cuTile, ms':>12}{'Triton, ms':>12}{'ratio':>8}")
    for name, build in PROBLEMS.items():
        rows[name] = measure(build)
        ratio = rows[name]["triton"] / rows[name]["cutile"]
        print(f"{name:30}{rows[name]['cutile']:12.2f}{rows[name]['triton']:12.1f}{ratio:8.0f}")
    mean = statistics.geometric_mean(t["triton"] / t["cutile"] for t in rows.values())
    print(f"{'geometric mean':54}{mean:8.0f}")
    if arguments.record:
        machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        packages = {p: version(p) for p in ("numpy", "triton", "torch", "cuda-tile")}
        record = {"machine": machine, "packages": packages, "milliseconds": rows, "geometric_mean": mean}
        arguments.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
