"""Searches the sources of the modules that an import reaches."""

from __future__ import annotations

import re

from cudriver.stack.collect.sources import prefixes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from cudriver.stack.collect.modules import Modules
    from cudriver.stack.model import Absent, FileFault

LACKS = "cannot import name"
_SETS = re.compile(rb"(?<!self)(?<!cls)\.(\w+)\s*=(?!=)")


class Said:
    """What the sources of the modules that are reached say, in whichever line."""

    def __init__(self, modules: Modules, seen: Collection[str]) -> None:
        """seen: the modules that are reached, more and more."""
        self.modules = modules
        self.seen = seen
        self._sets: dict[str, frozenset[bytes]] = {}  # by module, attributes that it may set

    def later(self, absent: list[Absent]) -> None:
        """Of what no import is proven to reach, what one that is reached imports later, or may."""
        for each in absent:
            for name in {each.name.replace("-", sign) for sign in "_."}:
                imports = rb"^[ \t]*(?:import|from) %s\b|import_module\(['\"]%s\b" % (
                    (name.encode(),) * 2
                )
                if self.modules.find(name) is None and self.anywhere(imports):
                    lost = next(part for part in prefixes(name) if self.modules.find(part) is None)
                    each.says = f"No module named '{lost}'"

    def taken(self, fault: FileFault) -> str:
        """What Python says of a module that is gone where what is reached takes it `from` its
        package, if only later.
        """
        name = self.modules.name(fault.file)
        above, _, last = name.rpartition(".")
        if fault.what != "missing" or not above or last == "__init__":
            return ""
        package = re.escape(above.rpartition(".")[2]).encode()
        taken = rb"from (?:[\w.]*\b%s|\.+) import [^\n]*\b%s\b" % (package, last.encode())
        whole = rb"import [\w.]+\.%s\b|from [\w.]*\.%s import" % ((last.encode(),) * 2)
        return f"{LACKS} '{last}' from" if self.anywhere(taken) and not self.anywhere(whole) else ""

    def elsewhere(self, name: str) -> bool:
        """Whether a module may be where folders do not show it."""
        made = rb"^sys\.path\b|addsitedir\(|sys\.modules\[['\"]%s['\"]\]\s*=" % name.encode()
        return self.modules.elsewhere() or self.anywhere(made)

    def sets(self, name: str) -> bool:
        """Whether a module that is reached may set that attribute of another."""
        for module in self.seen:
            if module not in self._sets:
                place = self.modules.find(module)
                text = self.modules.text(place) if place is not None and place.source else b""
                self._sets[module] = frozenset(_SETS.findall(text))
        return any(name.encode() in self._sets[module] for module in self.seen)

    def anywhere(self, pattern: bytes) -> bool:
        """Whether the source of a module that is reached has that."""
        search = re.compile(pattern, re.MULTILINE).search
        places = filter(None, map(self.modules.find, self.seen))
        return any(search(self.modules.text(place)) for place in places if place.source)
