"""What a statement comes to by the modules that there are: the branch that runs, an import that is
a call.
"""

from __future__ import annotations

import ast
import re

from cudriver.stack.collect.sources import called, from_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cudriver.stack.collect.modules import Modules, Place

_CLONES = re.compile(rb"exec\(f?['\"]from \{.+\} import \*")


def branch(modules: Modules, name: str, place: Place, node: ast.If) -> bool | None:
    """Whether the first branch of a module's `if` runs, where that is known: of two the one that
    imports what is brought.
    """
    known = modules.decide(node.test)
    if known is None and ast.unparse(node.test) == "__doc__ is not None":
        tree = modules.tree(place)
        known = tree is not None and ast.get_docstring(tree) is not None
    if known is None and node.orelse:
        body, orelse = (_never(modules, name, place, part) for part in (node.body, node.orelse))
        known = orelse if body != orelse else None
    return known


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
    tree = modules.tree(place) if modules.find(module.value) else None
    function = ast.unparse(call.func)
    for each in tree.body if tree is not None else ():
        if isinstance(each, ast.ImportFrom) and function in (one.name for one in each.names):
            source = modules.find(from_module(name, bool(place.folders), each))
            if source and _CLONES.search(modules.text(source)):
                return ast.ImportFrom(module.value, [ast.alias("*")], 0)
    return None
