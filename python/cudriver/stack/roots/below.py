"""Opens paths below a folder as if that folder were "/".

Whoever owns the folder may swap what is in it for links at any time: a running container does as it
likes. So no path is looked up first and opened later: each step is opened from the one before it,
and a link is read and never followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

MAX_LINKS = 40  # as the kernel's own limit
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Below:
    """A folder that stands for "/". Paths are absolute paths inside it."""

    def __init__(self, folder: str) -> None:
        """Raises OSError where it is not a folder."""
        self._descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        descriptor, self._descriptor = getattr(self, "_descriptor", -1), -1
        if descriptor >= 0:
            close(descriptor)

    def fileno(self) -> int:
        """The folder's descriptor, open as long as this object lives."""
        return self._descriptor

    def open(self, path: str, flags: int) -> int:
        """A descriptor, for the caller to close. Raises OSError, and ValueError for a NUL."""
        way = self._walk(path, not flags & os.O_NOFOLLOW)
        try:
            name = way[-1][1] if way else "."
            folder = way[-2][0] if len(way) > 1 else self._descriptor
            return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        finally:
            _close(way)

    def resolve(self, path: str) -> str:
        """`path` with every link followed; from what is absent on as it is written.

        This is for names and comparisons: the next moment another thing may lie there. Raises
        OSError (ELOOP) where links run in a circle.
        """
        way = self._walk(path, absent=True)
        _close(way)
        return "/" + "/".join(name for _, name in way)

    def _walk(self, path: str, follow: bool = True, absent: bool = False) -> list[tuple[int, str]]:
        """The steps of `path` without its links, each with a descriptor.

        follow: whether a link in the last place is followed. absent: whether what is not there is
        taken as it is written (its descriptor is -1), not an error.
        """
        todo = path.split("/")[::-1]
        way: list[tuple[int, str]] = []
        links = 0
        try:
            while todo:
                part = todo.pop()
                folder = way[-1][0] if way else self._descriptor
                if part in ("", ".", ".."):
                    if not absent and not stat.S_ISDIR(os.fstat(folder).st_mode):
                        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
                    if part == "..":
                        _close(way[-1:])
                        del way[-1:]
                    continue
                try:
                    found = os.open(part, _STEP, dir_fd=folder)
                except OSError:
                    if not absent:
                        raise
                    found = -1
                way.append((found, part))
                if found < 0 or not (follow or todo) or not stat.S_ISLNK(os.fstat(found).st_mode):
                    continue
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = os.readlink("", dir_fd=found)
                gone = 0 if target.startswith("/") else -1
                _close(way[gone:])
                del way[gone:]
                todo += target.split("/")[::-1]
        except BaseException:
            _close(way)
            raise
        return way


def _close(way: list[tuple[int, str]]) -> None:
    for descriptor, _ in way:
        if descriptor >= 0:
            os.close(descriptor)
