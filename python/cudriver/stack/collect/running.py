"""What of a module's source runs whatever happens when it is imported. Nothing is run."""

from __future__ import annotations

import ast
from functools import reduce
from operator import or_

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_FALSE = frozenset(("TYPE_CHECKING", "__NUMPY_SETUP__"))

# What code survives: that a module is not there, another failure of an import, a missing attribute.
ABSENCE, IMPORT, ATTRIBUTE = 1, 2, 4
_CAUGHT = {
    "ModuleNotFoundError": ABSENCE, "ImportError": ABSENCE | IMPORT, "AttributeError": ATTRIBUTE,
    "OSError": 0, "NameError": 0, "KeyError": 0, "ValueError": 0, "TypeError": 0,
}  # fmt: skip


def attributes(node: ast.stmt) -> Iterator[list[str]]:
    """The dotted names ("np", "lib", "x") that a statement evaluates whatever happens."""
    left: list[ast.AST] = [node]
    while left:
        each = left.pop()
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            left += [*each.decorator_list, *each.args.defaults]
        elif isinstance(each, ast.ClassDef):
            left += [*each.decorator_list, *each.bases]
        elif isinstance(each, ast.AnnAssign):
            left += [each.value] if each.value else []
        elif isinstance(each, ast.Attribute):
            parts, value = [each.attr], each.value
            while isinstance(value, ast.Attribute):
                parts.append(value.attr)
                value = value.value
            if isinstance(value, ast.Name) and isinstance(each.ctx, ast.Load):
                yield [value.id, *reversed(parts)]
            else:
                left.append(value)
        elif isinstance(each, (ast.IfExp, ast.BoolOp)):
            left.append(each.test if isinstance(each, ast.IfExp) else each.values[0])
        elif not isinstance(each, (ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.DictComp)):
            left += ast.iter_child_nodes(each)


def running(
    body: list[ast.stmt],
    version: tuple[int, ...],
    functions: dict[str, ast.FunctionDef] | None = None,
) -> Iterator[tuple[ast.stmt, int]]:
    """The simple statements that run whatever happens, functions and classes as they are defined,
    of a function that is called its imports; and which errors of theirs are survived.
    """
    functions = {} if functions is None else functions
    for node in body:
        if isinstance(node, ast.If):
            known = decided(node.test, version)
            if known is not None:
                yield from running(node.body if known else node.orelse, version, functions)
        elif isinstance(node, ast.Try):
            caught = [_caught(handler) for handler in node.handlers]
            for each, survived in running(node.body, version, functions):
                if None not in caught and (not caught or _imports((each, 0))):
                    yield each, survived | reduce(or_, filter(None, caught), 0)
            yield from running(node.finalbody, version, functions)
        elif isinstance(node, ast.With):
            if all(map(_lets_errors_pass, node.items)):
                yield from running(node.body, version, functions)
        elif isinstance(node, ast.ClassDef):
            yield node, 0
            yield from running(node.body, version, {})
        elif isinstance(node, ast.FunctionDef):
            functions.pop(node.name, None)
            yields = any(isinstance(each, (ast.Yield, ast.YieldFrom)) for each in ast.walk(node))
            if not node.decorator_list and not yields:
                functions[node.name] = node
            yield node, 0
        elif isinstance(node, (ast.For, ast.While, ast.AsyncFor, ast.AsyncWith, ast.Match)):
            pass  # how often, is not known
        else:
            yield node, 0
            called = functions.pop(_called(node), None)
            if called is not None:
                yield from filter(_imports, running(called.body, version, functions))
        if isinstance(node, ast.Raise) or _may_return(node):
            return


def _imports(pair: tuple[ast.stmt, int]) -> bool:
    return isinstance(pair[0], (ast.Import, ast.ImportFrom))


def _may_return(node: ast.AST) -> bool:
    """Whether a statement may end the function that it is in."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.expr)):
        return False
    return isinstance(node, ast.Return) or any(map(_may_return, ast.iter_child_nodes(node)))


def _lets_errors_pass(item: ast.withitem) -> bool:
    """Whether a context is known to end no exception."""
    value = item.context_expr
    function = value.func if isinstance(value, ast.Call) else value
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    return name in ("catch_warnings", "nullcontext", "open") or "lock" in name.lower()


def _called(node: ast.stmt) -> str:
    """The function of a statement that is a call, or an assignment of what it returns."""
    value = node.value if isinstance(node, (ast.Expr, ast.Assign)) else None
    function = value.func if isinstance(value, ast.Call) else None
    return function.id if isinstance(function, ast.Name) else ""


def _caught(handler: ast.ExceptHandler) -> int | None:
    """What a handler survives; None where it may be anything."""
    nodes = list(ast.walk(handler.type)) if handler.type is not None else []
    names = {each.id for each in nodes if isinstance(each, ast.Name)}
    if isinstance(handler.body[-1], ast.Raise):
        return 0
    if not names or names - {*_CAUGHT} or any(isinstance(n, ast.Attribute) for n in nodes):
        return None
    return reduce(or_, (_CAUGHT[name] for name in names))


def decided(test: ast.expr, version: tuple[int, ...]) -> bool | None:
    """Whether a condition holds on Linux in that Python; None where that is not known."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = decided(test.operand, version)
        return None if inner is None else not inner
    name = test.id if isinstance(test, ast.Name) else getattr(test, "attr", "")
    if name in _FALSE:
        return False
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right = ast.unparse(test.left), test.comparators[0]
        operator = type(test.ops[0]).__name__
        try:
            value = ast.literal_eval(right)
        except ValueError:
            return None
        if left == "sys.platform" and operator in ("Eq", "NotEq"):
            return bool((value == "linux") == (operator == "Eq"))
        plain = isinstance(value, tuple) and all(isinstance(each, int) for each in value)
        if left == "sys.version_info" and plain and version and len(value) < 3:
            return {"GtE": version >= value, "Lt": version < value}.get(operator)
    return None
