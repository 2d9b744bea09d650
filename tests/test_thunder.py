"""The executor for Lightning Thunder: results and gradients, what is in the trace, what it leaves alone, the import."""

import subprocess
import sys
from importlib import metadata

import pytest
import torch
import torch.nn.functional as F
from checkout import ROOT

import tilekit

if not any(metadata.distributions(name="lightning-thunder")):
    pytest.skip("lightning-thunder is not installed: the extra 'thunder', which CI has", allow_module_level=True)

from tilekit import thunder_executor  # noqa: E402

thunder = thunder_executor.thunder
pytestmark = pytest.mark.filterwarnings("ignore:torch.*autocast.*deprecated:DeprecationWarning")  # Thunder's calls
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


class Block(torch.nn.Module):
    """A block of a transformer: attention, then two linear layers with GELU between them."""

    def __init__(self, width=64, heads=4, is_causal=True):
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.norm_1, self.norm_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        heads = (batch, length, self.heads, width // self.heads)
        q, k, v = (a.view(heads).transpose(1, 2) for a in self.qkv(self.norm_1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


def jit(function):
    return thunder.jit(function, executors=[thunder_executor.executor])


def operators(jitted, traces=thunder.last_traces) -> set[str]:
    """The names of tilekit's operators in what Thunder made of a function."""
    names = {b.sym.name for b in traces(jitted)[-1].bound_symbols}
    return {name for name in names if name.startswith("tilekit_")}


def assert_as_good_as_torch(got, torchs, exact, what):
    """The error is at most twice torch's own, or a few dozen units of rounding, relative to the largest element."""
    assert got.dtype == torchs.dtype and got.shape == torchs.shape, what
    scale = exact.abs().max().item() or 1.0
    error, torch_error = ((a.double() - exact).abs().max().item() for a in (got, torchs))
    # An error in a logit grows with the logit, and gradients start from a result that is rounded already.
    floor = 32 * torch.finfo(torch.float32).eps + 4 * torch.finfo(got.dtype).eps
    assert error <= max(2 * torch_error, floor * scale), (what, error, torch_error)


def check(function, *arrays, expected=None, forward=(), backward=()):
    """`function` jitted equals `expected` (itself by default), forward and backward, with these operators in it."""
    expected = expected or function
    jitted = jit(function)
    results = {}
    grad = None
    for name, f, dtype in (("got", jitted, None), ("torch", expected, None), ("exact", expected, torch.float64)):
        inputs = [a.detach().to(dtype or a.dtype).requires_grad_() for a in arrays]
        out = f(*inputs)
        grad = torch.randn_like(out) if grad is None else grad
        results[name] = [out, *torch.autograd.grad(out, inputs, grad.to(out.dtype))]
    for i, parts in enumerate(zip(*results.values(), strict=True)):
        assert_as_good_as_torch(*(p.detach() for p in parts), "result" if i == 0 else f"gradient {i}")
    assert operators(jitted) == set(forward)
    assert operators(jitted, thunder.last_backward_traces) == set(backward)


@pytest.fixture(autouse=True)
def seeded(seed):
    torch.manual_seed(seed)


# Results, gradients, traces


def assert_block_as_torchs(block, x):
    jitted = jit(block)
    out, expected = jitted(x), block(x)
    grad = torch.randn_like(out)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    for name, got, wanted in zip(
        ["x", *(name for name, _ in block.named_parameters())],
        torch.autograd.grad(out, [x, *jitted.parameters()], grad),
        torch.autograd.grad(expected, [x, *block.parameters()], grad),
        strict=True,
    ):
        scale = wanted.abs().max().item()
        torch.testing.assert_close(
            got, wanted, rtol=0, atol=1e-5 * scale, msg=lambda text, name=name: f"{name}: {text}"
        )
    forward, backward = operators(jitted), operators(jitted, thunder.last_backward_traces)
    assert forward == {"tilekit_flash_attention", "tilekit_gelu"}
    assert backward == {"tilekit_flash_attention_backward", "tilekit_gelu_backward"}


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_block_forward_and_backward(is_causal):
    assert_block_as_torchs(Block(is_causal=is_causal), torch.randn(2, 33, 64, requires_grad=True))


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, True)])
def test_gradients_of_some_inputs_only(wanted):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    arrays = [torch.randn(2, 9, 16).requires_grad_(w) for w in wanted]
    inputs = [a for a in arrays if a.requires_grad]
    got = torch.autograd.grad(jit(attend)(*arrays).square().sum(), inputs)
    for mine, torchs in zip(got, torch.autograd.grad(attend(*arrays).square().sum(), inputs), strict=True):
        torch.testing.assert_close(mine, torchs, rtol=1e-4, atol=1e-5)


