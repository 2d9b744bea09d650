"""ct.load and ct.store: tile spaces, padding, order, implicit casts, bounds, hints and memory order."""

from typing import Annotated

import cuda.tile as ct
import numpy as np

from .building import expanded, ones, padded_tile, zeros
from .dtypes import FLOATS, FLOATS8, INTEGERS, random
from .harness import Case, blank

CASES = []
INT = ct.Constant[int]


def add(*args, **kwargs):
    CASES.append(Case(*args, **kwargs))


# --- copies: every dtype, every rank, arrays that the tile does not divide --------------------------------------


@ct.kernel
def copy_1d(x, y):
    i = ct.bid(0)
    ct.store(y, (i,), ct.load(x, (i,), shape=(8,), padding_mode=ct.PaddingMode.ZERO))


@ct.kernel
def copy_2d(x, y):
    i, j = ct.bid(0), ct.bid(1)
    ct.store(y, (i, j), ct.load(x, (i, j), shape=(4, 8), padding_mode=ct.PaddingMode.ZERO))


@ct.kernel
def copy_3d(x, y):
    index = (ct.bid(0), ct.bid(1), ct.bid(2))
    ct.store(y, index, ct.load(x, index, shape=(2, 4, 4), padding_mode=ct.PaddingMode.ZERO))


@ct.kernel
def copy_4d(x, y):
    index = (ct.bid(0), ct.bid(1), ct.bid(2), 0)
    ct.store(y, index, ct.load(x, index, shape=(1, 2, 2, 4), padding_mode=ct.PaddingMode.ZERO))


@ct.kernel
def copy_elements(x, y):
    i = ct.bid(0)
    ct.store(y, (i,), ct.load(x, (i,), shape=()))


def copy_case(name, kernel, grid, shape, dtype):
    def args(rng):
        x = random(rng, dtype, shape)
        return [x, ~x if dtype == "bool" else zeros(shape, dtype)]

    add(f"{name}-{dtype}", kernel, grid, args, expected=lambda x, y: {1: x})


for dtype in ("bool", *INTEGERS, *FLOATS, *FLOATS8):
    copy_case("load_store/ragged_1d", copy_1d, (3,), (21,), dtype)
    copy_case("load_store/ragged_2d", copy_2d, (2, 2), (7, 13), dtype)
    copy_case("load_store/elements_1d", copy_elements, (5,), (5,), dtype)
for dtype in ("int8", "bool", "float16", "float32", "int64"):
    copy_case("load_store/ragged_3d", copy_3d, (2, 2, 2), (3, 5, 6), dtype)
    copy_case("load_store/ragged_4d", copy_4d, (2, 2, 2), (2, 3, 4, 3), dtype)
    copy_case("load_store/tile_larger_than_array_1d", copy_1d, (1,), (3,), dtype)
    copy_case("load_store/tile_larger_than_array_2d", copy_2d, (1, 1), (3, 5), dtype)
copy_case("load_store/one_element_array", copy_1d, (1,), (1,), "float32")


# --- padding ----------------------------------------------------------------------------------------------------

PADDINGS = {
    ct.PaddingMode.ZERO: 0.0,
    ct.PaddingMode.NEG_ZERO: -0.0,
    ct.PaddingMode.NAN: np.nan,
    ct.PaddingMode.POS_INF: np.inf,
    ct.PaddingMode.NEG_INF: -np.inf,
}


def padding_1d(mode):
    @ct.kernel
    def kernel(x, y):
        ct.store(y, (0,), ct.load(x, (1,), shape=(8,), padding_mode=mode))

    return kernel


def padding_case(mode, dtype):
    add(
        f"load_store/padding_{mode.value}-{dtype}",
        padding_1d(mode),
        (1,),
        lambda rng: [random(rng, dtype, (11,)), ones((8,), dtype)],
        expected=lambda x, y: {1: padded_tile(x, (1,), (8,), PADDINGS[mode])},
    )


for dtype in ("bool", *INTEGERS, *FLOATS, *FLOATS8):
    padding_case(ct.PaddingMode.ZERO, dtype)
for mode in PADDINGS:
    if mode is not ct.PaddingMode.ZERO:
        for dtype in FLOATS:
            padding_case(mode, dtype)
for dtype in FLOATS8:
    padding_case(ct.PaddingMode.NAN, dtype)
for mode in (ct.PaddingMode.POS_INF, ct.PaddingMode.NEG_INF):
    padding_case(mode, "float8_e5m2")


@ct.kernel
def sign_of_padding(x, y):
    tile = ct.load(x, (0,), shape=(4,), padding_mode=ct.PaddingMode.NEG_ZERO)
    ct.store(y, (0,), 1.0 / tile)


add(
    "load_store/negative_zero_keeps_its_sign",
    sign_of_padding,
    (1,),
    lambda rng: [np.array([2.0, 4.0, -8.0], np.float32), zeros((4,), "float32")],
    expected=lambda x, y: {1: np.array([0.5, 0.25, -0.125, -np.inf], np.float32)},
)


