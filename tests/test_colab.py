"""The bootstrap cell on a machine like Colab: torch, Triton and NumPy are there, tilekit is not.

The machine is a fresh virtual environment. What is there, and what the package index offers, are stand-ins (wheels made
here, without a line of the real packages), so nothing is downloaded and every version is ours to choose.
"""

import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from checkout import ROOT, copy_of_package
from packaging.requirements import Requirement

from tilekit.environment import CUTILE_REQUIREMENTS

BOOTSTRAP = (ROOT / "notebooks" / "tools" / "bootstrap.py").read_text(encoding="utf-8")
TORCH = """\
__version__ = "{version}"
class version: cuda = hip = None
class cuda: is_available = is_initialized = staticmethod(lambda: False)
class device: pass
"""
BROUGHT = {"torch": "2.11.0", "triton": "3.6.0", "numpy": "2.1.0"}
NEWER = {"torch": "2.13.0", "triton": "3.7.1", "numpy": "2.4.6"}


def make_wheel(folder: Path, name: str, version: str, source: str = "", requires: str = "") -> None:
    package = name.replace("-", "_")
    info = f"{package}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    with zipfile.ZipFile(folder / f"{package}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{package}/__init__.py", source or f'__version__ = "{version}"\n')
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def parts_of(distribution: str) -> set[Path]:
    """The folders and files in site-packages of an installed distribution and of what it requires."""
    found, waiting, seen = set(), [distribution], set()
    while waiting:
        installed = metadata.distribution(waiting.pop())
        found |= {
            Path(installed.locate_file(f.parts[0])) for f in installed.files if f.parts[0] not in ("..", "__pycache__")
        }
        for requirement in map(Requirement, installed.requires or ()):
            if requirement.name not in seen and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
                seen.add(requirement.name)
                waiting.append(requirement.name)
    return found


