"""The kernels as operators of torch: torch's own checks, torch.compile, fake tensors, and what follows tensors."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from test_kernels import BACKENDS
from torch import library

import tilekit
from tilekit import kernels, operators
from tilekit.exercises import Make

ROOT = Path(__file__).parent.parent
TILE_BACKENDS = BACKENDS[1:]
OPERATORS = torch.ops.tilekit


def inputs(name, make):
    """An operator's inputs, all arrays in need of gradients."""
    built = {
        "vadd": lambda: (make.randn(6, 10), make.randn(10, 6).t()),
        "fused_gelu": lambda: (make.randn(3, 6, 10), make.randn(10), make.randn(), True),
        "softmax": lambda: (make.randn(6, 10), 1),
        "matmul": lambda: (make.randn(2, 1, 6, 10), make.randn(3, 10, 7)),
        "flash_attention": lambda: (
            make.randn(2, 4, 6, 10), make.randn(2, 2, 9, 10), make.randn(2, 2, 9, 5), True, -0.3, True,
        ),
    }[name]()  # fmt: skip
    return tuple(a.requires_grad_() if isinstance(a, torch.Tensor) else a for a in built)


def backward_inputs(name, make):
    *arrays, needs_or_dim = inputs(name, make)
    arrays = [a.detach() if isinstance(a, torch.Tensor) else a for a in arrays]
    if name == "softmax":
        return make.randn(6, 10), torch.softmax(arrays[0], 1), needs_or_dim
    if name == "fused_gelu":
        return make.randn(3, 6, 10), *arrays, needs_or_dim, [True, False, True]
    query, key, value, is_causal, scale = arrays
    out, lse = OPERATORS.flash_attention(query, key, value, is_causal, scale, True, backend="torch")
    return torch.randn_like(out), None, query, key, value, out, lse, is_causal, scale, [False, True, True]


@pytest.mark.parametrize("backend", ["", *BACKENDS])
@pytest.mark.parametrize("name", kernels.NAMES)
def test_opcheck(name, backend, seed):
    operator = getattr(OPERATORS, name).default
    library.opcheck(operator, inputs(name, Make(seed, torch.float32)), {"backend": backend})


@pytest.mark.parametrize("backend", ["", *BACKENDS])
@pytest.mark.parametrize("name", list(operators._BACKWARD_SCHEMAS))
def test_opcheck_of_the_backward_pass(name, backend, seed):
    operator = getattr(OPERATORS, f"{name}_backward").default
    library.opcheck(operator, backward_inputs(name, Make(seed, torch.float32)), {"backend": backend})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", [0.3, None])
def test_attention_without_its_log_sum_exp_has_gradients(backend, scale, seed):
    """Whoever calls the operator, an exported program say, need not know that they come from it."""
    arrays = inputs("flash_attention", Make(seed, torch.float32))[:3]
    library.opcheck(OPERATORS.flash_attention.default, (*arrays, True, scale, False), {"backend": backend})
    found = []
    for return_lse in (False, True):
        out, _ = OPERATORS.flash_attention(*arrays, True, scale, return_lse, backend=backend)
        found.append(torch.autograd.grad(out.sin().sum(), arrays))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("way", ["operator", "function"])
@pytest.mark.parametrize("name", kernels.NAMES)
def test_gradcheck_in_float64(name, way, seed):
    *rest, last = inputs(name, Make(seed, torch.float64))

    def function(*arrays):
        if way == "operator":
            result = getattr(OPERATORS, name)(*arrays, backend="torch")
        elif name == "flash_attention":
            *qkv, is_causal, scale, return_lse = arrays
            keywords = {"is_causal": is_causal, "scale": scale, "return_lse": return_lse, "enable_gqa": True}
            result = tilekit.flash_attention(*qkv, **keywords, backend="torch")
        elif name == "fused_gelu":
            result = tilekit.fused_gelu(*arrays[:3], approximate="none", backend="torch")
        else:
            result = getattr(tilekit, name)(*arrays, backend="torch")
        return result

    assert torch.autograd.gradcheck(function, (*rest, last))


