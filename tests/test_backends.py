"""The choice among the backends: names, precedence, refusals."""

import os
import subprocess
import sys
import threading

import pytest
import torch

import tilekit
from tilekit import backends, environment
from tilekit.plans import CannotServe

A = torch.ones(3)


@pytest.fixture
def taken(monkeypatch):
    """Which backend ran: each launch is replaced by one that notes its name."""
    names = []

    def launch_of(kernel, name, device, dtype, besides):
        def launch(a, b):
            names.append(name)
            return a + b

        return launch

    monkeypatch.setattr(backends, "_launch_of", launch_of)
    monkeypatch.delenv("TILEKIT_BACKEND", raising=False)
    backends.forget()
    yield names
    backends.forget()


def test_auto_on_a_cpu_tensor_is_torch(taken):
    tilekit.vadd(A, A)
    assert taken == ["torch"]


def test_precedence(taken, monkeypatch):
    monkeypatch.setenv("TILEKIT_BACKEND", "triton")
    tilekit.vadd(A, A)
    with tilekit.use_backend("torch"):
        tilekit.vadd(A, A)
        tilekit.vadd(A, A, backend="triton")
        with tilekit.use_backend("triton"):
            tilekit.vadd(A, A)
        with tilekit.use_backend(None):
            tilekit.vadd(A, A)
        tilekit.vadd(A, A)
    tilekit.vadd(A, A)
    # None gives the choice back to auto, so the environment variable does not decide either.
    assert taken == ["triton", "torch", "triton", "triton", "torch", "torch", "triton"]


def test_use_backend_holds_for_this_thread_only(taken):
    with tilekit.use_backend("triton"):
        thread = threading.Thread(target=lambda: tilekit.vadd(A, A))
        thread.start()
        thread.join()
    assert taken == ["torch"]


def test_use_backend_is_undone_by_an_exception(taken):
    with pytest.raises(ZeroDivisionError), tilekit.use_backend("triton"):
        raise ZeroDivisionError
    tilekit.vadd(A, A)
    assert taken == ["torch"]


@pytest.mark.parametrize("call", [
    lambda: tilekit.vadd(A, A, backend="cudnn"),
    lambda: tilekit.use_backend("cudnn").__enter__(),
])  # fmt: skip
def test_an_unknown_name_lists_the_known_ones(call):
    with pytest.raises(
        ValueError, match="unknown backend 'cudnn'; wanted one of 'auto', 'cutile', 'triton', 'cuda', 'torch'"
    ):
        call()


def test_an_unknown_name_in_the_environment(monkeypatch):
    monkeypatch.setenv("TILEKIT_BACKEND", "tritn")
    with pytest.raises(ValueError, match="^environment variable TILEKIT_BACKEND: unknown backend 'tritn'"):
        tilekit.vadd(A, A)


def test_a_named_backend_is_never_replaced():
    with pytest.raises(tilekit.BackendUnavailable, match="vadd: backend 'cuda' cannot run on cpu: .+"):
        tilekit.vadd(A, A, backend="cuda")
    assert issubclass(tilekit.BackendUnavailable, RuntimeError)


def test_the_backend_of_a_backward_pass_is_that_of_the_forward_pass(monkeypatch):
    """However the choice has changed in between."""
    imported = []
    real = backends._imported
    monkeypatch.setattr(backends, "_imported", lambda *names: imported.append(names[1:3]) or real(*names))
    backends.forget()
    x = torch.randn(3, 4, requires_grad=True)
    with tilekit.use_backend("triton"):
        out = tilekit.softmax(x)
    with tilekit.use_backend("torch"):
        out.sum().backward()
    assert imported == [("triton", "kernel"), ("triton", "backward")]
    backends.forget()


def test_float64_needs_torch():
    with pytest.raises(ValueError, match="backend 'triton' has no float64 kernels"):
        tilekit.vadd(A.double(), A.double(), backend="triton")


def test_auto_falls_back_with_one_warning(monkeypatch):
    def refuses(a, b):
        raise CannotServe("has no tile for this")

    monkeypatch.setattr(backends, "_find_launches", lambda *_: [("triton", refuses), ("torch", torch.add)])
    monkeypatch.setattr(backends, "_warned", set())
    backends.forget()
    with pytest.warns(RuntimeWarning, match="auto leaves 'triton' out: it has no tile for this") as seen:
        for _ in range(3):
            assert torch.equal(tilekit.vadd(A, A), torch.full((3,), 2.0))
    backends.forget()
    assert len(seen) == 1 and seen[0].filename == __file__


