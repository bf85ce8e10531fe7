"""Packages of which another folder of sys.path has a part that comes first, or their own folder
files of another release.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from cudriver import _elf
from cudriver.stack.environment.records import RECORD_LIMIT, packages_of
from cudriver.stack.facts import HIDDEN, LEFT, Environment, Evidence, FileFault
from cudriver.stack.integrity.listed import Wheels, folders_of_modules, paths
from cudriver.stack.roots.rootfs import Root

_FIRST = ("__init__.py", "__init__.pyc")


class Hiding:
    """What lies in front of these wheels, or among their files, and comes from none of them."""

    def __init__(self, root: Root, env: Environment, wheels: Wheels) -> None:
        self.root, self.wheels = root, wheels
        self.folders: list[str] = env.site_packages
        self.endings: tuple[str, ...] = env.modules

    def faults(self) -> Iterator[FileFault]:
        yield from self.by_packages()
        yield from self.by_modules()
        yield from self.inside()
        yield from self.left_over()

    def by_packages(self) -> Iterator[FileFault]:
        """What hides a package in an earlier one of the folders, and lacks modules of it."""
        root, folders = self.root, self.folders
        for dist, raw in self.wheels if len(folders) > 1 else ():
            before = folders[: folders.index(dist.location)] if dist.location in folders else []
            packages = {dist.name.replace("-", "/")} | packages_of(raw) if before else set()
            for package in sorted(packages):
                own = f"{dist.location}/{package}"
                for folder in before if root.is_dir(own) else ():
                    file = f"{folder}/{package}"
                    # One without a first file joins the others, and hides none.
                    regular = any(name in _FIRST for name in root.names(file))
                    if regular and not _has_all(root, file, own):
                        evidence = Evidence(file, None, f"comes before {own}")
                        yield FileFault(dist.name, file, HIDDEN, evidence)

    def by_modules(self) -> Iterator[FileFault]:
        """The modules (cuda.py) that hide a package: nothing below it can be imported. In one
        folder a package with a first file comes before a module.
        """
        root, folders = self.root, self.folders
        names = {folder: {*root.names(folder)} for folder in folders}
        for at, folder in enumerate(folders):
            for name in names[folder]:
                stem, _, ending = name.partition(".")
                if not stem.isidentifier() or f".{ending}" not in self.endings:
                    continue
                for own in (f for f in folders[at:] if stem in names[f]):
                    first = root.names(f"{own}/{stem}")
                    if own == folder and any(one in _FIRST for one in first):
                        continue
                    line = os.fsencode(f"\n{stem}/")
                    for dist, raw in self.wheels:
                        if dist.location == own and line in b"\n" + raw:
                            file, says = f"{folder}/{name}", f"'{stem}' is not a package"
                            evidence = Evidence(file, None, f"comes before {own}/{stem}")
                            yield FileFault(
                                dist.name, file, HIDDEN, evidence, says=says, proven=True
                            )

    def inside(self) -> Iterator[FileFault]:
        """The modules that no wheel brought and that come before one of a wheel's in its folder."""
        known: dict[str, list[list[str]]] = {}
        for dist, raw in self.wheels:
            listed = b"\n" + raw
            for inside in folders_of_modules(self.root, dist, raw):
                folder = f"{dist.location}/{inside}".rstrip("/")
                if folder not in known:
                    known[folder] = [*self._rivals(folder)]
                for files in known[folder]:
                    lines = (os.fsencode(f"\n{os.path.join(inside, file)},") for file in files)
                    mine = (f for f, line in zip(files, lines, strict=True) if line in listed)
                    own, first = next(mine, files[0]), f"{folder}/{files[0]}"
                    if own != files[0] and self.root.is_file(first):
                        evidence = Evidence(first, None, f"comes before {folder}/{own}")
                        place = f"{folder}/{files[0].partition('/')[0]}"
                        yield FileFault(dist.name, place, HIDDEN, evidence, why=own)

    def _rivals(self, folder: str) -> Iterator[list[str]]:
        """The files of a folder that are modules of one name, the one that Python imports first:
        the first file of a folder, an extension, a source.
        """
        several: dict[str, list[str]] = {}
        for name in self.root.names(folder):
            several.setdefault(name.partition(".")[0], []).append(name)
        for stem, names in several.items():
            if len(names) < 2:
                continue  # nearly all
            files = [stem + ending for ending in self.endings if stem + ending in names]
            if files and stem in names:
                inside = self.root.names(f"{folder}/{stem}")
                first = (f"__init__{ending}" for ending in self.endings)
                files[:0] = [f"{stem}/{name}" for name in first if name in inside][:1]
            if len(files) > 1:
                yield files

    def left_over(self) -> Iterator[FileFault]:
        """Files that only another release of a package has, whose record lies beside its own."""
        pairs = [(dist, folder) for dist, _ in self.wheels for folder in dist.beside]
        brought = {path for dist, raw in self.wheels if pairs for path in paths(dist, raw)}
        for dist, folder in pairs:
            other = self.root.raw(f"{folder}/RECORD", RECORD_LIMIT)
            (lines,) = _elf.absent([(other, None)])  # all that it lists and that counts
            for number, line in lines:
                file = f"{dist.location}/{line.partition(',')[0]}"
                name = os.path.basename(file)
                runs = name[len(name.partition(".")[0]) :] in self.endings
                if runs and file not in brought and self.root.is_file(file):
                    evidence = Evidence(f"{folder}/RECORD", number, line.strip()[:200])
                    yield FileFault(dist.name, file, LEFT, evidence)


def _has_all(root: Root, folder: str, own: str) -> bool:
    """Whether a folder has every module of another: then it stands in for it."""
    left = [""]
    for inside in left:
        there = {*root.names(f"{folder}{inside}")}
        for name in root.names(f"{own}{inside}"):
            below = "." not in name and name != "__pycache__"
            below = below and root.is_dir(f"{own}{inside}/{name}")
            if (below or name.endswith((".py", ".so"))) and name not in there:
                return False
            left += [f"{inside}/{name}"] * below
    return True
