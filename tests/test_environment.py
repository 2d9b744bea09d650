"""The rules of the probe, over simulated machines: facts in, verdicts out."""

import dataclasses
import html
import re

import pytest
from checkout import ROOT
from hypothesis import given
from hypothesis import strategies as st

from tilekit import environment, triton_mode
from tilekit.environment import INSTALL_CUDA, INSTALL_CUTILE, INSTALL_TORCH, Facts, Verdict, assess

README = (ROOT / "README.md").read_text(encoding="utf-8")
LINUX = {"platform": "linux", "machine": "x86_64", "python": (3, 12), "numpy_version": "2.4.6"}
TORCH = {"torch_version": "2.13.0+cu130", "torch_cuda": "13.0", "nvrtc_version": "13.0.88"}
ARCHS_OF_CUDA_13 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_110", "sm_120", "compute_120")
CUTILE = {"cuda_tile_version": "1.7.0", "tileiras_version": "13.4.92"}
DRIVER = {"driver_cuda": (13, 0)}
EVERYTHING = {**LINUX, **TORCH, **DRIVER, **CUTILE, "triton_version": "3.7.1", "torch_archs": ARCHS_OF_CUDA_13}


def machine(gpu=None, capability=None, **changes):
    return Facts(**{**EVERYTHING, "gpu_name": gpu, "compute_capability": capability, **changes})


def without_gpu(**changes):
    facts = {**LINUX, "torch_version": "2.13.0+cpu", "triton_version": "3.7.1", **CUTILE}
    return Facts(**{**facts, **changes})


