"""`cudriver check --verify`: every file that wheels list is read, and its hash compared."""

from __future__ import annotations

import contextlib
import os

from cudriver.stack.collect import records
from cudriver.stack.model import Distribution, Evidence, FileFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from cudriver.stack.model import Facts
    from cudriver.stack.rootfs import Root

    # Given what is done (one for each UNIT of bytes) and how much there is: shows how far it is.
    Track = Callable[[Iterable[list[FileFault]], int], Iterable[list[FileFault]]]

UNIT = 16 << 20
THREADS = 32  # at most: each holds 1 MiB of a file
BATCH = 1000  # files that wait for a thread at a time


class _Job:
    """A file that has the size that was listed, and the lines of RECORDs that list it."""

    __slots__ = ("claims", "path", "size")

    def __init__(self, path: str, size: int) -> None:
        self.path, self.size = path, size
        self.claims: list[tuple[Distribution, int, str]] = []

    @property
    def units(self) -> int:
        return self.size // UNIT + 1


def verify(root: Root, facts: Facts, track: Track) -> list[FileFault]:
    """The files whose content is none that a RECORD states. Those of another size are known.

    Where this is interrupted, no other file is begun, and those under way are left as they are.
    """
    jobs = sorted(_jobs(root, facts), key=lambda job: -job.size)
    total = sum(job.units for job in jobs)
    with contextlib.closing(_done(root, jobs)) as done:
        return [fault for faults in track(done, total) for fault in faults]


def _jobs(root: Root, facts: Facts) -> list[_Job]:
    known = {fault.file for fault in facts.file_faults}
    jobs: dict[str, _Job] = {}
    for dist in facts.distributions:
        raw = records.read(root, dist, facts.problems)
        for number, line in enumerate(raw.split(b"\n") if raw else (), 1):
            text = line.decode("utf-8", "replace").strip()
            entry = records.parsed(dist, text)
            if entry is None or not entry.digest or entry.path in known:
                continue
            size = root.size(entry.path)
            if size is not None and size == entry.size and not records.by_conda(root, dist):
                job = jobs.setdefault(entry.path, _Job(entry.path, size))
                job.claims.append((dist, number, text))
    return [*jobs.values()]


def _done(root: Root, jobs: list[_Job]) -> Generator[list[FileFault]]:
    """What is wrong with each, read by as many threads as there are CPUs."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import Event

    stop = Event()

    def wrong(job: _Job) -> bool:
        entries = (records.parsed(dist, text) for dist, _, text in job.claims)
        digests = [entry.digest for entry in entries if entry is not None]
        return all(records.differs(root, job.path, digest, stop) for digest in digests)

    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), THREADS)) as pool:
        try:
            for start in range(0, len(jobs), BATCH):
                batch = jobs[start : start + BATCH]
                for job, differs in zip(batch, pool.map(wrong, batch), strict=True):
                    dist, number, text = job.claims[0]
                    evidence = Evidence(f"{dist.path}/RECORD", number, text[:200])
                    yield [FileFault(dist.name, job.path, "hash", evidence)] * differs
                    for _ in range(job.units - 1):
                        yield []
        finally:
            stop.set()
