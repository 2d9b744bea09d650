"""Wrong arguments of every public function: refused before anything runs, by a sentence that begins with its name."""

import decimal
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from checkout import ROOT
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

import tilekit
from tilekit import benchmark, kernels, plans, spellings

ARRAYS = {"vadd": 2, "fused_gelu": 3, "softmax": 1, "matmul": 2, "flash_attention": 3}
T = torch.ones(3, 3)
TILE_BACKENDS = ("cutile", "triton")

NO_ARRAYS = {
    "None": None,
    "a list": [[1.0]],
    "a number": 2.0,
    "text": "abc",
    "a class": torch.Tensor,
    "objects": np.array([[object()]]),
    "big-endian": np.ones((3, 3), ">f4"),
    "integers": T.int(),
    "booleans": T.bool(),
    "complex": T.to(torch.complex64),
    "float8": T.to(torch.float8_e4m3fn),
    "sparse": T.to_sparse(),
    "compressed rows": T.to_sparse_csr(),
    "nested": torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]),
    "jagged": torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged),
    "masked": np.ma.masked_array(np.ones((3, 3), np.float32), mask=np.eye(3, dtype=bool)),
}


def test_every_kernel_is_tried():
    assert set(ARRAYS) == set(kernels.NAMES)


@pytest.mark.parametrize("backend", [None, "torch", *TILE_BACKENDS])
@pytest.mark.parametrize("what", NO_ARRAYS)
@pytest.mark.parametrize("kernel", ARRAYS)
def test_what_is_no_array_for_a_kernel(kernel, what, backend):
    wrong = NO_ARRAYS[what]
    like_wrong = np.ones((3, 3), np.float32) if isinstance(wrong, np.ndarray) else T
    for position in range(ARRAYS[kernel]):
        for rest in (like_wrong, wrong):
            args = [rest] * ARRAYS[kernel]
            args[position] = wrong
            with pytest.raises((TypeError, ValueError), match=rf"^{kernel}: \w+"):
                getattr(tilekit, kernel)(*args, backend=backend)


@pytest.mark.parametrize("value", [2.0, [[1.0, 2.0]], (1.0,), np.float32(2.0)], ids=lambda value: type(value).__name__)
def test_what_could_become_an_array_is_told_how(value):
    kind = "numpy.asarray" if isinstance(value, np.generic) else "torch.tensor"
    with pytest.raises(TypeError, match=rf"vadd: b must be .*; got {type(value).__name__} \(try {kind}\(b\)\)$"):
        tilekit.vadd(T if kind == "torch.tensor" else np.ones(3, np.float32), value)
    made = eval(kind, {"numpy": np, "torch": torch})(value)
    tilekit.vadd(made, made)


def test_a_masked_array_is_not_taken_without_its_mask():
    with pytest.raises(TypeError, match=r"vadd: b is a masked array.*b\.filled\(0\)"):
        tilekit.vadd(np.ones((3, 3), np.float32), NO_ARRAYS["masked"])


@pytest.mark.parametrize("kernel", ARRAYS)
def test_meta_tensors_on_torch(kernel):
    args = [T.to("meta")] * ARRAYS[kernel]
    assert getattr(tilekit, kernel)(*args).shape == (3, 3)
    with pytest.raises(tilekit.BackendUnavailable, match="no kernels for meta tensors.*backend='torch'"):
        getattr(tilekit, kernel)(*args, backend="triton")


def _fake(call):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        call(mode.from_tensor(T))


def _dual(call):
    with forward_ad.dual_level():
        out = forward_ad.unpack_dual(call(forward_ad.make_dual(T, T)))
        assert out.tangent is not None


WITHOUT_MEMORY = {
    "vmap": lambda call: torch.func.vmap(call)(torch.ones(2, 3, 3)),
    "jvp": lambda call: torch.func.jvp(call, (T,), (T,)),
    "fake": _fake,
    "dual": _dual,
}