CALLS = {
    "vadd": lambda n, **k: lambda a: tilekit.vadd(a, a.t() if a.shape[0] == a.shape[1] else a, **k),
    "fused_gelu": lambda n, **k: lambda a: tilekit.fused_gelu(a, a[0], a[0, 0], **k),
    "softmax": lambda n, **k: lambda a: tilekit.softmax(a, 0, **k),
    "matmul": lambda n, **k: lambda a: tilekit.matmul(a, a.mT, **k),
    "flash_attention": lambda n, **k: lambda a: tilekit.flash_attention(a, a * 2, a[:, :3], is_causal=True, **k),
}


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", [None, *BACKENDS])
@pytest.mark.parametrize("name", kernels.NAMES)
def test_compile_traces_through_forward_and_backward(name, backend, dynamic):
    graphs = []

    def count(graph, example_inputs):
        graphs.append(graph)
        return aot(graph, example_inputs)

    aot = torch._dynamo.lookup_backend("aot_eager")
    call = CALLS[name](name, backend=backend)
    compiled = torch.compile(lambda a: call(a).sin(), fullgraph=True, dynamic=dynamic, backend=count)
    for rows in (6, 9, 11):
        a = torch.randn(rows, 8, requires_grad=True)
        out, wanted = compiled(a), call(a).sin()
        torch.testing.assert_close(out, wanted)
        grad = torch.randn_like(out)
        torch.testing.assert_close(*(torch.autograd.grad(o, a, grad)[0] for o in (out, wanted)), rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            torch.testing.assert_close(compiled(a), wanted)
    assert f"torch.ops.tilekit.{name}" in graphs[0].code
    if dynamic:
        assert len(graphs) == 2  # with gradients and without, whatever the number of rows


@pytest.mark.parametrize("backend", [None, *BACKENDS])
def test_compiled_attention_is_for_any_number_of_channels(backend):
    """The default scale comes from it, and must not tie what is compiled to one value."""
    graphs = []
    compiled = torch.compile(
        lambda q, k, v: tilekit.flash_attention(q, k, v, backend=backend),
        fullgraph=True,
        backend=lambda graph, _: graphs.append(graph) or graph,
    )
    for channels in (8, 12, 5):
        q, k, v = torch.randn(6, channels), torch.randn(7, channels), torch.randn(7, channels - 1)
        for array in (q, k, v):
            torch._dynamo.mark_dynamic(array, 1)
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        torch.testing.assert_close(compiled(q, k, v), wanted, rtol=1e-4, atol=1e-5)
    assert len(graphs) == 1


@pytest.mark.parametrize("backend", TILE_BACKENDS)
def test_compiled_by_inductor(backend):
    """A block of all five kernels, with torch's own operations in between for the compiler to fuse."""

    def block(x, w):
        y = tilekit.matmul(tilekit.vadd(x, x * 2), w, backend=backend)
        y = tilekit.fused_gelu(y, w[0], w[1, 0], backend=backend) * 3
        y = tilekit.flash_attention(y, y + 1, y, backend=backend)
        return tilekit.softmax(y.relu(), backend=backend)

    x, w = torch.randn(7, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    try:
        out = torch.compile(block, fullgraph=True)(x, w)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        if "compiler" in str(error).lower() and "not found" in str(error).lower():
            pytest.skip("inductor needs a C++ compiler on a CPU, and there is none")
        raise
    torch.testing.assert_close(out, block(x, w), rtol=1e-4, atol=1e-5)
    grad = torch.randn_like(out)
    got, wanted = (torch.autograd.grad(o, (x, w), grad) for o in (out, block(x, w)))
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)


def test_a_compiled_function_asks_for_the_backend_when_it_runs():
    compiled = torch.compile(tilekit.softmax, fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 4, dtype=torch.float64)
    compiled(x)
    with tilekit.use_backend("cutile"), pytest.raises(ValueError, match="backend 'cutile' has no float64 kernels"):
        compiled(x)
    compiled(x)


def test_compiled_calls_are_checked_as_others_are():
    compiled = torch.compile(tilekit.vadd, backend="aot_eager")
    with pytest.raises(ValueError, match="must have one shape"):
        compiled(torch.ones(3), torch.ones(4))


def test_compiled_under_autocast():
    compiled = torch.compile(tilekit.matmul, fullgraph=True, backend="aot_eager")
    a = torch.randn(4, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = compiled(a, a)
    assert out.dtype is torch.bfloat16
    out.sum().backward()
    assert a.grad.dtype is torch.float32


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", kernels.NAMES)
def test_fake_tensors(name, backend):
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    call = CALLS[name](name, backend=backend)
    real = torch.randn(6, 8)
    with FakeTensorMode() as mode:
        out = call(mode.from_tensor(real))
    wanted = call(real)
    assert isinstance(out, FakeTensor)
    assert (out.shape, out.dtype, out.stride()) == (wanted.shape, wanted.dtype, wanted.stride())


@pytest.mark.parametrize("backend", TILE_BACKENDS)
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_records_the_operator(mode, backend):
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda x: tilekit.softmax(x, backend=backend), tracing_mode=mode)(torch.randn(3, 4))
    assert "torch.ops.tilekit.softmax.default" in graph.code
    x = torch.randn(3, 4)
    torch.testing.assert_close(graph(x), torch.softmax(x, -1))


@pytest.mark.parametrize("backend", TILE_BACKENDS)
def test_export(backend):
    class Model(torch.nn.Module):
        def forward(self, x):
            return tilekit.matmul(x, x.mT, backend=backend)

    x = torch.randn(4, 5)
    program = torch.export.export(Model(), (x,))
    assert "tilekit.matmul" in str(program.graph)
    torch.testing.assert_close(program.module()(x), x @ x.mT)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("function", "parameter"), [(lambda x, w: tilekit.fused_gelu(x, w, w), (8,)), (tilekit.matmul, (8, 8, 3))]
)
def test_export_for_any_batch_beside_parameters_of_one_size(function, parameter, strict):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(parameter))

        def forward(self, x):
            return function(x, self.w)

    model, x = Model(), torch.randn(2, 8, 5, 8)
    any_size = ({0: torch.export.Dim("batch"), 2: torch.export.Dim("length")},)
    program = torch.export.export(model, (x,), dynamic_shapes=any_size, strict=strict)
    for batch, length in ((3, 4), (8, 8)):  # 8 is no special number
        x = torch.randn(batch, 8, length, 8)
        torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.parametrize("name", kernels.NAMES)
