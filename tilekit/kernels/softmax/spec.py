"""What softmax has to do."""

import torch

from tilekit.exercises.spec import Case, Spec, Work
from tilekit.kernels.softmax.reference import softmax as reference

_INF, _NAN = float("inf"), float("nan")


def _with(m, value, length, *, everywhere=False):
    x = m.randn(3, length)
    x[1, :] = value if everywhere else x[1, :]
    x[1, length // 2] = value
    return (x,)


def _infinite_start(m, length):
    """The first tiles of a long row are -inf, and finite numbers come after."""
    x = m.full((1, length), -_INF)
    x[0, -5:] = m.randn(5)
    return (x,)


CASES = (
    Case("one row", lambda m: (m.randn(100),)),
    Case("rows of 1", lambda m: (m.randn(7, 1),)),
    Case("many short rows", lambda m: (m.randn(700, 10),)),
    Case("no length divides a tile", lambda m: (m.randn(5, 781),)),
    Case("three dimensions", lambda m: (m.randn(3, 4, 50),)),
    Case("0-d", lambda m: (m.randn(), 0)),
    Case("empty", lambda m: (m.randn(0, 5),), row="S8"),
    Case("rows of no elements", lambda m: (m.randn(5, 0),), row="S8"),
    Case("first dimension", lambda m: (m.randn(50, 70), 0)),
    Case("middle dimension", lambda m: (m.randn(3, 50, 70), 1)),
    Case("negative dimension", lambda m: (m.randn(3, 50, 7), -2)),
    Case("long first dimension", lambda m: (m.randn(3000, 40), 0)),
    Case("arange, transposed", lambda m: (m.arange(1, 13).view(3, 4).t(),), row="S1"),
    Case("first two dimensions transposed", lambda m: (m.randn(4, 2, 8).transpose(0, 1),), row="S1"),
    Case("every other column", lambda m: (m.randn(9, 80)[:, ::2],), row="S1"),
    Case("expanded rows", lambda m: (m.randn(1, 40).expand(6, 40),), row="S3"),
    Case("permuted, five dimensions", lambda m: (m.randn(2, 3, 4, 5, 6).permute(4, 2, 0, 3, 1), 2)),
    Case("misaligned base address", lambda m: (m.offset(7, 129),)),
    Case("large values", lambda m: (m.randn(4, 300, scale=1000.0),)),
    Case("all far below zero", lambda m: (m.full((2, 60), -2e38),), dtypes=(torch.bfloat16, torch.float32)),
    Case("4096 zeros", lambda m: (m.full((1, 4096), 0.0),), row="N2"),
    Case("65537 columns", lambda m: (m.randn(2, 65_537),), row="L3"),
    Case("102400 columns", lambda m: (m.randn(2, 102_400),), row="L3"),
    Case("128256 columns", lambda m: (m.randn(1, 128_256),), row="L3"),
    Case("1048577 columns", lambda m: (m.randn(1, 1_048_577),), row="L3"),
    Case("a NaN", lambda m: _with(m, _NAN, 60)),
    Case("a +inf", lambda m: _with(m, _INF, 60)),
    Case("a -inf", lambda m: _with(m, -_INF, 60)),
    Case("a row of -inf", lambda m: _with(m, -_INF, 60, everywhere=True)),
    Case("long row with a NaN", lambda m: _with(m, _NAN, 300_000)),
    Case("long row with a +inf", lambda m: _with(m, _INF, 300_000)),
    Case("long row of -inf", lambda m: _with(m, -_INF, 300_000, everywhere=True)),
    Case("long row that starts with -inf", lambda m: _infinite_start(m, 600_000)),
)

SPEC = Spec(
    name="softmax",
    signature="softmax(x, dim=-1)",
    reference=reference,
    torch_own=lambda x, dim=-1: torch.softmax(x, dim),
    reduction_length=lambda x, dim=-1: x.shape[dim] if x.dim() else 1,
    work=lambda x, dim=-1: Work(bytes=2 * x.numel() * x.element_size(), flops=5 * x.numel()),
    cases=CASES,
    hints={
        "one row": "pad what lies past the end of a row with -inf, not with 0, whose exponential is 1",
        "no length divides": "pad what lies past the end of a row with -inf, not with 0, whose exponential is 1",
        "far below": "start the maximum at -inf: a finite start can be larger than every number of the row",
        "large values": "subtract the row's maximum before you take exponentials",
        "long first": "a row longer than a tile needs a loop: keep the maximum so far, and rescale the sum when it grows",
        "dimension": "dim names the dimension that sums to 1, the others are rows; with dim moved to the end, a row's elements "
        "need not be neighbours: use both strides",
        "transposed": "use both strides: rows need not be neighbours, nor a row's elements",
        "every other": "use both strides: rows need not be neighbours, nor a row's elements",
        "columns": "a row longer than a tile needs a loop: keep the maximum so far, and rescale the sum when it grows",
        "long row": "while the maximum so far is -inf, subtract 0 instead, or (-inf) - (-inf) gives NaN",
        "empty": "no elements need no blocks: launch none, or return early",
        "no elements": "no elements need no blocks: launch none, or return early",
    },
)
