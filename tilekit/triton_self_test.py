"""The tiny kernel that Triton's interpreter must get right before tilekit trusts it."""

import torch
import triton
import triton.language as tl


@triton.jit
def _row_sums_of_product(a, b, out, rows, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < rows
    tile_a = tl.load(a + offs[:, None] * BLOCK + offs[None, :], mask=mask[:, None], other=0.0)
    tile_b = tl.load(b + offs[:, None] * BLOCK + offs[None, :])
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for _ in range(0, tl.cdiv(rows, 4)):
        acc += tl.dot(tile_a, tile_b, input_precision="ieee")
    tl.store(out + offs, tl.sum(acc, axis=1), mask=mask)


def run() -> str | None:
    """``None`` when the interpreter's result is right, else a sentence saying how it is wrong."""
    rows, block = 13, 16
    a, b = torch.arange(2 * block * block, dtype=torch.float32).sin().view(2, block, block)
    out = torch.full((block,), float("nan"))
    _row_sums_of_product[(1,)](a, b, out, rows, BLOCK=block)
    expected = 4 * (a.double() @ b.double()).sum(1)
    if not torch.allclose(out[:rows].double(), expected[:rows], atol=1e-3):
        return "a tiny kernel gave wrong values in Triton's interpreter"
    if not out[rows:].isnan().all():
        return "a masked store wrote outside its mask in Triton's interpreter"
    return None
