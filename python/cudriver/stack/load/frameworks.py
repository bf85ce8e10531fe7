"""Frameworks: what each was built with, by the files in which it says so. Nothing is imported."""

from __future__ import annotations

import os
import re
from functools import cache

from cudriver.stack.elf.parts import section
from cudriver.stack.environment.records import Owners, module_of
from cudriver.stack.facts import Distribution, Evidence, Framework
from cudriver.stack.load.imports import applies
from cudriver.stack.load.recipes import Recipe, listed, parse
from cudriver.stack.names import matches, unsuffixed
from cudriver.stack.record import Record, put
from cudriver.stack.roots.rootfs import Root
from cudriver.stack.tables import matters
from cudriver.stack.versions import cut, satisfies

FILE_LIMIT = 256 << 10
RODATA_LIMIT = 64 << 20
MAX_LIBRARIES = 400  # of one framework

_ASSIGNED = r"^%s\s*(?::[^=\n]+)?=\s*(?:(None)|['\"]([^'\"\n]*)['\"])"


class Finder:
    """Makes Framework facts of one environment."""

    def __init__(
        self, owners: Owners, distributions: list[Distribution], site_packages: list[str]
    ) -> None:
        self.root: Root = owners.root
        self.distributions: dict[str, Distribution] = {d.name: d for d in reversed(distributions)}
        self.owners = owners
        self.site_packages = site_packages
        self.recipes: dict[str, Recipe] = {}  # of the frameworks that were found, by name
        self._sources: dict[str, str | None] = {}

    def all(self) -> list[Framework]:
        """Every framework, PyTorch first; those without a recipe last."""
        found = []
        known: set[str] = set()
        for data in listed():
            dists = self._installed(data["distributions"])
            if dists and satisfies(dists[0].version, data.get("versions", "")) is False:
                continue
            known.update(dist.name for dist in dists)
            if not dists and "version" not in data.get("build", {}):
                continue  # nothing else would tell that it is there
            recipe = parse(data)
            try:
                framework = self.of(recipe, dists)
            except (OSError, ValueError) as error:
                self.root.note(recipe.name, f"could not be read: {error}")
                continue
            if framework is not None:
                self.recipes[framework.name] = recipe
                found.append(framework)
        known.update(framework.name for framework in found)
        for dist in self.distributions.values():
            if dist.name not in known and not dist.name.startswith("nvidia-"):
                other = self.other(dist)
                if other is not None:
                    found.append(other)
        return found

    def _installed(self, patterns: list[str]) -> list[Distribution]:
        """A recipe's distributions that are there, the one that counts first."""
        found: list[Distribution] = []
        for pattern in patterns:
            if "*" in pattern:
                every = (d for name, d in self.distributions.items() if matches(name, pattern))
                found += [dist for dist in every if dist not in found]
            elif pattern in self.distributions:
                found.append(self.distributions[pattern])
        return found

    def of(self, recipe: Recipe, dists: list[Distribution]) -> Framework | None:
        """The framework of a recipe; None where it is not installed."""
        package = self.package(recipe.package)
        dist = dists[0] if dists else None
        if dist is None and (package is None or not recipe.build.get("version")):
            return None
        # Whether another installed package requires one of these, be it by an extra.
        names = {dist.name for dist in dists}
        others = (each for name, each in self.distributions.items() if name not in names)
        needed = (r.name in names for each in others for r in each.requires)
        made = Framework(
            recipe.name,
            dist.version if dist else "",
            variant="unknown",
            distribution=dist.name if dist else None,
            path=package or (dist.path if dist else ""),
            module=recipe.module,
            after=recipe.after,
            extra=recipe.extra,
            required=any(step.alone for step in recipe.steps) and any(needed),
        )
        reader = _Reader(self, made, dist, os.path.dirname(package) if package else None)
        version = reader.first(recipe.build.get("version", []))
        if version is None and dist is None:
            return None  # a folder of this name that is something else
        if version is not None:
            put(made, version=version[0])
        elif recipe.build.get("version"):
            reader.complain(recipe.build["version"][0])
        reader.fill(recipe)
        mine = [step for step in recipe.steps if applies(step, made)]
        put(made, finds_wheels=any(step.pathfinder or step.find for step in mine))
        return made

    def package(self, name: str) -> str | None:
        """The folder (or file) of an importable package: the first on the path that has its first
        module; a project's folder may have its name alone.
        """
        paths = [f"{folder}/{name}" for folder in self.site_packages]
        if "." in name:
            return next(filter(self.root.is_file, paths), None)
        found = list(filter(self.root.is_dir, paths))
        first = (f for f in found if {"__init__.py", "__init__.pyc"} & {*self.root.names(f)})
        return (next(first, None) if len(found) > 1 else None) or next(iter(found), None)

    def source(self, path: str) -> str | None:
        """The text of a file of assignments, read once and not run; None: it is not there."""
        if path not in self._sources:
            there = self.root.exists(path)
            text = self.root.text(path, FILE_LIMIT) if there else None
            if there and (text is None or "\0" in text):
                self.root.note(path, "cannot be read" if text is None else "is not text")
                text = ""
            self._sources[path] = text
        return self._sources[path]

    def pin(self, dist: Distribution | None, stem: str) -> tuple[str, Evidence] | None:
        """The version that a distribution pins of a package: "==9.19.0.56"."""
        for requirement in dist.requires if dist else ():
            match = re.match(r"==\s*([0-9][0-9.]*)", requirement.specifier)
            if match and unsuffixed(requirement.name) == stem:
                return match[1].rstrip("."), requirement.evidence
        return None

    def other(self, dist: Distribution) -> Framework | None:
        """A package without a recipe that has shared libraries (libraries.py drops those that use
        no CUDA), or that requires NVIDIA's.
        """
        entries = self.owners.of.get(dist.path, [])[:MAX_LIBRARIES] if matters_here(dist) else []
        paths = [entry.path for entry in entries if self.root.is_file(entry.path)]
        names = (requirement.name for requirement in dist.active(()))  # for itself
        cuda = any(n == "cuda-toolkit" or re.fullmatch(r"nvidia-.+-cu\d+", n) for n in names)
        wants = dist.kind == "wheel" and not matters(dist.name, "bindings") and cuda
        if not paths and not wants:
            return None
        package = dist.path
        if paths:
            package = os.path.commonpath(paths) if len(paths) > 1 else os.path.dirname(paths[0])
        made = Framework(
            dist.name,
            dist.version,
            variant="unknown",
            path=package,
            distribution=dist.name,
            libraries=paths,
            modelled=False,
            module=module_of(dist, self.owners.records.get(dist.path, b"")),
            finds_wheels=any(r.name == "cuda-pathfinder" for r in dist.requires),
        )
        _Reader(self, made, dist, None).local_version()
        if wants and made.variant == "unknown":
            put(made, variant="cuda")
        return made


