"""Packages of which another folder of sys.path has a part that comes first."""

from __future__ import annotations

from collections.abc import Iterator

from cudriver.stack.environment.records import packages_of
from cudriver.stack.facts import HIDDEN, Evidence, FileFault
from cudriver.stack.integrity.listed import Wheels
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