def test_one_tensor_as_query_key_and_value():
    check(
        lambda x: F.scaled_dot_product_attention(x, x, x),
        torch.randn(2, 9, 16),
        forward=["tilekit_flash_attention"],
        backward=["tilekit_flash_attention_backward"],
    )


@pytest.mark.parametrize("shape", [(0, 3, 8), (2, 0, 8)])
def test_empty_arrays(shape):
    x = torch.randn(shape, requires_grad=True)
    out = jit(lambda x: F.scaled_dot_product_attention(x, x, x))(x)
    assert out.shape == shape
    assert torch.autograd.grad(out.sum(), x)[0].shape == shape


def test_under_autocast_attention_is_in_the_lower_precision():
    jitted, x = jit(lambda x: F.scaled_dot_product_attention(x, x, x)), torch.randn(2, 9, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = jitted(x)
    assert out.dtype is torch.bfloat16 and operators(jitted) == {"tilekit_flash_attention"}
    low = x.bfloat16()
    torch.testing.assert_close(out, F.scaled_dot_product_attention(low, low, low), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("rows", "keys"), [(33, 33), (5, 40), (40, 7)])
def test_attention(dtype, is_causal, rows, keys):
    q, k, v = (torch.randn(2, 3, n, e).to(dtype) for n, e in ((rows, 16), (keys, 16), (keys, 24)))
    check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=0.3),
        q,
        k,
        v,
        forward=["tilekit_flash_attention"],
        backward=["tilekit_flash_attention_backward"],
    )


@pytest.mark.parametrize("backend", ["triton", "cutile"])
def test_attention_on_a_tile_backend(backend):
    arrays = [torch.randn(2, n, 16) for n in (9, 12, 12)]
    names = {"forward": ["tilekit_flash_attention"], "backward": ["tilekit_flash_attention_backward"]}
    with tilekit.use_backend(backend):
        check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *arrays, **names)


def test_attention_whose_inputs_and_gradient_are_transposed():
    q, k, v = (torch.randn(2, 9, 3, 16) for _ in range(3))

    def attend(q, k, v):
        q, k, v = (a.transpose(1, 2) for a in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    check(attend, q, k, v, forward=["tilekit_flash_attention"], backward=["tilekit_flash_attention_backward"])


def test_without_gradients_there_is_no_log_sum_exp():
    jitted = jit(lambda q: F.scaled_dot_product_attention(q, q, q))
    jitted(torch.randn(2, 8, 16))
    (call,) = [b for b in thunder.last_traces(jitted)[-1].bound_symbols if b.sym.name == "tilekit_flash_attention"]
    assert len(call.flat_outs) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [-1, 1])
def test_softmax(dtype, dim):
    operator = {"forward": ["tilekit_softmax"], "backward": ["tilekit_softmax_backward"]}
    x = torch.randn(4, 7, 30).to(dtype)
    check(lambda x: torch.softmax(x, dim), x, **operator)
    check(lambda x: F.softmax(x, dim, dtype=x.dtype), x, **operator)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(dtype, approximate):
    check(
        lambda x: F.gelu(x, approximate=approximate),
        torch.randn(5, 30).to(dtype),
        forward=["tilekit_gelu"],
        backward=["tilekit_gelu_backward"],
    )


