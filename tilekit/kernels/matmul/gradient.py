"""The gradients of matmul are products, too: da = grad @ b.mT and db = a.mT @ grad, by the forward kernel."""

import math


def save(ctx, inputs, output):
    a, b = inputs
    ctx.shapes = a.shape, b.shape
    # Each is wanted for the other's gradient only.
    ctx.save_for_backward(a if ctx.needs_input_grad[1] else None, b if ctx.needs_input_grad[0] else None)


def backward(ctx, passes, grad):
    a, b = ctx.saved_tensors
    a_shape, b_shape = ctx.shapes
    da = db = None
    if ctx.needs_input_grad[0]:
        da = summed_product(passes.forward, grad, b.mT, a_shape)
    if ctx.needs_input_grad[1]:
        # The sum over batches is over the rows of both factors; transposed, that is the case above.
        db = summed_product(passes.forward, grad.mT, a, b_shape[:-2] + b_shape[:-3:-1]).mT
    return da, db


def summed_product(matmul, left, right, shape):
    """``left @ right``, summed over the batch dimensions that `shape` lacks or has as 1: those that were broadcast.

    The sum becomes part of the product's own, in float32: these dimensions move beside the one summed over.
    """
    *batch, rows, _ = left.shape
    right = right.expand(*batch, *right.shape[-2:])
    own = [1] * (len(batch) + 2 - len(shape)) + list(shape[:-2])
    summed = [i for i, size in enumerate(batch) if own[i] != size]
    if summed:
        kept = [i for i in range(len(batch)) if i not in summed]
        lead, m, n = [batch[i] for i in kept], len(batch), len(batch) + 1
        terms = math.prod(batch[i] for i in summed) * left.shape[-1]  # -1 would not do for empty arrays
        left = left.permute(*kept, m, *summed, n).reshape(*lead, rows, terms)
        right = right.permute(*kept, *summed, m, n).reshape(*lead, terms, right.shape[-1])
    return matmul(left, right).reshape(shape)
