"""gather and scatter, advanced indexing, slices, tiled views, raw memory, foreign pointers and lists of arrays."""

from typing import Annotated

import cuda.tile as ct
import numpy as np

from .building import expanded, ones, padded_tile, small, zeros
from .dtypes import FLOATS, FLOATS8, INTEGERS, random
from .harness import Case

CASES = []
LATENCY = "between 1 and 10"
ALL = ("bool", *INTEGERS, *FLOATS, *FLOATS8)


def add(*args, **kwargs):
    CASES.append(Case(*args, **kwargs))


def refuse(name, kernel, args, match="", error=ct.TileTypeError, **kwargs):
    CASES.append(Case(name, kernel, (1,), args, error=error, match=match, **kwargs))


# --- gather ------------------------------------------------------------------------------------------------------


def gathered(x, *indices, padding=0, mask=True):
    """The documented meaning of ct.gather, element by element; an index outside the array is padded."""
    indices = np.broadcast_arrays(*[np.asarray(i).astype(object) for i in indices])
    result = np.empty(indices[0].shape, x.dtype)
    mask, padding = np.broadcast_to(mask, result.shape), np.broadcast_to(padding, result.shape)
    for position in np.ndindex(*result.shape):
        where = tuple(int(i[position]) for i in indices)
        inside = all(0 <= w < n for w, n in zip(where, x.shape, strict=True))
        result[position] = x[where] if inside and mask[position] else padding[position]
    return result


@ct.kernel
def gather_1d(x, index, y):
    ct.store(y, (0,), ct.gather(x, ct.load(index, (0,), (8,))))


INDICES = np.array([3, 0, -1, 10, 9, 3, 11, -10], np.int32)
for dtype in ALL:
    add(
        f"gather/1d-{dtype}",
        gather_1d,
        (1,),
        lambda rng, dtype=dtype: [
            random(rng, dtype, (10,)) if dtype != "bool" else ones(10, "bool"),
            INDICES,
            ones(8, dtype),
        ],
        expected=lambda x, index, y: {2: gathered(x, index)},
    )
for dtype in INTEGERS:
    add(
        f"gather/index_dtype-{dtype}",
        gather_1d,
        (1,),
        lambda rng, dtype=dtype: [
            random(rng, "float32", (10,)),
            np.array([3, 0, 127, 10, 9, 3, 11, 1]).astype(dtype),
            ones(8, "float32"),
        ],
        expected=lambda x, index, y: {2: gathered(x, index)},
    )


@ct.kernel
def gather_tuple_of_one(x, index, y):
    ct.store(y, (0,), ct.gather(x, (ct.load(index, (0,), (8,)),)))


@ct.kernel
def gather_scalar_index(x, index, y):
    ct.store(y, (0,), ct.gather(x, 3))
    ct.store(y, (1,), ct.gather(x, (-1,), padding_value=7))
    ct.store(y, (2,), ct.gather(x, ct.load(index, (0,), ())))
    ct.store(y, (3,), ct.gather(x, x.shape[0], padding_value=9))


@ct.kernel
def gather_2d_index(x, index, y):
    ct.store(y, (0, 0), ct.gather(x, ct.reshape(ct.load(index, (0,), (8,)), (2, 4))))


@ct.kernel
def gather_unchecked(x, index, y):
    ct.store(y, (0,), ct.gather(x, ct.arange(8, dtype=ct.int32) + 1, check_bounds=False, latency=3))


add(
    "gather/tuple_of_one_index",
    gather_tuple_of_one,
    (1,),
    lambda rng: [random(rng, "int32", (10,)), INDICES, ones(8)],
    expected=lambda x, index, y: {2: gathered(x, index)},
)
add(
    "gather/scalar_index",
    gather_scalar_index,
    (1,),
    lambda rng: [random(rng, "int32", (10,)), INDICES + 2, zeros(4)],
    expected=lambda x, index, y: {2: [x[3], 7, x[5], 9]},
)
add(
    "gather/shape_is_that_of_the_index",
    gather_2d_index,
    (1,),
    lambda rng: [random(rng, "int32", (10,)), INDICES, ones((2, 4))],
    expected=lambda x, index, y: {2: gathered(x, index.reshape(2, 4))},
)
add(
    "gather/unchecked",
    gather_unchecked,
    (1,),
    lambda rng: [random(rng, "int32", (10,)), INDICES, ones(8)],
    expected=lambda x, index, y: {2: x[1:9]},
)


@ct.kernel
def gather_rank_0(x, y):
    ct.store(y, (0,), ct.gather(x, ()) + 1)


add(
    "gather/rank_0_array",
    gather_rank_0,
    (1,),
    lambda rng: [np.array(41, np.int32), zeros(1)],
    expected=lambda x, y: {1: [42]},
)


@ct.kernel
def gather_2d(x, rows, columns, y):
    i = ct.load(rows, (0,), (4,))
    j = ct.load(columns, (0,), (8,))
    ct.store(y, (0, 0), ct.gather(x, (i[:, None], j[None, :])))


@ct.kernel
def gather_row(x, rows, columns, y):
    j = ct.load(columns, (0,), (8,))
    ct.store(y, (0, 0), ct.reshape(ct.gather(x, (2, j)), (1, 8)))
    ct.store(y, (1, 0), ct.reshape(ct.gather(x, (ct.load(rows, (3,), ()), j)), (1, 8)))


@ct.kernel
def gather_3d(x, y):
    a = ct.reshape(ct.arange(2, dtype=ct.int32), (2, 1, 1))
    b = ct.reshape(ct.arange(4, dtype=ct.int32), (4, 1)) - 1
    c = ct.arange(8, dtype=ct.int32)
    ct.store(y, (0, 0, 0), ct.gather(x, (a, b, c), padding_value=-5))


ROWS, COLUMNS = np.array([2, -1, 6, 4], np.int32), np.array([0, 5, 4, -3, 1, 1, 8, 3], np.int32)
for dtype in ("int64", "float16", "bool", "bfloat16"):
    add(
        f"gather/2d_broadcast-{dtype}",
        gather_2d,
        (1,),
        lambda rng, dtype=dtype: [random(rng, dtype, (6, 5)), ROWS, COLUMNS, ones((4, 8), dtype)],
        expected=lambda x, i, j, y: {3: gathered(x, i[:, None], j)},
    )
add(
    "gather/scalar_and_tile_indices",
    gather_row,
    (1,),
    lambda rng: [random(rng, "int32", (6, 5)), ROWS, COLUMNS, ones((2, 8))],
    expected=lambda x, i, j, y: {3: np.stack([gathered(x, 2, j), gathered(x, i[3], j)])},
)
add(
    "gather/3d_broadcast",
    gather_3d,
    (1,),
    lambda rng: [random(rng, "int32", (2, 3, 7)), ones((2, 4, 8))],
    expected=lambda x, y: {
        1: gathered(x, np.arange(2)[:, None, None], np.arange(-1, 3)[:, None], np.arange(8), padding=-5)
    },
)
for name, shape, view in (
    ("transposed", (5, 6), lambda a: a.T),
    ("every_other_column", (6, 10), lambda a: a[:, ::2]),
    ("expanded_rows", (5,), lambda a: expanded(a, (6, 5))),
):
    add(
        f"gather/2d_{name}",
        gather_2d,
        (1,),
        lambda rng, shape=shape: [random(rng, "int32", shape), ROWS, COLUMNS, ones((4, 8))],
        expected=lambda x, i, j, y, view=view: {3: gathered(view(x), i[:, None], j)},
        views=lambda x, i, j, y, view=view: (view(x), i, j, y),
    )


