"""Ends of asynchronous copies, and steps of the simulated driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import cudriver as cu

LARGE = 8 << 20  # staged by the copy engine where it is pageable


def ends(size: int = 1 << 16, seed: int = 1) -> tuple[Any, Any]:
    """A page-locked source and a device array of zeros."""
    source = cu.pinned_empty(size, np.uint8)
    source[:] = np.random.default_rng(seed).integers(1, 256, size, np.uint8)
    return source, cu.device_zeros(size, np.uint8)


def ends_before(held: Any, size: int = 1 << 16, seed: int = 1) -> tuple[Any, Any]:
    """ends(), whose fill needs a stream that runs."""
    held.release()
    made = ends(size, seed)
    held.hold()
    return made


@contextmanager
def lateness(simulator: Any, late: bool) -> Iterator[None]:
    """The simulated device may be late with all that may be late, so that a missing wait shows."""
    if simulator is None or not late:
        yield
        return
    simulator.set_late(300)
    try:
        yield
    finally:
        simulator.set_late(0)


def one_step(held: Any) -> None:
    pending = held.live("pending")
    assert pending > 0, "nothing is left that could step"
    held.step(1)
    while held.live("pending") == pending:
        time.sleep(0.001)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Until it holds; what never comes fails the test, and does not hang it."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.001)


class NamedBy:
    """As other libraries show a stream."""

    def __init__(self, stream: Any) -> None:
        self.cuda_stream = stream.handle
