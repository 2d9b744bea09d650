"""The gradients of every kernel on every backend, over the shared cases, and what was reported of other kernels."""

from importlib import import_module

import pytest
import torch
from gradient_cases import LAYOUTS, cases, check, error_of_gelus_slope, gradients
from test_kernels import BACKENDS

import tilekit
from tilekit import kernels, triton_mode
from tilekit.exercises import Make
from tilekit.exercises.spec import Case
from tilekit.kernels.flash_attention import cutile_backward, triton_backward
from tilekit.plans import CannotServe, Limits, contiguous_strides

INF = float("inf")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
TILE_BACKENDS = BACKENDS[1:]


def all_cases():
    for number, (name, case) in enumerate(cases()):
        # float32, in which an error has nowhere to hide, and one of the 16-bit types in turn.
        for turn, dtype in enumerate((torch.float32, DTYPES[number % 2])):
            if dtype in case.dtypes:
                layout = LAYOUTS[(number + turn) % len(LAYOUTS)]
                label = f"{name}-{case.id}-{str(dtype).removeprefix('torch.')}-{layout}"
                yield pytest.param(name, case, dtype, layout, id=label)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "case", "dtype", "layout"), list(all_cases()))
def test_case(name, case, dtype, layout, backend, seed):
    problem = check(name, case, dtype, "cpu", backend, seed, layout)
    assert problem is None, f"{problem} (seed {seed})"


ARRAYS = {
    "vadd": lambda m: (m.randn(6, 10), m.randn(6, 10)),
    "fused_gelu": lambda m: (m.randn(6, 10), m.randn(10), m.randn()),
    "softmax": lambda m: (m.randn(6, 10),),
    "matmul": lambda m: (m.randn(2, 6, 10), m.randn(10, 7)),
    "flash_attention": lambda m: (m.randn(2, 6, 10), m.randn(2, 9, 10), m.randn(2, 9, 5)),
}


def call(name, backend, **keywords):
    return lambda *arrays, **more: getattr(tilekit, name)(*arrays, **keywords, **more, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", kernels.NAMES)
def test_s3_a_gradients_strides_change_nothing(name, layout, backend, seed):
    problem = check(name, Case("any", ARRAYS[name]), torch.float32, "cpu", backend, seed, layout)
    assert problem is None, problem


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", kernels.NAMES)
def test_a_gradient_that_is_negated_lazily(name, backend, seed):
    """The imaginary part of a conjugate has other numbers than its memory."""
    leaves = [a.requires_grad_() for a in ARRAYS[name](Make(seed, torch.float32))]
    out = call(name, backend)(*leaves)
    grad = torch.randn_like(out)
    lazily = torch.complex(grad, grad).conj().imag
    assert lazily.is_neg()
    got, wanted = (torch.autograd.grad(out, leaves, g, retain_graph=True) for g in (lazily, -grad))
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", kernels.NAMES)
def test_a_batch_of_gradients_is_right_or_refused(name, backend, seed):
    leaves = [a.requires_grad_() for a in ARRAYS[name](Make(seed, torch.float32))]
    out = call(name, backend)(*leaves)
    batch = torch.randn(3, *out.shape)

    def gradient(grad, **keywords):
        return torch.autograd.grad(out, leaves, grad, retain_graph=True, **keywords)

    if backend != "torch" and name != "vadd":  # whose gradient is the result's own
        with pytest.raises(RuntimeError, match=f"{name}: backend '{backend}' takes no batch of gradients.*'torch'"):
            gradient(batch, is_grads_batched=True)
        return
    wanted = [torch.stack(parts) for parts in zip(*(gradient(grad) for grad in batch), strict=True)]
    torch.testing.assert_close(list(gradient(batch, is_grads_batched=True)), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(6, 8), (1, 2, 6, 8)])
