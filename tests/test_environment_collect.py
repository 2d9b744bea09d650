"""What the probe sees of a machine: drivers, packages and compilers that are absent, broken, or hidden."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import tilekit
from tilekit import driver, environment, triton_mode
from tilekit.environment import collect_facts, probe

ROOT = Path(tilekit.__file__).parent.parent
only_linux = pytest.mark.skipif(sys.platform != "linux", reason="the libraries and tools are imitated for Linux only")
only_without_gpu = pytest.mark.skipif(
    triton_mode.has_nvidia_device_file(), reason="the machine's own driver would be seen beside the imitated one"
)


@pytest.fixture(autouse=True)
def seen_anew():
    """Nothing found under a test's imitated machine stays for the next one."""

    def forget():
        for found in (environment._probed, environment.try_import, environment._driver):
            found.cache_clear()

    forget()
    yield
    forget()


class TestDevice:
    def test_names_of_the_cpu(self):
        assert probe("cpu").device == probe(torch.device("cpu")).device == "cpu"
        assert probe(torch.device("meta")).device == "cpu"

    @pytest.mark.parametrize("nonsense", ["banana", "cuda:", "cuda:x", "CPU", -1, True, 1.5, object()])
    def test_nonsense(self, nonsense):
        with pytest.raises(ValueError, match="device must be 'cpu', 'cuda', 'cuda:N' or an index; got"):
            probe(nonsense)

    @pytest.mark.parametrize("absent", ["cuda:77", 77, torch.device("cuda", 77)])
    def test_a_device_that_is_not_there(self, absent):
        with pytest.raises(ValueError, match="there is no cuda:77 that torch can use; this machine has: cpu"):
            probe(absent)

    def test_remembered_until_asked_to_refresh(self, monkeypatch, tmp_path):
        monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path))
        first = probe("cpu")
        assert probe("cpu") is first
        assert probe("cpu", refresh=True) is not first
        assert probe("cpu") == first


class _Torch(SimpleNamespace):
    """As much of torch as the probe asks, with these GPUs."""

    def __init__(self, *gpus, hip=None, describe=None):
        super().__init__(
            __version__="2.13.0",
            device=torch.device,
            version=SimpleNamespace(cuda=None if hip else "13.0", hip=hip),
            cuda=SimpleNamespace(
                is_available=lambda: bool(gpus),
                is_initialized=lambda: False,
                device_count=lambda: len(gpus),
                get_device_name=describe or (lambda index: gpus[index][0]),
                get_device_capability=lambda index: gpus[index][1],
                get_arch_list=lambda: ["sm_75", "sm_90"],
            ),
        )


DRIVER = environment._Driver((13, 0))
T4, H100 = ("Tesla T4", (7, 5)), ("NVIDIA H100", (9, 0))


class TestGpus:
    @pytest.fixture
    def imitate(self, monkeypatch):
        def with_torch(torch_with_gpus, driver=DRIVER):
            monkeypatch.setattr(environment, "_torch", lambda: (torch_with_gpus, None))
            monkeypatch.setattr(environment, "_driver", lambda: driver)

        return with_torch

    def test_two_of_different_generations(self, imitate):
        imitate(_Torch(H100, T4))
        first, second = collect_facts(trial=False), collect_facts("cuda:1", trial=False)
        assert (first.device, first.gpu_name, first.compute_capability) == ("cuda:0", *H100)
        assert (second.device, second.gpu_name, second.compute_capability) == ("cuda:1", *T4)
        assert first.torch_archs == ("sm_75", "sm_90")
        with pytest.raises(
            ValueError, match="there is no cuda:2 that torch can use; this machine has: cpu, cuda:0, cuda:1"
        ):
            collect_facts(2)

    def test_rocms_gpu_is_no_nvidia_gpu(self, imitate):
        imitate(_Torch(("AMD Instinct MI300X", (9, 4)), hip="7.0"), environment._Driver())
        found = environment.assess(collect_facts(torch.device("cuda", 0)))
        assert found.device == "cuda:0" and found.gpu == "AMD Instinct MI300X" and found.best == "torch"
        assert [name for name, verdict in found.backends.items() if verdict.usable] == ["torch"]

    def test_torch_is_not_asked_when_the_driver_does_not_answer(self, imitate):
        hanging = _Torch(H100)
        hanging.cuda.is_available = lambda: pytest.fail("torch would hang here")
        imitate(hanging, environment._Driver(problem="the driver did not answer"))
        assert collect_facts().device == "cpu"

    def test_a_gpu_that_torch_cannot_describe(self, imitate):
        """As in a forked process, where CUDA cannot start again."""

        def describe(index):
            raise RuntimeError("Cannot re-initialize CUDA\nin forked subprocess")

        imitate(_Torch(H100, describe=describe))
        found = environment.assess(collect_facts())
        assert found.best == "torch"
        for verdict in found.backends.values():
            assert "Cannot re-initialize CUDA in forked subprocess" in verdict.reason


