"""What a launch looks like, decided before anything is launched.

Every kernel has, for every backend, a pure function ``plan(shapes, strides, dtype, limits)``. It returns a
:class:`Plan`: the grid, the tile sizes, the index width, the compiler's hints and the run-time arguments. What a
machine without a GPU cannot show (a grid that is too long, an offset past 2**31, too much shared memory) is a
property of a plan, so a test can assert it anywhere.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

INT32_MAX = 2**31 - 1
GRID_MAX_X = 2**31 - 1  # blocks along x, CUDA programming guide, "Technical Specifications per Compute Capability"
GRID_MAX_YZ = 65_535  # blocks along y and along z; a plan that would need more takes a one-dimensional grid
GRID_MAX_CUTILE = 2**24 - 1  # blocks along any axis that cuda.tile's launch takes; it raises past that


class CannotServe(ValueError):
    """A backend cannot serve these arguments. Raised before anything is launched.

    Auto takes the next backend; a backend that the user named passes it on.
    """


@dataclass(frozen=True, eq=False)  # compared by identity: one object a device, and a cheap key of a cache
class Limits:
    """What one device allows a kernel.

    `compute_capability` is ``(major, minor)``, or ``None`` where kernels are interpreted on the CPU.
    `shared_memory` is in bytes a block, with the opt-in above 48 KiB; `multiprocessors` counts the SMs.

    Source: CUDA programming guide, "Technical Specifications per Compute Capability".

    >>> Limits.of("sm_90").shared_memory
    232448
    """

    compute_capability: tuple[int, int] | None
    shared_memory: int
    multiprocessors: int

    @property
    def interpreted(self) -> bool:
        return self.compute_capability is None

    @property
    def tensor_cores(self) -> bool:
        """Whether Triton and cuTile use tensor cores there, and TF32 exists: from compute capability 8.0 on."""
        return self.compute_capability is not None and self.compute_capability >= (8, 0)

    @classmethod
    def of(cls, architecture: str) -> "Limits":
        """The limits of a typical GPU of an architecture, by the compiler's name for it (``"sm_80"``)."""
        if architecture not in tuple(_ARCHITECTURES):
            known = ", ".join(map(repr, _ARCHITECTURES))
            raise ValueError(f"Limits.of: unknown architecture {architecture!r}; wanted one of {known}")
        return _ARCHITECTURES[architecture]


INTERPRETER = Limits(compute_capability=None, shared_memory=232_448, multiprocessors=1)

_ARCHITECTURES = {
    "sm_75": Limits((7, 5), 65_536, 40),  # T4
    "sm_80": Limits((8, 0), 166_912, 108),  # A100
    "sm_86": Limits((8, 6), 101_376, 82),  # RTX 3090
    "sm_89": Limits((8, 9), 101_376, 58),  # L4
    "sm_90": Limits((9, 0), 232_448, 132),  # H100, H200
    "sm_100": Limits((10, 0), 232_448, 148),  # B200
    "sm_120": Limits((12, 0), 101_376, 170),  # RTX 5090
}


@functools.cache
def limits_of(device) -> Limits:
    """The limits of a torch device, asked from its driver once; :data:`INTERPRETER` for a CPU."""
    if device.type != "cuda":
        return INTERPRETER
    import torch

    properties = torch.cuda.get_device_properties(device)
    return Limits(
        (properties.major, properties.minor),
        properties.shared_memory_per_block_optin,
        properties.multi_processor_count,
    )


