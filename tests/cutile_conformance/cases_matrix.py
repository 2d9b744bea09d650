"""mma, matmul and mma_scaled: dtypes of operands and accumulators, batches, broadcasting, refusals."""

import cuda.tile as ct
import numpy as np

from .building import small, zeros
from .dtypes import NUMPY, TILE, random
from .harness import Case, Tolerance

CASES = []
ACCUMULATORS = {
    "float16": ("float16", "float32"),
    "bfloat16": ("float32",),
    "float32": ("float32",),
    "float64": ("float64",),
    "float8_e4m3fn": ("float16", "float32"),
    "float8_e5m2": ("float16", "float32"),
    "int8": ("int32",),
    "uint8": ("int32",),
}


def add(*args, **kwargs):
    CASES.append(Case(*args, **kwargs))


def refuse(name, kernel, args, match="", **kwargs):
    CASES.append(Case(name, kernel, (1,), args, error=ct.TileTypeError, match=match, **kwargs))


def whole(*arrays):
    """The arrays in float64, in which products and sums of what these cases use are exact."""
    return [a.astype(np.float64) for a in arrays]


def origin(shape):
    return (0,) * len(shape)


# --- mma ---------------------------------------------------------------------------------------------------------


def mma_of(x_shape, y_shape, acc_shape):
    at_x, at_y, at_acc = origin(x_shape), origin(y_shape), origin(acc_shape)

    @ct.kernel
    def kernel(x, y, acc, out):
        a, b, c = ct.load(x, at_x, x_shape), ct.load(y, at_y, y_shape), ct.load(acc, at_acc, acc_shape)
        result = ct.mma(a, b, c)
        ct.static_assert(result.dtype == acc.dtype)
        ct.static_assert(result.shape == acc_shape)
        ct.store(out, at_acc, result)

    return kernel


def mma_case(name, x_shape, y_shape, acc_shape, x_dtype, y_dtype, acc_dtype):
    def args(rng):
        low = 0 if x_dtype == "uint8" else -4
        return [
            small(rng, x_dtype, x_shape, low, 4),
            small(rng, y_dtype, y_shape, 0 if y_dtype == "uint8" else -4, 4),
            small(rng, acc_dtype, acc_shape, -9, 9),
            np.full(acc_shape, 123).astype(NUMPY[acc_dtype]),
        ]

    def expected(x, y, acc, out):
        x, y, acc = whole(x, y, acc)
        return {3: x @ y + acc}

    add(name, mma_of(x_shape, y_shape, acc_shape), (1,), args, expected=expected)


SHAPES = [
    ((16, 16), (16, 16), (16, 16)),
    ((32, 16), (16, 8), (32, 8)),
    ((2, 32, 16), (2, 16, 16), (2, 32, 16)),
]
for dtype, accumulators in ACCUMULATORS.items():
    for accumulator in accumulators:
        for x_shape, y_shape, acc_shape in SHAPES:
            name = "x".join(map(str, x_shape)) + "_" + "x".join(map(str, y_shape))
            mma_case(f"mma/{name}-{dtype}-{accumulator}", x_shape, y_shape, acc_shape, dtype, dtype, accumulator)
for x_dtype, y_dtype in (("int8", "uint8"), ("uint8", "int8")):
    mma_case(f"mma/mixed_{x_dtype}_{y_dtype}", *SHAPES[0], x_dtype, y_dtype, "int32")
for name, shapes in {
    "small": ((2, 4), (4, 2), (2, 2)),
    "one_by_one": ((1, 1), (1, 1), (1, 1)),
    "row_by_column": ((1, 16), (16, 1), (1, 1)),
    "outer_product": ((16, 1), (1, 8), (16, 8)),
    "3d_by_2d": ((2, 8, 16), (16, 4), (2, 8, 4)),
    "2d_by_3d": ((8, 16), (2, 16, 4), (2, 8, 4)),
    "batch_of_one_by_batch": ((1, 8, 16), (4, 16, 8), (4, 8, 8)),
    "batch_by_batch_of_one": ((4, 8, 16), (1, 16, 8), (4, 8, 8)),
}.items():
    for dtype, accumulator in (("float16", "float32"), ("float32", "float32"), ("int8", "int32")):
        mma_case(f"mma/{name}-{dtype}", *shapes, dtype, dtype, accumulator)


