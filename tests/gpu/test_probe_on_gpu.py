"""The probe and its trial runs where kernels really compile and run."""

import time

import pytest
import torch

from tilekit import environment, trial


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """No outcome remembered, neither in this process nor on disk."""
    monkeypatch.setenv("TILEKIT_CACHE_DIR", str(tmp_path / "cache"))
    environment.forget()
    yield
    environment.forget()


def test_facts_are_torchs(fresh):
    facts = environment.collect_facts("cuda", trial=False)
    assert facts.gpu_name == torch.cuda.get_device_name()
    assert facts.compute_capability == torch.cuda.get_device_capability()
    assert facts.driver_problem is None and facts.import_problems == {}


def test_the_driver_says_the_same_from_outside(fresh, monkeypatch):
    torch.cuda.init()
    inside = environment._driver()
    environment._driver.cache_clear()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert environment._driver() == inside
    assert inside.cuda is not None and inside.gpu_name == torch.cuda.get_device_name(0)


def test_what_the_versions_allow_runs(fresh):
    by_versions = environment.probe("cuda", trial=False).backends
    tried = environment.probe("cuda")
    for name in ("cutile", "triton", "cuda"):
        assert tried.backends[name] == by_versions[name]
    usable = [name for name in ("cutile", "triton") if by_versions[name].usable]
    assert tried.best == [*usable, "torch"][0]
    usable += ["cuda"] * by_versions["cuda"].usable
    assert len(list(trial.cache_folder().glob("trial-*.json"))) == len(usable)


def test_a_second_process_would_not_try_again(fresh):
    environment.probe("cuda")
    environment._probed.cache_clear()
    start = time.perf_counter()
    environment.probe("cuda")
    assert time.perf_counter() - start < 1


def test_a_trial_that_fails_says_why(fresh):
    nowhere = torch.cuda.device_count()
    problem = trial.run("triton", nowhere, environment.collect_facts("cuda", trial=False))
    assert "invalid device ordinal" in problem


def test_an_old_toolkit_in_cuda_home_does_not_break_cutile(fresh, monkeypatch, tmp_path):
    """Either the compiler does not obey CUDA_HOME, or the verdict says that it does."""
    if not environment.probe("cuda", trial=False).backends["cutile"].usable:
        pytest.skip("cuTile is not usable here")
    environment.forget()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    verdict = environment.probe("cuda").backends["cutile"]
    assert verdict.usable or verdict.fix == "unset CUDA_HOME CUDA_PATH"
