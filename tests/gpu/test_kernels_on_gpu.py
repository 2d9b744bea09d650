"""Every kernel on every backend, compiled, over the shared cases, and at sizes that need a GPU."""

import time

import pytest
import torch

import tilekit
from tilekit import kernels
from tilekit.exercises import Make
from tilekit.exercises.checker import run_case
from tilekit.plans import cdiv


def usable(backend):
    if torch.cuda.is_available() and not tilekit.probe("cuda").backends[backend].usable:
        pytest.skip(f"{backend} is not usable here: {tilekit.probe('cuda').backends[backend].reason}")


BACKENDS = ("torch", "triton", "cutile", "cuda")
ALL = [
    pytest.param(name, case, dtype, id=f"{name}-{case.id}-{str(dtype).removeprefix('torch.')}")
    for name in kernels.NAMES
    for case in kernels.spec(name).cases
    for dtype in case.dtypes
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "case", "dtype"), ALL)
def test_case(name, case, dtype, backend, seed):
    usable(backend)
    spec = kernels.spec(name)

    def function(*args, **kwargs):
        return getattr(tilekit, name)(*args, **kwargs, backend=backend)

    difference = run_case(spec, case, function, Make(seed, dtype, "cuda"))
    assert difference is None, f"{difference} (seed {seed})"


@pytest.mark.parametrize("backend", ("triton", "cutile", "cuda"))
def test_vadd_past_two_to_the_31_elements(backend):
    usable(backend)
    n = 2**31 + 12_345
    a = torch.randint(-8, 8, (n,), device="cuda", dtype=torch.int8).to(torch.float16)
    out = tilekit.vadd(a, a, backend=backend)
    for chunk_in, chunk_out in zip(a.split(2**28), out.split(2**28), strict=True):
        assert torch.equal(chunk_in * 2, chunk_out)


@pytest.mark.parametrize("backend", ("triton", "cutile", "cuda"))
def test_vadd_of_a_view_whose_offsets_pass_two_to_the_31(backend):
    usable(backend)
    base = torch.randn(2**31 + 2**20, device="cuda", dtype=torch.float16)
    a = base.as_strided((3, 1000), (2**30 + 7, 1))
    assert torch.equal(tilekit.vadd(a, a, backend=backend), a + a)


@pytest.mark.parametrize("backend", ("triton", "cutile", "cuda"))
def test_side_stream_is_respected(backend):
    usable(backend)
    a = torch.ones(2**22, device="cuda")
    tilekit.vadd(a, a, backend=backend)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        b = torch.full_like(a, 3.0)
        out = tilekit.vadd(b, b, backend=backend)
    stream.synchronize()
    assert (out == 6).all()


@pytest.mark.parametrize("backend", ("triton", "cutile", "cuda", "torch"))
def test_cupy_in_and_out(backend):
    usable(backend)
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    a = cupy.arange(1000, dtype=cupy.float32)
    out = tilekit.vadd(a, a[::-1].copy(), backend=backend)
    assert isinstance(out, cupy.ndarray)
    assert (out == 999).all()
    with cupy.cuda.Stream(non_blocking=True):
        x = cupy.random.standard_normal((64, 1000), dtype=cupy.float32)
        y = tilekit.softmax(x, backend=backend)
        assert abs(y.sum(axis=1) - 1).max() < 1e-5


def test_one_tensor_on_the_cpu_is_refused():
    with pytest.raises(ValueError, match="one device"):
        tilekit.vadd(torch.ones(3, device="cuda"), torch.ones(3))


def test_cpu_tensor_in_a_compiling_process_says_the_way_out():
    with pytest.raises(tilekit.BackendUnavailable, match="TRITON_INTERPRET=1"):
        tilekit.vadd(torch.ones(3), torch.ones(3), backend="triton")


@pytest.mark.parametrize("backend", ("triton", "cutile", "cuda"))
def test_a_call_under_no_grad_has_no_gradient(backend):
    usable(backend)
    a = torch.ones(3, device="cuda", requires_grad=True)
    with torch.no_grad():
        out = tilekit.vadd(a, a, backend=backend)
    assert torch.equal(out, a.detach() * 2) and not out.requires_grad