class _Reader(Record):
    """Reads where a framework states its build, as its recipe tells."""

    finder: Finder
    framework: Framework
    dist: Distribution | None
    site: str | None

    def fill(self, recipe: Recipe) -> None:
        made, build = self.framework, recipe.build
        cuda = self.first(build.get("cuda", []))
        if cuda is not None:
            put(made, cuda=cut(cuda[0], 3), cuda_evidence=cuda[1])
        else:
            self.local_version()
        cudnn = self.first(build.get("cudnn", []))
        if cudnn is not None:
            put(made, cudnn_built=cut(cudnn[0], 3), cudnn_evidence=cudnn[1])
            put(made, cudnn_by_pin=any("pin" in source for source in build["cudnn"]))
        others = (each for each in ("rocm", "xpu") if self.first(build.get(each, [])))
        other, cpu = next(others, None), self.first(build.get("cpu", []), none=True)
        if made.cuda or self.first(build.get("gpu", [])):
            put(made, variant="cuda")
        elif other is not None:
            put(made, variant=other)
        elif cpu is not None and made.variant == "unknown":
            put(made, variant="cpu", cuda_evidence=made.cuda_evidence or cpu[1])
        archs = self.first(build.get("archs", [])) if made.variant == "cuda" else None
        if archs is not None:
            names = re.findall(r"(?:sm|compute)_\d+[af]?", archs[0])
            put(made, archs=names, archs_evidence=archs[1])

    def local_version(self) -> None:
        """CUDA from a local version: "+cu128" is 12.8, "+cu118" 11.8, "+cpu" none."""
        made, dist = self.framework, self.dist
        text = made.version if "+" in made.version else dist.version if dist else ""
        found = re.search(r"\+(cu(\d+)(\d)|cpu|rocm|xpu)", text) if "+" in text else None
        if found is None:
            return
        put(made, cuda_evidence=dist.evidence if dist else Evidence(made.path, None, text))
        if found[1].startswith("cu"):
            put(made, cuda=f"{found[2]}.{found[3]}", variant="cuda")
        else:
            put(made, variant=found[1])

    def first(
        self, sources: list[dict[str, str]], *, none: bool = False
    ) -> tuple[str, Evidence] | None:
        """What the first source that says something says. none: a stated None is something."""
        for source in sources:
            value = self._stated(source)
            if value is not None and value[0] != "" and (none or value[0] != "None"):
                return value
        return None

    def complain(self, source: dict[str, str]) -> None:
        """Notes a file that is there and does not say what it should."""
        if "file" in source and self.site is not None:
            file = f"{self.site}/{source['file']}"
            if self.finder.source(file):
                self.finder.root.note(file, f"has no {source.get('assigned', 'version')}")

    def _stated(self, source: dict[str, str]) -> tuple[str, Evidence] | None:
        dist = self.dist
        if "distribution" in source:
            dist = self.finder.distributions.get(source["distribution"])
        if self.site is None and ("strings" in source or "file" in source):
            return None
        if "strings" in source:
            # The list is one string in a library's read-only data.
            path = f"{self.site}/{source['strings']}"
            archs = _arch_list(section(self.finder.root, path, ".rodata", RODATA_LIMIT))
            return (archs, Evidence(path, None, archs)) if archs else None
        if "file" in source:
            file = f"{self.site}/{source['file']}"
            name = source.get("assigned")
            pattern = _ASSIGNED % re.escape(name) if name else source["match"]
            text = self.finder.source(file) or ""
            found = re.search(pattern, text, re.MULTILINE)
            groups = (group for group in (found.groups() if found else ()) if group is not None)
            return (next(groups, ""), Evidence.found(file, text, found)) if found else None
        if dist is None:
            return None
        if "pin" in source:
            return self.finder.pin(dist, source["pin"])
        texts = {"name": dist.name, "tag": dist.version, "conda": dist.build or ""}
        for kind, text in texts.items():
            if kind in source:
                match = re.search(source[kind], text)
                parts = [part for part in match.groups() if part] if match else []
                return (".".join(parts) or text, dist.evidence) if match else None
        return dist.version, dist.evidence


_ARCHS = re.compile(rb"(?:sm|compute)_\d+[af]?(?: (?:sm|compute)_\d+[af]?)* ?\0")


def _arch_list(data: bytes) -> str:
    """The longest list of architectures in a library's read-only data; "" where there is none.

    What lies before it may be a constant without a terminator. Found by its first bytes: a regular
    expression over a megabyte takes a tenth of the whole check.
    """
    best = b""
    for start in (b"sm_", b"compute_"):
        at = data.find(start)
        while at >= 0:
            match = _ARCHS.match(data, at)
            if match and match.end() - at > len(best):
                best = match[0]
            at = data.find(start, match.end() if match else at + 1)
    return best.rstrip(b" \0").decode()


@cache
def _with_recipe() -> frozenset[str]:
    """The distributions that a recipe names."""
    return frozenset(name for data in listed() for name in data["distributions"])


def matters_here(dist: Distribution) -> bool:
    """Whether a distribution's own files are worth a look: it is a framework, or may use CUDA."""
    if dist.kind == "conda" or (matters(dist.name, "other") and dist.name not in _with_recipe()):
        return False
    return dist.kind == "wheel" or matters(dist.name)
