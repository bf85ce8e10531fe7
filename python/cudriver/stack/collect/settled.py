"""What names are known to be after the statements of a source. Nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy

from cudriver.stack.collect.sources import bound_names

Decide = Callable[[ast.stmt], bool | None]


class Scope(dict[str, ast.AST]):
    """What is known where a statement runs: by name, functions and values; by "if name" what
    raises; by "" the names that functions set.
    """

    within: bool = False  # a function that is followed
    again: int = 100  # calls, with other arguments, of functions that were followed

    def __init__(self, decide: Decide, known: Mapping[str, ast.AST] | None = None) -> None:
        """decide: which branch of an `if` runs, whether an import works, where that is known."""
        super().__init__(known or {})
        self.decide: Decide = decide

    def without(self, names: Iterable[str] = ()) -> Scope:
        """A copy that knows nothing of these."""
        made = Scope(self.decide, self)
        made.within, made.again = self.within, self.again
        for name in names:
            made.pop(name, None)
        return made


def settle(body: list[ast.stmt], scope: Scope) -> bool:
    """Keeps in the scope what names are known to be after statements. Whether these may come to
    their end.
    """
    for node in map(as_try, body):
        goes_on = not isinstance(node, (ast.Raise, ast.Return, ast.Break, ast.Continue))
        if isinstance(node, ast.If):
            known = scope.decide(valued(node, scope))
            parts = [(node.body, scope)] * (known is not False)
            parts += [(node.orelse, scope)] * (known is not True)
            goes_on = _either(parts, scope)
        elif isinstance(node, ast.Try):
            torn = scope.without(bound_names(node.body, ""))
            ends = [(each.body, torn) for each in node.handlers]
            works = all(_plain(e) or (is_import(e) and scope.decide(e)) for e in node.body)
            whole = [([*node.body, *node.orelse], scope)]
            goes_on = _either(whole + ends * (not works), scope)
            goes_on = goes_on and settle(node.finalbody, scope)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            goes_on = scope.decide(node) is not False
        if not goes_on:
            return False
        if not isinstance(node, (ast.If, ast.Try)):
            _bind(node, scope)
    return True


def _bind(node: ast.stmt, scope: Scope) -> None:
    """What a statement makes of the names in a scope."""
    targets = [*getattr(node, "targets", ()), *filter(None, [getattr(node, "target", None)])]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        scope.pop(node.name, None)
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            scope[node.name] = node
    elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
        for target in targets:
            for name in names_in(target, None):
                scope.pop(name, None)
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if value is not None and len(targets) == 1 and isinstance(targets[0], ast.Name):
            scope[targets[0].id] = value
    elif not isinstance(node, ast.Expr):
        for name in bound_names([node], ""):
            known = [each for each, value in scope.items() if isinstance(value, ast.Constant)]
            for each in known if name == "*" else [name]:
                scope.pop(each, None)
        if isinstance(node, ast.Import):
            names = (alias.asname or alias.name.partition(".")[0] for alias in node.names)
            scope.update((name, ast.Constant(True)) for name in names)  # as a module is


def _either(parts: list[tuple[list[ast.stmt], Scope]], scope: Scope) -> bool:
    """Keeps what is the same after each of some bodies, of which one runs. Whether one ends."""
    after = [(body, before.without()) for body, before in parts]
    ends = [names for body, names in after if settle(body, names)]
    if ends:
        first, *others = ends
        same = (each for each in first if all(same_value(first[each], o.get(each)) for o in others))
        kept = {name: first[name] for name in same}
        scope.clear()
        scope.update(kept)
    return bool(ends)


def same_value(one: ast.AST, other: ast.AST | None) -> bool:
    if isinstance(one, ast.Constant) and isinstance(other, ast.Constant):
        return ast.dump(one) == ast.dump(other)
    return one is other


def _plain(node: ast.stmt) -> bool:
    """Whether a statement only gives a name a value."""
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)


def valued(node: ast.If, scope: Mapping[str, ast.AST]) -> ast.If:
    """An `if` with the values of names in its condition, but for those that functions may set."""
    names = {name for name in names_in(node.test) if isinstance(scope.get(name), ast.Constant)}
    inner = (each.value for each in ast.walk(node.test) if isinstance(each, ast.Attribute))
    names.difference_update(each.id for each in inner if isinstance(each, ast.Name))
    if not names:
        return node
    later = getattr(scope.get(""), "names", ())
    replace = Replace({name: scope[name] for name in names.difference(later)})
    return ast.If(replace.visit(deepcopy(node.test)), node.body, node.orelse)


def is_import(node: ast.AST) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom))


class Replace(ast.NodeTransformer):
    """Puts values for names."""

    def __init__(self, values: Mapping[str, ast.AST]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self.values.get(node.id, node)


def names_in(node: ast.AST, kind: type[ast.expr_context] | None = ast.Load) -> Iterator[str]:
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return (each.id for each in names if kind is None or isinstance(each.ctx, kind))


def as_try(node: ast.stmt) -> ast.stmt:
    """`with suppress(...):` is a `try`; any other statement itself."""
    call = node.items[0].context_expr if isinstance(node, ast.With) else None
    if isinstance(node, ast.With) and isinstance(call, ast.Call) and len(node.items) == 1:
        function = ast.unparse(call.func)
        if function in ("suppress", "contextlib.suppress"):
            kinds = ast.Tuple(call.args, ast.Load())
            handler = ast.ExceptHandler(kinds, None, [ast.Pass()])
            handler.lineno = (node.end_lineno or 0) + 1
            return ast.Try(node.body, [handler], [], [])
    return node
