"""The checker: right is right, and each way of being wrong is told apart."""

import math
import re
import subprocess
import sys

import pytest
import torch

import tilekit
from tilekit import cutile_interpreter, kernels
from tilekit.exercises.checker import difference

cutile_interpreter.install_standin()
import cuda.tile as ct  # noqa: E402  where the package is missing, it is there from now on


def flat_indexing(a, b):
    """The classic mistake: walks memory in order and forgets the strides."""
    n = a.numel()
    flat = torch.as_strided(a, (n,), (1,)) if a.untyped_storage().size() >= n * a.itemsize else a.flatten()
    return (flat + b.flatten()).view(a.shape)


class Mute(Exception):
    """Has no words, and breaks when asked for some."""

    __str__ = None


def _raise(error):
    raise error


def _in_double(a, b):
    a.data = a.data.double()
    return (a + b).float()


def _without_infinities(a, b):
    result = a + b
    if not result.isfinite().all():
        a.nan_to_num_()
    return result


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
        (_without_infinities, r"infinities and NaN.*wrote to its input number 0"),
        (lambda a, b: None, r"returned None; wanted a tensor \(does it end with a return\?\)"),
        (lambda a, b: (), "returned 0 results; wanted 1"),
        (lambda a, b: torch.nested.nested_tensor([a.view(-1)]), "returned a nested tensor; wanted a dense one"),
        (lambda a, b: (a + b).to_sparse(), "returned a tensor of layout torch.sparse_coo; wanted a dense one"),
        (_in_double, "wrote to its input number 0"),
        (lambda a, b: _raise(Mute()), r"raised Mute\n"),
        (lambda a, b: 1 / 0, "raised ZeroDivisionError"),
        (lambda a, b: sys.exit(0), "raised SystemExit"),
        (lambda a, b: torch.empty_like(a, device="meta"), "returned a tensor on meta; wanted cpu"),
        (lambda a: a, "raised TypeError"),
        (lambda a, b: (a + b, a), "returned 2 results; wanted 1"),
        (lambda a, b: [a + b], "returned list; wanted a tensor"),
        (lambda a, b: (a + b,), "returned tuple; wanted a tensor"),
    ],
)
def test_wrong_functions_are_told_what_is_wrong(function, words):
    verdict = tilekit.check(function, "vadd")
    assert not verdict
    assert re.search(words, repr(verdict), re.DOTALL), repr(verdict)
    assert f"seed={verdict.seed}" in repr(verdict)


def test_a_list_of_two_results_is_no_tuple():
    def attention(*args, **keywords):
        result = tilekit.flash_attention(*args, **keywords)
        return list(result) if isinstance(result, tuple) else result

    assert "returned list; wanted a tuple" in repr(tilekit.check(attention, "flash_attention"))


def _attention(change):
    """torch's backend, with `change` made to its log-sum-exp."""

    def attention(*args, **keywords):
        result = tilekit.flash_attention(*args, backend="torch", **keywords)
        return (result[0], change(result[1], args[0].dtype)) if isinstance(result, tuple) else result

    return attention


@pytest.mark.parametrize(
    ("change", "dtype", "words"),
    [
        (lambda lse, _: lse / math.log(2), torch.float32, r"result 1, lse: \d+ of 300 elements are wrong"),
        (lambda lse, dtype: lse.to(dtype), torch.float16, "result 1, lse: returned dtype torch.float16; wanted torch.float32"),
        (lambda lse, _: lse[..., :1], torch.float32, "result 1, lse: returned shape"),
    ],
)  # fmt: skip
def test_of_several_results_the_wrong_one_is_named(change, dtype, words):
    verdict = tilekit.check(_attention(change), "flash_attention", dtype=dtype)
    assert not verdict and re.search(words, repr(verdict)), repr(verdict)
    assert verdict.hint.startswith("lse is")


def _online_softmax(x, dim=-1, start=float("-inf"), tile=64, rescale=True):
    rows = x.movedim(dim, -1) if x.dim() else x.view(1)
    largest, total = torch.full_like(rows[..., :1], start), torch.zeros_like(rows[..., :1])
    for part in rows.split(tile, -1) if rows.shape[-1] else ():
        new = torch.maximum(largest, part.amax(-1, keepdim=True))
        safe = new.masked_fill(new == float("-inf"), 0.0)
        total = total * (torch.exp(largest - safe) if rescale else 1) + torch.exp(part - safe).sum(-1, keepdim=True)
        largest = new
    result = torch.exp(rows - largest) / total
    return result.movedim(-1, dim) if x.dim() else result.view(())


