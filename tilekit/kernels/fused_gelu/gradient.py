"""The gradients of fused_gelu. The inputs are kept; gelu's argument is computed again from them."""


def save(ctx, inputs, output):
    *arrays, ctx.tanh = inputs
    ctx.save_for_backward(*arrays)


def backward(ctx, passes, grad):
    return *passes.backward(grad, *ctx.saved_tensors, ctx.tanh, tuple(ctx.needs_input_grad[:3])), None
