"""Reshaping, permuting, broadcasting, joining, cutting tiles; indexing with None; where."""

import itertools

import cuda.tile as ct
import numpy as np

from . import kernels
from .dtypes import ARITHMETIC, FLOATS8, NUMPY, TILE, random
from .harness import Case, blank
from .kernels import expression

CASES = []
STORED = ("bool", *ARITHMETIC, *FLOATS8)


def _moved(name, text, shape, expected, dtype="int32", differs="", **values):
    """One tile in, one tile out, its elements moved: `expected` does the same with a NumPy array."""
    like = expected(np.zeros(shape, NUMPY[dtype]))
    CASES.append(
        Case(
            name,
            kernels.whole(expression(text, **values), shape, like.ndim, TILE[dtype]),
            (1,),
            lambda rng: [
                random(rng, dtype, shape),
                blank(dtype, like.shape) if dtype != "bool" else np.zeros(like.shape, bool),
            ],
            lambda x, out: expected(x),
            differs=differs,
        )
    )


def _refused(name, text, shape, error=ct.TileTypeError, match="", ndim=1, dtype="int32", needs=(), **values):
    CASES.append(
        Case(
            f"{name}/refused",
            kernels.whole(expression(text, **values), shape, ndim),
            (1,),
            lambda rng: [random(rng, dtype, shape), blank(dtype, (4,) * ndim)],
            error=error,
            match=match,
            needs=needs,
        )
    )


# ---- reshape ---------------------------------------------------------------------------------------------------------

for _from, _to in (
    ((16,), (4, 4)),
    ((16,), (2, -1)),
    ((4, 4), (16,)),
    ((4, 4), (-1,)),
    ((2, 8), (4, 2, 2)),
    ((2, 8), (4, -1, 2)),
    ((2, 2, 4), (16, 1)),
    ((1,), (1, 1, 1)),
    ((16,), (16,)),
    ((1, 16), (16,)),
):
    _moved(f"reshape/{_from}-{_to}", f"ct.reshape(x, {_to})", _from, lambda x, t=_to: x.reshape(t))
    _moved(f"reshape/method/{_from}-{_to}", f"x.reshape({_to})", _from, lambda x, t=_to: x.reshape(t), "float16")
_moved("reshape/to-0-d", "ct.reshape(ct.sum(x), ()).reshape((1,))", (8,), lambda x: x.sum(keepdims=True, dtype=x.dtype))
_moved("reshape/item", "x.item() + ct.zeros((4,), ct.int32)", (1,), lambda x: np.repeat(x, 4))
_moved("reshape/item-of-2-d", "x.item() + ct.zeros((2, 2), ct.int32)", (1, 1), lambda x: np.broadcast_to(x, (2, 2)))
_moved("reshape/of-a-list-of-constants", "x.reshape((2, 2 * 4))", (16,), lambda x: x.reshape(2, 8))
for _shape, _to, _match in (
    ((16,), (3, -1), ""),
    ((16,), (4, 8), "reshape"),
    ((16,), (-1, -1), "one dimension"),
    ((16,), (-2, 8), "-1"),
    ((16,), (0, -1), ""),
    ((16,), (2.0, 8), ""),
    ((16,), "16", ""),
):
    _refused(f"reshape/{_shape}-{_to}", f"x.reshape({_to!r})", _shape, match=_match)
_refused("reshape/not-constant", "x.reshape((ct.bid(0) + 4, 4))", (16,))
_refused("reshape/item-of-many", "x.item()", (4,), match="reshape")
for _dtype in STORED:
    _moved(f"reshape/{_dtype}", "x.reshape((2, 2, 4))", (4, 4), lambda x: x.reshape(2, 2, 4), _dtype)

# ---- permute and transpose -------------------------------------------------------------------------------------------

for _axes in itertools.permutations(range(3)):
    _moved(f"permute/{_axes}", f"ct.permute(x, {_axes})", (2, 4, 8), lambda x, a=_axes: x.transpose(a))
for _axes in ((1, 0), (0, 1), (-1, 0), (-1, -2)):
    _moved(f"permute/{_axes}", f"x.permute({_axes})", (4, 8), lambda x, a=_axes: x.transpose(a), "float32")
_moved("permute/4-d", "x.permute((3, 1, 0, 2))", (2, 4, 2, 8), lambda x: x.transpose(3, 1, 0, 2), "bfloat16")
_moved(
    "permute/1-d",
    "x.permute((0,))",
    (8,),
    lambda x: x,
    differs="tileiras 13.4 permutes tiles of two or more dimensions",
)
for _dtype in STORED:
    _moved(f"transpose/{_dtype}", "ct.transpose(x)", (4, 8), lambda x: x.T, _dtype)