@ct.kernel
def gather_padding_value(x, index, y, value):
    ct.store(y, (0,), ct.gather(x, ct.load(index, (0,), (8,)), padding_value=value))


@ct.kernel
def gather_padding_tile(x, index, y):
    i = ct.load(index, (0,), (8,))
    ct.store(y, (0,), ct.gather(x, i, padding_value=ct.arange(8, dtype=ct.int32) * 100))


@ct.kernel
def gather_padding_broadcast(x, y):
    i = ct.arange(2, dtype=ct.int32) * 8
    j = ct.arange(4, dtype=ct.int32)
    ct.store(y, (0, 0), ct.gather(x, (i[:, None] + j[None, :],), padding_value=j + 50))


add(
    "gather/padding_value",
    gather_padding_value,
    (1,),
    lambda rng: [random(rng, "int32", (10,)), INDICES, ones(8), -7],
    expected=lambda x, index, y, value: {2: gathered(x, index, padding=-7)},
)
add(
    "gather/padding_value_widens",
    gather_padding_value,
    (1,),
    lambda rng: [random(rng, "float64", (10,)), INDICES, ones(8, "float64"), 0.5],
    expected=lambda x, index, y, value: {2: gathered(x, index, padding=0.5)},
)
add(
    "gather/padding_tile",
    gather_padding_tile,
    (1,),
    lambda rng: [random(rng, "int32", (10,)), INDICES, ones(8)],
    expected=lambda x, index, y: {2: gathered(x, index, padding=np.arange(8) * 100)},
)
add(
    "gather/padding_is_broadcast",
    gather_padding_broadcast,
    (1,),
    lambda rng: [random(rng, "int32", (10,)), ones((2, 4))],
    expected=lambda x, y: {1: gathered(x, np.array([[0], [8]]) + np.arange(4), padding=np.arange(4) + 50)},
)


@ct.kernel
def gather_mask(x, index, mask, y):
    i, m = ct.load(index, (0,), (8,)), ct.load(mask, (0,), (8,))
    ct.store(y, (0,), ct.gather(x, i, mask=m, padding_value=-1))


@ct.kernel
def gather_mask_only(x, index, mask, y):
    i, m = ct.arange(8, dtype=ct.int32), ct.load(mask, (0,), (8,))
    ct.store(y, (0,), ct.gather(x, i, mask=m, padding_value=-1, check_bounds=False))


@ct.kernel
def gather_scalar_mask(x, index, mask, y):
    i = ct.load(index, (0,), (8,))
    ct.store(y, (0,), ct.gather(x, i, mask=False, padding_value=3))


@ct.kernel
def gather_computed_mask(x, index, mask, y):
    i = ct.load(index, (0,), (8,))
    ct.store(y, (0,), ct.gather(x, i, mask=i > 4, padding_value=-1))


MASK = np.array([True, False, True, True, False, True, False, True])


def masked_case(name, kernel, index, mask, padding):
    add(
        f"gather/{name}",
        kernel,
        (1,),
        lambda rng: [random(rng, "int32", (10,)), INDICES, MASK, zeros(8)],
        expected=lambda x, i, m, y: {3: gathered(x, index, mask=mask, padding=padding)},
    )


masked_case("mask_and_bounds", gather_mask, INDICES, MASK, -1)
masked_case("mask_without_bounds", gather_mask_only, np.arange(8), MASK, -1)
masked_case("scalar_mask", gather_scalar_mask, INDICES, False, 3)
masked_case("computed_mask", gather_computed_mask, INDICES, INDICES > 4, -1)

# --- scatter -----------------------------------------------------------------------------------------------------


def scattered(y, indices, value, mask=True):
    """The documented meaning of ct.scatter for indices that meet each element once."""
    result = y.copy()
    indices = np.broadcast_arrays(*[np.asarray(i).astype(object) for i in indices])
    value, mask = np.broadcast_to(value, indices[0].shape), np.broadcast_to(mask, indices[0].shape)
    for position in np.ndindex(*indices[0].shape):
        where = tuple(int(i[position]) for i in indices)
        if mask[position] and all(0 <= w < n for w, n in zip(where, y.shape, strict=True)):
            result[where] = value[position]
    return result


@ct.kernel
def scatter_1d(x, index, y):
    ct.scatter(y, ct.load(index, (0,), (8,)), ct.load(x, (0,), (8,)))


DISTINCT = np.array([3, 0, -1, 10, 9, 5, 11, -10], np.int32)
for dtype in ALL:
    add(
        f"scatter/1d-{dtype}",
        scatter_1d,
        (1,),
        lambda rng, dtype=dtype: [
            zeros(8, "bool") if dtype == "bool" else random(rng, dtype, (8,)),
            DISTINCT,
            ones(10, dtype),
        ],
        expected=lambda x, index, y: {2: scattered(y, (index,), x)},
    )


@ct.kernel
def scatter_constant(x, index, y):
    ct.scatter(y, (ct.load(index, (0,), (8,)),), 5)


@ct.kernel
def scatter_scalar(x, index, y):
    ct.scatter(y, 2, 5)
    ct.scatter(y, y.shape[0], 6)
    ct.scatter(y, (-1,), 7)


@ct.kernel
def scatter_mask(x, index, y):
    i = ct.load(index, (0,), (8,))
    ct.scatter(y, i, ct.load(x, (0,), (8,)), mask=i != 9)


@ct.kernel
def scatter_unchecked(x, index, y):
    i = ct.arange(8, dtype=ct.int32)
    ct.scatter(y, i + 2, ct.load(x, (0,), (8,)), mask=i > 2, check_bounds=False, latency=2)


for name, kernel, expected in [
    ("constant", scatter_constant, lambda x, index, y: scattered(y, (index,), 5)),
    ("scalar_index", scatter_scalar, lambda x, index, y: scattered(y, (2,), 5)),
    ("mask_and_bounds", scatter_mask, lambda x, index, y: scattered(y, (index,), x, index != 9)),
    ("mask_without_bounds", scatter_unchecked, lambda x, index, y: np.concatenate([y[:5], x[3:]])),
]:
    add(
        f"scatter/{name}",
        kernel,
        (1,),
        lambda rng: [random(rng, "int32", (8,)), DISTINCT, zeros(10)],
        expected=lambda x, index, y, expected=expected: {2: expected(x, index, y)},
    )


@ct.kernel
def scatter_2d(x, rows, columns, y):
    i = ct.load(rows, (0,), (4,))
    j = ct.load(columns, (0,), (8,))
    ct.scatter(y, (i[:, None], j[None, :]), ct.load(x, (0, 0), (4, 8)))


@ct.kernel
def scatter_2d_broadcast(x, rows, columns, y):
    i = ct.load(rows, (0,), (4,))
    j = ct.load(columns, (0,), (8,))
    ct.scatter(y, (i[:, None], j[None, :]), ct.extract(ct.load(x, (0, 0), (4, 8)), (1, 0), (1, 8)))


DISTINCT_COLUMNS = np.array([0, 5, 4, -3, 1, 2, 8, 3], np.int32)
for name, kernel, value in (
    ("2d", scatter_2d, lambda x: x),
    ("2d_value_is_broadcast", scatter_2d_broadcast, lambda x: x[1:2]),
):
    add(
        f"scatter/{name}",
        kernel,
        (1,),
        lambda rng: [random(rng, "int32", (4, 8)), ROWS, DISTINCT_COLUMNS, zeros((6, 5))],
        expected=lambda x, i, j, y, value=value: {3: scattered(y, (i[:, None], j), value(x))},
    )