@ct.kernel
def mma_extreme_int8(x, y, out):
    acc = ct.full((16, 16), 2_000_000_000, ct.int32)
    ct.store(out, (0, 0), ct.mma(ct.load(x, (0, 0), (16, 16)), ct.load(y, (0, 0), (16, 16)), acc))


add(
    "mma/int8_over_its_whole_range",
    mma_extreme_int8,
    (1,),
    lambda rng: [random(rng, "int8", (16, 16)), random(rng, "int8", (16, 16)), zeros((16, 16))],
    expected=lambda x, y, out: {2: (x.astype(np.int64) @ y.astype(np.int64) + 2_000_000_000).astype(np.int32)},
)


@ct.kernel
def mma_tf32(x, y, out):
    a = ct.load(x, (0, 0), (16, 16)).astype(ct.tfloat32)
    b = ct.load(y, (0, 0), (16, 16)).astype(ct.tfloat32)
    ct.store(out, (0, 0), ct.mma(a, b, ct.zeros((16, 16), ct.float32)))


add(
    "mma/tf32_of_whole_numbers",
    mma_tf32,
    (1,),
    lambda rng: [small(rng, "float32", (16, 16)), small(rng, "float32", (16, 16)), zeros((16, 16), "float32")],
    expected=lambda x, y, out: {2: np.matmul(*whole(x, y))},
)


