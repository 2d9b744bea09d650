"""Plans: what a machine without a GPU cannot show is a property of a plan."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tilekit import plans
from tilekit.plans import INT32_MAX, Limits, collapse, contiguous_strides, index_bits, span


@given(st.lists(st.integers(0, 5), max_size=5))
def test_contiguous_strides_are_torchs(shape):
    assert contiguous_strides(shape) == torch.empty(shape).stride() or 0 in shape


@given(st.permutations(range(4)), st.tuples(*[st.integers(1, 4)] * 4), st.booleans())
def test_collapse_reaches_the_same_elements_in_the_same_order(order, shape, sliced):
    a = torch.arange(5**4).view(5, 5, 5, 5)[: shape[0], : shape[1], : shape[2], : shape[3]].permute(order)
    b = torch.empty(a.shape) if sliced else a
    merged, strides_a, _ = collapse(a.shape, a.stride(), b.stride())
    assert torch.equal(torch.as_strided(a, merged, strides_a, a.storage_offset()).flatten(), a.flatten())
    assert len(merged) <= 4 and 1 not in merged[1:]


def test_collapse_merges_only_what_merges_in_every_array():
    assert collapse((4, 8), (8, 1), (8, 1)) == ((32,), (1,), (1,))
    assert collapse((4, 8), (8, 1), (16, 1)) == ((4, 8), (8, 1), (16, 1))
    assert collapse((1, 1), (5, 7)) == ((1,), (1,))


def test_span_and_index_bits():
    assert span((3, 0), (1, 1)) == 0
    assert index_bits(((2**31,), (1,))) == 32
    assert index_bits(((2**31 + 1,), (1,))) == 64
    assert index_bits(((2**31 - 100,), (1,)), slack=1024) == 64
    assert index_bits(((2, 2), (INT32_MAX, 1))) == 64


def test_limits_of_a_cpu_are_the_interpreters():
    limits = plans.limits_of(torch.device("cpu"))
    assert limits.interpreted and not limits.tensor_cores


def test_turing_has_no_tensor_cores_in_a_tile_language():
    assert not Limits.of("sm_75").tensor_cores
    assert Limits.of("sm_80").tensor_cores


def test_a_plan_cannot_be_changed():
    plan = plans.Plan((1,), constants={"BLOCK": 8})
    with pytest.raises(TypeError):
        plan.constants["BLOCK"] = 16


def test_walkable_copies_only_what_has_too_many_dimensions():
    five = torch.randn(2, 3, 4, 5, 6)
    assert plans.walkable(five, five)[0] is five
    permuted = five.permute(4, 3, 2, 1, 0)
    assert plans.walkable(permuted, permuted)[0].is_contiguous()
    four = torch.randn(2, 3, 4, 5).permute(3, 2, 1, 0)
    assert plans.walkable(four)[0] is four
