"""What flash_attention has to do."""

import torch
import torch.nn.functional as F

from tilekit.exercises.spec import Case, Spec, Work
from tilekit.kernels.flash_attention.reference import flash_attention as reference

_INF, _NAN = float("inf"), float("nan")
_SINGLE, _LARGE_RANGE = (torch.float32,), (torch.bfloat16, torch.float32)
_CAUSAL, _LSE = {"is_causal": True}, {"return_lse": True}


def _random(*sizes, **keywords):
    """query (..., L, E), key (..., S, E), value (..., S, Ev) from (..., L, S, E, Ev)."""
    *lead, rows, keys, channels, value_channels = sizes

    def build(make):
        shapes = (*lead, rows, channels), (*lead, keys, channels), (*lead, keys, value_channels)
        return *(make.randn(*shape) for shape in shapes), keywords

    return build


def _grouped(**keywords):
    def build(make):
        query, key, value = make.randn(2, 6, 33, 16), make.randn(2, 2, 40, 16), make.randn(2, 2, 40, 16)
        return query, key, value, {"enable_gqa": True, **keywords}

    return build


def _far_mask(make):
    return make.tensor([[-20000.0], [0.0]]), make.tensor([[1.0], [0.0]]), make.tensor([[1.0], [100.0]]), {
        "is_causal": True, "scale": 1.0}  # fmt: skip


def _causal_zeros(rows, keys):
    return lambda make: (make.full((rows, 4), 0.0), make.full((keys, 4), 0.0), make.randn(keys, 4), _CAUSAL)


def _last_channels(make):
    query, key, value = (make.randn(70, 128) for _ in range(3))
    for a in (query, key, value):
        a[:, :64] = 0
    return query, key, value


def _zeros_and_no_lse(query, key, value, **_):
    out = torch.zeros((*query.shape[:-1], value.shape[-1]), dtype=torch.float64)
    return out, torch.full(query.shape[:-1], -_INF, dtype=torch.float64)


def _special(query, key, **keywords):
    """Rows of one channel against keys of one channel, so that each logit is one product."""

    def build(make):
        q, k = make.tensor(query)[:, None], make.tensor(key)[:, None]
        return q, k, make.randn(len(key), 3), {"scale": 1.0, "return_lse": True, **keywords}

    return build


def _transposed(make):
    return *(make.randn(2, 40, 3, 32).transpose(1, 2) for _ in range(3)), _CAUSAL


def _surrounded_by_nan(make):
    """Rows and channels past the end of each array are NaN in memory."""

    def inside(rows, channels):
        around = make.full((2, rows + 7, channels + 5), _NAN)
        around[:, :rows, :channels] = make.randn(2, rows, channels)
        return around[:, :rows, :channels]

    return inside(37, 24), inside(75, 24), inside(75, 40)


