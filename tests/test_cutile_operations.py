"""Matrix products, atomics and other ways to reach an array, as the cuTile interpreter runs them."""

import ml_dtypes
import numpy as np
import pytest

from tilekit.cutile_interpreter import launch
from tilekit.cutile_interpreter.api import tile as ct
from tilekit.cutile_interpreter.run import Run


def run(kernel, grid, *args, **options):
    launch(None, grid if isinstance(grid, tuple) else (grid,), kernel, args, **options)


@pytest.fixture
def kernel_of(tmp_path):
    """Makes a kernel of one expression, in a file of its own, where a compiler finds its source."""

    def make(expression, parameters):
        path = tmp_path / "mistake.py"
        path.write_text(f"def kernel({parameters}):\n    {expression}\n")
        names = {"ct": ct}
        exec(compile(path.read_text(), path, "exec"), names)
        return ct.kernel(names["kernel"])

    return make


@pytest.fixture
def rng():
    return np.random.default_rng(20250301)


# Matrix products ------------------------------------------------------------------------------------------------------


@ct.kernel
def tiled_matmul(a, b, c, TILE: ct.Constant[int], K: ct.Constant[int]):
    row, column = ct.bid(0), ct.bid(1)
    acc = ct.zeros((TILE, TILE), c.dtype)
    for k in range(ct.cdiv(a.shape[1], K)):
        x = ct.load(a, (row, k), (TILE, K), padding_mode=ct.PaddingMode.ZERO)
        y = ct.load(b, (k, column), (K, TILE), padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(x, y, acc)
    ct.store(c, (row, column), acc)


@pytest.mark.parametrize("vectorize", [True, False])
@pytest.mark.parametrize(
    "inputs, accumulator",
    [
        (np.float16, np.float16),
        (np.float16, np.float32),
        (ml_dtypes.bfloat16, np.float32),
        (np.float32, np.float32),
        (np.float64, np.float64),
        (ml_dtypes.float8_e5m2, np.float16),
        (ml_dtypes.float8_e4m3fn, np.float32),
    ],
)
def test_mma_over_a_grid_against_float64(rng, inputs, accumulator, vectorize):
    a = rng.standard_normal((20, 24)).astype(np.float32).astype(inputs)
    b = rng.standard_normal((24, 12)).astype(np.float32).astype(inputs)
    c = np.full((20, 12), np.nan, accumulator)
    run(tiled_matmul, (3, 2), a, b, c, 8, 8, vectorize=vectorize)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    bound = 24 * np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)) * np.finfo(accumulator).eps
    assert (np.abs(c - exact) <= bound).all()


@pytest.mark.parametrize("left, right", [(np.int8, np.int8), (np.uint8, np.uint8), (np.int8, np.uint8)])
def test_mma_of_bytes_is_exact(rng, left, right):
    a = rng.integers(np.iinfo(left).min, np.iinfo(left).max, (8, 256), dtype=left, endpoint=True)
    b = rng.integers(np.iinfo(right).min, np.iinfo(right).max, (256, 8), dtype=right, endpoint=True)
    c = np.zeros((8, 8), np.int32)
    run(tiled_matmul, (1, 1), a, b, c, 8, 64)
    np.testing.assert_array_equal(c, a.astype(np.int64) @ b.astype(np.int64))


def test_an_integer_accumulator_wraps():
    @ct.kernel
    def kernel(c):
        ones = ct.ones((4, 4), ct.int8)
        ct.store(c, (0, 0), ct.mma(ones, ones, ct.full((4, 4), 2**31 - 2, ct.int32)))

    c = np.zeros((4, 4), np.int32)
    run(kernel, 1, c)
    assert (c == -(2**31) + 2).all()


