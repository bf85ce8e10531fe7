"""What a contestant is asked for: a peer, the driver, or cudriver itself.

It says how it holds memory and how it issues a copy; the dense works are built from that here, the
same for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import cudriver as cu
from benchmarks.measure import Array, Call, Target, Work

View = Callable[[Any], Any]  # takes a view of an array: lambda a: a[:, ::2]


def first_time(take: Call, empty: Call, how: str) -> Work:
    """Memory that comes from no pool: `empty` gives back to the driver what a pool keeps."""
    held: list[Any] = []

    def give_back() -> None:
        held.clear()
        empty()

    return Work(lambda: held.append(take()), before=give_back, after=give_back, how=how)


@dataclass
class Copy:
    """A copy that a contestant is asked for."""

    target: Any
    source: Any
    written: Target
    stream: Any = None  # None: the contestant's ordinary one
    wait: bool = True  # else the work's `after` waits
    calls: int = 1

    def work(self, run: Call, how: str, after: Call | None = None) -> Work:
        keep = (self.target, self.source)
        return Work(run, None, after, (self.written,), self.calls, how=how, keep=keep)


class Peer:
    """A page-locked array stands for page-locked memory of the peer's own with its bytes."""

    name = ""
    version = ""
    way = ""  # how it copies, for the report
    views = False  # whether it has `contiguous` and `assign`

    def nothing(self, *arguments: Any, **options: Any) -> Any:
        """Stands for what a peer does not have. Its cell stays empty."""
        raise NotImplementedError

    # Memory as `issue` takes it, and copies.
    device = nothing  # (like, number=0): memory on that GPU for the bytes of an array
    pointer = nothing  # (there): the address of device memory
    host = nothing  # (array): pageable memory
    locked = nothing  # (like): page-locked memory, and the same as an array
    stream = nothing  # (number=0): a new stream on that GPU, for a thread of its own
    issue = nothing  # (target, source, stream=None): a call that issues a copy; others keep both
    wait = nothing  # (stream=None): a call that waits for what the stream has been given
    contiguous = nothing  # (shown): a view of a host array, packed the peer's way
    assign = nothing  # (there, view): copies a view of device memory on the device

    # A call that is timed, or a Work.
    page_lock = nothing  # (nbytes): page-locked memory by `first_time`
    pinned_array = nothing  # (nbytes): page-locked memory as a program gets it again and again
    device_memory = nothing  # (nbytes): device memory, allocated and freed
    to_device = nothing  # (host): a new array on the device with the bytes of a host array
    push_pop = nothing  # (): a context made current, and then the one before it again
    takes = nothing  # (lender): a device array taken by DLPack, in the order of the default
    #                  stream, and its address, shape, strides and type read
    lender = nothing  # (like): a device array of the peer's, which others take by DLPack

    # --- works, the same for all ---

    def copy(self, copy: Copy) -> Work:
        issue = self.issue(copy.target, copy.source, copy.stream)
        done = self.wait(copy.stream)
        if not copy.wait:
            return copy.work(issue, self.way, after=done)

        def run() -> None:
            issue()
            done()

        return copy.work(run, self.way)

    def filled(self, host: Array, number: int = 0) -> Any:
        """Memory on GPU `number` with the bytes of `host`."""
        there, stream = self.device(host, number), self.stream(number) if number else None
        self.copy(Copy(there, self.host(host), Target(host), stream)).run()
        return there

    def source(self, host: Array) -> Any:
        """`host` as `issue` takes it; page-locked, in memory of the peer's own."""
        if not cu.is_pinned(host):
            return self.host(host)
        source, array = self.locked(host)
        if array is not host:
            np.copyto(array, host)
        return source

    def up(self, host: Array, number: int = 0, **options: Any) -> Work:
        """The bytes of `host` to GPU `number`; `options` are those of Copy."""
        there = self.device(host, number)
        written = Target(host, pointer=self.pointer(there), device=number)
        return self.copy(Copy(there, self.source(host), written, **options))

    def down(self, host: Array, out: Array, number: int = 0, **options: Any) -> Work:
        """Memory of GPU `number` with the bytes of `host`, into `out`."""
        target, out = self.locked(out) if cu.is_pinned(out) else (self.host(out), out)
        return self.copy(Copy(target, self.filled(host, number), Target(host, out=out), **options))

    def across(self, host: Array, origin: int, number: int, **options: Any) -> Work:
        """The bytes of `host`, from GPU `origin` to GPU `number`."""
        stream = None if origin == number else self.stream(origin)
        source, there = self.filled(host, origin), self.device(host, number)
        written = Target(host, pointer=self.pointer(there), device=number)
        return self.copy(Copy(there, source, written, stream, **options))

    def issued_into(self, tensor: Any, host: Array, calls: int) -> Work:
        """Page-locked bytes into an array with a shape and a type: one of the peer's, or `tensor`,
        which is PyTorch's, where it has none that it can copy into."""
        return self.up(host, wait=False, calls=calls)

    def rows(self, host: Array, of: Array, to: Array, out: Array | None, times: int = 0) -> Work:
        """Rows `of` of `host` to rows `to` of device memory; with `out`, of device memory to that.
        So many times in a row, and the wait for all; 0: once, and the wait is not counted."""
        expected = np.empty((len(to), host.shape[1]), host.dtype)
        expected[to] = host[of]
        if out is None:
            target, source = self.device(expected), self.source(host)
            written = Target(expected, pointer=self.pointer(target))
        else:
            source, locked = self.filled(host), cu.is_pinned(out)
            target, out = self.locked(out) if locked else (self.host(out), out)
            written = Target(expected, out=out)
        width = host.shape[1]
        return self.rows_work(Copy(target, source, written), to * width, of * width, width, times)

    rows_issue = nothing  # (target, source, to, of, width): a call that issues it: bytes at each
    rows_way = ""

    def rows_work(self, copy: Copy, to: Array, of: Array, width: int, times: int) -> Work:
        issue = self.rows_issue(copy.target, copy.source, to, of, width)
        done = self.wait()
        if times == 0:
            return copy.work(issue, self.rows_way, after=done)

        def run() -> None:
            for _ in range(times):
                issue()
            done()

        return copy.work(run, self.rows_way)

    def strided_up(self, base: Array, view: View) -> Work | list[Work]:
        """A view of a host array into a C-ordered device array: packed there, or here."""
        if not self.views:
            raise NotImplementedError
        shown, wait = view(base), self.wait()
        there, whole = self.device(shown), self.device(base)
        send = self.issue(whole, self.host(base))
        targets = (Target(shown, pointer=self.pointer(there)),)

        def on_device() -> None:
            send()
            self.assign(there, view(whole))
            wait()

        def on_host() -> None:
            packed = self.contiguous(shown)
            self.issue(there, packed)()
            wait()

        ways = [Work(on_device, targets=targets, how="all of it sent, packed on the GPU")]
        if shown.strides[-1] <= 3 * shown.itemsize or shown.nbytes < 1 << 28:
            ways.append(Work(on_host, targets=targets, how=f"packed on the host, {self.way}"))
        return ways  # a large transpose takes seconds on the host

    def strided_down(self, base: Array, view: View, out: Array) -> Work:
        """A C-ordered device array, holding view(base), into `out`, a view of a host array."""
        there, buffer = self.filled(np.ascontiguousarray(view(base))), np.empty_like(out, order="C")
        here, wait = self.host(buffer), self.wait()
        fetch = self.issue(here, there)

        def run() -> None:
            fetch()
            wait()
            out[...] = buffer

        how = f"{self.way}, then NumPy's assignment"
        return Work(run, targets=(Target(view(base), out=out),), how=how, keep=(here, there))
