"""How much more memory the system can give this process. Linux."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

RESERVE = 64 << 20  # bytes for the rest of the process, and for what copies page-lock
TABLES = 512  # page tables take 8 bytes for each page of 4096
UNLIMITED = 1 << 47  # version 1 shows a huge number for no limit


class Version(NamedTuple):
    """Where a version of cgroups shows its limit and usage, and what of that can be dropped."""

    controller: str  # in /proc/self/cgroup
    limit: str  # a file, or the name of a line in memory.stat
    usage: str
    droppable: tuple[str, ...]  # in memory.stat


# By the type of the file system. The hierarchical limit is the lowest of the group's own and all
# its parents', visible or not.
VERSIONS = {
    "cgroup": Version(
        "memory",
        "hierarchical_memory_limit",
        "memory.usage_in_bytes",
        ("total_active_file", "total_inactive_file"),
    ),
    "cgroup2": Version(
        "", "memory.max", "memory.current", ("active_file", "inactive_file", "slab_reclaimable")
    ),
}


def host_room() -> int:
    """Bytes that may still be page-locked at once, less a reserve. Linux would grant more, and then
    kill the process that uses it. Memory that could be swapped out counts as used."""
    free = left("")
    return max(free - RESERVE - free // TABLES, 0)


def left(root: str) -> int:
    """What the machine and the process's cgroups have left; `sys.maxsize` if nothing says.

    `root`: where the system's files are, "" except in tests.
    """
    kibibytes = numbers(f"{root}/proc/meminfo").get("MemAvailable:")
    rooms = [sys.maxsize if kibibytes is None else kibibytes << 10]
    for folder, version in groups(root, text(f"{root}/proc/self/cgroup")):
        rooms.append(group_left(folder, version))
    return min(rooms)


def group_left(folder: str, version: Version) -> int:
    stat = numbers(f"{folder}/memory.stat")
    limit = stat.get(version.limit) or integer(f"{folder}/{version.limit}")
    if limit is None or limit > UNLIMITED:
        return sys.maxsize
    used = integer(f"{folder}/{version.usage}") or 0
    used -= sum(stat.get(name, 0) for name in version.droppable)
    return max(limit - max(used, 0), 0)


@lru_cache(maxsize=4)
def groups(root: str, cgroup: str) -> list[tuple[str, Version]]:
    """The process's groups and their parents, as far as mounts show them. `cgroup`: the text of
    /proc/self/cgroup, with lines such as "4:memory:/a/b" and "0::/a/b"."""
    own: dict[str, str] = {}
    for line in cgroup.splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        for controller in controllers.split(",") if colon else ():
            own.setdefault(controller, path)
    found = []
    for line in text(f"{root}/proc/self/mountinfo").splitlines():
        # ID PARENT DEVICE TOP POINT OPTIONS ... - TYPE SOURCE OPTIONS
        before, _, after = line.partition(" - ")
        words, kind = before.split(), [*after.split(), "", "", ""]
        version = VERSIONS.get(kind[0])
        if version is None or len(words) < 5:
            continue
        if version.controller in ("", *kind[2].split(",")) and version.controller in own:
            folders = visible(own[version.controller], words[3], f"{root}{words[4]}")
            found += [(folder, version) for folder in folders]
    return found


def visible(group: str, top: str, point: str) -> Iterator[str]:
    """The folders of a group and its parents, where a mount shows group `top` at `point`.

    In a cgroup namespace the process's own group may read "/", and one outside the namespace begins
    with "/..": then the mount shows the process's group at `point`.
    """
    above, folder = top.rstrip("/"), point
    if not group.startswith("/.."):
        if group.startswith(f"{above}/"):
            folder = (point + group[len(above) :]).rstrip("/")
        elif group not in (top, "/"):
            return  # the mount shows another group
    yield folder
    while len(folder) > len(point):
        folder = folder.rpartition("/")[0]
        yield folder


def text(path: str) -> str:
    """A file's text; "" where it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:  # half the time of a text file
            return file.read().decode(errors="surrogateescape")
    except OSError:
        return ""


def integer(path: str) -> int | None:
    words = text(path).split()
    return int(words[0]) if words and words[0].isdigit() else None


def numbers(path: str) -> dict[str, int]:
    """The lines "name number ..." of a file."""
    words = (line.split() for line in text(path).splitlines())
    return {w[0]: int(w[1]) for w in words if len(w) > 1 and w[1].isdigit()}