COMPILED, INTERPRETED, NO = "compiled", "interpreted", None
# name -> (facts, best, {backend: (mode, words of the reason, words of the fix; None: there is no fix)})
MACHINES = {
    "Colab T4": (
        machine("Tesla T4", (7, 5)),
        "triton",
        {
            "cutile": (NO, "compute capability 7.5 cuTile needs 8.0", None),
            "triton": (COMPILED, "without tensor cores bfloat16 refused float16", None),
            "cuda": (COMPILED, "NVRTC 13.0.88 7.5 bfloat16 refused float16", None),
            "torch": (COMPILED, "runs on this GPU", None),
        },
    ),
    "L4": (machine("NVIDIA L4", (8, 9)), "cutile", {"cutile": (COMPILED, "tileiras 13.4.92 8.9", None)}),
    "A100": (
        machine("NVIDIA A100-SXM4-80GB", (8, 0), tileiras_version="13.2.86"),
        "cutile",
        {"cutile": (COMPILED, "tileiras 13.2.86 8.0", None), "triton": (COMPILED, "3.7.1", None)},
    ),
    "H100": (machine("NVIDIA H100 80GB HBM3", (9, 0)), "cutile", {"cutile": (COMPILED, "9.0", None)}),
    "H200, a torch for CUDA 12": (
        machine("NVIDIA H200", (9, 0), torch_version="2.9.1+cu128", torch_cuda="12.8", torch_archs=("sm_90",)),
        "cutile",
        {"cutile": (COMPILED, "9.0", None)},
    ),
    "B200": (machine("NVIDIA B200", (10, 0), tileiras_version="13.1.66"), "cutile", {"cutile": (COMPILED, "10.0", None)}),
    "GB300": (machine("NVIDIA GB300", (10, 3)), "cutile", {"cutile": (COMPILED, "10.3", None)}),
    "RTX 3090, tools of 13.1": (
        machine("NVIDIA GeForce RTX 3090", (8, 6), tileiras_version="13.1.80"),
        "triton",
        {"cutile": (NO, "tileiras 13.1.80 8.6 needs 13.2", INSTALL_CUTILE)},
    ),
    "RTX 4090": (machine("NVIDIA GeForce RTX 4090", (8, 9)), "cutile", {"cutile": (COMPILED, "8.9", None)}),
    "RTX 5090": (
        machine("NVIDIA GeForce RTX 5090", (12, 0), tileiras_version="13.1.66"),
        "cutile",
        {"cutile": (COMPILED, "12.0", None), "torch": (COMPILED, "runs on this GPU", None)},
    ),
    "RTX 5090, an NVRTC and a torch that do not know it": (
        machine("NVIDIA GeForce RTX 5090", (12, 0), torch_archs=("sm_80", "sm_90a"), nvrtc_version="12.6.85"),
        "cutile",
        {
            "cuda": (NO, "NVRTC is 12.6.85 12.0 needs 12.8", INSTALL_CUDA),
            "torch": (COMPILED, "no code for compute capability 12.0 CUDA tensors fail", "newer torch sm_120"),
        },
    ),
    "V100, a torch for CUDA 13": (
        machine("Tesla V100-SXM2-16GB", (7, 0)),
        "torch",
        {
            "cutile": (NO, "compute capability 7.0 needs 8.0", None),
            "triton": (NO, "compute capability 7.0 needs 7.5", None),
            "cuda": (NO, "compute capability 7.0", None),
            "torch": (COMPILED, "no code for compute capability 7.0 CUDA tensors fail", "torch build for CUDA 12.6"),
        },
    ),
    "P100, a torch that has code for it": (
        machine("Tesla P100-PCIE-16GB", (6, 0), torch_version="2.8.0+cu126", torch_cuda="12.6", torch_archs=("sm_60",)),
        "torch",
        {
            "cutile": (NO, "compute capability 6.0", None),
            "triton": (NO, "compute capability 6.0", None),
            "torch": (COMPILED, "runs on this GPU", None),
        },
    ),
    "Jetson Thor": (
        machine("NVIDIA Thor", (11, 0), machine="aarch64"),
        "cutile",
        {"cutile": (COMPILED, "11.0", None), "triton": (COMPILED, "11.0", None)},
    ),
    "a GPU newer than cuTile's compiler": (
        machine("NVIDIA Rubin", (13, 0)),
        "triton",
        {"cutile": (NO, "compute capability 13.0", None)},
    ),
    "WSL2, an old driver": (
        machine("NVIDIA GeForce RTX 4070", (8, 9), driver_cuda=(12, 8), torch_version="2.9.1+cu128", torch_cuda="12.8"),
        "triton",
        {"cutile": (NO, "driver CUDA 12.8 cuTile needs 13.0 580", "update driver 580 WSL2 Windows")},
    ),
    "driver too old for torch as well": (
        machine("NVIDIA A10", (8, 6), driver_cuda=(12, 4)),
        "torch",
        {
            "cutile": (INTERPRETED, "driver CUDA 12.4 needs 13.0", "update driver"),
            "triton": (INTERPRETED, "driver CUDA 12.4 built for CUDA 13.0", "update driver torch built for CUDA 12"),
            "torch": (COMPILED, "runs on the CPU driver CUDA 12.4", "update driver"),
        },
    ),
    "old driver, and torch without CUDA": (
        machine("NVIDIA A10", (8, 6), driver_cuda=(12, 4), torch_version="2.13.0+cpu", torch_cuda=None),
        "torch",
        {"cutile": (INTERPRETED, "driver CUDA 12.4", "update driver")},
    ),
    "a GPU without its driver": (
        machine("NVIDIA L4", (8, 9), driver_cuda=None),
        "torch",
        {"cutile": (INTERPRETED, "driver missing", "driver"), "torch": (COMPILED, "on the CPU driver missing", "driver")},
    ),
    "no GPU, no driver": (
        without_gpu(),
        "torch",
        {
            "cutile": (INTERPRETED, "interprets on the CPU", None),
            "triton": (INTERPRETED, "interprets on the CPU", None),
            "cuda": (NO, "no NVIDIA GPU driver", "Colab"),
            "torch": (COMPILED, "on the CPU", None),
        },
    ),
    "a driver that hangs": (
        without_gpu(driver_problem="the NVIDIA driver did not answer within 20 seconds: reboot"),
        "torch",
        {"cutile": (INTERPRETED, "interprets on the CPU", None), "triton": (INTERPRETED, "3.7.1", None)},
    ),
    "GPUs hidden": (
        without_gpu(torch_cuda="13.0", **DRIVER, driver_problem="it shows no GPU, for CUDA_VISIBLE_DEVICES is set to ''"),
        "torch",
        {"cuda": (NO, "shows no GPU", "unset CUDA_VISIBLE_DEVICES")},
    ),
    "ROCm": (
        Facts(**LINUX, torch_version="2.13.0+rocm7.0", torch_hip="7.0", gpu_name="AMD Instinct MI300X",
              compute_capability=(9, 4), triton_version="3.7.1"),
        "torch",
        {
            "cutile": (NO, "ROCm AMD NVIDIA", "NVIDIA"),
            "triton": (NO, "ROCm AMD NVIDIA", "NVIDIA"),
            "cuda": (NO, "ROCm", "NVIDIA"),
            "torch": (COMPILED, "AMD GPU ROCm 7.0", None),
        },
    ),
    "torch without CUDA beside a GPU": (
        machine("NVIDIA L4", (8, 9), torch_version="2.13.0+cpu", torch_cuda=None, torch_archs=()),
        "torch",
        {
            "cutile": (INTERPRETED, "without CUDA", "pip install torch"),
            "triton": (INTERPRETED, "without CUDA", "pip install torch"),
            "torch": (COMPILED, "runs on the CPU without CUDA", "pip install torch"),
        },
    ),
    "macOS on Apple silicon": (
        Facts(platform="darwin", machine="arm64", torch_version="2.13.0"),
        "torch",
        {
            "cutile": (INTERPRETED, "interprets on the CPU cuda-tile is not installed", None),
            "triton": (NO, "no package for macOS", "Colab"),
            "cuda": (NO, "macOS", "Colab"),
            "torch": (COMPILED, "on the CPU", None),
        },
    ),
    "Windows": (
        machine("NVIDIA GeForce RTX 4070", (8, 9), platform="win32", triton_version=None),
        "cutile",
        {"triton": (NO, "Windows third party", "pip install triton-windows")},
    ),
    "Windows, with the third party's Triton and torch without CUDA": (
        machine("NVIDIA GeForce RTX 4070", (8, 9), platform="win32", torch_version="2.13.0+cpu", torch_cuda=None),
        "torch",
        {"triton": (INTERPRETED, "without CUDA", "Windows")},
    ),
    "NVRTC missing": (
        machine("NVIDIA H100", (9, 0), nvrtc_version=None),
        "cutile",
        {"cuda": (NO, "NVRTC is not installed", INSTALL_CUDA)},
    ),
    "CUDA's headers missing": (
        machine("NVIDIA H100", (9, 0), cuda_obstacle="CUDA's own headers, such as cuda_fp16.h, are not installed"),
        "cutile",
        {"cuda": (NO, "headers cuda_fp16.h not installed", INSTALL_CUDA)},
    ),
    "CUDA C++ fails its trial": (
        machine("NVIDIA H100", (9, 0), trial_errors={"cuda": "it gave a wrong result"}),
        "cutile",
        {"cuda": (NO, "CUDA C++ kernel wrong result", "doctor --refresh")},
    ),
    "cuda-tile missing": (
        machine("NVIDIA H100", (9, 0), cuda_tile_version=None),
        "triton",
        {"cutile": (NO, "cuda-tile is not installed", INSTALL_CUTILE)},
    ),
    "tileiras missing": (
        machine("NVIDIA H100", (9, 0), tileiras_version=None),
        "triton",
        {"cutile": (NO, "tileiras is not installed", INSTALL_CUTILE)},
    ),
    "tileiras mismatched": (
        machine("NVIDIA H100", (9, 0), tileiras_problem="its parts are of different versions (tileiras 13.4, ptxas 13.0)"),
        "triton",
        {"cutile": (NO, "tileiras different versions ptxas 13.0", INSTALL_CUTILE)},
    ),
    "tileiras hidden by CUDA_HOME": (
        machine("NVIDIA H100", (9, 0), tileiras_problem="CUDA_HOME points at a CUDA toolkit 12.8"),
        "triton",
        {"cutile": (NO, "CUDA_HOME 12.8", "unset CUDA_HOME CUDA_PATH")},
    ),
    "the extra tileiras beside torch 2.13": (
        machine("NVIDIA H100", (9, 0), cuda_tile_version="1.3.0", tileiras_version="13.2.86"),
        "triton",
        {"cutile": (NO, "tileiras 13.2.86 9.0 needs 13.3 cuda-tile[tileiras] torch pins", INSTALL_CUTILE)},
    ),
    "the same trap where the compiler would do": (
        machine("NVIDIA A100", (8, 0), cuda_tile_version="1.3.0", tileiras_version="13.2.86"),
        "triton",
        {"cutile": (NO, "cuda-tile is 1.3.0 needs 1.7 cuda-tile[tileiras]", INSTALL_CUTILE)},
    ),
    "two GPUs, the old one": (
        machine("Quadro RTX 8000", (7, 5), device="cuda:1"),
        "triton",
        {"cutile": (NO, "compute capability 7.5", None)},
    ),
    "two GPUs, the new one": (
        machine("NVIDIA A100", (8, 0), device="cuda:0"),
        "cutile",
        {"cutile": (COMPILED, "8.0", None)},
    ),
    "a CPU tensor beside a GPU": (
        machine("NVIDIA A100", (8, 0), device="cpu", triton_obstacle=("this process compiles", "restart Python")),
        "torch",
        {
            "cutile": (INTERPRETED, "interprets on the CPU", None),
            "triton": (NO, "This process compiles", "restart"),
            "torch": (COMPILED, "on the CPU", None),
        },
    ),
    "a CUDA tensor in an interpreting process": (
        machine("NVIDIA A100", (8, 0), triton_obstacle=("this process interprets", "unset TRITON_INTERPRET")),
        "cutile",
        {"triton": (NO, "interprets", "unset TRITON_INTERPRET")},
    ),
    "nothing installed": (
        Facts(),
        "torch",
        {name: (NO, "torch is not installed", INSTALL_TORCH) for name in ("cutile", "triton", "cuda", "torch")},
    ),
    "torch that does not import": (
        machine("NVIDIA A100", (8, 0), device="cpu", import_problems={"torch": "OSError: libcudart.so.13"}),
        "torch",
        {name: (NO, "torch does not import libcudart.so.13", "pip") for name in ("cutile", "triton", "cuda", "torch")},
    ),
    "the others that do not import": (
        machine("NVIDIA A100", (8, 0), import_problems={"triton": "SystemExit: 3", "cuda.tile": "RuntimeError: no"}),
        "torch",
        {
            "cutile": (NO, "cuda-tile does not import RuntimeError: no", "pip install"),
            "triton": (NO, "triton does not import SystemExit: 3", "triton==3.7.1"),
        },
    ),
    "trials that failed": (
        machine("NVIDIA A100", (8, 0), trial_errors={"cutile": "ended by SIGSEGV", "triton": "Python.h: No such file"}),
        "torch",
        {
            "cutile": (NO, "tiny cuTile kernel did not run SIGSEGV", "doctor --refresh"),
            "triton": (NO, "tiny Triton kernel did not run Python.h", "python3-dev"),
        },
    ),
    "two drivers, says Triton": (
        machine("NVIDIA A100", (8, 0), trial_errors={"triton": "RuntimeError: 2 active drivers"}),
        "cutile",
        {"triton": (NO, "2 active drivers", "one of Triton's backends")},
    ),
    "Triton too old": (
        machine("NVIDIA A100", (8, 0), triton_version="3.3.1"),
        "cutile",
        {"triton": (NO, "3.3.1 needs 3.4", "pip install")},
    ),
    "torch too old": (
        machine("NVIDIA A100", (8, 0), torch_version="2.7.1", torch_cuda="12.6"),
        "cutile",
        {"torch": (COMPILED, "needs 2.8", INSTALL_TORCH)},
    ),
    "a pair that cannot interpret": (
        without_gpu(triton_version="3.6.0", numpy_version="2.4.0"),
        "torch",
        {"triton": (NO, "Triton 3.6.0 NumPy 2.4.0", 'pip install "numpy<2.4"')},
    ),
    "the older NumPy beside it": (
        without_gpu(triton_version="3.6.0", numpy_version="2.3.5"),
        "torch",
        {"triton": (INTERPRETED, "3.6.0", None)},
    ),
    "an interpreter that gets it wrong": (
        without_gpu(trial_errors={"triton": "a tiny kernel gave wrong values"}),
        "torch",
        {"triton": (NO, "self-test wrong values", "--refresh")},
    ),
}  # fmt: skip


