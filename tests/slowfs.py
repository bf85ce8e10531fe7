"""A file system like one over a network: one file, over FUSE, each request answered late.

    python tests/slowfs.py FILE FOLDER [SECONDS]

shows FILE in FOLDER, by its name, until FOLDER is unmounted, and prints the bytes of each request
to read. It needs root.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

LOOKUP, FORGET, GETATTR, OPEN, READ, INIT = 1, 2, 3, 14, 15, 26  # linux/fuse.h
ASYNC_READ, MAX_PAGES, KEEP_CACHE = 1, 1 << 22, 2
KEPT = 1000  # seconds for which the kernel may keep what it was told
LONGEST = 1 << 20  # bytes of a request
THREADS = 64


class Served:
    def __init__(self, file: str, late: float) -> None:
        self.name, self.late = os.path.basename(file).encode(), late
        self.file = os.open(file, os.O_RDONLY)
        self.size = os.fstat(self.file).st_size
        self.device = os.open("/dev/fuse", os.O_RDWR)

    def about(self, node: int) -> bytes:
        mode, size = (0o040755, 0) if node == 1 else (0o100644, self.size)
        return struct.pack("<6Q10I", node, size, 0, *[0] * 6, mode, 1, 0, 0, 0, 4096, 0)

    def answer(self, kind: int, node: int, given: bytes) -> bytes | int:
        """An answer, or an errno."""
        if kind == INIT:
            ahead, flags = struct.unpack("<8x2I", given[:16])
            flags &= ASYNC_READ | MAX_PAGES
            pages = LONGEST // 4096
            head = (7, 31, ahead, flags, THREADS, THREADS, LONGEST, 1, pages, 0, 0)
            return struct.pack("<4I2H2I2HI28x", *head)
        if kind == LOOKUP:
            known = given.rstrip(b"\0") == self.name
            return struct.pack("<4Q2I", 2, 0, KEPT, KEPT, 0, 0) + self.about(2) if known else 2
        if kind == GETATTR:
            return struct.pack("<Q2I", KEPT, 0, 0) + self.about(node)
        if kind == OPEN:
            return struct.pack("<Q2I", 0, KEEP_CACHE, 0)
        if kind == READ:
            offset, count = struct.unpack("<8xQI", given[:20])
            os.write(1, b"%d\n" % count)  # whole, whatever other threads print
            time.sleep(self.late)
            return os.pread(self.file, count, offset)
        return errno.ENOSYS

    def serve(self) -> None:
        while True:
            try:
                request = os.read(self.device, LONGEST + 4096)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                continue
            kind, unique, node = struct.unpack("<4xIQQ", request[:24])
            if kind == FORGET:
                continue
            found = self.answer(kind, node, request[40:])
            body, failed = (b"", found) if isinstance(found, int) else (found, 0)
            os.writev(self.device, [struct.pack("<IiQ", 16 + len(body), -failed, unique), body])


def main(file: str, folder: str, late: str = "0") -> None:
    served = Served(file, float(late))
    options = f"fd={served.device},rootmode=40000,user_id=0,group_id=0,max_read={LONGEST}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"slow", os.fsencode(folder), b"fuse.slow", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")
    print("mounted", flush=True)
    threads = [threading.Thread(target=served.serve) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def shown(file: Path, folder: Path, requests: list[int]) -> Iterator[Path | None]:
    """Shows the file in a new folder. Gives its path there, or None where that is not allowed.

    requests: gets the bytes of each request to read, at the end.
    """
    folder.mkdir()
    with Popen([sys.executable, __file__, file, folder], stdout=PIPE, stderr=PIPE) as server:
        assert server.stdout is not None
        if server.stdout.readline() != b"mounted\n":
            yield None
            return
        reader = threading.Thread(target=lambda: requests.extend(map(int, server.stdout or ())))
        reader.start()
        try:
            yield folder / file.name
        finally:
            ctypes.CDLL(None).umount2(os.fsencode(folder), 2)  # MNT_DETACH
            server.kill()  # another's mount namespace may have a copy, which would keep it
            reader.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
