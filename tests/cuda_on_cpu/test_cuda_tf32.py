"""float32 products in TF32, where torch's setting allows it: CUDA C++ on the tensor cores, emulated."""

import pytest
import torch
from emulation import COMPILER, on_cpu

import tilekit
from tilekit import arguments, kernels
from tilekit.plans import Limits

pytestmark = pytest.mark.skipif(COMPILER is None, reason="a C++ compiler (g++) emulates CUDA C++ on the CPU")
INF = float("inf")


@pytest.fixture(autouse=True)
def tf32_allowed(monkeypatch):
    monkeypatch.setattr(arguments, "tf32_allowed", lambda: True)


def rounded(x):
    """To 10 bits of mantissa; ties away from zero."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32).double()


def used(launched) -> set[int]:
    return {plan.constants["TENSOR_CORES"] for _, plan in launched if "TENSOR_CORES" in plan.constants}


PAIRS = {
    "whole tiles": lambda r: (r(128, 64), r(64, 128)),
    "ragged": lambda r: (r(131, 77), r(77, 85)),
    "transposed": lambda r: (r(77, 131).mT, r(85, 77).mT),
    "transposed, in vectors": lambda r: (r(80, 132).mT, r(88, 80).mT),
    "a batch, odd strides": lambda r: (r(3, 40, 50)[..., ::2], r(25, 70)),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_a_product_is_that_of_the_rounded_factors(pair, architecture, seed):
    torch.manual_seed(seed)
    a, b = PAIRS[pair](torch.randn)
    with on_cpu(Limits.of(architecture)) as launched:
        out = tilekit.matmul(a, b, backend="cuda")
    wanted = rounded(a) @ rounded(b)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-5)
    assert used(launched) == {True}
    assert (out.double() - a.double() @ b.double()).abs().max() > 1e-4, "it has not been rounded"


def test_infinities_and_nan_stay_what_they_are():
    a, b = torch.ones(20, 30), torch.ones(30, 20)
    a[3, 4], a[5, 6], b[7, 8] = INF, float("nan"), -INF
    with on_cpu(Limits.of("sm_90")):
        out = tilekit.matmul(a, b, backend="cuda")
    assert torch.equal(out.nan_to_num(nan=123.0), (a @ b).nan_to_num(nan=123.0))


@pytest.mark.parametrize("channels", [(64, 64), (80, 40), (256, 256)])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("architecture", ["sm_86", "sm_90"])
def test_attention_and_its_gradients(architecture, is_causal, channels, seed):
    torch.manual_seed(seed)
    e, ev = channels
    leaves = [torch.randn(1, h, n, c).requires_grad_() for h, n, c in ((4, 45, e), (2, 70, e), (2, 70, ev))]
    keywords = {"is_causal": is_causal, "enable_gqa": True}
    with on_cpu(Limits.of(architecture)) as launched:
        out = tilekit.flash_attention(*leaves, **keywords, backend="cuda")
        grad = torch.randn_like(out)
        got = torch.autograd.grad(out, leaves, grad)
    wide = [a.detach().double().requires_grad_() for a in leaves]
    wanted = kernels.spec("flash_attention").reference(*wide, **keywords)
    grads = torch.autograd.grad(wanted, wide, grad.double())
    assert used(launched) == {True}
    for one, other in zip((out, *got), (wanted, *grads), strict=True):
        error = (one.double() - other).abs().max() / other.abs().max()
        assert 1e-6 < error < 2e-3


def test_rows_that_see_no_key_and_hidden_keys():
    query, key, value = torch.tensor([[1.0], [2.0]]), torch.tensor([[-INF], [0.5], [-INF]]), torch.randn(3, 3)
    leaves = [a.requires_grad_() for a in (query, key, value)]
    with on_cpu(Limits.of("sm_90")):
        out = tilekit.flash_attention(*leaves, scale=1.0, is_causal=True, backend="cuda")
        grads = torch.autograd.grad(out.sum(), leaves)
    assert torch.equal(out[0], torch.zeros(3)) and all(g.isfinite().all() for g in grads)
    torch.testing.assert_close(out[1], value[1], rtol=1e-3, atol=1e-3)


def test_a_t4_has_no_tf32(seed):
    torch.manual_seed(seed)
    a, b = torch.randn(40, 30), torch.randn(30, 50)
    with on_cpu(Limits.of("sm_75")) as launched:
        out = tilekit.matmul(a, b, backend="cuda")
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)
    assert used(launched) == {False}