@dataclass(frozen=True, eq=False)  # compared by identity: a plan is cached, and the key of what was compiled for it
class Plan:
    """One launch: how many blocks, what tiles, and what the kernel is told.

    - `grid`: the number of blocks along x (and y, z where a backend needs them).
    - `arguments`: the run-time scalars that follow the arrays in the kernel's signature.
    - `constants`: the compile-time parameters by name, tile sizes first of all (``BLOCK_M=128``).
    - `options`: hints for the compiler (``num_warps``, ``num_stages``; ``occupancy``, ``num_ctas``).
    - `index_bits`: 32, or 64 where an element offset can pass 2**31 - 1.
    - `shared_memory`: bytes of shared memory that the tiles need at least, 0 for kernels that stream.
    - `variant`: which of a file's kernels runs, where it has more than one.
    - `views`: the shape and strides under which each array is passed, where that is not its own.
    """

    grid: tuple[int, ...]
    arguments: tuple[int | float, ...] = ()
    constants: Mapping[str, object] = field(default_factory=dict)
    options: Mapping[str, int] = field(default_factory=dict)
    index_bits: int = 32
    shared_memory: int = 0
    variant: str = ""
    views: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()

    def __post_init__(self):
        # A plan is cached and shared, so nobody may change it.
        object.__setattr__(self, "constants", MappingProxyType(dict(self.constants)))
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))
        # What a launch needs at every call, merged once.
        object.__setattr__(self, "keywords", {**self.constants, **self.options})
        object.__setattr__(self, "positional", (*self.arguments, *self.constants.values()))


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The largest element offset that an array of this shape and these strides reaches.

    >>> span((4, 8), (8, 1))
    31
    """
    if 0 in shape:
        return 0
    return sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def index_bits(*layouts: tuple[Sequence[int], Sequence[int]], slack: int = 0) -> int:
    """32 when every ``(shape, strides)`` is reached with 32-bit element offsets, else 64.

    `slack` is how far past the last element a block's masked-off offsets may run.
    """
    return 32 if all(span(*layout) + slack <= INT32_MAX for layout in layouts) else 64


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a row-major array, as ``torch.empty(shape).stride()`` has them.

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def collapse(shape: Sequence[int], *strides: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Merge the dimensions that can be walked as one in all of several arrays of one shape.

    Two neighbouring dimensions are one when the outer stride is the inner stride times the inner size, in every
    array; dimensions of size 1 go. Returns the new shape, then the new strides of each array.

    >>> collapse((4, 1, 8), (8, 8, 1), (8, 8, 1))
    ((32,), (1,), (1,))
    >>> collapse((4, 8), (1, 4), (8, 1))
    ((4, 8), (1, 4), (8, 1))
    """
    merged = []  # innermost first: [size, (stride in each array)]
    for axis in reversed(range(len(shape))):
        size, steps = shape[axis], tuple(s[axis] for s in strides)
        if size == 1:
            continue
        if merged and all(s == inner * merged[-1][0] for s, inner in zip(steps, merged[-1][1], strict=True)):
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, steps))
    merged = merged[::-1] or [(1, (1,) * len(strides))]
    return tuple(size for size, _ in merged), *(tuple(steps[i] for _, steps in merged) for i in range(len(strides)))


MAX_DIMS = 4  # what the strided elementwise kernels walk: two tiled dimensions, two that pick a block


def walkable(*arrays):
    """The arrays, or contiguous copies of them where more than :data:`MAX_DIMS` dimensions do not merge.

    A kernel with a loop over any number of dimensions would pay for it at every element; five that do not merge
    are rare, and then one more pass over memory is the cheaper way.
    """
    first = arrays[0]
    if first.dim() > MAX_DIMS:
        layouts = (*(array.stride() for array in arrays), contiguous_strides(first.shape))
        if len(collapse(first.shape, *layouts)[0]) > MAX_DIMS:
            return tuple(array.contiguous() for array in arrays)
    return arrays


def cdiv(a: int, b: int) -> int:
    """Division rounded up: the number of tiles of `b` elements that cover `a`."""
    return -(-a // b)


def grid_of(*counts: int, most: int = GRID_MAX_X) -> tuple[int]:
    """The one-dimensional grid of as many blocks as the product of `counts`; :class:`CannotServe` past `most`.

    >>> grid_of(3, 4)
    (12,)
    """
    blocks = math.prod(counts)
    if blocks > most:
        raise CannotServe(f"would need {blocks:,} blocks for this shape, and launches {most:,} at most")
    return (blocks,)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least `n`. Tile sizes are powers of two on every backend."""
    return 1 << max(0, math.ceil(n) - 1).bit_length()