@pytest.mark.filterwarnings("error:.*auto leaves:RuntimeWarning")
def test_auto_takes_the_best_backend_when_a_gradient_is_wanted():
    a = torch.randn(3, 40, device="cuda", requires_grad=True)
    out = tilekit.softmax(a)
    best = tilekit.probe("cuda").best
    if best != "torch":
        assert type(out.grad_fn).__name__ == f"softmax_{best}Backward"
    out.square().sum().backward()
    wanted = torch.autograd.grad(torch.softmax(a, -1).square().sum(), a)[0]
    torch.testing.assert_close(a.grad, wanted)


@pytest.mark.timing
@pytest.mark.parametrize("backend", ("triton", "cutile", "cuda"))
def test_host_overhead(backend):
    """A call costs at most the bare launch, torch.empty and 8 microseconds."""
    usable(backend)
    from tilekit.plans import limits_of

    a, b = torch.randn(2, 1024, device="cuda")
    out = torch.empty_like(a)
    if backend == "triton":
        from tilekit.kernels.vadd import triton_kernel as module

        p = module.plan((a.shape, b.shape), (a.stride(), b.stride()), a.dtype, limits_of(a.device))
        constants, options = dict(p.constants), dict(p.options)

        def bare():
            module.vadd_kernel[p.grid](a, b, out, 1024, **constants, **options)
    elif backend == "cuda":
        from tilekit import cuda_cpp
        from tilekit.kernels import _cuda
        from tilekit.kernels.vadd import cuda_kernel as module

        p = module.plan((a.shape, b.shape), (a.stride(), b.stride()), a.dtype, limits_of(a.device))
        kernel = _cuda.compiled("vadd", p, a.dtype)
        assert isinstance(kernel, cuda_cpp.Kernel)
        values = [a.data_ptr(), b.data_ptr(), out.data_ptr(), *p.arguments]

        def bare():
            kernel.launch_packed(0, (*p.grid, 1, 1), (p.options["threads"], 1, 1), values, 0)
    else:
        import cuda.tile as ct

        from tilekit.kernels.vadd import cutile_kernel as module

        p = module.plan((a.shape, b.shape), (a.stride(), b.stride()), a.dtype, limits_of(a.device))
        tile = p.constants["TILE"]

        def bare():
            ct.launch(torch.cuda.current_stream(), p.grid, module.vadd_kernel, (a, b, out, tile))

    def empty():
        torch.empty(a.shape, dtype=a.dtype, device=a.device)

    def ours():
        tilekit.vadd(a, b, backend=backend)

    def microseconds(function):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            function()
        elapsed = time.perf_counter() - start
        torch.cuda.synchronize()
        return elapsed / 200 * 1e6

    with torch.no_grad():
        for function in (bare, empty, ours):
            microseconds(function)
        rounds = [(microseconds(ours), microseconds(bare), microseconds(empty)) for _ in range(15)]
    # The least of each: what a busy machine adds is not what the call costs.
    call, launch, allocation = (min(column) for column in zip(*rounds, strict=True))
    extra = call - launch - allocation
    print(
        f"\n{backend}: call {call:.1f} us, bare launch {launch:.1f} us, torch.empty {allocation:.1f} us, extra {extra:.1f} us, bare"
    )
    assert extra <= 8.0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", kernels.NAMES)
def test_a_call_can_be_captured_in_a_cuda_graph(name, backend):
    """Whatever waits for the device, or reads a value from it, would break the capture."""
    usable(backend)
    count = {"vadd": 2, "fused_gelu": 3, "softmax": 1, "matmul": 2, "flash_attention": 3}[name]
    arrays = [torch.randn(64, 64, device="cuda") for _ in range(count)]

    def call():
        with torch.no_grad():
            return getattr(tilekit, name)(*arrays, backend=backend)

    if name == "flash_attention":
        tilekit.flash_attention(*arrays, return_lse=True, backend=backend)  # loads what its plain formula needs
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    for array in arrays:
        array.normal_()
    graph.replay()
    torch.testing.assert_close(out, call(), rtol=1e-3, atol=1e-4)


