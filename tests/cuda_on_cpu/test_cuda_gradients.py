"""The gradients in CUDA C++ over the shared cases, without a GPU: emulated thread by thread."""

from importlib import import_module

import pytest
import torch
from emulation import COMPILER, on_cpu
from gradient_cases import LAYOUTS, cases, check, error_of_gelus_slope, gradients

import tilekit
from tilekit import kernels, tiny_gpt
from tilekit.exercises import Make
from tilekit.exercises.spec import Case
from tilekit.kernels import _cuda
from tilekit.plans import Limits

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulation needs g++")
SM_90 = Limits.of("sm_90")


# In float32 an error has nowhere to hide, so almost all cases are. The tensor cores' code differs in the products of tiles.
IN_FLOAT16 = (
    "causal, several",
    "grouped",
    "narrower",
    "256",
    "far mask",
    "NaN",
    "arange",
    "0-d",
    "last two",
    "L, H, E",
)
IN_BFLOAT16 = ("96", "wider", "exact form", "scale 0")


def all_cases():
    for number, (name, case) in enumerate(cases()):
        for turn, (dtype, words) in enumerate(
            ((torch.float32, [""]), (torch.float16, IN_FLOAT16), (torch.bfloat16, IN_BFLOAT16))
        ):
            if name in ("vadd", "matmul"):  # no kernels but the forward ones, with the strides of autograd's gradients
                words = ("both transposed", "both ways") if turn == 0 else ()
            slow = case.id in ("102400 columns", "128256 columns", "1048577 columns")  # 65537 are as good here
            if dtype in case.dtypes and not slow and any(word in case.id for word in words):
                layout = LAYOUTS[(number + turn) % len(LAYOUTS)]
                label = f"{name}-{case.id}-{str(dtype).removeprefix('torch.')}-{layout}"
                yield pytest.param(name, case, dtype, layout, id=label)


@pytest.mark.parametrize(("name", "case", "dtype", "layout"), list(all_cases()))
def test_case(name, case, dtype, layout, seed):
    with on_cpu(SM_90):
        problem = check(name, case, dtype, "cpu", "cuda", seed, layout)
    assert problem is None, f"{problem} (seed {seed})"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("channels", [(128, 64), (256, 256)])
def test_the_small_tiles_of_attention(channels, dtype, seed):
    """With as little shared memory as a T4 has: at 256 channels in float32 two arrays take one place in turns."""
    e, ev = channels
    keywords = {"is_causal": True}
    case = Case("", lambda m: (m.randn(40, e), m.randn(70, e), m.randn(70, ev), keywords))
    with on_cpu(Limits.of("sm_75")) as launched:
        problem = check("flash_attention", case, dtype, "cpu", "cuda", seed)
    assert problem is None, f"{problem} (seed {seed})"
    one_place = dtype is torch.float32 and e == 256
    assert {p.constants["PLACES"] == 1 for name, p in launched if name == "flash_attention_query"} == {one_place}


@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_gelus_slope_is_exact_and_has_no_bias(approximate):
    with on_cpu(SM_90):
        largest, mean = error_of_gelus_slope(approximate, "cuda")
    assert largest < 2e-6 and mean < 3e-8


def attention(backend, arrays, **keywords):
    """The gradients of a sum that leaves infinite results out."""
    leaves = [a.detach().requires_grad_() for a in arrays]
    out = tilekit.flash_attention(*leaves, **keywords, backend=backend)
    loss = out[0].sum() + out[1][out[1].isfinite()].sum() if keywords.get("return_lse") else out.sum()
    return torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_k2_keys_that_no_row_sees_and_rows_that_see_no_key(dtype, causal, return_lse, seed):
    make = Make(seed, dtype)
    hidden = -float("inf")
    for values in ([hidden] * 40, [hidden] + [1.0, 0.5, hidden] * 13, [0.5] + [hidden] * 39):
        arrays = make.tensor([[1.0], [2.0], [0.5]]), make.tensor(values)[:, None], make.randn(len(values), 3)
        keywords = {"scale": 1.0, "is_causal": causal, "return_lse": return_lse}
        wanted = attention("torch", [a.float() for a in arrays], **keywords)
        with on_cpu(SM_90):
            got = attention("cuda", arrays, **keywords)
        for g, w in zip(got, wanted, strict=True):
            assert g.isfinite().all()
            tolerance = 1e-5 if dtype is torch.float32 else 1e-2
            torch.testing.assert_close(g.float(), w, rtol=tolerance, atol=tolerance)


