"""The public classes of ``cuda.tile``: NVIDIA's where the package is installed, else the stand-in's.

A kernel, its annotations, dtypes and exceptions are the user's own objects, so the interpreter works with whichever
of the two the user can have.
"""

import importlib.util

AVAILABLE = importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.tile") is not None

if AVAILABLE:
    import cuda.tile as tile
else:
    from tilekit.cutile_interpreter.standin import interface as tile

ArrayAnnotation = tile.ArrayAnnotation
ConstantAnnotation = tile.ConstantAnnotation
DType = tile.DType
ListAnnotation = tile.ListAnnotation
MemoryOrder = tile.MemoryOrder
MemoryScope = tile.MemoryScope
PaddingMode = tile.PaddingMode
RoundingMode = tile.RoundingMode
# Without a public name of its own: the metadata of ct.ScalarInt64.
ScalarAnnotation = type(tile.ScalarInt64.__metadata__[0])
StaticException = tile.StaticException
TileError = tile.TileError
TileRecursionError = tile.TileRecursionError
TileStaticAssertionError = tile.TileStaticAssertionError
TileStaticEvalError = tile.TileStaticEvalError
TileSyntaxError = tile.TileSyntaxError
TileTypeError = tile.TileTypeError
TileUnsupportedFeatureError = tile.TileUnsupportedFeatureError
TileValueError = tile.TileValueError
kernel = tile.kernel


def python_function(a_kernel):
    """The Python function under ``@ct.kernel``."""
    return a_kernel._pyfunc