SCALE = """
extern "C" __global__ void scale(const float* x, float* out, int n, float by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * by;
}
"""


def test_a_cuda_kernel_of_ones_own():
    usable("cuda")
    from tilekit import cuda_cpp

    x = torch.randn(1000, device="cuda")
    out = torch.empty_like(x)
    cuda_cpp.kernel(SCALE, "scale").launch((4,), (256, 1), x, out, 1000, 0.1)
    assert torch.equal(out, x * 0.1)
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    given, answer = cupy.arange(1000, dtype=cupy.float32), cupy.empty(1000, dtype=cupy.float32)
    cuda_cpp.kernel(SCALE, "scale").launch(4, 256, given, answer, 1000, 2)
    assert (answer == given * 2).all()


def test_a_cuda_kernel_in_a_thread_of_autograds():
    usable("cuda")
    from tilekit import cuda_cpp

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            out, gradient = torch.empty_like(gradient), gradient.contiguous()
            cuda_cpp.kernel(SCALE, "scale").launch(cdiv(out.numel(), 256), 256, gradient, out, out.numel(), 3.0)
            return out

    x = torch.randn(1000, device="cuda", requires_grad=True)
    Scale.apply(x).sum().backward()
    assert (x.grad == 3).all()


def test_a_cuda_kernel_on_another_device():
    usable("cuda")
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    a = torch.randn(5000, device="cuda:1")
    assert torch.equal(tilekit.vadd(a, a, backend="cuda"), a * 2)
    assert torch.cuda.current_device() == 0


def test_too_much_shared_memory_is_said():
    usable("cuda")
    from tilekit import cuda_cpp

    x = torch.ones(4, device="cuda")
    with pytest.raises(ValueError, match="scale: 300,000 bytes of shared memory are more than a block has"):
        cuda_cpp.Kernel(SCALE, "scale").launch(1, 32, x, x, 4, 1.0, shared_memory=300_000)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16))
@pytest.mark.parametrize("is_causal", (False, True))
@pytest.mark.parametrize(("rows", "keys"), ((512, 512), (500, 777)))
def test_the_attention_of_the_demonstration(rows, keys, is_causal, dtype, seed):
    usable("cuda")
    torch.manual_seed(seed)
    query, key, value = (torch.randn(96, n, 128, device="cuda", dtype=dtype) for n in (rows, keys, keys))
    out = tilekit.flash_attention(query, key, value, is_causal=is_causal, backend="cuda")
    wanted = kernels.spec("flash_attention").reference(query, key, value, is_causal=is_causal)
    error = (out.double() - wanted).abs().max().item()
    assert error <= (2e-6 if dtype is torch.float32 else torch.finfo(dtype).eps * 4), error


@pytest.mark.parametrize("backend", BACKENDS)
def test_tf32_where_torchs_setting_allows_it(backend, seed, monkeypatch):
    usable(backend)
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("TF32 exists from compute capability 8.0 on")
    torch.manual_seed(seed)
    a, b = torch.randn(2, 500, 500, device="cuda")
    q, k, v = torch.randn(3, 2, 300, 64, device="cuda")
    for allowed, least, most in ((False, 0.0, 2e-6), (True, 2e-5, 3e-3)):
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", allowed)
        for out, wanted in (
            (tilekit.matmul(a, b, backend=backend), a.double() @ b.double()),
            (
                tilekit.flash_attention(q, k, v, backend=backend),
                kernels.spec("flash_attention").reference(q.double(), k.double(), v.double()),
            ),
        ):
            error = ((out.double() - wanted).abs().max() / wanted.abs().max()).item()
            # torch's fused attention has one kernel for both settings.
            assert error <= most and (backend == "torch" or least <= error), (allowed, error)