_moved("transpose/method", "x.transpose()", (4, 8), lambda x: x.T)
for _a, _b in ((0, 1), (0, 2), (1, 2), (2, 0), (-1, 0), (-2, -1), (1, 1)):
    _moved(f"transpose/{_a},{_b}", f"ct.transpose(x, {_a}, {_b})", (2, 4, 8), lambda x, a=_a, b=_b: x.swapaxes(a, b))
_moved("transpose/by-name", "x.transpose(axis0=0, axis1=1)", (4, 8), lambda x: x.T)
for _name, _text, _shape in (
    ("permute/too-few", "x.permute((0,))", (4, 8)),
    ("permute/too-many", "x.permute((0, 1, 2))", (4, 8)),
    ("permute/repeated", "x.permute((0, 0))", (4, 8)),
    ("permute/beyond", "x.permute((0, 2))", (4, 8)),
    ("permute/not-constant", "x.permute((ct.bid(0), 1))", (4, 8)),
    ("permute/an-int", "x.permute(0)", (4, 8)),
    ("transpose/1-d", "ct.transpose(x)", (8,)),
    ("transpose/3-d-without-axes", "ct.transpose(x)", (2, 4, 8)),
    ("transpose/one-axis", "ct.transpose(x, 0)", (4, 8)),
    ("transpose/beyond", "ct.transpose(x, 0, 2)", (4, 8)),
    ("transpose/not-constant", "ct.transpose(x, ct.bid(0), 1)", (4, 8)),
):
    _refused(_name, _text, _shape, (ct.TileTypeError, ct.TileValueError), ndim=len(_shape))

# ---- expand_dims and indexing with None ------------------------------------------------------------------------------

for _axis in (0, 1, 2, -1, -2, -3):
    _moved(f"expand_dims/{_axis}", f"ct.expand_dims(x, {_axis})", (4, 8), lambda x, a=_axis: np.expand_dims(x, a))
for _text in (
    "[None]",
    "[None, :]",
    "[:, None]",
    "[None, :, None]",
    "[..., None]",
    "[None, ...]",
):
    _moved(f"index/1-d/{_text}", f"x{_text}", (8,), lambda x, t=_text: eval(f"x{t}"))
for _text in (
    "[None]",
    "[:, None]",
    "[:, None, :]",
    "[:, :, None]",
    "[None, :, None, :, None]",
    "[..., None]",
    "[None, ..., None]",
    "[..., None, :]",
    "[:, ...]",
):
    _moved(f"index/2-d/{_text}", f"x{_text}", (4, 8), lambda x, t=_text: eval(f"x{t}"), "float64")
_moved("index/newaxis", "x[np.newaxis, :]", (8,), lambda x: x[None], np=np)
_moved("index/outer-product", "x[:, None] * x[None, :]", (8,), lambda x: x[:, None] * x[None, :], "int64")
for _text in (
    "[:]",
    "[...]",
    "[0]",
    "[1:2]",
    "[0, :]",
    "[..., ...]",
    "[:, :]",
    "[x]",
    "[True]",
    "[ct.bid(0)]",
    "[::2]",
    "[None, 0]",
):
    _refused(f"index/1-d/{_text}", f"x{_text}", (8,))
_refused("expand_dims/beyond", "ct.expand_dims(x, 3)", (4, 8), (ct.TileTypeError, ct.TileValueError))
_refused("expand_dims/not-constant", "ct.expand_dims(x, ct.bid(0))", (4, 8))


@ct.kernel
def _assigns_an_item(x, out):
    tile = ct.load(x, (0,), (4,))
    tile[0] = 1
    ct.store(out, (0,), tile)


@ct.kernel
def _subscripts_an_array(x, out):
    ct.store(out, (0,), x[0])


@ct.kernel
def _assigns_to_an_array(x, out):
    out[0] = ct.load(x, 0, ())


for _kernel in (_assigns_an_item, _subscripts_an_array, _assigns_to_an_array):
    CASES.append(
        Case(
            f"index/{_kernel._pyfunc.__name__}/refused",
            _kernel,
            (1,),
            lambda rng: [random(rng, "int32", 4), blank("int32", 4)],
            error=ct.TileTypeError,
        )
    )

# ---- broadcast_to ----------------------------------------------------------------------------------------------------

