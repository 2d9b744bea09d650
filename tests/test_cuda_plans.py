"""Plans of the CUDA C++ kernels: what only a large machine, or an odd address, would show."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tilekit.kernels.flash_attention import cuda_backward as flash_attention_backward
from tilekit.kernels.flash_attention import cuda_kernel as flash_attention
from tilekit.kernels.fused_gelu import cuda_backward as fused_gelu_backward
from tilekit.kernels.fused_gelu import cuda_kernel as fused_gelu
from tilekit.kernels.fused_gelu.layout import COLUMNS, TOTAL
from tilekit.kernels.matmul import cuda_kernel as matmul
from tilekit.kernels.softmax import cuda_backward as softmax_backward
from tilekit.kernels.softmax import cuda_kernel as softmax
from tilekit.kernels.vadd import cuda_kernel as vadd
from tilekit.plans import CannotServe, Limits, contiguous_strides

HALF, SINGLE = torch.float16, torch.float32
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
SM_90 = Limits.of("sm_90")
SIZES = st.sampled_from([1, 15, 16, 17, 64, 100, 128, 1000, 4096])


def attention(shapes, dtype=HALF, limits=SM_90, strides=None, causal=False, scale=0.125, aligned=True):
    strides = strides or tuple(contiguous_strides(shape) for shape in shapes)
    return flash_attention.plan(shapes, strides, dtype, limits, causal, scale, aligned)


def square(rows, keys, channels, value_channels, heads=3):
    return (1, heads, rows, channels), (1, heads, keys, channels), (1, heads, keys, value_channels)


class TestVadd:
    def plan(self, shape, strides=None, dtype=HALF, aligned=True):
        return vadd.plan((shape, shape), strides or (contiguous_strides(shape),) * 2, dtype, SM_90, aligned)

    @pytest.mark.parametrize(("dtype", "vec"), [(HALF, 8), (torch.bfloat16, 8), (SINGLE, 4)])
    def test_16_bytes_a_thread_where_bases_are_aligned(self, dtype, vec):
        assert self.plan((1000,), dtype=dtype).constants["VEC"] == vec
        assert self.plan((1000,), dtype=dtype, aligned=False).constants["VEC"] == 1

    @pytest.mark.parametrize(("n", "bits"), [(2**31 - 2049, 32), (2**31 - 2000, 64), (2**31 + 8, 64)])
    def test_offsets_past_2_to_the_31(self, n, bits):
        """The last block's threads compute offsets past the end, too."""
        plan = self.plan((n,))
        assert plan.index_bits == bits and plan.grid == (math.ceil(n / 2048),)

    def test_a_view_whose_rows_are_far_apart(self):
        assert self.plan((3, 1000), ((2**30 + 7, 1),) * 2).index_bits == 64

    def test_a_grid_that_no_gpu_has_is_refused(self):
        with pytest.raises(CannotServe):
            self.plan((2**41,), aligned=False)


class TestGelu:
    def plan(self, shape, w, aligned=True, x=None):
        strides = (x or contiguous_strides(shape), w, w)
        return fused_gelu.plan((shape,) * 3, strides, HALF, SM_90, True, aligned)

    def test_vectors_along_rows_of_w_and_b(self):
        assert self.plan((512, 4096), (0, 1)).constants["VEC"] == 8
        assert self.plan((512, 4096), (1, 0)).constants["VEC"] == 8

    @pytest.mark.parametrize(
        "call",
        [
            {"shape": (512, 4097), "w": (0, 1)},  # the second row would begin in the middle of 16 bytes
            {"shape": (512, 4096), "w": (0, 1), "aligned": False},
            {"shape": (512, 4096), "w": (0, 2)},
            {"shape": (512, 4096), "w": (0, 1), "x": (4100, 1)},
            {"shape": (512, 4096), "w": (0, 1), "x": (1, 512)},
        ],
    )
    def test_no_vectors_where_they_would_not_be_aligned(self, call):
        assert self.plan(**call).constants["VEC"] == 1