def assert_words_in_order(words, text):
    position = 0
    for word in words.split():
        assert word in text[position:], f"{word!r} is not (in this order) in {text!r}"
        position = text.index(word, position)


@pytest.mark.parametrize("name", MACHINES)
def test_simulated_machine(name):
    facts, best, expected = MACHINES[name]
    found = assess(facts)
    assert found.best == best
    for backend, (mode, reason, fix) in expected.items():
        verdict = found.backends[backend]
        assert (verdict.usable, verdict.mode) == (mode is not None, mode), verdict
        assert_words_in_order(reason, verdict.reason)
        if fix is None:
            assert verdict.fix is None
        else:
            assert_words_in_order(fix, verdict.fix or "")


@pytest.mark.parametrize(("package", "backend"), [("torch", "torch"), ("triton", "triton"), ("cuda.tile", "cutile")])
def test_a_package_that_lacks_another_one(package, backend):
    """Installing it again would not bring what it lacks: triton, for one, does not require the NumPy it imports."""
    for missing, fix in (("numpy", "pip install numpy"), (f"{package.partition('.')[0]}._C", "--force-reinstall")):
        problem = f"ModuleNotFoundError: No module named '{missing}'"
        verdict = assess(machine("NVIDIA A100", (8, 0), import_problems={package: problem})).backends[backend]
        assert not verdict.usable and problem in verdict.reason and fix in verdict.fix


