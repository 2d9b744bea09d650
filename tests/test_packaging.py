"""The package as others get it: metadata, wheel, import, and the commands in the documents."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile

import pytest
import yaml
from checkout import ROOT, copy_of_package, tracked
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def test_requirements_parse_and_keep_their_promises():
    for requirement in [*PROJECT["dependencies"], *(r for extra in EXTRAS.values() for r in extra)]:
        Requirement(requirement)
    cutile = {Requirement(r).name: Requirement(r) for r in EXTRAS["cutile"]}
    assert not any(r.extras for r in cutile.values()), "cuda-tile[tileiras] resolves to a compiler without Hopper"
    parts = [str(cutile[n].specifier) for n in ("nvidia-cuda-tileiras", "nvidia-cuda-nvcc", "nvidia-nvvm")]
    assert len(set(parts)) == 1, "the compiler's parts share major.minor"
    for r in cutile.values():
        assert r.marker.evaluate({"sys_platform": "linux"}) and not r.marker.evaluate({"sys_platform": "darwin"})
    assert PROJECT["name"] == "tilekit-lessons"


def test_the_probe_quotes_the_extra():
    from tilekit.environment import CUTILE_REQUIREMENTS

    extra = [Requirement(r.partition(";")[0]) for r in EXTRAS["cutile"]]
    assert set(map(Requirement, CUTILE_REQUIREMENTS)) == set(extra)


def test_constraints_fit_the_ranges():
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            pins[pin.name.lower()] = str(pin.specifier).removeprefix("==")
    for requirement in [
        *PROJECT["dependencies"],
        *(r for name, extra in EXTRAS.items() if name != "all" for r in extra),
    ]:
        parsed = Requirement(requirement)
        if parsed.name.lower() in pins:
            assert parsed.specifier.contains(pins[parsed.name.lower()]), requirement
    assert {"torch", "triton", "cuda-tile", "nvidia-cuda-tileiras"} <= set(pins)


def test_environment_yml_says_what_pyproject_says():
    content = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert content["channels"] == ["conda-forge"]
    plain = [d for d in content["dependencies"] if isinstance(d, str)]
    assert {d.split("=")[0] for d in plain} == {"python", "pip"}, "CUDA comes once: everything else through pip"
    version = next(d for d in plain if d.startswith("python")).split("=")[1]
    from packaging.specifiers import SpecifierSet

    assert SpecifierSet(PROJECT["requires-python"]).contains(version + ".0")
    (pip,) = [d["pip"] for d in content["dependencies"] if isinstance(d, dict)]
    assert "--constraint constraints.txt" in pip
    (editable,) = [line for line in pip if line.startswith("--editable")]
    extras = re.search(r"\.\[(.+)\]", editable)[1].split(",")
    assert set(extras) <= set(EXTRAS) and {"cutile", "notebooks", "dev"} <= set(extras)


def test_the_workflow_does_what_ci_run_does():
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    jobs = workflow["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == ["3.10", "3.12", "3.13"]
    assert any(step.get("run") == "bash .ci/run" for step in jobs["test"]["steps"])
    assert any("environment.yml" in str(step) for step in jobs["conda"]["steps"])
    assert jobs["newest"]["continue-on-error"] is True
    assert "make test" in (ROOT / ".ci/run").read_text() and os.access(ROOT / ".ci/run", os.X_OK)


def test_every_install_line_parses():
    lines = []
    for name in tracked("*.md", "*.ipynb", "*.yml", "Makefile", "*.py"):
        if name.startswith("tests/"):
            continue
        text = (ROOT / name).read_text(encoding="utf-8").replace('\\"', '"')
        lines += [(name, m) for m in re.findall(r"pip install ((?:[^\n`'\\]|\\(?!n))*)", text)]
    assert len(lines) >= 5
    for name, line in lines:
        for quoted in re.findall(r'"([^"]+)"', line):
            if "{" in quoted or not quoted[0].isalnum():
                continue
            parsed = Requirement(quoted)
            assert parsed.name != "tilekit", f"{name}: the name tilekit is somebody else's"
            assert not (parsed.name == "cuda-tile" and parsed.extras), f"{name}: {line}"
        assert not re.match(r"(-U |--upgrade )?tilekit(\s|$)", line), f"{name}: {line}"
        assert not re.search(r"\b[a-z]+-\d+\.\d+", line), f"{name}: a version is pinned with ==: {line}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    source = copy_of_package(folder / "source")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_has_everything(wheel):
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    beside = {"tilekit/cutile_startup.pth": "tilekit_cutile_startup.pth"}
    assert inside == {beside.get(name, name) for name in tracked("tilekit")}


def test_the_wheel_works_outside_the_checkout(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import tilekit, torch; from tilekit import benchmark, spellings, tiny_gpt; "
        f"assert tilekit.__file__.startswith({str(tmp_path)!r}), tilekit.__file__; "
        "assert spellings.source('softmax', 'cutile'); assert benchmark.recorded()[1]; "
        "assert 'summer' in tiny_gpt.text(); "
        "print(tilekit.softmax(torch.zeros(2)).tolist())"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.stdout.strip() == "[0.5, 0.5]", done.stderr
    command = [sys.executable, "-m", "tilekit", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["backends"]) == {"cutile", "triton", "cuda", "torch"}


KNOWS_NOTHING_OF_TILEKIT = """
import sys
import torch
import cuda.tile as ct
from cuda.tile import launch
@ct.kernel
def double(x):
    ct.store(x, ct.bid(0), ct.load(x, ct.bid(0), 4) * 2)