@pytest.mark.parametrize(
    "left, right, result",
    [((4, 8), (8, 2), (4, 2)), ((8,), (8, 2), (2,)), ((4, 8), (8,), (4,)), ((8,), (8,), ()),
     ((2, 4, 8), (8, 2), (2, 4, 2)), ((2, 4, 8), (1, 8, 2), (2, 4, 2)), ((8,), (2, 8, 4), (2, 4))],
)  # fmt: skip
def test_matmul_takes_numpys_shapes(rng, left, right, result):
    @ct.kernel
    def kernel(a, b, c):
        x = ct.load(a, (ct.bid(0), *start[: len(left)]), (1, *left)).reshape(left)
        y = ct.load(b, start[: len(right)], right)
        product = x @ y
        ct.static_assert(product.shape == result)
        ct.store(c, (ct.bid(0), *start[: len(result)]), product.reshape((1, *result)))

    start = (0, 0, 0)
    a, b = rng.standard_normal((3, *left)).astype(np.float32), rng.standard_normal(right).astype(np.float32)
    c = np.zeros((3, *result), np.float32)
    run(kernel, 3, a, b, c)
    np.testing.assert_allclose(c, [x.astype(np.float64) @ b for x in a], rtol=1e-5, atol=1e-5)


def test_matmul_keeps_the_dtype_of_its_inputs():
    @ct.kernel
    def kernel(out):
        bytes = ct.full((4, 4), 100, ct.int8) @ ct.ones((4, 4), ct.int8)
        ct.static_assert(bytes.dtype == ct.int8)
        mixed = ct.ones((4, 4), ct.float16) @ ct.ones((4, 4), ct.float32)
        ct.static_assert(mixed.dtype == ct.float32)
        ct.store(out, (0, 0), bytes)

    out = np.zeros((4, 4), np.int8)
    run(kernel, 1, out)
    assert (out == np.int8(400 - 512)).all()  # 400 in int32, then cut to 8 bits


