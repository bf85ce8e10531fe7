"""What of a module's source runs whatever happens when it is imported. Nothing is run."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from functools import partial, reduce
from operator import or_

from cudriver.stack.collect.settled import (
    Replace,
    Scope,
    as_try,
    is_import,
    names_in,
    same_value,
    settle,
    valued,
)
from cudriver.stack.collect.sources import bound_names, called, statements
from cudriver.stack.model import FileFault

Pairs = Generator[tuple[ast.stmt | ast.ExceptHandler, int], None, None]

_COMPOUND = (
    *(ast.If, ast.Try, ast.With, ast.For, ast.While, ast.Match, ast.AsyncFor, ast.AsyncWith),
    *(ast.ExceptHandler, ast.match_case),
)
_LATER = (ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.DictComp, getattr(ast, "TypeAlias", ()))

# What code survives: that a module is not there, another failure of an import, a missing attribute,
# a name without a value.
ABSENCE, IMPORT, ATTRIBUTE, NAME = 1, 2, 4, 8
_CAUGHT = {
    "ModuleNotFoundError": ABSENCE, "ImportError": ABSENCE | IMPORT, "AttributeError": ATTRIBUTE,
    "OSError": 0, "NameError": NAME, "KeyError": 0, "ValueError": 0, "TypeError": 0,
}  # fmt: skip


class Ended(Exception):
    """A statement ends in an error, for want of a file or of what nobody brought."""

    def __init__(self, error: int, fault: FileFault | None, says: str) -> None:
        super().__init__()
        self.error, self.fault, self.says = error, fault, says
        self.line = 0  # of the statement in the body that runs


def attributes(node: ast.stmt, annotations: bool = False) -> Iterator[list[str]]:
    """The names, dotted ones ("np", "lib", "x") too, that a statement evaluates whatever happens.
    annotations: those as well.
    """
    left: list[ast.AST] = [node]
    while left:
        each = left.pop()
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            left += [*each.decorator_list, *each.args.defaults]
            every = each.args.posonlyargs + each.args.args + each.args.kwonlyargs
            stated = [each.returns, *(one.annotation for one in every)] if annotations else []
            left += filter(None, stated)
        elif isinstance(each, ast.ClassDef):
            left += [*each.decorator_list, *each.bases]
        elif isinstance(each, ast.AnnAssign):
            left += filter(None, [each.value, each.annotation if annotations else None])
        elif isinstance(each, ast.Attribute):
            parts, value = [each.attr], each.value
            while isinstance(value, ast.Attribute):
                parts.append(value.attr)
                value = value.value
            if isinstance(value, ast.Name) and isinstance(each.ctx, ast.Load):
                yield [value.id, *reversed(parts)]
            else:
                left.append(value)
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
            yield [each.id]
        elif isinstance(each, (ast.IfExp, ast.BoolOp)):
            left.append(each.test if isinstance(each, ast.IfExp) else each.values[0])
        elif not isinstance(each, _LATER):
            left += ast.iter_child_nodes(each)


def running(body: list[ast.stmt], scope: Scope) -> Pairs:
    """The simple statements that run whatever happens, functions and classes as they are defined,
    of a function that is called those without names of its own, a `try` where it ends; and which
    errors of theirs are survived. Who runs one that ends in an error throws Ended: the handler
    follows, itself and its statements.
    """
    raising = (each for each in body if isinstance(each, ast.If) and _raises(each.body, scope))
    scope.update((f"if {ast.unparse(each.test)}", each) for each in raising)
    for node in map(as_try, body):
        for asked in ("test", "iter", "subject") if isinstance(node, _COMPOUND) else ():
            if hasattr(node, asked):
                yield ast.Expr(getattr(node, asked)), 0
        if isinstance(node, ast.If):
            known = scope.decide(valued(node, scope))
            if known is None:
                settle([node], scope)
            else:
                node = ast.If(node.test, node.body if known else node.orelse, [])
                yield from running(node.body, scope)
        elif isinstance(node, ast.Try):
            yield from _trying(node, scope)
        elif isinstance(node, ast.With):
            yield ast.Expr(node.items[0].context_expr), 0
            if all(map(_lets_errors_pass, node.items)):
                yield from running(node.body, scope)
            else:
                settle([node], scope)
        elif isinstance(node, ast.ClassDef):
            yield node, 0
            yield from running(node.body, Scope(scope.decide))
            settle([node], scope)
        elif isinstance(node, ast.For) and (texts := _texts(node, scope)):
            for text in texts:
                inside = _replaced(node.body, {getattr(node.target, "id", ""): text})
                yield from running(inside, scope)
        elif isinstance(node, (ast.For, ast.While, ast.AsyncFor, ast.AsyncWith, ast.Match)):
            settle([node], scope)  # how often, is not known
        else:
            yield node, 0
            settle([node], scope)
            function = scope.get(_called(node))
            if isinstance(function, ast.FunctionDef) and not _yields(function):
                inside = _given(function, called(node))
                del scope[function.name]
                yield from _inside(function, inside, node, scope)
                if inside is not function.body and not scope.within and scope.again:
                    scope.again -= 1
                    scope[function.name] = function
        if isinstance(node, ast.Raise) or _may_return(node):
            return


def _inside(function: ast.FunctionDef, body: list[ast.stmt], call: ast.stmt, scope: Scope) -> Pairs:
    """What runs of a function that is called."""
    own = _own(function)
    outer = scope.without(own)
    outer.within = True
    pairs = running(body, outer)
    try:
        yield from _chosen(pairs, lambda pair: _imports(pair) or own.isdisjoint(names_in(pair[0])))
    except Ended as ended:
        ended.line = call.lineno
        raise
    for name in {*scope} - {*outer} - own:  # a function that was called there
        del scope[name]


def _chosen(pairs: Pairs, chosen: Callable[[tuple[ast.AST, int]], bool], caught: int = 0) -> Pairs:
    """Some of the statements that run, with errors of theirs that are survived besides."""
    step: Callable[[], tuple[ast.stmt | ast.ExceptHandler, int]] = partial(next, pairs)
    with suppress(StopIteration):
        while True:
            each, survived = step()
            step = partial(next, pairs)
            if chosen((each, survived)):
                try:
                    yield each, survived | caught
                except Ended as ended:
                    step = partial(pairs.throw, ended)


def _trying(node: ast.Try, scope: Scope) -> Pairs:
    """What runs of a `try`."""
    before = scope.without()
    caught = [0 if _kept(each, scope) else handled(each, scope) for each in node.handlers]
    sure = None not in caught
    absence = all(each and not each & ATTRIBUTE for each in caught)  # no other error

    def chosen(pair: tuple[ast.AST, int]) -> bool:
        nonlocal sure
        runs = sure or (_imports(pair) and None not in caught)
        # What else it survives may happen in what follows anything but an import.
        sure = sure and (not caught or _imports(pair) or (absence and not _calls(pair[0])))
        return runs

    try:
        survived = reduce(or_, filter(None, caught), 0)
        yield from _chosen(running(node.body, scope), chosen, survived)
    except Ended as ended:
        handlers = zip(node.handlers, caught, strict=True)
        handler = next((each for each, errors in handlers if (errors or 0) & ended.error), None)
        if handler is None:
            raise
        yield handler, 0
        yield from running(handler.body, scope)
    else:
        scope.clear()
        scope.update(before)
        settle([node], scope)
    yield node, 0
    yield from running(node.finalbody, scope)


def importing(body: list[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """The functions of a module that import something, which is theirs and no decorator's."""
    functions = [each for each in body if isinstance(each, ast.FunctionDef)]
    found = {
        each.name: each.body
        for each in functions
        if not each.decorator_list and any(map(is_import, statements([each])))
        if not _yields(each)
    }
    names = Counter(bound_names(body, "") if found else ())
    return {name: inside for name, inside in found.items() if names[name] == 1}