for _from, _to in (
    ((8,), (8,)),
    ((8,), (4, 8)),
    ((1,), (8,)),
    ((4, 1), (4, 8)),
    ((1, 8), (4, 8)),
    ((1, 1), (2, 4, 8)),
    ((4, 1), (2, 4, 8)),
    ((2, 1, 8), (2, 4, 8)),
):
    _moved(f"broadcast_to/{_from}-{_to}", f"ct.broadcast_to(x, {_to})", _from, lambda x, t=_to: np.broadcast_to(x, t))
for _dtype in ("bool", "float16", "bfloat16", "float8_e5m2", "uint64"):
    _moved(f"broadcast_to/{_dtype}", "ct.broadcast_to(x, (4, 8))", (8,), lambda x: np.broadcast_to(x, (4, 8)), _dtype)
for _from, _to in (((8,), (4,)), ((8,), (16,)), ((4, 8), (8,)), ((4, 8), (8, 8)), ((8,), (8, 4)), ((1,), (3,))):
    _refused(f"broadcast_to/{_from}-{_to}", f"ct.broadcast_to(x, {_to})", _from)
CASES.append(
    Case(
        "broadcast_to/0-d",
        kernels.made(expression("ct.broadcast_to(ct.bid(0) + 3, (2, 4))", ""), 2, ct.int32),
        (1,),
        lambda rng: [blank("int32", (2, 4))],
        lambda out: np.full((2, 4), 3),
    )
)

# ---- cat -------------------------------------------------------------------------------------------------------------

for _shape, _axis in (((8,), 0), ((8,), -1), ((4, 8), 0), ((4, 8), 1), ((4, 8), -2), ((2, 2, 4), 1), ((2, 2, 4), -1)):
    _moved(
        f"cat/{_shape}/{_axis}",
        f"ct.cat((x, x + 1), {_axis})",
        _shape,
        lambda x, a=_axis: np.concatenate([x, x + np.int32(1)], a),
    )
for _dtype in STORED:
    _moved(f"cat/{_dtype}", "ct.cat((x, x), axis=0)", (4, 2), lambda x: np.concatenate([x, x]), _dtype)
_moved(
    "cat/of-cats", "ct.cat((ct.cat((x, -x), 0), ct.cat((x, -x), 0)), 1)", (2, 2), lambda x: np.block([[x, x], [-x, -x]])
)
_moved("cat/one", "ct.cat((x,), 0)", (8,), lambda x: x)
for _name, _text, _shape in (
    ("three", "ct.cat((x, x, x), 0)", (8,)),
    ("empty", "ct.cat((), 0)", (8,)),
    ("unequal", "ct.cat((x, ct.zeros((4,), ct.int32)), 0)", (8,)),
    ("ranks", "ct.cat((x, x[None]), 0)", (8,)),
    ("dtypes", "ct.cat((x, x.astype(ct.int64)), 0)", (8,)),
    ("shapes", "ct.cat((x, ct.zeros((4, 4), ct.int32)), 0)", (4, 8)),
    ("axis", "ct.cat((x, x), 1)", (8,)),
    ("not-a-tuple", "ct.cat(x, 0)", (8,)),
    ("a-number", "ct.cat((x, None), 0)", (8,)),
    ("without-axis", "ct.cat((x, x))", (8,)),
):
    _python = ("compiler",) if _name == "without-axis" else ()
    _refused(f"cat/{_name}", _text, _shape, (ct.TileTypeError, ct.TileValueError), needs=_python)

# ---- extract and insert: the index counts in subtiles -----------------------------------------------------------------


def _part(x, index, shape):
    return x[tuple(slice(i * n, (i + 1) * n) for i, n in zip(index, shape, strict=True))]


def _inserted(x, index, value):
    x = x.copy()
    _part(x, index, value.shape)[...] = value
    return x


for _shape, _index, _sub in (
    ((16,), (0,), (4,)),
    ((16,), (3,), (4,)),
    ((16,), (0,), (16,)),
    ((16,), (9,), (1,)),
    ((4, 8), (0, 0), (2, 4)),
    ((4, 8), (1, 1), (2, 4)),
    ((4, 8), (3, 0), (1, 8)),
    ((4, 8), (0, 7), (4, 1)),
    ((2, 4, 8), (1, 0, 3), (1, 4, 2)),
):
    _moved(
        f"extract/{_shape}/{_index}/{_sub}",
        f"ct.extract(x, {_index}, shape={_sub})",
        _shape,
        lambda x, i=_index, s=_sub: _part(x, i, s),
    )
    _moved(
        f"insert/{_shape}/{_index}/{_sub}",
        f"ct.insert(x, {_index}, ct.full({_sub}, 99, ct.int32))",
        _shape,
        lambda x, i=_index, s=_sub: _inserted(x, i, np.full(s, 99)),
    )
