"""What Python imports in place of a wheel's package or module: from an earlier folder of sys.path,
or from beside it; and files that another release left.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from cudriver import _elf
from cudriver.stack.environment.records import RECORD_LIMIT, packages_of
from cudriver.stack.facts import HIDDEN, LEFT, Distribution, Environment, Evidence, FileFault
from cudriver.stack.integrity.listed import Wheels, folders_of_modules, paths
from cudriver.stack.roots.rootfs import Root


class Hiding:
    """What lies in front of these wheels, or among their files, and comes from none of them."""

    def __init__(self, root: Root, env: Environment, wheels: Wheels) -> None:
        self.root, self.wheels = root, wheels
        self.folders: list[str] = env.site_packages
        self.endings: tuple[str, ...] = env.modules

    def faults(self) -> Iterator[FileFault]:
        for dist, raw in self.wheels:
            if dist.location in self.folders:
                for folder in self.folders[: self.folders.index(dist.location)]:
                    yield from self._in_front(dist, raw, folder)
        yield from self._inside()
        yield from self._left_over()

    def _in_front(self, dist: Distribution, raw: bytes, folder: str) -> Iterator[FileFault]:
        """What an earlier folder of the path has of a wheel's package: a part that lacks modules of
        it, or a module (cuda.py) of its name.
        """
        names, mine = self.root.names, {*self.root.names(dist.location)}
        for package in sorted({dist.name.replace("-", "/"), *packages_of(raw)}):
            file, own = f"{folder}/{package}", f"{dist.location}/{package}"
            # One without a first file joins the others, and hides none.
            if self._first(file) and self.root.is_dir(own) and not _has_all(self.root, file, own):
                evidence = Evidence(file, None, f"comes before {own}")
                yield FileFault(dist.name, file, HIDDEN, evidence)
        for name in names(folder):
            stem = name.partition(".")[0]
            there = name[len(stem) :] in self.endings and stem in mine
            if there and _has(raw, f"{stem}/"):
                yield _no_package(dist, f"{folder}/{name}", stem)

    def _inside(self) -> Iterator[FileFault]:
        """The modules that no wheel brought and that come before one of a wheel's in its folder."""
        rivals: dict[str, list[list[str]]] = {}
        for dist, raw in self.wheels:
            for inside in folders_of_modules(self.root, dist, raw):
                folder = f"{dist.location}/{inside}".rstrip("/")
                if folder not in rivals:
                    rivals[folder] = [*self._rivals(folder)]
                for files in rivals[folder]:
                    mine = (f for f in files if _has(raw, os.path.join(inside, f)))
                    own, first = next(mine, files[0]), f"{folder}/{files[0]}"
                    if own == files[0] or not self.root.is_file(first):
                        continue
                    if own.endswith("/"):
                        yield _no_package(dist, first, os.path.join(inside, own[:-1]))
                    else:
                        evidence = Evidence(first, None, f"comes before {folder}/{own}")
                        place = f"{folder}/{files[0].partition('/')[0]}"
                        yield FileFault(dist.name, place, HIDDEN, evidence, why=own)

    def _rivals(self, folder: str) -> Iterator[list[str]]:
        """The files of a folder that are modules of one name, the one that Python imports first:
        the first file of a folder, an extension, a source, a folder without a first file.
        """
        several: dict[str, list[str]] = {}
        for name in self.root.names(folder):
            several.setdefault(name.partition(".")[0], []).append(name)
        for stem, names in several.items():
            if len(names) < 2:
                continue  # nearly all
            files = [stem + ending for ending in self.endings if stem + ending in names]
            if files and stem in names:
                first = self._first(f"{folder}/{stem}")
                files = [f"{stem}/{first}", *files] if first else [*files, f"{stem}/"]
            if len(files) > 1:
                yield files

    def _first(self, folder: str) -> str | None:
        """The file that runs first when a folder is imported, if it has one."""
        names = (f"__init__{ending}" for ending in self.endings)
        return next((name for name in names if name in self.root.names(folder)), None)

    def _left_over(self) -> Iterator[FileFault]:
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


def _has(raw: bytes, path: str) -> bool:
    """Whether a RECORD lists a file, or modules in a folder ("nvidia/")."""
    pattern = re.escape(os.fsencode(path)) + (rb"[^,\n]*\.py," if path.endswith("/") else b",")
    return re.search(b"^" + pattern, raw, re.MULTILINE) is not None


def _no_package(dist: Distribution, file: str, package: str) -> FileFault:
    """A module that hides a package: nothing below it can be imported."""
    says = f"'{package.replace('/', '.')}' is not a package"
    evidence = Evidence(file, None, f"comes before {dist.location}/{package}")
    return FileFault(dist.name, file, HIDDEN, evidence, says=says, proven=True)


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
