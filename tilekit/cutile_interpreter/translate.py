"""A kernel's code with the interpreter's names in place of the compiler's.

The code stays the learner's own, file and lines included, so that debuggers and tracebacks show them; the names that it
looks up are replaced: cuda.tile's functions, Python's built-ins, and helper functions, which are translated in turn. What
needs more than names is in :mod:`tilekit.cutile_interpreter.static`.
"""

import builtins
import functools
import sys
import types

import numpy as np

from tilekit.cutile_interpreter import api, dtypes, static
from tilekit.cutile_interpreter.namespace import dtype_in_kernels, namespace, static_namespace
from tilekit.cutile_interpreter.operations.control import BUILTINS
from tilekit.cutile_interpreter.tile import scalar


def _stubs() -> dict:
    """cuda.tile's own functions, by identity, to ours. Some are wrapped more than once; each layer counts."""
    found = {}
    for name, ours in vars(namespace).items():
        theirs = getattr(api.tile, name, None)
        if ours is theirs or theirs is None:
            continue
        while theirs is not None:
            found[id(theirs)] = ours
            theirs = getattr(theirs, "__wrapped__", None) if isinstance(theirs, types.FunctionType) else None
    return found


STUBS = _stubs()
_MODULES = ("cuda.tile", "cuda.tile._stub")


_KEYWORDS = {id(getattr(api.tile, name)): name for name in static.KEYWORDS}


def _keyword(value) -> str | None:
    return _KEYWORDS.get(id(value))


def _is_ours(value) -> bool:
    return isinstance(value, types.ModuleType) and (value.__name__ in _MODULES or value is api.tile)


class ModuleView:
    """A module whose attributes are translated when they are looked up."""

    def __init__(self, module, translator, static=False):
        self.__dict__["_module"] = module
        self.__dict__["_translator"] = translator
        self.__dict__["_static"] = static

    def __getattr__(self, name):
        return self._translator.value(getattr(self._module, name), self._static)

    def __repr__(self):
        return repr(self._module)


class Translator:
    """Translates the functions that one kernel reaches, each once for the kernel and once for compile-time expressions.

    The latter are Python's: a function that one calls keeps its own code, built-in functions and dtypes, and only calls
    cuda.tile's functions by ours.

    Attributes:
        codes: code objects that belong to the kernel's author, for finding source lines.
    """

    def __init__(self):
        self.codes = set()
        self._functions = {}
        self._originals = {}

    def function(self, function: types.FunctionType, in_static: bool = False) -> types.FunctionType:
        function = self._originals.get(function, function)
        found = self._functions.get((id(function), in_static))
        if found is not None:
            return found[1]
        if function.__globals__.get("__builtins__") is BUILTINS:
            return function  # a translated one has made it
        code = function.__code__ if in_static else static.code_of(function, _keyword, _is_ours)
        names = dict.fromkeys(["__builtins__", "__name__"])
        scope = {"__builtins__": vars(builtins) if in_static else BUILTINS}
        scope["__name__"] = function.__globals__.get("__name__", "")
        cells = {name: types.CellType() for name in function.__code__.co_freevars}
        ours = types.FunctionType(
            code, scope, function.__name__, None, tuple(cells[name] for name in code.co_freevars) or None
        )
        # Known before its names are translated, because it may call itself.
        self._functions[id(function), in_static] = (function, ours)
        self._originals[ours] = function
        ours.__qualname__, ours.__module__ = function.__qualname__, function.__module__
        ours.__defaults__ = self.value(function.__defaults__, in_static)
        ours.__kwdefaults__ = self.value(function.__kwdefaults__, in_static)
        ours.__dict__.update(function.__dict__)
        for name in self._global_names(code, set()):
            if name in function.__globals__ and name not in names:
                scope[name] = self.value(function.__globals__[name], in_static)
        for old, new in zip(function.__closure__ or (), cells.values(), strict=True):
            try:
                new.cell_contents = self.value(old.cell_contents, in_static)
            except ValueError:
                pass  # an empty cell: a name that the enclosing function has not bound
        return ours

    def _global_names(self, code, found: set) -> set:
        self.codes.add(code)
        found.update(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._global_names(constant, found)
        return found

    def value(self, value, in_static: bool = False):
        """`value` as the kernel must see it, or a compile-time expression and the functions that it calls.

        What was translated for the one may be asked for again for the other.
        """
        kind = type(value)
        if kind is api.DType or dtypes.is_foreign(value):
            return value if in_static else dtype_in_kernels(value)
        ours = STUBS.get(id(value))
        if ours is not None:
            return ours
        if kind is ModuleView:
            return ModuleView(value._module, self, in_static)
        if value is namespace or value is static_namespace:
            return static_namespace if in_static else namespace
        if kind is types.ModuleType:
            if value.__name__ in _MODULES or value is api.tile:
                return static_namespace if in_static else namespace
            return ModuleView(value, self, in_static)
        if kind is types.FunctionType:
            if getattr(value, "_cutile_function_wrapper", False):
                return self.value(value.__wrapped__, in_static)
            if _is_library(value):
                return value
            return self.function(value, in_static)
        if kind is functools.partial:
            function, args, keywords = self.value((value.func, value.args, value.keywords), in_static)
            return functools.partial(function, *args, **keywords)
        if kind is types.MethodType and isinstance(value.__func__, types.FunctionType):
            return types.MethodType(self.value(value.__func__, in_static), value.__self__)
        if kind is tuple or kind is list:
            return kind(self.value(v, in_static) for v in value)
        if kind is dict:
            return {k: self.value(v, in_static) for k, v in value.items()}
        if in_static:
            return value
        if isinstance(value, np.generic) and (dtype := dtypes.BY_STORAGE.get(value.dtype)) is not None:
            number = value.item()
            return scalar(number, dtype, number, exact=True)
        if isinstance(value, type) and value in _BUILTIN_TYPES:
            return _BUILTIN_TYPES[value]
        builtin = _BUILTIN_FUNCTIONS.get(id(value))
        return value if builtin is None else builtin


def _is_library(function: types.FunctionType) -> bool:
    """Functions of Python's own library and of array libraries, which never call cuda.tile."""
    root = (function.__module__ or "").partition(".")[0]
    return root in ("numpy", "torch", "ml_dtypes") or root in sys.stdlib_module_names


_BUILTIN_TYPES = {}
_BUILTIN_FUNCTIONS = {}
for _name, _ours in BUILTINS.items():
    _theirs = getattr(builtins, _name, None)
    if _theirs is not None and _theirs is not _ours:
        if isinstance(_theirs, type):
            _BUILTIN_TYPES[_theirs] = _ours
        else:
            _BUILTIN_FUNCTIONS[id(_theirs)] = _ours