def test_a_named_backend_passes_its_refusal_on(monkeypatch):
    def refuses(a, b):
        raise CannotServe("has no tile for this")

    monkeypatch.setattr(backends, "_find_launches", lambda *_: [("triton", refuses)])
    backends.forget()
    with pytest.raises(ValueError, match="has no tile"):
        tilekit.vadd(A, A, backend="triton")
    backends.forget()


def test_available_names_usable_backends_in_autos_order():
    assert set(backends.available()) <= {"cutile", "triton", "torch"}
    assert backends.available()[-1] == "torch"


def run(code, **environment):
    import os

    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True,
        env={**{k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}, **environment},
    )  # fmt: skip


CALL = "import tilekit, torch; a = torch.ones(3); print(tilekit.vadd(a, a, backend='triton').tolist())"


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is packaged for Linux only")
class TestTritonsMode:
    def test_tilekit_first_interprets_where_there_is_no_gpu(self):
        if tilekit.triton_mode.has_nvidia_device_file():
            pytest.skip("this machine has a GPU")
        assert run(CALL).stdout.strip() == "[2.0, 2.0, 2.0]"

    def test_triton_first_is_refused_with_the_way_out(self):
        done = run("import triton; " + CALL)
        assert "BackendUnavailable" in done.stderr and "TRITON_INTERPRET=1" in done.stderr

    def test_a_value_that_is_there_stays(self):
        done = run(CALL, TRITON_INTERPRET="0")
        assert "BackendUnavailable" in done.stderr and "import tilekit before triton" in done.stderr

    def test_changing_the_variable_afterwards_is_noticed(self):
        done = run("import os, tilekit, triton; os.environ['TRITON_INTERPRET'] = '0'; " + CALL, TRITON_INTERPRET="1")
        assert "BackendUnavailable" in done.stderr and "both of Triton's modes" in done.stderr

    def test_the_self_test_passes_with_this_pair_of_versions(self):
        code = "import tilekit.triton_mode as mode; print(mode.self_test())"
        assert run(code, TRITON_INTERPRET="1").stdout.strip() == "None"

    def test_threads_that_interpret_at_once(self):
        """From the first call on: a self-test that two threads ran into each other would be remembered as failed."""
        code = (
            "import concurrent.futures, tilekit, torch\n"
            "a = torch.randn(40, 40)\n"
            "calls = [(tilekit.softmax, 1), (tilekit.vadd, 2), (tilekit.matmul, 2), (tilekit.flash_attention, 3)] * 6\n"
            "def call(function, count):\n"
            "    got, wanted = (function(*[a] * count, backend=name) for name in ('triton', 'torch'))\n"
            "    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)\n"
            "with concurrent.futures.ThreadPoolExecutor(8) as pool:\n"
            "    for done in [pool.submit(call, *c) for c in calls]:\n"
            "        done.result()\n"
            "print('right')"
        )
        done = run(code, TRITON_INTERPRET="1")
        assert done.stdout.strip() == "right", done.stderr


def test_everywhere_adds_the_cpu_to_a_gpu_that_cutile_does_not_know(monkeypatch):
    packages = {"torch_version": "2.13.0", "numpy_version": "2.4.0", "triton_version": "3.7.1", "platform": "linux"}
    t4 = environment.Facts(
        gpu_name="Tesla T4", compute_capability=(7, 5), torch_cuda="13.0", driver_cuda=(13, 0), nvrtc_version="13.0.88",
        **packages,
    )  # fmt: skip
    on = {None: environment.assess(t4), "cpu": environment.assess(environment.Facts(**packages))}
    monkeypatch.setattr(environment, "probe", lambda device=None: on[device])
    gpu = on[None].device
    assert gpu.startswith("cuda")
    assert backends.everywhere() == (("cutile", "cpu"), ("triton", gpu), ("torch", gpu), ("cuda", gpu))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_may_interpret_while_a_thread_of_its_parent_does():
    code = """
import os, signal, threading, time, torch, tilekit
def once():
    tilekit.softmax(torch.zeros(64, 3), backend="triton")
def again():
    while True:
        once()
once()
threading.Thread(target=again, daemon=True).start()
for _ in range(4):
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends a child that waits for ever
        once()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
os._exit(0)
"""
    pytest.importorskip("triton")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env={**os.environ, "TRITON_INTERPRET": "1"})
    assert done.returncode == 0