def padding_nd(shape, mode):
    index = (1,) + (0,) * (len(shape) - 1)
    origin = (0,) * len(shape)

    @ct.kernel
    def kernel(x, y):
        ct.store(y, origin, ct.load(x, index, shape=shape, padding_mode=mode))

    return kernel


for array_shape, shape in (((3, 3), (2, 4)), ((5, 2), (4, 8)), ((3, 2, 5), (2, 4, 8)), ((3, 3, 3, 1), (2, 4, 4, 2))):
    for mode in (ct.PaddingMode.ZERO, ct.PaddingMode.NAN, ct.PaddingMode.NEG_INF):
        add(
            f"load_store/padding_{mode.value}_{'x'.join(map(str, array_shape))}",
            padding_nd(shape, mode),
            (1,),
            lambda rng, array_shape=array_shape, shape=shape: [
                random(rng, "float32", array_shape),
                ones(shape, "float32"),
            ],
            expected=lambda x, y, shape=shape, mode=mode: {
                1: padded_tile(x, (1,) + (0,) * (x.ndim - 1), shape, PADDINGS[mode])
            },
        )


@ct.kernel
def sum_of_padding(x, y):
    tile = ct.load(x, (0,), shape=(16,), padding_mode=ct.PaddingMode.ZERO)
    ct.store(y, (0,), ct.sum(tile))


add(
    "load_store/zero_padding_is_neutral_in_a_sum",
    sum_of_padding,
    (1,),
    lambda rng: [np.arange(1, 12, dtype=np.int32), zeros((1,))],
    expected=lambda x, y: {1: np.array([66], np.int32)},
)


@ct.kernel
def undetermined_but_cut_off(x, y):
    ct.store(y, (1,), ct.load(x, (1,), shape=(8,)))


add(
    "load_store/undetermined_padding_never_reaches_the_array",
    undetermined_but_cut_off,
    (1,),
    lambda rng: [random(rng, "int32", (11,)), ones((11,))],
    expected=lambda x, y: {1: np.concatenate([y[:8], x[8:]])},
)


# --- order ------------------------------------------------------------------------------------------------------


def load_in_order(shape, order, index):
    origin = (0,) * len(shape)

    @ct.kernel
    def kernel(x, y):
        ct.store(y, origin, ct.load(x, index, shape=shape, order=order, padding_mode=ct.PaddingMode.ZERO))

    return kernel


def store_in_order(shape, order, index):
    origin = (0,) * len(shape)

    @ct.kernel
    def kernel(x, y):
        ct.store(y, index, ct.load(x, origin, shape=shape), order=order)

    return kernel


def axes_of(order, ndim):
    if order == "C":
        return tuple(range(ndim))
    if order == "F":
        return tuple(reversed(range(ndim)))
    return tuple(axis % ndim for axis in order)


def stored_in_order(x, y, index, order):
    result = y.copy()
    view = result.transpose(axes_of(order, y.ndim))
    for position in np.ndindex(*x.shape):
        target = tuple(i * size + p for i, size, p in zip(index, x.shape, position, strict=True))
        if all(t < n for t, n in zip(target, view.shape, strict=True)):
            view[target] = x[position]
    return result


ORDERS = [
    ((5, 9), (4, 2), "C", (1, 4)),
    ((5, 9), (4, 2), "F", (2, 1)),
    ((5, 9), (2, 4), (1, 0), (3, 1)),
    ((5, 9), (2, 4), (-1, -2), (4, 0)),
    ((5, 9), (2, 4), (0, 1), (2, 2)),
    ((3, 5, 6), (2, 4, 2), "F", (2, 1, 1)),
    ((3, 5, 6), (2, 4, 2), (0, 2, 1), (1, 1, 2)),
    ((3, 5, 6), (2, 4, 2), (1, 0, 2), (2, 0, 2)),
    ((3, 5, 6), (2, 4, 2), (1, 2, 0), (2, 1, 1)),
    ((3, 5, 6), (2, 4, 2), (2, 0, 1), (2, 0, 2)),
    ((3, 5, 6), (4, 1, 2), (-1, 0, 1), (1, 2, 2)),
    ((7,), (4,), "F", (1,)),
    ((7,), (4,), (0,), (1,)),
]
for array_shape, shape, order, index in ORDERS:
    name = order if isinstance(order, str) else "".join(map(str, order))
    name = f"{name}_{'x'.join(map(str, array_shape))}"
    add(
        f"load_store/load_order_{name}",
        load_in_order(shape, order, index),
        (1,),
        lambda rng, array_shape=array_shape, shape=shape: [random(rng, "int32", array_shape), ones(shape)],
        expected=lambda x, y, shape=shape, order=order, index=index: {
            1: padded_tile(x.transpose(axes_of(order, x.ndim)), index, shape)
        },
    )
    add(
        f"load_store/store_order_{name}",
        store_in_order(shape, order, index),
        (1,),
        lambda rng, array_shape=array_shape, shape=shape: [random(rng, "int32", shape), zeros(array_shape)],
        expected=lambda x, y, order=order, index=index: {1: stored_in_order(x, y, index, order)},
    )


@ct.kernel
def transpose(x, y):
    i, j = ct.bid(0), ct.bid(1)
    ct.store(y, (j, i), ct.load(x, (j, i), shape=(4, 2), order=(1, 0), padding_mode=ct.PaddingMode.ZERO))


