"""The CUDA libraries that were met: whose each is, its version, by which rule it was found."""

from __future__ import annotations

import os

from cudriver.stack.environment.debian import DebianOwners
from cudriver.stack.environment.records import Owners
from cudriver.stack.facts import GONE, Environment, Framework, Library, Missing, Shadowed
from cudriver.stack.load.file_version import cuda_of, own_version
from cudriver.stack.loader.search import LoadedObject, Search
from cudriver.stack.names import is_cuda_library, row_of
from cudriver.stack.record import Record, fresh, put
from cudriver.stack.roots.rootfs import Root


class Catalogue(Record):
    """The libraries of one environment, and those that it lacks."""

    root: Root
    env: Environment
    owners: Owners
    debian: DebianOwners
    libraries: dict[str, Library] = fresh(dict)  # by path
    missing: dict[tuple[str, str], Missing] = fresh(dict)  # by name and who asks

    def lack(self, search: Search) -> None:
        """Keeps what a lookup did not find, where it was for a CUDA library."""
        name, by = os.path.basename(search.name), search.requested_by or ""
        if search.path is None and is_cuda_library(name):
            asking = os.path.normpath(by) if by else ""
            self.missing.setdefault((search.name, by), Missing(name, asking, search.searched))

    def enter(self, mapped: LoadedObject, framework: Framework, how: str) -> None:
        """Keeps a mapped file, where it is a CUDA library."""
        soname = mapped.elf.soname or os.path.basename(mapped.path)
        path = os.path.normpath(mapped.path)
        if not is_cuda_library(soname) or path in self.libraries:
            return
        if soname.startswith(("libcuda.so", "libnvidia-ml")):
            return  # the driver's, reported there
        search = mapped.search
        owner = self.owners.owner(path) or self.owners.owner(mapped.real_path)
        version, evidence = own_version(self.root, path, soname, owner)
        hits = search.shadowed if search else []
        library = Library(
            soname=soname,
            path=path,
            version=version,
            provided_by=f"{owner.name} {owner.version}" if owner else None,
            found_by=_rule(search, framework, how) if search else "",
            shadowed=[Shadowed(os.path.normpath(hit.path), hit.rule) for hit in hits],
            family=row_of(soname).get("family", ""),
            cuda=cuda_of(soname, version, owner),
            real_path=mapped.real_path,
            needed_by=[mapped.loader.path] if mapped.loader else [],
            origin=self.origin(path, mapped.real_path),
            version_evidence=evidence,
        )
        if owner is None and library.origin == "system":
            put(library, provided_by=self.debian.owner(path) or self.debian.owner(mapped.real_path))
        if library.origin == "system":
            put(library, own_copy=self._own_copy(soname, library.shadowed))
        for other in library.shadowed:
            put(other, version=own_version(self.root, other.path, soname, None)[0])
        self.libraries[path] = library

    def origin(self, path: str, real: str) -> str:
        """Where a file comes from: this environment, the base of a venv, or the system."""
        named = [path for path in self.env.pythonpath if self.env.inside(path)]
        folders = [path for path in self.env.site_packages if path not in named]
        if self.env.kind != "system":
            folders.append(self.env.prefix)
        inside = any(p.startswith(f + "/") for f in folders for p in (path, real))
        return "environment" if inside or self.owners.owner(path) else "system"

    def _own_copy(self, soname: str, shadowed: list[Shadowed]) -> Shadowed | None:
        """The environment's file of this name, which a library from outside keeps from use."""
        for path, claims in self.owners.by_path.items():
            if path.endswith("/" + soname):
                owner = claims[0].distribution
                if not self.root.is_file(path):
                    return Shadowed(path, GONE, owner.version)
                version, _ = own_version(self.root, path, soname, owner)
                return Shadowed(path, "environment", version)
        for other in shadowed:
            if self.origin(other.path, other.path) == "environment":
                return other
        return None


def _rule(search: Search, framework: Framework, how: str) -> str:
    """The loader's rule in words: "RPATH of libtorch_cuda.so ($ORIGIN/../../nvidia/nccl/lib)"."""
    if how == "LD_PRELOAD":
        return how
    if search.rule in ("rpath", "runpath"):
        owner = os.path.basename(search.owner) or "the program"
        return f"{search.rule.upper()} of {owner} ({search.entry})"
    if search.rule == "absolute":
        if how != "preload":
            return "its path"
        return "cuda-pathfinder" if framework.finds_wheels else f"preload by {framework.name}"
    if search.rule == "cache":
        return "ld.so.cache"
    if search.rule in ("LD_LIBRARY_PATH", "default", "configuration") and search.entry:
        return f"{search.rule} ({search.entry})"
    return search.rule
