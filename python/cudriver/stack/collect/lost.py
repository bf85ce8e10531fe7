"""What packages brought, or require, and is not as it was: Python files, extension modules, whole
distributions; and which imports end there.
"""

from __future__ import annotations

import os
import re
from collections import Counter

from cudriver.stack.collect import distributions, records
from cudriver.stack.collect.frameworks import matters_here
from cudriver.stack.markers import Markers, environment, normal
from cudriver.stack.model import Absent, Evidence, FileFault, Framework
from cudriver.stack.rootfs import TEXT_LIMIT
from cudriver.stack.versions import satisfies

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cudriver.stack.collect.libraries import Resolver
    from cudriver.stack.collect.modules import Modules
    from cudriver.stack.model import Distribution, Facts
    from cudriver.stack.rootfs import Root

_PACKAGE = re.compile(rb"^([A-Za-z]\w*)/__init__\.py,", re.MULTILINE)
_RELEASE = re.compile(r"extra\s*==\s*['\"]cu(\d+)['\"]")  # of an extra for a CUDA release


class Lost:
    """Looks for it while the libraries are resolved."""

    def __init__(self, tree: Root, facts: Facts, owners: records.Owners) -> None:
        self.tree: Root = tree
        self.facts: Facts = facts
        self.owners: records.Owners = owners
        self.required: dict[str, Distribution] = {}  # by what has to do with CUDA
        self.by: dict[str, set[str]] = {}  # a required distribution: those that require it
        # What is not installed, and every extra for a CUDA release asks for: by the release.
        self.either: list[dict[str, Absent]] = []
        self._require()
        self.wheels: list[tuple[Distribution, bytes]] = []
        for dist in facts.distributions:
            if dist.kind != "wheel" or dist.name.startswith("nvidia-"):
                continue
            if matters_here(dist):
                self.wheels.append((dist, owners.records[dist.path]))
            elif dist.name in self.required:
                self.wheels.append((dist, records.read(tree, dist, facts.problems)))
        self._modules = records.LostModules(tree, self.wheels)

    def _require(self) -> None:
        """What the packages that have to do with CUDA require, and what that requires."""
        env, facts = self.facts.environment, self.facts
        installed = {dist.name: dist for dist in facts.distributions}
        left = [
            d
            for d in facts.distributions
            if d.kind == "wheel" and (distributions.matters(d.name) or self.owners.of.get(d.path))
        ]
        if left and "numpy" in installed:  # torch and others take it where it is there
            left.append(installed["numpy"])
        self.required = {dist.name: dist for dist in left}
        markers: Markers | None = None
        for dist in left:
            releases: dict[str, dict[str, str]] = {}  # by name and CUDA release
            for text, rest in dist.asks:
                name = normal(text)
                specifier, _, marker = rest.partition(";")
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
                markers = markers or Markers(environment(env.python or "3.12", env.platform))
                known = relevant(name) or dist.installer == "conda" or env.kind == "conda"
                if not known and (not marker.strip() or markers.holds(marker)):
                    facts.absent.append(_absent(dist, name, specifier))
            count = len({release for each in releases.values() for release in each})
            for name, each in releases.items():
                every = len(each) == count > 1
                if every and name not in installed and not relevant(name):
                    self.either.append({k: _absent(dist, name, s) for k, s in each.items()})

    def find(self, resolver: Resolver) -> None:
        """Adds it to the facts, with the imports that end there."""
        facts = self.facts
        found, suspects = self._modules.faults()
        known = {fault.file: fault for fault in facts.file_faults}
        found = [fault for fault in found if fault.file not in known]
        suspects = [fault for fault in suspects if fault.file not in known]
        if found or suspects:
            # Several packages may bring one file (google/__init__.py), each with other contents.
            lists = (records.listed(self.tree, dist) for dist in facts.distributions)
            count = Counter(path for paths in lists for path in paths)
            found, suspects = ([f for f in x if count[f.file] < 2] for x in (found, suspects))
        suspects += self._hidden()
        inner = [f for f in known.values() if not f.distribution.startswith("nvidia-")]
        if found or suspects or inner or facts.absent or self.either:
            from cudriver.stack.collect.modules import Modules
            from cudriver.stack.collect.reach import Reach

            modules = Modules(self.tree, facts.environment, [*inner, *found, *suspects])
            known_by = map(facts.distribution, ("cuda-bindings", "cuda-toolkit"))
            releases = [f.cuda for f in facts.frameworks] + [d.version for d in known_by if d]
            modules.majors = {release.partition(".")[0] for release in releases if release}
            either = [each[max(modules.majors & {*each} or each)] for each in self.either]
            for framework in facts.frameworks:  # numba_cuda/numba/cuda is numba.cuda
                inside = f"{framework.path}/{framework.module.replace('.', '/')}"
                if modules.names(inside):
                    modules.instead[framework.module] = inside.rpartition("/")[0]
            reach = Reach(modules, facts.absent + either, self.by, self._owner)
            roots = [f for f in facts.frameworks if f.modelled and not f.fails and not f.blocked]
            roots += self._others(resolver)
            reach.run(roots)
            facts.absent += [each for each in either if each.framework is not None]
            met = resolver.load_reached(roots, reach.libraries, modules.faults)
            found += [
                f
                for f in suspects
                if f.framework is not None or f.file in met or _broken(modules, f)
            ]
            found = reach.met + [fault for fault in found if fault not in reach.met]
            facts.file_faults = [fault for fault in facts.file_faults if fault not in reach.met]
        facts.file_faults += found + self._entry_points(resolver)

    def _entry_points(self, resolver: Resolver) -> list[FileFault]:
        """Files of entry points that importlib.metadata cannot read, and whose import does."""
        readers = [
            framework.module
            for framework in self.facts.frameworks
            if (recipe := resolver.recipes.get(framework.name)) and recipe.entry_points
            if satisfies(framework.version, recipe.entry_points) and not framework.fails
        ]
        found = []
        for dist in self.facts.distributions if readers else ():
            path = f"{dist.path}/entry_points.txt"
            try:
                says, line = _unparsed(self.tree.read(path, TEXT_LIMIT).decode())
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
                continue
            except UnicodeDecodeError as error:
                says, line = str(error), ""
            except OSError as error:
                says, line = error.strerror or "", ""
            if says:
                fault = FileFault(dist.name, path, "hash", Evidence(path, None, line[:200]))
                fault.framework, fault.says = readers[0], says
                found.append(fault)
        return found

    def _owner(self, path: str) -> str:
        """The distribution whose RECORD has a file; "" where none has."""
        for dist, raw in self.wheels:
            inside = os.fsencode(path.removeprefix(f"{dist.location}/"))
            if b"\n%s," % inside in b"\n%s" % raw:
                return dist.name
        return ""

    def _others(self, resolver: Resolver) -> list[Framework]:
        """What a program imports of packages that have shared libraries of their own, that nobody
        else requires, and whose loading no recipe tells.
        """
        found = []
        told = {framework.distribution for framework in resolver.frameworks.values()}
        told -= {f.distribution for f in resolver.frameworks.values() if not f.modelled}
        asks = (ask for dist in self.facts.distributions for ask in dist.asks)
        required = {normal(name) for name, rest in asks if "extra" not in rest.partition(";")[2]}
        for dist, raw in self.wheels:
            if dist.name in told | required or not self.owners.of.get(dist.path):
                continue
            packages = {os.fsdecode(name) for name in _PACKAGE.findall(raw)}
            own = packages & {dist.name.replace("-", "_")} or packages
            if len(own) == 1:
                (module,) = own
                made = Framework(module, dist.version, module=module, distribution=dist.name)
                made.modelled = False
                known = resolver.frameworks.get(dist.name)
                made.after, made.blocked = (known.after, known.blocked) if known else ([], None)
                found.append(made)
        return [framework for framework in found if not framework.blocked]

    def _hidden(self) -> list[FileFault]:
        """Packages of a folder that comes before the one in which their distribution lies."""
        found = []
        folders = self.facts.environment.site_packages
        for dist in self.required.values():
            if dist.location not in folders or dist.name.startswith("nvidia-"):
                continue
            before = folders[: folders.index(dist.location)]
            for package in {dist.name.replace("-", "_"), dist.name.replace("-", "/")}:
                for folder in before if self.tree.is_dir(f"{dist.location}/{package}") else ():
                    file = f"{folder}/{package}"
                    if self.tree.is_dir(file):
                        evidence = Evidence(file, None, f"comes before {dist.location}/{package}")
                        found.append(FileFault(dist.name, file, "hidden", evidence))
        return found


def _absent(dist: Distribution, name: str, specifier: str) -> Absent:
    specifier = specifier.strip().removeprefix("(").removesuffix(")")
    absent = Absent(name, specifier if "@" not in specifier else "", dist.name)
    absent.evidence = Evidence(f"{dist.path}/METADATA", None, f"{name}{specifier}")
    return absent


def _unparsed(text: str) -> tuple[str, str]:
    """What importlib.metadata says of a file of entry points, and the line that it cannot read."""
    section = False
    for line in filter(None, map(str.strip, text.splitlines())):
        section = section or (line.startswith("[") and line.endswith("]"))
        if section and "=" not in line and not line.startswith(("#", "[")):
            return "missing 1 required positional argument: 'value'", line
    return "", ""


def relevant(name: str) -> bool:
    """Whether a library that is not found already reports this missing package."""
    return name.startswith("nvidia-") or name in ("cuda-toolkit", "triton")


def _broken(modules: Modules, fault: FileFault) -> bool:
    """Whether a suspect cannot be compiled, whether or not an import reaches it."""
    from cudriver.stack.collect.modules import Place

    return fault.file.endswith(".py") and modules.broken(Place(fault.file, [], fault)) is not None
