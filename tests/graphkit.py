"""Captures of streams into CUDA graphs, by the driver's own functions, through ctypes."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cudriver as cu

GLOBAL, THREAD_LOCAL, RELAXED = MODES = (0, 1, 2)
ACTIVE, BROKEN = 1, 2


class Capture:
    """What is queued on `stream` inside becomes `graph`; `launch` runs it."""

    def __init__(self, driver: Any, stream: Any, mode: int = GLOBAL) -> None:
        self.driver, self.stream, self.mode = driver, stream, mode
        self.graph, self.executable = ctypes.c_void_p(), ctypes.c_void_p()
        self.ended: int | None = None

    @property
    def handle(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.stream.handle)

    def begin(self) -> Capture:
        assert self.driver.cuStreamBeginCapture_v2(self.handle, self.mode) == 0
        return self

    def end(self) -> int:
        self.ended = int(self.driver.cuStreamEndCapture(self.handle, ctypes.byref(self.graph)))
        return self.ended

    def status(self) -> int:
        status = ctypes.c_int(-1)
        assert self.driver.cuStreamIsCapturing(self.handle, ctypes.byref(status)) == 0
        return status.value

    def __enter__(self) -> Capture:
        return self.begin()

    def __exit__(self, *exception: object) -> None:
        if self.end() == 0 and exception[0] is None:
            made = self.driver.cuGraphInstantiateWithFlags(
                ctypes.byref(self.executable), self.graph, ctypes.c_ulonglong(0)
            )
            assert made == 0

    def nodes(self) -> int:
        count = ctypes.c_size_t()
        assert self.driver.cuGraphGetNodes(self.graph, None, ctypes.byref(count)) == 0
        return count.value

    def start(self, stream: Any = None) -> Any:
        stream = stream or self.stream
        assert self.driver.cuGraphLaunch(self.executable, ctypes.c_void_p(stream.handle)) == 0
        return stream

    def launch(self, stream: Any = None) -> None:
        self.start(stream).synchronize()

    def close(self) -> None:
        for function, handle in (
            (self.driver.cuGraphExecDestroy, self.executable),
            (self.driver.cuGraphDestroy, self.graph),
        ):
            if handle.value:
                assert function(handle) == 0
            handle.value = None


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether it comes true soon: as where the driver tells in a thread of its own that a graph
    is gone.
    """
    for _ in range(1000):
        cu.live_allocations()  # a call that drops what graphs have kept
        if condition():
            return True
        time.sleep(0.01)
    return False


#: They are to outlive their calls.
waits: list[object] = []


@contextmanager
def busy(driver: Any, stream: Any) -> Iterator[None]:
    """The stream has work in flight till the end of the block, or for ten seconds."""
    over, done = threading.Event(), threading.Event()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def wait(_: object) -> None:
        over.wait(10)
        done.set()

    waits.append(wait)
    assert driver.cuLaunchHostFunc(ctypes.c_void_p(stream.handle), wait, None) == 0
    try:
        yield
    finally:
        over.set()
        done.wait(10)
