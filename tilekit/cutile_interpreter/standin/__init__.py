"""``import cuda.tile as ct`` on machines that NVIDIA has no wheel for, such as a Mac."""

import importlib.abc
import importlib.machinery
import os
import sys
import types

from tilekit.cutile_interpreter.standin import interface

NAMES = ("cuda.tile", "cuda.tile.tune", "cuda.tile.compilation")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Offers the stand-in's modules after everybody else was asked, so that a package that is there always wins."""

    def find_spec(self, name, path=None, target=None):
        if name == "cuda":
            # Only reached where no other portion of this namespace is installed. One that comes later is found here.
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [os.path.join(entry, "cuda") for entry in sys.path]
            return spec
        if name in NAMES:
            return importlib.machinery.ModuleSpec(name, self, origin=interface.__file__, is_package=name == "cuda.tile")
        return None

    def create_module(self, spec):
        return None if spec.name == "cuda.tile" else getattr(interface, spec.name.rpartition(".")[2])

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "cuda.tile":
            module.__doc__ = interface.__doc__
            module.__version__ = interface.__version__
            module.__all__ = list(interface.__all__)
            for name in interface.__all__:
                setattr(module, name, getattr(interface, name))


def install() -> bool:
    """Make ``import cuda.tile`` give tilekit's stand-in, in this process, where NVIDIA's package is missing.

    Kernels are then interpreted on the CPU: ``ct.launch`` is ``tilekit.cutile_interpreter.launch``. Where ``cuda.tile`` is
    installed this does nothing, so a notebook can call it everywhere. Other packages below ``cuda``, such as
    ``cuda.bindings``, stay importable.

    Returns:
        Whether ``cuda.tile`` is the stand-in.

    >>> from tilekit import cutile_interpreter
    >>> is_standin = cutile_interpreter.install_standin()
    >>> import cuda.tile as ct
    >>> ct.cdiv(7, 2)
    4
    """
    from tilekit.cutile_interpreter import api

    if api.AVAILABLE:
        return False
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.append(Finder())
    return True