add(
    "scatter/2d_transposed",
    scatter_2d,
    (1,),
    lambda rng: [random(rng, "int32", (4, 8)), ROWS, DISTINCT_COLUMNS, zeros((5, 6))],
    expected=lambda x, i, j, y: {3: scattered(y.T, (i[:, None], j), x).T},
    views=lambda x, i, j, y: (x, i, j, y.T),
)


@ct.kernel
def copy_by_elements(x, y):
    i = ct.bid(0) * 8 + ct.arange(8, dtype=ct.int32)
    ct.scatter(y, i, ct.gather(x, i))


@ct.kernel
def copy_by_elements_int64(x: ct.IndexedWithInt64, y: ct.IndexedWithInt64):
    i = ct.bid(0) * 8 + ct.arange(8, dtype=ct.int64)
    ct.scatter(y, i, ct.gather(x, i))


@ct.kernel
def reverse(x, y):
    i = ct.bid(0) * 8 + ct.arange(8, dtype=ct.int32)
    ct.scatter(y, x.shape[0] - 1 - i, ct.gather(x, i))


for name, kernel, expected in (
    ("copy", copy_by_elements, lambda x: x),
    ("copy_int64", copy_by_elements_int64, lambda x: x),
    ("reverse", reverse, lambda x: x[::-1]),
):
    add(
        f"scatter/{name}_of_a_ragged_array",
        kernel,
        (4,),
        lambda rng: [random(rng, "float32", (27,)), zeros(27, "float32")],
        expected=lambda x, y, expected=expected: {1: expected(x)},
    )


@ct.kernel
def scatter_widening(x, y):
    ct.scatter(y, ct.arange(8, dtype=ct.int32), ct.load(x, (0,), (8,)))


for source, target in (("int8", "int32"), ("float16", "float32"), ("int32", "float64"), ("bool", "uint8")):
    add(
        f"scatter/widening_{source}_to_{target}",
        scatter_widening,
        (1,),
        lambda rng, source=source, target=target: [random(rng, source, (8,)), np.full(8, 99).astype(target)],
        expected=lambda x, y: {1: x.astype(y.dtype)},
    )
for source, target in (("float32", "float16"), ("int64", "int32"), ("float32", "int32"), ("int8", "uint8")):
    refuse(
        f"scatter/refused_{source}_to_{target}",
        scatter_widening,
        lambda rng, source=source, target=target: [random(rng, source, (8,)), zeros(8, target)],
        f"cannot implicitly cast {source} to {target}",
    )

# --- what gather and scatter refuse ------------------------------------------------------------------------------


def array_4x4(rng):
    return [zeros((4, 4), "float32")]


def array_16(rng):
    return [zeros(16, "float32")]


@ct.kernel
def gather_one_index_for_2d(x):
    ct.gather(x, ct.arange(4, dtype=ct.int32))


@ct.kernel
def gather_two_indices_for_1d(x):
    ct.gather(x, (ct.arange(4, dtype=ct.int32), 0))


@ct.kernel
def gather_float_index(x):
    ct.gather(x, ct.arange(4, dtype=ct.float32))


@ct.kernel
def gather_bool_index(x):
    ct.gather(x, ct.arange(4, dtype=ct.int32) > 1)


@ct.kernel
def gather_indices_do_not_broadcast(x):
    ct.gather(x, (ct.arange(4, dtype=ct.int32), ct.arange(8, dtype=ct.int32)))


@ct.kernel
def gather_integer_mask(x):
    ct.gather(x, ct.arange(4, dtype=ct.int32), mask=ct.arange(4, dtype=ct.int32))


@ct.kernel
def gather_mask_does_not_broadcast(x):
    ct.gather(x, ct.arange(4, dtype=ct.int32), mask=ct.arange(8, dtype=ct.int32) > 3)


@ct.kernel
def gather_padding_does_not_broadcast(x):
    ct.gather(x, ct.arange(4, dtype=ct.int32), padding_value=ct.zeros((8,), ct.float32))


@ct.kernel
def gather_check_bounds_not_bool(x):
    ct.gather(x, ct.arange(4, dtype=ct.int32), check_bounds=1)


@ct.kernel
def scatter_one_index_for_2d(x):
    ct.scatter(x, ct.arange(4, dtype=ct.int32), 0)


@ct.kernel
def scatter_float_index(x):
    ct.scatter(x, ct.arange(4, dtype=ct.float32), 0)


@ct.kernel
def scatter_value_does_not_broadcast(x):
    ct.scatter(x, ct.arange(4, dtype=ct.int32), ct.arange(8, dtype=ct.int32))


@ct.kernel
def scatter_value_larger_than_index(x):
    ct.scatter(x, 0, ct.arange(8, dtype=ct.int32))


@ct.kernel
def scatter_integer_mask(x):
    ct.scatter(x, ct.arange(4, dtype=ct.int32), 0, mask=ct.arange(4, dtype=ct.int32))


def gather_with(padding=0, latency=None):
    @ct.kernel
    def kernel(x):
        ct.gather(x, ct.arange(4, dtype=ct.int32), padding_value=padding, latency=latency)

    return kernel


def scatter_with(value=0, latency=None):
    @ct.kernel
    def kernel(x):
        ct.scatter(x, ct.arange(4, dtype=ct.int32), value, latency=latency)

    return kernel


for name, kernel, args, match in [
    ("gather/one_index_for_2d", gather_one_index_for_2d, array_4x4, "rank 2"),
    ("gather/two_indices_for_1d", gather_two_indices_for_1d, array_16, "rank 1"),
    ("gather/float_index", gather_float_index, array_16, "integer"),
    ("gather/bool_index", gather_bool_index, array_16, "integer"),
    ("gather/indices_do_not_broadcast", gather_indices_do_not_broadcast, array_4x4, "broadcast"),
    ("gather/integer_mask", gather_integer_mask, array_16, "boolean"),
    ("gather/mask_does_not_broadcast", gather_mask_does_not_broadcast, array_16, "broadcast"),
    ("gather/padding_does_not_broadcast", gather_padding_does_not_broadcast, array_16, "broadcast"),
    ("gather/check_bounds_not_bool", gather_check_bounds_not_bool, array_16, ""),
    ("scatter/one_index_for_2d", scatter_one_index_for_2d, array_4x4, "rank 2"),
    ("scatter/float_index", scatter_float_index, array_16, "integer"),
    ("scatter/value_does_not_broadcast", scatter_value_does_not_broadcast, array_16, "broadcast"),
    ("scatter/value_larger_than_index", scatter_value_larger_than_index, array_16, "broadcast"),
    ("scatter/integer_mask", scatter_integer_mask, array_16, "boolean"),
    ("gather/float_padding_for_integers", gather_with(0.5), lambda rng: [zeros(16)], "cannot implicitly cast 0.5"),
    ("scatter/float_value_for_integers", scatter_with(0.5), lambda rng: [zeros(16)], "cannot implicitly cast 0.5"),
]:
    refuse(f"{name}_refused", kernel, args, match)
for latency in (0, 11):
    refuse(f"gather/latency_{latency}_refused", gather_with(latency=latency), array_16, LATENCY, ct.TileValueError)
    refuse(f"scatter/latency_{latency}_refused", scatter_with(latency=latency), array_16, LATENCY, ct.TileValueError)
