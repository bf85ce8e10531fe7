"""An open file, and the checks of what it or a caller says."""

from __future__ import annotations

import errno
import fcntl
import math
import mmap
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np

from cudriver._regular import open_regular

DIMENSIONS = 64  # of an array, at most
LIMIT = 1 << 63  # of a length or an offset
LENGTHS = f"at most {DIMENSIONS} lengths, and of fewer than 2**63 bytes"  # what a shape is
STEP = 1 << 20  # bytes of one read
SHORT, LONG = 128 << 10, 2 << 20  # bytes of a read: many share the work, or few requests
LOOKS = 16  # pages that are looked at
FAR = (
    "nfs", "cifs", "smb", "fuse", "lustre", "ceph", "glusterfs", "9p", "virtiofs", "beegfs", "gpfs",
    "wekafs", "afs", "pvfs", "orangefs",
)  # fmt: skip
QUOTED = 100  # characters of a value in a message, at most


class Source:
    """An open file; what is read of it holds only if nobody changed it meanwhile."""

    fd: int
    state: os.stat_result

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: str = os.fsdecode(path)
        try:
            self.fd, self.state = open_regular(self.path)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise ValueError(f"{self.path} is not a regular file") from None

    @property
    def nbytes(self) -> int:
        return self.state.st_size

    def read(self, offset: int, nbytes: int) -> bytes:
        """The bytes from `offset` on; fewer only at the file's end."""
        data = os.pread(self.fd, nbytes, offset)
        while 0 < len(data) < nbytes and (
            more := os.pread(self.fd, nbytes - len(data), offset + len(data))
        ):
            data += more
        return data

    def choose(self, begin: int, end: int) -> int:
        """How many bytes to read at once, of these. Sets whether they come directly.

        What is not in the page cache comes in long reads, of which the system makes few requests;
        over a network past the page cache, which makes short ones. Where the kernel does not tell
        what is cached, what comes over a network is read long, through the cache.
        """
        told = os.geteuid() in (0, self.state.st_uid) or os.access(self.path, os.W_OK)
        far = end - begin > SHORT and is_far(self.state.st_dev)
        cached = end - begin <= SHORT or (self.cached(begin, end) if told else not far)
        self._direct(told and far and not cached)
        return SHORT if cached else LONG

    def _direct(self, wanted: bool) -> None:
        """Sets whether reads go past the page cache."""
        flags = fcntl.fcntl(self.fd, fcntl.F_GETFL) & ~os.O_DIRECT
        with suppress(OSError):  # a file system that cannot do it
            fcntl.fcntl(self.fd, fcntl.F_SETFL, flags | (os.O_DIRECT if wanted else 0))

    def cached(self, begin: int, end: int) -> bool:
        """Whether half of these bytes or more are in the page cache, by a few of their pages.

        The kernel says so of each page of a file that this process may not write.
        """
        import ctypes

        libc, found, there = ctypes.CDLL(None), 0, ctypes.c_ubyte()
        try:
            mapping = mmap.mmap(self.fd, self.nbytes, prot=mmap.PROT_READ)
        except (OSError, ValueError):  # it cannot be mapped, or was truncated
            return True
        address = np.frombuffer(mapping, np.uint8).__array_interface__["data"][0]
        for at in range(begin, end, max(1, (end - begin) // LOOKS)):
            page = ctypes.c_void_p(address + at // mmap.PAGESIZE * mmap.PAGESIZE)
            failed = libc.mincore(page, ctypes.c_size_t(1), ctypes.byref(there))
            found += 1 if failed or there.value & 1 else -1
        return found >= 0

    def explain(self, offset: int, nbytes: int) -> NoReturn:
        """Raises what is wrong with bytes that could not be read."""
        self._direct(False)  # which reads whole blocks only
        end = offset + nbytes
        while offset < end and (data := os.pread(self.fd, min(end - offset, STEP), offset)):
            offset += len(data)
        if offset < end:
            size = os.fstat(self.fd).st_size
            raise ValueError(f"{self.path} was truncated to {size} bytes while it was read")
        raise ValueError(f"{self.path} could not be read at first; now it can: load it again")

    def check_unchanged(self) -> None:
        now, then = os.fstat(self.fd), self.state
        same = (now.st_size, now.st_mtime_ns) == (then.st_size, then.st_mtime_ns)
        # Programs can set the modification time back, but not the time of that change (st_ctime).
        # It changes too where the file gets or loses a name: a new file is renamed over it.
        touched = now.st_ctime_ns != then.st_ctime_ns and now.st_nlink == then.st_nlink
        if touched or not same:
            raise ValueError(f"{self.path} was changed while it was read")

    def close(self) -> None:
        os.close(self.fd)


def is_far(device: int) -> bool:
    """Whether a file system is one over a network, by its name."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as all:
        for line in all:
            mount, _, kind = line.partition(" - ")
            if mount.split()[2] == number:
                return kind.startswith(FAR) and not kind.startswith("fuseblk")
    return False


def shown(value: object) -> str:
    """A value of a file or a caller in a message, or an exception's text: its beginning."""
    try:
        text = str(value) if isinstance(value, Exception) else repr(value)
    except (ValueError, RecursionError):  # an int of too many digits; lists in lists
        text = "a value that Python cannot show"
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}... ({len(text)} characters)"


def is_shape(found: Sequence[Any], bits: int) -> bool:
    """Whether an array whose items have so many bits can have these lengths.

    Those beside a length of 0 count, too: NumPy makes strides of them.
    """
    return (
        len(found) <= DIMENSIONS
        and are_sizes(found)
        and math.prod(filter(None, found)) * bits < 1 << 66
    )


def are_sizes(found: Iterable[Any]) -> bool:
    """Whether these are numbers that can be lengths or offsets."""
    return not [n for n in found if type(n) is not int or not 0 <= n < LIMIT]


def chosen(path: str, found: Iterable[str], names: Iterable[str] | None) -> set[str]:
    """The names to load, of those found."""
    found = set(found)
    if names is None:
        return found
    if isinstance(names, str):
        raise TypeError(f"names is the str {shown(names)}; a list of names is needed")
    wanted = set(names)
    if missing := sorted(map(str, wanted - found)):
        some = ", ".join([*map(shown, sorted(found)[:5]), *["..."] * (len(found) > 5)])
        raise ValueError(
            f"{path} has no array {shown(missing[0])}; it has {len(found)}"
            + (f": {some}" if some else "")
        )
    return wanted
