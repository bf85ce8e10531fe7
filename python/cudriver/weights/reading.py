"""Reads parts of files into device memory, with as many threads as the copy engine uses.

Each thread reads into a page-locked slot and queues the copy to the device behind it, then goes on
with its other slot. Files are read, not mapped: a mapped file that somebody truncates meanwhile
kills the process.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
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
from cudriver.memory.copies import copy_threads
from cudriver.memory.rows import copy_many

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

    from cudriver.typing import DeviceLike, StreamLike
    from cudriver.weights.source import Source

# Bytes that one call reads and one copy moves, at most. A cached file of 5.4 GB, an H200's host, 12
# threads: 1 MiB 13 GB/s, 2 MiB 41, 4 MiB 51, 8 MiB 50, 16 MiB 37. One copy of the mapped file: 52.
SLOT = 4 << 20
APART = 64 << 10  # bytes of a row from which on rows that lie apart are read one by one
SHOWN = 10**9  # bytes from which on progress is shown on a terminal


def in_bytes(array: DeviceArray) -> DeviceArray:
    """The bytes of an array in C order."""
    return array.reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class Piece:
    """Bytes of a file, from `offset` on, that fill `target`, a one-dimensional array of bytes.

    If there is a pitch, they are rows of `row` bytes, which lie `pitch` bytes apart in the file.
    """

    source: Source
    offset: int
    target: DeviceArray
    row: int = 0
    pitch: int = 0


@dataclass
class Job:
    """One read into a slot, and where its parts go; of rows that lie apart, one part."""

    source: Source
    offset: int
    nbytes: int = 0
    parts: list[tuple[int, DeviceArray]] = field(default_factory=list)  # where in the slot, target
    pitch: int = 0


def jobs(pieces: Iterable[Piece]) -> Iterator[Job]:
    """Cuts pieces into reads of at most SLOT bytes; small neighbours in a file share one."""
    job: Job | None = None
    for piece in sorted(pieces, key=lambda piece: (piece.source.path, piece.offset)):
        if piece.pitch:
            yield from row_jobs(piece)
            continue
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


def row_jobs(piece: Piece) -> Iterator[Job]:
    """Reads of rows that lie apart: many at once with what lies between, or each in parts."""
    row, target = piece.row, piece.target
    rows, step = target.nbytes // row, SLOT // piece.pitch
    if step < 2 or row > APART:
        for i in range(rows):
            some = target[i * row : (i + 1) * row]
            yield from jobs([Piece(piece.source, piece.offset + i * piece.pitch, some)])
        return
    for first in range(0, rows, step):
        count = min(step, rows - first)
        nbytes = (count - 1) * piece.pitch + row
        some = target[first * row : (first + count) * row]
        offset = piece.offset + first * piece.pitch
        yield Job(piece.source, offset, nbytes, [(0, some)], piece.pitch)


@dataclass
class Batch:
    """Pieces that were added together: how many bytes of them have not landed."""

    left: int


class Reading:
    """Reads pieces in threads and queues their copies on a stream. close() stops it.

    The threads need the GIL between two reads, and come to a crawl while another thread has work
    for it: an H200's host read at 36 GB/s instead of 51 while 14,004 arrays were made.

    landing: bytes have landed when they are on the device, not when their copy is queued.
    """

    def __init__(self, stream: StreamLike, *, landing: bool = False) -> None:
        self.stream = stream
        self.landing = landing
        self.changed: threading.Condition = threading.Condition()  # guards all that follows
        self.work: deque[tuple[Batch, Iterator[Job]]] = deque()
        self.total: int = 0  # bytes
        self.done: int = 0
        self.complete: bool = False  # nothing is added any more
        self.stopped: bool = False
        self.sources: set[Source] = set()
        self.pool: ThreadPoolExecutor = ThreadPoolExecutor(
            copy_threads(), thread_name_prefix="cudriver-read"
        )
        self.running: list[Future[None]] = []

    def add(self, pieces: Sequence[Piece]) -> Batch:
        """Pieces to read, behind those before."""
        batch = Batch(sum(piece.target.nbytes for piece in pieces))
        with self.changed:
            self.work.append((batch, jobs(pieces)))
            self.sources.update(piece.source for piece in pieces)
            self.total += batch.left
            threads = min(copy_threads(), -(-self.total // SLOT))
            self.changed.notify_all()
        while len(self.running) < threads:
            self.running.append(self.pool.submit(self.run))
        return batch

    def take(self) -> tuple[Batch, Job] | None:
        """Locked. The next read."""
        while self.work and not self.stopped:
            batch, some = self.work[0]
            if (job := next(some, None)) is not None:
                return batch, job
            self.work.popleft()
        return None

    def land(self, batch: Batch, nbytes: int) -> None:
        with self.changed:
            batch.left -= nbytes
            self.done += nbytes
            if batch.left == 0:
                self.changed.notify_all()

    def run(self) -> None:
        """What each thread does."""
        try:
            slots = [Slot() for _ in range(2)]
            while True:
                with self.changed:
                    taken = self.take()
                    over = self.complete or self.stopped
                if taken is not None:
                    slots[0].fill(self, *taken)
                    slots.reverse()
                elif over:
                    break
                else:
                    for slot in slots if self.landing else ():
                        slot.empty(self)
                    with self.changed:
                        while not (self.work or self.complete or self.stopped):
                            self.changed.wait()
            for slot in slots if self.landing else ():
                slot.empty(self)
        except BaseException:
            self.stop()
            raise

    def wait(self, batch: Batch) -> None:
        """Waits until a batch has landed. Raises as finish()."""
        with self.changed:
            while batch.left and not self.stopped:
                self.changed.wait()
        if batch.left:
            self.finish()

    def finish(self) -> None:
        """Waits until all is read, and all copies are queued.

        Raises
        ------
        ValueError
            A file was truncated or changed meanwhile.
        """
        with self.changed:
            self.complete = True
            self.changed.notify_all()
        running, self.running = {*self.running}, []
        with progress(self.total) as show:
            while running:
                over, running = wait(running, timeout=0.1, return_when="FIRST_EXCEPTION")
                for future in over:
                    future.result()
                show(self.done)
        for source in self.sources:
            source.check_unchanged()

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.changed.notify_all()

    def close(self) -> None:
        self.stop()
        self.pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, *exception: type[BaseException] | BaseException | TracebackType | None
    ) -> None:
        self.close()


class Slot:
    """Page-locked memory that one thread reads into."""

    def __init__(self) -> None:
        self.memory: NDArray[np.uint8] = pinned_empty(SLOT, np.uint8)
        self.room: NDArray[np.uint8] | None = None  # for rows that lie apart
        self.copy: Transfer | None = None
        self.batch: Batch | None = None  # whose bytes are on their way
        self.nbytes: int = 0

    def empty(self, reading: Reading) -> None:
        """Waits until its bytes are on the device."""
        if self.copy is not None:
            self.copy.wait()
            self.copy = None
        if self.batch is not None:
            reading.land(self.batch, self.nbytes)
            self.batch = None

    def fill(self, reading: Reading, batch: Batch, job: Job) -> None:
        """Reads, and queues the copies."""
        self.empty(reading)
        nbytes = sum(target.nbytes for _, target in job.parts)
        if job.pitch:
            self.pack(job, nbytes)
        else:
            job.source.read_into(self.memory.data[: job.nbytes], job.offset)
        targets = [target for _, target in job.parts]
        parts = [self.memory[at : at + target.nbytes] for at, target in job.parts]
        if len(targets) == 1:
            self.copy = copy_async(targets[0], parts[0], reading.stream)
        else:
            self.copy = copy_many(targets, parts, stream=reading.stream)
        if reading.landing:
            self.batch, self.nbytes = batch, nbytes
        else:
            reading.land(batch, nbytes)

    def pack(self, job: Job, nbytes: int) -> None:
        """Reads rows that lie apart, and puts them side by side: faster than the bus takes rows."""
        rows = -(-job.nbytes // job.pitch)
        row = nbytes // rows
        if self.room is None:
            self.room = np.empty(SLOT, np.uint8)
        job.source.read_into(self.room.data[: job.nbytes], job.offset)
        apart = self.room[: rows * job.pitch].reshape(rows, job.pitch)
        self.memory[:nbytes].reshape(rows, row)[...] = apart[:, :row]


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