def test_a_right_online_softmax_passes():
    verdict = tilekit.check(_online_softmax, "softmax")
    assert verdict, repr(verdict)


@pytest.mark.parametrize(
    ("function", "kernel", "case", "hint"),
    [
        (lambda x, dim=-1: x.exp() / x.exp().sum(dim, keepdim=True), "softmax", "large values", "subtract the row's maximum"),
        (lambda x, dim=-1: _online_softmax(x, dim, start=-1e30), "softmax", "all far below zero", "start the maximum at -inf"),
        (lambda x, dim=-1: _online_softmax(x, dim, tile=2048, rescale=False), "softmax", "long first dimension", "rescale the sum"),
    ],
)  # fmt: skip
def test_hints_are_about_the_usual_mistake(function, kernel, case, hint):
    verdict = tilekit.check(function, kernel)
    assert verdict.failed_case == case and hint in verdict.hint, repr(verdict)


@pytest.mark.parametrize("kernel", kernels.NAMES)
def test_every_hint_is_of_use(kernel):
    """A word that no case has, or that another one always comes before, would be a hint that nobody sees."""
    spec = kernels.spec(kernel)
    first = {next((word for word in spec.hints if word in case.id), None) for case in spec.cases}
    assert set(spec.hints) <= first | set(spec.results)


@pytest.mark.parametrize("lost", ["is_causal", "scale", "return_lse"])
def test_attention_of_grouped_heads_that_loses_an_option(lost):
    """As where a function repeats the heads and calls itself."""

    def attention(query, key, value, **keywords):
        if keywords.get("enable_gqa"):
            keywords.pop(lost, None)
        return tilekit.flash_attention(query, key, value, **keywords)

    assert tilekit.check(attention, "flash_attention").failed_case == "grouped heads with every option"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_torchs_attention_may_return_nothing_for_no_elements(dtype, monkeypatch):
    """As torch 2.11 does on a GPU for 16 bits."""
    fused = torch.nn.functional.scaled_dot_product_attention

    def attention(query, key, value, **keywords):
        empty = 0 in (*query.shape[:-1], value.shape[-1])
        return None if empty else fused(query, key, value, **keywords)

    def right(*args, **keywords):
        return tilekit.flash_attention(*args, **keywords, backend="torch")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    assert tilekit.check(right, "flash_attention", dtype=dtype, device="cpu")


