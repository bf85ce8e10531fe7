"""What Python sources say: statements, the names that they bind, the modules that they name."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

_AT_THE_END = (
    "was never closed", "unterminated triple-quoted", "unexpected EOF",
    "expected an indented block",
)  # fmt: skip


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """The statements of a body and those inside them, outer ones first; not their expressions,
    which are most of a tree.
    """
    left: list[ast.AST] = list(body)
    for node in left:
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, name, ())


def bound_names(body: list[ast.stmt], module: str) -> Iterator[str]:
    """The names that statements of a module's level may bind; "*" for any. From `module` itself
    only another name than a submodule's own is bound; what a handler binds is left out.
    """
    return (name for name, _ in bindings(body, module))


def bindings(body: list[ast.stmt], module: str) -> Iterator[tuple[str, int]]:
    """The same, each with its line."""
    left: list[ast.AST] = list(body)
    while left:
        node = left.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node.lineno
            for each in statements([node]):
                names = each.names if isinstance(each, ast.Global) else ()
                yield from ((name, node.lineno) for name in names)
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            left += node.orelse if not isinstance(node.test, ast.UnaryOp) else node.body
            continue
        if isinstance(node, ast.Lambda) or (module and isinstance(node, ast.ExceptHandler)):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], node.lineno
        elif isinstance(node, ast.ImportFrom) and (not module or node.module not in (None, module)):
            for alias in node.names:
                yield alias.asname or alias.name, node.lineno
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name, node.lineno
        left += ast.iter_child_nodes(node)


def joined_texts(values: dict[str, ast.expr], name: str) -> Iterator[str]:
    """The texts of an expression that joins, and of the names in it."""
    nodes = [values[name]] if name in values else []
    for node in nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.BitOr)):
            nodes += [node.left, node.right]
        elif isinstance(node, ast.Call):
            nodes += node.args
        elif isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            nodes += node.elts
        elif isinstance(node, ast.Name):
            nodes += [values.pop(node.id)] if node.id in values else []
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def ends_too_early(source: bytes, error: SyntaxError) -> bool:
    """Whether a parser came to the end of a source and wanted more."""
    if any(words in error.msg for words in _AT_THE_END):
        return True
    lines = source.rstrip().split(b"\n")
    line = error.lineno or 0
    ended = (error.offset or 0) > len(lines[-1]) or "unterminated string" in error.msg
    return line > len(lines) or (line == len(lines) and ended)


def last_name(tree: ast.Module) -> str:
    """The name that a source ends in: it may have been cut there."""
    last = tree.body[-1] if tree.body else None
    while isinstance(last, ast.ClassDef):
        last = last.body[-1]
    value = last.value if isinstance(last, (ast.Expr, ast.Assign, ast.AnnAssign)) else None
    value = last.targets[-1] if isinstance(last, ast.Delete) else value
    return value.id if isinstance(value, ast.Name) else ""


def bound_anywhere(tree: ast.Module) -> Iterator[str]:
    """The names that any part of a source binds, be it in a function of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        elif isinstance(node, ast.Name):
            yield node.id if isinstance(node.ctx, ast.Store) else ""
        elif isinstance(node, ast.Global):
            yield from node.names
        else:
            yield getattr(node, "name", None) or getattr(node, "arg", None) or ""


def from_module(name: str, package: bool, statement: ast.ImportFrom) -> str:
    """The module that a `from` names, which may be relative to the one that says it."""
    parts = name.split(".") if statement.level else []
    if statement.level and len(parts) + package < statement.level:
        return ""
    parts = parts[: len(parts) - statement.level + package] if statement.level else []
    return ".".join([*parts, *filter(None, [statement.module])])


def called(node: ast.stmt) -> ast.Call | None:
    """The call that a statement is, or whose value it gives to a name."""
    value = node.value if isinstance(node, (ast.Expr, ast.Assign)) else None
    return value if isinstance(value, ast.Call) else None


def spelled(node: ast.stmt, name: str, package: bool) -> ast.stmt:
    """The import that a call of `__import__` or `import_module` is; any other statement itself."""
    call = called(node)
    function = call.func if call else None
    by = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    if call is None or by not in ("__import__", "import_module") or not call.args:
        return node
    module = _text(call.args[0], name, package)
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    bound = target.id if isinstance(target, ast.Name) and by == "import_module" else None
    if module.startswith("."):
        level = len(module) - len(module.lstrip("."))
        said = ast.ImportFrom(module.lstrip("."), [], level)
        # Relative to what is named besides, which is known if that is the package itself.
        others = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
        own = name if package else name.rpartition(".")[0]
        known = [_text(each, name, package) for each in others] == [own]
        module = from_module(name, package, said) if known else ""
    return ast.Import([ast.alias(module, bound)]) if module else node


def _text(node: ast.expr, name: str, package: bool) -> str:
    """The text of an expression in a module of that name; "" where it is not known."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.Name):
        own = name if package else name.rpartition(".")[0]
        return {"__name__": name, "__package__": own}.get(node.id, "")
    values: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        values = [node.left, node.right]
    elif isinstance(node, ast.JoinedStr):
        values = [v.value if isinstance(v, ast.FormattedValue) else v for v in node.values]
    texts = [_text(each, name, package) for each in values]
    return "".join(texts) if all(texts) else ""


def prefixes(name: str) -> Iterator[str]:
    """ "a", "a.b", "a.b.c" of "a.b.c", one at a time: a hostile name has thousands of parts."""
    parts = name.split(".") if name else []
    return (".".join(parts[:number]) for number in range(1, len(parts) + 1))


def distribution(name: str) -> str:
    """The distribution that a module's name is usually that of."""
    return name.replace(".", "-").replace("_", "-").lower()
