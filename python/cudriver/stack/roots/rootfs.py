"""Paths inside a root: a machine's own "/", a mounted image, a container's /proc/PID/root.

Everything that reads files goes through here. Links are followed inside the root, never out of it
(below.py), and only regular files are opened.
"""

from __future__ import annotations

import errno
import os
import stat

from cudriver._regular import open_regular
from cudriver.stack.facts import Problem
from cudriver.stack.names import is_pattern, matches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cudriver.stack.roots.below import Below

TEXT_LIMIT = 8 << 20  # bytes; no text file that matters is near it
KERNEL = ("/proc/", "/sys/")  # files that have no size, or a wrong one: by these names alone
MOST_BYTES = 1 << 30  # that the check of one environment reads; a large one has 50 MB
MOST_FILES = 1_000_000  # that it looks at; a large one has 20,000
MOST_REQUIREMENTS = 20_000  # on CUDA packages, that it compares; a large one has 1,000
# The errors of a path that leads nowhere.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


class TooMuch(Exception):
    """More would have to be read for one environment than a check may read."""

    def __str__(self) -> str:
        return f"more than {self.args[0]}; the check was stopped"


class Budget:
    """What the check of one environment may still read: small files that refer to each other in
    many ways can ask for any amount of work.
    """

    def __init__(self) -> None:
        self.bytes: int = MOST_BYTES
        self.files: int = MOST_FILES
        self.requirements: int = MOST_REQUIREMENTS

    def take(self, nbytes: int, files: int, requirements: int) -> None:
        """Raises TooMuch once it is spent."""
        self.bytes -= nbytes
        self.files -= files
        self.requirements -= requirements
        if self.bytes < 0:
            raise TooMuch(f"{MOST_BYTES >> 20} MiB would be read")
        if self.files < 0:
            raise TooMuch(f"{MOST_FILES} files would be read")
        if self.requirements < 0:
            raise TooMuch(f"{MOST_REQUIREMENTS} requirements would be compared")


