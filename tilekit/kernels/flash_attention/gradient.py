"""The gradients of attention. Besides the inputs, its result and log-sum-exp are kept, never the weights."""


def save(ctx, inputs, output):
    query, key, value, ctx.is_causal, ctx.scale, _ = inputs
    out, lse = output
    ctx.channels = value.shape[-1]
    # Without the logits' gradients, only the weights are wanted again.
    logits = any(ctx.needs_input_grad[:2])
    ctx.save_for_backward(query, key, value if logits else None, out if logits else None, lse)
    ctx.set_materialize_grads(False)


def backward(ctx, passes, grad, grad_lse):
    query, key, value, out, lse = ctx.saved_tensors
    if grad is None:
        grad = query.new_zeros(()).expand(*query.shape[:-1], ctx.channels)
    if value is None:  # of the right shape is enough
        value, out = query.new_zeros(()).expand(*key.shape[:-1], ctx.channels), grad
    if lse.shape != query.shape[:-1]:  # the operator was called without return_lse
        _, lse = passes.forward(query, key, value, ctx.is_causal, ctx.scale, True)
        grad_lse = None
    needs = tuple(ctx.needs_input_grad[:3])
    found = passes.backward(grad, grad_lse, query, key, value, out, lse, ctx.is_causal, ctx.scale, needs)
    return *found, None, None, None
