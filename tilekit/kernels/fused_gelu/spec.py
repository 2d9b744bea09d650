"""What fused_gelu has to do."""

import torch
import torch.nn.functional as F

from tilekit.exercises.spec import Case, Spec, Work
from tilekit.kernels.fused_gelu.reference import fused_gelu as reference

_INF, _NAN = float("inf"), float("nan")
_EXACT = {"approximate": "none"}
_ENDS = [-13.24, 11.0, 20.0, 40.0, _INF, -_INF, _NAN]


def _ends(values):
    def build(m):
        return m.tensor(values), m.tensor(1.0), m.tensor(0.0)

    return build


def _limits(x, w, b, approximate="tanh"):
    """x itself far above zero, -0 far below."""
    return torch.where(x > 0, x.double(), torch.where(x.isnan(), x.double(), -0.0))


def _vectors(m, *shape):
    return m.randn(*shape), m.randn(shape[-1]), m.randn(shape[-1])


CASES = (
    Case("x, w and b of one shape", lambda m: (m.randn(6, 50), m.randn(6, 50), m.randn(6, 50))),
    Case("w and b of the last dimension", lambda m: _vectors(m, 5, 3, 70)),
    Case("w and b 0-d", lambda m: (m.randn(300), m.randn(), m.randn())),
    Case("w of x's shape, b of the last dimension", lambda m: (m.randn(9, 33), m.randn(9, 33), m.randn(33))),
    Case("w 0-d, b of x's shape", lambda m: (m.randn(9, 33), m.randn(), m.randn(9, 33))),
    Case("exact form", lambda m: (*_vectors(m, 40, 70), _EXACT)),
    Case("exact form, 0-d", lambda m: (m.randn(2000), m.randn(), m.randn(), _EXACT)),
    Case("large inputs", lambda m: (m.randn(500, scale=8.0), m.tensor(1.0), m.tensor(0.0))),
    Case("large inputs, exact form", lambda m: (m.randn(500, scale=8.0), m.tensor(1.0), m.tensor(0.0), _EXACT)),
    Case("the ends, tanh form", _ends(_ENDS), expected=_limits, row="K8"),
    Case("the ends, exact form", lambda m: (*_ends(_ENDS)(m), _EXACT), expected=_limits, row="K8"),
    Case("1e20", _ends([1e20, -1e20]), expected=_limits, dtypes=(torch.bfloat16, torch.float32), row="K8"),
    Case("several tiles, the last one ragged", lambda m: _vectors(m, 13, 2500)),
    Case("one long row", lambda m: (m.randn(40_003), m.randn(40_003), m.randn())),
    Case("one element", lambda m: _vectors(m, 1)),
    Case("0-d", lambda m: (m.randn(), m.randn(), m.randn())),
    Case("empty", lambda m: _vectors(m, 0, 8), row="S8"),
    Case("empty rows", lambda m: _vectors(m, 8, 0), row="S8"),
    Case("x transposed", lambda m: (m.randn(70, 40).t(), m.randn(70), m.randn(70)), row="S2"),
    Case("x sliced", lambda m: (m.randn(20, 80)[:, ::2], m.randn(40), m.randn(80)[::2]), row="S2"),
    Case("x expanded", lambda m: (m.randn(1, 40).expand(30, 40), m.randn(40), m.randn(30, 40)), row="S3"),
    Case("w transposed", lambda m: (m.randn(40, 30), m.randn(30, 40).t(), m.randn(30))),
    Case("permuted, five dimensions", lambda m: (m.randn(2, 3, 4, 5, 6).permute(4, 3, 2, 1, 0), m.randn(2), m.randn())),
    Case("misaligned base address", lambda m: (m.offset(30, 33), m.randn(33), m.randn(33))),
)


def _torch_own(x, w, b, approximate="tanh"):
    return F.gelu(x * w + b, approximate=approximate)


SPEC = Spec(
    name="fused_gelu",
    signature="fused_gelu(x, w, b, *, approximate='tanh')",
    reference=reference,
    torch_own=_torch_own,
    reduction_length=lambda *_, **__: 4,  # a product, a sum, the polynomial and the gate round one after the other
    work=lambda x, w, b, **_: Work(
        bytes=(2 * x.numel() + w.numel() + b.numel()) * x.element_size(), flops=12 * x.numel()
    ),
    cases=CASES,
    hints={
        "ends": "exp(2u) / (exp(2u) + 1) is inf / inf for large u: use 1 / (1 + exp(-2u)), and mind (-inf) * 0",
        "1e20": "z cubed overflows: make sure that the gate is then 0 or 1, and mind inf * 0",
        "exact": "approximate='none' is 0.5 z (1 + erf(z / sqrt(2)))",
        "large inputs": "exp(2u) / (exp(2u) + 1) is inf / inf for large u: use 1 / (1 + exp(-2u))",
        "last dimension": "x may have any number of dimensions: make it rows of the last one; w and b are the same for each row",
        "0-d": "a 0-d tensor is one number: load it once, or with a stride of 0",
        "ragged": "the last tile reaches past the end: round the number of blocks up, and in Triton mask loads and store",
        "transposed": "use the strides of each array",
        "sliced": "use the strides of each array",
        "empty": "no elements need no blocks: launch none, or return early",
    },
)
