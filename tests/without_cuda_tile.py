"""Python as on a machine without cuda-tile: ``without_cuda_tile.hide()`` before anything imports it."""

import importlib.machinery
import sys


def hide(*also: str) -> None:
    """Let the finders of installed packages find no ``cuda.tile``, nor the modules named in `also`."""

    def hidden(name):
        return name in also or name == "cuda.tile" or name.startswith("cuda.tile.")

    assert not any(map(hidden, sys.modules))

    class PathFinder(importlib.machinery.PathFinder):
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            return None if hidden(name) else super().find_spec(name, path, target)

        @classmethod
        def find_distributions(cls, context):
            return (d for d in super().find_distributions(context) if d.metadata["Name"] != "cuda-tile")

    sys.meta_path[:] = [PathFinder if f is importlib.machinery.PathFinder else f for f in sys.meta_path]
