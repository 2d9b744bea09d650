"""The matrix product in float64: the oracle."""


def matmul(a, b):
    return a.double() @ b.double()
