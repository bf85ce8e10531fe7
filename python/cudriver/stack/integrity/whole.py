"""Whether the files of what has to do with CUDA are whole. (--verify: those of every wheel.)"""

from __future__ import annotations

import os
from collections.abc import Iterator

from cudriver.stack.environment import records
from cudriver.stack.environment.records import Entry
from cudriver.stack.facts import CHANGED, DAMAGED, EDITED, MISSING, Distribution, Facts, FileFault
from cudriver.stack.integrity.byte_code import cut_short
from cudriver.stack.integrity.hidden import Hiding
from cudriver.stack.integrity.listed import Wheels, different, top_modules
from cudriver.stack.integrity.look import Looker
from cudriver.stack.integrity.required import required, unmet
from cudriver.stack.integrity.tags import foreign
from cudriver.stack.load.libraries import Resolver
from cudriver.stack.names import is_cuda_library
from cudriver.stack.record import put
from cudriver.stack.roots.rootfs import Root

TRIED = 16  # libraries that were changed and are loaded as an import would: the time is short


class Whole:
    """The files of one environment, once its libraries are resolved."""

    def __init__(self, facts: Facts, resolver: Resolver, every: bool) -> None:
        """every: of all wheels, not of those alone that have to do with CUDA."""
        self.root: Root = resolver.root
        self.facts: Facts = facts
        self.resolver = resolver
        self.every = every
        wanted = required(facts, resolver.owners, resolver.frameworks.values())
        put(facts, unmet=[*unmet(self.root, facts, wanted)])
        self.wheels: Wheels = []
        self._others: list[Distribution] = []  # wheels whose RECORD nobody has read
        for dist in facts.distributions:
            if dist.kind == "wheel" and (every or dist.name in wanted):
                raw = resolver.owners.records.get(dist.path)
                if raw is None:
                    raw = records.read(self.root, dist)
                self.wheels.append((dist, raw))
            elif dist.kind == "wheel":
                self._others.append(dist)
        self._loads = 0
        self._first: dict[str, set[str]] = {}  # by distribution, what an import runs first

    def faults(self) -> Iterator[FileFault]:
        """The files that are not as their packages brought them."""
        env, loader = self.facts.environment, self.resolver.loader
        looker = Looker(env, loader)
        others = ((dist, records.read(self.root, dist, quiet=True)) for dist in self._others)
        files, more = different(self.root, self.wheels, others)
        for file in files:
            fault = looker.at(file)
            if fault is not None:
                yield self._tried(file, fault)
        if looker.spent or more:
            why = "so many files were changed that not all were looked at"
            self.resolver.unsure.append(f"{env.prefix}: {why}")
        yield from Hiding(self.root, env, self.wheels).faults()
        yield from foreign(loader, env, self.wheels)
        yield from cut_short(loader, env, self.wheels, self.every)

    def _tried(self, file: Entry, made: FileFault) -> FileFault:
        """What imports have to do with it."""
        library = records.is_library(os.path.basename(file.path))
        if made.what == DAMAGED:
            put(made, proven=self._runs_first(file))
        elif made.what == MISSING:
            proven, says = self._gone(file)
            put(made, proven=proven, says=says)
        elif library and made.what in (CHANGED, EDITED) and self._loads < TRIED:
            self._loads += 1
            fault = self.resolver.tried(file.distribution.name, file.path)
            # Recipes tell who needs CUDA's own libraries.
            lacks = fault is not None and fault.kind == "not found" and is_cuda_library(fault.name)
            if fault is not None and not lacks:
                put(made, what=CHANGED, why="does not load", says=fault.message)
        return made

    def _runs_first(self, file: Entry) -> bool:
        """Whether an import of its package runs it before all others."""
        name = file.distribution.name
        if name not in self._first:
            raw = next(raw for dist, raw in self.wheels if dist is file.distribution)
            self._first[name] = {*top_modules(raw)}
        return file.inside in self._first[name]

    def _gone(self, file: Entry) -> tuple[bool, str]:
        """Whether an import is proven to need a file that is gone, and what it says then: what
        runs first, and where a recipe says that a framework has its version.
        """
        name, inside, recipes = file.distribution.name, file.inside, self.resolver.recipes
        module = inside.removesuffix(".py").replace("/", ".")
        own = (f.name for f in self.resolver.frameworks.values() if f.distribution == name)
        builds = (recipes[each].build for each in own if each in recipes)
        versions = (source for build in builds for source in build.get("version", ()))
        if any(source.get("file") == inside for source in versions):
            return True, f"No module named '{module}'"
        if not self._runs_first(file):
            return False, ""
        package = module.removesuffix(".__init__")
        if package != module and self.root.is_dir(os.path.dirname(file.path)):
            bare = f"module '{package}' has no attribute"
            return True, "cannot import name" if "." in package else bare
        return True, f"No module named '{package.partition('.')[0]}'"