def test_the_readme_quotes_the_doctor(monkeypatch):
    """Whoever searches the README for what was printed finds it: each row is a sentence of the doctor's, word for word."""
    monkeypatch.setattr(triton_mode, "mode", lambda: "compiled")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    in_wrong_mode = without_gpu(triton_obstacle=triton_mode.obstacle("cpu"))
    machines = [in_wrong_mode, *(facts for facts, _, _ in MACHINES.values())]
    said = "\n".join(verdict.reason for facts in machines for verdict in assess(facts).backends.values())
    rows = re.findall(
        r"^\| (.+?) \|", README.partition("## When something fails")[2].partition("\n## ")[0], re.MULTILINE
    )
    assert len(rows) == 6
    for sentence in rows[1:]:
        assert sentence in said, sentence


def test_the_first_obstacle_is_named():
    """One obstacle after the other is taken away, and the reason moves on to the next."""
    obstacles = [
        ("compute capability 7.5", {"compute_capability": (9, 0)}),
        ("driver supports CUDA 12.8", {"driver_cuda": (13, 0)}),
        ("without CUDA", {"torch_cuda": "13.0"}),
        ("cuda-tile is not installed", {"cuda_tile_version": "1.6.0"}),
        ("tileiras, is not installed", {"tileiras_version": "13.2.86"}),
        ("needs 13.3", {"tileiras_version": "13.4.92"}),
        ("needs 1.7", {"cuda_tile_version": "1.7.0"}),
        ("did not run", {"trial_errors": {}}),
    ]
    facts = Facts(**LINUX, torch_version="2.13.0", gpu_name="GPU", compute_capability=(7, 5), driver_cuda=(12, 8),
                  trial_errors={"cutile": "it crashed"})  # fmt: skip
    for words, mended in obstacles:
        assert words in assess(facts).backends["cutile"].reason
        facts = dataclasses.replace(facts, **mended)
    assert assess(facts).best == "cutile"


