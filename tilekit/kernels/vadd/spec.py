"""What vadd has to do."""

import torch

from tilekit.exercises.spec import Case, Spec, Work
from tilekit.kernels.vadd.reference import vadd as reference

_INF, _NAN = float("inf"), float("nan")


def _permuted(make, rank):
    a = make.randn(*range(2, 2 + rank))
    return a.permute(*reversed(range(rank))), make.randn(*reversed(range(2, 2 + rank)))


CASES = (
    Case("one element", lambda m: (m.randn(1), m.randn(1))),
    Case("a tile and one more element", lambda m: (m.randn(1025), m.randn(1025))),
    Case("several tiles, the last one ragged", lambda m: (m.randn(40_003), m.randn(40_003))),
    Case("0-d", lambda m: (m.randn(), m.randn())),
    Case("three dimensions", lambda m: (m.randn(3, 5, 7), m.randn(3, 5, 7))),
    Case("empty", lambda m: (m.randn(0), m.randn(0)), row="S8"),
    Case("empty, two dimensions", lambda m: (m.randn(3, 0), m.randn(3, 0)), row="S8"),
    Case("transposed plus contiguous", lambda m: (m.randn(3, 4).t(), m.randn(4, 3)), row="S2"),
    Case("every other element", lambda m: (m.arange(40)[::2], m.randn(20)), row="S2"),
    Case("expanded column", lambda m: (m.randn(3, 1).expand(3, 4), m.randn(3, 4)), row="S2"),
    Case("all strides zero", lambda m: (m.randn(1).expand(70), m.randn(70)), row="S3"),
    Case("both transposed", lambda m: (m.randn(65, 130).t(), m.randn(65, 130).t()), row="S2"),
    Case("sliced rows", lambda m: (m.randn(9, 70)[:, 3:67], m.randn(9, 64)), row="S2"),
    Case("misaligned base address", lambda m: (m.offset(1000), m.randn(1000))),
    Case("permuted, three dimensions", lambda m: _permuted(m, 3)),
    Case("permuted, five dimensions", lambda m: _permuted(m, 5)),
    Case(
        "infinities and NaN",
        lambda m: (m.tensor([_INF, -_INF, _INF, _NAN, 1.0]), m.tensor([1.0, 1.0, -_INF, 1.0, _NAN])),
    ),
)

SPEC = Spec(
    name="vadd",
    signature="vadd(a, b)",
    reference=reference,
    torch_own=torch.add,
    reduction_length=lambda a, b: 1,
    work=lambda a, b: Work(bytes=3 * a.numel() * a.element_size(), flops=a.numel()),
    cases=CASES,
    hints={
        "ragged": "the last tile reaches past the end: round the number of blocks up, and in Triton mask loads and store",
        "one more": "the last tile reaches past the end: round the number of blocks up, and in Triton mask loads and store",
        "transposed": "element [i, j] lies at i * stride(0) + j * stride(1), not at i * columns + j",
        "every other": "the stride of this input is 2, so element i lies 2 * i after the first",
        "expanded": "a stride of 0 repeats one element: use the strides, or make the input contiguous first",
        "empty": "no elements need no blocks: launch none, or return early",
    },
)
