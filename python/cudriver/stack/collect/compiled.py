"""What extension modules import themselves: NumPy's core, where they are compiled with its C
interface, and what Cython keeps the names of. Nothing is run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping

from cudriver.stack.collect.modules import Modules
from cudriver.stack.collect.sources import distribution, from_module, prefixes
from cudriver.stack.model import Absent

_NUMPY = (b"numpy._core._multiarray_umath", b"numpy.core._multiarray_umath")
# From which NumPy 2's core takes names by C code as it starts.
NAMED = {
    "numpy._core._multiarray_umath": ("numpy.exceptions", "numpy._core._exceptions", "numpy.dtypes")
}
_DOTTED = re.compile(rb"(?<=\0)[A-Za-z_]\w*(?:\.\w+)+(?=\0)")
_SPECIAL = re.compile(rb"__([a-z]+(?:_[a-z]+)*)__")
_NO_PROSE = rb"(?<![ '\"`(/,;:-])"


class Compiled:
    """The imports of extension modules."""

    def __init__(
        self,
        modules: Modules,
        absent: Mapping[str, Absent],
        required: dict[str, set[str]],
        near: set[str],
        owner: Callable[[str], str],
    ) -> None:
        """absent, required: by distribution, what is not installed, and those that require it.
        near: the packages that hold what is not as it was brought. owner: a file's distribution.
        """
        self.modules = modules
        self.absent = absent
        self.required = required
        self.owner = owner
        self._owners: dict[str, str] = {}
        self._tops: set[str] = {name.partition(".")[0] for name in near}
        self._imports: dict[str, list[str]] = {}  # by extension module
        self._gone: dict[str, list[str]] = {}  # by extension module, what it names and is gone

    def imports(self, module: str, path: str) -> list[str]:
        """What the import of an extension module imports."""
        if path not in self._imports:
            # NumPy 2 has numpy.core for what knows nothing newer; its C interface does.
            old = "numpy.core" if self.modules.find("numpy._core") is not None else "\0"
            named = dict.fromkeys(self._named(module, path))
            places = ((each, self.modules.find(each)) for each in named)
            self._gone[path] = [each for each, place in places if place is not None and place.gone]
            sure = {self._sure(e, module): 0 for e in named if not self._imports_back(e, module)}
            self._imports[path] = [each for each in sure if each and not each.startswith(old)]
        return self._imports[path]

    def gone(self, path: str, package: str) -> str:
        """What an extension module names below a package, and is gone; "": nothing."""
        below = (each for each in self._gone[path] if each.startswith(f"{package}."))
        return next(below, "")

    def _named(self, module: str, path: str) -> Iterator[str]:
        """The modules that an extension module names."""
        data = self.modules.strings(path)
        yield from (one.decode() for one in _NUMPY if b"\0%s\0" % one in data)
        yield from NAMED.get(module, ())
        if b"cython_runtime" in data:
            named = [each.decode() for each in dict.fromkeys(_DOTTED.findall(data))]
            named = [each for each in named if self.modules.find(each) is not None]
            named += self._glued(module, data)
            yield from named
            for package in dict.fromkeys(named):
                place = self.modules.find(package)
                if place is not None and place.folders and not self._same(package, module):
                    yield from self._taken(package, data)

    def _taken(self, package: str, data: bytes) -> Iterator[str]:
        """`from package import module`, two names apart, where that is compiled as well: others'
        names may be anything's. Of its own distribution a module may import that later.
        """
        for child in sorted(self.modules.children(package)):
            if self._is_compiled(f"{package}.{child}") and _has_name(data, child.encode()):
                yield f"{package}.{child}"

    def _sure(self, name: str, module: str) -> str:
        """What of a name is imported at once, if anything: a module may import others when it is
        called. Of another distribution what is compiled as well, else the package, as of one that
        is required; of its own, what is compiled, or lies beside it.
        """
        top = name.partition(".")[0]
        place, compiled = self.modules.find(name), self._is_compiled(name)
        if self._same(name, module):
            beside = f"{name}.".startswith(f"{module.rpartition('.')[0]}.")
            return name if beside or compiled or name in NAMED.get(module, ()) else ""
        required = [each for each in prefixes(name) if distribution(each) in self.required]
        if (compiled or place is None) and (top == module.partition(".")[0] or not required):
            return name
        return required[-1] if required else top

    def _is_compiled(self, name: str) -> bool:
        place = self.modules.find(name)
        return place is not None and place.path.endswith(".so")

    def _same(self, name: str, module: str) -> bool:
        """Whether two modules are of one distribution."""
        one, other = self.modules.find(name), self.modules.find(module)
        return one is not None and other is not None and self._of(one.path) == self._of(other.path)

    def _of(self, path: str) -> str:
        if path not in self._owners:
            self._owners[path] = self.owner(path)
        return self._owners[path]

    def _imports_back(self, name: str, module: str) -> bool:
        """Whether a module's package, by its first file or what that imports, imports the one whose
        extension module names it, and which so far is not whole: that is imported later.
        """
        top, mine = name.partition(".")[0], module.partition(".")[0]
        first = self.modules.find(top) if top != mine else None
        froms = [n for n in self.modules.body(first) if isinstance(n, ast.ImportFrom)]
        places = [first, *(self.modules.find(from_module(top, True, node)) for node in froms)]
        search = re.compile(rb"^(?:import|from) %s\b" % mine.encode(), re.MULTILINE).search
        return any(each and each.source and search(self.modules.text(each)) for each in places)

    def _glued(self, module: str, data: bytes) -> Iterator[str]:
        """Modules that are named in texts without ends: those of packages with such a file, and of
        what the extension module's own distribution requires.
        """
        mine = {distribution(part) for part in prefixes(module)}
        wanted = {name for name, by in self.required.items() if by & mine}
        lacking = {name for name, each in self.absent.items() if each.by in mine or name in wanted}
        for top in self._tops | {name.replace("-", ".") for name in wanted | lacking}:
            named, name = top.encode(), top.replace(".", "-")
            place = self.modules.find(top)
            whole = name in wanted and place is not None and (place.path or "." in top)
            if _names(data, named) and (whole or (place is None and name in lacking)):
                yield top
            found = re.finditer(_NO_PROSE + re.escape(named) + rb"(?=\.)", data)
            ends = {match.end() for match in found}
            follows = {data[end : end + 120] for end in ends} if place is not None else ()
            yield from filter(None, (self._longest(top, text) for text in follows))

    def _longest(self, name: str, text: bytes) -> str | None:
        """The longest name of a module that a text goes on with, which begins with `name`."""
        top, follows = name, text.decode("latin-1")
        while follows[:1] == ".":
            children = self.modules.children(name)
            match = re.match(r"\.(\w+)", follows)
            ends = range(len(match[1]), 0, -1) if match else ()
            best = next(
                (match[1][:end] for end in ends if match and match[1][:end] in children), ""
            )
            if not best or self.modules.find(f"{name}.{best}") is None:
                break
            name, follows = f"{name}.{best}", follows[1 + len(best) :]
        return name if name != top and follows[:1] != " " else None  # not "numpy.core failed"


def _names(data: bytes, module: bytes) -> bool:
    """Whether an extension module names a module: in a text of its own, or, where texts have no
    ends, not as prose does.
    """
    glued = _NO_PROSE + rb"%s(?![ '\"`)/,;:-])" % re.escape(module)
    return b"\0%s\0" % module in data or (len(module) > 4 and re.search(glued, data) is not None)


def _has_name(data: bytes, name: bytes) -> bool:
    """Whether Cython keeps a name: as a text of its own, or among texts without ends, which are
    sorted, underscores aside: between special ones, and before a greater one.
    """
    if b"\0%s\0" % name in data:
        return True
    key = name.strip(b"_").lower()
    for match in re.finditer(rb"(?<!\.)%s(?![.\0 ])" % re.escape(name), data):
        start, end = match.span()
        before, after = data[max(start - 1000, 0) : start], data[end : end + 1000]
        last, following = _SPECIAL.findall(before)[-1:], _SPECIAL.findall(after)[:1]
        least = [after.lstrip(b"_").lower(), *following]
        whole = last and re.fullmatch(rb"[\w.]*", before.rpartition(last[0])[2])
        if whole and following and last[0] < key < min(least):
            return True
    return False