CASES = (
    Case("one key", _random(1, 1, 1, 1)),
    Case("two dimensions", _random(20, 24, 16, 16)),
    Case("three dimensions", _random(3, 20, 24, 16, 16)),
    Case("batch and heads", _random(2, 3, 64, 64, 32, 32)),
    Case("several tiles, the last ones ragged", _random(2, 150, 300, 32, 32, return_lse=True)),
    Case("causal, several tiles, the last ones ragged", _random(2, 300, 300, 32, 32, **_CAUSAL, **_LSE)),
    Case("causal, far mask value", _far_mask, lambda *_, **__: torch.tensor([[1.0], [50.5]]), row="K1"),
    Case("no keys", _random(2, 5, 0, 8, 6, **_LSE), _zeros_and_no_lse, row="K2"),
    Case("causal, no keys", _random(2, 5, 0, 8, 6, **_LSE, **_CAUSAL), _zeros_and_no_lse, row="K2"),
    Case("every logit -inf", _special([1.0, 2.0], [-_INF] * 150), _zeros_and_no_lse, row="K2"),
    Case("one key is -inf", _special([1.0, 2.0], [-_INF, 1.0, 0.5]), reference, row="K2"),
    Case("causal, the first row sees only -inf", _special([1.0, 2.0], [-_INF, 1.0], **_CAUSAL), reference, row="K2"),
    Case("logits of +inf and NaN", _special([1.0, -1.0, _NAN, 0.5], [_INF, 1.0]), reference, row="K2"),
    Case("causal, a later row's NaN", _special([1.0, _NAN, 2.0], [1.0, 2.0, 3.0], **_CAUSAL), reference),
    Case(
        "every logit far below zero", _special([-1e19, 1e19], [1e19, 2e19], return_lse=False), reference, _LARGE_RANGE
    ),
    Case("huge logits", _special([1e10, -1e10, 1.0], [1e10, 2e10, -1.0]), reference, _SINGLE),
    Case("causal, fewer queries than keys", _causal_zeros(2, 4), row="K4"),
    Case("causal, one query", _causal_zeros(1, 8), row="K4"),
    Case("causal, more queries than keys", _causal_zeros(5, 2), row="K4"),
    Case("causal, many more keys than queries", _random(40, 300, 16, 16, **_CAUSAL, **_LSE), row="K4"),
    Case("causal, many more queries than keys", _random(300, 40, 16, 16, **_CAUSAL, **_LSE), row="K4"),
    *(Case(f"head dimension {d}", _random(2, 40, 70, d, d), row="S5") for d in (8, 40, 80, 96)),
    Case("signal only in the last 64 of 128 channels", _last_channels, row="S5"),
    Case("value wider than key", _random(2, 40, 70, 24, 72), row="S5"),
    Case("value narrower than key", _random(2, 40, 70, 72, 3, **_CAUSAL), row="S5"),
    Case("head dimension 128", _random(130, 140, 128, 128), row="L4"),
    Case("head dimension 256", _random(40, 70, 256, 256), row="L4"),
    Case("no queries", _random(2, 0, 5, 8, 8, **_LSE), row="S8"),
    Case("no batch", _random(0, 3, 4, 5, 8, 8, **_LSE), row="S8"),
    Case("value without channels", _random(2, 4, 5, 8, 0, **_LSE), row="S8"),
    Case("key without channels", _random(2, 4, 5, 0, 8, **_LSE), reference, row="S8"),
    Case("causal, float32", _random(128, 128, 32, 32, **_CAUSAL), dtypes=_SINGLE, row="N1"),
    Case("sum past float16", lambda m: (m.full((70, 64), 576.0), m.full((70, 64), 382.0), m.randn(70, 64)), row="N2"),
    Case("grouped heads", _grouped()),
    Case("grouped heads with every option", _grouped(scale=0.5, **_CAUSAL, **_LSE)),
    Case("scale negative", _random(2, 40, 70, 16, 16, scale=-0.5, **_LSE)),
    Case("causal, scale negative", _random(2, 40, 70, 16, 16, scale=-0.5, **_CAUSAL)),
    Case("scale 0", _random(2, 40, 70, 16, 16, scale=0, **_LSE)),
    Case("causal, scale 0", _random(2, 40, 70, 16, 16, scale=0.0, **_CAUSAL)),
    # Small inputs: at logits of some hundreds, float32 has few digits left for any kernel.
    Case(
        "scale 30",
        lambda m: (m.randn(2, 40, 16, scale=0.1), m.randn(2, 70, 16, scale=0.1), m.randn(2, 70, 16), {"scale": 30.0}),
    ),
    Case("(B, L, H, E) transposed", _transposed),
    Case("last two dimensions transposed", lambda m: tuple(m.randn(2, 24, 40).mT for _ in range(3))),
    Case("every other channel", lambda m: tuple(m.randn(40, 48)[:, ::2] for _ in range(3))),
    Case("expanded key and value", lambda m: (m.randn(3, 20, 8), *(m.randn(20, 8).expand(3, 20, 8) for _ in "kv"))),
    Case("NaN around the arrays", _surrounded_by_nan),
    Case("misaligned base address", lambda m: tuple(m.offset(2, 40, 32) for _ in range(3))),
    Case("five dimensions", _random(2, 2, 2, 10, 12, 8, 8)),
    Case(
        "five dimensions, permuted", lambda m: tuple(m.randn(2, 3, 10, 2, 8).permute(1, 3, 0, 2, 4) for _ in range(3))
    ),
    Case("long", _random(2, 2, 4096, 4096, 128, 128, **_CAUSAL), needs_gpu=True),
)


