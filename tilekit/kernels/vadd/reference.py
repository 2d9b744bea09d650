"""Vector addition in float64: the oracle."""


def vadd(a, b):
    return a.double() + b.double()
