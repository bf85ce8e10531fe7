"""Whether imports reach a file that is not as its package brought it, by the packages' sources.

Read only where there is such a file. What counts runs whatever happens: the statements of a
module's own level and of the functions that it calls there, those of unknown conditions and of a
`try` that survives anything left out.
"""

from __future__ import annotations

import ast
import contextlib
import heapq
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

from cudriver.stack.collect.branches import branch, cloned
from cudriver.stack.collect.compiled import NAMED, Compiled
from cudriver.stack.collect.modules import OWN, Modules
from cudriver.stack.collect.places import Place
from cudriver.stack.collect.reached import LACKS, Said
from cudriver.stack.collect.records import ending, is_library
from cudriver.stack.collect.running import (
    ABSENCE,
    ATTRIBUTE,
    IMPORT,
    NAME,
    Ended,
    Pairs,
    attributes,
    importing,
    running,
)
from cudriver.stack.collect.settled import Scope
from cudriver.stack.collect.sources import called, distribution, from_module, prefixes, spelled
from cudriver.stack.model import Absent, FileFault, Framework

Run = Generator[None, None, bool]

MODULES = 2500  # that are read for one import, those nearest to the files first
MOST = 5000  # for all imports
ORDERED = 800  # that are read besides, to know which error comes first


class Reach:
    """Follows imports from those of the frameworks, and marks the faults that they meet."""

    def __init__(
        self,
        modules: Modules,
        absent: Sequence[Absent],
        required: dict[str, set[str]],
        owner: Callable[[str], str],
        packages: dict[str, set[str]],
    ) -> None:
        """absent: distributions that are required, if only by an extra, and not installed.
        required: by distribution, those that require it. owner: the distribution of a file.
        packages: by distribution.
        """
        self.modules = modules
        self.absent: dict[str, Absent] = {each.name: each for each in absent}
        self.required = required
        self.owner = owner
        # By module, what its import imports as well, which only compiled code says.
        self.imports: dict[str, list[str]] = {}
        self.within: set[str] = set()  # packages: others are not read; empty: any are
        # Extension modules that imports reach, and whether an ImportError of theirs is survived.
        self.libraries: list[tuple[Framework, str, bool]] = []
        self.met: list[FileFault] = []
        self.lacks: list[Absent] = []  # what an import ends without, in the order of the imports
        self._near = self._folders(packages)
        self._compiled = Compiled(modules, self.absent, required, self._near, owner)
        self._parts: dict[str, int] = {}  # by module, what _nearness() says
        self._queue: list[tuple[int, int, int, str]] = []
        self._seen: dict[str, int] = {}  # modules that are reached, and what is survived there
        self.said: Said = Said(modules, self._seen)
        # By file, its statements, and which names functions set.
        self._bodies: dict[str, tuple[list[ast.stmt], list[str]]] = {}
        self._functions: dict[str, dict[str, list[ast.stmt]]] = {}  # by file, those that import
        self._called: dict[str, int] = {}  # functions, and what is survived there
        # By module and what it calls it, what it takes from another: that and the name there.
        self._taken: dict[tuple[str, str], tuple[str, str]] = {}
        self._survived = 0  # which errors the code that is followed survives: ABSENCE, ...
        self._running = ""  # the module whose code that is
        self._left = ORDERED
        # By module, the fault of one of which it takes all names.
        self._emptied: dict[str, FileFault] = {}
        # By module, the fault for which a handler of its runs.
        self._handled: dict[str, FileFault] = {}
        self._failed: dict[str, Ended] = {}  # modules whose import ends in an error
        # By file, what a `try` of its ends in, and the first line after its body.
        self._cut: dict[str, tuple[Ended, int]] = {}

    def _folders(self, packages: dict[str, set[str]]) -> set[str]:
        """The dotted names of the packages that the files lie in, or would; of libraries also those
        that may link them.
        """
        found: set[str] = set()
        for path, fault in self.modules.faults.items():
            if is_library(path):
                found |= packages.get(fault.distribution, set())
            found.update(prefixes(self.modules.name(path)))
        return found

    def run(self, roots: list[Framework]) -> None:
        """Marks each fault that the import of one of them meets."""
        for framework in roots:
            self._framework = framework
            self._nearest_first()
        # The error that is reported is that of the first import that fails.
        told: list[FileFault | Absent] = [*self.met, *self.lacks]
        before = [(each.framework, each.says) for each in told]
        reached = {**self._seen}
        self._seen.clear()
        self._called.clear()
        self.met, self.lacks, self.libraries = [], [], []
        for each in told:
            each.framework = None
        for framework in roots:
            self._framework = framework
            self._in_order(reached, told)
        for each, (name, says) in zip(told, before, strict=True):
            if each.framework is None:
                each.framework, each.says = name, says
                if isinstance(each, FileFault):
                    self.met.append(each)
                else:
                    self.lacks.append(each)

    def _nearest_first(self) -> None:
        """Follows an import as far as MODULES allows."""
        self._survived, most = 0, min(len(self._seen) + MODULES, MOST)
        for _ in self._root():
            pass
        while self._queue and len(self._seen) < most and not self._all_met():
            _, self._survived, _, name = heapq.heappop(self._queue)
            if self._seen[name] == self._survived:
                self._running = name
                with contextlib.suppress(Ended):
                    for _ in self._execute(name):
                        pass
        self._queue.clear()
        self._cut.clear()

    def _all_met(self) -> bool:
        """Whether there is nothing left to look for."""
        absent = all(each.framework is not None for each in self.absent.values())
        return absent and len(self.met) == len(self.modules.faults)

    def _in_order(self, reached: dict[str, int], told: list[FileFault | Absent]) -> None:
        """Follows an import as Python does: in what is known to be reached, and until all that is
        told is met again in what comes before.
        """
        self._survived = 0
        running: list[tuple[int, str, Iterator[None]]] = [(0, "", self._root())]
        while self._queue or running:
            for _, survived, _, name in sorted(self._queue, key=lambda one: -one[2]):
                more = name not in reached and self._left and any(not t.framework for t in told)
                self._left -= bool(more)
                if name in reached or more:
                    self._failed.pop(name, None)
                    running.append((survived, name, self._execute(name)))
            self._queue.clear()
            if running:
                self._survived, self._running, statements = running[-1]
                try:
                    if next(statements, self) is self:
                        running.pop()
                except Ended as ended:
                    self._failed[running.pop()[1]] = ended

    def _root(self) -> Iterator[None]:
        """The framework's own module."""
        for part in prefixes(self._framework.module):
            if not self._import(part):
                return
            yield

    def _nearness(self, name: str) -> int:
        """How many parts of a module's name are those of a package with such a file."""
        if name not in self._parts:
            above = name.rpartition(".")[0]
            near = name.count(".") + 1 if name in self._near else 0
            self._parts[name] = near or (self._nearness(above) if above else 0)
        return self._parts[name]

    def _import(self, name: str, caught: int = 0) -> bool:
        """`import a.b.c`: each of the three. Whether they are there. caught: errors that the
        statement itself survives.
        """
        survived = caught | self._survived
        place: Place | None = None
        for part in prefixes(name):
            above, place = place, self.modules.find(part)
            if place is None or place.gone:
                # An extension module makes modules of its own.
                if above is None or above.folders or above.source:
                    self._nothing(part, place, caught)
                return False
            before = self._seen.get(part, -1)
            read = not self.within or name.partition(".")[0] in self.within
            if read and survived & before != before:
                self._seen[part] = survived & before
                order = -self._nearness(part), survived & before, len(self._seen), part
                heapq.heappush(self._queue, order)
        return True

    def _imported(self, name: str, caught: int) -> Run:
        """`import a.b.c`, and what runs then. Whether the three are there. Raises Ended."""
        for part in prefixes(name):
            there = self._import(part, caught)
            yield
            failed = self._failed.get(part)
            if failed is not None:
                self._fail(failed.fault, failed.says, failed.error, caught)
            if not there:
                return False
        return True

    def _nothing(self, name: str, place: Place | None, caught: int) -> None:
        """An import of what is not there, be it of a distribution that should be."""
        fault = place.fault if place is not None else self.modules.hidden(name)
        says = f"No module named '{name}'"
        if fault is not None:
            self._fail(fault, says, ABSENCE, caught)
        running = self.modules.find(self._running)
        if fault is not None or (caught | self._survived) & ABSENCE:
            if running is not None and running.source and self._fails(name):
                self._fail(None, says, ABSENCE, caught)
            return
        if name not in sys.stdlib_module_names:  # some are distributions, too: dataclasses
            cause = self._handled.get(self._running)
            if cause is not None and not self.said.elsewhere(name):
                self._meet(cause, says)
            self._lacking(name, says)

    def _lacking(self, name: str, says: str) -> None:
        """A module that nobody brings: whether that is for want of what the one that imports it
        requires.
        """
        absent = self.absent.get(distribution(name))
        if absent is None and self.modules.find(name.partition(".")[0]) is None:
            place = self.modules.find(self._running)
            owner = self.owner(place.path) if place is not None else ""
            lacking = [a for a in self.absent.values() if owner in self.required.get(a.name, ())]
            absent = lacking[0] if len(lacking) == 1 else None
        if absent is not None and absent.framework is None and not self.said.elsewhere(name):
            absent.framework, absent.says = self._framework.name, says
            self.lacks.append(absent)

    def _fail(self, fault: FileFault | None, says: str, error: int, caught: int) -> None:
        """A statement that ends in that error. Raises Ended where that is survived: the rest of the
        `try`, or of the module, does not run.
        """
        if (caught | self._survived) & error:
            raise Ended(error, fault, says)
        if fault is not None:
            self._meet(fault, says)

    def _fails(self, name: str) -> bool:
        """Whether the import of a module is known to fail: that failed, or nobody brought it."""
        if name in self._failed or self.modules.find(name) is not None:
            return name in self._failed
        above = name.rpartition(".")[0]
        if above:
            return self.modules.plain(above) and self.modules.hidden(name) is None
        return not self.modules.may_be_own(name) and not self.said.elsewhere(name)

    def _execute(self, name: str) -> Iterator[None]:
        """What runs when a module is imported, statement by statement. Raises Ended."""
        place = self.modules.find(name)
        if place is None:
            return
        if place.path.endswith(".so"):
            yield from self._extension(name, place)
            return
        broken = self.modules.broken(place) if place.fault is not None else None
        if broken is not None and place.fault is not None:
            self._meet(place.fault, broken)  # no ImportError
        self._cut.pop(place.path, None)
        if place.path not in self._bodies:
            self._bodies[place.path] = self.modules.body(place), self.modules.set_later(place)
        body, later = self._bodies[place.path]
        yield from self._follow(body, name, place, later)
        for each in self.imports.get(name, ()) if place.source else ():
            lost = self.modules.find(each)
            if lost is not None and lost.gone and lost.fault is not None:
                self._fail(lost.fault, LACKS, IMPORT, 0)
            self._by_extension(each, LACKS)
            yield

    def _decide(self, name: str, place: Place, node: ast.stmt) -> bool | None:
        """Whether the first branch of an `if` runs, or an import works, where that is known."""
        if isinstance(node, ast.If):
            return branch(self.modules, name, place, node)
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [from_module(name, bool(place.folders), node)]
        parts = [part for module in modules for part in prefixes(module)]
        if any(map(self._fails, parts)):
            return False
        # Where what nobody survives is imported, the import of this one ends as well.
        works = isinstance(node, ast.Import) and all(self._seen.get(part) == 0 for part in parts)
        return works or None

    def _follow(
        self, body: list[ast.stmt], name: str, place: Place, later: list[str], outside: int = 0
    ) -> Iterator[None]:
        """Statements of a module, one by one. later: the names that its functions set. outside:
        errors that who runs them survives.
        """
        known: dict[str, str] = {}  # by what it calls them, the modules that it imports
        scope = Scope(partial(self._decide, name, place), {"": ast.Global(later)})
        pairs: Pairs = running(body, scope)
        step: Callable[[], tuple[ast.stmt | ast.ExceptHandler, int]] = partial(next, pairs)
        ended: Ended | None = None
        with contextlib.suppress(StopIteration):
            while True:
                node, caught = step()
                step = partial(next, pairs)
                if isinstance(node, ast.ExceptHandler):
                    if ended is not None and ended.fault is not None:
                        # A module that nobody brought, which is imported there, makes the error
                        # that a user reads.
                        self._handled[name] = ended.fault
                        self._cut[place.path] = ended, node.lineno
                elif isinstance(node, ast.Try):
                    self._handled.pop(name, None)
                else:
                    try:
                        yield from self._statement(node, caught | outside, name, place, known)
                    except Ended as error:
                        ended, ended.line = error, getattr(node, "lineno", 0)
                        step = partial(pairs.throw, ended)

    def _statement(
        self, node: ast.stmt, caught: int, name: str, place: Place, known: dict[str, str]
    ) -> Iterator[None]:
        """One of a module's statements."""
        node = cloned(self.modules, node, name, place) or spelled(node, name, bool(place.folders))
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from self._imported(alias.name, caught)
                bound = alias.name if alias.asname else alias.name.partition(".")[0]
                known[alias.asname or bound] = bound
        elif isinstance(node, ast.ImportFrom):
            module = from_module(name, bool(place.folders), node)
            if module == "__future__":
                known.update((alias.name, module) for alias in node.names)
            there = bool(module) and (yield from self._imported(module, caught))
            source = self.modules.find(module) if there else None
            # What is there is imported before a name is looked up.
            for alias in sorted(node.names, key=lambda one: self._lost(module, one.name)):
                yield
                named = f"{module}.{alias.name}"
                if source and (yield from self._from(module, source, alias.name, caught)):
                    known[alias.asname or alias.name] = named
                elif source and self.modules.find(named) is None:
                    self._taken[name, alias.asname or alias.name] = module, alias.name
            yield
        else:
            if any(self._nearness(each) for each in known.values()):
                yield from self._uses(node, known, caught)
            if name in self._emptied:
                self._undefined(node, name, place, caught)
            yield from self._calls(node, name, known, caught)
            for each in node.targets if isinstance(node, ast.Assign) else [node]:
                bound = getattr(each, "name", getattr(each, "id", ""))
                known.pop(bound, None)
                self._taken.pop((name, bound), None)

    def _calls(
        self, node: ast.stmt, name: str, known: dict[str, str], caught: int
    ) -> Iterator[None]:
        """What a call of another module's function imports."""
        call = called(node)
        if call is None:
            return
        if isinstance(call.func, ast.Name):
            module, function = self._taken.get((name, call.func.id), ("", ""))
        else:
            chain = ast.unparse(call.func).split(".")
            module, function = ".".join([known.get(chain[0], ""), *chain[1:-1]]), chain[-1]
        place = self.modules.find(module)
        if place is None or not place.source:
            return
        if place.path not in self._functions:
            self._functions[place.path] = importing(self.modules.body(place))
        body = self._functions[place.path].get(function)
        survived, key = caught | self._survived, f"{module}:{function}"
        before = self._called.get(key, -1)
        if body is not None and survived & before != before:
            self._called[key] = survived & before
            yield from self._follow(body, module, place, [], caught)

    def _extension(self, name: str, place: Place) -> Iterator[None]:
        """An extension module: whether it is one, and what it imports itself: NumPy's core, where
        it is compiled with NumPy's C interface, and what Cython keeps the names of.
        """
        fault = place.fault
        end = None
        if fault is not None:
            end = ending(self.modules.root, place.path, self.modules.machine)
        if fault is not None or self._nearness(name):
            survived = bool(self._survived & IMPORT)
            self.libraries.append((self._framework, place.path, survived))
        if fault is not None and end is not None:
            self._fail(fault, end, IMPORT, 0)
        for one in self._compiled.imports(name, place.path):
            for part in prefixes(one.rpartition(".")[0]):
                if not self._import(part):
                    break
                yield
            bare = one in ("numpy", *NAMED.get(name, ()))  # its C interface, and its types
            gone = "" if bare else self._compiled.gone(place.path, one)
            says = f"No module named '{gone}'" if gone else LACKS
            self._by_extension(one, _bare(one) if bare else says)

    def _by_extension(self, name: str, says: str) -> None:
        """An import by an extension module, which takes some name from there."""
        place = self.modules.find(name) if self._import(name) else None
        fault = place.fault if place is not None else None
        if place is not None and fault is not None and not self._survived & IMPORT:
            bare = place.source and fault.what == "size"  # an empty file
            if bare or (not place.path and not fault.evidence.value.endswith(",0")):
                self._meet(fault, says)

    def _meet(self, fault: FileFault, says: str) -> None:
        """Keeps what the first import that meets it says."""
        if fault.framework is None:
            fault.framework, fault.says = self._framework.name, says
            self.met.append(fault)

    def _from(self, module: str, source: Place, name: str, caught: int) -> Run:
        """`from module import name`. Whether that is a module."""
        if name == "*":
            if source.fault is not None and not source.gone:
                self._emptied.setdefault(self._running, source.fault)
            for each in self.modules.every(source):
                if self.modules.brings(source, each) and self.modules.find(f"{module}.{each}"):
                    yield from self._imported(f"{module}.{each}", caught)
        place = self.modules.find(f"{module}.{name}") if name != "*" else None
        says = f"{LACKS} '{name}' from"
        if place is None:
            if name != "*":
                lazily = self.modules.lazily(module, source, name)
                if lazily is not None:
                    yield from self._imported(lazily, caught)
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
            yield from self._imported(f"{module}.{name}", caught)
        elif place.fault is not None and not self.modules.handles(source, name):
            self._fail(place.fault, says, IMPORT, caught)
        return True

    def _lost(self, module: str, name: str) -> bool:
        place = self.modules.find(f"{module}.{name}")
        return place is None or place.gone

    def _lacks(self, source: Place, name: str, says: str, error: int, caught: int) -> None:
        """A name that a damaged module no longer has, or that one asks another for."""
        ended, end = self._cut.get(source.path, (None, 0))
        lines = range(ended.line, end) if ended is not None else range(0)
        if ended and self.modules.only_in(source, name, lines) and not self.said.sets(name):
            self._fail(ended.fault, says, error, caught)
        asking = self.modules.find(self._running)
        from_all = map(self.modules.find, self.modules.stars(source) if source.source else ())
        places = [source, *from_all, *[asking] * source.source]
        fault = next((each.fault for each in places if each and each.fault), None)
        if fault is None or name in OWN:
            return
        bound = source.source and (self.modules.binds(source, name) or self.said.sets(name))
        if not source.path or (source.source and not bound):
            self._fail(fault, says, error, caught)

    def _uses(self, node: ast.stmt, known: dict[str, str], caught: int) -> Iterator[None]:
        """Attributes of modules that a statement takes whatever happens."""
        deferred = self.modules.version >= (3, 14) or "annotations" in known
        for chain in attributes(node, bool(self.modules.version) and not deferred):
            module = known.get(chain[0])
            place = self.modules.find(module) if module else None
            for name in chain[1:]:
                if module is None or place is None:
                    break
                below = self.modules.find(f"{module}.{name}")
                if below is not None and self.modules.brings(place, name):
                    yield from self._imported(f"{module}.{name}", caught)
                elif below is None:
                    self._lacks(place, name, _bare(module), ATTRIBUTE, caught)
                module, place = f"{module}.{name}", below

    def _undefined(self, node: ast.stmt, name: str, place: Place, caught: int) -> None:
        """Names of a statement that a damaged module, which brings all of its names, lacks."""
        tree = self.modules.tree(place) or ast.Module([], [])
        for first, *_ in attributes(node):
            if self.modules.nowhere(first, place, tree) and not self.said.sets(first):
                says = f"name '{first}' is not defined"
                self._fail(self._emptied[name], says, NAME, caught)


def _bare(module: str) -> str:
    """What Python says of a module that is empty. Which name is asked for first is not known: a
    function that is not followed may do so.
    """
    return f"module '{module}' has no attribute"