def test_torch_func_follows_torchs_backend_and_is_refused_elsewhere(name):
    a = torch.randn(2, 6, 8)
    call = CALLS[name](name, backend=None)
    torch.testing.assert_close(torch.func.vmap(call)(a), torch.stack([call(b) for b in a]), rtol=1e-4, atol=1e-5)
    grad = torch.func.grad(lambda b: call(b).sin().sum())(a[0])
    leaf = a[0].clone().requires_grad_()
    torch.testing.assert_close(grad, torch.autograd.grad(call(leaf).sin().sum(), leaf)[0], rtol=1e-4, atol=1e-5)
    for transform in (torch.func.vmap, lambda f: torch.func.grad(lambda b: f(b).sum())):
        with pytest.raises(ValueError, match="takes plain tensors only.*backend='torch'"):
            transform(CALLS[name](name, backend="triton"))(a if transform is torch.func.vmap else a[0])


@pytest.mark.parametrize("name", kernels.NAMES)
def test_compiled_transforms_follow_torchs_backend_and_are_refused_elsewhere(name):
    """An operator has no rules for them: its tangents would be zero."""
    # Views inside a compiled jvp are an internal error of torch 2.13, so the other arrays are given, and attention, which
    # takes blocks of rows, has no jvp.
    others = {
        "vadd": (torch.randn(6, 8),), "fused_gelu": (torch.randn(8), torch.randn(())), "softmax": (),
        "matmul": (torch.randn(8, 5),), "flash_attention": (torch.randn(9, 8), torch.randn(9, 8)),
    }[name]  # fmt: skip
    batch, x, tangent = torch.randn(3, 6, 8), *torch.randn(2, 6, 8)
    ways = (
        (lambda f: torch.func.vmap(f), (batch,)),
        (lambda f: torch.func.grad(lambda y: f(y).sin().sum()), (x,)),
        (lambda f: lambda y, t: torch.func.jvp(f, (y,), (t,))[1], (x, tangent)),
    )
    for transform, given in ways[: 2 if name == "flash_attention" else 3]:
        for backend in ("torch", None, "triton"):
            torch._dynamo.reset()
            call = transform(lambda y, backend=backend: getattr(tilekit, name)(y, *others, backend=backend))
            if backend == "torch":
                wanted = call(*given)
                continue
            compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
            if backend is None:
                torch.testing.assert_close(compiled(*given), wanted, rtol=1e-4, atol=1e-5)
            else:
                with pytest.raises(Exception, match="takes plain tensors only"):
                    compiled(*given)


@pytest.mark.parametrize("name", kernels.NAMES)
def test_an_operator_refuses_tangents(name, seed):
    """Below autograd nobody sees them: the answer would have a tangent of zero."""
    first, *rest = (a.detach() if isinstance(a, torch.Tensor) else a for a in inputs(name, Make(seed, torch.float32)))
    words = f"{name}: torch.ops.tilekit.{name} has no forward-mode derivatives.*backend='torch'"

    def operator(array):
        return getattr(OPERATORS, name)(array, *rest, backend="torch")

    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match=words):
        operator(torch.autograd.forward_ad.make_dual(first, torch.ones_like(first)))
    with pytest.raises(RuntimeError, match=words):
        torch.func.jvp(operator, (first,), (torch.ones_like(first),))


def test_any_module_may_be_imported_first():
    """Registering the operators imports parts of the kernels, which import them."""
    for module in ("operators", "backends", "kernels.flash_attention.layout", "kernels.softmax.gradient"):
        assert run_python(f"import tilekit.{module}; print(tilekit.vadd.__name__)") == "vadd"


