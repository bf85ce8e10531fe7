"""Many pieces of work, one process a CPU."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future, ProcessPoolExecutor
    from typing import Any, TypeVar

    T = TypeVar("T")

MOST_WORKERS = 8

_work: list[Callable[[str], Any]] = []  # of a worker process


def side_by_side(
    work: Callable[[str], T], items: Sequence[str], died: Callable[[str], T]
) -> Iterator[T]:
    """What `work` says of each item, in order, and `died` of one that its process died of.

    Processes are forked, so that `work` may hold anything; what it returns is pickled.
    """
    from concurrent.futures.process import BrokenProcessPool
    from contextlib import suppress
    from itertools import zip_longest

    pool = _workers(_count(items), work)
    try:
        for item, future in zip_longest(items, _submit(pool, items)):
            if future is not None:
                with suppress(BrokenProcessPool):
                    yield future.result()
                    continue
            # A worker died, of this item or of another.
            with _workers(1, work) as alone:
                try:
                    yield _submit(alone, [item])[0].result()
                except BrokenProcessPool:
                    yield died(item)
    finally:
        pool.shutdown(cancel_futures=True)


def _count(items: Sequence[str]) -> int:
    return min(len(os.sched_getaffinity(0)), len(items), MOST_WORKERS)


def _workers(count: int, work: Callable[[str], Any]) -> ProcessPoolExecutor:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    return ProcessPoolExecutor(count, get_context("fork"), _start, (work,))


def _submit(pool: ProcessPoolExecutor, items: Sequence[str]) -> list[Future[Any]]:
    """Starts the workers; Ctrl-C is held until they know what to do about it."""
    from concurrent.futures.process import BrokenProcessPool
    from contextlib import suppress

    usual = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    futures = []
    with suppress(BrokenProcessPool):  # the rest has no future
        for item in items:
            futures.append(pool.submit(_do, item))
    signal.pthread_sigmask(signal.SIG_SETMASK, usual)
    return futures


def _start(work: Callable[[str], Any]) -> None:
    """Keeps what every item needs. Ctrl-C ends a worker without words."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _work.append(work)


def _do(item: str) -> Any:
    """One item, in a worker process."""
    return _work[-1](item)