def imitated_driver(folder, body):
    """A libcuda.so.1 with this C code, on the path of the dynamic linker's children."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a driver's library with")
    source = folder / "driver.c"
    source.write_text("#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n" + body)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(source)], check=True)


VERSION = "int cuDriverGetVersion(int *v) { *v = 13000; return 0; }\n"
WORKS = (
    VERSION
    + """
int cuInit(unsigned f) { return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strcpy(name, "NVIDIA H100"); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 75 ? 9 : 0; return 0; }
"""
)


@only_linux
@only_without_gpu
class TestDriver:
    @pytest.fixture
    def imitate(self, tmp_path, monkeypatch):
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
        return lambda body: imitated_driver(tmp_path, body)

    def test_absent(self):
        facts = collect_facts("cpu")
        assert (facts.driver_cuda, facts.driver_problem) == (None, None)
        assert "driver" in environment.assess(facts).backends["cuda"].reason

    def test_it_names_the_gpu_that_torch_cannot_use(self, imitate):
        if torch.version.cuda:
            pytest.skip("this torch has CUDA and would ask the imitated driver for more")
        imitate(WORKS)
        facts = collect_facts()
        assert (facts.device, facts.driver_cuda, facts.driver_problem) == ("cpu", (13, 0), None)
        assert (facts.gpu_name, facts.compute_capability) == ("NVIDIA H100", (9, 0))
        assert "without CUDA" in environment.assess(facts).backends["cutile"].reason

    @pytest.mark.parametrize(
        ("status", "words"), [(100, "shows no GPU"), (802, "fabric manager"), (803, "reboot"), (999, "CUDA error 999")]
    )
    def test_it_does_not_start(self, imitate, status, words, monkeypatch):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        imitate(VERSION + f"int cuInit(unsigned f) {{ return {status}; }}")
        facts = collect_facts()
        assert facts.driver_cuda == (13, 0) and words in facts.driver_problem
        assert words in environment.assess(facts).backends["cuda"].reason

    def test_hidden_gpus(self, imitate, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        imitate(VERSION + "int cuInit(unsigned f) { return 100; }")
        assert environment.assess(collect_facts()).backends["cuda"].fix == "unset CUDA_VISIBLE_DEVICES"

    @pytest.mark.parametrize(
        "body",
        [
            VERSION + "int cuInit(unsigned f) { abort(); }",
            "int cuInit(unsigned f) { return 0; }",  # a function is missing
            "__attribute__((constructor)) void load(void) { exit(3); }",
        ],
    )
    def test_it_crashes(self, imitate, body):
        imitate(body)
        facts = collect_facts()
        assert facts.driver_cuda is None and "calling it fails" in facts.driver_problem

    def test_no_process_can_be_started(self, monkeypatch):
        """That says nothing about a driver, which need not be there."""
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        facts = collect_facts("cpu")
        assert "no process could be started" in facts.driver_problem and "/nowhere/python" in facts.driver_problem
        assert "update" not in environment.assess(facts).backends["cuda"].fix

    @pytest.mark.parametrize(
        "body", [VERSION + "int cuInit(unsigned f) { sleep(60); return 0; }",
                 "__attribute__((constructor)) void load(void) { sleep(60); }"],
    )  # fmt: skip
    def test_it_hangs(self, imitate, monkeypatch, body):
        monkeypatch.setattr(environment, "_TIMEOUT_S", 1)
        imitate(body)
        assert "did not answer within 1 seconds" in collect_facts().driver_problem

    def test_a_library_that_is_none(self, tmp_path):
        (tmp_path / "libcuda.so.1").write_text("not a library")
        assert driver.ask(str(tmp_path / "libcuda.so.1")) == {}


def python(code, *path, **variables):
    """Run code in a process where these folders come first on the path; its last line as JSON."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TRITON_INTERPRET")}
    kept |= {"PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT))), **variables}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=kept)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


SEE = """
import json
from tilekit import environment
facts = environment.collect_facts()
print(json.dumps(environment.as_dict(facts)))
"""


class TestPackages:
    @pytest.mark.parametrize(
        ("package", "raises"),
        [("torch", "raise SystemExit(3)"), ("torch", "raise RuntimeError('two\\nlines')"), ("torch", "1 +"),
         ("torch", "class E(BaseException): pass\nraise E('odd')"), ("torch", "import nowhere_to_be_found"),
         ("triton", "raise SystemExit(3)"), ("triton", "raise OSError('libfoo.so: cannot open')"),
         ("torch", "class E(Exception):\n    __str__ = None\nraise E"),
         ("triton", "class E(KeyboardInterrupt): pass\nraise E('not the user')")],
    )  # fmt: skip
    def test_an_import_that_raises(self, package, raises, tmp_path):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(raises)
        found = python(SEE, tmp_path)
        problem = found["facts"]["import_problems"][package]
        assert problem.split(":")[0] in (
            "SystemExit",
            "RuntimeError",
            "OSError",
            "E",
            "ModuleNotFoundError",
            "SyntaxError",
        )
        assert "\n" not in problem
        for backend in ("triton", *(["torch", "cutile", "cuda"] if package == "torch" else [])):
            verdict = found["backends"][backend]
            assert not verdict["usable"]
            assert f"package {package} does not import ({problem}" in verdict["reason"]
        assert found["backends"]["torch"]["usable"] == (package == "triton")

    @pytest.mark.parametrize("package", ["torch", "triton", "numpy"])
    def test_a_package_that_is_missing(self, package):
        code = f"""
            import importlib.metadata as metadata, sys
            sys.modules[{package!r}] = None
            version = metadata.version
            def without(name):
                if name == {package!r}:
                    raise metadata.PackageNotFoundError(name)
                return version(name)
            metadata.version = without
        """
        found = python(textwrap.dedent(code) + SEE)
        assert found["facts"][f"{package}_version"] is None
        if package != "numpy":
            assert f"{package} is not installed" in found["backends"][package]["reason"]
            assert package not in found["facts"]["import_problems"]

    @pytest.mark.parametrize("package", ["numpy", "ml_dtypes"])
    def test_without_what_the_interpreter_needs(self, package):
        verdict = python(f"import sys; sys.modules[{package!r}] = None" + SEE.replace("facts()", "facts('cpu')"))
        verdict = verdict["backends"]["cutile"]
        assert not verdict["usable"] and package in verdict["reason"]
        assert verdict["fix"].startswith(f"pip install {package}")

    @pytest.mark.parametrize(
        ("file", "backend"),
        [("torch.py", "torch"), ("numpy.py", "torch"), ("triton.py", "triton"), ("cuda.py", "cutile"), ("ml_dtypes.py", "cutile")],
    )  # fmt: skip
    def test_a_learners_script_with_the_name_of_a_package(self, file, backend, tmp_path):
        if file in ("triton.py", "cuda.py"):
            pytest.importorskip(file.removesuffix(".py"), reason=f"hides nothing where {file} is all there is")
        (tmp_path / file).write_text("x = 1")
        verdict = python(SEE.replace("facts()", "facts('cpu')"), tmp_path)["backends"][backend]
        assert not verdict["usable"]
        assert f"{tmp_path / file} is imported in" in verdict["reason"]
        assert verdict["fix"] == f"rename {tmp_path / file}"

    def test_a_hidden_package_is_not_blamed_for_another_mistake(self, tmp_path):
        (tmp_path / "cuda.py").write_text("x = 1")
        (tmp_path / "triton").mkdir()
        (tmp_path / "triton" / "__init__.py").write_text("raise RuntimeError('GLIBC_2.38 not found')")
        verdict = python(SEE.replace("facts()", "facts('cpu')"), tmp_path)["backends"]["triton"]
        assert "GLIBC_2.38 not found" in verdict["reason"] and "cuda.py" not in verdict["reason"]

    def test_a_folder_with_torchs_name(self, tmp_path):
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").write_text("")
        found = python(SEE, tmp_path)
        assert str(tmp_path / "torch" / "__init__.py") in found["backends"]["torch"]["reason"]

    def test_a_cuda_tile_that_does_not_import(self):
        """Also on a CPU, where the interpreter takes its names and NVIDIA's front end from it."""
        pytest.importorskip("cuda.tile")
        code = "import sys; sys.modules['cuda.tile'] = None" + SEE.replace("facts()", "facts('cpu')")
        verdict = python(code)["backends"]["cutile"]
        assert not verdict["usable"] and "cuda-tile does not import" in verdict["reason"]
        assert verdict["fix"].endswith("--force-reinstall")

    def test_the_first_error_is_kept(self, tmp_path):
        """A second attempt at a failed import often raises something else, which hides the cause."""
        (tmp_path / "triton").mkdir()
        (tmp_path / "triton" / "__init__.py").write_text(
            "import builtins\nbuiltins.n = getattr(builtins, 'n', 0) + 1\nraise RuntimeError(f'attempt {builtins.n}')"
        )
        again = "from tilekit import environment; environment.probe(); environment.collect_facts()"
        assert python(again + SEE, tmp_path)["facts"]["import_problems"]["triton"] == "RuntimeError: attempt 1"

    def test_an_interrupt_is_the_users(self, monkeypatch):
        def interrupted(name):
            raise KeyboardInterrupt

        monkeypatch.setattr(environment.importlib, "import_module", interrupted)
        with pytest.raises(KeyboardInterrupt):
            probe()

    def test_a_process_that_compiles_refuses_cpu_tensors(self):
        pytest.importorskip("triton")
        verdict = python(SEE.replace("facts()", "facts('cpu')"), TRITON_INTERPRET="0")["backends"]["triton"]
        assert not verdict["usable"] and "TRITON_INTERPRET=1" in verdict["fix"]

    def test_a_failed_self_test_counts(self, monkeypatch):
        pytest.importorskip("triton")
        if triton_mode.mode() != "interpreted":
            pytest.skip("this process compiles Triton")
        monkeypatch.setattr(triton_mode, "self_test", lambda: "it cannot add")
        verdict = probe("cpu").backends["triton"]
        assert not verdict.usable and "it cannot add" in verdict.reason


def program(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def toolkit(root, version, parts=("tileiras", "ptxas", "libnvvm")):
    for part in ("tileiras", "ptxas"):
        if part in parts:
            program(root / "bin" / part, f"echo 'Cuda compilation tools, release {version}, V{version}.99'")
    if "libnvvm" in parts:
        (root / "nvvm/lib64").mkdir(parents=True)
        (root / "nvvm/lib64/libnvvm.so").touch()
    return root


WHEELS = ("nvidia-cuda-tileiras", "nvidia-cuda-nvcc", "nvidia-nvvm")


@only_linux
class TestCompiler:
    @pytest.fixture
    def wheels(self, monkeypatch, tmp_path):
        """Imitate the compiler's wheels: their versions, and the folder of the package that holds their files."""
        version = importlib.metadata.version

        def install(*versions, files=True):
            there = {name: v for name, v in zip(WHEELS, versions, strict=True) if v}

            def imitated(name):
                if name not in WHEELS:
                    return version(name)
                if name not in there:
                    raise importlib.metadata.PackageNotFoundError(name)
                return there[name]

            monkeypatch.setattr(importlib.metadata, "version", imitated)
            folder = tmp_path / "site" / "nvidia" / "cu13"
            folder.mkdir(parents=True)
            if files:
                toolkit(folder, "13.4")
            for name in ("nvidia", "nvidia.cu13"):
                monkeypatch.delitem(sys.modules, name, raising=False)
            monkeypatch.syspath_prepend(str(tmp_path / "site"))
            return folder

        for variable in ("CUDA_HOME", "CUDA_PATH"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        monkeypatch.setattr(environment, "_default_tileiras", lambda: None)
        return install

    def put_on_path(self, monkeypatch, root):
        monkeypatch.setenv("PATH", f"{root / 'bin'}:/usr/bin:/bin")

    def test_none(self, wheels):
        wheels(None, None, None)
        assert environment.tileiras() == (None, None)

    def test_wheels(self, wheels):
        wheels("13.4.92", "13.4.92", "13.4.1")
        assert environment.tileiras() == ("13.4.92", None)

    def test_wheels_do_not_mind_cuda_home(self, wheels, monkeypatch, tmp_path):
        wheels("13.4.92", "13.4.92", "13.4.1")
        monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path / "old", "12.8")))
        self.put_on_path(monkeypatch, tmp_path / "old")
        assert environment.tileiras() == ("13.4.92", None)

    def test_wheels_of_different_versions(self, wheels):
        wheels("13.4.92", "13.0.88", "13.4.1")
        version, problem = environment.tileiras()
        assert version == "13.4.92" and "ptxas 13.0.88" in problem and "different versions" in problem

    def test_wheels_without_one_of_the_parts(self, wheels):
        wheels("13.4.92", None, None)
        assert environment.tileiras() == ("13.4.92", "ptxas and libnvvm are not installed beside tileiras")

    def test_wheels_whose_files_are_damaged(self, wheels):
        folder = wheels("13.4.92", "13.4.92", "13.4.1")
        (folder / "bin" / "ptxas").unlink()
        assert environment.tileiras() == ("13.4.92", "ptxas is missing")

    def test_wheels_in_another_environment_than_the_first_on_the_path(self, wheels):
        wheels("13.4.92", "13.4.92", "13.4.1", files=False)
        version, problem = environment.tileiras()
        assert version == "13.4.92" and "another environment" in problem

    def test_a_toolkit_on_the_path(self, wheels, monkeypatch, tmp_path):
        wheels(None, None, None)
        self.put_on_path(monkeypatch, toolkit(tmp_path / "cuda", "13.3"))
        assert environment.tileiras() == ("13.3.99", None)

    def test_a_toolkit_stands_in_for_wheels_that_do_not_fit(self, wheels, monkeypatch, tmp_path):
        wheels("13.4.92", "13.0.88", "13.4.1")
        self.put_on_path(monkeypatch, toolkit(tmp_path / "cuda", "13.3"))
        assert environment.tileiras() == ("13.3.99", None)

    def test_a_toolkit_in_cuda_home(self, wheels, monkeypatch, tmp_path):
        wheels(None, None, None)
        monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path / "cuda", "13.3")))
        assert environment.tileiras() == ("13.3.99", None)

    @pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
    def test_an_older_toolkit_hides_the_parts(self, wheels, monkeypatch, tmp_path, variable):
        wheels(None, None, None)
        self.put_on_path(monkeypatch, toolkit(tmp_path / "new", "13.4"))
        monkeypatch.setenv(variable, str(toolkit(tmp_path / "old", "12.8", ("ptxas", "libnvvm"))))
        version, problem = environment.tileiras()
        assert version == "13.4.99" and f"{variable} points at a CUDA toolkit 12.8.99" in problem

    def test_an_empty_folder_hides_the_parts(self, wheels, monkeypatch, tmp_path):
        wheels(None, None, None)
        self.put_on_path(monkeypatch, toolkit(tmp_path / "new", "13.4"))
        monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
        assert "CUDA_HOME points at" in environment.tileiras()[1]
        assert "ptxas and libnvvm are missing there" in environment.tileiras()[1]

    def test_a_tileiras_alone(self, wheels, monkeypatch, tmp_path):
        wheels(None, None, None)
        self.put_on_path(monkeypatch, toolkit(tmp_path / "cuda", "13.4", ("tileiras",)))
        assert environment.tileiras() == ("13.4.99", "ptxas and libnvvm are missing")

    def test_a_tileiras_that_does_not_run(self, wheels, monkeypatch, tmp_path):
        wheels(None, None, None)
        program(tmp_path / "cuda" / "bin" / "tileiras", "exit 1")
        self.put_on_path(monkeypatch, tmp_path / "cuda")
        assert environment.tileiras() == (None, "tileiras is there, but does not run")

    @pytest.mark.parametrize("wheel_versions", [(None, None, None), ("13.4.92", "13.0.88", "13.4.1"), ("13.4.92",) * 3])
    @pytest.mark.parametrize("on_path", [False, True])
    @pytest.mark.parametrize("in_home", [False, True])
    @pytest.mark.filterwarnings("ignore:Installed NVIDIA pip packages")
    def test_it_is_the_one_that_cuda_tile_takes(self, wheels, monkeypatch, tmp_path, wheel_versions, on_path, in_home):
        compile_module = pytest.importorskip("cuda.tile._compile", reason="cuda-tile is not installed")
        wheels(*wheel_versions)
        monkeypatch.setattr(compile_module, "_get_default_cuda_toolkit_paths", lambda: [])
        if on_path:
            self.put_on_path(monkeypatch, toolkit(tmp_path / "path", "13.2"))
        if in_home:
            monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path / "home", "13.3")))
        version, _ = environment.tileiras()
        try:
            taken = Path(compile_module._find_compiler_bin.__wrapped__().path)
        except FileNotFoundError:
            assert version == wheel_versions[0]  # nothing to run: either absent, or with a problem
            return
        release = {"cu13": "13.4", "path": "13.2", "home": "13.3"}[taken.parent.parent.name]
        assert version.startswith(release)

    def test_the_real_one(self):
        if not all(map(environment._version, WHEELS)):
            pytest.skip("the compiler's wheels are not installed")
        version, problem = environment.tileiras()
        assert problem is None and environment._pair(version) >= (13, 1)