for dtype in ("int8", "float16", "bfloat16", "float64", "bool"):
    add(
        f"load_store/transpose-{dtype}",
        transpose,
        (3, 2),
        lambda rng, dtype=dtype: [random(rng, dtype, (5, 6)), zeros((6, 5), dtype)],
        expected=lambda x, y: {1: x.T},
    )


# --- rank 0, scalars and forms of index and shape ---------------------------------------------------------------


@ct.kernel
def element_of_2d(x, y):
    ct.store(y, (1, 0), ct.load(x, (2, 1), shape=()))


add(
    "load_store/element_of_2d",
    element_of_2d,
    (1,),
    lambda rng: [random(rng, "int32", (3, 4)), zeros((2, 2))],
    expected=lambda x, y: {1: np.array([[0, 0], [x[2, 1], 0]], np.int32)},
)


@ct.kernel
def scalar_constants(y):
    ct.store(y, (0, 0), tile=1)
    ct.store(y, (1, 1), tile=1)
    ct.store(y, (0, 1), tile=0)


for dtype in (*INTEGERS, *FLOATS, "bool"):
    add(
        f"load_store/store_integer_constant-{dtype}",
        scalar_constants,
        (1,),
        lambda rng, dtype=dtype: [np.stack([ones((2,), dtype), zeros((2,), dtype)])],
        expected=lambda y: {0: np.array([[1, 0], [0, 1]]).astype(y.dtype)},
    )


@ct.kernel
def float_constant(y):
    ct.store(y, (0,), 1.5)
    ct.store(y, (1,), -0.25)


for dtype in FLOATS:
    add(
        f"load_store/store_float_constant-{dtype}",
        float_constant,
        (1,),
        lambda rng, dtype=dtype: [zeros((2,), dtype)],
        expected=lambda y: {0: np.array([1.5, -0.25], np.float32).astype(y.dtype)},
    )


@ct.kernel
def scalar_arguments(y, i, f):
    ct.store(y, (0,), f)
    ct.store(y, (1,), i)


add(
    "load_store/store_scalar_arguments",
    scalar_arguments,
    (1,),
    lambda rng: [zeros((2,), "float32"), 7, 2.5],
    expected=lambda y, i, f: {0: np.array([2.5, 7], np.float32)},
)


@ct.kernel
def zero_d_tile_fills_one_element(y):
    tile = ct.full((), 5, ct.int32)
    ct.store(y, (2, 1), tile)


add(
    "load_store/0d_tile_is_one_element",
    zero_d_tile_fills_one_element,
    (1,),
    lambda rng: [zeros((3, 2))],
    expected=lambda y: {0: np.array([[0, 0], [0, 0], [0, 5]], np.int32)},
)


@ct.kernel
def plain_int_forms(x, y):
    ct.store(y, 1, ct.load(x, 2, 4))


@ct.kernel
def keyword_forms(x, y):
    tile = ct.load(x, index=(2,), shape=(4,))
    ct.store(y, index=(1,), tile=tile)


@ct.kernel
def narrow_index(x, y):
    i = ct.full((), 2, ct.int8)
    j = ct.full((), 1, ct.int64)
    ct.store(y, (j,), ct.load(x, (i,), (4,)))