def test_the_backend_is_settled_at_each_call(monkeypatch):
    jitted = jit(lambda x: torch.softmax(x, -1))
    x = torch.randn(3, 8)
    jitted(x)
    asked = []
    monkeypatch.setattr(tilekit.backends, "_launch", lambda kernel, name, *rest: asked.append(name) or x)
    with tilekit.use_backend("triton"):
        jitted(x)
    jitted(x)
    assert asked == ["triton", "auto"]


# What the executor leaves alone


def mask(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(8, 8, dtype=torch.bool).tril())


def broadcast(q, k, v):
    return F.scaled_dot_product_attention(q, k[:, :1], v[:, :1])


@pytest.mark.parametrize(
    ("function", "shape", "dtype"),
    [
        (mask, (2, 3, 8, 16), torch.float32),
        (broadcast, (2, 3, 8, 16), torch.float32),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), (2, 3, 8, 16), torch.float64),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), (1, 1, 4, 257), torch.float32),
    ],
    ids=["mask", "broadcast", "float64", "head dimension"],
)
@pytest.mark.parametrize("gradients", [False, True])
def test_attention_that_tilekit_does_not_serve(function, shape, dtype, gradients):
    q, k, v = (torch.randn(shape, dtype=dtype).requires_grad_(gradients) for _ in range(3))
    jitted = jit(function)
    torch.testing.assert_close(jitted(q, k, v), function(q, k, v))
    assert "tilekit_flash_attention" not in operators(jitted)


def test_a_scale_that_is_not_finite_is_left_to_the_next_executor():
    jitted = jit(lambda q: F.scaled_dot_product_attention(q, q, q, scale=float("inf")))
    jitted(torch.randn(1, 2, 4, 8))  # Thunder's and torch's own results differ here
    assert not operators(jitted)


def test_dropout_is_left_to_the_next_executor():
    q = torch.randn(1, 2, 64, 16)
    jitted = jit(lambda q, p: F.scaled_dot_product_attention(q, q, q, dropout_p=p))
    assert not torch.allclose(jitted(q, 0.5), jitted(q, 0.5)), "dropout has no effect"
    assert "tilekit_flash_attention" not in operators(jitted)
    jitted(q, 0.0)
    assert operators(jitted) == {"tilekit_flash_attention"}


def test_softmax_and_gelu_that_tilekit_does_not_serve():
    x = torch.randn(3, 8)
    for function, argument in (
        (lambda x: torch.softmax(x, -1, dtype=torch.float64), x),
        (lambda x: torch.softmax(x, -1), x.double()),
        (F.gelu, x.double()),
    ):
        jitted = jit(function)
        torch.testing.assert_close(jitted(argument), function(argument))
        assert not operators(jitted)


# tilekit's own functions inside a jitted function


def test_tilekits_functions_are_operators():
    q, k, v = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 9, 16), torch.randn(2, 2, 9, 16)
    both = ["tilekit_flash_attention"], ["tilekit_flash_attention_backward"]
    check(
        lambda q, k, v: tilekit.flash_attention(q, k, v, is_causal=True, enable_gqa=True),
        *(q, k, v),
        expected=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        forward=both[0],
        backward=both[1],
    )
    check(
        tilekit.softmax,
        q,
        expected=lambda x: torch.softmax(x, -1),
        forward=["tilekit_softmax"],
        backward=["tilekit_softmax_backward"],
    )
    check(
        lambda x, w, b: tilekit.fused_gelu(x, w, b, approximate="none"),
        *(q, torch.randn(16), torch.randn(())),
        expected=lambda x, w, b: F.gelu(x * w + b),
        forward=["tilekit_fused_gelu"],
        backward=["tilekit_fused_gelu_backward"],
    )
    check(tilekit.vadd, q, q + 1, expected=torch.add, forward=["tilekit_vadd"])
    products = {"forward": ["tilekit_matmul"], "backward": ["tilekit_matmul"]}
    check(tilekit.matmul, q, torch.randn(1, 16, 5), expected=torch.matmul, **products)
    check(tilekit.matmul, q[0, 0], torch.randn(3, 16, 5), expected=torch.matmul, **products)


