"""What packages brought, or require, and is not as it was: Python files, extension modules, whole
distributions; and which imports end there.
"""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from collections.abc import Iterator

from cudriver.stack.collect import distributions, records
from cudriver.stack.collect.contents import Contents
from cudriver.stack.collect.frameworks import matters_here
from cudriver.stack.collect.libraries import Resolver
from cudriver.stack.markers import Markers, environment, normal
from cudriver.stack.model import Absent, Distribution, Evidence, Facts, FileFault, Framework
from cudriver.stack.recipes import listed
from cudriver.stack.rootfs import Root
from cudriver.stack.versions import satisfies

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cudriver.stack.collect.modules import Modules

FEW = 4  # files, of each of which all sources are asked
_TOOLS = frozenset(("pip", "setuptools", "uv", "wheel"))  # they are run, not imported
_FIRST = re.compile(rb"/__init__\.py,")  # behind the path of a package
_OWN = re.compile(rb"^(?![^,\n/]+\.dist-info/)[^,\n]", re.MULTILINE)  # a file beside its records
_LIBRARY = re.compile(rb"\.so[.0-9]*,")
_RELEASE = re.compile(r"extra\s*==\s*['\"]cu(\d+)['\"]")  # of an extra for a CUDA release


class Lost:
    """Looks for it while the libraries are resolved."""

    def __init__(self, tree: Root, facts: Facts, owners: records.Owners) -> None:
        self.tree: Root = tree
        self.facts: Facts = facts
        self.owners: records.Owners = owners
        self.required: dict[str, Distribution] = {}  # by what has to do with CUDA
        self.by: dict[str, set[str]] = {}  # a required distribution: those that require it
        # What is not installed, and every extra for a CUDA release asks for, by the release, or
        # ("") what has nothing to do with CUDA: told where an import ends there.
        self.either: list[dict[str, Absent]] = []
        env = facts.environment
        self._markers: Markers = Markers(environment(env.python or "3.12", env.platform))
        self._require()
        self.wheels: list[tuple[Distribution, bytes]] = []
        self.plain: set[str] = set()  # what has nothing to do with CUDA
        own = []  # NVIDIA's
        for dist in facts.distributions:
            if dist.kind != "wheel":
                continue
            if dist.name.startswith("nvidia-"):
                own.append((dist, owners.records[dist.path]))
            elif matters_here(dist):
                self.wheels.append((dist, owners.records[dist.path]))
            elif dist.name not in _TOOLS:
                self.wheels.append((dist, records.read(tree, dist, facts.problems)))
                if dist.name not in self.required:
                    self.plain.add(dist.name)
        self._modules = records.LostModules(tree, self.wheels + own, facts.environment.platform)

    def _require(self) -> None:
        """What the packages that have to do with CUDA require, and what that requires."""
        facts = self.facts
        installed = {dist.name: dist for dist in facts.distributions}
        left = [
            d
            for d in facts.distributions
            if d.kind == "wheel" and (distributions.matters(d.name) or self.owners.of.get(d.path))
        ]
        if left and "numpy" in installed:  # torch and others take it where it is there
            left.append(installed["numpy"])
        self.required = {dist.name: dist for dist in left}
        for dist in left:
            releases: dict[str, dict[str, str]] = {}  # by name and CUDA release
            for name, specifier, marker in _asks(dist):
                if "extra" in marker:
                    release = _RELEASE.search(marker)
                    if release is not None:
                        releases.setdefault(name, {})[release[1]] = specifier
                    continue
                self.by.setdefault(name, set()).add(dist.name)
                if name in self.required:
                    continue
                if name in installed:
                    self.required[name] = installed[name]
                    left.append(installed[name])
                    continue
                if self._wants(dist, name, marker):
                    facts.absent.append(_absent(dist, name, specifier))
            count = len({release for each in releases.values() for release in each})
            for name, each in releases.items():
                every = len(each) == count > 1
                if every and name not in installed and not relevant(name):
                    self.either.append({k: _absent(dist, name, s) for k, s in each.items()})
        for dist in facts.distributions:
            for name, specifier, marker in _asks(dist) if dist.name not in self.required else ():
                known = name in installed or "extra" in marker or dist.kind != "wheel"
                if not known and self._wants(dist, name, marker):
                    self.by.setdefault(name, set()).add(dist.name)
                    self.either.append({"": _absent(dist, name, specifier)})

    def _wants(self, dist: Distribution, name: str, marker: str) -> bool:
        """Whether a distribution requires here, for no extra, what is not installed, and no library
        tells already.
        """
        by_conda = "conda" in (dist.installer, self.facts.environment.kind)
        holds = not marker.strip() or self._markers.holds(marker)
        return bool(holds) and not by_conda and not relevant(name)

    def find(self, resolver: Resolver) -> None:
        """Adds it to the facts, with the imports that end there."""
        collects = gc.isenabled()
        gc.disable()  # it would look at all nodes of all sources again and again
        try:
            self._find(resolver)
        finally:
            if collects:
                gc.enable()

    def _find(self, resolver: Resolver) -> None:
        facts = self.facts
        found, suspects = self._damaged()
        inner = [fault for fault in facts.file_faults if _told(fault)]
        if found or suspects or inner or facts.absent or self.either:
            found = self._follow(resolver, found, suspects, inner)
        contents = Contents(self.tree, facts, resolver, self.wheels)
        read = {fault.file: fault for fault in contents.faults()}
        facts.file_faults = [f for f in facts.file_faults + found if f.file not in read]
        facts.file_faults += read.values()
        for fault in (fault for fault in facts.file_faults if not fault.says):
            name = os.path.basename(fault.file)
            if fault.what == "missing":
                fault.says = next((says for says in resolver.said if name in says), "")
            elif records.is_library(name):
                fault.says = records.ending(self.tree, fault.file) or ""

    def _damaged(self) -> tuple[list[FileFault], list[FileFault]]:
        """Files that are not as their package brought them, and those of which only the imports
        that end there are told.
        """
        facts = self.facts
        found, suspects = (list(filter(_told, faults)) for faults in self._modules.faults())
        suspects += [fault for fault in found if fault.distribution in self.plain]
        found = [fault for fault in found if fault.distribution not in self.plain]
        known = {fault.file for fault in facts.file_faults}
        if found or suspects:
            # Several packages may bring one file (google/__init__.py), each with other contents.
            lists = (records.listed(self.tree, dist) for dist in facts.distributions)
            count = Counter(path for paths in lists for path in paths)
            known |= {path for path, times in count.items() if times > 1}
        found, suspects = ([f for f in x if f.file not in known] for x in (found, suspects))
        overlays = [fault for fault in self._overlays() if fault.file not in known]
        return found, suspects + overlays + self._hidden()

    def _follow(
        self,
        resolver: Resolver,
        found: list[FileFault],
        suspects: list[FileFault],
        inner: list[FileFault],
    ) -> list[FileFault]:
        """Follows the imports. What is found, with the suspects that they meet. inner: what the
        facts have already.
        """
        from cudriver.stack.collect.reach import Reach

        facts = self.facts
        modules = self._read(resolver, [*inner, *found, *suspects])
        either = [each[max(modules.majors & {*each} or each)] for each in self.either]
        packages = {dist.name: _packages(raw) for dist, raw in self.wheels}
        reach = Reach(modules, facts.absent + either, self.by, self._owner, packages)
        for name, recipe in resolver.recipes.items():
            framework = resolver.frameworks[name]
            for releases, names in recipe.imports.items():
                if satisfies(framework.version, releases):
                    reach.imports[framework.module] = names
        lacking = {each.by for each in either}
        roots = self._roots(resolver, lacking)
        if not modules.faults:
            asking = self._asking(lacking | {each.by for each in facts.absent})
            roots = [root for root in roots if root.distribution in asking]
            reach.within = {root.module.partition(".")[0] for root in roots}
            reach.within |= set().union(*(packages.get(name, ()) for name in asking))
        reach.run(roots)
        others = [each for each in facts.absent if each.framework is None]
        reach.said.later(others)
        lacks = {each.by for each in reach.lacks}
        others += [each[""] for each in self.either if "" in each and each[""].by in lacks]
        facts.absent = reach.lacks + [each for each in others if each not in reach.lacks]
        self._empty_packages(modules)
        met = resolver.load_reached(roots, reach.libraries, modules.faults)
        told = inner + found + suspects
        for fault in told:
            later = reach.said.taken(fault) if len(told) < FEW else ""
            fault.says = fault.says or later or modules.says(fault)
        for fault in suspects:
            broken = fault.says and fault.what == "edited" and fault.file.endswith(".py")
            if fault.framework is not None or fault.file in met or broken:
                found.append(fault)
        facts.file_faults = [fault for fault in facts.file_faults if fault not in reach.met]
        return reach.met + [fault for fault in found if fault not in reach.met]

    def _read(self, resolver: Resolver, faults: list[FileFault]) -> Modules:
        """What is known of modules, and of the names that their sources ask."""
        from cudriver.stack.collect.modules import Modules

        facts = self.facts
        modules = Modules(self.tree, facts.environment, faults)
        known_by = map(facts.distribution, ("cuda-bindings", "cuda-toolkit"))
        releases = [f.cuda for f in facts.frameworks] + [d.version for d in known_by if d]
        modules.majors = {release.partition(".")[0] for release in releases if release}
        modules.known.update(self._conditions(resolver))
        for framework in facts.frameworks:  # numba_cuda/numba/cuda is numba.cuda
            inside = f"{framework.path}/{framework.module.replace('.', '/')}"
            if modules.names(inside):
                modules.instead[framework.module] = inside.rpartition("/")[0]
        return modules

    def _conditions(self, resolver: Resolver) -> Iterator[tuple[str, bool]]:
        """Names that the frameworks' sources ask, and what they are."""
        for recipe in resolver.recipes.values():
            for each in recipe.conditions:
                of = self.facts.distribution(each.of) if each.of else None
                fits = not each.of or (of and satisfies(of.version, each.versions))
                if fits and not self.facts.environment.variables.get(each.unset):
                    yield each.name, each.holds

    def _empty_packages(self, modules: Modules) -> None:
        """Marks what a distribution without files of its own requires: cuda-python is installed
        for nothing but cuda-bindings.
        """
        from cudriver.stack.collect.sources import prefixes

        empty = {dist.name for dist, raw in self.wheels if not _OWN.search(raw)}
        for each in self.facts.absent:
            known = [data["module"] for data in listed() if each.name in data["distributions"]]
            if known and each.framework is None and each.by in empty:
                lacking = [name for name in prefixes(known[0]) if modules.find(name) is None]
                if lacking:
                    each.framework, each.says = known[0], f"No module named '{lacking[0]}'"

    def _owner(self, path: str) -> str:
        """The distribution whose RECORD has a file; "" where none has."""
        for dist, raw in self.wheels:
            inside = os.fsencode(path.removeprefix(f"{dist.location}/"))
            if raw.startswith(b"%s," % inside) or b"\n%s," % inside in raw:
                return dist.name
        return ""

    def _roots(self, resolver: Resolver, lacking: set[str]) -> list[Framework]:
        """What a program imports: the frameworks, and the packages that nobody else requires, or
        which lack something; what another root requires comes last.
        """
        # Of what uses no CUDA the recipe is known all the same.
        hidden = {f.distribution for f in resolver.frameworks.values() if f.fails or f.blocked}
        known = [f for f in self.facts.frameworks if f.modelled]
        told = hidden | {framework.distribution for framework in known}
        asks = (ask for dist in self.facts.distributions for ask in dist.asks)
        required = {normal(name) for name, rest in asks if "extra" not in rest.partition(";")[2]}
        # Where what one needs is not installed, its import ends there.
        roots = [f for f in known if not f.fails and not self.facts.framework(f.blocked)]
        for dist, raw in self.wheels:
            if dist.name in told | (required - lacking) | _TOOLS:
                continue
            packages = _packages(raw)
            packages = packages & {dist.name.replace("-", "_")} or packages
            other = resolver.frameworks.get(dist.name)
            modules = packages if len(packages) == 1 or other is None else {other.module}
            if len(modules) == 1:
                (module,) = modules
                name = other.name if other else module
                made = Framework(name, dist.version, module=module, distribution=dist.name)
                made.modelled = False
                made.after, made.blocked = (other.after, other.blocked) if other else ([], None)
                if not made.blocked:
                    roots.append(made)
        for framework in [root for root in roots if root.modelled]:
            for name in resolver.recipes[framework.name].besides:
                made = Framework(name, framework.version, module=name)
                made.distribution, made.modelled = framework.distribution, False
                roots.append(made)
        return sorted(roots, key=lambda framework: framework.distribution in required)

    def _asking(self, names: set[str]) -> set[str]:
        """Some distributions, and those that require them, or what does, and so on."""
        asks = {d.name: {normal(name) for name, _ in d.asks} for d in self.facts.distributions}
        found, size = {*names}, 0
        while len(found) > size:
            size = len(found)
            found |= {name for name, asked in asks.items() if asked & found}
        return found

    def _overlays(self) -> list[FileFault]:
        """Libraries of LD_LIBRARY_PATH that no loader can use, and that wheels bring as well."""
        paths = self.facts.environment.variables.get("LD_LIBRARY_PATH", "").split(":")
        folders = {os.path.normpath(path) for path in paths if path.startswith("/")}
        files = [f"{each}/{name}" for each in folders for name in self.tree.names(each)]
        names = {os.path.basename(file) for file in files if records.is_library(file)}
        brought: dict[str, tuple[Distribution, str]] = {}
        for dist, raw in self.wheels if names else ():
            for path in filter(os.path.dirname, _paths(raw, _LIBRARY)):
                brought.setdefault(os.path.basename(path), (dist, f"{dist.location}/{path}"))
        found = []
        for file in files:
            of, own = brought.get(os.path.basename(file), (None, file))
            if of is not None and own != file and records.ending(self.tree, file) is not None:
                evidence = Evidence(file, None, f"comes before {own}")
                found.append(FileFault(of.name, file, "hidden", evidence))
        return found

    def _hidden(self) -> list[FileFault]:
        """Packages of a folder that comes before the one in which their distribution lies."""
        found = []
        folders = self.facts.environment.site_packages
        for dist, raw in self.wheels if len(folders) > 1 else ():
            before = folders[: folders.index(dist.location)] if dist.location in folders else []
            packages = {dist.name.replace("-", "/")} | _packages(raw) if before else ()
            for package in sorted(packages):
                own = f"{dist.location}/{package}"
                for folder in before if self.tree.is_dir(own) else ():
                    file = f"{folder}/{package}"
                    if self.tree.is_dir(file) and not self._has_all(file, own):
                        evidence = Evidence(file, None, f"comes before {own}")
                        found.append(FileFault(dist.name, file, "hidden", evidence))
        return found

    def _has_all(self, folder: str, own: str) -> bool:
        """Whether a folder has every module of another: then it hides none."""
        left = [""]
        for inside in left:
            there = {*self.tree.names(f"{folder}{inside}")}
            for name in self.tree.names(f"{own}{inside}"):
                below = "." not in name and name != "__pycache__"
                below = below and self.tree.is_dir(f"{own}{inside}/{name}")
                if (below or name.endswith((".py", ".so"))) and name not in there:
                    return False
                left += [f"{inside}/{name}"] * below
        return True


