"""Which modules a zip file on Python's path has."""

from __future__ import annotations

import os
import re

from cudriver.stack.rootfs import Root

DIRECTORY_LIMIT = 16 << 20  # bytes; a wheel of a thousand files has 0.1 MB
_END = b"PK\5\6"  # 22 bytes and a comment, with which the file ends
_END_LIMIT = 22 + 0xFFFF


def directory(root: Root, path: str) -> bytes:
    """The list of files that lies before a zip file's end; b"" of any other file."""
    try:
        with open(root.open(path), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _END_LIMIT))
            tail = file.read(_END_LIMIT)
            at = tail.rfind(_END)
            length = int.from_bytes(tail[at + 12 : at + 16], "little") if at >= 0 else 0
            start = size - len(tail) + at - length
            if not 0 < length <= DIRECTORY_LIMIT or start < 0:
                return b""
            file.seek(start)
            listed = file.read(length)
    except (OSError, ValueError):
        return b""
    root.take(len(tail) + len(listed))
    return listed


def holds(listed: bytes, name: str) -> bool:
    """Whether an import of a module may find it there, by the first part of its name. Each file's
    name stands behind 46 bytes, of which the first four are the same.
    """
    top = re.escape(name.partition(".")[0]).encode()
    return re.search(rb"PK\x01\x02.{42}%s(?:/|\.pyc?)" % top, listed, re.DOTALL) is not None
