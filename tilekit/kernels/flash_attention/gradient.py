"""The gradients of attention. Besides the inputs, its result and log-sum-exp are kept, never the weights."""


def save(ctx, inputs, output):
    *arrays, ctx.is_causal, ctx.scale, _ = inputs
    ctx.save_for_backward(*arrays, *output)
    ctx.set_materialize_grads(False)


def backward(ctx, passes, grad, grad_lse):
    *arrays, out, lse = ctx.saved_tensors
    if grad is None:
        grad = out.new_zeros(()).expand(out.shape)
    needs = tuple(ctx.needs_input_grad[:3])
    found = passes.backward(grad, grad_lse, *arrays, out, lse, ctx.is_causal, ctx.scale, needs)
    return *found, None, None, None