def test_large_logits_weigh_1_at_most(seed):
    """Where float32 leaves the log-sum-exp few digits, exp(logit - lse) could be anything."""
    arrays = [Make(seed, torch.float32).tensor([[3e18]]) for _ in "qkv"]
    with on_cpu(SM_90):
        _, _, dv = attention("cuda", arrays, scale=1.0)
    assert dv.item() == 1.0


@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_gelus_slope_has_its_limits(approximate):
    inf = float("inf")
    b = torch.tensor([-inf, -1e20, -200.0, -13.24, 11.0, 200.0, 1e20, inf], requires_grad=True)
    with on_cpu(SM_90):
        tilekit.fused_gelu(torch.zeros(8), torch.ones(()), b, approximate=approximate).sum().backward()
    assert b.grad.abs().tolist()[:4] == pytest.approx([0.0] * 4, abs=1e-30)
    assert b.grad.tolist()[4:] == [1.0] * 4


@pytest.mark.parametrize("shape", [(), (8,)])
def test_g1_sums_are_float32(shape):
    """In float16, a running sum of ones stops at 2048."""
    x = torch.full((5000, 8), 200.0, dtype=torch.float16)
    w, b = torch.ones(shape, dtype=torch.float16), torch.zeros(shape, dtype=torch.float16, requires_grad=True)
    with on_cpu(SM_90):
        tilekit.fused_gelu(x, w, b).backward(torch.full_like(x, 0.5))
    assert torch.equal(b.grad, torch.full(shape, 2500.0 if shape else 20_000.0, dtype=torch.float16))


ARRAYS = {
    "fused_gelu": lambda m: (m.randn(6, 10), m.randn(10), m.randn()),
    "softmax": lambda m: (m.randn(6, 10),),
    "flash_attention": lambda m: (m.randn(2, 6, 10), m.randn(2, 9, 10), m.randn(2, 9, 5)),
}


@pytest.mark.parametrize("traced", [False, True], ids=["autograd", "operators"])
@pytest.mark.parametrize("name", ARRAYS)
def test_autograd_and_the_operators_reach_the_kernels(name, traced, seed):
    arrays = ARRAYS[name](Make(seed, torch.float32))

    def function(*inputs):
        return getattr(tilekit, name)(*inputs, backend="cuda")

    torch._dynamo.reset()
    with on_cpu(SM_90) as launched:
        call = torch.compile(function, backend="aot_eager", fullgraph=True) if traced else function
        with torch.no_grad():
            grad = torch.randn_like(function(*arrays))
        launched.clear()
        got = gradients(call, arrays, {}, (grad,))
    wanted = gradients(kernels.spec(name).reference, [a.double() for a in arrays], {}, (grad.double(),))
    parts = ("delta", "key_value", "query") if name == "flash_attention" else ("backward",)
    assert [label for label, _ in launched[1:]] == [f"{name}_{part}" for part in parts]
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g.double(), w, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


