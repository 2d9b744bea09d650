"""The gradient of vadd: that of the result, for both arrays. Nothing is kept and no kernel runs."""


def save(ctx, inputs, output):
    """Nothing."""


def backward(ctx, passes, grad):
    return grad, grad