def test_the_strides_of_an_operand_do_not_matter(rng):
    @ct.kernel
    def kernel(a, b, c):
        x = ct.permute(ct.load(a, (0, 0, 0), (8, 2, 4)), (2, 0, 1))
        ct.store(c, (0, 0, 0), x @ ct.load(b, (0, 0), (2, 8)))

    a, b = rng.standard_normal((8, 2, 4)).astype(np.float32), rng.standard_normal((2, 8)).astype(np.float32)
    c = np.zeros((4, 8, 8), np.float32)
    run(kernel, 1, a, b, c)
    np.testing.assert_allclose(c, a.transpose(2, 0, 1) @ b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("block", [16, 32])
def test_mma_scaled_scales_blocks_along_k(rng, block):
    @ct.kernel
    def kernel(a, scale_a, b, scale_b, c, BLOCK: ct.Constant[int]):
        x = ct.load(a, (0, 0), (4, 64)).astype(ct.float4_e2m1fn)
        y = ct.load(b, (0, 0), (64, 4)).astype(ct.float4_e2m1fn)
        of_x, of_y = ct.load(scale_a, (0, 0), (4, 64 // BLOCK)), ct.load(scale_b, (0, 0), (64 // BLOCK, 4))
        ct.store(c, (0, 0), ct.mma_scaled(x, of_x, y, of_y, ct.load(c, (0, 0), (4, 4))))

    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -1, -6], np.float32)  # of float4_e2m1fn
    a, b = rng.choice(values, (4, 64)), rng.choice(values, (64, 4))
    scale_a = 2.0 ** rng.integers(-3, 4, (4, 64 // block)).astype(np.float32)
    scale_b = 2.0 ** rng.integers(-3, 4, (64 // block, 4)).astype(np.float32)
    c = rng.standard_normal((4, 4)).astype(np.float32)
    wanted = sum(
        np.outer(a[:, k] * scale_a[:, k // block], b[k] * scale_b[k // block]).astype(np.float64) for k in range(64)
    )
    wanted += c
    scales = (s.astype(ml_dtypes.float8_e8m0fnu) for s in (scale_a, scale_b))
    run(kernel, 1, a, next(scales), b, next(scales), c, block)
    np.testing.assert_allclose(c, wanted, rtol=1e-6, atol=1e-5)


MMA_MISTAKES = {
    "one dimension": ("ct.mma(ct.ones(4, ct.float32), ct.ones((4, 4), ct.float32), ct.ones(4, ct.float32))", "2D"),
    "inner dimensions": ("ct.ones((4, 8), ct.float32) @ ct.ones((4, 8), ct.float32)", "Incompatible shapes"),
    "accumulator's shape": ("ct.mma(ct.ones((4, 4), ct.float32), ct.ones((4, 4), ct.float32), ct.ones((4, 2), ct.float32))", "Expect acc shape"),
    "accumulator's dtype": ("ct.mma(ct.ones((4, 4), ct.bfloat16), ct.ones((4, 4), ct.bfloat16), ct.ones((4, 4), ct.bfloat16))", "Unsupported acc dtype"),
    "two dtypes": ("ct.mma(ct.ones((4, 4), ct.float16), ct.ones((4, 4), ct.float32), ct.ones((4, 4), ct.float32))", "must have the same dtype"),
    "an input that mma does not know": ("ct.ones((4, 4), ct.int32) @ ct.ones((4, 4), ct.int32)", "Unsupported input"),
    "fast accumulation": ("ct.mma(ct.ones((4, 4), ct.float16), ct.ones((4, 4), ct.float16), ct.ones((4, 4), ct.float32), use_fast_acc=True)", "fp8"),
    "four dimensions": ("ct.ones((1, 1, 4, 4), ct.float32) @ ct.ones((4, 4), ct.float32)", "one to three dimensions"),
    "a number": ("ct.ones((4, 4), ct.float32) @ 2", "one to three dimensions"),
    "a scalar": ("ct.ones((), ct.float32) @ ct.ones((4, 4), ct.float32)", "one to three dimensions"),
    "block of scales": ("ct.mma_scaled(ct.ones((4, 64), ct.float8_e5m2), ct.ones((4, 4), ct.float8_e8m0fnu), ct.ones((64, 4), ct.float8_e5m2), ct.ones((4, 4), ct.float8_e8m0fnu), ct.ones((4, 4), ct.float32))", "block size"),
    "dtype of scales": ("ct.mma_scaled(ct.ones((4, 64), ct.float8_e5m2), ct.ones((4, 2), ct.float8_e4m3fn), ct.ones((64, 4), ct.float8_e5m2), ct.ones((2, 4), ct.float8_e4m3fn), ct.ones((4, 4), ct.float32))", "scale dtype"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MMA_MISTAKES)
def test_mistakes_in_matrix_products(mistake, kernel_of):
    source, message = MMA_MISTAKES[mistake]
    kernel = kernel_of(source, "x")

    with pytest.raises(ct.TileTypeError, match=message):
        run(kernel, 1, np.zeros(1, np.float32))


# Atomics --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64, np.float16])
def test_a_histogram_counts_repeats_within_and_across_blocks(rng, dtype):
    @ct.kernel
    def kernel(x, counts):
        ct.atomic_add(counts, ct.load(x, ct.bid(0), 64), ct.ones((), counts.dtype))

    x = rng.integers(0, 7, 256, dtype=np.int32)
    counts = np.zeros(7, dtype)
    run(kernel, 4, x, counts)
    np.testing.assert_array_equal(counts, np.bincount(x, minlength=7))


def test_the_old_values_of_repeats_are_those_in_between():
    @ct.kernel
    def kernel(counter, tickets):
        index = ct.zeros(8, ct.int32)
        ct.store(tickets, ct.bid(0), ct.atomic_add(counter, index, 1))

    counter, tickets = np.zeros(1, np.int32), np.zeros(32, np.int32)
    run(kernel, 4, counter, tickets)
    assert counter[0] == 32
    np.testing.assert_array_equal(np.sort(tickets), np.arange(32))


@pytest.mark.parametrize(
    "name, start, operand, after",
    [
        ("xchg", 5, 3, 3), ("add", 5, 3, 8), ("max", 5, 3, 5), ("max", -5, 3, 3), ("min", 5, 3, 3), ("min", -5, 3, -5),
        ("and", 6, 3, 2), ("or", 6, 3, 7), ("xor", 6, 3, 5),
    ],
)  # fmt: skip
def test_each_update_gives_the_old_value_and_leaves_the_new(name, start, operand, after):
    operation = getattr(ct, f"atomic_{name}")

    @ct.kernel
    def kernel(x, old):
        ct.store(old, 0, operation(x, ct.arange(4, dtype=ct.int32), operand))

    x, old = np.full(6, start, np.int32), np.zeros(4, np.int32)
    run(kernel, 1, x, old)
    assert (old == start).all() and (x == [after] * 4 + [start] * 2).all()


def test_a_maximum_of_unsigned_numbers_is_unsigned():
    @ct.kernel
    def kernel(x):
        ct.atomic_max(x, ct.arange(2, dtype=ct.int32), ct.full((2,), 2**31 + 1, ct.uint32))

    x = np.array([1, 2**32 - 1], np.uint32)
    run(kernel, 1, x)
    assert x.tolist() == [2**31 + 1, 2**32 - 1]


def test_compare_and_swap_outside_the_array_returns_what_was_expected():
    @ct.kernel
    def kernel(x, old):
        index = ct.arange(4, dtype=ct.int32) - 1
        ct.store(old, 0, ct.atomic_cas(x, index, ct.arange(4, dtype=ct.int32), 9))

    x, old = np.array([1, 7], np.int32), np.zeros(4, np.int32)
    run(kernel, 1, x, old)
    assert x.tolist() == [9, 7] and old.tolist() == [0, 1, 7, 3]


def test_compare_and_swap_of_floats_compares_bits():
    @ct.kernel
    def kernel(x, expected):
        index = ct.arange(4, dtype=ct.int32)
        ct.atomic_cas(x, index, ct.load(expected, 0, 4), 5.0)

    x = np.array([0.0, -0.0, np.nan, 1.0], np.float32)
    run(kernel, 1, x, np.array([-0.0, -0.0, np.nan, 2.0], np.float32))
    assert x.tolist() == [0.0, 5.0, 5.0, 1.0]


def test_a_lock_guards_what_blocks_add_up():
    @ct.kernel
    def kernel(lock, total, x):
        while ct.atomic_cas(lock, 0, 0, 1, memory_order=ct.MemoryOrder.ACQUIRE) == 1:
            pass
        ct.store(total, 0, ct.load(total, 0, 1) + ct.sum(ct.load(x, ct.bid(0), 4)))
        ct.atomic_xchg(lock, 0, 0, memory_order=ct.MemoryOrder.RELEASE)

    total, x = np.zeros(1, np.float32), np.arange(32, dtype=np.float32)
    run(kernel, 8, np.zeros(1, np.int32), total, x)
    assert total[0] == x.sum()


def test_indices_and_operands_broadcast():
    @ct.kernel
    def kernel(x):
        rows, columns = ct.arange(2, dtype=ct.int32)[:, None], ct.arange(4, dtype=ct.int32)[None, :]
        ct.atomic_add(x, (rows, columns), ct.arange(4, dtype=ct.int32))

    x = np.zeros((2, 3), np.int32)
    run(kernel, 1, x)
    assert x.tolist() == [[0, 1, 2], [0, 1, 2]]


ATOMIC_MISTAKES = {
    "dtype": ("ct.atomic_max(f, 0, 1.0)", "Unsupported array dtype"),
    "narrowing": ("ct.atomic_add(x, 0, 1.5)", "incompatible with the target dtype"),
    "bitwise of another dtype": ("ct.atomic_or(x, 0, ct.int64(1))", "exactly match"),
    "rank": ("ct.atomic_add(x, (0, 0), 1)", "must be a tuple of length 1"),
    "float index": ("ct.atomic_add(x, 0.5, 1)", "non-integer|integer scalars"),
    "weak order": ("ct.atomic_add(x, 0, 1, memory_order=ct.MemoryOrder.WEAK)", "memory order"),
    "no scope": ("ct.atomic_add(x, 0, 1, memory_scope=ct.MemoryScope.NONE)", "requires a memory scope"),
    "cluster": ("ct.atomic_cas(x, 0, 1, 1, memory_scope=ct.MemoryScope.CLUSTER)", "memory scope"),
    "shape": ("ct.atomic_add(x, 0, ct.ones((2,), ct.int32))", "not broadcastable"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", ATOMIC_MISTAKES)
def test_mistakes_in_atomics(mistake, kernel_of):
    source, message = ATOMIC_MISTAKES[mistake]
    kernel = kernel_of(source, "x, f")

    x = np.zeros(4, np.int32)
    with pytest.raises(ct.TileTypeError, match=message):
        run(kernel, 1, x, np.zeros(4, np.float32))
    assert not x.any()


def test_unchecked_indices_outside_are_named():
    @ct.kernel
    def kernel(x):
        ct.atomic_add(x, ct.bid(0), 1, check_bounds=False)

    with pytest.raises(ct.TileValueError, match=r"\(3, 0, 0\)"):
        run(kernel, 8, np.zeros(3, np.int32))


# Tiled views ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2, 4, 8])
def test_a_tiled_view_steps_over_an_array(step):
    @ct.kernel
    def kernel(x, out, count, STEP: ct.Constant[int]):
        view = x.tiled_view(4, padding_mode=ct.PaddingMode.ZERO, traversal_steps=STEP)
        shape, steps, dtype = view.tile_shape, view.traversal_steps, view.dtype
        ct.static_assert(shape == (4,) and steps == (STEP,) and dtype == ct.float32)
        out.tiled_view((1, 4)).store((ct.bid(0), 0), view.load(ct.bid(0)))
        ct.store(count, 0, view.num_tiles(0))

    x, count = np.arange(1, 17, dtype=np.float32), np.zeros(1, np.int32)
    blocks = -(-16 // step)
    out = np.full((blocks, 4), np.nan, np.float32)
    run(kernel, blocks, x, out, count, step)
    padded = np.r_[x, np.zeros(8, np.float32)]
    np.testing.assert_array_equal(out, [padded[i * step : i * step + 4] for i in range(blocks)])
    assert count[0] == blocks


def test_a_store_through_a_view_broadcasts_and_drops_what_is_outside():
    @ct.kernel
    def kernel(x):
        view = x.tiled_view((2, 4))
        view.store((ct.bid(0), 0), ct.arange(4, dtype=ct.int32))

    x = np.full((3, 3), -1, np.int32)
    run(kernel, 2, x)
    assert (x == [0, 1, 2]).all()


@pytest.mark.parametrize("vectorize", [True, False])
@pytest.mark.parametrize(
    "name, wanted", [("add", 10 + 0 + 1 + 2 + 3), ("max", 10), ("min", 0), ("or", 11), ("xor", 10), ("and", 0)]
)
def test_atomic_stores_of_all_blocks_arrive(name, wanted, vectorize):
    @ct.kernel
    def kernel(x):
        view = x.tiled_view(4)
        getattr(view, NAME)(0, ct.full((4,), ct.bid(0), ct.int32))

    NAME = f"atomic_store_{name}"
    x = np.full(3, 10, np.int32)
    run(kernel, 4, x, vectorize=vectorize)
    assert x.tolist() == [wanted] * 3


def test_a_scalar_view_reads_single_elements():
    @ct.kernel
    def kernel(x, out):
        view = x.tiled_view(())
        value = view.load((ct.bid(0), 1))
        ct.static_assert(value.shape == ())
        ct.store(out, ct.bid(0), value)

    x, out = np.arange(6, dtype=np.float32).reshape(3, 2), np.zeros(3, np.float32)
    run(kernel, 3, x, out)
    assert out.tolist() == [1, 3, 5]


VIEW_MISTAKES = {
    "rank of the shape": ("x.tiled_view((2, 2))", "length (to be )?1"),
    "no power of two": ("x.tiled_view(3)", "power of two"),
    "step": ("x.tiled_view(2, traversal_steps=0)", "not positive"),
    "rank of the index": ("x.tiled_view(2).load((0, 0))", "does not match the tiled view rank"),
    "unsigned index": ("x.tiled_view(2).load(ct.uint32(0))", "signed"),
    "shape of the tile": ("x.tiled_view(2).store(0, ct.ones((4,), ct.int32))", "not broadcastable"),
    "a literal that fills a tile has a dtype": ("x.tiled_view(2).atomic_store_add(0, 1.0)", "incompatible"),
    "narrowing store": ("x.tiled_view(2).store(0, ct.ones((2,), ct.float32))", "incompatible"),
    "bitwise of another dtype": ("x.tiled_view(2).atomic_store_or(0, ct.ones((2,), ct.int64))", "exactly match"),
    "axis": ("x.tiled_view(2).num_tiles(1)", "out of range"),
    "negative slice": ("x.slice(0, -1, 2)", "non-negative"),
    "slice that ends before it starts": ("x.slice(0, 2, 1)", "greater than or equal"),
    "float slice": ("x.slice(0, 0.0, 2)", "integer"),
    "advanced indexing of a vector": ("ct.load_advanced_indexing(x, (0,))", "2D or higher"),
    "NaN padding of integers": ("x.tiled_view(2, padding_mode=ct.PaddingMode.NAN).load(0)", "for floats"),
    "integer mask": ("x.get_raw_memory().load_offset(0, mask=1)", "boolean"),
    "array from an integer": ("ct.Array.from_foreign(0, (1,), (1,))", "foreign pointer"),
    "array of two ranks": ("ct.Array.from_foreign(x.foreign_pointer, (1,), (1, 1))", "same rank"),
    "zero divisor": ("ct.assume_divisible_by(x.shape[0], 0)", "positive"),
    "constant that does not divide": ("ct.assume_divisible_by(5, 2)", "not divisible"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", VIEW_MISTAKES)
def test_mistakes_with_views(mistake, kernel_of):
    source, message = VIEW_MISTAKES[mistake]
    kernel = kernel_of(source, "x")

    with pytest.raises(ct.TileTypeError, match=message):
        run(kernel, 1, np.zeros(4, np.int32))


# Slices, advanced indexing, offsets, pointers ---------------------------------------------------------------------------


@pytest.mark.parametrize("vectorize", [True, False])
def test_slices_differ_between_blocks(vectorize):
    @ct.kernel
    def ragged_sums(values, offsets, sums):
        i = ct.bid(0)
        start, stop = ct.gather(offsets, i), ct.gather(offsets, i + 1)
        row = values.slice(0, start, stop)
        total = ct.zeros((4,), ct.float32)
        for k in range(ct.cdiv(row.shape[0], 4)):
            total += ct.load(row, k, 4, padding_mode=ct.PaddingMode.ZERO)
        ct.store(sums, i, ct.sum(total))

    values, offsets = np.arange(1, 21, dtype=np.float32), np.array([0, 3, 3, 13, 20], np.int32)
    sums = np.full(4, np.nan, np.float32)
    run(ragged_sums, 4, values, offsets, sums, vectorize=vectorize)
    assert sums.tolist() == [values[a:b].sum() for a, b in zip(offsets[:-1], offsets[1:], strict=True)]


def test_a_store_into_a_slice_stays_inside():
    @ct.kernel
    def kernel(x):
        part = x.slice(1, ct.bid(0), ct.bid(0) + 1).slice(-2, 1, 3)
        ct.static_assert(part.shape[0] == 2)  # constant bounds give a constant extent
        ct.store(part, (0, 0), ct.full((4, 4), ct.bid(0) + 1, ct.int32))

    x = np.zeros((4, 3), np.int32)
    run(kernel, 2, x)
    assert x.tolist() == [[0, 0, 0], [1, 2, 0], [1, 2, 0], [0, 0, 0]]


def test_a_slice_past_the_end_is_named():
    @ct.kernel
    def kernel(x):
        x.slice(0, ct.bid(0), ct.bid(0) + 4)

    with pytest.raises(ct.TileValueError, match=r"slice\(0, 3, 7\).*block \(3, 0, 0\)"):
        run(kernel, 4, np.zeros(6, np.int32))


@pytest.mark.parametrize("sparse", [0, 1])
def test_advanced_indexing_pads_what_is_outside(sparse):
    @ct.kernel
    def kernel(x, index, out, back):
        rows = ct.load(index, ct.bid(0), 4)
        dense = ct.Slice(ct.bid(0) * 2, 2)
        where = (rows, dense) if sparse == 0 else (dense, rows)
        tile = ct.load_advanced_indexing(x, where, padding_mode=ct.PaddingMode.NAN)
        ct.store_advanced_indexing(back, where, tile)
        ct.store(out, (ct.bid(0), 0, 0), (tile if sparse == 0 else tile.transpose()).reshape((1, 4, 2)))

    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    index = np.array([4, 0, 5, -1, 2, 2, 1, 3], np.int32)
    out, back = np.zeros((2, 4, 2), np.float32), np.zeros_like(x if sparse == 0 else x.T)
    run(kernel, 2, x if sparse == 0 else np.ascontiguousarray(x.T), index, out, back)
    padded = np.pad(x, ((1, 1), (0, 1)), constant_values=np.nan)
    np.testing.assert_array_equal(out, [padded[index[4 * b : 4 * b + 4] + 1, 2 * b : 2 * b + 2] for b in range(2)])
    wanted = np.zeros_like(x)
    wanted[np.ix_([4, 0], [0, 1])] = x[np.ix_([4, 0], [0, 1])]
    wanted[[2, 1, 3], 2] = x[[2, 1, 3], 2]
    np.testing.assert_array_equal(back if sparse == 0 else back.T, wanted)


ADVANCED_MISTAKES = {
    "no sparse axis": ("ct.load_advanced_indexing(x, (ct.Slice(0, 2), ct.Slice(0, 2)))", "(?i)exactly one"),
    "two sparse axes": ("ct.load_advanced_indexing(x, (ct.ones(2, ct.int32), ct.ones(2, ct.int32)))", "(?i)exactly one"),
    "length": ("ct.load_advanced_indexing(x, (ct.ones(2, ct.int32), ct.Slice(0, 3)))", "power of two"),
    "length at run time": ("ct.load_advanced_indexing(x, (ct.ones(2, ct.int32), ct.Slice(0, x.shape[1])))", "constant"),
    "scalar": ("ct.load_advanced_indexing(x, (ct.ones(2, ct.int32), 0))", "1-?D"),
    "float index": ("ct.load_advanced_indexing(x, (ct.ones(2, ct.float32), ct.Slice(0, 2)))", "integer tile"),
    "shape": ("ct.store_advanced_indexing(x, (ct.ones(2, ct.int32), ct.Slice(0, 2)), 0)", "does not match"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", ADVANCED_MISTAKES)
def test_mistakes_in_advanced_indexing(mistake, kernel_of):
    source, message = ADVANCED_MISTAKES[mistake]
    kernel = kernel_of(source, "x")

    with pytest.raises(ct.TileTypeError, match=message):
        run(kernel, 1, np.zeros((4, 4), np.int32))


def test_raw_offsets_count_elements_from_the_first_one():
    @ct.kernel
    def kernel(x, out):
        memory = x.slice(0, 1, 3).get_raw_memory()
        dtype = memory.dtype
        ct.static_assert(dtype == ct.int32)
        offset = ct.arange(4, dtype=ct.int32) * 2 - 2
        ct.store(out, 0, memory.load_offset(offset, mask=offset >= 0, padding_value=-7))
        memory.store_offset(offset, offset, mask=offset > 2)
        ct.store(out, 1, memory.atomic_add_offset(offset, 100, mask=offset == 0))
        ct.store(out, 2, memory.atomic_cas_offset(offset, 5, 0, mask=offset == 2))

    x, out = np.arange(10, dtype=np.int32).reshape(5, 2), np.zeros(12, np.int32)
    run(kernel, 1, x, out)
    assert out[:4].tolist() == [-7, 2, 4, 6]
    assert out[5] == 2 and out[8:].tolist() == [5, 5, 4, 5]
    assert x.reshape(-1).tolist() == [0, 1, 102, 3, 4, 5, 4, 7, 8, 9]


def test_raw_offsets_outside_the_memory_are_named():
    @ct.kernel
    def kernel(x):
        x.get_raw_memory().load_offset(ct.bid(0) * 2)

    with pytest.raises(ct.TileValueError, match=r"from x .*block \(2, 0, 0\)"):
        run(kernel, 3, np.zeros(4, np.int32))


def test_an_array_from_a_foreign_pointer_shares_memory():
    @ct.kernel
    def kernel(x):
        pointer = x.foreign_pointer
        ct.static_assert(pointer.dtype == ct.foreign_pointer_dtype(ct.float32))
        diagonal = ct.Array.from_foreign(pointer, (x.shape[0],), (x.strides[0] + 1,))
        ct.store(diagonal, 0, ct.ones((4,), ct.float32))

    x = np.zeros((3, 3), np.float32)
    run(kernel, 1, x)
    np.testing.assert_array_equal(x, np.eye(3))


def test_a_foreign_array_past_the_memory_is_refused():
    @ct.kernel
    def kernel(x):
        ct.Array.from_foreign(x.foreign_pointer, (x.shape[0] + 1,), (1,))

    with pytest.raises(ct.TileValueError, match="past the memory of argument x"):
        run(kernel, 1, np.zeros(4, np.float32))


def test_assumptions_about_divisibility_are_checked():
    @ct.kernel
    def kernel(out, step):
        ct.store(out, ct.bid(0), ct.assume_divisible_by(ct.bid(0) * step, 4))

    out = np.zeros(3, np.int32)
    run(kernel, 3, out, 4)
    assert out.tolist() == [0, 4, 8]
    with pytest.raises(ct.TileValueError, match=r"2 is not divisible by 4, in block \(1, 0, 0\)"):
        run(kernel, 3, out, 2)


# Tracking ---------------------------------------------------------------------------------------------------------------


def test_atomics_are_tracked():
    class Tracker:
        def __init__(self):
            self.seen = []

        def load(self, *_):
            pass

        store = load

        def atomic(self, run, array, flat, inside):
            assert isinstance(run, Run)
            self.seen += [(array.name, int(run.blocks[0, 0]), *flat[inside].tolist())]

    @ct.kernel
    def kernel(x):
        ct.atomic_add(x, ct.bid(0), 1)
        x.tiled_view(2).atomic_store_add(0, 1)

    tracker = Tracker()
    run(kernel, 2, np.zeros(4, np.int32), tracker=tracker)
    assert tracker.seen == [("x", 0, 0), ("x", 0, 0, 1), ("x", 1, 1), ("x", 1, 0, 1)]