class Root:
    """A file system's root, read only. Paths given and returned are absolute paths inside it."""

    def __init__(self, path: str = "/") -> None:
        """Raises OSError where `path` is not a folder."""
        # Not realpath: /proc/PID/root is a link that reads as "/" and leads elsewhere.
        self.path: str = os.path.abspath(path)
        self.host: bool = self.path == "/"
        self.below: Below | None = None  # None: this process's own "/"
        if not self.host:
            from cudriver.stack.roots.below import Below

            self.below = Below(self.path)
        self._folders: dict[str, str] = {}  # where folders are, for `resolve` alone
        self._listings: dict[str, list[str]] = {}
        self._listed: dict[tuple[int, int], frozenset[str]] = {}  # by device and inode
        self.budget: Budget | None = None  # None: no limit
        self.unlisted: dict[str, str] = {}  # folders in which something may not be seen, and why
        self.problems: list[Problem] = []  # what could not be read or understood

    def note(self, file: str, text: str, line: int | None = None) -> None:
        """Keeps what is wrong with a file, for the report."""
        self.problems.append(Problem(file, text, line))

    def resolve(self, path: str) -> str:
        """`path` with every link followed, inside the root. What is absent stays as it is.

        Raises OSError (ELOOP) where links run in a circle in another root.
        """
        follow = os.path.realpath if self.below is None else self.below.resolve
        head, tail = os.path.split(path)
        if tail in ("", ".", ".."):
            return follow(path)
        folder = self._folders.get(head)
        if folder is None:
            folder = self._folders[head] = follow(head)
        whole = f"{folder.rstrip('/')}/{tail}"
        linked = os.path.islink(whole) if self.below is None else self.readlink(whole) is not None
        return follow(whole) if linked else whole

    def _found(self, path: str, flags: int) -> int:
        """A descriptor on what `path` leads to. Raises OSError."""
        if self.below is None:
            return os.open(path, flags | os.O_CLOEXEC)
        return self.below.open(path, flags)

    def take(self, nbytes: int = 0, files: int = 1, requirements: int = 0) -> None:
        """Counts what is read or looked at. Raises TooMuch."""
        if self.budget is not None:
            self.budget.take(nbytes, files, requirements)

    def stat(self, path: str) -> os.stat_result:
        """Links followed. Raises OSError."""
        self.take()
        if self.below is None:
            return os.stat(path)
        found = self.below.open(path, os.O_PATH)
        try:
            return os.fstat(found)
        finally:
            os.close(found)

    def regular(self, path: str) -> tuple[int | None, int]:
        """The size and the time, in ns, of a regular file; (None, 0) where there is none, or where
        that cannot be told: its folder is then in `unlisted`.
        """
        try:
            about = self.stat(path)
        except (OSError, ValueError) as error:
            self._refused(os.path.dirname(path), error)
            return None, 0
        return (about.st_size, about.st_mtime_ns) if stat.S_ISREG(about.st_mode) else (None, 0)

    def _refused(self, folder: str, error: OSError | ValueError) -> None:
        """Keeps what hides whether something is there. ValueError: no file can have that name."""
        if isinstance(error, OSError) and error.errno not in _ABSENT:
            self.unlisted[folder] = error.strerror or str(error)

    def _mode(self, path: str) -> int:
        """A file's type; 0 where nothing is."""
        try:
            return self.stat(path).st_mode
        except (OSError, ValueError):
            return 0

    def exists(self, path: str) -> bool:
        return self._mode(path) != 0

    def is_file(self, path: str) -> bool:
        return stat.S_ISREG(self._mode(path))

    def is_dir(self, path: str) -> bool:
        return stat.S_ISDIR(self._mode(path))

    def readlink(self, path: str) -> str | None:
        """The target as written, or None where `path` is not a link."""
        try:
            if self.below is None:
                return os.readlink(path)
            found = self.below.open(path, os.O_PATH | os.O_NOFOLLOW)
        except (OSError, ValueError):
            return None
        try:
            return os.readlink("", dir_fd=found)
        except OSError:
            return None
        finally:
            os.close(found)

    def names(self, path: str) -> list[str]:
        """The sorted names in a folder, read once; [] where it cannot be read."""
        known = self._listings.get(path)
        if known is None:
            try:
                known = sorted(self.listing(path))
            except (OSError, ValueError) as error:
                known = []
                self._refused(path, error)
            self._listings[path] = known
        return known

    def listing(self, path: str) -> frozenset[str]:
        """The names in a folder, read once by whatever path. Raises OSError."""
        found = self._found(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            about = os.fstat(found)
            known = self._listed.get((about.st_dev, about.st_ino))
            if known is None:
                known = self._listed[about.st_dev, about.st_ino] = frozenset(os.listdir(found))
            self.take(64 * len(known))
            return known
        finally:
            os.close(found)

    def folders(self, path: str) -> list[str]:
        """The sorted names of the folders in a folder, links left out. Raises OSError."""
        found = self._found(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(found) as entries:
                return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
        finally:
            os.close(found)

    def glob(self, folder: str, pattern: str, *, folders: bool = False) -> list[str]:
        """The regular files, or the folders, below a folder that a pattern names; "*" and "?" name
        nothing that begins with a dot.
        """
        found = [folder]
        *above, last = pattern.split("/")
        for part in above:
            names = self._fitting if is_pattern(part) else lambda _, part: [part]
            found = [f"{inside}/{name}" for inside in found for name in names(inside, part)]
        paths = (f"{inside}/{name}" for inside in found for name in self._fitting(inside, last))
        return list(filter(self.is_dir if folders else self.is_file, paths))

    def _fitting(self, folder: str, part: str) -> list[str]:
        hidden = part.startswith(".")
        names = (name for name in self.names(folder or "/") if hidden >= name.startswith("."))
        return [name for name in names if matches(name, part)]

    def open(self, path: str) -> tuple[int, os.stat_result]:
        """A descriptor on a regular file, for the caller to close, and what the file is. Raises
        OSError.
        """
        if self.below is None:
            return open_regular(path)
        return open_regular(path, lambda flags: self._found(path, flags))

    def read(self, path: str, limit: int = TEXT_LIMIT) -> bytes:
        """At most `limit` bytes from the start of a regular file. Raises OSError."""
        descriptor, about = self.open(path)
        try:
            # A link in a package may lead to a file of /proc, which has no size, and reading it may
            # take what it has from others: nothing is asked of it but by its own name.
            whole = limit if path.startswith(KERNEL) else min(about.st_size, limit)
            data = b""
            while len(data) < whole and (piece := os.read(descriptor, whole - len(data))):
                data += piece
        finally:
            os.close(descriptor)
        self.take(len(data))
        return data

    def raw(self, path: str, limit: int) -> bytes:
        """The same; b"" where it cannot be read."""
        try:
            return self.read(path, limit)
        except (OSError, ValueError):
            return b""

    def text(self, path: str, limit: int = TEXT_LIMIT) -> str | None:
        """The file as text, what is not UTF-8 replaced; None where it cannot be read."""
        try:
            return self.read(path, limit).decode("utf-8", "replace")
        except (OSError, ValueError):
            return None