for _dtype in STORED:
    _moved(f"extract/{_dtype}", "x.extract((1, 1), (2, 2))", (4, 8), lambda x: _part(x, (1, 1), (2, 2)), _dtype)
    _moved(
        f"insert/{_dtype}",
        "x.insert((0, 1), x.extract((1, 0), (2, 4)))",
        (4, 8),
        lambda x: _inserted(x, (0, 1), _part(x, (1, 0), (2, 4))),
        _dtype,
    )
_moved("extract/run-time-index", "ct.extract(x, (ct.bid(0) + 2,), (4,))", (16,), lambda x: x[8:12])
_moved("extract/0-d", "ct.extract(x, (1, 3), ()) + ct.zeros((4,), ct.int32)", (2, 8), lambda x: np.repeat(x[1, 3], 4))
_moved("extract/an-int", "ct.extract(x, 2, 4)", (16,), lambda x: x[8:12])
_moved(
    "insert/run-time-index",
    "ct.insert(x, (ct.bid(0) + 1,), ct.ones((4,), ct.int32))",
    (16,),
    lambda x: _inserted(x, (1,), np.ones(4)),
)
_moved(
    "insert/0-d-value",
    "ct.insert(x, (1, 3), ct.int32(99))",
    (2, 8),
    lambda x: _inserted(x, (1, 3), np.full((1, 1), 99)),
)
_moved(
    "insert/does-not-change-its-argument",
    "ct.insert(x, (0,), ct.zeros((4,), ct.int32)) - x",
    (16,),
    lambda x: np.where(np.arange(16) < 4, -x, 0).astype(np.int32),
)
_moved(
    "insert/then-extract", "ct.extract(ct.insert(x, (1,), x.extract((0,), (4,))), (1,), (4,))", (16,), lambda x: x[:4]
)
for _name, _text, _shape in (
    ("extract/beyond", "ct.extract(x, (4,), (4,))", (16,)),
    ("extract/negative", "ct.extract(x, (-1,), (4,))", (16,)),
    ("extract/larger", "ct.extract(x, (0,), (32,))", (16,)),
    ("extract/no-power-of-two", "ct.extract(x, (0,), (3,))", (16,)),
    ("extract/rank-of-index", "ct.extract(x, (0,), (2, 2))", (4, 4)),
    ("extract/rank-of-shape", "ct.extract(x, (0, 0), (2,))", (4, 4)),
    ("extract/index-not-an-int", "ct.extract(x, (0.0,), (4,))", (16,)),
    ("extract/shape-not-constant", "ct.extract(x, (0,), (ct.bid(0) + 4,))", (16,)),
    ("insert/beyond", "ct.insert(x, (4,), ct.zeros((4,), ct.int32))", (16,)),
    ("insert/negative", "ct.insert(x, (-1,), ct.zeros((4,), ct.int32))", (16,)),
    ("insert/larger", "ct.insert(x, (0,), ct.zeros((32,), ct.int32))", (16,)),
    ("insert/dtype", "ct.insert(x, (0,), ct.zeros((4,), ct.int64))", (16,)),
    ("insert/rank", "ct.insert(x, (0, 0), ct.zeros((4,), ct.int32))", (4, 4)),
    ("insert/rank-of-index", "ct.insert(x, (0,), ct.zeros((2, 2), ct.int32))", (4, 4)),
):
    _refused(_name, _text, _shape, (ct.TileTypeError, ct.TileValueError), ndim=1)

# ---- where -----------------------------------------------------------------------------------------------------------

for _dtype in STORED:
    CASES.append(
        Case(
            f"where/{_dtype}",
            kernels.binary(
                expression("ct.where(ct.arange(16, dtype=ct.int32) % 3 == 0, x, y)", "x, y"), result=TILE[_dtype]
            ),
            (3,),
            lambda rng, d=_dtype: [
                random(rng, d, 48),
                random(rng, d, 48),
                blank(d, 48) if d != "bool" else np.zeros(48, bool),
            ],
            lambda x, y, out: np.where(np.arange(48) % 16 % 3 == 0, x, y),
        )
    )
