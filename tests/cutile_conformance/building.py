"""Arrays and plain NumPy references that the families of memory cases share."""

import numpy as np

from .dtypes import NUMPY


def zeros(shape, dtype="int32"):
    """An output filled with zeros."""
    return np.zeros(shape).astype(NUMPY[dtype])


def ones(shape, dtype="int32"):
    """An output filled with ones, where a right result holds zeros or an element that must stay as it is."""
    return np.ones(shape).astype(NUMPY[dtype])


def small(rng, dtype, shape, low=-4, high=4):
    """Small whole numbers, which every dtype but bool holds and adds exactly."""
    return rng.integers(low, high, shape, endpoint=True).astype(np.float64).astype(NUMPY[dtype])


def expanded(array, shape):
    """The array broadcast to `shape` without a copy, NumPy's or torch's."""
    return np.broadcast_to(array, shape) if isinstance(array, np.ndarray) else array.expand(shape)


def padded_tile(array, index, shape, padding=0.0):
    """The tile at `index` of the tile space, element by element, as the documentation of ct.load defines it."""
    tile = np.full(shape, padding).astype(array.dtype)
    for position in np.ndindex(*shape):
        source = tuple(i * size + p for i, size, p in zip(index, shape, position, strict=True))
        if all(s < n for s, n in zip(source, array.shape, strict=True)):
            tile[position] = array[source]
    return tile
