"""Opens regular files and nothing else.

To open is an act: it starts a watchdog, rewinds a tape, lets the writer of a FIFO go on. So what a
path leads to is looked at first, and what was looked at is opened. It never waits: another process
may hold a lease on a file, and some of /proc have nothing to read yet.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False  # typing takes 5 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable

READING = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def open_regular(
    path: str, opener: Callable[[int], int] | None = None
) -> tuple[int, os.stat_result]:
    """A descriptor for reading, which the caller closes, and what the file is.

    opener: opens `path` with given flags, where that is not a path of this process's own root.
    Raises OSError; for what is not a regular file with EINVAL, for one that would have to be waited
    for with EAGAIN.
    """
    found = os.open(path, os.O_PATH | os.O_CLOEXEC) if opener is None else opener(os.O_PATH)
    try:
        about = os.fstat(found)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        try:
            return os.open(f"/proc/self/fd/{found}", READING), about
        except FileNotFoundError:  # there is no /proc
            return _opened_again(path, opener, about), about
        except OSError as error:
            error.filename = path
            raise
    finally:
        os.close(found)


def _opened_again(path: str, opener: Callable[[int], int] | None, about: os.stat_result) -> int:
    """The file that was looked at, by its path. What took its place meanwhile is let go again."""
    flags = READING | os.O_NOCTTY
    found = os.open(path, flags) if opener is None else opener(flags)
    if not os.path.samestat(os.fstat(found), about):
        os.close(found)
        raise OSError(errno.ESTALE, "the file was replaced while it was opened", path)
    return found