def torch_own(query, key, value, *, return_lse=False, **keywords):
    # The fused kernels, whose error is the one that users of torch get, take four dimensions only. Copies, for they
    # read wrong values where rows are not aligned.
    four = (a.clone(memory_format=torch.contiguous_format) for a in (query, key, value))
    four = (a[(None,) * (4 - a.dim())] if a.dim() < 4 else a.flatten(0, -4) for a in four)
    out = F.scaled_dot_product_attention(*four, **keywords)
    # On a GPU, torch 2.11 returns None where a 16-bit result has no elements; then there is no bar.
    return None if out is None else out.reshape(*query.shape[:-1], value.shape[-1])


def _work(query, key, value, *, is_causal=False, **_):
    rows, keys = query.shape[-2], key.shape[-2]
    pairs = rows * keys
    if is_causal:
        short = min(rows, keys)
        pairs = short * (short + 1) // 2 + (rows - short) * keys
    outputs = query.numel() // max(query.shape[-1], 1) * value.shape[-1]
    flops = query.shape[:-2].numel() * pairs * 2 * (query.shape[-1] + value.shape[-1])
    return Work(bytes=(query.numel() + key.numel() + value.numel() + outputs) * query.element_size(), flops=flops)


SPEC = Spec(
    name="flash_attention",
    signature="flash_attention(query, key, value, *, is_causal=False, scale=None, enable_gqa=False, return_lse=False)",
    reference=reference,
    torch_own=torch_own,
    # Two reductions in a row: a logit over the channels, then the output over the keys.
    reduction_length=lambda query, key, value, **_: query.shape[-1] + key.shape[-2],
    work=_work,
    cases=CASES,
    matrix_product=True,
    results=("out", "lse"),
    hints={
        "far mask": "mask with -inf: a finite mask value can be larger than a real logit",
        "no keys": "a row that sees no key is zero: guard the division by l_i = 0",
        "-inf": "mask with -inf, not with a finite number; while a row's largest logit is -inf, subtract 0 instead: -inf - -inf is NaN",
        "far below": "start the maximum at -inf: a finite start can be larger than every logit of a row",
        "batch and heads": "when the maximum grows, both l_i and acc shrink by exp(old - new)",
        "lse": "lse is m_i + log(l_i), in natural logarithms, of the masked and scaled logits; float32 for 16-bit inputs too",
        "fewer queries": "is_causal is upper-left aligned: row i sees the keys 0 to i, whatever S is",
        "more queries": "is_causal is upper-left aligned: row i sees the keys 0 to i, whatever S is",
        "more keys": "is_causal is upper-left aligned: row i sees the keys 0 to i, whatever S is",
        "causal": "mask the logits before the row's maximum is taken",
        "ragged": "keys past the end are loaded as zeros, so their logits are 0: set them to -inf",
        "head dimension": "pad a tile's channels to a power of two with zeros",
        "float16": "accumulate and scale the logits in float32",
        "grouped": "query head h uses key head h // (query heads // key heads)",
        "scale": "multiply every logit by scale, then take the maximum: a negative scale turns it round",
        "transposed": "use each array's own strides",
        "no queries": "no elements need no blocks: launch none, or return early",
        "no batch": "no elements need no blocks: launch none, or return early",
    },
)