AUTOCAST = {
    "flash_attention": lambda x: tilekit.flash_attention(x, x, x, is_causal=True),
    "matmul": lambda x: tilekit.matmul(x, x.mT),
    "softmax": lambda x: tilekit.softmax(x, 1),
    "vadd": lambda x: tilekit.vadd(x, x.float()),
    "fused_gelu": lambda x: tilekit.fused_gelu(x, x.float(), x),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", AUTOCAST)
def test_autocast_is_that_of_tilekit_outside(name, dtype):
    x = torch.randn(2, 9, 16).to(dtype).requires_grad_()
    jitted = jit(AUTOCAST[name])
    found = []
    for function in (jitted, AUTOCAST[name]):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = function(x)
        found.append((out, *torch.autograd.grad(out.float().sin().sum(), x)))
    assert operators(jitted) == {f"tilekit_{name}"}
    for got, wanted in zip(*found, strict=True):
        assert got.dtype is wanted.dtype
        torch.testing.assert_close(got, wanted, rtol=0.05, atol=0.05)


def test_autocast_of_softmax_is_torchs():
    x = torch.randn(3, 8, dtype=torch.bfloat16)
    jitted = jit(lambda x: torch.softmax(x, -1))
    with torch.autocast("cpu", torch.bfloat16):
        assert jitted(x).dtype is torch.softmax(x, -1).dtype
    assert operators(jitted) == {"tilekit_softmax"}


Q, K = torch.randn(2, 9, 16), torch.randn(2, 7, 16)
SYMBOLIC = {
    "sdpa": (lambda q, k: F.scaled_dot_product_attention(q, k, k, scale=0.3), [(Q, K), (Q[:, :4, :12], K[..., :12])], 1),
    "flash_attention": (lambda q, k: tilekit.flash_attention(q, k, k), [(Q, K), (Q[:, :4, :12], K[..., :12])], 1),
    "matmul": (lambda a, b: tilekit.matmul(a, b.mT), [(Q, K), (Q[:, :4, :12], K[..., :12])], 1),
    "sdpa: scale": (lambda q, s: F.scaled_dot_product_attention(q, q, q, scale=s), [(Q, 0.3), (Q, 0.1)], 1),
    "sdpa: dropout": (lambda q, p: F.scaled_dot_product_attention(q, q, q, dropout_p=p), [(Q, 0.0), (K, 0.0)], 1),
    "torch.softmax: dim": (lambda x, d: torch.softmax(x, d), [(Q, 1), (Q, 2)], 1),
    "flash_attention: scale": (lambda q, s: tilekit.flash_attention(q, q, q, scale=s), [(Q, 0.3), (Q, 0.1)], 2),
    "flash_attention: is_causal": (lambda q, c: tilekit.flash_attention(q, q, q, is_causal=c), [(Q, True), (Q, False)], 2),
    "softmax: dim": (lambda x, d: tilekit.softmax(x, d), [(Q, 1), (Q, 2)], 2),
}  # fmt: skip


@pytest.mark.parametrize("name", SYMBOLIC)
@pytest.mark.filterwarnings("ignore:The 'symbolic values' cache option:UserWarning")
def test_a_trace_for_several_calls_serves_each(name):
    """Under cache="symbolic values" shapes are no numbers, and what is a number is not baked in unless it is checked."""
    function, calls, traces = SYMBOLIC[name]
    jitted = thunder.jit(function, executors=[thunder_executor.executor], cache="symbolic values")
    for arguments in calls:
        found = []
        for f in (jitted, function):
            given = [a.clone().requires_grad_() if isinstance(a, torch.Tensor) else a for a in arguments]
            out = f(*given)
            leaves = [a for a in given if isinstance(a, torch.Tensor)]
            found.append((out, *torch.autograd.grad(out.sin().sum(), leaves)))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert thunder.cache_misses(jitted) == traces
    if name in ("sdpa", "flash_attention"):
        assert "tilekit_flash_attention" in operators(jitted)
    if name in (
        "sdpa: scale",
        "sdpa: dropout",
        "torch.softmax: dim",
    ):  # left to the next executor; softmax inside is not
        assert operators(jitted) <= {"tilekit_softmax"}


def test_the_log_sum_exp_has_gradients_too():
    def through_both(q, k, attention):
        out, lse = attention(q, k, k)
        return out.sum(-1) + lse.square()

    def plainly(q, k, v):
        logits = q @ k.mT * q.shape[-1] ** -0.5
        return torch.softmax(logits, -1) @ v, torch.logsumexp(logits, -1)

    check(
        lambda q, k: through_both(q, k, lambda *a: tilekit.flash_attention(*a, return_lse=True)),
        *(torch.randn(2, 9, 16), torch.randn(2, 7, 16)),
        expected=lambda q, k: through_both(q, k, plainly),
        forward=["tilekit_flash_attention"],
        backward=["tilekit_flash_attention_backward"],
    )


@pytest.mark.parametrize(
    ("function", "shapes", "words"),
    [
        (tilekit.flash_attention, [(2, 3, 8, 16), (2, 2, 8, 16), (2, 2, 8, 16)], "flash_attention: got query"),
        (tilekit.matmul, [(3, 4), (5, 6)], "matmul: got a"),
        (tilekit.vadd, [(3,), (4,)], "vadd: "),
    ],
)
def test_wrong_shapes_are_named(function, shapes, words):
    with pytest.raises(ValueError, match=words):
        jit(function)(*map(torch.randn, shapes))


# The import


def run(code):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ABSENT = "absent = [n for n in ('align_as', 'align_to', 'has_names', 'refine_names', 'rename') if not hasattr(torch.Tensor, n)]"


def test_torch_is_lent_what_it_lacks_and_keeps_none_of_it():
    code = f"""import torch
{ABSENT}
from tilekit import thunder_executor
assert list(thunder_executor.lent) == absent, (thunder_executor.lent, absent)
assert not any(hasattr(torch.Tensor, name) for name in absent)
print(thunder_executor.thunder.jit(lambda x: x + 1)(torch.zeros(1)).item())"""
    assert run(code) == "1.0"


def test_where_torch_lacks_nothing_nothing_is_lent():
    code = f"""import torch
{ABSENT}
def method(name):
    def own(self): return 1
    own.__name__ = name
    return own
own = {{name: method(name) for name in absent}}
for name in absent: setattr(torch.Tensor, name, own[name])
from tilekit import thunder_executor
assert all(torch.Tensor.__dict__[name] is own[name] for name in absent)
print(thunder_executor.lent)"""
    assert run(code) == "()"


def test_after_an_import_of_thunder_that_failed_the_way_out_is_named():
    code = """import sys, torch
sys.modules["networkx"] = None
try:
    import thunder
except (ImportError, AttributeError) as error:
    pass
del sys.modules["networkx"]
try:
    from tilekit import thunder_executor
except ImportError as error:
    print(error)"""
    assert "restart Python, and import tilekit.thunder_executor before thunder" in run(code)


def test_a_later_thunder_is_left_to_itself(monkeypatch):
    monkeypatch.delitem(sys.modules, "thunder")
    monkeypatch.setattr(thunder_executor.metadata, "version", lambda name: "0.2.7")
    assert thunder_executor._missing_methods() == ()
    monkeypatch.setattr(thunder_executor.metadata, "version", lambda name: "0.2.6.dev20260101")
    missing = tuple(n for n in thunder_executor._NAMED_TENSOR_METHODS if not hasattr(torch.Tensor, n))
    assert thunder_executor._missing_methods() == missing


def test_a_lent_method_only_raises():
    with pytest.raises(NotImplementedError, match="has no Tensor.rename"):
        thunder_executor._absent("rename")(torch.ones(1), None)


def test_without_thunder_the_error_says_how_to_get_it():
    code = """from importlib import metadata
version = metadata.version
def without(name):
    if name == "lightning-thunder": raise metadata.PackageNotFoundError(name)
    return version(name)
metadata.version = without
try:
    from tilekit import thunder_executor
except ImportError as error:
    print(error)"""
    assert 'pip install "lightning-thunder==' in run(code)


def test_the_example_in_the_documentation():
    import doctest

    assert doctest.testmod(thunder_executor).failed == 0
    assert doctest.testmod(thunder_executor).attempted >= 5
