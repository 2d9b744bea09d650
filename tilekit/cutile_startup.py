"""``TILEKIT_CUTILE=interpret python program.py``: the kernels of a program that knows nothing of tilekit are interpreted.

The installed package has one line that Python reads whenever it starts (cutile_startup.pth). Where the variable is set,
it imports this module, which waits until the program itself has imported cuda.tile: then ``ct.launch`` interprets, and
torch, as soon as it is imported, puts its CUDA tensors on the CPU.
"""

import importlib
import importlib.abc
import importlib.util
import sys


class _After(importlib.abc.MetaPathFinder):
    """Calls `action` once, when module `name` has been imported. Is asked before the other finders, and finds by them."""

    def __init__(self, name, action):
        self.name, self.action, self.asking_others = name, action, False

    def find_spec(self, name, path=None, target=None):
        if self.asking_others or not self.concerns(name):
            return None
        self.asking_others = True
        try:
            spec = self.find(name)
        finally:
            self.asking_others = False
        if spec is not None and name == self.name and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self)
        return spec

    def concerns(self, name) -> bool:
        return name == self.name

    def find(self, name):
        return importlib.util.find_spec(name)

    def imported(self) -> None:
        if self in sys.meta_path:
            self.action()  # if this raises, so does the import, and the next one
            sys.meta_path.remove(self)


class _Loader(importlib.abc.Loader):
    """A module's own loader, and then the action."""

    def __init__(self, own, after):
        self.own, self.after = own, after

    def __getattr__(self, name):
        return getattr(self.own, name)

    def create_module(self, spec):
        return self.own.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.own
        self.own.exec_module(module)
        self.after.imported()


class _AfterCutile(_After):
    """Where the package is not installed, the stand-in is what is imported."""

    def concerns(self, name):
        return name in ("cuda", "cuda.tile")

    def find(self, name):
        spec = importlib.util.find_spec(name)
        if spec is None:
            from tilekit import cutile_interpreter

            cutile_interpreter.install_standin()
            spec = importlib.util.find_spec(name)
        return spec


def _interpret() -> None:
    importlib.import_module("tilekit.cutile_interpreter")  # which reads the variable
    if "torch" in sys.modules:
        _torch_on_cpu()
    else:
        sys.meta_path.insert(0, _After("torch", _torch_on_cpu))


def _torch_on_cpu() -> None:
    from tilekit.cutile_interpreter import cuda_tensors

    cuda_tensors.on_cpu_for_good()


sys.meta_path.insert(0, _AfterCutile("cuda.tile", _interpret))