class Machine:
    """A fresh virtual environment, and a package index that is a folder."""

    def __init__(self, folder: Path, offered: Path, source: str, brought: dict[str, str]):
        venv.create(folder / "venv", with_pip=True)
        self.python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
        self.content = folder / "content"
        self.content.mkdir()
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON", "TILEKIT_", "COLAB_"))},
            "COLAB_RELEASE_TAG": "release-test",
            "TILEKIT_SOURCE": source,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(offered),
            "PIP_NO_BUILD_ISOLATION": "0",  # which turns isolation off: the build backend is there already
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        self.brought = brought
        self.pip("install", *(f"{name}=={version}" for name, version in brought.items()))
        self.files = self.files_of_brought()
        # The build backend is that of the environment which runs the tests.
        (self.site / "backend.pth").write_text(f"{folder / 'backend'}\n")
        (folder / "backend").mkdir()
        for part in parts_of("hatchling"):
            if not (folder / "backend" / part.name).exists():
                (folder / "backend" / part.name).symlink_to(part)

    @property
    def site(self) -> Path:
        return Path(self.run("import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())

    def run(self, code: str, **environment: str | None) -> subprocess.CompletedProcess:
        """Run code in the folder where a notebook would be; a variable that is None is taken away."""
        variables = {k: v for k, v in {**self.environment, **environment}.items() if v is not None}
        return subprocess.run(
            [self.python, "-c", code], cwd=self.content, env=variables, capture_output=True, text=True, timeout=120
        )

    def pip(self, *arguments: str) -> str:
        done = subprocess.run(
            [self.python, "-m", "pip", *arguments], env=self.environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def versions(self) -> dict[str, str]:
        return dict(line.split("==") for line in self.pip("list", "--format=freeze").split())

    def files_of_brought(self) -> dict[str, tuple[int, int]]:
        """Every file of the packages that were there, by inode and time of change: replacing one shows."""
        found = (path for name in self.brought for path in self.site.glob(f"{name}*/**/*"))
        return {
            str(path): (path.stat().st_ino, path.stat().st_mtime_ns)
            for path in found
            if path.is_file() and path.suffix != ".pyc"
        }

    def assert_nothing_brought_has_changed(self):
        assert {name: self.versions()[name] for name in self.brought} == self.brought
        assert self.files_of_brought() == self.files and self.files


@pytest.fixture(scope="module")
def offered(tmp_path_factory):
    """What the package index offers: newer ones of all that Colab brings, and compilers newer than we ask for."""
    folder = tmp_path_factory.mktemp("index")
    for version in ("2.7.0", BROUGHT["torch"], NEWER["torch"]):
        make_wheel(folder, "torch", version, TORCH.format(version=version))
    for name in ("triton", "numpy"):
        for version in (BROUGHT[name], NEWER[name]):
            make_wheel(folder, name, version)
    for name, version in {
        "ml-dtypes": "0.5.4",
        "pyelftools": "0.32",
        "tqdm": "4.67.1",
    }.items():  # Colab brings them too
        make_wheel(folder, name, version)
    make_wheel(folder, "cuda-tile", "1.3.0")
    make_wheel(folder, "cuda-tile", "1.7.0", requires="numpy>=2.4")  # would exchange NumPy, were it allowed to
    make_wheel(folder, "cuda-tile", "1.7.1")
    for name in ("nvidia-cuda-tileiras", "nvidia-cuda-nvcc", "nvidia-nvvm"):
        for version in ("13.2.86", "13.4.92", "13.5.1"):
            make_wheel(folder, name, version)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A git repository of the working tree, as an address that pip understands."""
    folder = copy_of_package(tmp_path_factory.mktemp("origin") / "tilekit")
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.invalid"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "--no-gpg-sign", "-m", "as it is"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return f"git+file://localhost{folder.as_posix()}"  # older releases of pip want a host


@pytest.fixture(scope="module")
def colab(tmp_path_factory, offered, source):
    return Machine(tmp_path_factory.mktemp("colab"), offered, source, BROUGHT)


def test_elsewhere_it_says_what_to_install(colab):
    done = colab.run(BOOTSTRAP, COLAB_RELEASE_TAG=None)
    assert done.returncode != 0
    assert (
        f'In a terminal: pip install "tilekit-lessons[notebooks] @ {colab.environment["TILEKIT_SOURCE"]}"'
        in done.stderr
    )
    assert "tilekit-lessons" not in colab.versions()


def test_a_repository_that_is_not_there_is_no_secret(colab):
    done = colab.run(BOOTSTRAP, TILEKIT_SOURCE="git+file://localhost/no/such/repository")
    assert done.returncode != 0 and "RuntimeError: pip could not install this" in done.stderr
    assert "does not exist" in done.stdout or "not appear to be a git repository" in done.stdout, done.stdout


def test_on_colab_it_installs_from_the_repository_and_touches_nothing(colab):
    # A clone beside the notebook is a folder named tilekit, which Python takes for a package without content.
    (colab.content / "tilekit").mkdir()
    done = colab.run(f"cell = {BOOTSTRAP!r}\nexec(cell, globals())\nexec(cell, globals())")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("-m pip install") == 1, "the second time has nothing left to do"
    assert re.search("Successfully installed .*tilekit-lessons", done.stdout), "pip's output is shown"
    assert done.stdout.count("is ready, from") == 2 and str(colab.site) in done.stdout
    again = colab.run(BOOTSTRAP)  # after a restart of the runtime
    assert again.returncode == 0 and "pip install" not in again.stdout, again.stderr
    colab.assert_nothing_brought_has_changed()


def test_a_gpu_that_can_run_cutile_gets_its_compiler(colab):
    gpu = (
        "from tilekit import environment\n"
        "facts = environment.Facts(compute_capability={}, driver_cuda={})\n"
        "environment.collect_facts = lambda **_: facts\n"
    )
    for capability, driver in (((7, 5), (13, 0)), ((9, 0), (12, 8))):
        done = colab.run(gpu.format(capability, driver) + BOOTSTRAP)
        assert done.returncode == 0 and "pip install" not in done.stdout, done.stdout + done.stderr
    done = colab.run(gpu.format((8, 9), (13, 0)) + BOOTSTRAP)
    assert done.returncode == 0, done.stdout + done.stderr
    versions = colab.versions()
    for requirement in map(Requirement, CUTILE_REQUIREMENTS):
        assert str(requirement) in done.stdout
        assert requirement.specifier.contains(versions[requirement.name]), versions
    assert versions["nvidia-cuda-tileiras"] == versions["nvidia-nvvm"] == "13.4.92"
    colab.assert_nothing_brought_has_changed()


def test_a_torch_that_is_too_old_stays_and_the_reason_is_shown(tmp_path, offered, source):
    colab = Machine(tmp_path, offered, source, {**BROUGHT, "torch": "2.7.0"})
    done = colab.run(BOOTSTRAP)
    assert done.returncode != 0 and "RuntimeError: pip could not install this" in done.stderr
    assert "torch>=2.8" in done.stdout and "2.7.0" in done.stdout, done.stdout
    colab.assert_nothing_brought_has_changed()


def test_in_a_checkout_the_checkout_is_used():
    done = subprocess.run(
        [sys.executable, "-c", BOOTSTRAP],
        cwd=ROOT / "notebooks",
        env={**os.environ, "COLAB_RELEASE_TAG": "release-test", "TILEKIT_SOURCE": "file:///nowhere"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and str(ROOT / "tilekit") in done.stdout, done.stdout + done.stderr
