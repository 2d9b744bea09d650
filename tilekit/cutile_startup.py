"""``TILEKIT_CUTILE=interpret python program.py``: the kernels of a program that knows nothing of tilekit are interpreted.

The installed package has one line that Python reads whenever it starts (cutile_startup.pth). Where the variable is set,
it imports this module, which waits for the program's own ``import cuda.tile``.
"""

import contextlib
import importlib
import importlib.abc
import importlib.util
import sys


class _Watcher(importlib.abc.MetaPathFinder):
    """Asked first whenever a module is imported; finds none by itself, but does something after one has run."""

    def __init__(self, names, then):
        self.names, self.then, self.asking = names, then, False

    def find_spec(self, name, path=None, target=None):
        if name not in self.names or self.asking:
            return None
        self.asking = True  # of the other finders
        try:
            spec = importlib.util.find_spec(name) or self.instead(name)
        finally:
            self.asking = False
        if spec is not None and name == self.names[-1]:
            execute = spec.loader.exec_module

            def execute_and(module):
                execute(module)
                spec.loader.exec_module = execute
                self.then()

            spec.loader.exec_module = execute_and
            sys.meta_path.remove(self)
        return spec

    def instead(self, name):
        """For a module that is not installed."""


class _CutileWatcher(_Watcher):
    def instead(self, name):
        from tilekit import cutile_interpreter

        cutile_interpreter.install_standin()
        return importlib.util.find_spec(name)


_for_good = contextlib.ExitStack()


def _interpret() -> None:
    importlib.import_module("tilekit.cutile_interpreter")  # which reads the variable
    if "torch" in sys.modules:
        _torch_on_cpu()
    else:
        sys.meta_path.insert(0, _Watcher(("torch",), _torch_on_cpu))


def _torch_on_cpu() -> None:
    from tilekit.cutile_interpreter import cuda_tensors

    _for_good.enter_context(cuda_tensors.on_cpu())


sys.meta_path.insert(0, _CutileWatcher(("cuda", "cuda.tile"), _interpret))
