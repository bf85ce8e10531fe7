"""`cudriver check --verify`: compares the content of every file that packages list: of wheels with
RECORD's hash, of what a system's package manager brought with its own list (dpkg's).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator

from cudriver import _elf
from cudriver.stack.environment import records
from cudriver.stack.environment.debian import sums
from cudriver.stack.environment.records import Entry
from cudriver.stack.facts import CHANGED, Evidence, Facts, FileFault
from cudriver.stack.integrity.listed import ALL, leaves_alone, of_system
from cudriver.stack.integrity.look import Looker
from cudriver.stack.loader.search import Loader
from cudriver.stack.roots.rootfs import Root

# Given what is done (one for each file) and how much there is: shows how far it is.
Track = Callable[[Iterable[list[FileFault]], int], Iterable[list[FileFault]]]

THREADS = 32  # at most: each holds 1 MiB of a file


def verify(root: Root, facts: Facts, loader: Loader, track: Track) -> list[FileFault]:
    """The files whose content is none that a list states. Those of another size are known.

    Where this is interrupted, no other file is begun, and those under way are left as they are.
    """
    known = {fault.file for fault in facts.file_faults}
    claims: dict[str, list[Entry]] = {}
    for file in _listed(root, facts):
        if file.path not in known and file.same_size and file.found is not None:
            claims.setdefault(file.path, []).append(file)
    order = sorted(claims.values(), key=lambda files: -(files[0].found or 0))
    looker = Looker(facts.environment, loader)
    found = []
    with contextlib.closing(_done(root, order, looker)) as done:
        for faults in track(done, len(order)):
            found += faults
    return [*found, *_of_system(root, facts)]


def _listed(root: Root, facts: Facts) -> Iterator[Entry]:
    """Every file that wheels list and that counts."""
    for dist in facts.distributions:
        raw = records.read(root, dist, quiet=True) if dist.kind == "wheel" else b""
        if not raw or leaves_alone(root, dist):
            continue
        (lines,) = _elf.absent([(raw, dist.location if root.host else None, ALL)])
        for number, line in lines:
            entry = records.parsed(dist, line.strip(), number)
            if entry is not None:
                entry.found = root.regular(entry.path)[0]
                yield entry


def _done(root: Root, jobs: list[list[Entry]], looker: Looker) -> Generator[list[FileFault]]:
    """What is wrong with each, read by as many threads as there are CPUs."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import Event

    stop = Event()

    def wrong(job: list[Entry]) -> bool:
        digests = {file.digest for file in job}
        return all(records.differs(root, job[0].path, each, stop.is_set) for each in digests)

    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), THREADS)) as pool:
        try:
            for job, differs in zip(jobs, pool.map(wrong, jobs), strict=True):
                yield [looker.into(job[0])] if differs else []
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _of_system(root: Root, facts: Facts) -> Iterator[FileFault]:
    """What dpkg's own list denies."""
    usual = (dist for dist in facts.distributions if dist.kind != "conda")
    dists = {dist.path: dist for dist in usual if of_system(root, dist)}
    for package, file, digest, line in sums(root, dists) if dists else ():
        there = root.regular(file)[0] is not None
        made = records.hash_of(root, file, "md5") if there else None
        if made is not None and made.hex() != digest:
            evidence = Evidence(f"/var/lib/dpkg/info/{package}.md5sums", line, digest)
            name = package.partition(":")[0]
            yield FileFault(name, file, CHANGED, evidence, package=name)
