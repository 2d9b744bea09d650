"""Softmax in float64: the oracle."""


def softmax(x, dim=-1):
    x = x.double()
    if x.numel() == 0:
        return x
    exponentials = (x - x.amax(dim, keepdim=True)).exp()
    return exponentials / exponentials.sum(dim, keepdim=True)
