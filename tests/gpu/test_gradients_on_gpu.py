"""Gradients of every kernel on every backend, compiled: the shared cases, and what only a GPU shows."""

import pytest
import torch
from gradient_cases import LAYOUTS, cases, check
from test_kernels_on_gpu import BACKENDS, usable

import tilekit
from tilekit import kernels
from tilekit.exercises.spec import Case

KERNEL_BACKENDS = ("triton", "cutile", "cuda")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def all_cases():
    for number, (name, case) in enumerate(cases()):
        for turn, dtype in enumerate(DTYPES):
            if dtype in case.dtypes:
                layout = LAYOUTS[(number + turn) % len(LAYOUTS)]
                label = f"{name}-{case.id}-{str(dtype).removeprefix('torch.')}-{layout}"
                yield pytest.param(name, case, dtype, layout, id=label)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "case", "dtype", "layout"), list(all_cases()))
def test_case(name, case, dtype, layout, backend, seed):
    usable(backend)
    problem = check(name, case, dtype, "cuda", backend, seed, layout)
    assert problem is None, f"{problem} (seed {seed})"


@pytest.mark.parametrize("backend", KERNEL_BACKENDS)
@pytest.mark.parametrize("d", [32, 64, 80, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_over_many_tiles(d, causal, dtype, layout, backend, seed):
    usable(backend)

    def build(m):
        keywords = {"is_causal": causal, "enable_gqa": True}
        return m.randn(2, 4, 515, d), m.randn(2, 2, 700, d), m.randn(2, 2, 700, d), keywords

    problem = check("flash_attention", Case("any", build), dtype, "cuda", backend, seed, layout)
    assert problem is None, f"{problem} (seed {seed})"


@pytest.mark.parametrize("backend", KERNEL_BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
def test_n1_float32_is_ieee_without_tf32(causal, backend, seed):
    usable(backend)
    assert not torch.backends.cuda.matmul.allow_tf32
    for name, build in (
        ("matmul", lambda m: (m.randn(512, 512), m.randn(512, 512))),
        ("flash_attention", lambda m: (*(m.randn(128, 32) for _ in "qkv"), {"is_causal": causal})),
    ):
        problem = check(name, Case("any", build), torch.float32, "cuda", backend, seed)
        assert problem is None, f"{name}: {problem} (seed {seed})"


@pytest.mark.parametrize("backend", KERNEL_BACKENDS)
@pytest.mark.parametrize("name", kernels.NAMES)
def test_the_same_each_time(name, backend):
    usable(backend)
    shapes = {
        "vadd": [(300, 500)] * 2,
        "fused_gelu": [(3000, 500), (500,), ()],
        "softmax": [(300, 5000)],
        "matmul": [(8, 300, 500), (500, 200)],
        "flash_attention": [(4, 1000, 64)] * 3,
    }[name]
    arrays = [torch.randn(shape, device="cuda", dtype=torch.float16, requires_grad=True) for shape in shapes]
    out = getattr(tilekit, name)(*arrays, backend=backend)
    grad = torch.randn_like(out)
    first = torch.autograd.grad(out, arrays, grad, retain_graph=True)
    for _ in range(5):
        again = torch.autograd.grad(out, arrays, grad, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("backend", KERNEL_BACKENDS)
@pytest.mark.parametrize("name", kernels.NAMES)
def test_backward_follows_the_stream_of_forward(name, backend):
    usable(backend)
    count = {"vadd": 2, "fused_gelu": 3, "softmax": 1, "matmul": 2, "flash_attention": 3}[name]
    arrays = [torch.randn(256, 256, device="cuda", requires_grad=True) for _ in range(count)]
    call = getattr(tilekit, name)
    wanted = torch.autograd.grad(call(*arrays, backend=backend).sin().sum(), arrays)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late = [a.detach().clone().requires_grad_() for a in arrays]
        got = torch.autograd.grad(call(*late, backend=backend).sin().sum(), late)
    stream.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("backend", [None, *KERNEL_BACKENDS])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_by_inductor(dynamic, backend):
    if backend:
        usable(backend)

    def block(x, w):
        y = tilekit.matmul(tilekit.vadd(x, x * 2), w, backend=backend)
        y = tilekit.fused_gelu(y, w[0], w[1, 0], backend=backend) * 3
        y = tilekit.flash_attention(y, y + 1, y, is_causal=True, backend=backend)
        return tilekit.softmax(y.relu(), backend=backend)

    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic)
    for rows in (70, 133):
        x = torch.randn(rows, 64, device="cuda", requires_grad=True)
        w = torch.randn(64, 64, device="cuda", requires_grad=True)
        out, wanted = compiled(x, w), block(x, w)
        torch.testing.assert_close(out, wanted, rtol=1e-3, atol=1e-4)
        grad = torch.randn_like(out)
        got, want = (torch.autograd.grad(o, (x, w), grad) for o in (out, wanted))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3 * b.abs().max().item())
    torch._dynamo.reset()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("backend", KERNEL_BACKENDS)
def test_gradients_on_another_device_than_the_current_one(backend):
    usable(backend)
    x = torch.randn(30, 40, device="cuda:1", requires_grad=True)
    tilekit.softmax(x, backend=backend).square().sum().backward()
    wanted = torch.autograd.grad(torch.softmax(x, -1).square().sum(), x)[0]
    torch.testing.assert_close(x.grad, wanted)
