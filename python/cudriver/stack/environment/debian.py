"""Which Debian package owns a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cached_property

from cudriver.stack.roots.rootfs import TEXT_LIMIT, Root

_SUMS = ".md5sums"
# Beginnings of names.
_NVIDIA = ("libcu", "libnv", "libnpp", "libnccl", "cuda", "nvidia", "tensorrt")


class DebianOwners:
    """Which Debian package owns a file, by /var/lib/dpkg/info/*.list."""

    def __init__(self, root: Root) -> None:
        self.root = root

    @cached_property
    def _lists(self) -> list[tuple[str, bytes]]:
        folder, found = "/var/lib/dpkg/info", []
        for name in self.root.names(folder):
            if name.endswith(".list") and name.startswith(_NVIDIA):
                raw = self.root.raw(f"{folder}/{name}", TEXT_LIMIT)
                found.append((name[:-5].split(":")[0], b"\n" + raw + b"\n"))
        return found

    @cached_property
    def _status(self) -> str:
        return "\n" + (self.root.text("/var/lib/dpkg/status", 64 << 20) or "")

    def owner(self, path: str) -> str | None:
        """ "libcudnn9-cuda-12 9.14.0.64-1", or None."""
        wanted = b"\n" + os.fsencode(path) + b"\n"
        names = (package for package, raw in self._lists if wanted in raw)
        return next((f"{name} {self.version(name)}".rstrip() for name in names), None)

    def version(self, package: str) -> str:
        """The version of an installed package; "" for any other."""
        found = ""
        # One for each architecture. All of them at once, by an expression, take ten times as long.
        for stanza in self._status.split(f"\nPackage: {package}\n")[1:]:
            head, _, rest = stanza.partition("\n\n")[0].partition("\nVersion: ")
            words = rest.partition("\n")[0].split()
            if words and "Status: install ok installed" in head:
                found = words[0]
        return found


def sums(root: Root, folders: Iterable[str]) -> Iterator[tuple[str, str, str, int]]:
    """Of the packages that brought one of these folders every file: the package, the path, its MD5
    and the line that says so.
    """
    wanted = [b"  " + os.fsencode(folder.lstrip("/")) + b"/" for folder in folders]
    for name in root.names("/var/lib/dpkg/info"):
        raw = root.raw(f"/var/lib/dpkg/info/{name}", TEXT_LIMIT) if name.endswith(_SUMS) else b""
        if any(folder in raw for folder in wanted):
            for number, line in enumerate(raw.split(b"\n"), 1):
                digest, _, path = line.partition(b"  ")
                if path:
                    file, md5 = "/" + os.fsdecode(path), digest.decode("ascii", "replace")
                    yield name[: -len(_SUMS)], file, md5, number
