"""The sanitizer finds each kind of mistake, at its line, and finds nothing in correct kernels."""

import inspect

import cuda.tile as ct
import numpy as np
import pytest
import torch

from tilekit import cutile_interpreter
from tilekit.cutile_interpreter import sanitizer
from tilekit.cutile_interpreter.sanitizer import Kind, MistakesFound, check, trace

ZERO, NEG_INF = ct.PaddingMode.ZERO, ct.PaddingMode.NEG_INF
ACQUIRE, RELEASE, RELAXED = ct.MemoryOrder.ACQUIRE, ct.MemoryOrder.RELEASE, ct.MemoryOrder.RELAXED
DEVICE = ct.MemoryScope.DEVICE
Size = ct.Constant[int]


def random(*shape, dtype=np.float32):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def kinds(report):
    return {f.kind for f in report.findings}


def the(report, kind):
    """The only finding of this kind."""
    found = [f for f in report.findings if f.kind is kind]
    assert len(found) == 1, report
    return found[0]


# Two blocks write one element -----------------------------------------------------------------------------------------


@ct.kernel
def same_place(x, out, N: Size):
    tile = ct.load(x, ct.bid(0), N)
    ct.store(out, 0, tile)  # the index does not depend on the block


@ct.kernel
def transpose_wrong(x, out, N: Size):
    tile = ct.load(x, (ct.bid(0), ct.bid(1)), (N, N))
    ct.store(out, (ct.bid(1), 0), ct.transpose(tile))  # a 0 where bid(0) belongs


@ct.kernel
def histogram_scatter(x, counts, N: Size):
    ct.scatter(counts, ct.load(x, ct.bid(0), N), 1)  # which bins occur, from all blocks


@ct.kernel
def overlapping_tiles(x, out, N: Size):
    view = out.tiled_view(N, traversal_steps=N // 2)
    view.store(ct.bid(0), ct.load(x, ct.bid(0), N))


WRITES = [
    (same_place, (4,), lambda: (random(32), zeros(32), 8), "out", (0,), "ct.store(out, 0, tile)"),
    (transpose_wrong, (3, 2), lambda: (random(12, 8), zeros(8, 12), 4), "out", (0, 0), "ct.store(out, (ct.bid(1), 0)"),
    (histogram_scatter, (4,), lambda: (np.arange(32, dtype=np.int32) % 8, zeros(8, dtype=np.int32), 8), "counts", (0,), "ct.scatter"),
    (overlapping_tiles, (4,), lambda: (random(32), zeros(20), 8), "out", (4,), "view.store"),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "grid", "args", "parameter", "element", "source"), WRITES)
def test_two_blocks_write_one_element(kernel, grid, args, parameter, element, source):
    report = check(grid, kernel, args())
    finding = the(report, Kind.WRITES)
    assert (finding.parameter, finding.element) == (parameter, element)
    assert finding.source.startswith(source) and finding.file == __file__
    assert finding.blocks[1] == (0, 0, 0) and finding.blocks[0] != (0, 0, 0)
    assert kinds(report) <= {Kind.WRITES, Kind.ORDER}


def test_writing_the_same_value_twice_is_a_race_too():
    @ct.kernel
    def kernel(out):
        ct.store(out, 0, 1.0)

    report = check((2,), kernel, (zeros(1),))
    assert kinds(report) == {Kind.WRITES}


# One store writes an element more than once -------------------------------------------------------------------------------


@ct.kernel
def last_of_each_key(keys, values, out, N: Size):
    ct.scatter(out, ct.load(keys, ct.bid(0), N), ct.load(values, ct.bid(0), N))


@ct.kernel
def clamped(x, out, N: Size):
    offs = ct.minimum(ct.bid(0) * N + ct.arange(N, dtype=ct.int32), out.shape[0] - 1)
    ct.scatter(out, offs, ct.gather(x, offs + 1))


@ct.kernel
def along_the_wrong_axis(x, out, N: Size):
    rows = ct.arange(N, dtype=ct.int32)[:, None] + ct.zeros((N, N), ct.int32)
    ct.scatter(out, (rows, rows), ct.load(x, (0, 0), (N, N)))  # the columns are meant


@ct.kernel
def copy_two_rows(x, out):
    ct.store(out, (0, 0), ct.load(x, (0, 0), (2, 4)))


DUPLICATES = [
    (last_of_each_key, (1,), lambda: (np.arange(8, dtype=np.int32) % 5, random(8), zeros(5), 8), (0,), 3),
    (along_the_wrong_axis, (1,), lambda: (random(4, 4), zeros(4, 4), 4), (0, 0), 4),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "grid", "args", "element", "count"), DUPLICATES)
def test_one_store_writes_an_element_twice(kernel, grid, args, element, count):
    report = check(grid, kernel, args())
    finding = the(report, Kind.DUPLICATES)
    assert (finding.parameter, finding.element, finding.count) == ("out", element, count)
    assert finding.source.startswith("ct.scatter") and finding.file == __file__ and finding.blocks == ((0, 0, 0),)
    assert kinds(report) == {Kind.DUPLICATES}