VERSIONS = st.none() | st.sampled_from(["", "nonsense", "13", "1.3.0", "1.7.0", "2.4.6", "3.7.1", "13.2.86", "13.4.92"])
PAIRS = st.none() | st.tuples(st.integers(0, 14), st.integers(0, 9))
TEXTS = st.none() | st.text(min_size=1) | st.sampled_from(["CUDA_HOME points elsewhere", "no kernel image", "<b>"])
ARCHS = ["sm_75", "sm_90a", "sm_100f", "compute_90", "gfx942", "?"]
FACTS = st.builds(
    Facts,
    platform=st.sampled_from(["", "linux", "darwin", "win32", "freebsd14"]),
    device=st.sampled_from(["", "cpu", "cuda:0", "cuda:12"]),
    gpu_name=TEXTS,
    compute_capability=PAIRS,
    driver_cuda=PAIRS,
    torch_archs=st.lists(st.sampled_from(ARCHS)).map(tuple),
    tileiras_problem=TEXTS,
    driver_problem=TEXTS,
    triton_obstacle=st.none() | st.just(("this process compiles", "restart")),
    trial_errors=st.dictionaries(st.sampled_from(["cutile", "triton", "cuda"]), TEXTS.filter(bool)),
    import_problems=st.dictionaries(st.sampled_from(["torch", "triton", "cuda.tile"]), TEXTS.filter(bool)),
    **dict.fromkeys(
        ["torch_version", "torch_cuda", "torch_hip", "triton_version", "cuda_tile_version", "tileiras_version",
         "nvrtc_version", "numpy_version"],
        VERSIONS,
    ),
)  # fmt: skip


