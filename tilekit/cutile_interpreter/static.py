"""What Python has no hook for, so that a function which uses it is compiled again from its own source, file and lines.

``ct.static_eval`` and its kin are keywords, whose arguments are not tile code: they become lambdas, which are evaluated
under Python's rules, and a message only when it is needed. ``not``, ``and`` and ``or`` give booleans of the run, where
their value is used, and ``not`` works element by element: they go through functions. A variable that a loop or an
``if`` of the run assigns is known at run time only from there on, a Python number that it holds included: it passes
through a function after the statement, and at the top of a loop's body. So does what a function returns, if the run
has chosen between its ``return`` statements. A number has the attributes of a tile.
"""

import ast
import inspect
import textwrap
import types

from tilekit.cutile_interpreter import dtypes
from tilekit.cutile_interpreter.operations.arithmetic import NAMES as ARITHMETIC

# What a tile has, and so a number in a kernel, which is a 0-d tile there.
_OF_TILES = frozenset(
    ("astype", "dtype", "extract", "insert", "item", "ndim", "permute", "reshape", "shape", "transpose")
)
# cuda.tile's functions that give a constant for constants.
_FOLDED = frozenset(
    (*ARITHMETIC, *dtypes.BY_NAME, "assume_divisible_by", "astype", "ensure_constant", "full", "static_eval")
)
KEYWORDS = ("static_eval", "static_assert", "static_iter", "static_exception")


def code_of(function: types.FunctionType, is_keyword, is_ours) -> types.CodeType:
    """The function's code with these replaced; its own code where it has none of them, or no source.

    `is_keyword` tells which keyword a global, or an attribute of one, stands for: a name, or ``None``.
    `is_ours` tells whether it is a function of cuda.tile's.
    """
    own = function.__code__
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
    replacing = _Replacing(function, is_keyword, _Numbers(function, node, is_ours))
    replacing.visit(node)
    if not replacing.done:
        return own
    outer = ast.parse(f"def outer({', '.join(own.co_freevars)}): pass")
    # A function that calls itself finds its name where it was, not in the function around it here.
    outer.body[0].body = [node] if own.co_name in own.co_freevars else [ast.Global([own.co_name]), node]
    flags = own.co_flags & 0x1FFE000  # the __future__ features of the module
    compiled = compile(ast.fix_missing_locations(outer), own.co_filename, "exec", flags, dont_inherit=True)
    (enclosing,) = (c for c in compiled.co_consts if isinstance(c, types.CodeType))
    return next(c for c in enclosing.co_consts if isinstance(c, types.CodeType) and c.co_name == own.co_name)


def _assigned(statements) -> set[str]:
    """The names that statements assign, without those of functions inside them."""
    found, waiting = set(), list(statements)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        if not isinstance(node, (ast.FunctionDef, ast.Lambda, ast.GeneratorExp, ast.ListComp)):
            waiting.extend(ast.iter_child_nodes(node))
    return found


def _returns(statement) -> bool:
    """Is it an ``if`` or a loop with a ``return`` of a value inside?"""
    if not isinstance(statement, (ast.If, ast.For, ast.While)):
        return False
    inside = (*statement.body, *statement.orelse)
    return any(isinstance(n, ast.Return) and n.value is not None or _returns(n) for n in inside)


_DECIDED = "__decided__"


