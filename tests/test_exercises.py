"""The checker: right is right, and each way of being wrong is told apart."""

import sys

import pytest
import torch

import tilekit
from tilekit import kernels
from tilekit.exercises.checker import difference


def flat_indexing(a, b):
    """The classic mistake: walks memory in order and forgets the strides."""
    n = a.numel()
    flat = torch.as_strided(a, (n,), (1,)) if a.untyped_storage().size() >= n * a.itemsize else a.flatten()
    return (flat + b.flatten()).view(a.shape)


@pytest.mark.parametrize("name", kernels.NAMES)
def test_the_public_function_passes_its_own_check(name):
    verdict = tilekit.check(getattr(tilekit, name), name)
    assert verdict, repr(verdict)
    assert verdict.passed >= 5 and "passed all" in repr(verdict)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda a, b: a - b, "elements are wrong; the worst is"),
        (flat_indexing, "transposed.*stride"),
        (lambda a, b: (a + b)[:1], "returned shape"),
        (lambda a, b: (a + b).half(), "returned dtype torch.float16; wanted torch.float32"),
        (lambda a, b: a.add_(b), "wrote to its input number 0"),
        (lambda a, b: None, "returned"),
        (lambda a, b: 1 / 0, "raised ZeroDivisionError"),
        (lambda a, b: sys.exit(0), "raised SystemExit"),
        (lambda a, b: torch.empty_like(a, device="meta"), "returned a tensor on meta|raised"),
        (lambda a: a, "raised TypeError"),
        (lambda a, b: (a + b, a), "returned 2 results; wanted 1"),
    ],
)
def test_wrong_functions_are_told_what_is_wrong(function, words):
    verdict = tilekit.check(function, "vadd")
    assert not verdict
    import re

    assert re.search(words, repr(verdict), re.DOTALL), repr(verdict)
    assert f"seed={verdict.seed}" in repr(verdict)


def test_the_same_seed_gives_the_same_verdict():
    def wrong(a, b):
        return a + b * 1.001

    first = tilekit.check(wrong, "vadd")
    assert repr(tilekit.check(wrong, "vadd", seed=first.seed)) == repr(first)


def test_unknown_kernel_and_no_function():
    with pytest.raises(ValueError, match="unknown kernel 'sofmax'; wanted one of 'vadd'"):
        tilekit.check(torch.add, "sofmax")
    with pytest.raises(TypeError, match="must be callable; got int"):
        tilekit.check(3, "vadd")


def test_difference_is_strict_about_nan_and_infinity():
    inf, nan = float("inf"), float("nan")
    wanted = torch.tensor([1.0, inf, nan], dtype=torch.float64)
    assert difference(torch.tensor([1.0, inf, nan]), wanted, 1e-6, torch.float32) is None
    for bad in ([1.0, -inf, nan], [1.0, inf, 0.0], [nan, inf, nan], [1.1, inf, nan], [1.0, 1e30, nan]):
        assert difference(torch.tensor(bad), wanted, 1e-6, torch.float32) is not None
    # 1e30 is infinity in float16, so both spellings of "too large" are right there.
    big = torch.tensor([1e30], dtype=torch.float64)
    assert difference(torch.tensor([inf], dtype=torch.float16), big, 1e-6, torch.float16) is None