for name, kernel in (("gather/padding", gather_with(300)), ("scatter/value", scatter_with(300))):
    refuse(f"{name}_out_of_range_refused", kernel, lambda rng: [zeros(16, "int8")], "out of range", ct.TileValueError)

# --- advanced indexing -------------------------------------------------------------------------------------------


def advanced(x, indices, shape, padding=0.0):
    """Rows chosen by a list, and runs [start, start + length), of an array; outside it the padding."""
    result = np.full(shape, padding).astype(x.dtype)
    for position in np.ndindex(*shape):
        where = tuple(int(i[p]) if isinstance(i, np.ndarray) else i + p for i, p in zip(indices, position, strict=True))
        if all(0 <= w < n for w, n in zip(where, x.shape, strict=True)):
            result[position] = x[where]
    return result


@ct.kernel
def advanced_rows(x, index, y, start):
    i = ct.load(index, (0,), (4,))
    tile = ct.load_advanced_indexing(x, (i, ct.Slice(start, 8)), padding_mode=ct.PaddingMode.ZERO)
    ct.store(y, (0, 0), tile)


@ct.kernel
def advanced_columns(x, index, y, start):
    i = ct.load(index, (0,), (4,))
    tile = ct.load_advanced_indexing(x, (ct.Slice(start, 8), i), padding_mode=ct.PaddingMode.ZERO)
    ct.store(y, (0, 0), tile)


CHOSEN = np.array([5, 0, 2, 5], np.int32)
for dtype in ("int8", "int32", "int64", "float16", "bfloat16", "float32"):
    add(
        f"advanced_indexing/load_rows-{dtype}",
        advanced_rows,
        (1,),
        lambda rng, dtype=dtype: [random(rng, dtype, (6, 16)), CHOSEN, zeros((4, 8), dtype), 3],
        expected=lambda x, i, y, start: {2: advanced(x, (i, start), (4, 8))},
    )
add(
    "advanced_indexing/load_rows_past_the_end",
    advanced_rows,
    (1,),
    lambda rng: [random(rng, "float32", (6, 16)), np.array([5, 6, 2, 9], np.int32), ones((4, 8), "float32"), 12],
    expected=lambda x, i, y, start: {2: advanced(x, (i, start), (4, 8))},
)


@ct.kernel
def advanced_padding_nan(x, index, y, start):
    i = ct.load(index, (0,), (4,))
    ct.store(
        y, (0, 0), ct.load_advanced_indexing(x, (i, ct.Slice(start, 8)), padding_mode=ct.PaddingMode.NAN, latency=4)
    )


add(
    "advanced_indexing/padding_nan",
    advanced_padding_nan,
    (1,),
    lambda rng: [random(rng, "float32", (6, 16)), np.array([5, 6, 2, 0], np.int32), ones((4, 8), "float32"), 12],
    expected=lambda x, i, y, start: {2: advanced(x, (i, start), (4, 8), np.nan)},
)


@ct.kernel
def advanced_3d(x, index, y):
    i = ct.load(index, (0,), (4,))
    tile = ct.load_advanced_indexing(x, (ct.Slice(1, 2), i, ct.Slice(4, 4)), padding_mode=ct.PaddingMode.ZERO)
    ct.store(y, (0, 0, 0), tile)


add(
    "advanced_indexing/load_3d",
    advanced_3d,
    (1,),
    lambda rng: [random(rng, "float32", (3, 6, 8)), CHOSEN, zeros((2, 4, 4), "float32")],
    expected=lambda x, i, y: {2: x[1:3, i, 4:8]},
)


@ct.kernel
def advanced_store(x, index, y, start):
    i = ct.load(index, (0,), (4,))
    ct.store_advanced_indexing(y, (i, ct.Slice(start, 8)), ct.load(x, (0, 0), (4, 8)))


@ct.kernel
def advanced_store_hints(x, index, y, start):
    i = ct.load(index, (0,), (4,))
    ct.store_advanced_indexing(y, (i, ct.Slice(start, 8)), ct.load(x, (0, 0), (4, 8)), latency=2, allow_tma=False)


def advanced_stored(x, i, y, start):
    result = y.copy()
    for row, target in enumerate(i):
        for column in range(8):
            if target < y.shape[0] and start + column < y.shape[1]:
                result[target, start + column] = x[row, column]
    return {2: result}


for name, kernel, rows, start in (
    ("store_rows", advanced_store, [3, 0, 5, 1], 4),
    ("store_rows_past_the_end", advanced_store, [3, 6, 5, 9], 12),
    ("store_rows_with_hints", advanced_store_hints, [3, 0, 5, 1], 0),
):
    add(
        f"advanced_indexing/{name}",
        kernel,
        (1,),
        lambda rng, rows=rows, start=start: [
            random(rng, "float32", (4, 8)),
            np.array(rows, np.int32),
            zeros((6, 16), "float32"),
            start,
        ],
        expected=advanced_stored,
    )


@ct.kernel
def advanced_no_sparse_dimension(x):
    ct.load_advanced_indexing(x, (ct.Slice(0, 4), ct.Slice(0, 4)))


@ct.kernel
def advanced_two_sparse_dimensions(x):
    ct.load_advanced_indexing(x, (ct.arange(4, dtype=ct.int32), ct.arange(4, dtype=ct.int32)))


@ct.kernel
def advanced_scalar_index(x):
    ct.load_advanced_indexing(x, (ct.arange(4, dtype=ct.int32), 0))


@ct.kernel
def advanced_2d_index(x):
    ct.load_advanced_indexing(x, (ct.zeros((4, 1), ct.int32), ct.Slice(0, 4)))


@ct.kernel
def advanced_float_index(x):
    ct.load_advanced_indexing(x, (ct.arange(4, dtype=ct.float32), ct.Slice(0, 4)))


@ct.kernel
def advanced_too_few_indices(x):
    ct.load_advanced_indexing(x, (ct.arange(4, dtype=ct.int32),))


def advanced_with(start=0, length=4, latency=None):
    @ct.kernel
    def kernel(x):
        ct.load_advanced_indexing(x, (ct.arange(4, dtype=ct.int32), ct.Slice(start, length)), latency=latency)

    return kernel


@ct.kernel
def advanced_wrong_tile(x):
    ct.store_advanced_indexing(x, (ct.arange(4, dtype=ct.int32), ct.Slice(0, 4)), ct.zeros((4, 8), ct.float32))


@ct.kernel
def advanced_scalar_tile(x):
    ct.store_advanced_indexing(x, (ct.arange(4, dtype=ct.int32), ct.Slice(0, 4)), 0.0)


@ct.kernel
def advanced_narrowing(x):
    ct.store_advanced_indexing(x, (ct.arange(4, dtype=ct.int32), ct.Slice(0, 4)), ct.zeros((4, 4), ct.float64))


@ct.kernel
def advanced_run_time_length(x):
    ct.load_advanced_indexing(x, (ct.arange(4, dtype=ct.int32), ct.Slice(0, x.shape[0])))


