"""What packages brought, or require, and is not as it was: Python files, extension modules, whole
distributions; and which imports end there.
"""

from __future__ import annotations

from collections import Counter

from cudriver.stack.collect import distributions, records
from cudriver.stack.collect.frameworks import matters_here
from cudriver.stack.markers import Markers, environment, normal
from cudriver.stack.model import Absent, Evidence, FileFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cudriver.stack.collect.libraries import Resolver
    from cudriver.stack.collect.modules import Modules
    from cudriver.stack.model import Distribution, Facts
    from cudriver.stack.rootfs import Root


class Lost:
    """Looks for it while the libraries are resolved."""

    def __init__(self, tree: Root, facts: Facts, owners: records.Owners) -> None:
        self.tree: Root = tree
        self.facts: Facts = facts
        self.required: dict[str, Distribution] = {}  # by what has to do with CUDA
        self.by: dict[str, set[str]] = {}  # a required distribution: those that require it
        self._require()
        wheels = []
        for dist in facts.distributions:
            if dist.kind != "wheel" or dist.name.startswith("nvidia-"):
                continue
            if matters_here(dist):
                wheels.append((dist, owners.records[dist.path]))
            elif dist.name in self.required:
                wheels.append((dist, records.read(tree, dist, facts.problems)))
        self._modules = records.LostModules(tree, wheels)

    def _require(self) -> None:
        """What the packages that have to do with CUDA require, and what that requires."""
        env, facts = self.facts.environment, self.facts
        installed = {dist.name: dist for dist in facts.distributions}
        left = [
            d for d in facts.distributions if d.kind == "wheel" and distributions.matters(d.name)
        ]
        if left and "numpy" in installed:  # torch and others take it where it is there
            left.append(installed["numpy"])
        self.required = {dist.name: dist for dist in left}
        markers: Markers | None = None
        for dist in left:
            for text, rest in dist.asks:
                name = normal(text)
                specifier, _, marker = rest.partition(";")
                if "extra" in marker:
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
                    specifier = specifier.strip().removeprefix("(").removesuffix(")")
                    absent = Absent(name, specifier if "@" not in specifier else "", dist.name)
                    absent.evidence = Evidence(f"{dist.path}/METADATA", None, f"{name}{specifier}")
                    facts.absent.append(absent)

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
        if found or suspects or inner or facts.absent:
            from cudriver.stack.collect.modules import Modules
            from cudriver.stack.collect.reach import Reach

            modules = Modules(self.tree, facts.environment, [*inner, *found, *suspects])
            bindings = facts.distribution("cuda-bindings")
            releases = [f.cuda for f in facts.frameworks] + [bindings and bindings.version]
            modules.majors = {release.partition(".")[0] for release in releases if release}
            for framework in facts.frameworks:  # numba_cuda/numba/cuda is numba.cuda
                inside = f"{framework.path}/{framework.module.replace('.', '/')}"
                if modules.names(inside):
                    modules.instead[framework.module] = inside.rpartition("/")[0]
            reach = Reach(modules, facts.absent, self.by)
            reach.run(facts.frameworks)
            met = resolver.load_reached(reach.libraries, modules.faults)
            found += [
                f
                for f in suspects
                if f.framework is not None or f.file in met or _broken(modules, f)
            ]
            found = reach.met + [fault for fault in found if fault not in reach.met]
            facts.file_faults = [fault for fault in facts.file_faults if fault not in reach.met]
        facts.file_faults += found

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


def relevant(name: str) -> bool:
    """Whether a library that is not found already reports this missing package."""
    return name.startswith("nvidia-") or name in ("cuda-toolkit", "triton")


def _broken(modules: Modules, fault: FileFault) -> bool:
    """Whether a suspect cannot be compiled, whether or not an import reaches it."""
    from cudriver.stack.collect.modules import Place

    return fault.file.endswith(".py") and modules.broken(Place(fault.file, [], fault)) is not None