for _name, _text, _dtype, _to, _expected in (
    ("literal", "ct.where(x > 0, x, 0)", "int16", "int16", lambda x: np.where(x > 0, x, 0)),
    ("two-literals", "ct.where(x > 0, 1, -1)", "float32", "int32", lambda x: np.where(x > 0, 1, -1)),
    (
        "promotes",
        "ct.where(x > 0, x, x.astype(ct.int64) - 1)",
        "int32",
        "int64",
        lambda x: np.where(x > 0, x, x.astype(np.int64) - 1),
    ),
    ("int-or-float-literal", "ct.where(x > 0, x, 0.5)", "int8", "float32", lambda x: np.where(x > 0, x, 0.5)),
    (
        "NaN-not-chosen",
        "ct.where(x > 0, ct.sqrt(x), 0)",
        "float64",
        "float64",
        lambda x: np.where(x > 0, np.sqrt(np.abs(x)), 0),
    ),
    (
        "0-d-condition",
        "ct.where(ct.bid(0) > 1, x, -x)",
        "int32",
        "int32",
        lambda x: np.where(np.arange(50) // 16 > 1, x, -x),
    ),
    ("constant-condition", "ct.where(True, x, -x)", "int32", "int32", lambda x: x),
    ("nested", "ct.where(x > 1, 1, ct.where(x < -1, -1, x))", "float32", "float32", lambda x: np.clip(x, -1, 1)),
    (
        "mask-arithmetic",
        "ct.where((x > 0) & (x % 2 == 0), x // 2, 3)",
        "int32",
        "int32",
        lambda x: np.where((x > 0) & (x % 2 == 0), x // 2, 3),
    ),
):
    CASES.append(
        Case(
            f"where/{_name}",
            kernels.unary(expression(_text), result=TILE[_to]),
            (4,),
            lambda rng, d=_dtype, to=_to: [random(rng, d, 50), blank(to, 50)],
            lambda x, out, e=_expected: e(x),
        )
    )
for _shape, _text in (
    ((4, 8), "ct.where(x[:, None, :] > 0, x[None], 7)"),
    ((4, 8), "ct.where(ct.arange(8, dtype=ct.int32) < 3, x, 0)"),
    ((4, 8), "ct.where(ct.arange(4, dtype=ct.int32)[:, None] < 3, x, 0)"),
):
    _moved(
        f"where/broadcast/{_text}",
        _text,
        _shape,
        {
            "x[:": lambda x: np.where(x[:, None, :] > 0, x[None], np.int32(7)),
            "ct.arange(8": lambda x: np.where(np.arange(8) < 3, x, np.int32(0)),
            "ct.arange(4": lambda x: np.where(np.arange(4)[:, None] < 3, x, np.int32(0)),
        }[next(key for key in ("x[:", "ct.arange(8", "ct.arange(4") if key in _text)],
    )
for _name, _text, _dtype in (
    ("dtypes", "ct.where(x > 0, x, x.astype(ct.uint32))", "int32"),
    ("halves", "ct.where(x > 0, x, x.astype(ct.bfloat16))", "float16"),
    ("missing", "ct.where(x > 0, x)", "int32"),
    ("string", 'ct.where(x > 0, x, "no")', "int32"),
):
    _python = ("compiler",) if _name in ("missing", "string") else ()
    _refused(f"where/{_name}", _text, (8,), dtype=_dtype, needs=_python)
_refused("where/shapes", "ct.where(x > 0, x, ct.zeros((4,), ct.int32))", (8,), ct.TileError, "broadcastable")

# ---- attributes ------------------------------------------------------------------------------------------------------


@ct.kernel
def _attributes(x, out):
    tile = ct.load(x, (0, 0), (4, 8))
    ct.static_assert(tile.shape == (4, 8))
    ct.static_assert(tile.ndim == 2)
    ct.static_assert(tile.dtype == ct.float16)
    ct.static_assert(x.ndim == 2)
    ct.static_assert(x.dtype == ct.float16)
    rows, columns = tile.shape
    more = ct.zeros((rows * 2, columns // 2), tile.dtype)
    ct.store(out, (0, 0), more + rows)


CASES.append(
    Case(
        "attributes",
        _attributes,
        (1,),
        lambda rng: [random(rng, "float16", (4, 8)), blank("float16", (8, 4))],
        lambda x, out: np.full((8, 4), 4),
    )
)


@ct.kernel
def _run_time_shape(x, out):
    ct.store(out, (0,), ct.astile((x.shape[0], x.shape[1], x.strides[0], x.strides[1]), dtype=ct.int32))


CASES.append(
    Case(
        "attributes/shape-and-strides-of-an-array",
        _run_time_shape,
        (1,),
        lambda rng: [random(rng, "float16", (5, 9)), blank("int32", 4)],
        lambda x, out: [5, 9, 9, 1],
    )
)
_refused("attributes/no-such", "x.size", (8,), ct.TileError, needs=("compiler",))
_refused("attributes/T", "x.T", (4, 8), ct.TileError, ndim=2, needs=("compiler",))
