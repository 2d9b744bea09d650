"""What matmul has to do."""

import torch

from tilekit.exercises.spec import Case, Spec, Work
from tilekit.kernels.matmul.reference import matmul as reference


def _far_rows(make):
    b = make.full((40, 2**26), 0.0)[:, :32]
    b.copy_(make.randn(40, 32))
    return make.randn(16, 40), b


CASES = (
    Case("one tile", lambda m: (m.randn(16, 16), m.randn(16, 16))),
    Case("vector times matrix", lambda m: (m.randn(1, 40), m.randn(40, 24)), row="S6"),
    # One sum, so nothing may cancel in it: what is left would say nothing of the size that rounding is relative to.
    Case("row times column", lambda m: (m.randn(1, 128).abs(), m.randn(128, 1).abs()), row="S6"),
    Case("column times row", lambda m: (m.randn(70, 1), m.randn(1, 50))),
    Case("K has a ragged tail", lambda m: (m.randn(40, 137), m.randn(137, 72)), row="S6"),
    Case("no size divides a tile", lambda m: (m.randn(131, 77), m.randn(77, 261)), row="S6"),
    Case("thousand, all sizes odd", lambda m: (m.randn(1000, 999), m.randn(999, 1001)), row="S6", needs_gpu=True),
    Case("500 cubed", lambda m: (m.randn(500, 500), m.randn(500, 500)), row="S6", needs_gpu=True),
    Case("512 cubed, IEEE in float32", lambda m: (m.randn(512, 512), m.randn(512, 512)), row="N1", needs_gpu=True),
    Case("large, every tile full", lambda m: (m.randn(2048, 2048), m.randn(2048, 2304)), needs_gpu=True),
    Case("rows of b 2^26 elements apart", _far_rows, dtypes=(torch.float16,), needs_gpu=True),
    Case("M is 0", lambda m: (m.randn(0, 8), m.randn(8, 4)), row="S8"),
    Case("N is 0", lambda m: (m.randn(4, 8), m.randn(8, 0)), row="S8"),
    Case("K is 0", lambda m: (m.randn(4, 0), m.randn(0, 5)), row="S8"),
    Case("a transposed", lambda m: (m.randn(70, 33).t(), m.randn(70, 50))),
    Case("b transposed", lambda m: (m.randn(33, 70), m.randn(50, 70).t())),
    Case("both transposed", lambda m: (m.randn(70, 33).t(), m.randn(50, 70).t())),
    Case("every other row and column", lambda m: (m.randn(66, 80)[::2, ::2], m.randn(80, 66)[::2, ::2])),
    Case("expanded row", lambda m: (m.randn(1, 40).expand(20, 40), m.randn(40, 30)), row="S3"),
    Case("misaligned base address", lambda m: (m.offset(40, 40), m.offset(40, 40))),
    Case("batch", lambda m: (m.randn(3, 20, 30), m.randn(3, 30, 10))),
    Case("batch broadcast over b", lambda m: (m.randn(4, 20, 30), m.randn(30, 10))),
    Case("batch broadcast over a, whole tiles", lambda m: (m.randn(64, 64), m.randn(3, 64, 64))),
    Case("batch broadcast over b, whole tiles", lambda m: (m.randn(3, 64, 64), m.randn(64, 64))),
    Case("batch of rows", lambda m: (m.randn(5, 1, 64), m.randn(64, 32))),
    Case("batches broadcast both ways", lambda m: (m.randn(3, 1, 20, 17), m.randn(1, 2, 17, 10))),
    Case("permuted batch", lambda m: (m.randn(2, 3, 4, 8, 9).permute(2, 0, 1, 3, 4), m.randn(4, 2, 3, 9, 5))),
    Case("batch reversed", lambda m: (m.randn(2, 3, 4, 8, 9).permute(2, 1, 0, 3, 4), m.randn(4, 3, 2, 9, 5))),
    Case("empty batch", lambda m: (m.randn(0, 4, 5), m.randn(0, 5, 6)), row="S8"),
    Case("a sum of 300 ones", lambda m: (m.full((2, 300), 1.0), m.full((300, 2), 1.0))),
)

SPEC = Spec(
    name="matmul",
    signature="matmul(a, b)",
    reference=reference,
    torch_own=torch.matmul,
    reduction_length=lambda a, b: a.shape[-1],
    work=lambda a, b: Work(
        bytes=(a.numel() + b.numel() + a.numel() // max(1, a.shape[-1]) * b.shape[-1]) * a.element_size(),
        flops=2 * a.numel() * b.shape[-1],
    ),
    cases=CASES,
    matrix_product=True,
    hints={
        "ragged tail": "the last step along K reaches past the end: load zeros there, they add nothing",
        "no size divides": "mask rows and columns past the end at the store, and K in the loads",
        "transposed": "pass both strides of each matrix and use them; do not assume the last one is 1",
        "every other": "pass both strides of each matrix and use them; do not assume the last one is 1",
        "batch": "a batch is one more index: add its stride times its index to the pointers",
        "K is 0": "a sum of no terms is 0, so the result is zeros, not uninitialised memory",
        "is 0": "no elements need no blocks: launch none, or return early",
    },
)
