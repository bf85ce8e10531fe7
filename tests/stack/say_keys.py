"""What the code says to people: the literals of its calls of `say`, by file."""

import ast
from collections.abc import Iterator
from pathlib import Path


def keys(package: Path) -> dict[str, list[str]]:
    """Each literal that a call of `say` may be given, and the files with such a call."""
    found: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "say" and node.args:
                for text in literals(node.args[0]):
                    found.setdefault(text, []).append(path.name)
    return found


def literals(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from literals(node.body)
        yield from literals(node.orelse)
