"""Which files are not as the RECORD of their wheel says, by name, size and time. None is opened."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from cudriver import _elf
from cudriver.stack.environment import records
from cudriver.stack.environment.distributions import installer
from cudriver.stack.environment.records import Entry
from cudriver.stack.facts import Distribution
from cudriver.stack.roots.rootfs import Root

Wheel = tuple[Distribution, bytes]  # with its RECORD
Wheels = list[Wheel]

MOST = 2000  # files that are told; no more are looked for
SLACK = 2_000_000_000  # ns; archives keep whole seconds
ALL = -1  # a time before any: then every file was changed later
_FOREVER = 1 << 62
# Folders that images leave out, with all that is in them.
LEFT_OUT = re.compile(r"(?:^|/)(?:docs?|examples?|benchmarks|include|share|cmake|tests?)(?=/)")
# Who says that it installed a distribution below /usr, where a system's package manager does.
_OWN = ("pip", "uv")


def different(root: Root, wheels: Wheels, others: Iterable[Wheel]) -> tuple[list[Entry], bool]:
    """The files that are not as their package brought them, and whether there are more than are
    told; of those of the right size, the ones that were changed later. others: further wheels,
    which may have brought the same file.
    """
    found: list[Entry] = []
    wheels = [(dist, raw) for dist, raw in wheels if raw and dist.installer != "conda"]
    root.take(files=sum(len(raw) for _, raw in wheels) // 64)  # a line has about as many bytes
    asked = [(raw, d.location if root.host else None, _since(root, d)) for d, raw in wheels]
    for (dist, _), lines in zip(wheels, _elf.absent(asked), strict=True):
        own = [*islice(_changed(root, dist, lines), MOST + 1 - len(found))]
        if own and not leaves_alone(root, dist):
            found += own
    more, found = len(found) > MOST, found[:MOST]
    wanted = {each.path for each in found}
    if wanted:
        # Several packages may bring one file (google/__init__.py), each with other contents.
        every = (paths(dist, raw) & wanted for dist, raw in (*wheels, *others))
        count = Counter(path for listed in every for path in listed)
        found = [each for each in found if count[each.path] == 1]
    return found, more


def _since(root: Root, dist: Distribution) -> int:
    """When a wheel was installed, in ns: an installer writes RECORD last."""
    return (_changed_at(root, f"{dist.path}/RECORD") or _FOREVER) + SLACK


def _changed_at(root: Root, path: str) -> int:
    """When a file or a folder was changed, in ns; 0 where that cannot be told."""
    try:
        return root.stat(path).st_mtime_ns
    except (OSError, ValueError):
        return 0


def _changed(root: Root, dist: Distribution, lines: list[tuple[int, str]]) -> Iterator[Entry]:
    since = 0 if root.host else _since(root, dist)
    for number, text in lines:
        entry = records.parsed(dist, text.strip(), number)
        if entry is None:
            continue
        if dist.name.startswith("nvidia-") and entry.path.endswith(".py"):
            continue  # its folders serve without
        entry.found, time = root.regular(entry.path)
        folder, name = os.path.split(entry.path)
        if entry.found is None and (folder in root.unlisted or not entry.size):
            continue  # what was empty is missed by nobody
        if not root.host and entry.same_size and time <= since:
            continue  # in another root all were told, since links have to be followed inside it
        if entry.found is not None or not _left_out(root, dist, folder, name):
            yield entry


def _left_out(root: Root, dist: Distribution, folder: str, name: str) -> bool:
    """Whether an image does without a file: what it was compiled to stays, or it is gone with the
    whole of a folder of documents and the like.
    """
    stem = name.removesuffix("py")
    compiled = (n for n in root.names(folder) if n.endswith((".pyc", ".so")))
    if name.endswith(".pyc") or (stem != name and any(n.startswith(stem) for n in compiled)):
        return True
    inside = f"{folder}/".removeprefix(f"{dist.location}/")
    above = (f"{dist.location}/{inside[: m.end()]}" for m in LEFT_OUT.finditer(inside))
    return not all(map(root.is_dir, above))


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


def folders_of_modules(root: Root, dist: Distribution, raw: bytes) -> Iterator[str]:
    """The folders in which a RECORD has modules: packages, and what lies in them and was changed
    after they were installed. Those that images leave out do not count.
    """
    inside = {name.rpartition("/")[0] for name in records.before(raw, b".py,")}
    since = _since(root, dist) - SLACK if root.host else 0
    for name in sorted({"", *inside}):
        changed = _changed_at(root, f"{dist.location}/{name}") if "/" in name else since
        if changed >= since and not LEFT_OUT.search(f"{name}/"):
            yield name


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
