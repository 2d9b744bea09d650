"""What Python has no hook for, so that a function which uses it is compiled again from its own source, file and lines.

``ct.static_eval`` and its kin are keywords, whose arguments are not tile code: they become lambdas, which are evaluated
under Python's rules, and a message only when it is needed. ``not``, ``and`` and ``or`` give booleans of the run, where
their value is used, and ``not`` works element by element: they go through functions.
"""

import ast
import dis
import inspect
import textwrap
import types

KEYWORDS = ("static_eval", "static_assert", "static_iter", "static_exception")


def code_of(function: types.FunctionType, is_keyword) -> types.CodeType:
    """The function's code with these replaced; its own code where it has none of them, or no source.

    `is_keyword` tells which keyword a global, or an attribute of one, stands for: a name, or ``None``.
    """
    own = function.__code__
    if not _mentions(own, set(KEYWORDS)) and not _decides_by_value(own):
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
    replacing = _Replacing(function, is_keyword)
    replacing.visit(node)
    if not replacing.done:
        return own
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


# What `not`, `and` and `or` compile to where their value is used; from Python 3.12 on the latter two are a COPY and a jump.
_BY_VALUE = {"UNARY_NOT", "JUMP_IF_FALSE_OR_POP", "JUMP_IF_TRUE_OR_POP", "COPY"}


def _decides_by_value(code: types.CodeType) -> bool:
    return any(i.opname in _BY_VALUE for i in dis.get_instructions(code)) or any(
        _decides_by_value(c) for c in code.co_consts if isinstance(c, types.CodeType)
    )


class _Replacing(ast.NodeTransformer):
    """Attributes: `done` tells whether anything was replaced."""

    def __init__(self, function, is_keyword):
        self.function = function
        self.is_keyword = is_keyword
        self.done = False

    def _called(self, name, *arguments, like):
        self.done = True
        call = ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=list(arguments), keywords=[])
        return ast.fix_missing_locations(ast.copy_location(call, like))

    def visit_BoolOp(self, node):
        self.generic_visit(node)
        node.values = [self._called("__truth__", value, like=value) for value in node.values]
        return self._called("__boolean__", self._called("__choosing__", like=node), node, like=node)

    def visit_UnaryOp(self, node):
        self.generic_visit(node)
        return self._called("__not__", node.operand, like=node) if isinstance(node.op, ast.Not) else node

    def _visit_test(self, node):
        """The rest of a statement or expression that only asks whether its test is true: as Python has it."""
        node.test = self._tested(node.test)
        test, node.test = node.test, ast.Constant(True)
        self.generic_visit(node)
        node.test = test
        return node

    visit_If = visit_While = visit_IfExp = _visit_test

    def _tested(self, node):
        if isinstance(node, ast.BoolOp):
            node.values = [self._tested(value) for value in node.values]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            node.operand = self._tested(node.operand)
        else:
            node = self.visit(node)
        return node

    def visit_Call(self, node):
        name = self.is_keyword(self._value(node.func))
        if name is None:
            return self.generic_visit(node)
        empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        self.done = True
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