def rounded_to_tf32(x):
    """Ten bits of mantissa, ties to even, of float32 values."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFE000
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


add(
    "mma/tf32_rounds_its_operands",
    mma_tf32,
    (1,),
    lambda rng: [random(rng, "float32", (16, 16)), np.eye(16, dtype=np.float32), zeros((16, 16), "float32")],
    expected=lambda x, y, out: {2: rounded_to_tf32(x)},
)
add(
    "mma/float32_is_not_tf32",
    mma_of((16, 16), (16, 16), (16, 16)),
    (1,),
    lambda rng: [
        random(rng, "float32", (16, 16)),
        np.eye(16, dtype=np.float32),
        zeros((16, 16), "float32"),
        zeros((16, 16), "float32"),
    ],
    expected=lambda x, y, acc, out: {3: x},
)


@ct.kernel
def mma_fast(x, y, out):
    acc = ct.zeros((16, 16), ct.float32)
    a, b = ct.load(x, (0, 0), (16, 16)), ct.load(y, (0, 0), (16, 16))
    ct.store(out, (0, 0), ct.mma(a, b, acc, use_fast_acc=True))


for dtype in ("float8_e4m3fn", "float8_e5m2"):
    add(
        f"mma/fast_accumulation-{dtype}",
        mma_fast,
        (1,),
        lambda rng, dtype=dtype: [
            small(rng, dtype, (16, 16), 0, 2),
            small(rng, dtype, (16, 16), 0, 2),
            zeros((16, 16), "float32"),
        ],
        expected=lambda x, y, out: {2: np.matmul(*whole(x, y))},
    )
for dtype in ("float16", "bfloat16", "float32", "int8"):
    refuse(
        f"mma/fast_accumulation_{dtype}_refused",
        mma_fast,
        lambda rng, dtype=dtype: [zeros((16, 16), dtype), zeros((16, 16), dtype), zeros((16, 16), "float32")],
        "use_fast_acc",
    )


def gemm(block_m, block_n, block_k):
    @ct.kernel
    def kernel(x, y, out):
        i, j = ct.bid(0), ct.bid(1)
        acc = ct.zeros((block_m, block_n), ct.float32)
        for k in range(ct.num_tiles(x, 1, (block_m, block_k))):
            a = ct.load(x, (i, k), (block_m, block_k), padding_mode=ct.PaddingMode.ZERO)
            b = ct.load(y, (k, j), (block_k, block_n), padding_mode=ct.PaddingMode.ZERO)
            acc = ct.mma(a, b, acc)
        ct.store(out, (i, j), acc.astype(out.dtype))

    return kernel


for dtype in ("float16", "bfloat16", "float32"):
    add(
        f"mma/ragged_matrix_product-{dtype}",
        gemm(16, 32, 16),
        (3, 2),
        lambda rng, dtype=dtype: [
            small(rng, dtype, (37, 53), -2, 2),
            small(rng, dtype, (53, 45), -2, 2),
            zeros((37, 45), dtype),
        ],
        expected=lambda x, y, out: {2: np.matmul(*whole(x, y))},
    )
    # The largest rounding error of a sum of K products of factors below 4 is K eps K 16.
    add(
        f"mma/random_matrix_product-{dtype}",
        gemm(32, 16, 32),
        (2, 3),
        lambda rng, dtype=dtype: [
            random(rng, dtype, (37, 53)),
            random(rng, dtype, (53, 45)),
            zeros((37, 45), "float32"),
        ],
        expected=lambda x, y, out: {2: np.matmul(*whole(x, y))},
        tolerance=Tolerance(ulps=1, absolute=53 * 2.0**-23 * 53 * 16 / 4),
    )

# --- what mma refuses --------------------------------------------------------------------------------------------


def mma_filled(x_shape, y_shape, acc_shape, x_dtype, y_dtype, acc_dtype):
    x_type, y_type, acc_type = TILE[x_dtype], TILE[y_dtype], TILE[acc_dtype]

    @ct.kernel
    def kernel(out):
        ct.mma(ct.ones(x_shape, x_type), ct.ones(y_shape, y_type), ct.zeros(acc_shape, acc_type))

    return kernel


def out_array(rng):
    return [zeros((16, 16), "float32")]


SQUARE = SHAPES[0]
for dtype, accumulators in {**ACCUMULATORS, "tfloat32": ("float32",)}.items():
    for accumulator in ("float16", "bfloat16", "float32", "float64", "int32", "int8"):
        if accumulator not in accumulators:
            refuse(
                f"mma/{dtype}_into_{accumulator}_refused",
                mma_filled(*SQUARE, dtype, dtype, accumulator),
                out_array,
                "acc dtype",
            )
for dtype in ("bool", "int16", "int32", "int64", "uint16", "uint32", "uint64"):
    refuse(f"mma/operands_{dtype}_refused", mma_filled(*SQUARE, dtype, dtype, "int32"), out_array, "input dtype")
for x_dtype, y_dtype in (
    ("float16", "float32"),
    ("float16", "bfloat16"),
    ("float32", "tfloat32"),
    ("float8_e4m3fn", "float8_e5m2"),
    ("int8", "float16"),
):
    refuse(
        f"mma/operands_{x_dtype}_and_{y_dtype}_refused",
        mma_filled(*SQUARE, x_dtype, y_dtype, "float32"),
        out_array,
        "same dtype",
    )
for name, x_shape, y_shape, acc_shape, match in (
    ("inner_sizes_differ", (16, 8), (16, 16), (16, 16), "Incompatible shapes"),
    ("accumulator_of_another_shape", (16, 16), (16, 16), (16, 8), "acc shape"),
    ("accumulator_not_batched", (2, 16, 16), (2, 16, 16), (16, 16), "acc shape"),
    ("batches_differ", (2, 16, 16), (4, 16, 16), (4, 16, 16), "Incompatible shapes"),
    ("1d_left", (16,), (16, 16), (16,), "at least 2D"),
    ("1d_right", (16, 16), (16,), (16,), "at least 2D"),
):
    kernel = mma_filled(x_shape, y_shape, acc_shape, "float16", "float16", "float32")
    refuse(f"mma/{name}_refused", kernel, out_array, match)


@ct.kernel
def mma_by_keyword(out):
    x = ct.ones((16, 16), ct.float16)
    ct.mma(x=x, y=x, acc=ct.zeros((16, 16), ct.float32))


@ct.kernel
def mma_without_accumulator(out):
    x = ct.ones((16, 16), ct.float16)
    ct.mma(x, x)


@ct.kernel
def mma_scalar_accumulator(out):
    x = ct.ones((16, 16), ct.float16)
    ct.mma(x, x, 0.0)


for name, kernel in (
    ("operands_by_keyword", mma_by_keyword),
    ("no_accumulator", mma_without_accumulator),
    ("scalar_accumulator", mma_scalar_accumulator),
):
    refuse(f"mma/{name}_refused", kernel, out_array)

# --- matmul ------------------------------------------------------------------------------------------------------


def matmul_of(x_shape, y_shape, out_shape, dtype, operator=False):
    at_x, at_y, at_out = origin(x_shape), origin(y_shape), origin(out_shape)
    result_type = TILE[dtype]

    @ct.kernel
    def kernel(x, y, out):
        result = ct.matmul(ct.load(x, at_x, x_shape), ct.load(y, at_y, y_shape))
        ct.static_assert(result.dtype == result_type)
        ct.static_assert(result.shape == out_shape)
        ct.store(out, at_out if out_shape else (0,), result)

    @ct.kernel
    def with_operator(x, y, out):
        result = ct.load(x, at_x, x_shape) @ ct.load(y, at_y, y_shape)
        ct.static_assert(result.dtype == result_type)
        ct.static_assert(result.shape == out_shape)
        ct.store(out, at_out if out_shape else (0,), result)

    return with_operator if operator else kernel


def matmul_case(name, x_shape, y_shape, out_shape, x_dtype, y_dtype, dtype, operator=False):
    low = 0 if "uint8" in (x_dtype, y_dtype) else -2
    add(
        name,
        matmul_of(x_shape, y_shape, out_shape, dtype, operator),
        (1,),
        lambda rng: [
            small(rng, x_dtype, x_shape, low, 2),
            small(rng, y_dtype, y_shape, low, 2),
            np.full(out_shape or (1,), 111).astype(NUMPY[dtype]),
        ],
        expected=lambda x, y, out: {2: np.matmul(*whole(x, y))},
    )


# Sums stay below 17, so that the results of fp8 (e5m2 holds whole numbers up to 8) stay exact with K = 2.
for dtype in ("float16", "bfloat16", "float32", "float64", "int8", "uint8"):
    matmul_case(f"matmul/2d-{dtype}", (16, 16), (16, 8), (16, 8), dtype, dtype, dtype)
    matmul_case(f"matmul/operator-{dtype}", (8, 16), (16, 16), (8, 16), dtype, dtype, dtype, operator=True)
for dtype in ("float8_e4m3fn", "float8_e5m2"):
    matmul_case(f"matmul/2d-{dtype}", (16, 2), (2, 8), (16, 8), dtype, dtype, dtype)
for name, shapes in {
    "1d_by_1d": ((16,), (16,), ()),
    "1d_by_2d": ((16,), (16, 8), (8,)),
    "2d_by_1d": ((8, 16), (16,), (8,)),
    "3d_by_2d": ((2, 8, 16), (16, 4), (2, 8, 4)),
    "2d_by_3d": ((8, 16), (2, 16, 4), (2, 8, 4)),
    "3d_by_3d": ((2, 8, 16), (2, 16, 4), (2, 8, 4)),
    "3d_by_1d": ((2, 8, 16), (16,), (2, 8)),
    "1d_by_3d": ((16,), (2, 16, 4), (2, 4)),
    "batch_of_one": ((1, 8, 16), (4, 16, 4), (4, 8, 4)),
}.items():
    for dtype in ("float16", "float32"):
        matmul_case(f"matmul/{name}-{dtype}", *shapes, dtype, dtype, dtype)
for x_dtype, y_dtype, dtype in (
    ("float16", "float32", "float32"),
    ("float32", "bfloat16", "float32"),
    ("float32", "float64", "float64"),
    ("int8", "float16", "float16"),
    ("uint8", "float32", "float32"),
):
    matmul_case(f"matmul/promotes_{x_dtype}_and_{y_dtype}", (16, 16), (16, 8), (16, 8), x_dtype, y_dtype, dtype)


def matmul_filled(x_shape, y_shape, x_dtype, y_dtype):
    x_type, y_type = TILE[x_dtype], TILE[y_dtype]

    @ct.kernel
    def kernel(out):
        ct.matmul(ct.ones(x_shape, x_type), ct.ones(y_shape, y_type))

    return kernel


for x_dtype, y_dtype in (
    ("int16", "int16"),
    ("int32", "int32"),
    ("int64", "int64"),
    ("bool", "bool"),
    ("float16", "bfloat16"),
    ("int8", "uint8"),
    ("int8", "int32"),
    ("float8_e4m3fn", "float16"),
    ("tfloat32", "float32"),
):
    refuse(f"matmul/{x_dtype}_by_{y_dtype}_refused", matmul_filled((16, 16), (16, 16), x_dtype, y_dtype), out_array)
for name, x_shape, y_shape in (
    ("inner_sizes_differ", (16, 8), (16, 16)),
    ("batches_differ", (2, 16, 16), (4, 16, 16)),
    ("vectors_of_different_lengths", (8,), (16,)),
):
    refuse(f"matmul/{name}_refused", matmul_filled(x_shape, y_shape, "float16", "float16"), out_array, "Incompatible")


# --- mma_scaled --------------------------------------------------------------------------------------------------


def scaled(x_shape, y_shape, block, x_batch=None):
    """Operands loaded in float32 and cast; scales are powers of two, which e8m0 and e4m3 hold exactly."""
    k = x_shape[-1]
    x_scale_shape = (*x_shape[:-1], k // block)
    y_scale_shape = (*y_shape[:-2], k // block, y_shape[-1])
    batch = max(x_shape[:-2], y_shape[:-2], key=len)
    out_shape = (*batch, x_shape[-2], y_shape[-1])
    return x_scale_shape, y_scale_shape, out_shape


def mma_scaled_of(dtype, scale_dtype, x_shape, y_shape, block):
    element, scale = TILE[dtype], TILE[scale_dtype]
    x_scale_shape, y_scale_shape, out_shape = scaled(x_shape, y_shape, block)
    at_x, at_y, at_out = origin(x_shape), origin(y_shape), origin(out_shape)

    @ct.kernel
    def kernel(x, x_scale, y, y_scale, out):
        a = ct.load(x, at_x, x_shape).astype(element)
        b = ct.load(y, at_y, y_shape).astype(element)
        a_scale = ct.load(x_scale, at_x, x_scale_shape).astype(scale, rounding_mode=rounding)
        b_scale = ct.load(y_scale, at_y, y_scale_shape).astype(scale, rounding_mode=rounding)
        acc = ct.ones(out_shape, ct.float32)
        ct.store(out, at_out, ct.mma_scaled(a, a_scale, b, b_scale, acc))

    rounding = ct.RoundingMode.RZ if scale_dtype == "float8_e8m0fnu" else ct.RoundingMode.RN
    return kernel


def powers_of_two(rng, shape):
    return (2.0 ** rng.integers(-2, 3, shape)).astype(np.float32)


def mma_scaled_expected(x, x_scale, y, y_scale, out):
    x, x_scale, y, y_scale = whole(x, x_scale, y, y_scale)
    block = x.shape[-1] // x_scale.shape[-1]
    return {4: (x * np.repeat(x_scale, block, -1)) @ (y * np.repeat(y_scale, block, -2)) + 1}


for dtype, scale_dtype, block in (
    ("float8_e4m3fn", "float8_e8m0fnu", 32),
    ("float8_e5m2", "float8_e8m0fnu", 32),
    ("float4_e2m1fn", "float8_e8m0fnu", 16),
    ("float4_e2m1fn", "float8_e8m0fnu", 32),
    ("float4_e2m1fn", "float8_e4m3fn", 16),
):
    for x_shape, y_shape in (
        ((16, 64), (64, 16)),
        ((32, 128), (128, 8)),
        ((2, 16, 64), (2, 64, 16)),
        ((2, 16, 64), (64, 16)),
    ):
        name = "x".join(map(str, x_shape)) + "_" + "x".join(map(str, y_shape))
        x_scale_shape, y_scale_shape, out_shape = scaled(x_shape, y_shape, block)
        add(
            f"mma_scaled/{name}-{dtype}-{scale_dtype}-{block}",
            mma_scaled_of(dtype, scale_dtype, x_shape, y_shape, block),
            (1,),
            lambda rng, shapes=(x_shape, x_scale_shape, y_shape, y_scale_shape, out_shape): [
                small(rng, "float32", shapes[0]),
                powers_of_two(rng, shapes[1]),
                small(rng, "float32", shapes[2]),
                powers_of_two(rng, shapes[3]),
                zeros(shapes[4], "float32"),
            ],
            expected=mma_scaled_expected,
            needs=("sm_100",),
        )


def mma_scaled_filled(
    dtype="float8_e4m3fn",
    scale_dtype="float8_e8m0fnu",
    acc_dtype="float32",
    x=(16, 64),
    x_scale=(16, 2),
    y=(64, 16),
    y_scale=(2, 16),
    acc=(16, 16),
    y_dtype=None,
    y_scale_dtype=None,
):
    x_type, y_type = TILE[dtype], TILE[y_dtype or dtype]
    x_scale_type, y_scale_type = TILE[scale_dtype], TILE[y_scale_dtype or scale_dtype]
    acc_type = TILE[acc_dtype]

    @ct.kernel
    def kernel(out):
        ct.mma_scaled(
            ct.ones(x, x_type),
            ct.ones(x_scale, x_scale_type),
            ct.ones(y, y_type),
            ct.ones(y_scale, y_scale_type),
            ct.ones(acc, acc_type),
        )

    return kernel


for name, options in {
    "operands_float16": {"dtype": "float16"},
    "operands_float32": {"dtype": "float32"},
    "operands_int8": {"dtype": "int8"},
    "operands_differ": {"y_dtype": "float8_e5m2"},
    "scales_float32": {"scale_dtype": "float32"},
    "scales_e4m3_for_fp8": {"scale_dtype": "float8_e4m3fn"},
    "scales_differ": {
        "dtype": "float4_e2m1fn",
        "y_scale_dtype": "float8_e4m3fn",
        "x_scale": (16, 4),
        "y_scale": (4, 16),
    },
    "accumulator_float16": {"acc_dtype": "float16"},
    "accumulator_bfloat16": {"acc_dtype": "bfloat16"},
    "accumulator_float64": {"acc_dtype": "float64"},
    "block_of_16_for_fp8": {"x_scale": (16, 4), "y_scale": (4, 16)},
    "block_of_64_for_fp8": {"x_scale": (16, 1), "y_scale": (1, 16)},
    "block_of_8_for_fp4": {"dtype": "float4_e2m1fn", "x_scale": (16, 8), "y_scale": (8, 16)},
    "block_of_32_for_fp4_with_e4m3": {"dtype": "float4_e2m1fn", "scale_dtype": "float8_e4m3fn"},
    "x_scale_of_other_rows": {"x_scale": (8, 2)},
    "y_scale_of_other_columns": {"y_scale": (2, 8)},
    "inner_sizes_differ": {"y": (32, 16), "y_scale": (1, 16)},
    "accumulator_of_another_shape": {"acc": (16, 8)},
    "1d_operand": {"x": (64,), "x_scale": (2,), "acc": (16,)},
    "batch_of_scale_differs": {"x": (2, 16, 64), "x_scale": (1, 16, 2), "acc": (2, 16, 16)},
}.items():
    refuse(f"mma_scaled/{name}_refused", mma_scaled_filled(**options), out_array, needs=("sm_100",))
