"""Packages of which another folder of sys.path has a part that comes first, or their own folder
files of another release.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from cudriver import _elf
from cudriver.stack.environment.records import RECORD_LIMIT, packages_of
from cudriver.stack.facts import HIDDEN, LEFT, Evidence, FileFault
from cudriver.stack.integrity.listed import Wheels, paths
from cudriver.stack.roots.rootfs import Root

_FIRST = ("__init__.py", "__init__.pyc")


def hidden(root: Root, folders: list[str], wheels: Wheels) -> Iterator[FileFault]:
    """What hides a package of these in an earlier one of the folders, and lacks modules of it."""
    for dist, raw in wheels if len(folders) > 1 else ():
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


def hidden_by_modules(root: Root, folders: list[str], wheels: Wheels) -> Iterator[FileFault]:
    """The modules (cuda.py) that hide a package of these: nothing below it can be imported. In one
    folder a package with a first file comes before a module.
    """
    names = {folder: {*root.names(folder)} for folder in folders}
    for at, folder in enumerate(folders):
        for name in names[folder]:
            stem, _, ending = name.partition(".")
            if not stem.isidentifier() or not (ending == "py" or name.endswith(".so")):
                continue
            for own in (f for f in folders[at:] if stem in names[f]):
                first = root.names(f"{own}/{stem}")
                if own == folder and any(one in _FIRST for one in first):
                    continue
                line = os.fsencode(f"\n{stem}/")
                for dist, raw in wheels:
                    if dist.location == own and line in b"\n" + raw:
                        file, says = f"{folder}/{name}", f"'{stem}' is not a package"
                        evidence = Evidence(file, None, f"comes before {own}/{stem}")
                        yield FileFault(dist.name, file, HIDDEN, evidence, says=says, proven=True)


def hidden_inside(root: Root, extensions: tuple[str, ...], wheels: Wheels) -> Iterator[FileFault]:
    """Folders and extensions that no wheel brought and that have the name of a package's module:
    Python imports an extension, or a folder with a first file, in place of the source.
    """
    for dist, raw in wheels:
        listed = b"\n" + raw
        for package in packages_of(raw):
            own = f"{dist.location}/{package}"
            names = root.names(own)
            for name in names:
                stem, dot, ending = name.partition(".")
                line = os.fsencode(f"\n{package}/{stem}.py,")
                if f"{stem}.py" not in names or line not in listed:
                    continue
                file = name if dot else f"{name}/__init__.py"
                if f"{dot}{ending}" not in ("", *extensions) or not root.is_file(f"{own}/{file}"):
                    continue
                if os.fsencode(f"\n{package}/{file},") not in listed:
                    evidence = Evidence(f"{own}/{file}", None, f"comes before {own}/{stem}.py")
                    yield FileFault(dist.name, f"{own}/{name}", HIDDEN, evidence, why=f"{stem}.py")


def left_over(root: Root, extensions: tuple[str, ...], wheels: Wheels) -> Iterator[FileFault]:
    """Files that only another release of a package has, whose record lies beside its own."""
    pairs = [(dist, folder) for dist, _ in wheels for folder in dist.beside]
    if pairs:
        brought = {path for dist, raw in wheels for path in paths(dist, raw)}
        for dist, folder in pairs:
            other = root.raw(f"{folder}/RECORD", RECORD_LIMIT)
            (lines,) = _elf.absent([(other, None)])  # all that it lists and that counts
            for number, line in lines:
                file = f"{dist.location}/{line.partition(',')[0]}"
                name = os.path.basename(file)
                runs = name.endswith(".py") or name[len(name.partition(".")[0]) :] in extensions
                if runs and file not in brought and root.is_file(file):
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