def _raises(body: list[ast.stmt], scope: Mapping[str, ast.AST]) -> bool:
    """Whether statements end in an error, if only by a function that does nothing else."""
    call = called(body[-1])
    function = scope.get(_called(body[-1]))
    if call is not None and ast.unparse(call.func) == "sys.exit":
        return True
    if isinstance(function, ast.FunctionDef):
        return isinstance(function.body[-1], ast.Raise) and not any(map(_may_return, function.body))
    return isinstance(body[-1], ast.Raise)


def _kept(handler: ast.ExceptHandler, scope: Mapping[str, ast.AST]) -> bool:
    """Whether a handler adds to a list, for which what follows raises an error."""
    call = called(handler.body[-1])
    adds = call is not None and isinstance(call.func, ast.Attribute) and call.func.attr == "append"
    return call is not None and adds and f"if {ast.unparse(call.func)[:-7]}" in scope


def _texts(node: ast.For, scope: Mapping[str, ast.AST]) -> list[ast.Constant]:
    """The texts that a loop goes through from the first to the last; [] where it does not."""
    values = scope.get(node.iter.id) if isinstance(node.iter, ast.Name) else node.iter
    every = values.elts if isinstance(values, (ast.Tuple, ast.List)) else []
    texts = [e for e in every if isinstance(e, ast.Constant) and isinstance(e.value, str)]
    inside = (inner for each in node.body for inner in ast.walk(each))
    ends = any(isinstance(each, (ast.Break, ast.Continue)) for each in inside)
    return [] if ends or len(texts) < len(every) else texts