def test_a_tile_stored_to_an_array_that_repeats_its_elements():
    out = torch.from_numpy(zeros(4)).expand(2, 4)
    finding = the(check((1,), copy_two_rows, (random(2, 4), out)), Kind.DUPLICATES)
    assert finding.parameter == "out" and finding.count == 4 and "2 blocks" not in finding.message


def test_a_tile_stored_to_overlapping_rows():
    out = torch.zeros(5).as_strided((2, 4), (1, 1))
    assert the(check((1,), copy_two_rows, (random(2, 4), out)), Kind.DUPLICATES).count == 3
    rows = torch.zeros(16).as_strided((2, 4), (8, 2))
    assert check((1,), copy_two_rows, (random(2, 4), rows))


def test_zeros_of_both_signs_are_one_value():
    keys, values = np.zeros(4, np.int32), np.array([0.0, -0.0, 0.0, -0.0], np.float32)
    assert check((1,), last_of_each_key, (keys, values, zeros(1), 4))


@ct.kernel
def halves_until_small(x, out, N: Size):
    tile = ct.load(x, ct.bid(0), N)
    while ct.max(tile) > 1.0:
        tile = ct.where(tile > 1.0, tile * 0.5, tile)
    ct.store(out, ct.bid(0), tile)


def test_a_loop_that_other_padding_never_ends():
    finding = the(check((1,), halves_until_small, (np.full(6, 3.0, np.float32), zeros(6), 8)), Kind.PADDING)
    assert "took more than" in finding.message and "None" not in finding.message, finding.message


def test_the_same_value_twice_in_one_store_is_no_mistake():
    x = np.arange(8, dtype=np.float32)
    assert check((2,), clamped, (x, zeros(5), 4)).findings == ()


# A block reads what another block writes ------------------------------------------------------------------------------


@ct.kernel
def stencil_in_place(x, N: Size):
    i = ct.bid(0) * N + ct.arange(N, dtype=ct.int32)
    ct.scatter(x, i, ct.gather(x, i - 1) + ct.gather(x, i + 1))


@ct.kernel
def shift_in_place(x, N: Size):
    # Only what later blocks own is read: no block reads what an earlier one wrote.
    i = ct.bid(0) * N + ct.arange(N, dtype=ct.int32)
    own = ct.gather(x, i)
    ct.scatter(x, i, own + ct.gather(x, i + N))


@ct.kernel
def split_softmax_one_launch(x, partial, out, N: Size, BLOCKS: Size):
    tile = ct.load(x, ct.bid(0), N)
    ct.store(partial, ct.bid(0), ct.sum(ct.exp(tile), keepdims=True))
    ct.store(out, ct.bid(0), ct.exp(tile) / ct.sum(ct.load(partial, 0, BLOCKS)))  # not all of it is there


@ct.kernel
def transpose_in_place(x, N: Size):
    tile = ct.load(x, (ct.bid(0), ct.bid(1)), (N, N))
    ct.store(x, (ct.bid(1), ct.bid(0)), ct.transpose(tile))


@ct.kernel
def flag_without_order(data, flag, out):
    if ct.bid(0) == 0:
        ct.store(data, 0, 7.0)
        ct.atomic_xchg(flag, 0, 1, memory_order=RELAXED)
    else:
        while ct.atomic_add(flag, 0, 0, memory_order=RELAXED) == 0:
            pass
        ct.store(out, 0, ct.load(data, 0, 1))


@ct.kernel
def plain_read_of_atomic(counter, out):
    ct.atomic_add(counter, 0, 1)
    ct.store(out, ct.bid(0), ct.load(counter, 0, 1))


READS = [
    (stencil_in_place, (4,), lambda: (random(32), 8), "x"),
    (shift_in_place, (4,), lambda: (random(32), 8), "x"),
    (split_softmax_one_launch, (4,), lambda: (random(32), zeros(4), zeros(32), 8, 4), "partial"),
    (transpose_in_place, (2, 2), lambda: (random(8, 8), 4), "x"),
    (flag_without_order, (2,), lambda: (zeros(1), zeros(1, dtype=np.int32), zeros(1)), "data"),
]


@pytest.mark.parametrize(("kernel", "grid", "args", "parameter"), READS)
def test_a_block_reads_what_another_writes(kernel, grid, args, parameter):
    report = check(grid, kernel, args())
    assert {f.parameter for f in report.findings if f.kind is Kind.READS} == {parameter}
    assert kinds(report) <= {Kind.READS, Kind.ORDER}, report
    for finding in report.findings:
        assert finding.element is not None and len(set(finding.blocks)) >= (2 if finding.kind is Kind.READS else 1)