class TestSoftmax:
    @given(
        st.sampled_from([1, 2, 31, 33, 1000, 1024, 1025, 5000, 16_384, 16_385, 10**6]), st.sampled_from([1, 7, 4096])
    )
    def test_every_element_of_a_row_has_a_thread(self, n, rows):
        plan = softmax.plan(((rows, n),), ((n, 1),), HALF, SM_90, 1)
        c, threads = plan.constants, plan.options["threads"]
        if c["ONLINE"]:
            assert threads == c["BLOCK_ROWS"] * c["SLICES"] and c["SLICES"] & (c["SLICES"] - 1) == 0
        else:
            assert c["ROW_THREADS"] * c["PER_THREAD"] * c["VEC"] >= n and c["PER_THREAD"] * c["VEC"] <= 64
            assert threads % c["ROW_THREADS"] == 0 and (c["ROW_THREADS"] == 32 or c["ROW_THREADS"] == threads)
            assert plan.grid[0] * (threads // c["ROW_THREADS"]) >= rows
            assert n % c["VEC"] == 0
        assert threads <= 1024 and threads % 32 == 0

    def test_along_the_first_dimension_neighbours_are_read_together(self):
        plan = softmax.plan(((300, 4096),), ((4096, 1),), HALF, SM_90, 0)
        assert plan.variant == "softmax_online" and plan.constants["BLOCK_ROWS"] == 32


class TestMatmul:
    def plan(self, a, b, dtype=HALF, strides=None, limits=SM_90, aligned=True):
        strides = strides or (contiguous_strides(a), contiguous_strides(b))
        return matmul.plan((a, b), strides, dtype, limits, aligned)

    @given(SIZES, SIZES, SIZES, st.sampled_from(ARCHITECTURES), st.sampled_from([HALF, SINGLE]))
    def test_the_tiles_fit(self, m, n, k, architecture, dtype):
        limits = Limits.of(architecture)
        plan = self.plan((m, k), (k, n), dtype, limits=limits)
        assert plan.shared_memory <= limits.shared_memory and plan.options["threads"] <= 1024
        c = plan.constants
        assert plan.grid[0] == math.ceil(m / c["BLOCK_M"]) * math.ceil(n / c["BLOCK_N"])

    def test_tensor_cores_read_either_order(self):
        c = self.plan((128, 64), (64, 128), strides=((1, 128), (1, 64))).constants
        assert c["A_DOWN"] and c["B_DOWN"] and c["A_VEC"] == c["B_VEC"] == 8
        c = self.plan((128, 64), (64, 128), SINGLE, strides=((1, 128), (1, 64))).constants
        assert not c["A_DOWN"] and c["A_ALONG_M"] and c["A_VEC"] == 1

    def test_a_row_that_is_no_whole_number_of_vectors(self):
        c = self.plan((128, 60), (60, 128)).constants
        assert c["A_VEC"] == 1 and c["B_VEC"] == 8
        assert self.plan((128, 64), (64, 128), aligned=False).constants["A_VEC"] == 1

    def test_large_operands_have_64_bit_offsets(self):
        assert self.plan((16, 128), (128, 2**25)).index_bits == 64


class TestFlashAttention:
    @given(SIZES, SIZES, st.integers(0, 256), st.integers(0, 256), st.sampled_from(ARCHITECTURES),
           st.sampled_from([HALF, SINGLE]))  # fmt: skip
    def test_the_tiles_fit_everywhere(self, rows, keys, channels, value_channels, architecture, dtype):
        limits = Limits.of(architecture)
        plan = attention(square(rows, keys, channels, value_channels), dtype, limits)
        c = plan.constants
        assert plan.shared_memory <= limits.shared_memory
        assert c["PADDED_E"] >= channels and c["PADDED_EV"] >= value_channels
        assert c["BLOCK_M"] % 16 == c["BLOCK_N"] % 16 == 0
        assert plan.grid == (3 * math.ceil(rows / c["BLOCK_M"]),)

    def test_more_channels_are_refused(self):
        with pytest.raises(CannotServe, match="at most 256 channels; got 257"):
            attention(square(8, 8, 257, 8))

    @pytest.mark.parametrize(("scale", "sign"), [(0.5, 1), (-0.5, -1), (0.0, 0), (1e-45, 0)])
    def test_the_scales_sign_goes_to_the_query(self, scale, sign):
        plan = attention(square(8, 8, 8, 8), scale=scale)
        assert plan.constants["SIGN"] == sign and plan.arguments[-1] > 0

    def test_vectors_only_where_every_row_is_aligned(self):
        shapes = square(64, 64, 64, 64)
        assert attention(shapes).constants["VEC"] == 8
        assert attention(shapes, SINGLE).constants["VEC"] == 4
        assert attention(shapes, aligned=False).constants["VEC"] == 1
        assert attention(square(64, 64, 60, 64)).constants["VEC"] == 1
        far = ((3 * 64 * 68, 64 * 68, 68, 1),) * 3
        assert attention(shapes, strides=far).constants["VEC"] == 1
        transposed = ((64 * 64 * 3, 64 * 64, 1, 64),) * 3
        assert attention(shapes, strides=transposed).constants["VEC"] == 1

    def test_the_demonstrations_case_fills_an_h200(self):
        plan = attention(square(512, 512, 128, 128, heads=96), SINGLE)
        assert (plan.constants["BLOCK_M"], plan.constants["BLOCK_N"]) == (128, 64)
        waves = plan.grid[0] / SM_90.multiprocessors
        assert waves / math.ceil(waves) > 0.95


class TestGeluBackward:
    def plan(self, shape, w=(0, 1), grad=None, aligned=True):
        strides = (grad or contiguous_strides(shape), contiguous_strides(shape), w, (0,) * len(shape))
        return fused_gelu_backward.plan((shape,) * 4, strides, HALF, SM_90, True, True, (COLUMNS, TOTAL), aligned)

    def test_vectors_where_every_row_is_aligned_or_repeats(self):
        assert self.plan((512, 4096)).constants["VEC"] == 8
        assert self.plan((512, 4096), grad=(0, 0)).constants["VEC"] == 8
        assert self.plan((512, 4096), grad=(1, 512)).constants["VEC"] == 1
        assert self.plan((512, 4096), grad=(4100, 1)).constants["VEC"] == 1
        assert self.plan((512, 4097)).constants["VEC"] == 1
        assert self.plan((512, 4096), aligned=False).constants["VEC"] == 1

    def test_one_row_has_the_whole_block(self):
        assert self.plan((1 << 20,), (1,)).grid == (math.ceil(2**20 / (256 * 8)),)
        assert self.plan((512, 4096)).grid == (512 // 32 * 4096 // (32 * 8),)

    @pytest.mark.parametrize(("rows", "bits"), [(2**14, 32), (2**16, 64)])
    def test_offsets_past_2_to_the_31(self, rows, bits):
        assert self.plan((rows, 2**16)).index_bits == bits


class TestSoftmaxBackward:
    @pytest.mark.parametrize("dim", [0, 1])
    @pytest.mark.parametrize("n", [7, 4096, 16_384, 16_385])
    def test_the_threads_share_rows_as_in_the_forward_pass(self, n, dim):
        shape = (300, n) if dim else (n, 300)
        arguments = (shape,), (contiguous_strides(shape),), HALF, SM_90, dim
        forward, backward = softmax.plan(*arguments), softmax_backward.plan(*arguments)
        assert backward.grid == forward.grid and backward.options == forward.options
        assert backward.constants["WIDE"] == forward.constants["ONLINE"] == (dim == 0 or n > 16_384)
        assert backward.variant == ("softmax_backward_wide" if backward.constants["WIDE"] else "")

    def test_vectors_only_where_the_gradient_has_them(self):
        shape = (300, 4096)
        for grad, vec in (((4096, 1), 8), ((0, 0), 1), ((4097, 1), 1)):
            assert softmax_backward.plan((shape,), (grad,), HALF, SM_90, 1).constants["VEC"] == vec


class TestFlashAttentionBackward:
    def plan(self, shapes, dtype=HALF, limits=SM_90, strides=None, causal=False, scale=0.125, aligned=True):
        query, key, value = shapes
        shapes = (query, key, value, (*query[:3], value[3]))
        strides = strides or tuple(map(contiguous_strides, shapes))
        return flash_attention_backward.plan(shapes, strides, dtype, limits, causal, scale, aligned)

    @given(SIZES, SIZES, st.integers(1, 256), st.integers(1, 256), st.sampled_from(ARCHITECTURES),
           st.sampled_from([HALF, SINGLE]))  # fmt: skip
    def test_the_tiles_fit_everywhere(self, rows, keys, channels, value_channels, architecture, dtype):
        limits = Limits.of(architecture)
        plans = self.plan(square(rows, keys, channels, value_channels), dtype, limits)
        assert set(plans) == {"delta", "key_value", "query"}
        c, threads = plans["query"].constants, plans["query"].options["threads"]
        assert all(plan.shared_memory <= limits.shared_memory for plan in plans.values())
        assert c["PADDED_E"] >= channels and c["PADDED_EV"] >= value_channels
        assert c["OWNED"] % 16 == c["WALKED"] % 16 == 0
        assert plans["query"].grid == (3 * math.ceil(rows / c["OWNED"]),)
        assert plans["key_value"].grid == (3 * math.ceil(keys / c["OWNED"]),)
        assert plans["delta"].grid == (math.ceil(3 * rows / (threads // 32)),)
        # What a thread keeps: its sums, a tile's logits and slopes.
        sums = (c["PADDED_E"] + c["PADDED_EV"]) * c["OWNED"] // threads
        assert sums + 2 * c["OWNED"] * c["WALKED"] // threads <= 200

    def test_the_three_kernels_are_compiled_together(self):
        plans = list(self.plan(square(512, 512, 64, 64)).values())
        assert all(plan.constants == plans[0].constants and plan.options == plans[0].options for plan in plans)

    def test_more_channels_are_refused(self):
        with pytest.raises(CannotServe, match="at most 256 channels; got 257"):
            self.plan(square(8, 8, 257, 8))

    def test_a_device_with_too_little_shared_memory_is_told(self):
        with pytest.raises(CannotServe, match="bytes of shared memory.*backend='torch'"):
            self.plan(square(1000, 1000, 256, 256), SINGLE, Limits((7, 5), 32_768, 40))

    @pytest.mark.parametrize(("scale", "zero"), [(0.5, False), (-0.5, False), (0.0, True), (1e-45, True)])
    def test_the_scale(self, scale, zero):
        plan = self.plan(square(8, 8, 8, 8), scale=scale)["query"]
        assert plan.constants["ZERO_SCALE"] == zero and plan.arguments[-1] == scale
        largest = torch.finfo(torch.float32).max
        assert self.plan(square(8, 8, 8, 8), scale=-1e300)["query"].arguments[-1] == -largest

    def test_vectors_only_where_every_row_is_aligned(self):
        shapes = square(64, 64, 64, 64)
        assert self.plan(shapes)["query"].constants["VEC"] == 8
        assert self.plan(shapes, aligned=False)["query"].constants["VEC"] == 1
        contiguous = contiguous_strides(shapes[0])
        expanded = (*(contiguous,) * 3, (0, 0, 0, 0))
        assert self.plan(shapes, strides=expanded)["query"].constants["VEC"] == 1
        assert self.plan(square(64, 64, 60, 64))["query"].constants["VEC"] == 1

    @pytest.mark.parametrize(("step", "bits"), [(3 * 64 * 64, 32), (2**31, 64)])
    def test_offsets_past_2_to_the_31(self, step, bits):
        shapes = tuple((2, *shape[1:]) for shape in square(64, 64, 64, 64))
        strides = ((step, 64 * 64, 64, 1),) * 4
        assert {plan.index_bits for plan in self.plan(shapes, strides=strides).values()} == {bits}
