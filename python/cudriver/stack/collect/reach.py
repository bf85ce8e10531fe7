"""Whether imports reach a file that is not as its package brought it, by the packages' sources.

Read only where there is such a file. What counts runs whatever happens: the statements of a
module's own level and of the functions that it calls there, those of unknown conditions and of a
`try` that survives anything left out.
"""

from __future__ import annotations

import ast
import contextlib
import heapq
import re
import sys
from collections.abc import Iterator

from cudriver.stack.collect.modules import Modules, Place
from cudriver.stack.collect.records import loadable
from cudriver.stack.collect.running import ABSENCE, ATTRIBUTE, IMPORT, attributes, running
from cudriver.stack.model import FileFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cudriver.stack.model import Absent, Framework

MODULES = 600  # that are read; PyTorch's import reads 1,500, those nearest to the files first
_NUMPY = (b"numpy._core._multiarray_umath", b"numpy.core._multiarray_umath")
_NAMED = {"numpy._core._multiarray_umath": ("numpy._core._exceptions", "numpy.dtypes")}
_DOTTED = re.compile(rb"(?<=\0)[A-Za-z_]\w*(?:\.\w+)+(?=\0)")


class _EndedError(Exception):
    """A module ends in an error that is survived."""


class Reach:
    """Follows imports from those of the frameworks, and marks the faults that they meet."""

    def __init__(
        self,
        modules: Modules,
        absent: Sequence[Absent],
        required: dict[str, set[str]],
        owner: Callable[[str], str],
    ) -> None:
        """absent: distributions that are required, if only by an extra, and not installed.
        required: by distribution, those that require it. owner: the distribution of a file.
        """
        self.modules = modules
        self.absent: dict[str, Absent] = {each.name: each for each in absent}
        self.required = required
        self.owner = owner
        # Extension modules that imports reach, and whether an ImportError of theirs is survived.
        self.libraries: list[tuple[Framework, str, bool]] = []
        self.met: list[FileFault] = []
        self._near = self._prefixes()
        self._queue: list[tuple[int, int, int, str]] = []
        self._seen: dict[str, int] = {}  # modules that are reached, and what is survived there
        self._statements: dict[str, list[tuple[ast.stmt, int]]] = {}  # by file, what runs
        self._named: dict[str, list[str]] = {}  # by extension module, what it imports
        self._survived = 0  # which errors the code that is followed survives: ABSENCE, ...
        self._running = ""  # the module whose code that is

    def _prefixes(self) -> set[str]:
        """The dotted names of the packages that the files lie in, or would."""
        found: set[str] = set()
        for path in self.modules.faults:
            for site in self.modules.site_packages:
                if path.startswith(f"{site}/"):
                    parts = path[len(site) + 1 :].split("/")
                    parts[-1] = parts[-1].partition(".")[0]
                    parts[0] = parts[0].removesuffix(".libs")
                    found.update(_prefixes(".".join(parts)))
        return found

    def run(self, roots: list[Framework]) -> None:
        """Marks each fault that the import of one of them meets."""
        for framework in roots:
            self._framework = framework
            self._nearest_first()
        # The error that is reported is that of the first import that fails.
        told: list[FileFault | Absent] = [*self.met]
        told += [each for each in self.absent.values() if each.framework]
        before = [(each.framework, each.says) for each in told]
        reached, self._seen = self._seen, {}
        self.met, self.libraries = [], []
        for each in told:
            each.framework = None
        for framework in roots:
            self._framework = framework
            self._in_order(reached)
        for each, (name, says) in zip(told, before, strict=True):
            if each.framework is None:
                each.framework, each.says = name, says
                if isinstance(each, FileFault):
                    self.met.append(each)

    def _nearest_first(self) -> None:
        """Follows an import as far as MODULES allows."""
        self._survived = 0
        self._import(self._framework.module)
        while self._queue and len(self._seen) < MODULES and not self._all_met():
            _, self._survived, _, name = heapq.heappop(self._queue)
            if self._seen[name] == self._survived:
                self._running = name
                for _ in self._execute(name):
                    pass
        self._queue.clear()

    def _all_met(self) -> bool:
        """Whether there is nothing left to look for."""
        absent = all(each.framework is not None for each in self.absent.values())
        return absent and len(self.met) == len(self.modules.faults)

    def _in_order(self, reached: dict[str, int]) -> None:
        """Follows an import as Python does, in what is known to be reached."""
        self._survived = 0
        self._import(self._framework.module)
        running: list[tuple[int, str, Iterator[None]]] = []
        while self._queue or running:
            for _, survived, _, name in sorted(self._queue, key=lambda one: -one[2]):
                if name in reached:
                    running.append((survived, name, self._execute(name)))
            self._queue.clear()
            if running:
                self._survived, self._running, statements = running[-1]
                if next(statements, self) is self:
                    running.pop()

    def _nearness(self, name: str) -> int:
        """How many parts of a module's name are those of a package with such a file."""
        while name and name not in self._near:
            name = name.rpartition(".")[0]
        return len(name.split(".")) if name else 0

    def _import(self, name: str, caught: int = 0) -> bool:
        """`import a.b.c`: each of the three. Whether they are there. caught: errors that the
        statement itself survives.
        """
        survived = caught | self._survived
        for part in _prefixes(name):
            place = self.modules.find(part)
            if place is None or place.gone:
                self._nothing(part, place, caught)
                return False
            before = self._seen.get(part, -1)
            if survived & before != before:
                self._seen[part] = survived & before
                order = -self._nearness(part), survived & before, len(self._seen), part
                heapq.heappush(self._queue, order)
        return True

    def _nothing(self, name: str, place: Place | None, caught: int) -> None:
        """An import of what is not there, be it of a distribution that should be."""
        fault = place.fault if place is not None else self.modules.hidden(name)
        if fault is not None:
            self._fail(fault, f"No module named '{name}'", ABSENCE, caught)
        if fault is not None or (caught | self._survived) & ABSENCE:
            return
        if name not in sys.stdlib_module_names:  # some are distributions, too: dataclasses
            self._lacking(name, f"No module named '{name}'")

    def _lacking(self, name: str, says: str) -> None:
        """A module that nobody brings: whether that is for want of what the one that imports it
        requires.
        """
        absent = self.absent.get(_distribution(name))
        if absent is None:
            place = self.modules.find(self._running)
            owner = self.owner(place.path) if place is not None else ""
            lacking = [each for each in self.absent.values() if each.by == owner]
            absent = lacking[0] if len(lacking) == 1 else None
        if absent is not None and absent.framework is None and not self._elsewhere(name):
            absent.framework, absent.says = self._framework.name, says

    def _fail(self, fault: FileFault, says: str, error: int, caught: int) -> None:
        """A statement that ends in that error. Raises _EndedError where what imports the module
        survives it: the rest of the module does not run.
        """
        if not (caught | self._survived) & error:
            self._meet(fault, says)
        elif not caught & error:
            raise _EndedError

    def _execute(self, name: str) -> Iterator[None]:
        """What runs when a module is imported, statement by statement."""
        with contextlib.suppress(_EndedError):
            yield from self._run(name)

    def _run(self, name: str) -> Iterator[None]:
        place = self.modules.find(name)
        if place is None:
            return
        if place.path.endswith(".so"):
            self._extension(name, place)
            return
        broken = self.modules.broken(place)
        if broken is not None and place.fault is not None:
            self._meet(place.fault, broken)  # no ImportError
        tree = self.modules.tree(place)
        if tree is None:
            return
        known: dict[str, str] = {}  # by what this module calls it, the module
        if place.path not in self._statements:
            self._statements[place.path] = list(running(tree.body, self.modules.version))
        for node, caught in self._statements[place.path]:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    for part in _prefixes(alias.name):
                        there = self._import(part, caught)
                        yield
                        if not there:
                            break
                    bound = alias.name if alias.asname else alias.name.partition(".")[0]
                    known[alias.asname or bound] = bound
            elif isinstance(node, ast.ImportFrom):
                module = _module(name, bool(place.folders), node)
                there = bool(module)
                for part in _prefixes(module):
                    there = self._import(part, caught)
                    yield
                    if not there:
                        break
                source = self.modules.find(module) if there else None
                for alias in node.names if source else ():
                    yield
                    if source and self._from(module, source, alias.name, caught):
                        known[alias.asname or alias.name] = f"{module}.{alias.name}"
                yield
            elif any(self._nearness(each) for each in known.values()):
                self._uses(node, known, caught)

    def _extension(self, name: str, place: Place) -> None:
        """An extension module: whether it is one, and what it imports itself: NumPy's core, where
        it is compiled with NumPy's C interface, and what Cython keeps the names of.
        """
        fault = place.fault
        survived = bool(self._survived & IMPORT)
        if fault is not None and not survived and not loadable(self.modules.root, place.path):
            self._meet(fault, "")
        if self._nearness(name):
            self.libraries.append((self._framework, place.path, survived))
        if place.path not in self._named:
            # NumPy 2 has numpy.core for what knows nothing newer; its C interface does.
            old = "numpy.core" if self.modules.find("numpy._core") is not None else "\0"
            named = dict.fromkeys(self._names_in(name, place.path))
            named = {self._sure(e, name): 0 for e in named if not self._imports_back(e, name)}
            self._named[place.path] = [each for each in named if not each.startswith(old)]
        for one in self._named[place.path]:
            self._compiled(one)

    def _names_in(self, module: str, path: str) -> Iterator[str]:
        """The modules that an extension module names."""
        data = self.modules.strings(path)
        yield from (one.decode() for one in _NUMPY if b"\0%s\0" % one in data)
        yield from _NAMED.get(module, ())
        if b"cython_runtime" in data:
            for one in dict.fromkeys(_DOTTED.findall(data)):
                if self.modules.find(one.decode()) is not None:
                    yield one.decode()
            yield from self._glued(module, data)

    def _sure(self, name: str, module: str) -> str:
        """Of what an extension module names in a package that is required, that package: the rest
        may be imported later.
        """
        top = name.partition(".")[0]
        own = top == module.partition(".")[0] or _distribution(top) not in self.required
        return name if own else top

    def _imports_back(self, name: str, module: str) -> bool:
        """Whether a module's package, by its first file or what that imports, imports the one whose
        extension module names it, and which so far is not whole: that is imported later.
        """
        top, mine = name.partition(".")[0], module.partition(".")[0]
        first = self.modules.find(top) if top != mine else None
        tree = self.modules.tree(first) if first is not None else None
        froms = [node for node in tree.body if isinstance(node, ast.ImportFrom)] if tree else []
        places = [first, *(self.modules.find(_module(top, True, node)) for node in froms)]
        search = re.compile(rb"^(?:import|from) %s\b" % mine.encode(), re.MULTILINE).search
        return any(each and each.source and search(self.modules.text(each)) for each in places)

    def _compiled(self, name: str) -> None:
        """An import by an extension module, which takes some name from there."""
        place = self.modules.find(name) if self._import(name) else None
        fault = place.fault if place is not None else None
        if place is not None and fault is not None and not self._survived & IMPORT:
            bare = place.source and fault.what == "size"  # an empty file
            if bare or (not place.path and not fault.evidence.value.endswith(",0")):
                self._meet(fault, "")

    def _glued(self, module: str, data: bytes) -> Iterator[str]:
        """Modules that are named in texts without ends: those of packages with such a file, and of
        what the extension module's own distribution requires.
        """
        tops = {name.partition(".")[0] for name in self._near}
        mine = {_distribution(part) for part in _prefixes(module)}
        wanted = {name for name, by in self.required.items() if by & mine}
        lacking = {name for name, each in self.absent.items() if each.by in mine}
        for top in tops | {name.replace("-", ".") for name in wanted | lacking}:
            named, name = top.encode(), top.replace(".", "-")
            place = self.modules.find(top)
            whole = name in wanted and place is not None and (place.path or "." in top)
            if _names(data, named) and (whole or (place is None and name in lacking)):
                yield top
            ends = {match.end() for match in re.finditer(re.escape(named) + rb"(?=\.)", data)}
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

    def _meet(self, fault: FileFault, says: str) -> None:
        """Keeps what the first import that meets it says."""
        if fault.framework is None:
            fault.framework, fault.says = self._framework.name, says
            self.met.append(fault)

    def _from(self, module: str, source: Place, name: str, caught: int) -> bool:
        """`from module import name`. Whether that is a module."""
        place = self.modules.find(f"{module}.{name}") if name != "*" else None
        says = f"cannot import name '{name}' from"
        if place is None:
            if name != "*":
                hidden = self.modules.hidden(f"{module}.{name}")
                if hidden is not None and self.modules.submodule_only(module, source, name):
                    self._fail(hidden, says, IMPORT, caught)
                elif not source.path and not (caught | self._survived) & IMPORT:
                    self._lacking(f"{module}.{name}", says)  # a folder alone binds nothing
                self._lacks(source, name, says, IMPORT, caught)
            return False
        if not self.modules.submodule_only(module, source, name):
            return False
        if not place.gone:
            self._import(f"{module}.{name}", caught)
        elif place.fault is not None:
            self._fail(place.fault, says, IMPORT, caught)
        return True

    def _lacks(self, source: Place, name: str, says: str, error: int, caught: int) -> None:
        """A name that a damaged module no longer has."""
        fault = source.fault
        if fault is None or (name.startswith("__") and name != "__all__"):
            return
        bound = source.source and (self.modules.binds(source, name) or self._set(name))
        if not source.path or (source.source and not bound):
            self._fail(fault, says, error, caught)

    def _elsewhere(self, name: str) -> bool:
        """Whether a module may be where folders do not show it."""
        made = rb"^sys\.path\b|addsitedir\(|sys\.modules\[['\"]%s['\"]\]\s*=" % name.encode()
        return self.modules.elsewhere() or self._says(made)

    def _set(self, name: str) -> bool:
        """Whether a module that is reached may set that attribute of another."""
        return self._says(rb"(?<!self)(?<!cls)\.%s\s*=(?!=)" % name.encode())

    def _says(self, pattern: bytes) -> bool:
        """Whether the source of a module that is reached has that."""
        search = re.compile(pattern, re.MULTILINE).search
        places = filter(None, map(self.modules.find, self._seen))
        return any(search(self.modules.text(place)) for place in places if place.source)

    def _uses(self, node: ast.stmt, known: dict[str, str], caught: int) -> None:
        """Attributes of modules that a statement takes whatever happens."""
        for chain in attributes(node):
            module = known.get(chain[0])
            place = self.modules.find(module) if module else None
            for name in chain[1:]:
                if module is None or place is None:
                    break
                below = self.modules.find(f"{module}.{name}")
                if below is not None and self.modules.brings(place, name):
                    self._import(f"{module}.{name}", caught)
                elif below is None:
                    says = f"module '{module}' has no attribute '{name}'"
                    self._lacks(place, name, says, ATTRIBUTE, caught)
                module, place = f"{module}.{name}", below


def _names(data: bytes, module: bytes) -> bool:
    """Whether an extension module names a module: in a text of its own, or, where texts have no
    ends, not as prose does.
    """
    glued = rb"(?<![ '\"`(/,;:-])%s(?![ '\"`)/,;:-])" % re.escape(module)
    return b"\0%s\0" % module in data or (len(module) > 4 and re.search(glued, data) is not None)


def _module(name: str, package: bool, statement: ast.ImportFrom) -> str:
    """The module that a `from` names, which may be relative to the one that says it."""
    parts = name.split(".") if statement.level else []
    if statement.level and len(parts) + package < statement.level:
        return ""
    parts = parts[: len(parts) - statement.level + package] if statement.level else []
    return ".".join([*parts, *filter(None, [statement.module])])


def _distribution(name: str) -> str:
    """The distribution that a module's name is usually that of."""
    return name.replace(".", "-").replace("_", "-").lower()


def _prefixes(name: str) -> Iterator[str]:
    """ "a", "a.b", "a.b.c" of "a.b.c", one at a time: a hostile name has thousands of parts."""
    parts = name.split(".") if name else []
    return (".".join(parts[:number]) for number in range(1, len(parts) + 1))