def test_nothing_is_computed_that_is_not_asked_for(seed):
    for name, wanted in (("flash_attention", [["query"], ["key_value"], ["key_value"]]), ("fused_gelu", None)):
        arrays = ARRAYS[name](Make(seed, torch.float32))
        for chosen in range(3):
            leaves = [a.clone().requires_grad_(i == chosen) for i, a in enumerate(arrays)]
            with on_cpu(SM_90) as launched:
                getattr(tilekit, name)(*leaves).sum().backward()
            assert [leaf.grad is not None for leaf in leaves] == [i == chosen for i in range(3)]
            if wanted:
                found = [label.removeprefix("flash_attention_") for label, _ in launched[1:]]
                assert found == ["delta", *wanted[chosen]]
            else:
                constants = launched[-1][1].constants
                assert [bool(constants[c]) for c in ("DX", "DW", "DB")] == [i == chosen for i in range(3)]


@pytest.mark.parametrize("name", ARRAYS)
def test_64_bit_offsets(name, seed, monkeypatch):
    modules = [import_module(f"tilekit.kernels.{name}.cuda_{part}") for part in ("kernel", "backward")]
    for module in modules:
        module.plan.cache_clear()
        if hasattr(module, "index_bits"):
            monkeypatch.setattr(module, "index_bits", lambda *_, **__: 64)
    with on_cpu(SM_90) as launched:
        problem = check(name, Case("", ARRAYS[name]), torch.float32, "cpu", "cuda", seed, "transposed")
    for module in modules:
        module.plan.cache_clear()
    assert problem is None and {plan.index_bits for _, plan in launched} == {64}


MISTAKES = {
    "nobody waits for the step": ("flash_attention", "wait_for_copies<0>();\n            __syncthreads();  // this", "__syncthreads();  //"),
    "the next head's tiles come too early": ("flash_attention", "if (STAGES == 2) __syncthreads();", ""),
    "no delta": ("flash_attention", "p * (slope - delta)", "p * slope"),
    "the mask is one key late": ("flash_attention", "CAUSAL && ahead > 0", "CAUSAL && ahead > 1"),
    "the columns of one warp only": ("fused_gelu", "sums[v] += shared[i][column + v];", ";"),
    "half of the slices": ("softmax", "half = SLICES / 2", "half = SLICES / 4"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_emulation_finds_mistakes(mistake, seed, monkeypatch):
    name, right, wrong = MISTAKES[mistake]
    text, source = _cuda.source(f"{name} backward"), _cuda.source
    assert text.count(right) == 1
    monkeypatch.setattr(_cuda, "source", lambda k: text.replace(right, wrong) if k.endswith("backward") else source(k))
    build = {
        "flash_attention": lambda m: (
            *(m.randn(h, n, 32) for h, n in ((4, 60), (2, 90), (2, 90))),
            {"is_causal": "mask" in mistake, "enable_gqa": True},
        ),
        "fused_gelu": lambda m: (m.randn(40, 70), m.randn(70), m.randn(70)),
        "softmax": lambda m: (m.randn(40, 70), {"dim": 0}),
    }[name]
    _cuda.compiled.cache_clear()
    with on_cpu(SM_90):
        problem = check(name, Case("", build), torch.float16, "cpu", "cuda", seed)
    _cuda.compiled.cache_clear()
    assert problem is not None


def test_a_small_gpt_has_torchs_gradients(seed):
    """As lesson 08 compares them; there are kernels of every folder in it, in the strides that a model gives them."""
    torch.manual_seed(seed)
    size = {"width": 32, "heads": 2, "layers": 1, "context": 16}
    ours, torchs = (tiny_gpt.GPT(**size, functions=functions) for functions in (tiny_gpt.TILEKIT, tiny_gpt.TORCH))
    torchs.load_state_dict(ours.state_dict())
    tokens = tiny_gpt.encode(tiny_gpt.text()[:34]).view(2, 17)
    with on_cpu(SM_90), tilekit.use_backend("cuda"):
        losses = [model(tokens[:, :-1], tokens[:, 1:]) for model in (ours, torchs)]
        grads = [torch.autograd.grad(loss, list(m.parameters())) for loss, m in zip(losses, (ours, torchs))]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-5)
