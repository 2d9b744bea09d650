"""What NVIDIA's compiler makes of a kernel, read from the compiled file."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

ct = pytest.importorskip("cuda.tile")

from tilekit import environment  # noqa: E402
from tilekit.cutile_interpreter import report  # noqa: E402
from tilekit.cutile_interpreter.report import CompileReport, architectures, compile_report  # noqa: E402

ARCH = "sm_80"  # compiles fastest

needs_compiler = pytest.mark.skipif(environment.tileiras()[0] is None, reason="tileiras is not installed")


@ct.kernel
def scales(x, y, factor, TILE: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(y, i, ct.load(x, i, TILE) * factor)


@ct.kernel
def sums_rows(x, y):
    ct.store(y, ct.bid(0), ct.sum(ct.load(x, (ct.bid(0), 0), (1, 4096)), 1))


@ct.kernel
def holds_too_much(x):
    tile = ct.load(x, (0, 0), (128, 256))
    ct.store(x, (0, 0), tile * ct.sum(tile, 1, keepdims=True) - ct.cumsum(tile, 1))


@pytest.fixture(scope="module")
def reports():
    x = torch.zeros(1024, 4096, device="meta")
    return {
        "scales": compile_report(scales, (x[0], x[0], 2.0, 256), ARCH, grid=(16, 2)),
        "sums_rows": compile_report(sums_rows, (x, x[0, :1024]), ARCH),
        "holds_too_much": compile_report(holds_too_much, (x[:, :256],), ARCH),
    }


@needs_compiler
def test_what_the_kernels_become(reports):
    simple, reduction, spilling = reports["scales"], reports["sums_rows"], reports["holds_too_much"]
    assert simple.kernel == "scales" and simple.arch == ARCH
    assert simple.compiler == environment.tileiras()[0]
    assert simple.blocks == 32 and reduction.blocks is None
    assert simple.spill_bytes == simple.shared_memory == 0
    assert reduction.shared_memory > 0, "warps exchange their sums through shared memory"
    assert spilling.registers == 255 and spilling.spill_bytes > 0
    assert simple.registers < reduction.registers < spilling.registers
    assert simple.code_bytes < reduction.code_bytes < spilling.code_bytes


@needs_compiler
def test_another_reader_of_the_same_file_agrees(reports, tmp_path):
    triton = pytest.importorskip("triton")
    cuobjdump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not cuobjdump.exists():
        pytest.skip("this Triton brings no cuobjdump")
    for name, found in reports.items():
        file = tmp_path / f"{name}.cubin"
        file.write_bytes(found.cubin)
        printed = subprocess.run([cuobjdump, "--dump-resource-usage", file], capture_output=True, text=True).stdout
        registers, stack, shared = map(int, re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", printed).groups())
        assert (found.registers, found.spill_bytes, found.shared_memory) == (registers, stack, shared)


@needs_compiler
def test_it_prints_as_a_table(reports):
    text = str(reports["holds_too_much"])
    assert text.startswith(f"holds_too_much, compiled for {ARCH} by tileiras ")
    assert "255 of 255 a thread" in text and "of 163.0 KiB a block" in text
    assert f"{reports['holds_too_much'].spill_bytes} bytes a thread" in text
    assert re.search(r"spilled registers +none", str(reports["scales"]))
    assert len(text.splitlines()) <= 7 and repr(reports["scales"]) == str(reports["scales"])
    page = reports["scales"]._repr_html_()
    assert page.count("<tr>") == page.count("</tr>") == 6 and "<b>scales</b>" in page


def test_a_name_is_escaped_in_html():
    made = CompileReport("<lambda>", "sm_1", "13.4", 128, 10, 0, 0, 100)
    assert "<lambda>" not in made._repr_html_() and "<lambda>" in str(made)


@needs_compiler
@pytest.mark.parametrize("arch", ["sm_75", "sm_90a", "hopper", 90, None])
def test_an_unknown_architecture_is_answered_with_the_known_ones(arch):
    x = np.zeros(16, np.float32)
    with pytest.raises(ValueError, match=f"{arch}.*sm_80.*sm_120"):
        compile_report(scales, (x, x, 2.0, 16), arch)


@needs_compiler
def test_the_architectures_that_tilekit_claims_are_among_them():
    assert {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"} <= set(architectures())


@needs_compiler
def test_a_mistake_is_told_as_by_the_check():
    x = np.zeros(16, np.float32)
    with pytest.raises(ct.TileTypeError, match="Hint: Tiles have power-of-two sizes"):
        compile_report(scales, (x, x, 2.0, 100), ARCH)


@needs_compiler
def test_a_dtype_that_the_architecture_lacks():
    @ct.kernel
    def copies(x):
        ct.store(x, 1, ct.load(x, 0, 16))

    with pytest.raises(ct.TileUnsupportedFeatureError, match="not supported on sm_80") as caught:
        compile_report(copies, (torch.zeros(32, dtype=torch.float8_e5m2),), "sm_80")
    assert __file__ in str(caught.value)


@needs_compiler
def test_a_refusal_by_the_compiler_names_the_line(monkeypatch):
    from cuda.tile import TileCompilerExecutionError, compilation
    from cuda.tile._exception import Loc

    def refuse(*args, **options):
        raise TileCompilerExecutionError(1, "out of patience", Loc(7, 1, "lesson.py"), "-O3", "13.4")

    monkeypatch.setattr(compilation, "export_kernel", refuse)
    monkeypatch.setattr(report.frontend, "check", lambda *args: None)
    x = np.zeros(16, np.float32)
    with pytest.raises(TileCompilerExecutionError, match='(?s)out of patience.*"lesson.py", line 7.*smaller tiles'):
        compile_report(scales, (x, x, 2.0, 16), ARCH)


@pytest.mark.parametrize(
    "found, words",
    [((None, None), "is not installed"), (("13.4.92", "ptxas is missing"), "ptxas is missing")],
)
def test_without_a_whole_compiler_the_message_has_the_command(monkeypatch, found, words):
    monkeypatch.setattr(environment, "tileiras", lambda: found)
    with pytest.raises(RuntimeError, match=words) as caught:
        compile_report(scales, (), ARCH)
    assert environment.INSTALL_CUTILE in str(caught.value)


def test_without_the_package_the_message_has_the_command(monkeypatch):
    def missing(name):
        raise report.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(report.importlib.metadata, "version", missing)
    with pytest.raises(RuntimeError, match="cuda-tile is not installed") as caught:
        compile_report(scales, (), ARCH)
    assert environment.INSTALL_CUTILE in str(caught.value)


def test_a_package_that_does_not_import_is_as_good_as_none(monkeypatch):
    monkeypatch.setattr(report.frontend, "available", lambda: False)
    with pytest.raises(RuntimeError, match="does not import here. To install it: pip install"):
        compile_report(scales, (), ARCH)