def _replaced(body: list[ast.stmt], values: Mapping[str, ast.AST]) -> list[ast.stmt]:
    return [Replace(values).visit(deepcopy(each)) for each in body] if values else body


def _given(function: ast.FunctionDef, call: ast.Call | None) -> list[ast.stmt]:
    """The body of a function that is called, with names for the parameters that they are given
    for.
    """
    every = function.args.posonlyargs + function.args.args
    given = call.args if call is not None else []
    if any(isinstance(each, ast.Starred) for each in given):
        return function.body
    bound = Counter(names_in(function, ast.Store))
    bound.update(each.arg for each in ast.walk(function) if isinstance(each, ast.arg))
    pairs = zip((each.arg for each in every), given, strict=False)
    values = {name: v for name, v in pairs if isinstance(v, ast.Name) and bound[name] == 1}
    return _replaced(function.body, values)


def _imports(pair: tuple[ast.AST, int]) -> bool:
    return is_import(pair[0]) or isinstance(pair[0], (ast.Try, ast.ExceptHandler))


def _calls(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Call) for each in ast.walk(node))


def _own(function: ast.FunctionDef) -> set[str]:
    """The names of a function that are not its module's."""
    return {each.arg for each in ast.walk(function) if isinstance(each, ast.arg)}.union(
        names_in(function, ast.Store)
    )


def _yields(function: ast.FunctionDef) -> bool:
    """Whether a call of it runs nothing of it."""
    return any(isinstance(each, (ast.Yield, ast.YieldFrom)) for each in ast.walk(function))


def _may_return(node: ast.AST) -> bool:
    """Whether a statement may end the function that it is in."""
    if isinstance(node, ast.Return) or not isinstance(node, _COMPOUND):
        return isinstance(node, ast.Return)
    return any(map(_may_return, ast.iter_child_nodes(node)))


def _lets_errors_pass(item: ast.withitem) -> bool:
    """Whether a context is known to end no exception."""
    value = item.context_expr
    function = value.func if isinstance(value, ast.Call) else value
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    return name in ("catch_warnings", "nullcontext", "open") or "lock" in name.lower()


def _called(node: ast.stmt) -> str:
    """The function that a statement calls by its name."""
    call = called(node)
    return call.func.id if call is not None and isinstance(call.func, ast.Name) else ""


def handled(handler: ast.ExceptHandler, scope: Mapping[str, ast.AST]) -> int | None:
    """What a handler survives; None where it may be anything."""
    nodes = list(ast.walk(handler.type)) if handler.type is not None else []
    names = {each.id for each in nodes if isinstance(each, ast.Name)}
    if _raises(handler.body, scope):
        return 0
    if not names or names - {*_CAUGHT} or any(isinstance(n, ast.Attribute) for n in nodes):
        return None
    caught = reduce(or_, (_CAUGHT[name] for name in names))
    return caught & ABSENCE if any(map(_absence_alone, handler.body)) else caught


def _absence_alone(node: ast.stmt) -> bool:
    """Whether a handler raises anew what does not say that there is no such module."""
    if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
        return False
    other = node.orelse if isinstance(node.test.ops[0], ast.In) else node.body
    raises = bool(other) and _raises(other, {})
    return raises and ast.unparse(node.test.left) == "'No module named'"


def decided(test: ast.expr, version: tuple[int, ...], names: Mapping[str, bool]) -> bool | None:
    """Whether a condition holds on Linux in that Python; None where that is not known. names: those
    that are known to be true, or false.
    """
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = decided(test.operand, version, names)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        known = [decided(each, version, names) for each in test.values]
        ends = isinstance(test.op, ast.Or)  # what one of them is, it is as a whole
        return ends if ends in known else None if None in known else not ends
    name = test.id if isinstance(test, ast.Name) else getattr(test, "attr", "")
    if name in names:
        return names[name]
    if isinstance(test, (ast.Call, ast.Compare)) and ast.unparse(test) in names:
        return names[ast.unparse(test)]
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        is_what = test.left, test.comparators[0]
        if isinstance(test.ops[0], (ast.Is, ast.IsNot)) and all(
            isinstance(each, ast.Constant) for each in is_what
        ):
            return same_value(*is_what) == isinstance(test.ops[0], ast.Is)
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
