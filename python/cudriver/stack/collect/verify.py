"""`cudriver check --verify`: every file that wheels list is read, and its hash compared."""

from __future__ import annotations

import os

from cudriver.stack.collect import records
from cudriver.stack.model import Distribution, Evidence, FileFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cudriver.stack.model import Facts
    from cudriver.stack.rootfs import Root

    # Given what is done (one for each UNIT of bytes) and how much there is: shows how far it is.
    Track = Callable[[Iterable[list[FileFault]], int], Iterable[list[FileFault]]]

UNIT = 16 << 20


class _Job:
    """A file that has the size that was listed, and who lists it with which hash."""

    def __init__(self, path: str, size: int) -> None:
        self.path, self.size = path, size
        self.claims: list[tuple[Distribution, str, Evidence]] = []

    @property
    def units(self) -> int:
        return self.size // UNIT + 1


def verify(root: Root, facts: Facts, track: Track) -> list[FileFault]:
    """The files whose content is none that a RECORD states. Those of another size are known."""
    jobs = sorted(_jobs(root, facts), key=lambda job: -job.size)
    total = sum(job.units for job in jobs)
    return [fault for faults in track(_done(root, jobs), total) for fault in faults]


def _jobs(root: Root, facts: Facts) -> list[_Job]:
    known = {fault.file for fault in facts.file_faults}
    jobs: dict[str, _Job] = {}
    for dist in facts.distributions:
        raw = records.read(root, dist, facts.problems)
        for number, line in enumerate(raw.split(b"\n") if raw else (), 1):
            entry = records.parsed(dist, line.decode("utf-8", "replace").strip())
            if entry is None or not entry.digest or entry.path in known:
                continue
            size = root.size(entry.path)
            if size is not None and size == entry.size and not records.by_conda(root, dist):
                evidence = Evidence(f"{dist.path}/RECORD", number, entry.text[:200])
                job = jobs.setdefault(entry.path, _Job(entry.path, size))
                job.claims.append((dist, entry.digest, evidence))
    return [*jobs.values()]


def _done(root: Root, jobs: list[_Job]) -> Iterator[list[FileFault]]:
    """What is wrong with each, read by as many threads as there are CPUs."""
    from concurrent.futures import ThreadPoolExecutor

    def wrong(job: _Job) -> bool:
        return all(records.differs(root, job.path, digest) for _, digest, _ in job.claims)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for job, differs in zip(jobs, pool.map(wrong, jobs), strict=True):
            dist, _, evidence = job.claims[0]
            fault = FileFault(dist.name, job.path, "hash", evidence)
            yield [fault] * differs
            for _ in range(job.units - 1):
                yield []
