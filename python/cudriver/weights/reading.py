"""Reads parts of files into device memory.

The copy engine's threads read into its page-locked blocks, without the GIL, while Python goes on.
Files are read, not mapped: a mapped file that somebody truncates meanwhile kills the process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from cudriver._core import DeviceArray, Stream, _read_files, init
from cudriver.memory.making import device_empty
from cudriver.memory.rows import copy_many_async

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cudriver.typing import DeviceLike, StreamLike
    from cudriver.weights.source import Source

SHOWN = 10**9  # bytes from which on progress is shown on a terminal
STOPPED = -1  # in progress[1]


#: struct cudriver_file_run of engine/engine.h: what is read as one piece of a file. Its bytes lie
#: `begin` bytes behind the first that travel, and fill `array`, by its number, from byte `device`
#: on. Rows of `row` bytes lie `pitch` bytes apart in the file; 0, 0: dense.
RUN = np.dtype(
    [
        (name, np.int64)
        for name in ("begin", "bytes", "device", "array", "file", "offset", "row", "pitch")
    ]
)


class Reading:
    """Reads parts of files, in the order of a stream, one after the other. close() stops it.

    order: the stream to allocate on: the given one, or one of the reading's own.
    """

    def __init__(self, stream: StreamLike | None, device: DeviceLike | None) -> None:
        if stream is not None:
            copy_many_async((), (), stream)  # raises if the stream is being captured
        self.device: Any = device_empty(0, np.uint8, device=device, stream=stream).device
        self.own: Stream = Stream(device=self.device)
        self.order: StreamLike = self.own if stream is None else stream
        self.total: int = 0  # bytes
        self.begun: list[NDArray[np.int64]] = []  # of each part: bytes read, and what ended it
        self.running: set[Future[None]] = set()
        self.sources: set[Source] = set()
        self.pool: ThreadPoolExecutor | None  # None: the system gives no thread
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="cudriver-read")

    def add(
        self, source: Source, arrays: list[DeviceArray], runs: NDArray[np.void], nbytes: int
    ) -> Future[None]:
        """What to read of a file, behind that before. The arrays were allocated on `order`.

        runs: of RUN; `file` is filled in here. nbytes: of all that travels.
        """
        if self.order is not self.own:
            self.own.wait(self.order)
        runs = runs[runs["bytes"] > 0]
        runs["file"] = source.fd
        done = np.zeros(2, np.int64)
        self.total += int(runs["bytes"].sum())
        self.begun.append(done)
        self.sources.add(source)
        future = self.begin(source, arrays, runs, nbytes, done)
        self.running.add(future)
        return future

    def begin(self, *part: Any) -> Future[None]:
        """Reads a part in the thread; in this one where the system gives none."""
        if self.pool is not None:
            try:
                return self.pool.submit(self.read, *part)
            except RuntimeError:
                self.pool.shutdown(wait=False, cancel_futures=True)  # it has the part in its queue
                self.pool = None
        future: Future[None] = Future()
        self.read(*part)
        future.set_result(None)
        return future

    def read(
        self,
        source: Source,
        arrays: list[DeviceArray],
        runs: NDArray[np.void],
        nbytes: int,
        done: NDArray[np.int64],
    ) -> None:
        if runs.size:
            addresses = np.array([array._address for array in arrays], np.uint64)
            runs["device"] += addresses.astype(np.int64)[runs["array"]]
            ends = runs["offset"] + runs["bytes"]
            piece = source.choose(int(runs["offset"].min()), int(ends.max()))
            _read_files(runs, nbytes, piece, done, self.own)
        if done[1] > 0:
            run = {name: int(runs[done[1] - 1][name]) for name in RUN.names or ()}
            rows = run["bytes"] // run["row"] if run["pitch"] else 1
            source.explain(run["offset"], run["bytes"] + (run["pitch"] - run["row"]) * (rows - 1))

    def landed(self, part: Future[None]) -> None:
        """Waits until a part has landed. Raises in a forked child, where no thread reads."""
        init()  # raises there
        part.result()

    def finish(self) -> None:
        """Waits until all bytes have landed.

        Raises
        ------
        ValueError
            A file was truncated or changed meanwhile.
        """
        running = self.running
        with progress(self.total) as show:
            while running:
                over, running = wait(running, timeout=0.1, return_when="FIRST_EXCEPTION")
                for future in over:
                    future.result()
                show(sum(int(done[0]) for done in self.begun))
        for source in self.sources:
            source.check_unchanged()

    def close(self) -> None:
        for done in self.begun:
            done[1] = STOPPED
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)


@contextmanager
def progress(total: int, what: str = "read") -> Iterator[Any]:
    """A bar on standard error for large files, if that is a terminal. Gives what shows a count."""
    if total < SHOWN or sys.stderr is None or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
