"""Paths inside a root: a machine's own "/", a mounted image, a container's /proc/PID/root.

Everything that reads files goes through here. Links are followed inside the root, never out of it,
and only regular files are read (a FIFO or a device in an image would hang or harm the reader).
"""

from __future__ import annotations

import errno
import os
import stat

MAX_LINKS = 40  # as the kernel's own limit
TEXT_LIMIT = 8 << 20  # bytes; no text file that matters is near it
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # the errors of a path that leads nowhere


class Root:
    """A file system's root, read only. Paths given and returned are absolute paths inside it."""

    def __init__(self, path: str = "/") -> None:
        # Not realpath: /proc/PID/root is a link that reads as "/" and leads elsewhere.
        self.path = os.path.abspath(path)
        self.host = self.path == "/"
        self._prefix = "" if self.host else self.path
        self._folders: dict[str, str] = {"/": "/"}
        self._listings: dict[str, list[str]] = {}
        self.unlisted: dict[str, str] = {}  # folders in which something may not be seen, and why

    def __repr__(self) -> str:
        return f"Root({self.path!r})"

    def resolve(self, path: str) -> str:
        """`path` with every link followed, inside the root. What is absent stays as it is.

        Raises OSError (ELOOP) where links run in a circle.
        """
        return self._walk(path, follow_last=True)

    def real(self, path: str, follow_last: bool = True) -> str:
        """The path by which this process reaches `path`."""
        if self.host:
            return path
        return self._prefix + self._walk(path, follow_last)

    def inside(self, real: str) -> str:
        """The path inside the root of a path that `real` gave."""
        return real[len(self._prefix) :] or "/"

    def _walk(self, path: str, follow_last: bool) -> str:
        if self.host:
            # strict=False hides loops; a loop then fails at the open, which is soon enough.
            head, tail = os.path.split(path)
            if tail in ("", ".", ".."):
                return os.path.realpath(path) if follow_last else path
            folder = self._folders.get(head)
            if folder is None:
                folder = self._folders[head] = os.path.realpath(head)
            whole = f"{folder.rstrip('/')}/{tail}"
            return os.path.realpath(whole) if follow_last and os.path.islink(whole) else whole
        left = [part for part in path.split("/") if part and part != "."]
        if not follow_last and left:
            last = left.pop()
            if last == "..":
                left.append(last)
                last = ""
        else:
            last = ""
        done = self._folder(left, path)
        return (done.rstrip("/") + "/" + last) if last else done

    def _folder(self, parts: list[str], whole: str) -> str:
        key = "/" + "/".join(parts)
        known = self._folders.get(key)
        if known is not None:
            return known
        todo = parts[::-1]
        done = ""
        links = 0
        while todo:
            part = todo.pop()
            if part == "..":
                done = done.rpartition("/")[0]
                continue
            step = f"{done}/{part}"
            try:
                target = os.readlink(self._prefix + step)
            except OSError:
                done = step
                continue
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), whole)
            if target.startswith("/"):
                done = ""
            todo.extend(p for p in reversed(target.split("/")) if p and p != ".")
        self._folders[key] = done or "/"
        return done or "/"

    def stat(self, path: str) -> os.stat_result:
        """Links followed. Raises OSError."""
        return os.stat(self.real(path))

    def size(self, path: str) -> int | None:
        """A file's size in bytes; None where it is not there, or where that cannot be told: its
        folder is then in `unlisted`.
        """
        try:
            return self.stat(path).st_size
        except (OSError, ValueError) as error:
            self._refused(os.path.dirname(path), error)
            return None

    def _refused(self, folder: str, error: OSError | ValueError) -> None:
        """Keeps what hides whether something is there. ValueError: no file can have that name."""
        if isinstance(error, OSError) and error.errno not in _ABSENT:
            self.unlisted[folder] = error.strerror or str(error)

    def exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except (OSError, ValueError):
            return False
        return True

    def is_file(self, path: str) -> bool:
        try:
            return stat.S_ISREG(self.stat(path).st_mode)
        except (OSError, ValueError):
            return False

    def is_dir(self, path: str) -> bool:
        try:
            return stat.S_ISDIR(self.stat(path).st_mode)
        except (OSError, ValueError):
            return False

    def readlink(self, path: str) -> str | None:
        """The target as written, or None where `path` is no link."""
        try:
            return os.readlink(self.real(path, follow_last=False))
        except (OSError, ValueError):
            return None

    def names(self, path: str) -> list[str]:
        """The sorted names in a folder, read once; [] where it cannot be read."""
        known = self._listings.get(path)
        if known is None:
            try:
                known = sorted(os.listdir(self.real(path)))
            except (OSError, ValueError) as error:
                known = []
                self._refused(path, error)
            self._listings[path] = known
        return known

    def open(self, path: str) -> int:
        """A descriptor on a regular file, for the caller to close. Raises OSError."""
        return self._open(path)[0]

    def _open(self, path: str) -> tuple[int, int]:
        """The same, and the file's size."""
        descriptor = os.open(self.real(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return descriptor, about.st_size

    def read(self, path: str, limit: int = TEXT_LIMIT) -> bytes:
        """At most `limit` bytes from the start of a regular file. Raises OSError."""
        descriptor, size = self._open(path)
        try:
            # One read does, of a byte more than there is. Files in /proc and /sys have no size, or
            # a wrong one, and come in pieces.
            whole = os.read(descriptor, min(limit, size + 1, 1 << 30))
            if len(whole) == size > 0 or len(whole) >= limit:
                return whole
            pieces = [whole]
            limit -= len(whole)
            while limit > 0 and (piece := os.read(descriptor, min(limit, 1 << 20))):
                pieces.append(piece)
                limit -= len(piece)
            return b"".join(pieces)
        finally:
            os.close(descriptor)

    def text(self, path: str, limit: int = TEXT_LIMIT) -> str | None:
        """The file as text, what is not UTF-8 replaced; None where it cannot be read."""
        try:
            return self.read(path, limit).decode("utf-8", "replace")
        except (OSError, ValueError):
            return None
