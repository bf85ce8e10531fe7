"""Searches the sources of the modules that an import reaches."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator

from cudriver.stack.collect.modules import Modules
from cudriver.stack.collect.sources import prefixes
from cudriver.stack.model import Absent, FileFault

LACKS = "cannot import name"
# What makes a module, or looks for it, where no folder has it.
_MAKES = re.compile(
    rb"^(sys\.path)\b|(addsitedir)\(|sys\.modules\[['\"](\w+)['\"]\]\s*=", re.MULTILINE
)
_SETS = re.compile(rb"([\w\])]*)\.(\w+)\s*=(?!=)")
_IMPORTS = re.compile(rb"^[ \t]*(?:from[ \t]+[\w.]+[ \t]+)?import[ \t]*(\([^)]*|.*)", re.MULTILINE)


class Said:
    """What the sources of the modules that are reached say, in whichever line."""

    def __init__(self, modules: Modules, seen: Collection[str]) -> None:
        """seen: the modules that are reached, more and more."""
        self.modules = modules
        self.seen = seen
        self._sets: dict[str, frozenset[bytes]] = {}  # by module, attributes that it may set
        self._makes: dict[str, frozenset[bytes]] = {}  # by module, what _MAKES finds

    def later(self, absent: list[Absent]) -> None:
        """Of what no import is proven to reach, what one that is reached imports later, or may."""
        for each in absent:
            for name in {each.name.replace("-", sign) for sign in "_."}:
                imports = rb"^[ \t]*(?:import|from) %s\b|import_module\(['\"]%s\b" % (
                    (name.encode(),) * 2
                )
                there = self.modules.find(name) is not None or self.modules.elsewhere(name)
                if not there and self.anywhere(imports):
                    lost = next(part for part in prefixes(name) if self.modules.find(part) is None)
                    each.says = f"No module named '{lost}'"

    def taken(self, fault: FileFault) -> str:
        """What Python says of a module that is gone where what is reached takes it `from` its
        package, or of an empty one of which that uses a name, if only later.
        """
        name = self.modules.name(fault.file)
        above, _, last = name.rpartition(".")
        if not above or last == "__init__":
            return ""
        if fault.what == "size" and fault.file.endswith(".py"):
            if self.anywhere(rb"from [\w.]*\b%s import (?!\*)" % last.encode()):
                return LACKS
            uses = self.anywhere(rb"\b%s\.[a-z_]" % last.encode())
            return f"module '{name}' has no attribute" if uses else ""
        if fault.what != "missing":
            return ""
        package = re.escape(above.rpartition(".")[2]).encode()
        taken = rb"from (?:[\w.]*\b%s|\.+) import [^\n]*\b%s\b" % (package, last.encode())
        whole = rb"import [\w.]+\.%s\b|from [\w.]*\.%s import" % ((last.encode(),) * 2)
        return f"{LACKS} '{last}' from" if self.anywhere(taken) and not self.anywhere(whole) else ""

    def elsewhere(self, name: str) -> bool:
        """Whether a module may be where folders do not show it."""
        made = self._found(self._makes, lambda text: map(b"".join, _MAKES.findall(text)))
        return not made.isdisjoint((b"sys.path", b"addsitedir", name.encode())) or (
            self.modules.elsewhere(name)
        )

    def sets(self, name: str) -> bool:
        """Whether a module that is reached may set that attribute of another: of what it imports,
        what its name says is a module, or what no name alone says.
        """
        return name.encode() in self._found(self._sets, _attributes)

    def _found(
        self, known: dict[str, frozenset[bytes]], find: Callable[[bytes], Iterable[bytes]]
    ) -> set[bytes]:
        """What is found in the sources of all modules that are reached."""
        for module in self.seen:
            if module not in known:
                place = self.modules.find(module)
                text = self.modules.text(place) if place is not None and place.source else b""
                known[module] = frozenset(find(text))
        return set().union(*(known[module] for module in self.seen))

    def anywhere(self, pattern: bytes) -> bool:
        """Whether the source of a module that is reached has that."""
        search = re.compile(pattern, re.MULTILINE).search
        places = filter(None, map(self.modules.find, self.seen))
        return any(search(self.modules.text(place)) for place in places if place.source)


def _attributes(text: bytes) -> Iterator[bytes]:
    """The attributes that a source may set of other modules."""
    imported = {*re.findall(rb"\w+", b" ".join(_IMPORTS.findall(text)))}
    for of, attribute in _SETS.findall(text):
        if of in imported or b"mod" in of or not of.isalnum():
            yield attribute
