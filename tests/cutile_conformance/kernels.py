"""Kernels made from a function: every block loads its tiles, applies the function and stores the result.

`result` is the dtype that the documentation gives for the function's result. The kernel asserts it, because a store
would widen a narrower one without a word. It takes the dtype first, for in a static_assert a 0-d constant is a number.
"""

import itertools
import linecache
import math

import cuda.tile as ct

_NUMBERS = itertools.count()


def expression(text: str, parameters: str = "x", **values):
    """A function of one `return`, for use inside a kernel; `values` are its globals beside ``ct`` and ``math``.

    The compiler reads the source of what a kernel calls, and takes a lambda only where the kernel itself writes it.
    """
    source = f"def expression({parameters}):\n    return {text}\n"
    name = f"<case expression {next(_NUMBERS)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope = {"ct": ct, "math": math, **values}
    exec(compile(source, name, "exec"), scope)
    return scope["expression"]


def unary(function, shape=(16,), result=None):
    zeros = (0,) * (len(shape) - 1)

    @ct.kernel
    def kernel(x, out):
        index = (ct.bid(0),) + zeros
        value = function(ct.load(x, index, shape))
        if result is not None:
            dtype = value.dtype
            ct.static_assert(dtype == result)
        ct.store(out, index, value)

    return kernel


def binary(function, shape=(16,), result=None):
    zeros = (0,) * (len(shape) - 1)

    @ct.kernel
    def kernel(x, y, out):
        index = (ct.bid(0),) + zeros
        value = function(ct.load(x, index, shape), ct.load(y, index, shape))
        if result is not None:
            dtype = value.dtype
            ct.static_assert(dtype == result)
        ct.store(out, index, value)

    return kernel


def scalar_binary(function, result=None):
    """A 0-d tile from each of two 1-d arrays, one element a block."""

    @ct.kernel
    def kernel(x, y, out):
        index = ct.bid(0)
        value = function(ct.load(x, index, ()), ct.load(y, index, ()))
        if result is not None:
            dtype = value.dtype
            ct.static_assert(dtype == result)
        ct.store(out, index, value)

    return kernel


def whole(function, shape, ndim=1, result=None):
    """One block, one tile: the function makes a tile of `ndim` dimensions of it, which goes to the start of `out`.

    A 0-d tile goes to an array of one dimension, for the tile compiler knows no array of none.
    """
    start, out_start = (0,) * len(shape), (0,) * (ndim or 1)

    @ct.kernel
    def kernel(x, out):
        value = function(ct.load(x, start, shape))
        if result is not None:
            dtype = value.dtype
            ct.static_assert(dtype == result)
        ct.store(out, out_start, value)

    return kernel


def made(function, ndim=1, result=None):
    """One block that loads nothing: the result of the function goes to the start of `out`."""
    start = (0,) * (ndim or 1)

    @ct.kernel
    def kernel(out):
        value = function()
        if result is not None:
            dtype = value.dtype
            ct.static_assert(dtype == result)
        ct.store(out, start, value)

    return kernel


def with_scalar(function, result=None):
    """A tile and a kernel argument, which is not constant."""

    @ct.kernel
    def kernel(x, scalar, out):
        index = ct.bid(0)
        value = function(ct.load(x, index, (16,)), scalar)
        if result is not None:
            dtype = value.dtype
            ct.static_assert(dtype == result)
        ct.store(out, index, value)

    return kernel


def with_constant(function, result=None):
    """A tile and a constant kernel argument."""

    @ct.kernel
    def kernel(x, constant: ct.Constant, out):
        index = ct.bid(0)
        value = function(ct.load(x, index, (16,)), constant)
        if result is not None:
            dtype = value.dtype
            ct.static_assert(dtype == result)
        ct.store(out, index, value)

    return kernel
