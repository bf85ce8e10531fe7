"""What a root's own loader and its configuration say: default folders, /etc/ld.so.cache, CPU.

Read from files only. The formats are glibc's; of musl's loader its default folders are known.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence

from cudriver.stack.roots.rootfs import Root

X86_64, AARCH64 = 62, 183  # e_machine

INTERPRETERS = {X86_64: "/lib64/ld-linux-x86-64.so.2", AARCH64: "/lib/ld-linux-aarch64.so.1"}
PLATFORMS = {X86_64: "x86_64", AARCH64: "aarch64"}
# The flags of cache entries that a program of this machine may take; 1 is the old "any libc".
CACHE_FLAGS = {X86_64: (1, 0x0303), AARCH64: (1, 0x0A03)}

CACHE_LIMIT = 64 << 20  # bytes; a cache of 100,000 libraries has 10 MB
_MUSL = b"/lib:/usr/local/lib:/usr/lib"  # where its loader looks, beside a file of its own
CONF_FILES = 200  # that /etc/ld.so.conf may include; real ones include a dozen


class Glibc:
    """One loader's built-in settings, read from its file."""

    def __init__(self, data: bytes, machine: int) -> None:
        self.folders: list[str] = _default_folders(data)
        if not self.folders:
            wide = "64" if machine == X86_64 else ""
            self.folders = [f"/lib{wide}/", f"/usr/lib{wide}/"]
        stated = re.search(rb"release version (\d+)\.(\d+)", data)
        self.version: tuple[int, int] | None = (int(stated[1]), int(stated[2])) if stated else None
        end = data.find(b"/ld.so.cache\0")
        cache = data[data.rfind(b"\0", 0, end) + 1 : end] if end >= 0 else b"/etc"
        self.cache_path: str = cache.decode("utf-8", "surrogateescape") + "/ld.so.cache"
        # From 2.41 on dlopen no longer changes the stack.
        self.refuses_exec_stack: bool = (self.version or (0, 0)) >= (2, 41)
        # $LIB is the folder's name below the prefix: lib64, lib/x86_64-linux-gnu.
        lib = self.folders[0].strip("/")
        self.lib: str = lib[lib.rfind("/lib") + 1 :]


def _default_folders(data: bytes) -> list[str]:
    """The longest run of NUL-terminated folder names with "lib" in them; [] where there is none."""
    if _MUSL + b"\0" in data:
        return [f"{folder}/" for folder in _MUSL.decode().split(":")]
    runs = re.findall(rb"(?<=\0)(?:/(?=[^\0]*lib)[^\0]{,198}/\0)+", data)
    longest: bytes = max(runs, key=lambda run: run.count(b"\0"), default=b"")
    return [os.fsdecode(name) for name in longest.split(b"\0") if name]


def read_glibc(root: Root, interpreter: str | None, machine: int) -> Glibc:
    """The settings of the loader at `interpreter`; common ones where it cannot be read."""
    path = interpreter or INTERPRETERS.get(machine)
    return Glibc(root.raw(path, 4 << 20) if path is not None else b"", machine)


class Cache:
    """/etc/ld.so.cache, read once: the paths of each name, in the loader's order."""

    OLD = b"ld.so-1.7.0\0"
    NEW = b"glibc-ld.so.cache1.1"

    def __init__(self, data: bytes) -> None:
        """Raises ValueError for one that is cut off, of another machine or of no known format."""
        base = 0
        if data.startswith(self.OLD):  # an old table, and the new one after it, aligned to 8
            base = (16 + 12 * int.from_bytes(data[12:16], "little") + 7) & ~7
        count, strings, byte_order = struct.unpack("<IIB", data[base + 20 : base + 29].ljust(9))
        end = base + 48 + 24 * count
        known = data.startswith(self.NEW, base) and byte_order & 3 in (0, 2)
        if not known or end + strings > len(data):
            raise ValueError("no whole cache of a little-endian machine")
        self._data = data
        self._base = base
        self._entries: dict[bytes, list[tuple[int, int]]] = {}  # by name: flags, where its path is
        last = data.rfind(b"\0") - base
        for flags, name, path, _, hwcap in struct.iter_unpack("<iIIIQ", data[base + 48 : end]):
            if max(name, path) > last:
                raise ValueError("a string is out of bounds")
            if hwcap == 0:  # builds for some CPUs have the same symbols
                self._entries.setdefault(self._text(name), []).append((flags, path))

    def _text(self, offset: int) -> bytes:
        start = self._base + offset
        return self._data[start : self._data.find(b"\0", start)]

    def lookup(self, name: str, flags: Sequence[int]) -> list[str]:
        """The paths for `name`, the loader's choice first."""
        found = self._entries.get(os.fsencode(name), ())
        return [os.fsdecode(self._text(path)) for own, path in found if own in flags]


def configured_folders(root: Root) -> list[tuple[str, str]]:
    """(folder, the file that names it) as ldconfig reads /etc/ld.so.conf and its includes: each
    where it stands, and once.
    """
    folders: dict[str, str] = {}
    read: set[str] = set()

    def follow(file: str) -> None:
        if file in read or len(read) == CONF_FILES:
            return
        read.add(file)
        for line in (root.text(file) or "").splitlines():
            text = line.partition("#")[0].strip()
            word, *patterns = text.split() or [""]
            for pattern in patterns if word == "include" else ():
                whole = os.path.join(os.path.dirname(file), pattern)
                for included in root.glob("", whole[1:]):
                    follow(included)
            if text.rstrip("/").startswith("/"):  # ldconfig passes over "/" itself
                folders.setdefault(text.rstrip("/"), file)

    follow("/etc/ld.so.conf")
    return list(folders.items())