@pytest.mark.parametrize("how", WITHOUT_MEMORY)
@pytest.mark.parametrize("kernel", ARRAYS)
def test_tensors_that_are_more_than_their_memory(kernel, how):
    """torch's own operators follow them; a tile kernel would drop a tangent or read what is not there."""

    def call(backend):
        return lambda x: getattr(tilekit, kernel)(*[x] * ARRAYS[kernel], backend=backend)

    with torch.no_grad() if how == "fake" else torch.enable_grad():
        WITHOUT_MEMORY[how](call("torch"))
        WITHOUT_MEMORY[how](call(None))
        for backend in TILE_BACKENDS:
            if how == "fake":  # the operator knows the shape of its result
                WITHOUT_MEMORY[how](call(backend))
                continue
            with pytest.raises(
                ValueError, match=f"^{kernel}: backend '{backend}' takes plain tensors.*backend='torch'"
            ):
                WITHOUT_MEMORY[how](call(backend))


NO_NAMES = (3, True, [], {}, b"torch", torch, 1.5)


@pytest.mark.parametrize("name", NO_NAMES, ids=repr)
def test_a_backend_that_is_no_name(name):
    for call in (lambda: tilekit.vadd(T, T, backend=name), lambda: tilekit.use_backend(name).__enter__()):
        with pytest.raises(TypeError, match="a backend's name is a string"):
            call()


@pytest.mark.parametrize("name", ["", "Torch", "torch "])
def test_a_backend_of_no_such_name(name):
    for call in (lambda: tilekit.vadd(T, T, backend=name), lambda: tilekit.use_backend(name).__enter__()):
        with pytest.raises(ValueError, match="unknown backend"):
            call()


@pytest.mark.parametrize("dim", [1.0, True, None, "0", np.array([1.0]), torch.tensor(0.5)], ids=repr)
def test_softmax_dim_is_no_integer(dim):
    with pytest.raises(TypeError, match="softmax: dim must be an integer"):
        tilekit.softmax(T, dim)


@pytest.mark.parametrize("flag", ["is_causal", "enable_gqa", "return_lse"])
@pytest.mark.parametrize("value", ["False", 1, None, [], T > 0], ids=lambda value: type(value).__name__)
def test_attention_flags_are_booleans(flag, value):
    with pytest.raises(TypeError, match=f"flash_attention: {flag} must be True or False"):
        tilekit.flash_attention(T, T, T, **{flag: value})
    tilekit.flash_attention(T, T, T, **{flag: np.bool_(True)})


@pytest.mark.parametrize("scale", [10**400, float("nan"), float("-inf")])
def test_attention_scale_is_not_finite(scale):
    with pytest.raises(ValueError, match="scale must be finite; got"):
        tilekit.flash_attention(T, T, T, scale=scale)


@pytest.mark.parametrize("scale", ["1", 1j, decimal.Decimal(1), T])
def test_attention_scale_is_no_number(scale):
    with pytest.raises(TypeError, match="scale must be a number"):
        tilekit.flash_attention(T, T, T, scale=scale)


def add(a, b):
    return a + b


@pytest.mark.parametrize(("keywords", "error", "words"), [
    ({"dtype": torch.float64}, ValueError, "vadd has cases for torch.float16, torch.bfloat16, torch.float32"),
    ({"dtype": torch.int32}, ValueError, "vadd has cases for"),
    ({"dtype": "float32"}, TypeError, "dtype must be one of"),
    ({"dtype": None}, TypeError, "dtype must be one of"),
    ({"device": "gpu"}, ValueError, "no device 'gpu'"),
    ({"device": ""}, ValueError, "no device ''"),
    ({"device": "cuda:99"}, ValueError, "no device 'cuda:99'"),
    ({"device": "meta"}, ValueError, "no device 'meta'"),
    ({"device": 1.5}, ValueError, "no device 1.5"),
    ({"seed": "1"}, TypeError, "seed must be a 64-bit integer"),
    ({"seed": 2**64}, TypeError, "seed must be a 64-bit integer"),
])  # fmt: skip
def test_check_says_what_is_wrong(keywords, error, words):
    """A dtype without cases would be a verdict of "Right" for anything."""
    with pytest.raises(error, match=f"^check: .*{words}"):
        tilekit.check(add, "vadd", **keywords)


