"""The executor for Lightning Thunder on a GPU: results, gradients, the operators in the trace, beside Thunder's own."""

import pytest
import torch
import torch.nn.functional as F
from test_thunder import DTYPES, Block, assert_as_good_as_torch, assert_block_as_torchs, check, jit, operators, thunder

DEVICE = "cuda"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("rows", "keys", "channels"), [(500, 777, 64), (1000, 1000, 128), (33, 40, 80)])
def test_attention(dtype, is_causal, rows, keys, channels):
    q, k, v = (torch.randn(2, 4, n, channels, device=DEVICE).to(dtype) for n in (rows, keys, keys))
    check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal),
        *(q, k, v),
        forward=["tilekit_flash_attention"],
        backward=["tilekit_flash_attention_backward"],
    )


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_block_forward_and_backward(is_causal):
    x = torch.randn(2, 300, 256, device=DEVICE, requires_grad=True)
    assert_block_as_torchs(Block(256, 4, is_causal).to(DEVICE), x)


def test_the_executors_agree():
    q, k, v = (torch.randn(2, 4, 200, 64, device=DEVICE, dtype=torch.float16) for _ in range(3))

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    ours = jit(attend)
    theirs = thunder.jit(attend, executors=["sdpa"])(q, k, v)
    assert_as_good_as_torch(ours(q, k, v), theirs, attend(q.double(), k.double(), v.double()), "result")
    assert operators(ours) == {"tilekit_flash_attention"}