def test_a_plain_read_of_what_others_change_atomically():
    report = check((3,), plain_read_of_atomic, (zeros(1, dtype=np.int32), zeros(3, dtype=np.int32)))
    assert kinds(report) == {Kind.READS, Kind.ORDER}
    finding = the(report, Kind.READS)
    assert finding.source == "ct.atomic_add(counter, 0, 1)" and "ct.load(counter, 0, 1)" in finding.other.source


# An update that is not atomic -----------------------------------------------------------------------------------------


@ct.kernel
def sum_without_atomics(x, out, N: Size):
    ct.store(out, 0, ct.load(out, 0, 1) + ct.sum(ct.load(x, ct.bid(0), N)))


@ct.kernel
def split_k_without_atomics(a, b, out, N: Size):
    i, j, k = ct.bid(0), ct.bid(1), ct.bid(2)
    product = ct.matmul(ct.load(a, (i, k), (N, N)), ct.load(b, (k, j), (N, N)))
    ct.store(out, (i, j), ct.load(out, (i, j), (N, N)) + product)


@ct.kernel
def histogram_without_atomics(x, counts, N: Size):
    bins = ct.load(x, ct.bid(0), N)
    ct.scatter(counts, bins, ct.gather(counts, bins) + 1)


@ct.kernel
def lost_before_the_lock(out, lock):
    old = ct.load(out, 0, 1)  # outside the critical section
    while ct.atomic_cas(lock, 0, 0, 1, memory_order=ACQUIRE) != 0:
        pass
    ct.store(out, 0, old + 1.0)
    ct.atomic_xchg(lock, 0, 0, memory_order=RELEASE)


UPDATES = [
    (sum_without_atomics, (4,), lambda: (random(32), zeros(1), 8), "out", (0,)),
    (split_k_without_atomics, (2, 2, 2), lambda: (random(8, 8), random(8, 8), zeros(8, 8), 4), "out", (0, 0)),
    (histogram_without_atomics, (4,), lambda: (np.arange(32, dtype=np.int32) % 8, zeros(8, dtype=np.int32), 8), "counts", (0,)),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "grid", "args", "parameter", "element"), UPDATES)
def test_an_update_that_is_not_atomic(kernel, grid, args, parameter, element):
    report = check(grid, kernel, args())
    finding = the(report, Kind.UPDATE)
    assert (finding.parameter, finding.element) == (parameter, element)
    assert kinds(report) == {Kind.UPDATE}, report  # and not its read and its write once more


def test_a_read_before_the_lock_is_found_though_the_write_is_ordered():
    report = check((3,), lost_before_the_lock, (zeros(1), zeros(1, dtype=np.int32)))
    assert the(report, Kind.READS).parameter == "out"


# Elements never stored ------------------------------------------------------------------------------------------------


@ct.kernel
def vadd(x, y, out, N: Size):
    ct.store(out, ct.bid(0), ct.load(x, ct.bid(0), N) + ct.load(y, ct.bid(0), N))


@ct.kernel
def softmax(x, out, N: Size):
    tile = ct.load(x, (ct.bid(0), 0), (1, N), padding_mode=NEG_INF)
    exponentials = ct.exp(tile - ct.max(tile, 1, keepdims=True))
    ct.store(out, (ct.bid(0), 0), exponentials / ct.sum(exponentials, 1, keepdims=True))


@ct.kernel
def every_second_tile(x, out, N: Size):
    ct.store(out, 2 * ct.bid(0), ct.load(x, ct.bid(0), N))


@ct.kernel
def diagonal_only(x, out, N: Size):
    i = ct.bid(0)
    ct.store(out, (i, i), ct.load(x, (i, i), (N, N)))


@ct.kernel
def matmul(a, b, out, M: Size, N: Size, K: Size):
    total = ct.zeros((M, N), ct.float32)
    for k in range(ct.cdiv(a.shape[1], K)):
        left = ct.load(a, (ct.bid(0), k), (M, K), padding_mode=ZERO)
        right = ct.load(b, (k, ct.bid(1)), (K, N), padding_mode=ZERO)
        total = ct.mma(left, right, total)
    ct.store(out, (ct.bid(0), ct.bid(1)), total)


