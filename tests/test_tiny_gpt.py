"""The small GPT of the lessons: its text, its kernels, and its gradients on every backend that runs on a CPU."""

import doctest
import math
from types import SimpleNamespace

import pytest
import torch

import tilekit
from tilekit import kernels, tiny_gpt

SIZE = {"width": 32, "heads": 2, "layers": 2, "context": 16}


def pair(seed, device="cpu", **changes):
    """The model on tilekit's kernels and on torch's functions, with the same weights, and two pieces of text."""
    torch.manual_seed(seed)
    ours = tiny_gpt.GPT(**(SIZE | changes)).to(device)
    torchs = tiny_gpt.GPT(**(SIZE | changes), functions=tiny_gpt.TORCH).to(device)
    torchs.load_state_dict(ours.state_dict())
    length = ours.context + 1
    return ours, torchs, tiny_gpt.encode(tiny_gpt.text()[: 2 * length]).view(2, length).to(device)


def gradients(model, tokens):
    model.zero_grad()
    loss = model(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def assert_same_gradients(ours, torchs, tokens):
    loss, got = gradients(ours, tokens)
    wanted_loss, wanted = gradients(torchs, tokens)
    torch.testing.assert_close(loss, wanted_loss, rtol=1e-5, atol=1e-5)
    assert got.keys() == wanted.keys() and len(got) == 5 + 10 * len(ours.blocks)
    for name in wanted:
        assert wanted[name].abs().max() > 0, f"{name} has no gradient to compare"
        torch.testing.assert_close(got[name], wanted[name], rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("backend", ["cutile", "triton", "torch"])
def test_every_gradient_is_torchs(backend, seed):
    ours, torchs, tokens = pair(seed)
    with tilekit.use_backend(backend):
        assert_same_gradients(ours, torchs, tokens)


def test_a_kernel_with_a_wrong_gradient_is_noticed(seed):
    ours, torchs, tokens = pair(seed)
    wrong = SimpleNamespace(**vars(tiny_gpt.TILEKIT))
    # The right result, and 0 as the gradient of b.
    wrong.fused_gelu = lambda x, w, b: tilekit.fused_gelu(x, w, b.detach()) + 0 * b
    for block in ours.blocks:
        block.functions = wrong
    with pytest.raises(AssertionError, match="shift"):
        assert_same_gradients(ours, torchs, tokens)


def test_a_position_does_not_depend_on_later_ones(seed):
    ours, _, tokens = pair(seed)
    tokens = tokens[:, :-1]
    changed = tokens.clone()
    changed[:, 9:] = 0
    got, wanted = ours(changed), ours(tokens)
    torch.testing.assert_close(got[:, :9], wanted[:, :9])
    assert not torch.allclose(got[:, 9:], wanted[:, 9:])


def test_it_learns(seed):
    model, _, tokens = pair(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 < math.log(len(tiny_gpt.characters())) < losses[0] + 1


def test_the_calls_are_those_of_the_model_and_leave_it_as_it_was():
    model, _, tokens = pair(0)
    before = vars(model.functions), model(tokens[:, :-1])
    found = tiny_gpt.calls(model, tokens[:, :-1], tokens[:, 1:])
    names = [name for name, _, _ in found]
    assert set(names) == set(kernels.NAMES)
    assert names.count("matmul") == 4 * 2 + 1 and names.count("vadd") == 2 * 2 + 1 and names.count("softmax") == 1
    assert all(not a.requires_grad for _, arrays, _ in found for a in arrays)
    assert vars(model.functions) == before[0] and all(b.functions is model.functions for b in model.blocks)
    torch.testing.assert_close(model(tokens[:, :-1]), before[1])


def test_the_calls_of_a_model_that_fails_leave_it_as_it_was():
    model = tiny_gpt.GPT(**SIZE)
    with pytest.raises(IndexError):
        tiny_gpt.calls(model, torch.full((1, 4), 10_000), None)
    assert model.functions is tiny_gpt.TILEKIT


def test_the_text():
    text = tiny_gpt.text()
    assert text.isascii() and "#" not in text and "  " not in text and "\t" not in text
    sonnets = text.strip().split("\n\n")
    assert len(sonnets) == 15 and all(len(sonnet.splitlines()) == 14 for sonnet in sonnets)
    assert tiny_gpt.decode(tiny_gpt.encode(text)) == text


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tiny_gpt.encode("50 %"), "the sonnets have no '%'"),
        (lambda: tiny_gpt.GPT(width=30, heads=4), "width 30 and heads 4"),
        (lambda: tiny_gpt.GPT(**SIZE)(torch.zeros(1, 17, dtype=torch.int64)), "at most 16; got 17"),
    ],
)
def test_what_cannot_be_served(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_the_examples_in_the_documentation():
    found = doctest.testmod(tiny_gpt)
    assert found.failed == 0 and found.attempted >= 9