def _packages(raw: bytes) -> set[str]:
    """The packages that a RECORD lists."""
    folders = (path.rpartition("/")[0] for path in _paths(raw, _FIRST))
    return {name for name in folders if name.isidentifier() and not name.startswith("_")}


def _paths(raw: bytes, ending: re.Pattern[bytes]) -> Iterator[str]:
    """The paths of a RECORD that end so. To look at each line takes ten times as long."""
    for match in ending.finditer(raw):
        yield os.fsdecode(raw[raw.rfind(b"\n", 0, match.start()) + 1 : match.end() - 1])


def _asks(dist: Distribution) -> Iterator[tuple[str, str, str]]:
    """The name, the specifier and the marker of each requirement."""
    for text, rest in dist.asks:
        specifier, _, marker = rest.partition(";")
        yield normal(text), specifier, marker


def _absent(dist: Distribution, name: str, specifier: str) -> Absent:
    specifier = specifier.strip().removeprefix("(").removesuffix(")")
    evidence = Evidence(f"{dist.path}/METADATA", None, f"{name}{specifier}")
    return Absent(name, specifier if "@" not in specifier else "", dist.name, evidence)


def _told(fault: FileFault) -> bool:
    """NVIDIA's own are the loader's matter, but for those of another hash."""
    return fault.what == "hash" or not fault.distribution.startswith("nvidia-")


def relevant(name: str) -> bool:
    """Whether a library that is not found already reports this missing package."""
    return name.startswith("nvidia-") or name in ("cuda-toolkit", "triton")