x = torch.arange(8, device="cuda")
launch(torch.cuda.current_stream(), (2,), double, (x,))
print(x.tolist(), sys.modules["tilekit"].__file__)
"""


def test_the_variable_reaches_programs_that_know_nothing_of_tilekit(wheel, tmp_path):
    """pip puts the wheel's .pth file where Python reads it as it starts; without -S Python would do so by itself."""
    pytest.importorskip("cuda.tile")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    (tmp_path / "program.py").write_text(KNOWS_NOTHING_OF_TILEKIT)
    start = f"import site; [site.addsitedir(f) for f in {[str(tmp_path / 'site'), sysconfig.get_path('purelib')]}]"
    run = f"import runpy; runpy.run_path({str(tmp_path / 'program.py')!r})"
    answers = {}
    for value in ("interpret", "yes"):
        answers[value] = subprocess.run(
            [sys.executable, "-I", "-S", "-c", f"{start}; {run}"], capture_output=True, text=True,
            env={**os.environ, "TILEKIT_CUTILE": value},
        )  # fmt: skip
    expected = f"[0, 2, 4, 6, 8, 10, 12, 14] {tmp_path / 'site' / 'tilekit' / '__init__.py'}\n"
    assert answers["interpret"].stdout == expected, answers["interpret"].stderr
    assert "TILEKIT_CUTILE is 'yes'; set it to 'interpret'" in answers["yes"].stderr


def test_import_is_light():
    code = "import sys; import tilekit; print([m for m in ('torch', 'triton', 'numpy', 'cuda', 'cupy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.timing
def test_import_is_quick():
    """At most 50 ms beyond the interpreter's own start; the least of several, because a machine may be busy."""
    code = "import time; t = time.perf_counter(); import tilekit; print((time.perf_counter() - t) * 1000)"
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT).stdout)
        for _ in range(7)
    ]
    assert min(times) <= 50, times


def code_blocks(language):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("block", code_blocks("python"), ids=lambda block: block.strip().splitlines()[-1][:40])
def test_readme_python_runs(block):
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def commands():
    for block in code_blocks("sh"):
        for line in block.splitlines():
            line = line.partition("  #")[0].strip()
            if line:
                yield line


@pytest.mark.parametrize("command", list(commands()))
def test_readme_commands_work(command, tmp_path):
    if command.startswith("git clone"):
        # The address is not known yet; cloning this repository plays it.
        done = subprocess.run(
            ["git", "clone", "-q", str(ROOT), "tilekit"], capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0 and (tmp_path / "tilekit" / "Makefile").exists(), done.stderr
    elif command.startswith("make"):
        # What `make test` and `make run` do is this very run, and tests/test_notebooks.py; here, that the target is there.
        done = subprocess.run([*command.split(), "-n"], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr
    elif command.startswith("pip install"):
        for quoted in re.findall(r'"([^"]+)"', command):
            Requirement(quoted)
    else:
        assert command.startswith("python -m tilekit"), f"no test knows how to run this: {command}"
        arguments = command.split()[1:]
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0 and "best backend" in done.stdout, done.stderr


def test_make_alone_lists_the_targets():
    done = subprocess.run(["make"], capture_output=True, text=True, cwd=ROOT)
    for target in ("env", "run", "test", "lab", "lint", "format", "gpu-test", "bench", "clean"):
        assert f"make {target}" in done.stdout


def test_the_map_names_every_room():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for path in sorted((ROOT / "tilekit").iterdir()):
        if (
            path.suffix == ".py"
            and path.name not in ("__main__.py", "triton_self_test.py")
            or path.is_dir()
            and path.name[0] != "_"
        ):
            assert path.name.removesuffix(".py") in text, f"CONTRIBUTING.md's map lacks {path.name}"
