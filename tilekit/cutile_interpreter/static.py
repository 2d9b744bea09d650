"""Compile-time expressions: ``ct.static_eval`` and its kin are keywords, whose arguments are not tile code.

Where a function uses them, it is compiled again from its own source, file and lines, with these arguments as lambdas:
so they are evaluated under Python's rules, and a message only when it is needed.
"""

import ast
import inspect
import textwrap
import types

KEYWORDS = ("static_eval", "static_assert", "static_iter", "static_exception")


def code_of(function: types.FunctionType, is_keyword) -> types.CodeType:
    """The function's code, with compile-time arguments as lambdas; its own code where it has none, or no source.

    `is_keyword` tells which keyword a global, or an attribute of one, stands for: a name, or ``None``.
    """
    own = function.__code__
    if not _mentions(own, set(KEYWORDS)):
        return own
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return own
    node = tree.body[0]
    if not isinstance(node, ast.FunctionDef):
        return own
    ast.increment_lineno(tree, first - 1)
    node.decorator_list = []
    _Lambdas(function, is_keyword).visit(node)
    outer = ast.parse(f"def outer({', '.join(own.co_freevars)}): pass")
    outer.body[0].body = [node]
    flags = own.co_flags & 0x1FFE000  # the __future__ features of the module
    compiled = compile(ast.fix_missing_locations(outer), own.co_filename, "exec", flags, dont_inherit=True)
    (enclosing,) = (c for c in compiled.co_consts if isinstance(c, types.CodeType))
    return next(c for c in enclosing.co_consts if isinstance(c, types.CodeType) and c.co_name == own.co_name)


def _mentions(code: types.CodeType, names: set) -> bool:
    return bool(names & set(code.co_names)) or any(
        _mentions(c, names) for c in code.co_consts if isinstance(c, types.CodeType)
    )


class _Lambdas(ast.NodeTransformer):
    def __init__(self, function, is_keyword):
        self.function = function
        self.is_keyword = is_keyword

    def visit_Call(self, node):
        name = self.is_keyword(self._value(node.func))
        if name is None:
            return self.generic_visit(node)
        empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        lambdas = [ast.Lambda(args=empty, body=argument) for argument in node.args]
        call = ast.Call(func=ast.Name(id=f"__{name}__", ctx=ast.Load()), args=lambdas, keywords=node.keywords)
        return ast.copy_location(call, node)

    def _value(self, node):
        """What a name, or an attribute of a module, stands for."""
        if isinstance(node, ast.Name):
            names = self.function.__code__.co_freevars
            if node.id in names:
                try:
                    return self.function.__closure__[names.index(node.id)].cell_contents
                except ValueError:
                    return None
            return self.function.__globals__.get(node.id)
        if isinstance(node, ast.Attribute):
            module = self._value(node.value)
            return getattr(module, node.attr, None) if isinstance(module, types.ModuleType) else None
        return None
