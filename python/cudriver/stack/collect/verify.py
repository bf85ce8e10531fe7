"""`cudriver check --verify`: every file that wheels list is read, and its hash compared."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable

from cudriver.stack.collect import records
from cudriver.stack.model import Distribution, Evidence, Facts, FileFault
from cudriver.stack.record import Record, fresh
from cudriver.stack.rootfs import Root

# Given what is done (one for each UNIT of bytes) and how much there is: shows how far it is.
Track = Callable[[Iterable[list[FileFault]], int], Iterable[list[FileFault]]]

UNIT = 16 << 20
THREADS = 32  # at most: each holds 1 MiB of a file
BATCH = 1000  # files that wait for a thread at a time


class _Job(Record):
    """A file, and the lines of RECORDs that list it."""

    path: str
    size: int | None
    claims: list[tuple[Distribution, int, str]] = fresh(list)

    @property
    def units(self) -> int:
        return (self.size or 0) // UNIT + 1

    @property
    def entries(self) -> list[records.Entry]:
        """Those lines that state its size."""
        parsed = (records.parsed(dist, text) for dist, _, text in self.claims)
        return [entry for entry in parsed if entry is not None and entry.size == self.size]

    def fault(self, what: str) -> FileFault:
        dist, number, text = self.claims[0]
        evidence = Evidence(f"{dist.path}/RECORD", number, text[:200])
        return FileFault(dist.name, self.path, what, evidence)


def verify(root: Root, facts: Facts, track: Track) -> list[FileFault]:
    """The files whose content is none that a RECORD states, and data that is gone.

    Where this is interrupted, no other file is begun, and those under way are left as they are.
    """
    jobs = _jobs(root, facts)
    found = []
    for job in jobs:
        if job.entries or job.path.endswith(".pyc"):
            continue
        if job.size is not None:
            found.append(job.fault("hash"))
        elif _is_data(job.path) and os.path.dirname(job.path) not in root.unlisted:
            found.append(job.fault("missing"))
    jobs = sorted((job for job in jobs if job.entries), key=lambda job: -job.units)
    total = sum(job.units for job in jobs)
    with contextlib.closing(_done(root, jobs)) as done:
        return found + [fault for faults in track(done, total) for fault in faults]


def _is_data(path: str) -> bool:
    """Whether a file that is gone is neither a module nor a library, which the check looks for
    itself, nor of tests: images are often made smaller.
    """
    left_out = path.endswith(".py") or "/tests/" in path or "/test/" in path
    return not left_out and not records.is_library(os.path.basename(path))


def _jobs(root: Root, facts: Facts) -> list[_Job]:
    known = {fault.file for fault in facts.file_faults}
    jobs: dict[str, _Job] = {}
    for dist in facts.distributions:
        raw = records.read(root, dist, facts.problems)
        for number, line in enumerate(raw.split(b"\n") if raw else (), 1):
            text = line.decode("utf-8", "replace").strip()
            entry = records.parsed(dist, text)
            if entry is None or not entry.digest or entry.size is None or entry.path in known:
                continue
            if not records.by_conda(root, dist):
                job = jobs.get(entry.path)
                if job is None:
                    job = jobs[entry.path] = _Job(entry.path, root.size(entry.path))
                job.claims.append((dist, number, text))
    return [*jobs.values()]


def _done(root: Root, jobs: list[_Job]) -> Generator[list[FileFault]]:
    """What is wrong with each, read by as many threads as there are CPUs."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import Event

    stop = Event()

    def wrong(job: _Job) -> bool:
        stopped = stop.is_set
        return all(records.differs(root, job.path, each.digest, stopped) for each in job.entries)

    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), THREADS)) as pool:
        try:
            for start in range(0, len(jobs), BATCH):
                batch = jobs[start : start + BATCH]
                for job, differs in zip(batch, pool.map(wrong, batch), strict=True):
                    yield [job.fault("hash")] * differs
                    for _ in range(job.units - 1):
                        yield []
        finally:
            stop.set()
