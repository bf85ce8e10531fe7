"""What a statement comes to by the modules that there are: the branch that runs, an import that is
a call.
"""

from __future__ import annotations

import ast
import re
from copy import deepcopy

from cudriver.stack.collect.modules import Modules
from cudriver.stack.collect.places import Place
from cudriver.stack.collect.sources import bound_names, called, from_module

_CLONES = re.compile(rb"exec\(f?['\"]from \{.+\} import \*")


def branch(modules: Modules, name: str, place: Place, node: ast.If) -> bool | None:
    """Whether the first branch of a module's `if` runs, where that is known: of two the one that
    imports what is brought.
    """
    known = modules.decide(_Values(modules, name, place).visit(deepcopy(node.test)))
    if known is None and ast.unparse(node.test) == "__doc__ is not None":
        tree = modules.tree(place)
        known = tree is not None and ast.get_docstring(tree) is not None
    if known is None and node.orelse:
        body, orelse = (_never(modules, name, place, part) for part in (node.body, node.orelse))
        known = orelse if body != orelse else None
    return known


class _Values(ast.NodeTransformer):
    """Puts into a module's condition what its own names are, and what functions return that do
    nothing else.
    """

    def __init__(self, modules: Modules, name: str, place: Place) -> None:
        self.modules, self.name = modules, name
        package = name if place.folders else name.rpartition(".")[0]
        self.values = {"__name__": name, "__package__": package}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self.values[node.id]) if node.id in self.values else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        above, _, function = ast.unparse(node.func).rpartition(".")
        place = self.modules.find(above or self.name)
        statements = self.modules.body(place) if not node.args and not node.keywords else []
        for each in statements:
            if isinstance(each, ast.FunctionDef) and each.name == function:
                body = each.body[ast.get_docstring(each) is not None :]
                once = [*bound_names(statements, "")].count(function) == 1
                if once and not each.decorator_list and isinstance(body[0], ast.Return):
                    return body[0].value or node
        return node


def _never(modules: Modules, name: str, place: Place, body: list[ast.stmt]) -> bool:
    """Whether statements import what nobody brought into a package that is there."""
    froms = [each for each in body if isinstance(each, ast.ImportFrom)]
    for module in (from_module(name, bool(place.folders), each) for each in froms):
        above = modules.find(module.rpartition(".")[0])
        there = above is not None and above.source and above.folders
        if there and modules.find(module) is None:
            return True
    return False


def cloned(modules: Modules, node: ast.stmt, name: str, place: Place) -> ast.stmt | None:
    """The import that is the call of a function which imports all from a module by its name."""
    call = called(node)
    module = call.args[0] if call is not None and call.args else None
    if call is None or not (isinstance(module, ast.Constant) and isinstance(module.value, str)):
        return None
    # Most calls with a text name no module: their sources need not be parsed again.
    body = modules.body(place) if modules.find(module.value) else []
    function = ast.unparse(call.func)
    for each in body:
        if isinstance(each, ast.ImportFrom) and function in (one.name for one in each.names):
            source = modules.find(from_module(name, bool(place.folders), each))
            if source and _CLONES.search(modules.text(source)):
                return ast.ImportFrom(module.value, [ast.alias("*")], 0)
    return None
