"""The gradient of softmax: out * (grad - sum(grad * out)). Only the result is kept."""


def save(ctx, inputs, output):
    ctx.dim = inputs[1]
    ctx.save_for_backward(output)


def backward(ctx, passes, grad):
    (out,) = ctx.saved_tensors
    return passes.backward(grad, out, ctx.dim), None