for name, kernel, args, match in [
    ("no_sparse_dimension", advanced_no_sparse_dimension, array_4x4, "exactly one"),
    ("two_sparse_dimensions", advanced_two_sparse_dimensions, array_4x4, "exactly one"),
    ("scalar_index", advanced_scalar_index, array_4x4, "1D"),
    ("2d_index", advanced_2d_index, array_4x4, "1D"),
    ("float_index", advanced_float_index, array_4x4, "integer"),
    ("too_few_indices", advanced_too_few_indices, array_4x4, "rank 2"),
    ("1d_array", advanced_too_few_indices, array_16, "gather"),
    ("length_not_a_power_of_two", advanced_with(length=3), array_4x4, "power of two"),
    ("length_zero", advanced_with(length=0), array_4x4, "positive"),
    ("run_time_length", advanced_run_time_length, array_4x4, "compile-time constant"),
    ("float_start", advanced_with(start=0.5), array_4x4, "integer"),
    ("tile_of_another_shape", advanced_wrong_tile, array_4x4, "does not match"),
    ("scalar_for_a_tile", advanced_scalar_tile, array_4x4, "does not match"),
    ("narrowing", advanced_narrowing, array_4x4, "float64 to float32"),
]:
    refuse(f"advanced_indexing/{name}_refused", kernel, args, match)
refuse("advanced_indexing/latency_0_refused", advanced_with(latency=0), array_4x4, LATENCY, ct.TileValueError)

# --- Array.slice -------------------------------------------------------------------------------------------------


@ct.kernel
def slice_constant(x, y):
    part = x.slice(axis=0, start=1, stop=4)
    ct.store(y, (0, 0), ct.load(part, (0, 0), (4, 4), padding_mode=ct.PaddingMode.ZERO))


@ct.kernel
def slice_last_axis(x, y):
    part = x.slice(-1, 2, 5)
    ct.store(y, (0, 0), ct.load(part, (1, 0), (4, 4), padding_mode=ct.PaddingMode.ZERO))


@ct.kernel
def slice_twice(x, y):
    part = x.slice(0, 1, 5).slice(1, 3, 6)
    ct.store(y, (0, 0), ct.load(part, (0, 0), (4, 4), padding_mode=ct.PaddingMode.ZERO))


@ct.kernel
def slice_of_slice(x, y):
    part = x.slice(0, 1, 5).slice(0, 2, 4)
    ct.store(y, (0, 0), ct.load(part, (0, 0), (4, 4), padding_mode=ct.PaddingMode.ZERO))


for name, kernel, expected in (
    ("rows", slice_constant, lambda x: padded_tile(x[1:4], (0, 0), (4, 4))),
    ("columns_by_negative_axis", slice_last_axis, lambda x: padded_tile(x[:, 2:5], (1, 0), (4, 4))),
    ("rows_then_columns", slice_twice, lambda x: padded_tile(x[1:5, 3:6], (0, 0), (4, 4))),
    ("slice_of_a_slice", slice_of_slice, lambda x: padded_tile(x[3:5], (0, 0), (4, 4))),
):
    add(
        f"slice/{name}",
        kernel,
        (1,),
        lambda rng: [random(rng, "int32", (6, 7)), ones((4, 4))],
        expected=lambda x, y, expected=expected: {1: expected(x)},
    )
    add(
        f"slice/{name}_of_a_transposed_array",
        kernel,
        (1,),
        lambda rng: [random(rng, "int32", (7, 6)), ones((4, 4))],
        expected=lambda x, y, expected=expected: {1: expected(x.T)},
        views=lambda x, y: (x.T, y),
    )


@ct.kernel
def slice_run_time(x, starts, y):
    """Each block copies one ragged segment, as in a jagged batch."""
    i = ct.bid(0)
    start = ct.load(starts, (i,), ())
    stop = ct.load(starts, (i + 1,), ())
    part = x.slice(0, start, stop)
    target = y.slice(0, start, stop)
    for j in range(ct.num_tiles(part, 0, (4,))):
        tile = ct.load(part, (j,), (4,), padding_mode=ct.PaddingMode.ZERO)
        ct.store(target, (j,), tile * (i + 1))


add(
    "slice/run_time_segments",
    slice_run_time,
    (4,),
    lambda rng: [small(rng, "int32", (19,), 1, 9), np.array([0, 5, 5, 12, 19], np.int32), zeros(19)],
    expected=lambda x, starts, y: {2: x * np.repeat([1, 2, 3, 4], np.diff(starts)).astype(np.int32)},
)


@ct.kernel
def slice_shape_static(x, y):
    part = x.slice(0, 2, 6)
    ct.static_assert(part.ndim == 2)
    ct.static_assert(part.dtype == x.dtype)
    ct.store(y, (0, 0), ct.load(part, (0, 0), (part.shape[0], 4)))


@ct.kernel
def slice_shape_run_time(x, y):
    n = ct.bid(0) + 3
    part = x.slice(1, n, x.shape[1])
    ct.store(y, (0, 0), part.shape[1])
    ct.store(y, (0, 1), part.shape[0])
    ct.store(y, (0, 2), part.strides[0])


@ct.kernel
def slice_bounds_gather(x, y):
    part = x.slice(0, 1, 3)
    i = ct.arange(4, dtype=ct.int32)
    ct.store(y, (0, 0), ct.gather(part, (i[:, None], i[None, :]), padding_value=-9))


@ct.kernel
def slice_bounds_scatter(x, y):
    part = y.slice(0, 1, 3)
    i = ct.arange(4, dtype=ct.int32)
    ct.scatter(part, (i[:, None], i[None, :]), 8)


for name, kernel, expected in (
    ("constant_bounds_give_a_constant_extent", slice_shape_static, lambda x, y: x[2:6, :4]),
    ("extent_and_strides", slice_shape_run_time, lambda x, y: np.vstack([[[4, 6, 7, 1]], y[1:]])),
    (
        "bounds_of_gather",
        slice_bounds_gather,
        lambda x, y: gathered(x[1:3], np.arange(4)[:, None], np.arange(4), padding=-9),
    ),
    ("bounds_of_scatter", slice_bounds_scatter, lambda x, y: np.vstack([y[:1], y[1:3] * 8, y[3:]])),
):
    add(
        f"slice/{name}",
        kernel,
        (1,),
        lambda rng: [random(rng, "int32", (6, 7)), ones((4, 4))],
        expected=lambda x, y, expected=expected: {1: expected(x, y)},
    )


def bad_slice(axis, start, stop):
    @ct.kernel
    def kernel(x):
        x.slice(axis, start, stop)

    return kernel


@ct.kernel
def slice_run_time_axis(x):
    x.slice(ct.bid(0), 0, 1)


for name, kernel, match in [
    ("axis_out_of_range", bad_slice(2, 0, 1), "out of range"),
    ("negative_start", bad_slice(0, -1, 1), "non-negative"),
    ("negative_stop", bad_slice(0, 0, -1), "non-negative"),
    ("stop_before_start", bad_slice(0, 2, 1), "greater than or equal"),
    ("float_start", bad_slice(0, 0.0, 1), "integer"),
    ("run_time_axis", slice_run_time_axis, "constant"),
]:
    refuse(f"slice/{name}_refused", kernel, array_4x4, match)

# --- tiled views -------------------------------------------------------------------------------------------------


def view_tiles(shape, index, mode=ct.PaddingMode.ZERO, steps=None):
    @ct.kernel
    def kernel(x, y):
        view = x.tiled_view(shape, padding_mode=mode, traversal_steps=steps)
        ct.store(y, (0, 0), view.load(index))

    return kernel


def strided_tile(x, index, shape, steps, padding=0.0):
    result = np.full(shape, padding).astype(x.dtype)
    for position in np.ndindex(*shape):
        where = tuple(i * s + p for i, s, p in zip(index, steps, position, strict=True))
        if all(w < n for w, n in zip(where, x.shape, strict=True)):
            result[position] = x[where]
    return result


