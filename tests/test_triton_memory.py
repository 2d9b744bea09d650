"""Interpreted Triton kernels that leave their arrays: stopped and told, where the heap would have been overwritten."""

import re
import threading

import pytest
import torch

import tilekit
from tilekit import kernels, triton_mode
from tilekit.exercises import triton_memory

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
if triton_mode.mode() != "interpreted":
    pytest.skip("this process compiles Triton kernels", allow_module_level=True)


@triton.jit
def add(a_ptr, b_ptr, out_ptr, loaded, stored, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + offs, mask=offs < loaded)
    b = tl.load(b_ptr + offs, mask=offs < loaded)
    tl.store(out_ptr + offs, a + b, mask=offs < stored)


@triton.jit
def add_unmasked(a_ptr, b_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(a_ptr + offs) + tl.load(b_ptr + offs))


@triton.jit
def count(out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr + offs, 1.0, mask=offs < n)


@triton.jit
def swap(out_ptr, i):
    tl.atomic_cas(out_ptr + i, 0, 1)


@triton.jit
def double(x, out_ptr, BLOCK: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, BLOCK), 2.0 * x.load([0]))


@triton.jit
def add_pair(pair, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(pair[0] + offs) + tl.load(pair[1] + offs))


def vadd(past_loads=0, past_stores=0):
    def function(a, b):
        a, b = a.contiguous(), b.contiguous()
        out, n = torch.empty_like(a), a.numel()
        add[(triton.cdiv(n, 8),)](a, b, out, n + past_loads, n + past_stores, BLOCK=8)
        return out

    return function


def vadd_unmasked(a, b):
    a, b = a.contiguous(), b.contiguous()
    out = torch.empty_like(a)
    add_unmasked[(triton.cdiv(a.numel(), 8),)](a, b, out, BLOCK=8)
    return out


def swallowing(a, b):
    try:
        return vadd(past_stores=1)(a, b)
    except Exception:
        return a + b


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_masked_kernels_are_right(dtype):
    assert tilekit.check(vadd(), "vadd", dtype=dtype, device="cpu")


@pytest.mark.parametrize(("function", "words"), [
    (vadd(past_stores=1), r"stores to addresses .*: 1 of 8, in program \(0, 0, 0\), at tl.store\(out_ptr \+ offs, a \+ b"),
    (vadd(past_loads=1), r"loads from addresses .*: 1 of 8, .*, at a = tl.load\(a_ptr"),
    (vadd_unmasked, "loads from addresses .*: 7 of 8"),
    (swallowing, "stores to addresses"),
])  # fmt: skip
def test_a_missing_mask_is_told_although_the_numbers_are_right(function, words):
    verdict = tilekit.check(function, "vadd", device="cpu")
    assert not verdict and re.search(words, repr(verdict)), repr(verdict)
    assert "Mask what lies past an array's end" in repr(verdict)


def test_nothing_is_written_and_what_is_stored_with_the_array_belongs_to_it():
    memory = torch.zeros(16)
    with triton_memory.watching() as seen:
        count[(1,)](memory[:8], 16, BLOCK=16)
        assert memory.tolist() == [1.0] * 16 and not seen.outside
        with pytest.raises(Exception, match="updates addresses outside"):
            count[(1,)](memory[8:], 16, BLOCK=16)
        numbers = torch.zeros(2, dtype=torch.int32)
        swap[(1,)](numbers, 1)
        with pytest.raises(Exception, match="updates addresses outside"):
            swap[(1,)](numbers, 2)
    assert memory.tolist() == [1.0] * 16 and numbers.tolist() == [0, 1] and len(seen.outside) == 2


def test_arrays_in_descriptors_and_tuples_are_the_kernels_too():
    descriptors = pytest.importorskip("triton.tools.tensor_descriptor")
    x, out = torch.arange(8.0), torch.empty(8)
    with triton_memory.watching() as seen:
        double[(1,)](descriptors.TensorDescriptor.from_tensor(x, [8]), out, BLOCK=8)
        assert torch.equal(out, 2 * x)
        add_pair[(1,)]((x, x), out, BLOCK=8)
    assert torch.equal(out, 2 * x) and not seen.outside


def test_another_thread_is_not_watched():
    memory = torch.zeros(16)
    with triton_memory.watching() as seen:
        thread = threading.Thread(target=lambda: seen.outside.append(triton_memory._seen.get()))
        thread.start()
        thread.join()
    assert seen.outside == [None]
    count[(1,)](memory, 16, BLOCK=16)
    assert memory.sum() == 16 and triton_memory._memory.get() == ()


@pytest.mark.parametrize("name", kernels.NAMES)
def test_the_packages_kernels_stay_inside(name):
    verdict = tilekit.check(lambda *args, **keywords: getattr(tilekit, name)(*args, backend="triton", **keywords), name)
    assert verdict, repr(verdict)


def test_wrong_numbers_in_bfloat16_are_no_verdict():
    """The interpreter takes its bits for integers, so a right kernel would be called wrong."""
    wanted = {"kernel": "vadd", "dtype": torch.bfloat16, "device": "cpu"}
    with pytest.raises(ValueError, match="may be Triton's interpreter.*torch.float32"):
        tilekit.check(vadd(), **wanted)
    forgetful = tilekit.check(lambda a, b: (vadd()(a, b), None)[1], **wanted)
    assert "returned None" in repr(forgetful)
    assert tilekit.check(lambda a, b: tilekit.vadd(a, b, backend="triton"), **wanted)
    assert not tilekit.check(lambda a, b: a - b, **wanted), "without Triton it is told"
