"""`no_cuda_leaks`: what cudriver keeps alive after a test, against before it."""

from __future__ import annotations

import contextlib
import gc
import time
from collections import Counter

import pytest

import cudriver as cu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudriver.typing import Allocation

KEPT = "primary context"  # belongs to the device, and is kept on purpose
#: What may go by itself soon: nobody can wait for work in a context that was dropped, nor for the
#: thread of a dropped pin_async().
SOON, PATIENCE = {"context", "pin"}, 1.0  # seconds


def watch(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail at the test's end if objects are alive that were not before it.

    Says nothing after a test that failed: its traceback keeps them. Tracing stays on, so that
    what a later test leaves has its line too.
    """
    cu.trace_allocations()
    gc.collect()
    before = _alive()
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed != failed:
        return
    request.node.funcargs.clear()  # values of fixtures, which are over too
    gc.collect()
    left = _alive() - before
    if left:
        _finish_work(left)
        left = _alive() - before
    end = time.monotonic() + PATIENCE
    while any(row.kind in SOON for row in left) and time.monotonic() < end:
        time.sleep(0.01)
        left = _alive() - before
    if left:
        pytest.fail(_text(left), pytrace=False)


def _alive() -> Counter[Allocation]:
    return Counter(row for row in cu.live_allocations() if row.kind != KEPT)


def _finish_work(left: Counter[Allocation]) -> None:
    """Wait for copies in flight, which hold their ends."""
    devices = {row.device for row in cu.live_allocations() if row.kind == KEPT}
    for device in devices | {row.device for row in left}:
        if device is not None:
            with contextlib.suppress(cu.CudaError):
                cu.Device(device).primary_context().synchronize()


def _text(left: Counter[Allocation]) -> str:
    count = left.total()
    things = "1 object" if count == 1 else f"{count} objects"
    lines = [f"alive after the test: {things} that cudriver made in it"]
    for row in left.elements():
        words = [row.kind, f"{row.nbytes} bytes"]
        words += [f"device {row.device}"] if row.device is not None else []
        words += [f"made at {row.where}"] if row.where else []
        lines.append("  " + ", ".join(words))
    return "\n".join(lines)