@ct.kernel
def computed_index(x, y, i):
    ct.store(y, (i // 2 - 1,), ct.load(x, (i - 2,), (4,)))


@ct.kernel
def index_from_memory(x, y, where):
    i = ct.load(where, (0,), ())
    j = ct.load(where, (1,), (1,)).item()
    ct.store(y, (j,), ct.load(x, (i,), (4,)))


@ct.kernel
def constant_shape_argument(x, y, size: INT):
    ct.store(y, (1,), ct.load(x, (2,), (size,)))


@ct.kernel
def constant_shape_tuple(x, y, shape: ct.Constant[tuple[int]]):
    ct.store(y, (1,), ct.load(x, (2,), shape))


def second_gets_third(x, y, *rest):
    return {1: np.concatenate([y[:4], x[8:12]])}


for name, kernel, extra in [
    ("plain_int_index_and_shape", plain_int_forms, ()),
    ("keyword_index_and_shape", keyword_forms, ()),
    ("int8_and_int64_index", narrow_index, ()),
    ("computed_index", computed_index, (4,)),
    ("index_from_memory", index_from_memory, (np.array([2, 1], np.int32),)),
    ("shape_from_constant_argument", constant_shape_argument, (4,)),
    ("shape_from_constant_tuple", constant_shape_tuple, ((4,),)),
]:
    add(
        f"load_store/{name}",
        kernel,
        (1,),
        lambda rng, extra=extra: [random(rng, "int32", (16,)), zeros((8,)), *extra],
        expected=second_gets_third,
    )


@ct.kernel
def store_ragged(y):
    tile = ct.ones((4,), dtype=y.dtype)
    ct.store(y, (0,), tile)
    ct.store(y, (1,), tile + tile)


for dtype in (*INTEGERS, *FLOATS):
    add(
        f"load_store/store_past_the_end_is_ignored-{dtype}",
        store_ragged,
        (1,),
        lambda rng, dtype=dtype: [zeros((6,), dtype)],
        expected=lambda y: {0: np.array([1, 1, 1, 1, 2, 2]).astype(y.dtype)},
    )


@ct.kernel
def store_2d_past_both_ends(y):
    ct.store(y, (1, 1), ct.reshape(ct.arange(8, dtype=ct.int32), (2, 4)))


add(
    "load_store/store_past_both_ends",
    store_2d_past_both_ends,
    (1,),
    lambda rng: [ones((3, 6))],
    expected=lambda y: {0: np.array([[1] * 6, [1] * 6, [1, 1, 1, 1, 0, 1]], np.int32)},
)


@ct.kernel
def load_sees_own_store(y):
    ct.store(y, (0,), ct.arange(4, dtype=ct.int32) + 3)
    ct.store(y, (1,), ct.load(y, (0,), (4,)) * 2)


add(
    "load_store/a_load_sees_the_stores_before_it",
    load_sees_own_store,
    (1,),
    lambda rng: [zeros((8,))],
    expected=lambda y: {0: np.array([3, 4, 5, 6, 6, 8, 10, 12], np.int32)},
)


@ct.kernel
def load_keeps_old_value(y):
    before = ct.load(y, (0,), (4,))
    ct.store(y, (0,), ct.zeros((4,), ct.int32))
    ct.store(y, (1,), before)


add(
    "load_store/a_tile_is_a_value_not_a_view",
    load_keeps_old_value,
    (1,),
    lambda rng: [np.arange(1, 9, dtype=np.int32)],
    expected=lambda y: {0: np.array([0, 0, 0, 0, 1, 2, 3, 4], np.int32)},
)


@ct.kernel
def two_tile_shapes(x, y):
    tile = ct.load(x, (1, 0), (2, 8))
    ct.store(y, (0, 0), ct.reshape(tile, (4, 4)))


add(
    "load_store/each_access_has_its_own_tile_space",
    two_tile_shapes,
    (1,),
    lambda rng: [random(rng, "int32", (4, 8)), zeros((4, 4))],
    expected=lambda x, y: {1: x[2:].reshape(4, 4)},
)


# --- the implicit cast of a store: it widens, and refuses to narrow ----------------------------------------------


@ct.kernel
def store_other_dtype(x, y):
    ct.store(y, (0,), ct.load(x, (0,), (8,)))


WIDENING = [
    *(("bool", to) for to in ("int8", "uint8", "int32", "uint64", "float16", "float32")),
    *(("int8", to) for to in ("int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")),
    *(("uint8", to) for to in ("uint16", "uint32", "uint64", "float16", "float32")),
    *(("int16", to) for to in ("int32", "int64", "float32")),
    *(("uint16", to) for to in ("uint32", "uint64", "float32")),
    *(("int32", to) for to in ("int64", "float64")),
    ("uint32", "uint64"),
    *(("float16", to) for to in ("float32", "float64")),
    *(("bfloat16", to) for to in ("float32", "float64")),
    ("float32", "float64"),
]
for source, target in WIDENING:
    add(
        f"load_store/widening_{source}_to_{target}",
        store_other_dtype,
        (1,),
        lambda rng, source=source, target=target: [random(rng, source, (8,)), blank(target, (8,))],
        expected=lambda x, y: {1: x.astype(y.dtype)},
    )

NARROWING = [
    *(("float64", to) for to in ("float32", "float16", "bfloat16", "int32")),
    *(("float32", to) for to in ("float16", "bfloat16", "int32", "int64", "bool", "float8_e4m3fn", "float8_e5m2")),
    *(("float16", to) for to in ("bfloat16", "int16", "uint8", "float8_e5m2")),
    *(("bfloat16", to) for to in ("float16", "int32")),
    *(("int64", to) for to in ("int32", "int16", "int8", "bool")),
    *(("int32", to) for to in ("int16", "int8", "uint32", "uint8", "bool")),
    *(("uint32", to) for to in ("int32", "int64", "uint16")),
    *(("uint8", to) for to in ("int8", "int16", "int32")),
    *(("int8", to) for to in ("uint8", "uint16", "uint64")),
    *(("float8_e4m3fn", to) for to in ("float8_e5m2", "float16", "float32")),
    ("float8_e5m2", "float32"),
]
for source, target in NARROWING:
    add(
        f"load_store/refused_{source}_to_{target}",
        store_other_dtype,
        (1,),
        lambda rng, source=source, target=target: [random(rng, source, (8,)), zeros((8,), target)],
        error=ct.TileTypeError,
        match=f"cannot implicitly cast {source} to {target}",
    )


@ct.kernel
def store_explicit_cast(x, y):
    ct.store(y, (0,), ct.load(x, (0,), (8,)).astype(y.dtype))


for source, target in [("float32", "float16"), ("float32", "bfloat16"), ("int64", "int32"), ("int32", "uint32")]:
    add(
        f"load_store/explicit_{source}_to_{target}",
        store_explicit_cast,
        (1,),
        lambda rng, source=source, target=target: [random(rng, source, (8,)), zeros((8,), target)],
        expected=lambda x, y: {1: x.astype(y.dtype)},
    )


def store_constant(value):
    @ct.kernel
    def kernel(y):
        ct.store(y, (0,), value)

    return kernel


for value, dtype, error in [
    (1.5, "int32", ct.TileTypeError),
    (1.5, "uint8", ct.TileTypeError),
    (1.5, "bool", ct.TileTypeError),
    (2, "bool", ct.TileTypeError),
    (300, "uint8", ct.TileValueError),
    (128, "int8", ct.TileValueError),
    (-129, "int8", ct.TileValueError),
    (-1, "uint32", ct.TileValueError),
    (70000, "int16", ct.TileValueError),
    (2**31, "int32", ct.TileValueError),
]:
    add(
        f"load_store/refused_constant_{value}_to_{dtype}",
        store_constant(value),
        (1,),
        lambda rng, dtype=dtype: [zeros((1,), dtype)],
        error=error,
        match="cannot implicitly cast" if error is ct.TileTypeError else "out of range",
    )
for value, dtype in [(127, "int8"), (-128, "int8"), (255, "uint8"), (65535, "uint16"), (2**31 - 1, "int32")]:
    add(
        f"load_store/constant_at_the_limit_{value}-{dtype}",
        store_constant(value),
        (1,),
        lambda rng, dtype=dtype: [zeros((1,), dtype)],
        expected=lambda y, value=value: {0: np.array([value], y.dtype)},
    )


# --- options: hints, bounds checks, memory order -----------------------------------------------------------------


def copy_with(load=None, store=None):
    load, store = load or {}, store or {}
    # cuTile takes no ** in a call, so each option is spelled out with the default that the documentation gives.
    latency_in, latency_out = load.get("latency"), store.get("latency")
    tma_in, tma_out = load.get("allow_tma"), store.get("allow_tma")
    check_in, check_out = load.get("check_bounds", True), store.get("check_bounds", True)
    order_in = load.get("memory_order", ct.MemoryOrder.WEAK)
    order_out = store.get("memory_order", ct.MemoryOrder.WEAK)
    scope_in = load.get("memory_scope", ct.MemoryScope.NONE)
    scope_out = store.get("memory_scope", ct.MemoryScope.NONE)

    @ct.kernel
    def kernel(x, y):
        i = ct.bid(0)
        tile = ct.load(
            x,
            (i,),
            (8,),
            latency=latency_in,
            allow_tma=tma_in,
            check_bounds=check_in,
            memory_order=order_in,
            memory_scope=scope_in,
        )
        ct.store(
            y,
            (i,),
            tile,
            latency=latency_out,
            allow_tma=tma_out,
            check_bounds=check_out,
            memory_order=order_out,
            memory_scope=scope_out,
        )

    return kernel


def option_case(name, load=None, store=None, **verdict):
    if not verdict:
        verdict = {"expected": lambda x, y: {1: x}}
    add(
        f"load_store/{name}",
        copy_with(load, store),
        (2,),
        lambda rng: [random(rng, "float32", (16,)), zeros((16,), "float32")],
        **verdict,
    )


for latency in (1, 5, 10):
    option_case(f"latency_{latency}", {"latency": latency}, {"latency": latency})
for latency in (0, 11, -1):
    for side in ("load", "store"):
        option_case(
            f"{side}_latency_{latency}_refused",
            **{side: {"latency": latency}},
            error=ct.TileValueError,
            match="between 1 and 10",
        )
for allowed in (True, False):
    option_case(f"allow_tma_{allowed}", {"allow_tma": allowed}, {"allow_tma": allowed})
option_case("load_allow_tma_int_refused", {"allow_tma": 1}, error=ct.TileTypeError)
option_case("store_latency_float_refused", None, {"latency": 1.5}, error=ct.TileTypeError)
option_case("unchecked_bounds", {"check_bounds": False}, {"check_bounds": False})
option_case("load_check_bounds_int_refused", {"check_bounds": 0}, error=ct.TileTypeError)

LOAD_ORDERS = (ct.MemoryOrder.RELAXED, ct.MemoryOrder.ACQUIRE)
STORE_ORDERS = (ct.MemoryOrder.RELAXED, ct.MemoryOrder.RELEASE)
SCOPES = (ct.MemoryScope.BLOCK, ct.MemoryScope.DEVICE, ct.MemoryScope.SYS)
for order in LOAD_ORDERS:
    for scope in SCOPES:
        option_case(f"load_{order.value}_{scope.value}", {"memory_order": order, "memory_scope": scope})
for order in STORE_ORDERS:
    for scope in SCOPES:
        option_case(f"store_{order.value}_{scope.value}", None, {"memory_order": order, "memory_scope": scope})
for side, orders in (("load", LOAD_ORDERS), ("store", STORE_ORDERS)):
    for order in ct.MemoryOrder:
        if order not in (*orders, ct.MemoryOrder.WEAK):
            option_case(
                f"{side}_{order.value}_refused",
                **{side: {"memory_order": order, "memory_scope": ct.MemoryScope.DEVICE}},
                error=ct.TileTypeError,
                match="[Ii]nvalid memory order",
            )
    option_case(
        f"{side}_weak_with_scope_refused",
        **{side: {"memory_scope": ct.MemoryScope.DEVICE}},
        error=ct.TileTypeError,
        match="WEAK",
    )
    option_case(
        f"{side}_{orders[1].value}_without_scope_refused",
        **{side: {"memory_order": orders[1]}},
        error=ct.TileTypeError,
        match="memory scope",
    )
    option_case(
        f"{side}_cluster_scope_refused",
        **{side: {"memory_order": orders[0], "memory_scope": ct.MemoryScope.CLUSTER}},
        error=ct.TileTypeError,
        match="[Ii]nvalid memory scope",
    )


# --- refused indices, shapes and orders --------------------------------------------------------------------------


def bad_load(index, shape, order="C"):
    @ct.kernel
    def kernel(x):
        ct.load(x, index, shape, order=order)

    return kernel


def bad_store(index, shape, order="C"):
    @ct.kernel
    def kernel(x):
        ct.store(x, index, ct.zeros(shape, ct.float32), order=order)

    return kernel


def array_4x4(rng):
    return [zeros((4, 4), "float32")]


for name, index, shape, order, match in [
    ("index_too_short", (0,), (2, 2), "C", "rank"),
    ("index_too_long", (0, 0, 0), (2, 2), "C", "rank"),
    ("plain_index_for_2d", 0, (2, 2), "C", "rank"),
    ("float_index", (0.0, 0), (2, 2), "C", "integer"),
    ("shape_too_short", (0, 0), (2,), "C", "shape"),
    ("shape_too_long", (0, 0), (2, 2, 2), "C", "shape"),
    ("shape_not_a_power_of_two", (0, 0), (3, 2), "C", "power of two"),
    ("shape_zero", (0, 0), (0, 2), "C", "not positive"),
    ("shape_negative", (0, 0), (-2, 2), "C", "not positive"),
    ("shape_float", (0, 0), (2.0, 2), "C", "integer"),
    ("order_repeats_an_axis", (0, 0), (2, 2), (0, 0), "permutation"),
    ("order_too_short", (0, 0), (2, 2), (0,), "length"),
    ("order_out_of_range", (0, 0), (2, 2), (0, 2), "out of range"),
    ("order_unknown_letter", (0, 0), (2, 2), "A", "'C' or 'F'"),
]:
    add(
        f"load_store/load_{name}",
        bad_load(index, shape, order),
        (1,),
        array_4x4,
        error=ct.TileTypeError,
        match=match,
    )
    if "shape" not in name:
        add(
            f"load_store/store_{name}",
            bad_store(index, shape, order),
            (1,),
            array_4x4,
            error=ct.TileTypeError,
            match=match,
        )


@ct.kernel
def unsigned_index(x):
    ct.load(x, (ct.full((), 0, ct.uint32), 0), (2, 2))


@ct.kernel
def tile_index(x):
    ct.load(x, (ct.arange(2, dtype=ct.int32), 0), (2, 2))


@ct.kernel
def runtime_shape(x):
    ct.load(x, (0, 0), (x.shape[0], 2))


@ct.kernel
def shape_from_block_index(x):
    ct.load(x, (0, 0), (ct.bid(0) + 1, 2))


@ct.kernel
def load_of_a_tile(x):
    tile = ct.load(x, (0, 0), (2, 2))
    ct.load(tile, (0, 0), (1, 1))


@ct.kernel
def subscripted_array(x):
    x[0]


@ct.kernel
def assigned_array_element(x):
    x[0, 0] = 1.0


@ct.kernel
def assigned_tile_element(x):
    tile = ct.load(x, (0, 0), (2, 2))
    tile[0, 0] = 1.0


@ct.kernel
def padding_by_value(x):
    ct.load(x, (0, 0), (2, 2), padding_mode=0)


@ct.kernel
def unknown_keyword(x):
    ct.load(x, (0, 0), (2, 2), boundary_check=True)


@ct.kernel
def missing_shape(x):
    ct.load(x, (0, 0))


for name, kernel, match in [
    ("unsigned_index", unsigned_index, "signed"),
    ("tile_index", tile_index, "integer"),
    ("shape_from_run_time_shape", runtime_shape, "constant"),
    ("shape_from_block_index", shape_from_block_index, "constant"),
    ("load_of_a_tile", load_of_a_tile, "array"),
    ("subscripted_array", subscripted_array, "not directly subscriptable"),
    ("assigned_array_element", assigned_array_element, "do not support item assignment"),
    ("assigned_tile_element", assigned_tile_element, "immutable"),
    ("padding_by_value", padding_by_value, "PaddingMode"),
    ("unknown_keyword", unknown_keyword, None),
    ("missing_shape", missing_shape, None),
]:
    add(f"load_store/{name}_refused", kernel, (1,), array_4x4, error=ct.TileTypeError, match=match)


# --- attributes, strides and index widths of arrays --------------------------------------------------------------


@ct.kernel
def attributes(x, y):
    ct.static_assert(x.dtype == ct.float16)
    ct.static_assert(x.ndim == 2)
    ct.store(y, (0,), x.shape[0])
    ct.store(y, (1,), x.shape[1])
    ct.store(y, (2,), x.strides[0])
    ct.store(y, (3,), x.strides[1])


add(
    "arrays/shape_and_strides_count_elements",
    attributes,
    (1,),
    lambda rng: [zeros((6, 10), "float16"), zeros((4,))],
    expected=lambda x, y: {1: [3, 2, 20, 5]},
    views=lambda x, y: (x[::2, ::5], y),
)


@ct.kernel
def attributes_int64(x: ct.IndexedWithInt64, y):
    ct.store(y, (0,), x.shape[0])
    ct.store(y, (1,), x.strides[0])


add(
    "arrays/int64_shape_and_strides",
    attributes_int64,
    (1,),
    lambda rng: [zeros((6, 4)), zeros((2,), "int64")],
    expected=lambda x, y: {1: np.array([6, 4], np.int64)},
)
add(
    "arrays/int64_shape_does_not_fit_an_int32_array",
    attributes_int64,
    (1,),
    lambda rng: [zeros((6, 4)), zeros((2,), "int32")],
    error=ct.TileTypeError,
    match="cannot implicitly cast int64 to int32",
)


@ct.kernel
def copy_int64(x: ct.IndexedWithInt64, y: ct.IndexedWithInt64):
    i, j = ct.bid(0), ct.bid(1)
    ct.store(y, (i, j), ct.load(x, (i, j), (4, 4)))


add(
    "arrays/int64_indexed_copy",
    copy_int64,
    (2, 2),
    lambda rng: [random(rng, "int32", (7, 5)), zeros((7, 5))],
    expected=lambda x, y: {1: x},
)

STRIDED = {
    "transposed": ((5, 7), lambda a: a.T),
    "every_other_column": ((7, 10), lambda a: a[:, ::2]),
    "every_other_row": ((14, 5), lambda a: a[::2]),
    "offset_base": ((8, 6), lambda a: a[1:, 1:]),
    "expanded_rows": ((5,), lambda a: expanded(a, (7, 5))),
    "expanded_columns": ((7, 1), lambda a: expanded(a, (7, 5))),
    "expanded_scalar": ((), lambda a: expanded(a, (7, 5))),
}


@ct.kernel
def copy_4x4(x, y):
    i, j = ct.bid(0), ct.bid(1)
    ct.store(y, (i, j), ct.load(x, (i, j), (4, 4), padding_mode=ct.PaddingMode.ZERO))


def stored_through(view, x, y):
    result = y.copy()
    view(result)[...] = x
    return result


for name, (shape, view) in STRIDED.items():
    add(
        f"arrays/load_{name}",
        copy_4x4,
        (2, 2),
        lambda rng, shape=shape: [random(rng, "int32", shape), zeros((7, 5))],
        expected=lambda x, y, view=view: {1: view(x)},
        views=lambda x, y, view=view: (view(x), y),
    )
    if "expanded" not in name:
        add(
            f"arrays/store_{name}",
            copy_4x4,
            (2, 2),
            lambda rng, shape=shape: [random(rng, "int32", (7, 5)), zeros(shape)],
            expected=lambda x, y, view=view: {1: stored_through(view, x, y)},
            views=lambda x, y, view=view: (x, view(y)),
        )


@ct.kernel
def static_shape(x: Annotated[ct.Array, ct.ArrayAnnotation(static_shape_dims=(0, -1))], y):
    tile = ct.load(x, (0, 0), (x.shape[0], x.shape[1]))
    ct.store(y, (0, 0), tile)


add(
    "arrays/static_shape_is_a_constant",
    static_shape,
    (1,),
    lambda rng: [random(rng, "int32", (4, 8)), zeros((4, 8))],
    expected=lambda x, y: {1: x},
)


@ct.kernel
def half_static_shape(x: Annotated[ct.Array, ct.ArrayAnnotation(static_shape_dims=(0,))], y):
    ct.store(y, (0, 0), ct.load(x, (0, 0), (x.shape[0], x.shape[1])))


add(
    "arrays/other_dimensions_stay_run_time_values",
    half_static_shape,
    (1,),
    lambda rng: [random(rng, "int32", (4, 8)), zeros((4, 8))],
    error=ct.TileTypeError,
    match="constant",
)


@ct.kernel
def static_strides(x: Annotated[ct.Array, ct.ArrayAnnotation(static_stride_dims=(0, 1))], y):
    ct.static_assert(x.strides == (8, 1))
    ct.store(y, (0,), ct.full((x.strides[0],), 3, ct.int32))


add(
    "arrays/static_strides_are_constants",
    static_strides,
    (1,),
    lambda rng: [random(rng, "int32", (4, 8)), zeros((8,))],
    expected=lambda x, y: {1: np.full(8, 3, np.int32)},
)


@ct.kernel
def attributes_of_a_tile(x, y):
    tile = ct.load(x, (0, 0), (2, 4))
    ct.static_assert(tile.shape == (2, 4))
    ct.static_assert(tile.ndim == 2)
    ct.static_assert(tile.dtype == x.dtype)
    ct.store(y, (0, 0), ct.full(tile.shape, 3, y.dtype))


add(
    "arrays/attributes_of_a_tile_are_constants",
    attributes_of_a_tile,
    (1,),
    lambda rng: [random(rng, "float16", (2, 4)), zeros((2, 4))],
    expected=lambda x, y: {1: np.full((2, 4), 3, np.int32)},
)

# --- num_tiles, bid, num_blocks ----------------------------------------------------------------------------------


def count_tiles(axis, shape, order):
    @ct.kernel
    def kernel(x, y):
        ct.store(y, (0,), ct.num_tiles(x, axis, shape, order=order))

    return kernel


for array_shape, axis, shape, order, count in [
    ((42, 64), 0, (4, 8), "C", 11),
    ((42, 64), 1, (4, 8), "C", 8),
    ((42, 64), -1, (4, 8), "C", 8),
    ((42, 64), 0, (4, 8), "F", 16),
    ((42, 64), 1, (4, 8), (1, 0), 6),
    ((42,), 0, 16, "C", 3),
    ((42,), 0, (64,), "C", 1),
    ((42, 3), 0, (), "C", 42),
    ((2, 3, 5), 1, (1, 2, 4), (2, 0, 1), 1),
    ((2, 3, 5), 0, (1, 2, 4), (2, 0, 1), 5),
]:
    add(
        f"num_tiles/{'x'.join(map(str, array_shape))}_axis{axis}_{shape}_{order}".replace(" ", ""),
        count_tiles(axis, shape, order),
        (1,),
        lambda rng, array_shape=array_shape: [zeros(array_shape), zeros((1,))],
        expected=lambda x, y, count=count: {1: np.array([count], np.int32)},
    )
for name, axis, shape, order, match in [
    ("axis_out_of_range", 2, (4, 4), "C", "out of range"),
    ("shape_not_a_power_of_two", 0, (3, 4), "C", "power of two"),
    ("shape_too_short", 0, (4,), "C", "shape"),
    ("order_repeats_an_axis", 0, (4, 4), (1, 1), "permutation"),
]:
    add(
        f"num_tiles/{name}_refused",
        count_tiles(axis, shape, order),
        (1,),
        lambda rng: [zeros((4, 4)), zeros((1,))],
        error=ct.TileTypeError,
        match=match,
    )


@ct.kernel
def every_block(y):
    i, j, k = ct.bid(0), ct.bid(1), ct.bid(2)
    number = (i * ct.num_blocks(1) + j) * ct.num_blocks(2) + k
    ct.store(y, (i, j, k), number)


for grid in [(3,), (2, 3), (2, 3, 4), (1, 1, 5)]:
    shape = (*grid, 1, 1)[:3]
    add(
        f"grid/every_block_runs_once_{'x'.join(map(str, grid))}",
        every_block,
        grid,
        lambda rng, shape=shape: [np.full(shape, -1, np.int32)],
        expected=lambda y: {0: np.arange(y.size, dtype=np.int32).reshape(y.shape)},
    )


@ct.kernel
def loop_over_tiles(x, y):
    total = 0
    for i in range(ct.num_tiles(x, 0, (8,))):
        total += ct.sum(ct.load(x, (i,), (8,), padding_mode=ct.PaddingMode.ZERO))
    ct.store(y, (0,), total)


add(
    "num_tiles/bounds_a_loop",
    loop_over_tiles,
    (1,),
    lambda rng: [np.arange(27, dtype=np.int32), zeros((1,))],
    expected=lambda x, y: {1: np.array([351], np.int32)},
)


def block_axis(axis, function):
    @ct.kernel
    def kernel(y):
        ct.store(y, (0,), function(axis))

    return kernel


for axis in (3, -1):
    for function in (ct.bid, ct.num_blocks):
        add(
            f"grid/{function.__name__}_of_axis_{axis}_refused",
            block_axis(axis, function),
            (1,),
            lambda rng: [zeros((1,))],
            error=ct.TileTypeError,
            match="[Aa]xis must be 0, 1, or 2",
        )


@ct.kernel
def axis_from_block(y):
    ct.store(y, (0,), ct.bid(ct.bid(0)))


add(
    "grid/run_time_axis_refused",
    axis_from_block,
    (1,),
    lambda rng: [zeros((1,))],
    error=ct.TileTypeError,
    match="constant",
)


@ct.kernel
def assumed_divisible(x, y, n):
    n = ct.assume_divisible_by(n, 8)
    ct.store(y, (0,), n // 8)


add(
    "grid/assume_divisible_by_keeps_the_value",
    assumed_divisible,
    (1,),
    lambda rng: [zeros((1,)), zeros((1,)), 40],
    expected=lambda x, y, n: {1: np.array([5], np.int32)},
)


def bad_assumption(divisor):
    @ct.kernel
    def kernel(y, n):
        ct.store(y, (0,), ct.assume_divisible_by(n, divisor))

    return kernel


for divisor in (0, -4, 2.0):
    add(
        f"grid/assume_divisible_by_{divisor}_refused",
        bad_assumption(divisor),
        (1,),
        lambda rng: [zeros((1,)), 8],
        error=ct.TileTypeError,
    )