class _Numbers:
    """Which local names may hold a Python number, and not only tiles."""

    def __init__(self, function, node, is_ours):
        self.function, self.is_ours = function, is_ours
        self.names = {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
        self.locals = set(function.__code__.co_varnames) | set(function.__code__.co_cellvars)
        assignments = [(n.targets, n.value) for n in ast.walk(node) if isinstance(n, ast.Assign)]
        assignments += [((n.target,), n.value) for n in ast.walk(node) if isinstance(n, (ast.NamedExpr, ast.AnnAssign))]
        before = None
        while before != len(self.names):
            before = len(self.names)
            for targets, value in assignments:
                if value is not None and self.possible(value):
                    self.names.update(_assigned(targets))

    def possible(self, node) -> bool:
        if isinstance(node, ast.Constant):
            return isinstance(node.value, (int, float))
        if isinstance(node, ast.Name):
            return node.id in self.names or node.id not in self.locals
        if isinstance(node, ast.BinOp):
            return self.possible(node.left) and self.possible(node.right)
        if isinstance(node, ast.BoolOp):
            return all(map(self.possible, node.values))
        if isinstance(node, ast.Compare):
            return all(map(self.possible, (node.left, *node.comparators)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            module = self.function.__globals__.get(of.id) if isinstance(of, ast.Name) else None
            if not self.is_ours(module):
                return True
            arguments = (*node.args, *(k.value for k in node.keywords))
            return node.func.attr in _FOLDED and all(map(self.possible, arguments))
        return isinstance(node, (ast.Call, ast.Tuple, ast.UnaryOp, ast.IfExp, ast.Attribute, ast.Subscript))


class _Known(ast.NodeTransformer):
    """In a compile-time expression, names and attributes stand for what the compiler knows: numbers, other dtypes."""

    def __init__(self, names):
        self.names = names

    def _passed(self, node, function):
        if not isinstance(node.ctx, ast.Load):
            return node
        return ast.copy_location(ast.Call(func=ast.Name(id=function, ctx=ast.Load()), args=[node], keywords=[]), node)

    def visit_Name(self, node):
        return self._passed(node, "__local__" if node.id in self.names else "__host__")

    def visit_Attribute(self, node):
        return self._passed(self.generic_visit(node), "__host__")


class _Replacing(ast.NodeTransformer):
    """Attributes: `done` tells whether anything was replaced."""

    def __init__(self, function, is_keyword, numbers):
        self.function = function
        self.is_keyword = is_keyword
        self.numbers = numbers
        self.done = False
        self.tests = 0
        self.decides = False  # whether one of several ``return`` statements gives the function's value

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

    def visit_Attribute(self, node):
        of_tile = node.attr in _OF_TILES and not isinstance(self._value(node.value), types.ModuleType)
        self.generic_visit(node)
        if of_tile:
            node.value = self._called("__tile__", node.value, like=node.value)
        return node

    def visit_FormattedValue(self, node):
        self.generic_visit(node)
        node.value = self._called("__piece__", node.value, like=node.value)
        return node

    def _passed(self, statements, function, like, *more):
        """Statements that pass each name which `statements` assign through a function, where it is bound."""
        passed = []
        for name in sorted(_assigned(statements) & self.numbers.names):
            value = self._called(function, ast.Name(id=name, ctx=ast.Load()), *more, like=like)
            store = ast.Assign(targets=[ast.Name(id=name, ctx=ast.Store())], value=value)
            unbound = ast.ExceptHandler(type=ast.Name(id="NameError", ctx=ast.Load()), name=None, body=[ast.Pass()])
            attempt = ast.Try(body=[store], handlers=[unbound], orelse=[], finalbody=[])
            passed.append(ast.fix_missing_locations(ast.copy_location(attempt, like)))
        return passed

    def visit_FunctionDef(self, node):
        outer, self.decides = self.decides, any(map(_returns, node.body))
        self.generic_visit(node)
        if self.decides:
            node.body[:0] = self._deciding(ast.Constant(False), node.body[0])
        self.decides = outer
        return node

    def visit_Return(self, node):
        self.generic_visit(node)
        if self.decides and node.value is not None:
            decided = ast.Name(id=_DECIDED, ctx=ast.Load())
            node.value = self._called("__returned__", node.value, decided, like=node)
        return node

    def _deciding(self, value, like):
        """The statement after which what a ``return`` gives is known at run time only, or not: in a list."""
        self.done = True
        store = ast.Assign(targets=[ast.Name(id=_DECIDED, ctx=ast.Store())], value=value)
        return [ast.fix_missing_locations(ast.copy_location(store, like))]

    def _loop(self, node):
        before = self._deciding(ast.Constant(True), node) if _returns(node) else []
        top, after = (self._passed(node.body, f, node) for f in ("__carried__", "__merged__"))
        self.generic_visit(node)
        node.body[:0] = top
        return [*before, node, *after]

    def visit_While(self, node):
        statements = self._loop(node)
        node.test = self._called("__turn__", node.test, like=node.test)
        return statements

    def visit_For(self, node):
        unrolled = isinstance(node.iter, ast.Call) and self.is_keyword(self._value(node.iter.func))
        return self.generic_visit(node) if unrolled else self._loop(node)

    def _named(self, test):
        """A test that keeps its value under a name, and the name."""
        name = f"__test_{self.tests}__"
        self.tests += 1
        kept = ast.NamedExpr(target=ast.Name(id=name, ctx=ast.Store()), value=test)
        return ast.fix_missing_locations(ast.copy_location(kept, test)), ast.Name(id=name, ctx=ast.Load())

    def visit_If(self, node):
        test, name = self._named(node.test)
        after = self._passed([*node.body, *node.orelse], "__merged__", node, name)
        returns = _returns(node)
        self.generic_visit(node)
        if not after and not returns:
            return node
        test.value, node.test = node.test, test
        if returns:
            for branch in (node.body, node.orelse):
                decided = ast.Name(id=_DECIDED, ctx=ast.Load())
                either = ast.BoolOp(ast.Or(), [decided, self._called("__at_run_time__", name, like=node)])
                branch[:0] = self._deciding(either, node)
        return [node, *after]

    def visit_IfExp(self, node):
        numbers = self.numbers.possible(node.body) or self.numbers.possible(node.orelse)
        self.generic_visit(node)
        if not numbers:
            return node
        node.test, name = self._named(node.test)
        return self._called("__merged__", node, name, like=node)

    def visit_Call(self, node):
        name = self.is_keyword(self._value(node.func))
        if name is None:
            self.generic_visit(node)
            if isinstance(node.func, ast.Name) and node.func.id == "str" and self._is_builtin("str"):
                self.done = True
                node.func = ast.copy_location(ast.Name(id="__str__", ctx=ast.Load()), node.func)
            # What is called may be an array's or a tile's dtype, which is no constructor outside of a kernel.
            if (isinstance(node.func, ast.Name) and node.func.id in self.numbers.locals) or (
                isinstance(node.func, ast.Attribute) and node.func.attr == "dtype"
            ):
                node.func = self._called("__callable__", node.func, like=node.func)
            return node
        empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        self.done = True
        known = _Known(self.numbers.locals)
        lambdas = [ast.Lambda(args=empty, body=known.visit(argument)) for argument in node.args]
        call = ast.Call(func=ast.Name(id=f"__{name}__", ctx=ast.Load()), args=lambdas, keywords=node.keywords)
        return ast.fix_missing_locations(ast.copy_location(call, node))

    def _is_builtin(self, name) -> bool:
        of = self.function
        return name not in self.numbers.locals and name not in of.__code__.co_freevars and name not in of.__globals__

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