UNSTORED = [
    (vadd, (100 // 32,), lambda: (random(100), random(100), zeros(100), 32), (96,), 4),
    (softmax, (5,), lambda: (random(10, 30), zeros(10, 30), 32), (5, 0), 150),
    (every_second_tile, (4,), lambda: (random(32), zeros(64), 8), (8,), 32),
    (diagonal_only, (3,), lambda: (random(12, 12), zeros(12, 12), 4), (0, 4), 96),
    (matmul, (2, 3), lambda: (random(40, 33), random(33, 48), zeros(40, 48), 16, 16, 16), (32, 0), 8 * 48),
]


@pytest.mark.parametrize(("kernel", "grid", "args", "element", "count"), UNSTORED)
def test_elements_never_stored(kernel, grid, args, element, count):
    report = check(grid, kernel, args())
    finding = the(report, Kind.UNSTORED)
    assert (finding.parameter, finding.element, finding.count) == ("out", element, count)
    assert finding.source.startswith("ct.store(out")
    assert kinds(report) == {Kind.UNSTORED}, report


def test_named_outputs_must_be_stored_wholly():
    @ct.kernel
    def nothing(x, out):
        ct.load(x, 0, 4)

    args = (random(4), zeros(4))
    assert check((1,), nothing, args)
    finding = the(check((1,), nothing, args, outputs=["out"]), Kind.UNSTORED)
    assert (finding.parameter, finding.count, finding.where) == ("out", 4, None)
    with pytest.raises(ValueError, match="result.*out"):
        check((1,), nothing, args, outputs=["result"])


# Tiles wholly out of bounds -------------------------------------------------------------------------------------------


@ct.kernel
def element_index(x, out, N: Size):
    ct.store(out, ct.bid(0), ct.load(x, ct.bid(0) * N, N, padding_mode=ZERO))  # counts elements, not tiles


@ct.kernel
def axes_mixed(x, out, M: Size, N: Size):
    ct.store(out, (ct.bid(0), ct.bid(1)), ct.load(x, (ct.bid(1), ct.bid(0)), (M, N), padding_mode=ZERO))


OUTSIDE = [
    (vadd, (5,), lambda: (random(100), random(100), zeros(100), 32), {"x": 1, "y": 1, "out": 1}, {"x": (128,)}),
    (element_index, (4,), lambda: (random(32), zeros(32), 8), {"x": 3}, {"x": (64,)}),
    (axes_mixed, (1, 4), lambda: (random(8, 32), zeros(8, 32), 8, 8), {"x": 3}, {"x": (8, 0)}),
    (softmax, (12,), lambda: (random(10, 30), zeros(10, 30), 32), {"x": 2, "out": 2}, {"out": (10, 0)}),
]


@pytest.mark.parametrize(("kernel", "grid", "args", "counts", "starts"), OUTSIDE)
def test_tiles_wholly_out_of_bounds(kernel, grid, args, counts, starts):
    report = check(grid, kernel, args())
    found = {f.parameter: f for f in report.findings if f.kind is Kind.OUTSIDE}
    assert {name: f.count for name, f in found.items()} == counts
    for name, start in starts.items():
        assert found[name].element == start
    assert kinds(report) == {Kind.OUTSIDE}, report


# Undetermined padding -------------------------------------------------------------------------------------------------


@ct.kernel
def row_sum(x, out, N: Size):
    ct.store(out, ct.bid(0), ct.sum(ct.load(x, (ct.bid(0), 0), (1, N))))


@ct.kernel
def row_max_int(x, out, N: Size):
    ct.store(out, ct.bid(0), ct.max(ct.load(x, (ct.bid(0), 0), (1, N))))


@ct.kernel
def matmul_unpadded(a, b, out, M: Size, N: Size, K: Size):
    total = ct.zeros((M, N), ct.float32)
    for k in range(ct.cdiv(a.shape[1], K)):
        left = ct.load(a, (ct.bid(0), k), (M, K))
        right = ct.load(b, (k, ct.bid(1)), (K, N), padding_mode=ZERO)
        total = ct.mma(left, right, total)
    ct.store(out, (ct.bid(0), ct.bid(1)), total)


@ct.kernel
def masked_by_product(x, out, N: Size):
    # NaN * 0 is NaN: a product does not mask.
    tile = ct.load(x, ct.bid(0), N)
    here = ct.bid(0) * N + ct.arange(N, dtype=ct.int32) < x.shape[0]
    ct.store(out, ct.bid(0), ct.sum(tile * here.astype(ct.float32)))


PADDING = [
    (row_sum, (4,), lambda: (random(4, 30), zeros(4), 32), "ct.store(out, ct.bid(0), ct.sum(ct.load(x", 4),
    (row_max_int, (4,), lambda: (np.ones((4, 30), np.int32), zeros(4, dtype=np.int32), 32), "ct.store(out, ct.bid(0), ct.max", 4),
    (matmul_unpadded, (2, 2), lambda: (random(32, 20), random(20, 32), zeros(32, 32), 16, 16, 16), "left = ct.load", 1024),
    (masked_by_product, (2,), lambda: (random(12), zeros(2), 8), "tile = ct.load(x, ct.bid(0), N)", 1),
]  # fmt: skip


@ct.kernel
def largest(x, out, N: Size):
    ct.store(out, ct.bid(0), ct.max(ct.abs(ct.load(x, (ct.bid(0), 0), (1, N)))))


@ct.kernel
def how_many(x, out, N: Size):
    ct.store(out, ct.bid(0), ct.sum((ct.load(x, (ct.bid(0), 0), (1, N)) > 0.5).astype(ct.float32)))


@ct.kernel
def where_largest(x, out, N: Size):
    ct.store(out, ct.bid(0), ct.argmax(ct.load(x, (0, ct.bid(0)), (N, 1)), 0).astype(ct.float32))


@ct.kernel
def positive_part(x, out, N: Size):
    ct.store(out, ct.bid(0), ct.sum(ct.maximum(ct.load(x, (ct.bid(0), 0), (1, N)), 0.0)))


@ct.kernel
def smallest(x, out, N: Size):
    ct.store(out, ct.bid(0), ct.min(ct.load(x, (ct.bid(0), 0), (1, N))))


@pytest.mark.parametrize(
    "kernel", [largest, how_many, positive_part, smallest, where_largest], ids=lambda k: k._pyfunc.__name__
)
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_padding_that_a_zero_and_a_nan_do_not_show(kernel, dtype):
    """Maxima, comparisons and the like take no notice of NaN, and 0 loses against what is there."""
    x = (1 + np.abs(random(4, 10)) * 9).astype(dtype)
    if kernel is smallest:
        x = -x
    x = x.T.copy() if kernel is where_largest else x
    finding = the(check((4,), kernel, (x, zeros(4), 16)), Kind.PADDING)
    assert finding.source.startswith("ct.store(out") and finding.parameter == "out"


@pytest.mark.parametrize(("kernel", "grid", "args", "source", "count"), PADDING)
def test_results_that_depend_on_undetermined_padding(kernel, grid, args, source, count):
    args = args()
    expected = [a.copy() for a in args if isinstance(a, np.ndarray)]
    cutile_interpreter.launch(None, grid, kernel, (*expected, *(a for a in args if not isinstance(a, np.ndarray))))
    report = check(grid, kernel, args)
    finding = the(report, Kind.PADDING)
    assert finding.parameter == "out" and finding.source.startswith(source) and finding.count == count
    assert kinds(report) == {Kind.PADDING}, report
    # The arrays are as after a launch, not as after the run with other padding.
    for array, same in zip(args, expected, strict=False):
        np.testing.assert_allclose(array, same, rtol=1e-5)


def test_an_error_that_padding_causes_is_a_finding():
    @ct.kernel
    def kernel(x, out, N: Size):
        tile = ct.load(x, 0, N)
        ct.assert_(ct.max(tile) < 100, "too large")
        ct.store(out, 0, tile)

    report = check((1,), kernel, (np.ones(6, np.int32), zeros(6, dtype=np.int32), 8))
    finding = the(report, Kind.PADDING)
    assert finding.source == "tile = ct.load(x, 0, N)" and "too large" in finding.message
    assert finding.other.source.startswith("ct.assert_")


def test_an_array_that_only_padding_writes_to_is_restored():
    @ct.kernel
    def kernel(x, count, N: Size):
        if ct.max(ct.load(x, 0, N)) > 100:
            ct.store(count, 0, 1)

    count = zeros(1, dtype=np.int32)
    finding = the(check((1,), kernel, (np.ones(6, np.int32), count, 8)), Kind.PADDING)
    assert (finding.parameter, finding.element, finding.blocks) == ("count", (0,), ())
    assert finding.source.startswith("if ct.max") and count == 0


# Order of the blocks --------------------------------------------------------------------------------------------------


@ct.kernel
def tickets(counter, out):
    place = ct.atomic_add(counter, 0, 1)
    ct.scatter(out, place, ct.bid(0))


@ct.kernel
def last_one_wins(out):
    ct.atomic_xchg(out, 0, ct.bid(0))


@ct.kernel
def first_one_wins(out):
    ct.atomic_cas(out, 0, 0, ct.bid(0) + 1)


@ct.kernel
def running_sum(x, out, total):
    before = ct.atomic_add(total, 0, ct.load(x, ct.bid(0), 1).item())
    ct.store(out, ct.bid(0), before)


ORDER = [
    (tickets, (4,), lambda: (zeros(1, dtype=np.int32), zeros(4, dtype=np.int32)), "out", (0,)),
    (last_one_wins, (4,), lambda: (zeros(1, dtype=np.int32),), "out", (0,)),
    (first_one_wins, (4,), lambda: (zeros(1, dtype=np.int32),), "out", (0,)),
    (running_sum, (4,), lambda: (random(4), zeros(4), zeros(1)), "out", (0,)),
]


@pytest.mark.parametrize(("kernel", "grid", "args", "parameter", "element"), ORDER)
def test_results_that_depend_on_the_order_of_blocks(kernel, grid, args, parameter, element):
    report = check(grid, kernel, args())
    finding = the(report, Kind.ORDER)
    assert (finding.parameter, finding.element) == (parameter, element)
    assert kinds(report) == {Kind.ORDER}, report


def test_an_error_in_reverse_order_is_a_finding():
    @ct.kernel
    def kernel(first):
        old = ct.atomic_xchg(first, 0, ct.bid(0) + 1)
        ct.assert_(ct.bid(0) == old, "block 0 must be first")

    finding = the(check((3,), kernel, (zeros(1, dtype=np.int32),)), Kind.ORDER)
    assert "block 0 must be first" in finding.message and finding.source.startswith("ct.assert_")


# Correct kernels ------------------------------------------------------------------------------------------------------


@ct.kernel
def histogram(x, counts, N: Size):
    ct.atomic_add(counts, ct.load(x, ct.bid(0), N), 1)


@ct.kernel
def double_in_place(x, N: Size):
    ct.store(x, ct.bid(0), ct.load(x, ct.bid(0), N) * 2)


@ct.kernel
def sum_atomically(x, out, N: Size):
    ct.atomic_add(out, 0, ct.sum(ct.load(x, ct.bid(0), N, padding_mode=ZERO)))


@ct.kernel
def sum_under_a_lock(x, out, lock, N: Size):
    total = ct.sum(ct.load(x, ct.bid(0), N, padding_mode=ZERO))
    while ct.atomic_cas(lock, 0, 0, 1, memory_order=ACQUIRE) != 0:
        pass
    ct.store(out, 0, ct.load(out, 0, 1) + total)
    ct.atomic_xchg(lock, 0, 0, memory_order=RELEASE)


@ct.kernel
def last_block_reduces(x, partial, counter, out, N: Size, BLOCKS: Size):
    ct.store(partial, ct.bid(0), ct.sum(ct.load(x, ct.bid(0), N)))
    done = ct.atomic_add(counter, 0, 1)
    if done == ct.num_blocks(0) - 1:
        ct.store(out, 0, ct.sum(ct.load(partial, 0, BLOCKS)))


@ct.kernel
def split_k_in_turn(a, b, out, turn, N: Size):
    k = ct.bid(2)
    product = ct.matmul(ct.load(a, (ct.bid(0), k), (N, N)), ct.load(b, (k, ct.bid(1)), (N, N)))
    here = (ct.bid(0), ct.bid(1))
    while ct.load(turn, here, (1, 1), memory_order=ACQUIRE, memory_scope=DEVICE).item() != k:
        pass
    if k > 0:
        product = product + ct.load(out, here, (N, N))
    ct.store(out, here, product)
    ct.store(turn, here, k + 1, memory_order=RELEASE, memory_scope=DEVICE)


@ct.kernel
def flag_and_data(data, flag, out):
    if ct.bid(0) == 0:
        ct.store(data, 0, 7.0)
        ct.atomic_xchg(flag, 0, 1, memory_order=RELEASE)
    else:
        while ct.atomic_add(flag, 0, 0, memory_order=ACQUIRE) == 0:
            pass
        ct.store(out, ct.bid(0) - 1, ct.load(data, 0, 1))


@ct.kernel
def stencil(x, out, N: Size):
    i = ct.bid(0) * N + ct.arange(N, dtype=ct.int32)
    ct.scatter(out, i, ct.gather(x, i - 1) + ct.gather(x, i + 1))


@ct.kernel
def append_rows(new, cache, position, N: Size):
    ct.store(cache, (position + ct.bid(0), 0), ct.load(new, (ct.bid(0), 0), (1, N)))


@ct.kernel
def append_to_pages(new, table, cache, N: Size):
    page = ct.load(table, ct.bid(0), 1).item()
    ct.store(cache, (page, 0), ct.load(new, (ct.bid(0), 0), (1, N)))


@ct.kernel
def rotate_and_append(x, angles, cache, N: Size):
    row = (ct.bid(0), 0)
    ct.store(cache, row, ct.load(x, row, (1, N)) * ct.cos(ct.load(angles, row, (1, N))))


@ct.kernel
def rotate_and_append_later(x, angles, cache, position, N: Size):
    row = (position + ct.bid(0), 0)
    ct.store(cache, row, ct.load(x, (ct.bid(0), 0), (1, N)) * ct.cos(ct.load(angles, row, (1, N))))


@ct.kernel
def lower_triangle(x, out, N: Size):
    i, j = ct.bid(0), ct.bid(1)
    if i >= j:
        ct.store(out, (i, j), ct.load(x, (i, j), (N, N)))


@ct.kernel
def through_a_slice(x, out, start: Size, stop: Size, N: Size):
    part = out.slice(axis=0, start=start, stop=stop)
    ct.store(part, ct.bid(0), ct.load(x, ct.bid(0), N))


@ct.kernel
def masked_sum(x, out, N: Size):
    here = ct.bid(0) * N + ct.arange(N, dtype=ct.int32) < x.shape[0]
    ct.store(out, ct.bid(0), ct.sum(ct.where(here, ct.load(x, ct.bid(0), N), 0.0)))


@ct.kernel
def transpose(x, out, M: Size, N: Size):
    ct.store(out, (ct.bid(1), ct.bid(0)), ct.transpose(ct.load(x, (ct.bid(0), ct.bid(1)), (M, N))))


@ct.kernel
def transpose_by_order(x, out, M: Size, N: Size):
    ct.store(out, (ct.bid(0), ct.bid(1)), ct.load(x, (ct.bid(0), ct.bid(1)), (M, N), order="F"))


@ct.kernel
def persistent(x, out, N: Size):
    for i in range(ct.bid(0), ct.num_tiles(x, 0, N), ct.num_blocks(0)):
        ct.store(out, i, ct.load(x, i, N) + 1)


@ct.kernel
def tiles_on_demand(x, out, counter, N: Size):
    i = ct.atomic_add(counter, 0, 1, memory_order=RELAXED)
    while i < ct.num_tiles(x, 0, N):
        ct.store(out, i, ct.load(x, i, N) + 1)
        i = ct.atomic_add(counter, 0, 1, memory_order=RELAXED)


def int32s(*shape):
    return zeros(*shape, dtype=np.int32)


CORRECT = [
    (vadd, (4,), lambda: (random(100), random(100), zeros(100), 32)),
    (softmax, (10,), lambda: (random(10, 30), zeros(10, 30), 32)),
    (matmul, (3, 3), lambda: (random(40, 33), random(33, 41), zeros(40, 41), 16, 16, 16)),
    (histogram, (8,), lambda: (np.arange(64, dtype=np.int32) % 5, int32s(8), 8)),
    (double_in_place, (4,), lambda: (random(30), 8)),
    (sum_atomically, (63,), lambda: (random(500), zeros(1), 8)),
    (sum_atomically, (63,), lambda: (random(500, dtype=np.float16), zeros(1, dtype=np.float16), 8)),
    (sum_under_a_lock, (13,), lambda: (random(100), zeros(1), int32s(1), 8)),
    (last_block_reduces, (8,), lambda: (random(64), zeros(8), int32s(1), zeros(1), 8, 8)),
    (split_k_in_turn, (2, 2, 3), lambda: (random(8, 12), random(12, 8), zeros(8, 8), int32s(2, 2), 4)),
    (flag_and_data, (4,), lambda: (zeros(1), int32s(1), zeros(3))),
    (stencil, (4,), lambda: (random(32), zeros(32), 8)),
    (append_rows, (3,), lambda: (random(3, 8), zeros(16, 8), 5, 8)),
    (append_rows, (12,), lambda: (random(12, 8), zeros(16, 8), 0, 8)),
    (append_to_pages, (3,), lambda: (random(3, 8), np.array([4, 9, 2], np.int32), zeros(16, 8), 8)),
    (rotate_and_append, (12,), lambda: (random(12, 8), random(16, 8), zeros(16, 8), 8)),
    (rotate_and_append_later, (9,), lambda: (random(9, 8), random(32, 8), zeros(32, 8), 5, 8)),
    (lower_triangle, (3, 3), lambda: (random(12, 12), zeros(12, 12), 4)),
    (through_a_slice, (2,), lambda: (random(16), zeros(100), 10, 26, 8)),
    (masked_sum, (4,), lambda: (random(30), zeros(4), 8)),
    (transpose, (2, 3), lambda: (random(7, 11), zeros(11, 7), 4, 4)),
    (transpose_by_order, (3, 2), lambda: (random(7, 11), zeros(11, 7), 4, 4)),
    (persistent, (3,), lambda: (random(100), zeros(100), 8)),
    (tiles_on_demand, (3,), lambda: (random(100), zeros(100), int32s(1), 8)),
]


@pytest.mark.parametrize(("kernel", "grid", "args"), CORRECT)
def test_nothing_is_found_in_correct_kernels(kernel, grid, args):
    args = args()
    report = check(grid, kernel, args)
    assert report, repr(report)
    assert repr(report) == "No mistakes found."


@pytest.mark.parametrize(
    "call",
    [
        lambda tk, torch: tk.vadd(torch.randn(1000), torch.randn(1000), backend="cutile"),
        lambda tk, torch: tk.softmax(torch.randn(9, 100), backend="cutile"),
        lambda tk, torch: tk.softmax(torch.randn(3, 40_000), backend="cutile"),
        lambda tk, torch: tk.softmax(torch.randn(7, 30, 5), 1, backend="cutile"),
        lambda tk, torch: tk.fused_gelu(torch.randn(33, 50), torch.randn(50), torch.randn(50), backend="cutile"),
        lambda tk, torch: tk.matmul(torch.randn(33, 50), torch.randn(50, 70), backend="cutile"),
        lambda tk, torch: tk.matmul(torch.randn(2, 65, 40).half(), torch.randn(2, 40, 30).half(), backend="cutile"),
        lambda tk, torch: tk.flash_attention(*torch.randn(3, 1, 2, 100, 40).unbind(), backend="cutile"),
        lambda tk, torch: tk.flash_attention(*torch.randn(3, 1, 2, 130, 64).unbind(), is_causal=True, backend="cutile"),
    ],
)
def test_nothing_is_found_in_tilekits_own_kernels(call, monkeypatch):
    torch = pytest.importorskip("torch")
    import tilekit

    launches, plain = [], cutile_interpreter.launch

    def checked(*args):
        launches.append(args)
        plain(*args, check=True)

    monkeypatch.setattr(cutile_interpreter, "launch", checked)
    torch.manual_seed(0)
    call(tilekit, torch)
    assert launches


# Reports, traces, launches --------------------------------------------------------------------------------------------


def test_a_report_tells_a_learner_what_where_and_what_to_do():
    report = check((4,), sum_without_atomics, (random(32), zeros(1), 8))
    first, *lines = repr(report).splitlines()
    assert first == "1 mistake found."
    number = inspect.getsourcelines(sum_without_atomics._pyfunc)[1] + 2
    text = "\n".join(lines)
    for words in ("out[0]", "block 1", "block 0", f"{__file__}:{number}: ct.store(out, 0", "ct.atomic_add", "lost"):
        assert words in text
    assert len(lines) <= 8


def test_launch_with_check_raises_and_leaves_the_result():
    x, out = random(32), zeros(1)
    with pytest.raises(MistakesFound, match="not atomically") as caught:
        cutile_interpreter.launch(None, (4,), sum_without_atomics, (x, out, 8), check=True)
    assert the(caught.value.report, Kind.UPDATE).parameter == "out"
    np.testing.assert_allclose(out, x.sum(), rtol=1e-5)


def test_launch_with_check_leaves_the_arrays_as_a_launch_does():
    x = random(500)
    once, plain = zeros(1), zeros(1)
    cutile_interpreter.launch(None, (63,), sum_atomically, (x, once, 8), check=True)
    cutile_interpreter.launch(None, (63,), sum_atomically, (x, plain, 8))
    assert once == plain


def test_elements_are_named_in_the_arrays_own_coordinates():
    out = zeros(6, 20)[::-2, 2:18].T  # a negative stride, an offset, transposed: (16, 3)

    @ct.kernel
    def kernel(out):
        ct.store(out, (1, 1), ct.full((8, 1), ct.bid(0), ct.float32))

    finding = the(check((2,), kernel, (out,)), Kind.WRITES)
    assert (finding.element, finding.count) == ((8, 1), 8)


def test_arrays_that_share_memory_are_one_memory():
    @ct.kernel
    def shifted(x, out, N: Size):
        ct.store(out, ct.bid(0), ct.load(x, ct.bid(0), N))

    memory = random(40)
    report = check((4,), shifted, (memory[:32], memory[4:36], 8))
    finding = the(report, Kind.READS)
    assert finding.blocks[:2] == ((1, 0, 0), (0, 0, 0))
    assert check((4,), shifted, (random(32), zeros(32), 8))


def test_a_trace_has_every_access():
    x, out = random(5, 6), zeros(6, 5)
    accesses = trace((2, 2), transpose, (x, out, 4, 4))
    assert [(a.kind, a.parameter) for a in accesses] == [("load", "x"), ("store", "out")] * 4
    assert [a.block for a in accesses[::2]] == [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]
    load, store = accesses[2:4]
    assert load.region == ((4, 0), (4, 4)) and store.region == ((0, 4), (4, 4))
    assert load.indices.tolist() == [[4, 0], [4, 1], [4, 2], [4, 3]]
    assert store.indices.tolist() == [[0, 4], [1, 4], [2, 4], [3, 4]]
    assert "ct.transpose" in load.source
    stored = np.concatenate([a.indices for a in accesses[1::2]])
    assert sorted(map(tuple, stored.tolist())) == [(i, j) for i in range(6) for j in range(5)]
    np.testing.assert_array_equal(out, x.T)


def test_a_trace_of_permuted_tiles_and_of_elements():
    x, out = random(5, 6), zeros(6, 5)
    load = trace((2, 2), transpose_by_order, (x, out, 2, 4))[0]
    assert load.region == ((0, 0), (4, 2)) and load.shape == (2, 4)
    atomic = trace((2,), histogram, (np.array([3, 1, 3, 9], np.int32), int32s(4), 2))[3]
    assert (atomic.kind, atomic.region, atomic.indices.tolist()) == ("atomic", None, [[3]])


def test_check_records_accesses_on_request():
    args = (random(30), 8)
    assert check((4,), double_in_place, args).accesses == ()
    assert len(check((4,), double_in_place, args, record=True).accesses) == 8


def test_an_error_of_the_kernel_itself_is_raised():
    @ct.kernel
    def kernel(x):
        ct.load(x, 1, 4, check_bounds=False)

    with pytest.raises(ct.TileValueError, match="check_bounds"):
        check((1,), kernel, (random(6),))


def test_an_empty_grid_has_no_mistakes():
    assert sanitizer.check((0,), double_in_place, (random(30), 8))