def test_beside_a_cuda_tile_that_does_not_import():
    """What needs none is checked all the same, and its backend says what is wrong."""
    code = (
        "import sys; sys.modules['cuda.tile._cext'] = None; sys.modules['tilekit.cutile_interpreter.api'] = None\n"
        "import tilekit, torch\n"
        "assert tilekit.check(torch.add, 'vadd', device='cpu') and not tilekit.check(torch.sub, 'vadd', device='cpu')\n"
        "tilekit.vadd(torch.ones(3), torch.ones(3), backend='cutile')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("tilekit.backends.BackendUnavailable: vadd: backend 'cutile' cannot run on cpu"), done.stderr


def test_the_same_seed_gives_the_same_verdict():
    def wrong(a, b):
        return a + b * 1.001

    first = tilekit.check(wrong, "vadd")
    assert repr(tilekit.check(wrong, "vadd", seed=first.seed)) == repr(first)


def test_under_a_default_device():
    """As where a notebook begins with torch.set_default_device("cuda")."""
    with torch.device("meta"):
        assert tilekit.check(lambda a, b: a + b, "vadd", device="cpu")


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


# A learner's kernels in cuTile, which check() interprets on CPU tensors ----------------------------------------------


@ct.kernel
def add(a, b, out, TILE: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(out, i, ct.load(a, i, TILE) + ct.load(b, i, TILE))


@ct.kernel
def add_and_touch_the_neighbour(a, b, out, TILE: ct.Constant[int]):
    i = ct.bid(0)
    tile = ct.load(a, i, TILE) + ct.load(b, i, TILE)
    ct.store(out, i, tile)
    ct.store(out, 0, ct.load(a, 0, TILE) + ct.load(b, 0, TILE))


@ct.kernel
def softmax_without_padding(x, out, TILE: ct.Constant[int]):
    row = ct.load(x, (ct.bid(0), 0), (1, TILE))
    p = ct.exp(row - ct.max(row, 1, keepdims=True))
    ct.store(out, (ct.bid(0), 0), p / ct.sum(p, 1, keepdims=True))


def in_cutile(kernel, blocks=lambda n: -(-n // 64)):
    def function(a, b):
        flat_a, flat_b = a.reshape(-1).contiguous(), b.reshape(-1).contiguous()
        out = torch.empty_like(flat_a)
        ct.launch(None, (blocks(out.numel()),), kernel, (flat_a, flat_b, out, 64))
        return out.view(a.shape)

    return function


def test_a_cutile_kernel_is_interpreted_and_right():
    launched = ct.launch
    verdict = tilekit.check(in_cutile(add), "vadd", device="cpu")
    assert verdict and not verdict.findings, repr(verdict)
    assert ct.launch is launched, "afterwards ct.launch is what it was"


def test_right_numbers_by_luck_are_a_failure_and_the_line_is_named():
    function = in_cutile(add_and_touch_the_neighbour)
    verdict = tilekit.check(function, "vadd", device="cpu")
    said = repr(verdict)
    assert not verdict and verdict.findings[0].kind.value == "writes", said
    assert "that was luck" in said and "Two blocks write the same element" in said
    assert "ct.store(out, 0," in said and "Make the place depend on ct.bid" in said
    assert not verdict.hint, "the finding has its own advice; the case's hint is about numbers"
    assert tilekit.check(function, "vadd", device="cpu", sanitize=False), "the numbers alone do not show it"


def test_wrong_numbers_come_with_the_reason():
    def softmax(x, dim=-1):
        x = x.movedim(dim, -1) if x.dim() else x.view(1)
        rows = x.reshape(-1, x.shape[-1]).contiguous() if x.numel() else x.new_empty(0, 1)
        out = torch.empty_like(rows)
        width = 1 << (rows.shape[1] - 1).bit_length()
        ct.launch(None, (len(rows),), softmax_without_padding, (rows, out, width))
        return out.view(x.shape).movedim(-1, dim) if x.dim() else out.view(x.shape)

    verdict = tilekit.check(softmax, "softmax", device="cpu")
    assert not verdict and "padding" in {f.kind.value for f in verdict.findings}
    assert "padding_mode=" in repr(verdict)


def test_what_the_front_end_refuses_is_part_of_the_verdict():
    @ct.kernel
    def narrow(a, b, out, TILE: ct.Constant[int]):
        ct.store(out, ct.bid(0), (ct.load(a, ct.bid(0), TILE) + ct.load(b, ct.bid(0), TILE)).astype(ct.float64))

    verdict = tilekit.check(in_cutile(narrow), "vadd", device="cpu")
    assert re.search(r"raised \w+: .*float64", repr(verdict), re.DOTALL), repr(verdict)


def test_many_findings_are_cut_short():
    blocks = in_cutile(add, lambda n: -(-n // 64) + 5)

    def five_times(a, b):
        return [blocks(a, b) for _ in range(5)][0]

    verdict = tilekit.check(five_times, "vadd", device="cpu")
    assert len(verdict.findings) > 3 and f"and {len(verdict.findings) - 3} more" in repr(verdict)
    assert repr(verdict).count("lies wholly outside") == 3


@pytest.mark.parametrize("raises", ["OSError('libfoo.so')", "SystemExit(3)"])
def test_beside_a_cuda_tile_that_raises_anything(raises):
    code = f"""
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "cuda.tile":
            raise {raises}
sys.meta_path.insert(0, Finder())
import tilekit, torch
assert tilekit.check(torch.add, "vadd", device="cpu")
try:
    tilekit.vadd(torch.ones(3), torch.ones(3), backend="cutile")
except tilekit.BackendUnavailable as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"cuda-tile does not import ({raises.split('(')[0]}" in done.stdout, done.stderr