for shape, index, steps in [
    ((2, 4), (1, 1), None),
    ((4, 4), (1, 1), None),
    ((2, 4), (2, 0), (1, 4)),
    ((2, 4), (1, 1), (3, 1)),
    ((2, 4), (1, 1), (4, 5)),
    ((4, 8), (1, 0), (3, 8)),
    ((1, 2), (2, 2), (2, 3)),
]:
    name = f"{shape}_at_{index}_steps_{steps}".replace(" ", "")
    for dtype in ("int32", "float16"):
        add(
            f"tiled_view/load_{name}-{dtype}",
            view_tiles(shape, index, steps=steps),
            (1,),
            lambda rng, shape=shape, dtype=dtype: [random(rng, dtype, (6, 9)), ones(shape, dtype)],
            expected=lambda x, y, shape=shape, index=index, steps=steps: {
                1: strided_tile(x, index, shape, steps or shape)
            },
        )
for mode, padding in (
    (ct.PaddingMode.NAN, np.nan),
    (ct.PaddingMode.NEG_INF, -np.inf),
    (ct.PaddingMode.POS_INF, np.inf),
):
    add(
        f"tiled_view/padding_{mode.value}",
        view_tiles((4, 8), (1, 1), mode),
        (1,),
        lambda rng: [random(rng, "float32", (6, 9)), ones((4, 8), "float32")],
        expected=lambda x, y, padding=padding: {1: strided_tile(x, (1, 1), (4, 8), (4, 8), padding)},
    )


@ct.kernel
def view_copy(x, y):
    i, j = ct.bid(0), ct.bid(1)
    source = x.tiled_view((2, 4), padding_mode=ct.PaddingMode.ZERO)
    target = y.tiled_view((2, 4))
    target.store((i, j), source.load((i, j), latency=2), latency=3)


for dtype in ALL:
    add(
        f"tiled_view/copy-{dtype}",
        view_copy,
        (3, 3),
        lambda rng, dtype=dtype: [random(rng, dtype, (6, 9)), zeros((6, 9), dtype)],
        expected=lambda x, y: {1: x},
    )


@ct.kernel
def view_options(x, y):
    source, target = x.tiled_view(8), y.tiled_view((8,))
    tile = source.load(0, check_bounds=False, allow_tma=False)
    target.store(1, tile, check_bounds=False, allow_tma=False)


@ct.kernel
def view_broadcast_store(x, y):
    view = y.tiled_view(8)
    view.store(0, 3)
    view.store((1,), ct.full((1,), 4, ct.int32))


@ct.kernel
def view_elements(x, y):
    source, target = x.tiled_view(()), y.tiled_view(())
    shape, steps = source.tile_shape, source.traversal_steps
    ct.static_assert(shape == ())
    ct.static_assert(steps == (1,))
    for i in range(source.num_tiles(0)):
        target.store((15 - i,), source.load((i,)))


@ct.kernel
def view_attributes(x, y):
    view = x.tiled_view(4, traversal_steps=3)
    dtype, shape, steps = view.dtype, view.tile_shape, view.traversal_steps
    ct.static_assert(dtype == ct.int32)
    ct.static_assert(shape == (4,))
    ct.static_assert(steps == (3,))
    default_steps = x.tiled_view(4).traversal_steps
    ct.static_assert(default_steps == (4,))
    ct.store(y, (0,), view.num_tiles(0))
    ct.store(y, (1,), x.tiled_view(4).num_tiles(0))
    ct.store(y, (2,), x.tiled_view(8).num_tiles(-1))
    ct.store(y, (3,), x.slice(0, 0, 9).tiled_view(4).num_tiles(0))


@ct.kernel
def view_widening(x, y):
    y.tiled_view(4).store(1, ct.arange(4, dtype=ct.int8) + ct.int8(1))


for name, kernel, expected in (
    ("options", view_options, lambda x, y: np.concatenate([y[:8], x[:8]])),
    ("store_broadcasts", view_broadcast_store, lambda x, y: np.repeat([3, 4], 8)),
    ("elements", view_elements, lambda x, y: x[::-1]),
    ("store_widens", view_widening, lambda x, y: np.concatenate([y[:4], [1, 2, 3, 4], y[8:]])),
):
    add(
        f"tiled_view/{name}",
        kernel,
        (1,),
        lambda rng: [random(rng, "int32", (16,)), zeros(16)],
        expected=lambda x, y, expected=expected: {1: expected(x, y)},
    )
add(
    "tiled_view/attributes",
    view_attributes,
    (1,),
    lambda rng: [random(rng, "int32", (16,)), zeros(4)],
    expected=lambda x, y: {1: [6, 4, 2, 3]},
)


@ct.kernel
def view_window_sum(x, y):
    """A moving sum: windows of four that overlap by three."""
    view = x.tiled_view(4, traversal_steps=(1,), padding_mode=ct.PaddingMode.ZERO)
    i = ct.bid(0)
    ct.store(y, (i,), ct.sum(view.load(i)))


add(
    "tiled_view/overlapping_windows",
    view_window_sum,
    (9,),
    lambda rng: [small(rng, "int32", (9,), 1, 9), zeros(9)],
    expected=lambda x, y: {1: [x[i : i + 4].sum() for i in range(9)]},
)


