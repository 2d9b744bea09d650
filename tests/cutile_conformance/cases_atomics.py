"""Atomic operations: every operation and dtype, what they return, contention, memory order and scope, locks."""

import cuda.tile as ct
import numpy as np

from .building import ones, small, zeros
from .dtypes import NUMPY, random
from .harness import Case

CASES = []
INTEGERS = ("int32", "int64", "uint32", "uint64")
FLOATS = ("float32", "float64")
HALVES = ("float16", "bfloat16")
OTHERS = ("bool", "int8", "uint8", "int16", "uint16", "float8_e4m3fn", "float8_e5m2")
SUPPORTED = {
    "xchg": INTEGERS + FLOATS,
    "add": INTEGERS + FLOATS + HALVES,
    "max": INTEGERS,
    "min": INTEGERS,
    "and": INTEGERS,
    "or": INTEGERS,
    "xor": INTEGERS,
}
MEANING = {
    "xchg": lambda old, update: update,
    "add": lambda old, update: old + update,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def add(*args, **kwargs):
    CASES.append(Case(*args, **kwargs))


def refuse(name, kernel, args, match="", **kwargs):
    CASES.append(Case(name, kernel, (1,), args, error=ct.TileTypeError, match=match, **kwargs))


OPERATION = {
    "xchg": ct.atomic_xchg,
    "add": ct.atomic_add,
    "max": ct.atomic_max,
    "min": ct.atomic_min,
    "and": ct.atomic_and,
    "or": ct.atomic_or,
    "xor": ct.atomic_xor,
}

# --- each operation on each dtype --------------------------------------------------------------------------------


def indexed(op):
    """Eight distinct elements, two of them outside; what came back from inside goes to `old`."""
    operation = OPERATION[op]

    @ct.kernel
    def kernel(x, index, update, old):
        i = ct.load(index, (0,), (8,))
        before = operation(x, i, ct.load(update, (0,), (8,)))
        ct.scatter(old, ct.arange(8, dtype=ct.int32), before, mask=(i >= 0) & (i < x.shape[0]))

    return kernel


INDEX = np.array([3, 0, -1, 10, 9, 5, 7, 1], np.int32)
INSIDE = (INDEX >= 0) & (INDEX < 10)


def rmw_args(op, dtype):
    def args(rng):
        low, high = (0, 60) if dtype[0] == "u" else (-60, 60)
        x, update = small(rng, dtype, (10,), low, high), small(rng, dtype, (8,), low, high)
        x[3], update[0] = 20, 41  # none of the operations leaves 20 as it is
        if op == "min":
            update[0] = 3
        return [x, INDEX, update, np.full(8, 99).astype(NUMPY[dtype])]

    return args


def rmw_expected(op):
    def expected(x, index, update, old):
        inside = INDEX[INSIDE]
        after, before = x.copy(), old.copy()
        before[INSIDE] = x[inside]
        after[inside] = MEANING[op](x[inside], update[INSIDE])
        return {0: after, 3: before}

    return expected


for op, dtypes in SUPPORTED.items():
    for dtype in dtypes:
        add(f"atomic/{op}-{dtype}", indexed(op), (1,), rmw_args(op, dtype), expected=rmw_expected(op))
    for dtype in [d for d in (*OTHERS, *HALVES, *FLOATS) if d not in dtypes]:
        refuse(f"atomic/{op}_{dtype}_refused", indexed(op), rmw_args(op, dtype), "Unsupported array dtype")


def raw(op):
    """Lane 2 is masked: its element stays, and what comes back for it is not determined."""

    @ct.kernel
    def kernel_xchg(x, y, old):
        i = ct.arange(8, dtype=ct.int32)
        before = x.get_raw_memory().atomic_xchg_offset(i, ct.load(y, (0,), (8,)), mask=i != 2)
        ct.scatter(old, i, before, mask=i != 2)

    @ct.kernel
    def kernel_add(x, y, old):
        i = ct.arange(8, dtype=ct.int32)
        before = x.get_raw_memory().atomic_add_offset(i, ct.load(y, (0,), (8,)), mask=i != 2)
        ct.scatter(old, i, before, mask=i != 2)

    @ct.kernel
    def kernel_max(x, y, old):
        i = ct.arange(8, dtype=ct.int32)
        before = x.get_raw_memory().atomic_max_offset(i, ct.load(y, (0,), (8,)), mask=i != 2)
        ct.scatter(old, i, before, mask=i != 2)

    @ct.kernel
    def kernel_min(x, y, old):
        i = ct.arange(8, dtype=ct.int32)
        before = x.get_raw_memory().atomic_min_offset(i, ct.load(y, (0,), (8,)), mask=i != 2)
        ct.scatter(old, i, before, mask=i != 2)

    @ct.kernel
    def kernel_and(x, y, old):
        i = ct.arange(8, dtype=ct.int32)
        before = x.get_raw_memory().atomic_and_offset(i, ct.load(y, (0,), (8,)), mask=i != 2)
        ct.scatter(old, i, before, mask=i != 2)

    @ct.kernel
    def kernel_or(x, y, old):
        i = ct.arange(8, dtype=ct.int32)
        before = x.get_raw_memory().atomic_or_offset(i, ct.load(y, (0,), (8,)), mask=i != 2)
        ct.scatter(old, i, before, mask=i != 2)

    @ct.kernel
    def kernel_xor(x, y, old):
        i = ct.arange(8, dtype=ct.int32)
        before = x.get_raw_memory().atomic_xor_offset(i, ct.load(y, (0,), (8,)), mask=i != 2)
        ct.scatter(old, i, before, mask=i != 2)

    return locals()[f"kernel_{op}"]


def raw_expected(op):
    def expected(x, y, old):
        lanes = np.arange(8) != 2
        after, before = x.copy(), old.copy()
        after[:8][lanes] = MEANING[op](x[:8], y)[lanes]
        before[lanes] = x[:8][lanes]
        return {0: after, 2: before}

    return expected


@ct.kernel
def raw_returns(x, y, old):
    i = ct.arange(8, dtype=ct.int32)
    memory = x.get_raw_memory()
    ct.store(old, (0,), memory.atomic_add_offset(i, ct.load(y, (0,), (8,))))
    ct.store(old, (1,), memory.atomic_xchg_offset(i, 0))
    ct.store(old, (2,), memory.atomic_max_offset(i, 5))
    ct.store(old, (3,), memory.atomic_min_offset(i, 3))


for op, dtypes in SUPPORTED.items():
    for dtype in dtypes:
        add(
            f"raw_memory/atomic_{op}-{dtype}",
            raw(op),
            (1,),
            lambda rng, op=op, dtype=dtype: [*rmw_args(op, dtype)(rng)[0:3:2], np.full(8, 99).astype(NUMPY[dtype])],
            expected=raw_expected(op),
        )
    refuse(
        f"raw_memory/atomic_{op}_int16_refused",
        raw(op),
        lambda rng: [zeros(10, "int16"), zeros(8, "int16"), zeros(8, "int16")],
        "Unsupported array dtype",
    )
add(
    "raw_memory/atomics_return_what_was_there",
    raw_returns,
    (1,),
    lambda rng: [small(rng, "int32", (10,), 1, 9), small(rng, "int32", (8,), 1, 9), zeros(32)],
    expected=lambda x, y, old: {
        0: np.concatenate([np.full(8, 3), x[8:]]),
        2: np.concatenate([x[:8], x[:8] + y, np.zeros(8, int), np.full(8, 5)]),
    },
)

# --- compare and swap --------------------------------------------------------------------------------------------


@ct.kernel
def cas(x, index, expected, desired, old):
    i = ct.load(index, (0,), (8,))
    before = ct.atomic_cas(x, i, ct.load(expected, (0,), (8,)), ct.load(desired, (0,), (8,)))
    ct.store(old, (0,), before)


def cas_expected(x, index, expected, desired, old):
    after, before = x.copy(), old.copy()
    for lane, i in enumerate(index):
        if not 0 <= i < x.size:
            before[lane] = expected[lane]
            continue
        before[lane] = x[i]
        if x[i] == expected[lane]:
            after[i] = desired[lane]
    return {0: after, 4: before}


def cas_args(dtype):
    def args(rng):
        x = small(rng, dtype, (10,), 0, 1)
        x[3], expected = 1, small(rng, dtype, (8,), 0, 1)
        expected[0] = 1
        return [x, INDEX, expected, small(rng, dtype, (8,), 5, 9), np.full(8, 99).astype(NUMPY[dtype])]

    return args


for dtype in INTEGERS + FLOATS:
    add(f"atomic/cas-{dtype}", cas, (1,), cas_args(dtype), expected=cas_expected)
for dtype in OTHERS + HALVES:
    refuse(f"atomic/cas_{dtype}_refused", cas, cas_args(dtype), "Unsupported array dtype")


@ct.kernel
def cas_scalars(x, old):
    ct.store(old, (0,), ct.atomic_cas(x, 1, 0, 42))
    ct.store(old, (1,), ct.atomic_cas(x, 1, 0, 43))
    ct.store(old, (2,), ct.atomic_cas(x, (1,), 42, 44))
    ct.store(old, (3,), ct.atomic_cas(x, 100, 7, 8))


@ct.kernel
def cas_raw(x, old):
    i = ct.arange(4, dtype=ct.int32)
    memory = x.get_raw_memory()
    ct.store(old, (0,), memory.atomic_cas_offset(i, i % 2, i + 10, mask=i != 3))


@ct.kernel
def cas_2d(x, old):
    i = ct.arange(2, dtype=ct.int32)
    j = ct.arange(4, dtype=ct.int32)
    ct.store(old, (0, 0), ct.atomic_cas(x, (i[:, None], j[None, :]), j % 2, i[:, None] + 10))


add(
    "atomic/cas_of_scalars",
    cas_scalars,
    (1,),
    lambda rng: [zeros(4), zeros(4)],
    expected=lambda x, old: {0: [0, 44, 0, 0], 1: [0, 42, 42, 7]},
)
add(
    "raw_memory/atomic_cas_masked_lane_returns_expected",
    cas_raw,
    (1,),
    lambda rng: [np.array([0, 7, 0, 0], np.int32), zeros(4)],
    expected=lambda x, old: {0: [10, 7, 12, 0], 1: [0, 7, 0, 1]},
)
add(
    "atomic/cas_2d_broadcast",
    cas_2d,
    (1,),
    lambda rng: [np.array([[0, 1, 0, 1], [1, 1, 0, 0], [5, 5, 5, 5]], np.int32), zeros((2, 4))],
    expected=lambda x, old: {0: [[10, 10, 10, 10], [1, 11, 11, 0], [5, 5, 5, 5]], 1: x[:2]},
)

# --- indices, casts and bounds -----------------------------------------------------------------------------------


@ct.kernel
def add_2d(x, y):
    i = ct.arange(2, dtype=ct.int32)
    j = ct.arange(4, dtype=ct.int32)
    ct.atomic_add(x, (i[:, None] + 1, j[None, :]), ct.load(y, (0,), (4,)))


@ct.kernel
def add_scalar(x, y):
    old = ct.atomic_add(x, (ct.bid(0), 1), 5)
    ct.static_assert(old.shape == ())
    ct.store(y, (ct.bid(0),), old)


@ct.kernel
def add_unchecked(x, y):
    i = ct.arange(4, dtype=ct.int32)
    ct.atomic_add(x, (i, i), i, check_bounds=False)


@ct.kernel
def add_column_twice(x, y):
    """Two lanes meet each element: both updates count."""
    i = ct.arange(4, dtype=ct.int32) // 2
    ct.atomic_add(x, (i, 2), ct.load(y, (0,), (4,)))


for name, kernel, grid, expected in (
    ("2d_broadcast", add_2d, (1,), lambda x, y: {0: x + np.array([[0], [1], [1], [0]]) * y}),
    ("scalar_index", add_scalar, (4,), lambda x, y: {0: x + np.array([0, 5, 0, 0]), 1: x[:, 1]}),
    ("unchecked", add_unchecked, (1,), lambda x, y: {0: x + np.diag([0, 1, 2, 3])}),
    (
        "lanes_that_meet",
        add_column_twice,
        (1,),
        lambda x, y: {0: x + np.array([[0, 0, y[0] + y[1], 0], [0, 0, y[2] + y[3], 0], [0] * 4, [0] * 4])},
    ),
):
    add(
        f"atomic/add_{name}",
        kernel,
        grid,
        lambda rng: [small(rng, "int32", (4, 4), 10, 99), small(rng, "int32", (4,), 1, 9)],
        expected=expected,
    )


def update_kernel(op):
    operation = OPERATION[op]

    @ct.kernel
    def kernel(x, y):
        operation(x, ct.arange(8, dtype=ct.int32), ct.load(y, (0,), (8,)))

    return kernel


for source, target in (("float16", "float32"), ("int32", "int64"), ("int8", "int32"), ("int32", "float32")):
    add(
        f"atomic/add_widening_{source}_to_{target}",
        update_kernel("add"),
        (1,),
        lambda rng, source=source, target=target: [small(rng, target, (8,)), small(rng, source, (8,), 1, 9)],
        expected=lambda x, y: {0: x + y.astype(x.dtype)},
    )
for op in ("add", "xchg"):
    for source, target in (("float64", "float32"), ("int64", "int32"), ("float32", "int32"), ("int32", "uint32")):
        refuse(
            f"atomic/{op}_narrowing_{source}_to_{target}_refused",
            update_kernel(op),
            lambda rng, source=source, target=target: [zeros(8, target), zeros(8, source)],
            f"cannot implicitly cast {source} to {target}",
        )
for op in ("and", "or", "xor"):
    for source, target in (("int32", "int64"), ("int32", "uint32"), ("int8", "int32")):
        refuse(
            f"atomic/{op}_of_{source}_with_{target}_refused",
            update_kernel(op),
            lambda rng, source=source, target=target: [zeros(8, target), zeros(8, source)],
            "exactly match",
        )


@ct.kernel
def float_constant_update(x):
    ct.atomic_add(x, 0, 0.5)


@ct.kernel
def large_update(x):
    ct.atomic_add(x, ct.arange(4, dtype=ct.int32), ct.ones((8,), ct.int32))


@ct.kernel
def float_index(x):
    ct.atomic_add(x, ct.arange(4, dtype=ct.float32), 1)


@ct.kernel
def wrong_rank(x):
    ct.atomic_add(x, (0, 0), 1)


@ct.kernel
def masked(x):
    ct.atomic_add(x, 0, 1, mask=True)


@ct.kernel
def cas_large_desired(x):
    ct.atomic_cas(x, ct.arange(4, dtype=ct.int32), 0, ct.ones((8,), ct.int32))


@ct.kernel
def cas_narrowing(x):
    ct.atomic_cas(x, 0, ct.int64(0), 1)


for name, kernel, match in (
    ("float_constant_for_integers", float_constant_update, "cannot implicitly cast 0.5 to int32"),
    ("update_does_not_broadcast", large_update, "broadcast"),
    ("float_index", float_index, "integer"),
    ("wrong_rank", wrong_rank, "rank 1"),
    ("mask", masked, ""),
    ("cas_desired_does_not_broadcast", cas_large_desired, "broadcast"),
    ("cas_narrowing", cas_narrowing, "cannot implicitly cast int64 to int32"),
):
    refuse(f"atomic/{name}_refused", kernel, lambda rng: [zeros(16)], match)

# --- contention --------------------------------------------------------------------------------------------------


@ct.kernel
def count_blocks(counter, seen):
    ticket = ct.atomic_add(counter, 0, 1)
    ct.store(seen, (ticket,), 1)


add(
    "atomic/every_block_gets_its_own_ticket",
    count_blocks,
    (37,),
    lambda rng: [zeros(1), zeros(37)],
    expected=lambda counter, seen: {0: [37], 1: ones(37)},
)


@ct.kernel
def histogram(x, counts):
    value = ct.load(x, (ct.bid(0),), (16,))
    ct.atomic_add(counts, value, 1)


add(
    "atomic/histogram",
    histogram,
    (9,),
    lambda rng: [rng.integers(0, 5, 144).astype(np.int32), zeros(5)],
    expected=lambda x, counts: {1: np.bincount(x, minlength=5)},
)


@ct.kernel
def grid_sum(x, total):
    tile = ct.load(x, (ct.bid(0),), (16,), padding_mode=ct.PaddingMode.ZERO)
    ct.atomic_add(total, 0, ct.sum(tile))


@ct.kernel
def grid_extremes(x, result):
    tile = ct.load(x, (ct.bid(0),), (16,))
    ct.atomic_max(result, 0, ct.max(tile))
    ct.atomic_min(result, 1, ct.min(tile))


for dtype in (*INTEGERS, *FLOATS):
    add(
        f"atomic/sum_over_the_grid-{dtype}",
        grid_sum,
        (8,),
        lambda rng, dtype=dtype: [small(rng, dtype, (123,), 1, 9), zeros(1, dtype)],
        expected=lambda x, total: {1: x.astype(np.float64).sum()},
    )
for dtype in INTEGERS:
    add(
        f"atomic/extremes_over_the_grid-{dtype}",
        grid_extremes,
        (8,),
        lambda rng, dtype=dtype: [random(rng, dtype, (128,)), np.full(2, 5).astype(dtype)],
        expected=lambda x, result: {1: np.array([max(int(x.max()), 5), min(int(x.min()), 5)], x.dtype)},
    )


@ct.kernel
def spin_lock(lock, total):
    """A lock in the way of a mutex: a block that finds it taken tries again."""
    while ct.atomic_cas(lock, 0, 0, 1, memory_order=ct.MemoryOrder.ACQUIRE) == 1:
        pass
    value = ct.load(total, (0,), (4,))
    ct.store(total, (0,), value + 1)
    ct.atomic_xchg(lock, 0, 0, memory_order=ct.MemoryOrder.RELEASE)


add(
    "atomic/spin_lock",
    spin_lock,
    (6,),
    lambda rng: [zeros(1), small(rng, "int32", (4,))],
    expected=lambda lock, total: {1: total + 6},
)


@ct.kernel
def in_block_order(turn, order):
    """Each block waits for the one before it, so the non-commutative update has one result."""
    i = ct.bid(0)
    while ct.atomic_add(turn, 0, 0, memory_order=ct.MemoryOrder.ACQUIRE) != i:
        pass
    value = ct.load(order, (0,), ())
    ct.store(order, (0,), value * 3 + i)
    ct.atomic_add(turn, 0, 1, memory_order=ct.MemoryOrder.RELEASE)


add(
    "atomic/lock_taken_in_block_order",
    in_block_order,
    (5,),
    lambda rng: [zeros(1), ones(1)],
    expected=lambda turn, order: {0: [5], 1: [((((1 * 3 + 0) * 3 + 1) * 3 + 2) * 3 + 3) * 3 + 4]},
)


@ct.kernel
def last_block_finishes(x, partial, counter, total):
    """Blocks leave partial sums; the last to arrive adds them up."""
    i = ct.bid(0)
    ct.store(partial, (i,), ct.sum(ct.load(x, (i,), (8,))))
    arrived = ct.atomic_add(counter, 0, 1)
    if arrived == ct.num_blocks(0) - 1:
        sums = ct.load(partial, (0,), (8,), padding_mode=ct.PaddingMode.ZERO)
        ct.store(total, (0,), ct.sum(sums))


add(
    "atomic/last_block_finishes",
    last_block_finishes,
    (5,),
    lambda rng: [small(rng, "int32", (40,), 1, 9), zeros(5), zeros(1), zeros(1)],
    expected=lambda x, partial, counter, total: {1: x.reshape(5, 8).sum(1), 2: [5], 3: [x.sum()]},
)

# --- memory order and scope --------------------------------------------------------------------------------------

ORDERS = (ct.MemoryOrder.RELAXED, ct.MemoryOrder.ACQUIRE, ct.MemoryOrder.RELEASE, ct.MemoryOrder.ACQ_REL)
SCOPES = (ct.MemoryScope.BLOCK, ct.MemoryScope.DEVICE, ct.MemoryScope.SYS)


def ordered_add(order, scope):
    @ct.kernel
    def kernel(x):
        ct.atomic_add(x, ct.arange(8, dtype=ct.int32), 3, memory_order=order, memory_scope=scope)

    return kernel


def ordered_cas(order, scope):
    @ct.kernel
    def kernel(x):
        ct.atomic_cas(x, ct.arange(8, dtype=ct.int32), 1, 4, memory_order=order, memory_scope=scope)

    return kernel


def ordered_raw(order, scope):
    @ct.kernel
    def kernel(x):
        x.get_raw_memory().atomic_xor_offset(ct.arange(8, dtype=ct.int32), 5, memory_order=order, memory_scope=scope)

    return kernel


for name, make in (("add", ordered_add), ("cas", ordered_cas), ("raw_xor", ordered_raw)):
    for order in ORDERS:
        for scope in SCOPES:
            # 1 + 3, 1 swapped for 4, 1 ^ 5: all 4.
            add(
                f"atomic/{name}_{order.value}_{scope.value}",
                make(order, scope),
                (1,),
                lambda rng: [ones(8)],
                expected=lambda x: {0: np.full(8, 4)},
            )
    for order, scope, match in (
        (ct.MemoryOrder.WEAK, ct.MemoryScope.DEVICE, "Invalid memory order"),
        (ct.MemoryOrder.ACQ_REL, ct.MemoryScope.NONE, "scope"),
        (ct.MemoryOrder.ACQ_REL, ct.MemoryScope.CLUSTER, "Invalid memory scope"),
    ):
        refuse(f"atomic/{name}_{order.value}_{scope.value}_refused", make(order, scope), lambda rng: [ones(8)], match)


@ct.kernel
def order_by_name(x):
    ct.atomic_add(x, 0, 1, memory_order="relaxed")


refuse("atomic/memory_order_by_value_refused", order_by_name, lambda rng: [ones(8)], "MemoryOrder")
