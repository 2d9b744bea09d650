"""Launching a cuTile kernel as its plan says: compiled on CUDA tensors, interpreted on CPU tensors."""

import functools
import types

import cuda.tile as ct
import torch

from tilekit import environment


def launch(kernel, plan, *arrays) -> None:
    """Queue `kernel` on torch's current stream (or interpret it): arrays, then the plan's scalars, then its constants.

    Where the plan has views, each array is passed with that shape and those strides.
    """
    if plan.views:
        arrays = [a.as_strided(shape, strides) for a, (shape, strides) in zip(arrays, plan.views, strict=True)]
    if plan.options or plan.index_bits == 64:
        kernel = specialised(kernel, len(arrays), plan.index_bits, tuple(plan.options.items()))
    arguments = (*arrays, *plan.positional)
    if arrays[0].is_cuda:
        ct.launch(torch.cuda.current_stream(), plan.grid, kernel, arguments)
    else:
        from tilekit import cutile_interpreter

        cutile_interpreter.launch(None, plan.grid, kernel, arguments)


@functools.cache
def bounds_are_optional() -> bool:
    """Whether the compiler can do without checking a tile's bounds where a plan knows them: tileiras can from 13.4 on."""
    version, _ = environment.tileiras()
    return version is not None and tuple(map(int, version.split(".")[:2])) >= (13, 4)


@functools.cache
def specialised(kernel, array_count: int, index_bits: int, options: tuple):
    """The kernel with the plan's compiler hints and, past 2**31 elements, 64-bit indices into its arrays."""
    if index_bits == 64:
        # The annotation is part of a kernel's definition, so the same code gets a second definition.
        function = kernel._pyfunc
        wide = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        arrays = function.__code__.co_varnames[:array_count]
        wide.__annotations__ = {**function.__annotations__, **dict.fromkeys(arrays, ct.IndexedWithInt64)}
        wide.__qualname__, wide.__module__ = function.__qualname__, function.__module__
        kernel = ct.kernel(wide)
    return kernel.replace_hints(**dict(options)) if options else kernel