@pytest.mark.parametrize("call", [
    lambda: tilekit.check(add, "vad"),
    lambda: kernels.spec("vad"),
    lambda: benchmark.report("vad"),
    lambda: spellings.source("vad", "torch"),
])  # fmt: skip
def test_an_unknown_kernel_lists_the_known_ones(call):
    with pytest.raises(ValueError, match="unknown kernel 'vad'; wanted one of 'vadd'"):
        call()


@pytest.mark.parametrize(("call", "words"), [
    (lambda: benchmark.recorded("vad"), "unknown kernel 'vad'; wanted one of 'vadd'"),
    (lambda: benchmark.Report("", tuple(benchmark.recorded("vadd")[1])).picture("2^27 half"), r"no problem '2\^27 half'.*it has '2\^27 bfloat16', '2"),
    (lambda: plans.Limits.of("h100"), "unknown architecture 'h100'; wanted one of 'sm_75'"),
    (lambda: plans.Limits.of(["sm_90"]), "unknown architecture"),
])  # fmt: skip
def test_other_unknown_names_list_the_known_ones(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("backend", TILE_BACKENDS)
def test_a_named_backend_that_cannot_serve_says_whose_words_these_are(backend):
    def attend(x):
        return tilekit.flash_attention(x, x, x, backend=backend)

    def recorded(x):  # by an operator, whose launch refuses within a launch
        with FlopCounterMode(display=False):
            return attend(x)

    for call in (attend, recorded, torch.compile(attend, backend="eager")):
        with pytest.raises(ValueError, match=rf"^flash_attention: backend '{backend}' serves at most 256 channels"):
            call(torch.ones(2, 300))


@pytest.mark.parametrize("backend", ["tritn", 3, "x" * 5000, "../softmax/triton"])
def test_the_source_of_an_unknown_backend(backend):
    with pytest.raises(ValueError, match="unknown backend .*'triton'"):
        spellings.source("vadd", backend)


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is packaged for Linux only")
@pytest.mark.parametrize("kernel", ARRAYS)
def test_interpreting_warns_of_nothing(kernel):
    """inf - inf is NaN, and 0 * inf, and neither is news on a GPU; under -W error a warning would stop the kernel."""
    code = (
        "import warnings, tilekit, torch\n"
        f"a = [torch.full((3, 3), v) for v in (float('inf'), 3e38, 0.0)][: {ARRAYS[kernel]}]\n"
        f"tilekit.{kernel}(*a, backend='torch')  # imports what warns of its own\n"
        "import triton\n"
        "warnings.simplefilter('error')\n"
        f"print(tilekit.{kernel}(*a, backend='triton').shape)"
    )

    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert "torch.Size([3, 3])" in done.stdout, done.stderr


def check_file(tmp_path, text, *arguments, name="solution.py", kernel="vadd"):
    file = tmp_path / name
    file.write_text(text)
    command = [sys.executable, "-m", "tilekit", "check", kernel, str(file), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


RIGHT = "def vadd(a, b): return a + b\n"


@pytest.mark.parametrize(
    "name", ["solution.py", "torch.py", "tilekit.py", "my solution 1.py", "solution.txt", "solution"]
)
def test_a_file_may_be_called_anything(tmp_path, name):
    done = check_file(tmp_path, "import torch\n" + RIGHT, name=name)
    assert done.returncode == 0 and "Right: vadd passed all" in done.stdout, done.stderr


@pytest.mark.parametrize(("text", "words"), [
    ("def vadd(a, b: return", "SyntaxError"),
    (RIGHT + "import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
    (RIGHT + "1 / 0", "ZeroDivisionError"),
    (RIGHT + "import sys; sys.exit(0)", "SystemExit: 0"),
])  # fmt: skip
def test_a_file_that_does_not_run_is_not_right(tmp_path, text, words):
    """Least of all one that chooses its own exit status."""
    done = check_file(tmp_path, text)
    assert done.returncode == 1 and words in done.stderr and "does not run to its end" in done.stdout
    assert "tilekit/__main__.py" not in done.stderr, "the learner's traceback begins in the learner's file"


def test_a_file_may_import_what_lies_beside_it(tmp_path):
    (tmp_path / "helper.py").write_text("def add(a, b): return a + b")
    done = check_file(tmp_path, "from helper import add as vadd")
    assert done.returncode == 0 and "Right" in done.stdout, done.stderr


def test_a_function_that_ends_the_process_is_not_right(tmp_path):
    done = check_file(tmp_path, "import sys\ndef vadd(a, b): sys.exit(0)")
    assert done.returncode == 1 and "raised SystemExit" in done.stdout


@pytest.mark.parametrize(("text", "arguments", "words"), [
    ("vadd = 3", (), "defines no function vadd; name another with --function"),
    (RIGHT, ("--function", "add"), "defines no function add"),
])  # fmt: skip
def test_a_file_without_the_function(tmp_path, text, arguments, words):
    done = check_file(tmp_path, text, *arguments)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


def test_an_unknown_kernel_is_told_before_the_file_runs(tmp_path):
    done = check_file(tmp_path, "print('ran')", kernel="vad")
    assert done.returncode == 2 and "unknown kernel 'vad'" in done.stderr and "ran" not in done.stdout


def test_a_notebook_is_no_python_file(tmp_path):
    done = check_file(tmp_path, '{"cells": []}', name="lesson.ipynb")
    assert done.returncode == 2 and "in a cell of it, call tilekit.check(function, 'vadd')" in done.stderr


@pytest.mark.parametrize("arguments", [("check", "vadd", __file__), ("bench",)])
def test_commands_without_torch_say_how_to_get_it(arguments):
    code = f"import sys; sys.modules['torch'] = None; from tilekit.__main__ import main; main({list(arguments)})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and 'needs the package torch: pip install "torch>=2.8"' in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["vadd", "check", "use_backend", "backends"])
def test_names_without_torch_say_how_to_get_it(name):
    code = f"import sys; sys.modules['torch'] = None; import tilekit; tilekit.probe(); tilekit.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f'ModuleNotFoundError: tilekit.{name} needs the package torch: pip install "torch>=2.8"')


def test_recording_says_what_it_lacks(tmp_path, capsys):
    with pytest.raises(ValueError, match="no folder for the file"):
        benchmark.main("vadd", str(tmp_path / "nowhere" / "figures.json"))
    if torch.cuda.is_available():
        pytest.skip("this machine can record")
    with pytest.raises(ValueError, match="no CUDA device here to measure"):
        benchmark.main("vadd", str(tmp_path / "figures.json"))


@pytest.mark.parametrize(("tool", "arguments", "words"), [
    ("notebooks/tools/canonical.py", ("--chek",), "unrecognized arguments: --chek"),
    ("notebooks/tools/canonical.py", ("--check", "--execute"), "not allowed with"),
    ("notebooks/tools/canonical.py", ("--execute", "99"), "no lesson's name contains '99'"),
    ("notebooks/tools/run.py", ("99",), "no lesson's name contains '99'; in notebooks there are: 00_environment"),
    ("notebooks/tools/stamp.py", (), "usage: make stamp OWNER=name"),
    ("notebooks/tools/stamp.py", ("a b",), "an owner's name has letters"),
    ("tests/run.py", ("vadd",), "usage: python tests/run.py"),
])  # fmt: skip
def test_the_tools_refuse_what_they_do_not_know(tool, arguments, words):
    """Doing nothing, or everything, with status 0 would pass for success."""
    before = {path: path.read_bytes() for path in (ROOT / "notebooks").glob("*.ipynb")}
    done = subprocess.run([sys.executable, str(ROOT / tool), *arguments], capture_output=True, text=True, timeout=100)
    assert done.returncode != 0 and words in done.stdout + done.stderr
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(("python", "words"), [
    ("no-such-python", "tilekit needs Python 3.10 or newer, and no-such-python is older (or missing)"),
    ("false", "Try: make env PYTHON=python3.12"),
])  # fmt: skip
def test_make_with_a_python_that_does_not_do(tmp_path, python, words):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run(["make", "env", f"PYTHON={python}"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode != 0 and words in done.stdout + done.stderr
    assert not (tmp_path / ".venv").exists()
