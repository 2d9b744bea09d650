"""Arrays of other libraries, lazily negated views, autocast and TF32."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
from test_kernels import BACKENDS

import tilekit
from tilekit import arguments


@pytest.mark.parametrize("backend", ["torch", "cutile", "triton"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_numpy_in_and_out(backend, dtype):
    a = np.random.default_rng().standard_normal((6, 10)).astype(dtype)
    out = tilekit.vadd(a[:, ::2], a[:, 1::2], backend=backend)
    assert isinstance(out, np.ndarray) and out.dtype == dtype
    np.testing.assert_allclose(out, a[:, ::2] + a[:, 1::2], rtol=2e-3)


def test_numpy_is_taken_without_a_copy():
    a = np.ones(5, np.float32)
    (tensor,), _ = arguments.prepare("vadd", ("a",), "promote", a)
    assert tensor.data_ptr() == a.ctypes.data


def test_reversed_and_read_only_numpy_arrays(recwarn):
    a = np.arange(5.0)
    a.flags.writeable = False
    np.testing.assert_array_equal(tilekit.vadd(a[::-1], a), np.full(5, 4.0))
    assert not recwarn.list


class OnlyDlpack:
    """An array of no known library."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **keywords):
        return self.tensor.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __array_namespace__(self):
        return type("namespace", (), {"from_dlpack": staticmethod(lambda t: OnlyDlpack(t))})


def test_whatever_has_dlpack_is_answered_in_kind():
    out = tilekit.vadd(OnlyDlpack(torch.ones(3)), OnlyDlpack(torch.ones(3)))
    assert isinstance(out, OnlyDlpack)
    assert torch.equal(out.tensor, torch.full((3,), 2.0))


def test_an_array_without_a_way_back_is_refused_with_the_way_out():
    class Mute(OnlyDlpack):
        __array_namespace__ = property()

    with pytest.raises(TypeError, match="torch.from_dlpack"):
        tilekit.vadd(Mute(torch.ones(3)), Mute(torch.ones(3)))


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.complex64])
def test_numpy_dtypes_that_are_not_served(dtype):
    with pytest.raises(TypeError, match="dtype"):
        tilekit.vadd(np.ones(3, dtype), np.ones(3, dtype))


@pytest.mark.parametrize("backend", ["torch", "cutile", "triton"])
def test_lazily_negated_views(backend):
    negated = torch.tensor([1 + 2j, 3 + 4j]).conj().imag
    assert negated.is_neg()
    out = tilekit.vadd(negated, torch.zeros(2), backend=backend)
    assert torch.equal(out, torch.tensor([-2.0, -4.0]))


@pytest.mark.parametrize("backend", ["torch", "cutile", "triton"])
def test_autocast_casts_as_torch_does(backend):
    a, b = torch.randn(4), torch.randn(4, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert tilekit.vadd(a, b, backend=backend).dtype is torch.float32
        assert tilekit.matmul(torch.ones(2, 2), torch.ones(2, 2), backend=backend).dtype is torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")


SAME_IN_TORCH = {
    "vadd": (torch.add, [(3, 4), (3, 4)]),
    "fused_gelu": (lambda x, w, b: torch.nn.functional.gelu(x * w + b), [(3, 4), (4,), ()]),
    "softmax": (lambda x: torch.softmax(x, -1), [(3, 4)]),
    "matmul": (torch.matmul, [(3, 4), (4, 5)]),
    "flash_attention": (torch.nn.functional.scaled_dot_product_attention, [(3, 4), (5, 4), (5, 4)]),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", SAME_IN_TORCH)
def test_under_autocast_dtypes_are_torchs(name, dtype):
    function, shapes = SAME_IN_TORCH[name]
    for dtypes in itertools.product((torch.float16, torch.bfloat16, torch.float32, torch.float64), repeat=len(shapes)):
        if name in ("matmul", "flash_attention") and torch.float64 in dtypes and set(dtypes) != {torch.float64}:
            continue  # an error here as in torch
        arrays = [torch.randn(shape).to(d) for shape, d in zip(shapes, dtypes, strict=True)]
        with torch.autocast("cpu", dtype):
            assert getattr(tilekit, name)(*arrays).dtype is function(*arrays).dtype, dtypes


@pytest.mark.parametrize(("device", "wanted"), [("cpu", torch.bfloat16), ("cuda", torch.float32)])
def test_autocast_of_softmax_is_float32_but_on_a_cpu(device, wanted, monkeypatch):
    """Which operators autocast casts is another list on each device."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr(arguments, "autocast_is_on", lambda device_type: True)  # torch.autocast wants a real device
    with FakeTensorMode():
        (found,) = arguments.autocast("fp32", torch.empty(4, dtype=torch.bfloat16, device=device))
    assert found.dtype is wanted


TF32 = [
    ("", False),
    ("torch.set_float32_matmul_precision('high')", True),
    ("torch.set_float32_matmul_precision('medium')", True),
    ("torch.set_float32_matmul_precision('highest')", False),
    ("torch.backends.cuda.matmul.allow_tf32 = True", True),
    ("torch.backends.cuda.matmul.fp32_precision = 'tf32'", True),
    ("torch.backends.fp32_precision = 'tf32'", True),
    ("torch.backends.cuda.matmul.fp32_precision = 'ieee'", False),
    ("torch.set_float32_matmul_precision('high'); torch.backends.cuda.matmul.fp32_precision = 'ieee'", False),
    ("torch.backends.cuda.matmul.fp32_precision = 'tf32'; torch.backends.cuda.matmul.allow_tf32 = False", False),
]


@pytest.mark.parametrize(("setting", "allowed"), TF32)
def test_tf32_is_read_whichever_way_it_was_set(setting, allowed):
    if "fp32_precision" in setting and not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("this torch has the older setting only")
    code = f"import torch; {setting or 'pass'}\nfrom tilekit.arguments import tf32_allowed; print(tf32_allowed())"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == str(allowed), done.stderr


@pytest.mark.parametrize("backend", BACKENDS)
def test_under_autocast_numpy_is_answered_in_its_own_dtype(backend):
    a = np.ones((2, 2), np.float32)
    with torch.autocast("cpu"):
        assert tilekit.matmul(a, a, backend=backend).dtype == np.float32


def test_numpys_subclasses_are_numpy():
    class Array(np.ndarray):
        pass

    a = np.ones(3, np.float32)
    assert tilekit.vadd(a.view(Array), a).tolist() == [2.0, 2.0, 2.0]