def view_atomic(name):
    @ct.kernel
    def kernel_add(x, y):
        y.tiled_view((2, 4)).atomic_store_add((ct.bid(0) // 2, 0), ct.load(x, (0, 0), (2, 4)))

    @ct.kernel
    def kernel_max(x, y):
        y.tiled_view((2, 4)).atomic_store_max((ct.bid(0) // 2, 0), ct.load(x, (0, 0), (2, 4)))

    @ct.kernel
    def kernel_min(x, y):
        y.tiled_view((2, 4)).atomic_store_min((ct.bid(0) // 2, 0), ct.load(x, (0, 0), (2, 4)))

    @ct.kernel
    def kernel_and(x, y):
        y.tiled_view((2, 4)).atomic_store_and((ct.bid(0) // 2, 0), ct.load(x, (0, 0), (2, 4)))

    @ct.kernel
    def kernel_or(x, y):
        y.tiled_view((2, 4)).atomic_store_or((ct.bid(0) // 2, 0), ct.load(x, (0, 0), (2, 4)))

    @ct.kernel
    def kernel_xor(x, y):
        i = ct.bid(0)
        if i != 1:
            y.tiled_view((2, 4)).atomic_store_xor((i // 2, 0), ct.load(x, (0, 0), (2, 4)))

    return locals()[f"kernel_{name}"]


def around_21(rng, dtype):
    """Random updates of 21, one of them larger and one smaller, so that max and min always change something."""
    x = small(rng, dtype, (2, 4), 0, 30)
    x[0, :2] = 30, 0
    return x


VIEW_ATOMICS = {
    "add": lambda x, y: np.concatenate([y[:2] + 2 * x, y[2:] + x[:1]]),
    "max": lambda x, y: np.concatenate([np.maximum(y[:2], x), np.maximum(y[2:], x[:1])]),
    "min": lambda x, y: np.concatenate([np.minimum(y[:2], x), np.minimum(y[2:], x[:1])]),
    "and": lambda x, y: np.concatenate([y[:2] & x, y[2:] & x[:1]]),
    "or": lambda x, y: np.concatenate([y[:2] | x, y[2:] | x[:1]]),
    "xor": lambda x, y: np.concatenate([y[:2] ^ x, y[2:] ^ x[:1]]),
}
for op, meaning in VIEW_ATOMICS.items():
    supported = ("int32", "int64", "uint32", "uint64")
    if op == "add":
        supported = (*supported, "float16", "bfloat16", "float32", "float64")
    for dtype in supported:
        # Three rows: the second tile is cut off by the end of the array.
        add(
            f"tiled_view/atomic_store_{op}-{dtype}",
            view_atomic(op),
            (3,),
            lambda rng, dtype=dtype, op=op: (
                [small(rng, dtype, (2, 4), 1, 15), small(rng, dtype, (3, 4), 16, 31)]
                if op == "add"
                else [around_21(rng, dtype), np.full((3, 4), 21).astype(dtype)]
            ),
            expected=lambda x, y, meaning=meaning: {1: meaning(x, y)},
        )
    for dtype in ("int8", "int16", "uint8", "uint16", "bool", *(() if op == "add" else ("float16", "float32"))):
        refuse(
            f"tiled_view/atomic_store_{op}_{dtype}_refused",
            view_atomic(op),
            lambda rng, dtype=dtype: [zeros((2, 4), dtype), zeros((3, 4), dtype)],
            "Unsupported tiled view dtype",
        )
for op in ("and", "or", "xor"):
    refuse(
        f"tiled_view/atomic_store_{op}_of_another_dtype_refused",
        view_atomic(op),
        lambda rng: [zeros((2, 4), "int32"), zeros((3, 4), "int64")],
        "exactly match",
    )
add(
    "tiled_view/atomic_store_add_widens",
    view_atomic("add"),
    (3,),
    lambda rng: [small(rng, "float16", (2, 4), 1, 15), small(rng, "float32", (3, 4))],
    expected=lambda x, y: {1: VIEW_ATOMICS["add"](x.astype(np.float32), y)},
)
refuse(
    "tiled_view/atomic_store_add_narrowing_refused",
    view_atomic("add"),
    lambda rng: [zeros((2, 4), "float32"), zeros((3, 4), "float16")],
    "cannot implicitly cast float32 to float16",
)


@ct.kernel
def view_atomic_large_update(x):
    x.tiled_view(4).atomic_store_add(0, ct.ones((8,), ct.float32))


@ct.kernel
def view_store_large(x):
    x.tiled_view(4).store(0, ct.ones((8,), ct.float32))


@ct.kernel
def view_store_narrowing(x):
    x.tiled_view(4).store(0, ct.ones((4,), ct.float64))


@ct.kernel
def view_wrong_rank(x):
    x.tiled_view(4).load((0, 0))


@ct.kernel
def view_store_wrong_rank(x):
    x.tiled_view(4).store((0, 0), 0)


@ct.kernel
def view_float_index(x):
    x.tiled_view(4).load(0.5)


@ct.kernel
def view_axis(x):
    x.tiled_view(4).num_tiles(1)


def bad_view(shape, steps=None, mode=ct.PaddingMode.ZERO):
    @ct.kernel
    def kernel(x):
        x.tiled_view(shape, traversal_steps=steps, padding_mode=mode)

    return kernel


for name, kernel, match in [
    ("atomic_update_does_not_broadcast", view_atomic_large_update, "broadcast"),
    ("stored_tile_does_not_broadcast", view_store_large, "broadcast"),
    ("narrowing", view_store_narrowing, "float64 to float32"),
    ("index_of_another_rank", view_wrong_rank, "rank"),
    ("store_index_of_another_rank", view_store_wrong_rank, "rank"),
    ("float_index", view_float_index, "integer"),
    ("num_tiles_axis_out_of_range", view_axis, "out of range"),
    ("shape_not_a_power_of_two", bad_view(3), "power of two"),
    ("shape_of_another_rank", bad_view((2, 2)), "length"),
    ("shape_zero", bad_view(0), "not positive"),
    ("steps_zero", bad_view(4, 0), "not positive"),
    ("steps_of_another_rank", bad_view(4, (1, 1)), "length"),
    ("steps_float", bad_view(4, 1.5), ""),
    ("padding_by_value", bad_view(4, None, 0.0), "PaddingMode"),
]:
    refuse(f"tiled_view/{name}_refused", kernel, array_16, match)

# --- raw memory --------------------------------------------------------------------------------------------------


@ct.kernel
def raw_copy(x, y):
    offset = ct.bid(0) * 8 + ct.arange(8, dtype=ct.int32)
    inside = offset < 13
    value = x.get_raw_memory().load_offset(offset, mask=inside, padding_value=0)
    y.get_raw_memory().store_offset(offset, value, mask=inside)


for dtype in ALL:
    add(
        f"raw_memory/copy-{dtype}",
        raw_copy,
        (2,),
        lambda rng, dtype=dtype: (
            [random(rng, dtype, (13,)), zeros(13, dtype)] if dtype != "bool" else [ones(13, dtype), zeros(13, dtype)]
        ),
        expected=lambda x, y: {1: x},
    )


@ct.kernel
def raw_strides(x, y):
    """The offset counts elements from the first one and knows nothing of shape and strides."""
    offset = ct.arange(8, dtype=ct.int64)
    ct.store(y, (0,), x.get_raw_memory().load_offset(offset, latency=2))


@ct.kernel
def raw_scalar(x, y):
    memory = x.get_raw_memory()
    dtype = memory.dtype
    ct.static_assert(dtype == ct.int32)
    y.get_raw_memory().store_offset(3, memory.load_offset(5))
    y.get_raw_memory().store_offset(ct.bid(0), 7, latency=1)


@ct.kernel
def raw_broadcast(x, y):
    offset = ct.reshape(ct.arange(4, dtype=ct.int32) * 2, (4, 1)) + ct.arange(2, dtype=ct.int32)
    y.get_raw_memory().store_offset(offset, ct.arange(2, dtype=ct.int32) + 5)


@ct.kernel
def raw_padding_tile(x, y):
    offset = ct.arange(8, dtype=ct.int32)
    ct.store(y, (0,), x.get_raw_memory().load_offset(offset, mask=offset > 2, padding_value=-offset))


@ct.kernel
def raw_of_slice(x, y):
    part = x.slice(0, 2, 4)
    ct.store(y, (0,), part.get_raw_memory().load_offset(ct.arange(8, dtype=ct.int32)))


for name, kernel, expected in (
    ("offsets_ignore_strides", raw_strides, lambda x, y: x.reshape(-1)[:8]),
    ("scalar_offset", raw_scalar, lambda x, y: [7, 0, 0, x[1, 1], 0, 0, 0, 0]),
    ("value_is_broadcast", raw_broadcast, lambda x, y: [5, 6] * 4),
    ("padding_tile", raw_padding_tile, lambda x, y: np.where(np.arange(8) > 2, x.reshape(-1)[:8], -np.arange(8))),
    ("base_of_a_slice", raw_of_slice, lambda x, y: x.reshape(-1)[8:16]),
):
    add(
        f"raw_memory/{name}",
        kernel,
        (1,),
        lambda rng: [random(rng, "int32", (6, 4)), zeros(8)],
        expected=lambda x, y, expected=expected: {1: expected(x, y)},
        views=(lambda x, y: (x.T, y)) if kernel is raw_strides else None,
    )


@ct.kernel
def raw_integer_mask(x):
    offset = ct.arange(4, dtype=ct.int32)
    x.get_raw_memory().load_offset(offset, mask=offset)


@ct.kernel
def raw_mask_does_not_broadcast(x):
    x.get_raw_memory().load_offset(ct.arange(4, dtype=ct.int32), mask=ct.arange(8, dtype=ct.int32) > 0)


@ct.kernel
def raw_padding_does_not_broadcast(x):
    x.get_raw_memory().load_offset(ct.arange(4, dtype=ct.int32), padding_value=ct.zeros((8,), ct.float32))


@ct.kernel
def raw_value_does_not_broadcast(x):
    x.get_raw_memory().store_offset(ct.arange(4, dtype=ct.int32), ct.zeros((8,), ct.float32))


@ct.kernel
def raw_narrowing(x):
    x.get_raw_memory().store_offset(ct.arange(4, dtype=ct.int32), ct.zeros((4,), ct.float64))


@ct.kernel
def raw_mask_by_position(x):
    offset = ct.arange(4, dtype=ct.int32)
    x.get_raw_memory().load_offset(offset, offset > 0)


@ct.kernel
def raw_latency(x):
    x.get_raw_memory().load_offset(0, latency=11)


for name, kernel, match in [
    ("integer_mask", raw_integer_mask, "boolean"),
    ("mask_does_not_broadcast", raw_mask_does_not_broadcast, "broadcast"),
    ("padding_does_not_broadcast", raw_padding_does_not_broadcast, "broadcast"),
    ("value_does_not_broadcast", raw_value_does_not_broadcast, "broadcast"),
    ("narrowing", raw_narrowing, "float64 to float32"),
    ("mask_by_position", raw_mask_by_position, ""),
]:
    refuse(f"raw_memory/{name}_refused", kernel, array_16, match)
refuse("raw_memory/latency_11_refused", raw_latency, array_16, LATENCY, ct.TileValueError)

# --- foreign pointers --------------------------------------------------------------------------------------------


@ct.kernel
def foreign_copy(x, y):
    view = ct.Array.from_foreign(x.foreign_pointer, x.shape, x.strides)
    ct.store(y, (0, 0), ct.load(view, (0, 0), (8, 8), padding_mode=ct.PaddingMode.ZERO))


@ct.kernel
def foreign_reshaped(x, y):
    view = ct.Array.from_foreign(x.foreign_pointer, (4, 6), (6, 1))
    ct.store(y, (0, 0), ct.load(view, (0, 0), (8, 8), padding_mode=ct.PaddingMode.ZERO))


@ct.kernel
def foreign_transposed(x, y):
    view = ct.Array.from_foreign(x.foreign_pointer, (x.shape[1], x.shape[0]), (x.strides[1], x.strides[0]))
    ct.store(y, (0, 0), ct.load(view, (0, 0), (8, 8), padding_mode=ct.PaddingMode.ZERO))


@ct.kernel
def foreign_static_shape(x, y):
    view = ct.Array.from_foreign(x.foreign_pointer, (4, 4), (4, 1))
    tile = ct.load(view, (0, 0), (view.shape[0], view.shape[1]))
    ct.store(y, (0, 0), tile)


for name, kernel, expected in (
    ("same_metadata", foreign_copy, lambda x: padded_tile(x, (0, 0), (8, 8))),
    ("another_shape", foreign_reshaped, lambda x: padded_tile(x.reshape(4, 6), (0, 0), (8, 8))),
    ("transposed", foreign_transposed, lambda x: padded_tile(x.T, (0, 0), (8, 8))),
):
    add(
        f"foreign_pointer/{name}",
        kernel,
        (1,),
        lambda rng: [random(rng, "int32", (3, 8)), ones((8, 8))],
        expected=lambda x, y, expected=expected: {1: expected(x)},
    )
add(
    "foreign_pointer/constant_shape_is_static",
    foreign_static_shape,
    (1,),
    lambda rng: [random(rng, "float16", (16,)), zeros((4, 4), "float16")],
    expected=lambda x, y: {1: x.reshape(4, 4)},
)


def bad_foreign(shape, strides):
    @ct.kernel
    def kernel(x):
        ct.Array.from_foreign(x.foreign_pointer, shape, strides)

    return kernel


@ct.kernel
def foreign_arithmetic(x):
    x.foreign_pointer + 1


@ct.kernel
def foreign_not_a_pointer(x):
    ct.Array.from_foreign(ct.bid(0), (4,), (1,))


for name, kernel, match in [
    ("negative_shape", bad_foreign((-4,), (1,)), "non-negative"),
    ("negative_stride", bad_foreign((4,), (-1,)), "non-negative"),
    ("float_shape", bad_foreign((4.0,), (1,)), "integer"),
    ("different_ranks", bad_foreign((4, 4), (1,)), "rank"),
    ("arithmetic", foreign_arithmetic, ""),
    ("not_a_pointer", foreign_not_a_pointer, "pointer"),
]:
    refuse(f"foreign_pointer/{name}_refused", kernel, array_16, match)

# --- lists of arrays ---------------------------------------------------------------------------------------------


@ct.kernel
def list_sum(arrays, y):
    total = ct.zeros((8,), ct.int32)
    for i in range(len(arrays)):
        total += ct.load(arrays[i], (0,), (8,), padding_mode=ct.PaddingMode.ZERO)
    ct.store(y, (0,), total)


@ct.kernel
def list_by_block(arrays, y):
    i = ct.bid(0)
    ct.store(arrays[i], (0,), ct.arange(4, dtype=ct.int32) + i * 10)


@ct.kernel
def list_shapes(arrays, y):
    for i in range(len(arrays)):
        ct.store(y, (i,), arrays[i].shape[0])


def list_args(rng):
    return [[small(rng, "int32", (n,), 1, 50) for n in (8, 5, 3)], zeros(8)]


add(
    "list/sum_over_a_list",
    list_sum,
    (1,),
    list_args,
    expected=lambda arrays, y: {1: np.sum([np.pad(a, (0, 8 - a.size)) for a in arrays], axis=0)},
)
add(
    "list/a_block_an_array",
    list_by_block,
    (3,),
    lambda rng: [[zeros(4), zeros(4), zeros(4)], zeros(8)],
    expected=lambda arrays, y: {0: [np.arange(4) + i * 10 for i in range(3)]},
)
add("list/shapes", list_shapes, (1,), list_args, expected=lambda arrays, y: {1: [8, 5, 3, 0, 0, 0, 0, 0]})


@ct.kernel
def list_int64(arrays: Annotated[list, ct.ListAnnotation(element=ct.ArrayAnnotation(index_dtype=ct.int64))], y):
    for i in range(len(arrays)):
        ct.store(y, (i,), arrays[i].shape[0])


add(
    "list/int64_indexed",
    list_int64,
    (1,),
    lambda rng: [[zeros(5), zeros(7)], zeros(2, "int64")],
    expected=lambda arrays, y: {1: [5, 7]},
)
refuse(
    "list/int64_shape_into_int32_refused",
    list_int64,
    lambda rng: [[zeros(5), zeros(7)], zeros(2, "int32")],
    "int64 to int32",
)


@ct.kernel
def list_float_index(arrays, y):
    arrays[0.5]


@ct.kernel
def list_loaded_directly(arrays, y):
    ct.load(arrays, (0,), (8,))


refuse("list/float_index_refused", list_float_index, list_args, "integer")
refuse("list/load_of_a_list_refused", list_loaded_directly, list_args, "array")
