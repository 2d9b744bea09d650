"""The CUDA C++ kernels over the shared cases, without a GPU: emulated thread by thread."""

import json
from dataclasses import replace

import pytest
import torch
from checkout import ROOT
from emulation import COMPILER, emulate, on_cpu

import tilekit
from tilekit import cuda_cpp, kernels
from tilekit.exercises import Make
from tilekit.exercises.checker import run_case
from tilekit.exercises.spec import Case
from tilekit.kernels import _cuda
from tilekit.plans import Limits

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulation needs g++")
SM_90 = Limits.of("sm_90")
# bfloat16 differs from float16 in conversions only, so a few cases do.
IN_BFLOAT16 = ("infinities", "1e20", "exact form", "large values", "ragged", "one key is -inf")


def all_cases():
    for name in kernels.NAMES:
        for case in kernels.spec(name).cases:
            for dtype in case.dtypes:
                if case.needs_gpu or dtype is torch.bfloat16 and not any(words in case.id for words in IN_BFLOAT16):
                    continue
                yield pytest.param(name, case, dtype, id=f"{name}-{case.id}-{str(dtype).removeprefix('torch.')}")


def check(name, case, dtype, seed, limits=SM_90):
    with on_cpu(limits):
        return run_case(kernels.spec(name), case, getattr(tilekit, name), Make(seed, dtype, "cpu"))


@pytest.mark.parametrize(("name", "case", "dtype"), list(all_cases()))
def test_case(name, case, dtype, seed):
    difference = check(name, case, dtype, seed)
    assert difference is None, f"{difference} (seed {seed})"


LAYOUTS = (
    Case("as they are", lambda m: (m.randn(200, 72), m.randn(72, 136))),
    Case("a transposed", lambda m: (m.randn(72, 200).t(), m.randn(72, 136))),
    Case("b transposed", lambda m: (m.randn(200, 72), m.randn(136, 72).t())),
    Case("both transposed", lambda m: (m.randn(72, 200).t(), m.randn(136, 72).t())),
    Case("ragged", lambda m: (m.randn(131, 77), m.randn(77, 261))),
    Case("ragged, both transposed", lambda m: (m.randn(77, 131).t(), m.randn(259, 77).t())),
)


@pytest.mark.parametrize("dtype", (torch.float16, torch.float32))
@pytest.mark.parametrize("case", LAYOUTS, ids=lambda case: case.id)
def test_the_large_tiles_of_matmul(case, dtype, seed):
    """A GPU with one multiprocessor takes them at sizes that can be emulated."""
    difference = check("matmul", case, dtype, seed, replace(SM_90, multiprocessors=1))
    assert difference is None, f"{difference} (seed {seed})"


@pytest.mark.parametrize("channels", (64, 256))
@pytest.mark.parametrize("dtype", (torch.float16, torch.float32))
def test_the_small_tiles_of_attention(channels, dtype, seed):
    """With as little shared memory as a T4 has."""
    case = Case(
        "", lambda m: (m.randn(40, channels), m.randn(70, channels), m.randn(70, channels), {"is_causal": True})
    )
    difference = check("flash_attention", case, dtype, seed, Limits.of("sm_75"))
    assert difference is None, f"{difference} (seed {seed})"


@pytest.mark.parametrize("kernel", ("vadd", "fused_gelu"))
def test_64_bit_offsets(kernel, seed, monkeypatch):
    from importlib import import_module

    monkeypatch.setattr(import_module(f"tilekit.kernels.{kernel}.cuda_kernel"), "index_bits", lambda *_, **__: 64)
    case = next(case for case in kernels.spec(kernel).cases if "transposed" in case.id)
    plan = import_module(f"tilekit.kernels.{kernel}.cuda_kernel").plan
    plan.cache_clear()
    assert check(kernel, case, torch.float32, seed) is None
    plan.cache_clear()


MISTAKES = {
    "no wait for the copies": (
        "wait_for_copies<0>();\n        __syncthreads();  // this tile's values",
        "__syncthreads(); //",
    ),
    "no shrinking": ("l_i *= alpha;", ""),
    "the mask is one key late": ("key > row)", "key > row + 1)"),
    "keys past the end": ("key >= S ||", ""),
}


@pytest.mark.parametrize("dtype", (torch.float16, torch.float32))
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_emulation_finds_mistakes(mistake, dtype, seed, monkeypatch):
    right, wrong = MISTAKES[mistake]
    text = _cuda.source("flash_attention")
    assert text.count(right) == 1
    monkeypatch.setattr(_cuda, "source", lambda kernel: text.replace(right, wrong))
    _cuda.compiled.cache_clear()
    keywords = {"is_causal": "mask" in mistake}
    case = Case("", lambda m: (m.randn(70, 32), m.randn(150, 32), m.randn(150, 32), keywords))
    assert check("flash_attention", case, dtype, seed) is not None
    _cuda.compiled.cache_clear()


@pytest.mark.parametrize("name", ("naive", "shared"))
def test_the_kernels_of_the_lesson(name, seed):
    lesson = json.loads((ROOT / "notebooks" / "06_cuda_cpp.ipynb").read_text(encoding="utf-8"))
    texts = {}
    for cell in lesson["cells"]:
        source = "".join(cell["source"])
        if source.startswith(("NAIVE =", "SHARED =", "STEP =", "LOAD =")):
            exec(source.partition("\nnaive =")[0].partition("\nshared =")[0], texts)
    source = texts[name.upper()].replace("STEP", texts["STEP"]).replace("LOAD", texts["LOAD"])
    torch.manual_seed(seed)
    query, key, value, out = (torch.randn(n, 64) for n in (100, 150, 150, 100))
    wanted = kernels.spec("flash_attention").reference(query, key, value)
    kernel = cuda_cpp.Kernel(source, name, ["-DE=64"])
    values, _ = kernel.pack(query, key, value, out, 100, 150, 64**-0.5)
    # The emulator's own header has a template parameter of the name E.
    defines = ("-DTYPE=float", "-DINDEX=int", "-DTHREADS=128")
    emulate("constexpr int E = 64;\n" + source, kernel, defines, 1, 128, values)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-5)