@given(FACTS)
def test_any_facts_have_verdicts_that_can_be_read(facts):
    found = assess(facts)
    assert list(found.backends) == ["cutile", "triton", "cuda", "torch"]
    for verdict in found.backends.values():
        assert verdict.usable == (verdict.mode is not None)
        assert re.fullmatch(r"\S.*\.", verdict.reason, re.DOTALL)
        assert verdict.fix is None or verdict.fix.strip()
    assert found.best == "torch" or found.backends[found.best].mode == "compiled"
    assert all(len(line) <= 100 for line in str(found).splitlines())
    shown = re.sub(r"</?(p|b|table|thead|tbody|tr|th|td|code)( style='text-align:left')?>", "", found._repr_html_())
    assert "<" not in shown and ">" not in shown


def test_capabilities_not_named_stay_out_of_torchs_way():
    """torch is usable whenever it imports, whatever the GPU; an empty list of architectures objects to nothing."""
    assert assess(machine("Tesla V100", (7, 0), torch_archs=())).backends["torch"].fix is None


class TestTable:
    FOUND = environment.Environment(
        "cuda:0",
        "GPU <3>",
        {
            "cutile": Verdict(False, None, "Because of <script> & more.", INSTALL_CUTILE),
            "torch": Verdict(True, "compiled", "It runs."),
        },
        "torch",
    )

    def test_in_a_terminal(self):
        text = str(self.FOUND)
        assert "device: cuda:0 (GPU <3>)" in text and "best backend: torch" in text
        assert re.search(r"^cutile +not usable +- +Because of", text, re.MULTILINE)
        assert re.search(r"^torch +usable +compiled +It runs\.$", text, re.MULTILINE)

    def test_a_command_stays_one_command_when_it_is_copied(self):
        _, _, command = str(self.FOUND).partition("to change it: ")
        command = command.partition("\ntorch")[0]
        assert "\n" in command and re.sub(r"\s*\\\n\s*", " ", command) == INSTALL_CUTILE

    def test_in_a_notebook(self):
        page = self.FOUND._repr_html_()
        assert "&lt;script&gt; &amp; more" in page and "<script" not in page and "GPU &lt;3&gt;" in page
        assert f"<code>{html.escape(INSTALL_CUTILE)}</code>" in page
        # Told apart by words, not by colour.
        assert "not usable</td>" in page and " usable</td>" in page


def test_the_names_that_lessons_rely_on():
    names = [field.name for field in dataclasses.fields(Facts)]
    assert names[:16] == [
        "platform", "machine", "python", "torch_version", "torch_cuda", "torch_hip", "torch_archs", "gpu_name",
        "compute_capability", "driver_cuda", "triton_version", "cuda_tile_version", "tileiras_version",
        "tileiras_problem", "nvrtc_version", "trial_errors",
    ]  # fmt: skip
    with pytest.raises(dataclasses.FrozenInstanceError):
        Facts().platform = "linux"
    with pytest.raises(dataclasses.FrozenInstanceError):
        assess(Facts()).best = "cutile"
