"""Which files are not as the RECORD of their wheel says, by name, size and time. None is opened."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from cudriver import _elf
from cudriver.stack.environment import records
from cudriver.stack.environment.distributions import installer
from cudriver.stack.environment.records import Entry
from cudriver.stack.facts import Distribution
from cudriver.stack.roots.rootfs import Root

Wheels = list[tuple[Distribution, bytes]]  # each with its RECORD

MOST = 2000  # files that are told; no more are looked for
SLACK = 2_000_000_000  # ns; archives keep whole seconds
ALL = -1  # a time before any: then every file was changed later
_FOREVER = (1 << 63) - 1
# Folders that images leave out, with all that is in them.
_LEFT_OUT = re.compile(r"(?:^|/)(?:docs?|examples?|benchmarks|include|share|cmake|tests?)(?=/)")
# Who says that it installed a distribution below /usr, where a system's package manager does.
_OWN = ("pip", "uv")


class Listed:
    """Compares RECORDs with the disk."""

    def __init__(self, root: Root, wheels: Wheels) -> None:
        self.root = root
        self.more = False  # there are more of them than are told
        self.wheels: Wheels = [(d, raw) for d, raw in wheels if raw and d.installer != "conda"]

    def _since(self, dist: Distribution) -> int:
        """When a wheel was installed, in ns: an installer writes RECORD last."""
        try:
            return self.root.stat(f"{dist.path}/RECORD").st_mtime_ns + SLACK
        except (OSError, ValueError):
            return _FOREVER

    def different(self, others: Iterable[tuple[Distribution, bytes]]) -> list[Entry]:
        """The files that are not as their package brought them; of those of the right size, the
        ones that were changed later. others: further wheels, which may have brought the same file.
        """
        found: list[Entry] = []
        host, sizes = self.root.host, (len(raw) for _, raw in self.wheels)
        self.root.take(files=sum(sizes) // 64)  # a line has about as many bytes
        asked = [(raw, d.location if host else None, self._since(d)) for d, raw in self.wheels]
        for (dist, _), lines in zip(self.wheels, _elf.absent(asked), strict=True):
            own = self._of(dist, lines, MOST - len(found))
            if own and not leaves_alone(self.root, dist):
                found += own
        wanted = {each.path for each in found}
        if wanted:
            # Several packages may bring one file (google/__init__.py), each with other contents.
            every = (paths(dist, raw) & wanted for dist, raw in (*self.wheels, *others))
            count = Counter(path for listed in every for path in listed)
            found = [each for each in found if count[each.path] == 1]
        return found

    def _of(self, dist: Distribution, lines: list[tuple[int, str]], most: int) -> list[Entry]:
        found: list[Entry] = []
        since = 0 if self.root.host else self._since(dist)
        for number, text in lines:
            if len(found) >= most:
                self.more = True
                break
            entry = records.parsed(dist, text.strip(), number)
            if entry is None:
                continue
            if dist.name.startswith("nvidia-") and entry.path.endswith(".py"):
                continue  # its folders serve without
            entry.found, time = self.root.regular(entry.path)
            folder, name = os.path.split(entry.path)
            if entry.found is None and (folder in self.root.unlisted or not entry.size):
                continue  # what was empty is missed by nobody
            if not self.root.host and entry.same_size and time <= since:
                continue  # in another root all were told, since links have to be followed inside it
            if entry.found is not None or not self._left_out(dist, folder, name):
                found.append(entry)
        return found

    def _left_out(self, dist: Distribution, folder: str, name: str) -> bool:
        """Whether an image does without a file: what it was compiled to stays, or it is gone with
        the whole of a folder of documents and the like.
        """
        stem = name.removesuffix("py")
        compiled = (n for n in self.root.names(folder) if n.endswith((".pyc", ".so")))
        if name.endswith(".pyc") or (stem != name and any(n.startswith(stem) for n in compiled)):
            return True
        inside = f"{folder}/".removeprefix(f"{dist.location}/")
        above = (f"{dist.location}/{inside[: m.end()]}" for m in _LEFT_OUT.finditer(inside))
        return not all(map(self.root.is_dir, above))


def leaves_alone(root: Root, dist: Distribution) -> bool:
    """Whether a distribution's files may differ from RECORD: conda patches them after pip has
    written it, and of what lies below /usr a system's package manager makes its own. Asked only
    where there is something to tell.
    """
    return of_system(root, dist) or dist.installer == "conda"


def of_system(root: Root, dist: Distribution) -> bool:
    """Whether a system's package manager owns it, not pip."""
    by, local = installer(root, dist), dist.location.startswith("/usr/local/")
    return dist.location.startswith("/usr/") and not local and by not in _OWN


def paths(dist: Distribution, raw: bytes) -> set[str]:
    """The paths of all files that a RECORD lists."""
    lines = os.fsdecode(raw).split("\n")
    return {f"{dist.location}/{line.partition(',')[0]}" for line in lines}


def top_modules(raw: bytes) -> Iterator[str]:
    """The files of a RECORD that an import of what it brings runs first: a module, or the first
    file of a package that lies in no other package.
    """
    names = [line.partition(",")[0] for line in os.fsdecode(raw).split("\n")]
    firsts = {name[: -len("__init__.py")] for name in names if name.endswith("/__init__.py")}
    for name in names:
        folder = name.removesuffix("__init__.py")
        if name.endswith((".py", ".so")) and "/" not in name:
            yield name
        elif folder in firsts and folder != name:
            above = folder[:-1].rpartition("/")[0]
            while above and f"{above}/" not in firsts:
                above = above.rpartition("/")[0]
            if not above:
                yield name
