"""Reads parts of files into device memory, with as many threads as the copy engine uses.

Each thread reads into a page-locked slot and queues the copy to the device behind it, then goes on
with its other slot. Files are read, not mapped: a mapped file that somebody truncates meanwhile
kills the process.
"""

from __future__ import annotations

import errno
import math
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from cudriver._core import (
    DeviceArray,
    Stream,
    Transfer,
    copy_async,
    device_empty,
    pinned_empty,
)
from cudriver._regular import open_regular
from cudriver.memory.copies import copy_threads

if TYPE_CHECKING:
    from types import TracebackType

    from cudriver.typing import DeviceLike, StreamLike

# Bytes that one call reads and one copy moves, at most. A cached file of 5.4 GB, an H200's host, 12
# threads: 1 MiB 13 GB/s, 2 MiB 41, 4 MiB 51, 8 MiB 50, 16 MiB 37. One copy of the mapped file: 52.
SLOT = 4 << 20
SHOWN = 10**9  # bytes from which on progress is shown on a terminal
DIMENSIONS = 64  # of an array, at most
LENGTHS = f"at most {DIMENSIONS} lengths, and of fewer than 2**63 bytes"  # what a shape is
QUOTED = 100  # characters of a value in a message, at most


class Source:
    """An open file; what is read of it holds only if nobody changed it meanwhile."""

    fd: int
    state: os.stat_result

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: str = os.fspath(path)
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

    def read_into(self, slot: memoryview, offset: int) -> None:
        done = 0
        while done < len(slot):
            count = os.preadv(self.fd, [slot[done:]], offset + done)
            if count == 0:
                raise ValueError(
                    f"{self.path} was truncated to {offset + done} bytes while it was read"
                )
            done += count

    def check_unchanged(self) -> None:
        now, then = os.fstat(self.fd), self.state
        # Programs can set the modification time back, but not the time of that change (st_ctime).
        if (now.st_size, now.st_mtime_ns, now.st_ctime_ns) != (
            then.st_size,
            then.st_mtime_ns,
            then.st_ctime_ns,
        ):
            raise ValueError(f"{self.path} was changed while it was read")

    def close(self) -> None:
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, *exception: type[BaseException] | BaseException | TracebackType | None
    ) -> None:
        self.close()


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
    return all(type(n) is int and 0 <= n < 1 << 63 for n in found)


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


def in_bytes(array: DeviceArray) -> DeviceArray:
    """The bytes of an array in C order."""
    return array.reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class Piece:
    """Bytes of a file, from `offset` on, that fill `target`, a one-dimensional array of bytes."""

    source: Source
    offset: int
    target: DeviceArray


@dataclass
class Job:
    """One read into a slot, and where its parts go."""

    source: Source
    offset: int
    nbytes: int = 0
    parts: list[tuple[int, DeviceArray]] = field(default_factory=list)  # where in the slot, target


def jobs(pieces: Iterable[Piece]) -> Iterator[Job]:
    """Cuts pieces into reads of at most SLOT bytes; small neighbours in a file share one."""
    job: Job | None = None
    for piece in sorted(pieces, key=lambda piece: (piece.source.path, piece.offset)):
        done = 0
        while done < piece.target.nbytes:
            offset = piece.offset + done
            if (
                job is None
                or job.source is not piece.source
                or job.nbytes == SLOT
                or job.offset + job.nbytes != offset
            ):
                if job is not None:
                    yield job
                job = Job(piece.source, offset)
            count = min(SLOT - job.nbytes, piece.target.nbytes - done)
            job.parts.append((job.nbytes, piece.target[done : done + count]))
            job.nbytes += count
            done += count
    if job is not None:
        yield job


class Reader:
    """The threads' common work: a list of jobs, and how far it has come."""

    def __init__(self, work: list[Job], stream: StreamLike) -> None:
        self.work: Iterator[Job] = iter(work)
        self.stream = stream
        self.lock: threading.Lock = threading.Lock()  # guards work, done and stopped
        self.done: int = 0
        self.stopped: bool = False

    def stop(self) -> None:
        with self.lock:
            self.stopped = True

    def take(self, finished: int) -> Job | None:
        with self.lock:
            self.done += finished
            return None if self.stopped else next(self.work, None)

    def run(self) -> None:
        """What each thread does."""
        slots = [pinned_empty(SLOT, np.uint8) for _ in range(2)]
        copies: list[list[Transfer]] = [[], []]
        turn = finished = 0
        while (job := self.take(finished)) is not None:
            for transfer in copies[turn]:
                transfer.wait()
            slot = slots[turn]
            job.source.read_into(slot.data[: job.nbytes], job.offset)
            copies[turn] = [
                copy_async(target, slot[start : start + target.nbytes], self.stream)
                for start, target in job.parts
            ]
            finished = job.nbytes
            turn = 1 - turn


@contextmanager
def stream_of(stream: StreamLike | None, device: DeviceLike | None) -> Iterator[StreamLike]:
    """The stream to allocate and copy on: the given one, or one of our own that is waited for."""
    if stream is not None:
        Stream.from_handle(stream).done  # noqa: B018 (raises if the stream is being captured)
        yield stream
        return
    own = Stream(device=device_empty(0, np.uint8, device=device).device)
    yield own
    own.synchronize()


def read(pieces: list[Piece], stream: StreamLike) -> None:
    """Fills all targets in the order of a stream.

    Parameters
    ----------
    pieces : list of Piece
        What to read. Their sources stay open until the return.
    stream : Stream
        Where to queue the copies.

    Raises
    ------
    ValueError
        A file was truncated or changed meanwhile.
    """
    work = list(jobs(pieces))
    total = sum(job.nbytes for job in work)
    reader = Reader(work, stream)
    threads = max(1, min(copy_threads(), len(work)))
    with (
        ThreadPoolExecutor(threads, thread_name_prefix="cudriver-read") as pool,
        progress(total) as show,
    ):
        running: set[Future[None]] = {pool.submit(reader.run) for _ in range(threads)}
        try:
            while running:
                over, running = wait(running, timeout=0.1, return_when="FIRST_EXCEPTION")
                for future in over:
                    future.result()
                show(reader.done)
        finally:
            reader.stop()
    for source in {piece.source for piece in pieces}:
        source.check_unchanged()


@contextmanager
def progress(total: int) -> Iterator[Any]:
    """A bar on standard error for large files, if that is a terminal. Gives what shows a count."""
    if total < SHOWN or sys.stderr is None or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("read", total=total)
        yield lambda done: bar.update(task, completed=done)