def test_gradients_of_gradients_of_attention(shape, causal, seed):
    """At equal channels torch takes a fused kernel, which has none."""
    arrays = tuple(Make(seed, torch.float64).randn(*shape).requires_grad_() for _ in "qkv")
    assert torch.autograd.gradgradcheck(call("flash_attention", "torch", is_causal=causal), arrays)
    x = arrays[0]
    assert torch.autograd.gradgradcheck(lambda x: call("flash_attention", "torch", is_causal=causal)(x, x, x), (x,))


@pytest.mark.parametrize("name", [name for name in kernels.NAMES if name != "vadd"])
def test_compiled_autograd_calls_the_operators(name, seed):
    from torch._dynamo import compiled_autograd

    leaves = [a.requires_grad_() for a in ARRAYS[name](Make(seed, torch.float32))]
    wanted = torch.autograd.grad(call(name, "triton")(*leaves).sin().sum(), leaves)
    graphs = []
    torch._dynamo.reset()
    compiler = torch.compile(backend=lambda graph, inputs: graphs.append(graph.code) or graph)
    with compiled_autograd._enable(compiler):
        call(name, "triton")(*leaves).sin().sum().backward()
    torch._dynamo.reset()
    torch.testing.assert_close([a.grad for a in leaves], list(wanted))
    assert f"torch.ops.tilekit.{name}" in "".join(graphs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", kernels.NAMES)
def test_only_what_requires_a_gradient_gets_one(name, backend, seed):
    arrays = ARRAYS[name](Make(seed, torch.float32))
    out = call(name, backend)(*arrays)
    grad = torch.randn_like(out)
    wanted = gradients(call(name, backend), arrays, {}, (grad,))
    for chosen in range(len(arrays)):
        leaves = [a.detach().requires_grad_(i == chosen) for i, a in enumerate(arrays)]
        call(name, backend)(*leaves).backward(grad)
        for i, leaf in enumerate(leaves):
            assert (leaf.grad is not None) == (i == chosen)
        torch.testing.assert_close(leaves[chosen].grad, wanted[chosen], rtol=1e-6, atol=1e-6)
        assert leaves[chosen].grad.shape == arrays[chosen].shape


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", kernels.NAMES)
def test_the_same_each_time(name, backend, seed):
    arrays = ARRAYS[name](Make(seed, torch.float16))
    grad = torch.randn_like(call(name, backend)(*arrays))
    first, second = (gradients(call(name, backend), arrays, {}, (grad,)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shapes", [((4, 8), (8,), (8,)), ((4, 8), (), (8,)), ((4, 8), (8,), ()), ((3, 1), (1,), ())])
@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_g1_gradients_of_the_parameters_own_shape(shapes, approximate, backend, seed):
    case = Case("any", lambda m: (*(m.randn(*shape) for shape in shapes), {"approximate": approximate}))
    problem = check("fused_gelu", case, torch.float32, "cpu", backend, seed)
    assert problem is None, problem


@pytest.mark.parametrize("backend", TILE_BACKENDS)
@pytest.mark.parametrize("shape", [(), (8,)])
def test_g1_sums_are_float32(shape, backend):
    """In float16, a running sum of ones stops at 2048."""
    x = torch.full((5000, 8), 200.0, dtype=torch.float16)
    w = torch.ones(shape, dtype=torch.float16)
    b = torch.zeros(shape, dtype=torch.float16, requires_grad=True)
    tilekit.fused_gelu(x, w, b, backend=backend).backward(torch.full_like(x, 0.5))
    assert torch.equal(b.grad, torch.full(shape, 2500.0 if shape else 20_000.0, dtype=torch.float16))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_gelus_slope_is_exact_and_has_no_bias(approximate, backend):
    largest, mean = error_of_gelus_slope(approximate, backend)
    assert largest < 2e-6 and mean < 3e-8


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_gelus_slope_has_its_limits(approximate, backend):
    b = torch.tensor([-INF, -1e20, -200.0, -13.24, 11.0, 200.0, 1e20, INF], requires_grad=True)
    out = tilekit.fused_gelu(torch.zeros(8), torch.ones(()), b, approximate=approximate, backend=backend)
    out.sum().backward()
    assert b.grad.abs().tolist()[:4] == pytest.approx([0.0] * 4, abs=1e-30)
    assert b.grad.tolist()[4:] == [1.0] * 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_k5_causal_and_not_match_torch_and_differ(backend, seed):
    arrays = [a[0] for a in zip(*[Make(seed, torch.float32).randn(3, 2, 128, 64)], strict=True)]
    grad = torch.randn(2, 128, 64)
    found = {}
    for causal in (False, True):
        found[causal] = gradients(call("flash_attention", backend, is_causal=causal), arrays, {}, (grad,))
        sdpa = torch.nn.functional.scaled_dot_product_attention
        wanted = gradients(sdpa, [a.double() for a in arrays], {"is_causal": causal}, (grad.double(),))
        for got, want in zip(found[causal], wanted, strict=True):
            # A gradient may be zero because its terms cancel: rounding is relative to them, as large as the others here.
            torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=5e-6 * want.abs().max().item())
    assert not any(torch.allclose(a, b, atol=1e-2) for a, b in zip(*found.values(), strict=True))


@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_k2_rows_that_see_no_key(backend, causal, return_lse, seed):
    """No key at all, all keys hidden by -inf, or one: their weights are zero, and no gradient is NaN."""
    make = Make(seed, torch.float32)
    query = make.tensor([[1.0], [2.0], [0.5]])
    for values in ([], [-INF] * 40, [-INF, 1.0, 0.5], [0.5, -INF]):
        key, value = make.tensor(values).reshape(-1, 1), make.randn(len(values), 3)
        leaves = [a.requires_grad_() for a in (query.clone(), key, value)]
        out = tilekit.flash_attention(*leaves, scale=1.0, is_causal=causal, return_lse=return_lse, backend=backend)
        # A log-sum-exp of -inf has no gradient to hand on, and only finite ones are asked for.
        loss = out[0].sum() + out[1][out[1].isfinite()].sum() if return_lse else out.sum()
        found = torch.autograd.grad(loss, leaves)
        assert all(g.isfinite().all() for g in found), (values, found)
        if set(values) <= {-INF}:
            assert all((g == 0).all() for g in found)
        # As with the hidden keys left out, where no mask makes their place matter.
        seen = [i for i, v in enumerate(values) if v > -INF]
        if seen and not causal:
            rest = [query.clone(), key.detach()[seen], value.detach()[seen]]
            rest = [a.requires_grad_() for a in rest]
            out = tilekit.flash_attention(*rest, scale=1.0, return_lse=return_lse, backend=backend)
            wanted = torch.autograd.grad(out[0].sum() + out[1].sum() if return_lse else out.sum(), rest)
            torch.testing.assert_close(found[0], wanted[0])
            torch.testing.assert_close(found[1][seen], wanted[1])
            torch.testing.assert_close(found[2][seen], wanted[2])


S8 = {
    "vadd": [((0,), (0,))],
    "fused_gelu": [((0, 8), (8,), (8,)), ((8, 0), (0,), ())],
    "softmax": [((0, 5),), ((5, 0),)],
    "matmul": [
        ((0, 8), (8, 4)), ((4, 8), (8, 0)), ((4, 0), (0, 5)), ((0, 4, 5), (5, 6)), ((4, 5), (0, 5, 6)),
        ((0, 5), (3, 5, 6)), ((3, 4, 5), (5, 0)), ((3, 4, 0), (0, 6)), ((2, 1, 0, 5), (3, 5, 6)), ((2, 1, 4, 5), (3, 5, 0)),
    ],
    "flash_attention": [
        ((2, 0, 8), (2, 5, 8), (2, 5, 4)), ((2, 5, 8), (2, 0, 8), (2, 0, 4)), ((0, 5, 8), (0, 6, 8), (0, 6, 4)),
        ((2, 5, 8), (2, 6, 8), (2, 6, 0)), ((2, 5, 0), (2, 6, 0), (2, 6, 4)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "shapes"), [(name, shapes) for name, list_ in S8.items() for shapes in list_])
def test_s8_empty_arrays(name, shapes, backend, seed):
    case = Case("empty", lambda m: tuple(m.randn(*shape) for shape in shapes))
    problem = check(name, case, torch.float32, "cpu", backend, seed)
    assert problem is None, problem


@pytest.mark.parametrize("backend", TILE_BACKENDS)
@pytest.mark.parametrize("d", [32, 64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_at_every_head_dimension(d, causal, dtype, backend, seed):
    def build(m):
        keywords = {"is_causal": causal, "enable_gqa": True, "return_lse": False}
        return m.randn(1, 4, 70, d), m.randn(1, 2, 90, d), m.randn(1, 2, 90, d), keywords

    problem = check("flash_attention", Case("any", build), dtype, "cpu", backend, seed, "transposed")
    assert problem is None, problem


@pytest.mark.parametrize("backend", TILE_BACKENDS)
@pytest.mark.parametrize("which", ["lse only", "result only"])
def test_attention_differentiates_each_of_its_results_alone(which, backend, seed):
    arrays = ARRAYS["flash_attention"](Make(seed, torch.float32))
    leaves, wide = [a.requires_grad_() for a in arrays], [a.detach().double().requires_grad_() for a in arrays]
    position = 1 if which == "lse only" else 0
    got, wanted = (
        torch.autograd.grad(function(*args, return_lse=True)[position].sum(), args, materialize_grads=True)
        for function, args in ((call("flash_attention", backend), leaves), (kernels.spec("flash_attention").reference, wide))
    )  # fmt: skip
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("backend", TILE_BACKENDS)
@pytest.mark.parametrize("name", ["vadd", "matmul"])
def test_gradients_of_gradients_that_are_right(name, backend, seed):
    arrays = ARRAYS[name](Make(seed, torch.float32))

    def second(function, arrays):
        leaves = [a.detach().requires_grad_() for a in arrays]
        first = torch.autograd.grad((function(*leaves) ** 3).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum((g**2).sum() for g in first), leaves)

    wanted = second(kernels.spec(name).reference, [a.double() for a in arrays])
    for got, want in zip(second(call(name, backend), arrays), wanted, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4 * want.abs().max().item())


@pytest.mark.parametrize("backend", TILE_BACKENDS)
@pytest.mark.parametrize("name", ["fused_gelu", "softmax", "flash_attention"])
def test_gradients_of_gradients_that_are_refused(name, backend, seed):
    """Only when they are asked for: create_graph alone is allowed."""
    leaves = [a.requires_grad_() for a in ARRAYS[name](Make(seed, torch.float32))]
    first = torch.autograd.grad((call(name, backend)(*leaves) ** 2).sum(), leaves, create_graph=True)
    with pytest.raises(
        RuntimeError, match=f"{name}: backend '{backend}' has no gradients of gradients.*backend='torch'"
    ):
        torch.autograd.grad(first[0].sum(), leaves)
    first = torch.autograd.grad((call(name, "torch")(*leaves) ** 2).sum(), leaves, create_graph=True)
    torch.autograd.grad(first[0].sum(), leaves)


KEPT = {"vadd": 0, "fused_gelu": 3, "softmax": 1, "matmul": 2, "flash_attention": 5}


@pytest.mark.parametrize("backend", TILE_BACKENDS)
@pytest.mark.parametrize("name", kernels.NAMES)
def test_nothing_is_kept_that_is_not_needed(name, backend, seed):
    arrays = ARRAYS[name](Make(seed, torch.float32))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        out = call(name, backend)(*[a.requires_grad_() for a in arrays])
    assert len(kept) == KEPT[name]
    weights = (arrays[0].shape[-2], arrays[1].shape[-2]) if name == "flash_attention" else None
    assert weights not in [shape[-2:] for shape in kept]
    if name == "matmul":
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
            out = call(name, backend)(arrays[0], arrays[1].detach())
        assert kept == [arrays[1].shape]
    if name == "flash_attention":  # value's gradient is of the weights, which come from query, key and the log-sum-exp
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
            out = call(name, backend)(*(a.detach() for a in arrays[:2]), arrays[2])
        assert kept == [arrays[0].shape, arrays[1].shape, arrays[0].shape[:-1]]
    assert out.requires_grad


@pytest.mark.parametrize("backend", TILE_BACKENDS)
def test_matmul_does_not_make_a_gradient_for_each_batch_that_was_broadcast(backend, monkeypatch):
    """b's gradient is summed up within the product: no (100, 8, 4) array of parts is made."""
    from tilekit import backends

    shapes, launch = [], backends._first_that_serves
    monkeypatch.setattr(
        backends,
        "_first_that_serves",
        lambda name, found, a, p: shapes.append([t.shape for t in a]) or launch(name, found, a, p),
    )
    a, b = torch.randn(100, 3, 8), torch.randn(8, 4, requires_grad=True)
    tilekit.matmul(a, b, backend=backend).sum().backward()
    assert shapes[-1] == [(4, 300), (300, 8)] and b.grad.shape == (8, 4)


@pytest.mark.parametrize("backend", TILE_BACKENDS)
def test_under_autocast_gradients_have_the_inputs_dtype(backend):
    a, b = torch.randn(5, 6, requires_grad=True), torch.randn(6, 7, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = tilekit.matmul(a, b, backend=backend)
    assert out.dtype is torch.bfloat16
    out.sum().backward()
    assert a.grad.dtype is b.grad.dtype is torch.float32
    torch.testing.assert_close(a.grad, b.detach().sum(1).expand(5, 6), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("backend", TILE_BACKENDS)
def test_backward_in_another_thread(backend):
    import threading

    x = torch.randn(4, 8, requires_grad=True)
    out = tilekit.softmax(x, backend=backend)
    thread = threading.Thread(target=lambda: out.pow(2).sum().backward())
    thread.start()
    thread.join()
    wanted = torch.autograd.grad(torch.softmax(x, -1).pow(2).sum(), x)[0]
    torch.testing.assert_close(x.grad, wanted)


SEVERAL_TILES = [
    case
    for name, case in cases()
    if name == "flash_attention"
    and any(word in case.id for word in ("several tiles", "many more", "grouped", "NaN", "96"))
]


@pytest.mark.skipif(triton_mode.mode() != "interpreted", reason="Triton compiles in this process")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
@pytest.mark.parametrize("case", SEVERAL_TILES, ids=lambda case: case.id)
def test_attention_with_the_tiles_of_a_gpu(case, architecture, monkeypatch, seed):
    """Smaller tiles than the interpreter's own, so that every loop has several steps."""
    monkeypatch.setattr(triton_backward, "limits_of", lambda device: Limits.of(architecture))
    problem = check("flash_attention", case, torch.float32, "cpu", "triton", seed, "transposed")
    assert problem is None, f"{problem} (seed {seed})"


@pytest.mark.parametrize(
    ("module", "architecture"),
    [
        pytest.param(module, architecture, id=f"{module.__name__.rsplit('.')[-1]}-{architecture}")
        for module in (cutile_backward, triton_backward)
        for architecture in ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
        if architecture != "sm_75" or module is triton_backward  # cuTile has no compiler for it
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("d", [8, 64, 128, 256])
@pytest.mark.parametrize("tf32", [False, True])
def test_l4_tiles_fit_wherever_the_forward_pass_runs(module, architecture, dtype, d, tf32):
    limits = Limits.of(architecture)
    shape = (2, 3, 1000, d)
    plans = module.plan((shape,) * 4, (contiguous_strides(shape),) * 4, dtype, limits, False, 0.1, tf32)
    assert all(p.shared_memory <= limits.shared_memory for p in plans.values())
    assert set(plans) == {"delta", "key_value", "query"}


@pytest.mark.parametrize("module", [cutile_backward, triton_backward], ids=["cutile", "triton"])
def test_l4_a_device_with_too_little_shared_memory_is_told(module):
    limits, shape = Limits((7, 5), 32_768, 40), (2, 3, 1000, 256)
    with pytest.raises(CannotServe, match="bytes of shared memory.*backend='torch'"):
        module.plan((shape,) * 4, (contiguous_strides(shape),) * 4, torch.float32, limits, False, 0.1, False)


@pytest.mark.parametrize("module", [cutile_backward, triton_backward], ids=["cutile", "triton"])
def test_offsets_past_two_to_the_31_and_long_grids(module):
    limits = Limits.of("sm_90")

    def bits(shape, strides):
        plans = module.plan((shape,) * 4, (strides,) * 4, torch.float16, limits, True, 0.1, False)
        assert all(len(p.grid) == 1 for p in plans.values())
        return {p.index_bits for p in plans.values()}

    shape = (2, 3, 1000, 64)
    assert bits(shape, contiguous_strides(shape)) == {32}
    assert bits(shape, (2**31, *contiguous_strides(shape)[1:])) == {64}
    assert bits((70_000, 1, 512, 64), contiguous_strides((70_000, 1, 512, 64))) == {64}


@pytest.mark.parametrize("module", ["triton_backward", "cutile_backward"])
def test_plans_of_softmax_and_gelu(module):
    softmax = import_module(f"tilekit.kernels.softmax.{module}").plan
    gelu = import_module(f"tilekit.kernels.fused_gelu.{module}").plan
    limits = Limits.of("sm_90")
    for shape, bits in (((1000, 4096), 32), ((2**16, 2**16), 64)):
        strides = contiguous_strides(shape)
        assert softmax((shape,), (strides,), torch.float16, limits, 1).index_bits == bits
        arguments = ((shape,) * 4, (strides, strides, (0, 1), (0, 0)), torch.float16, limits, True, True, (2, 3))
        assert gelu(*arguments).index_bits == bits
    assert softmax(((4, 131_072),), ((131_072, 1),), torch.float16, limits, 1).variant == "wide"


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_nan_have_gradients_of_nan(backend, seed):
    """Also where finite factors overflow; a gradient of 0 would hide what has gone wrong."""
    make = Make(seed, torch.float32)
    query, key, value = (make.randn(4, 8).abs() for _ in range(3))
    query[1], query[2] = float("nan"), 1e25
    key[0] = 1e25
    query, key = query.requires_grad_(), key.requires_grad_()
    tilekit.flash_attention(query, key, value, backend=backend).sum().backward()
    assert query.grad[1:3].isnan().all() and key.grad.isnan().all()
    assert query.grad[[0, 3]].isfinite().all()


@pytest.mark.parametrize(("dtype", "large"), [(torch.float32, 1e20), (torch.float64, 1e200)])
def test_a_logit_that_overflows_to_minus_infinity_leaves_its_row_finite(dtype, large):
    query = torch.tensor([[-large], [1.0]], dtype=dtype, requires_grad=True)
    key, value = torch.tensor([[large], [1.0]], dtype=dtype), torch.tensor([[1.0], [2.0]], dtype=dtype)
    out = tilekit.flash_attention(query, key, value, backend="torch")
    assert torch.equal(out, torch.tensor([[2.0], [1.0]], dtype=dtype))
    out.sum().backward()
    assert query.grad.isfinite().all()