def test_the_first_call_of_all_may_be_in_a_transform():
    """Triton's self-test must not see what the caller has switched on, or Triton is given up for the whole process."""
    code = """import torch, tilekit
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    tilekit.vadd(torch.ones(3), torch.ones(3), backend="triton")
print(tilekit.vadd(torch.ones(3), torch.ones(3), backend="triton").tolist())"""
    assert run_python(code) == "[2.0, 2.0, 2.0]"


def run_python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_eager_calls_never_go_through_the_operator(monkeypatch):
    def never(*_):
        raise AssertionError("an operator ran")

    monkeypatch.setattr(operators, "call", never)
    from tilekit import backends

    monkeypatch.setattr(backends, "_run_operator", never)
    a = torch.randn(3, 4, requires_grad=True)
    for backend in ("torch", "cutile"):
        with warnings.catch_warnings(), torch.no_grad():
            tilekit.vadd(a, a, backend=backend)
        tilekit.softmax(a, backend=backend).sum().backward()


def _ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


WRONG = {
    "vadd, shapes": (ValueError, "vadd: a and b must have one shape", lambda op, b: op.vadd(_ones(4000), _ones(1), backend=b)),
    "vadd, dtypes": (ValueError, "one dtype", lambda op, b: op.vadd(_ones(3), _ones(3).half(), backend=b)),
    "vadd, integers": (TypeError, "a has dtype int32", lambda op, b: op.vadd(_ones(3).int(), _ones(3).int(), backend=b)),
    "fused_gelu": (ValueError, "w must have x's shape", lambda op, b: op.fused_gelu(_ones(3, 4), _ones(3), _ones(4), True, backend=b)),
    "softmax": (ValueError, "dim must be in", lambda op, b: op.softmax(_ones(3, 4), 7, backend=b)),
    "matmul": (ValueError, "the last dimension of a", lambda op, b: op.matmul(_ones(3, 400), _ones(2, 3), backend=b)),
    "matmul, batches": (ValueError, "must broadcast", lambda op, b: op.matmul(_ones(2, 3, 4), _ones(3, 4, 3), backend=b)),
    "attention": (
        ValueError, "wanted query", lambda op, b: op.flash_attention(_ones(3, 4), _ones(3, 5), _ones(3, 4), False, None, True, backend=b)
    ),
    "softmax_backward": (
        ValueError, r"grad must have shape \(3, 400\)", lambda op, b: op.softmax_backward(_ones(3, 4), _ones(3, 400), 1, backend=b)
    ),
    "fused_gelu_backward": (
        ValueError, "grad must have", lambda op, b: op.fused_gelu_backward(
            _ones(3, 5), _ones(3, 4), _ones(4), _ones(4), True, [True] * 3, backend=b)
    ),
    **{
        f"flash_attention_backward, {name}": (
            ValueError, f"flash_attention_backward: {name} must have", lambda op, b, at=at, wrong=wrong: op.flash_attention_backward(
                *(wrong if i == at else a for i, a in enumerate(
                    (_ones(3, 2), None, _ones(3, 4), _ones(5, 4), _ones(5, 2), _ones(3, 2), _ones(3)))),
                False, None, [True] * 3, backend=b)
        ) for at, name, wrong in (
            (0, "grad", _ones(3, 4)), (1, "grad_lse", _ones(2)), (5, "out", _ones(3, 2).half()), (6, "lse", _ones(2)))
    },
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("what", WRONG)
def test_an_operator_called_by_itself_checks_its_inputs(what, backend):
    """torch checks their types only; a kernel would read past the end of the shorter array."""
    error, words, call = WRONG[what]
    with pytest.raises(error, match=words):
        call(OPERATORS, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operators_dimension_may_count_from_the_end(backend):
    x = torch.randn(2, 3, requires_grad=True)
    OPERATORS.softmax(x, -1, backend=backend)[:, 0].sum().backward()
    again = x.detach().requires_grad_()
    torch.softmax(again, -1)[:, 0].sum().backward()
    torch.testing.assert_close(x.grad, again.grad)


@pytest.mark.parametrize("backend", [None, *BACKENDS])
@pytest.mark.parametrize("name", kernels.NAMES)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_jit_trace_records_the_call(name, backend):
    options = {"vadd": 2, "fused_gelu": 3, "softmax": 1, "matmul": 2, "flash_attention": 3}
    x = torch.randn(6, 6)

    def function(x):
        return getattr(tilekit, name)(*[x] * options[name], backend=backend)

    traced = torch.jit.trace(function, x)
    torch.testing.assert_close(traced(x + 1), function(x + 1), rtol=1e-5, atol=1e-5)
