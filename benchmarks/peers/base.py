"""What a peer is asked for. A method that a peer has nothing for raises NotImplementedError.

A peer says how it holds memory and how it issues a copy; the dense works are built from that here,
the same for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.measure import Array, Target, Work

View = Callable[[Any], Any]  # takes a view of an array: lambda a: a[:, ::2]
Call = Callable[[], Any]


class Peer:
    """Works wait until their bytes are in place; those that are issued have `after` for that."""

    name = ""
    version = ""
    way = ""  # how it copies, for the report
    views = False  # whether it has `contiguous` and `assign`

    # --- memory and copies ---

    def device(self, like: Array, number: int = 0) -> Any:
        """Device memory for the bytes of `like`."""
        raise NotImplementedError

    def pointer(self, there: Any) -> int:
        """The address of device memory."""
        raise NotImplementedError

    def host(self, array: Array) -> Any:
        """Pageable memory, as `issue` takes it."""
        raise NotImplementedError

    def locked(self, like: Array) -> tuple[Any, Array]:
        """Page-locked memory of the peer's own, as `issue` takes it and as an array."""
        raise NotImplementedError

    def stream(self, number: int = 0) -> Any:
        """A new stream on a device, for a thread of its own."""
        raise NotImplementedError

    def issue(self, target: Any, source: Any, stream: Any = None) -> Call:
        """A call that issues a copy, in the peer's ordinary stream where none is given."""
        raise NotImplementedError

    def wait(self, stream: Any = None) -> Call:
        """A call that waits for what the stream has been given."""
        raise NotImplementedError

    # --- calls ---

    def page_lock(self, nbytes: int) -> Work:
        """Page-locked memory for the first time: nothing of it comes from a pool."""
        raise NotImplementedError

    def pinned_array(self, nbytes: int) -> Call:
        """Page-locked memory as a program gets it again and again."""
        raise NotImplementedError

    def device_memory(self, nbytes: int) -> Call:
        """Device memory, allocated and freed."""
        raise NotImplementedError

    def to_device(self, host: Array) -> Call:
        """A new array on the device with the bytes of `host`."""
        raise NotImplementedError

    def push_pop(self) -> Call:
        """A context made current, and then the one before it again."""
        raise NotImplementedError

    def lender(self, like: Array) -> Any:
        """A device array of its own, which others take by DLPack."""
        raise NotImplementedError

    def takes(self, lender: Any) -> Call:
        """A call that takes another library's device array by DLPack, in the order of the default
        stream, and reads address, shape, strides and type."""
        raise NotImplementedError

    # --- views, and copies while computing ---

    def contiguous(self, shown: Array) -> Any:
        """A view of a host array, packed the peer's way, as `issue` takes it."""
        raise NotImplementedError

    def assign(self, there: Any, view: Any) -> None:
        """Copies a view of device memory on the device."""
        raise NotImplementedError

    def computing(self, seconds: float) -> Call:
        """A call that gives the device work for so long, and does not wait for it."""
        raise NotImplementedError

    def pinned_each(self, host: Array, stream: Any) -> Work:
        """As `issued`, with a new page-locked copy of `host` each time."""
        raise NotImplementedError

    # --- works, the same for all ---

    def filled(self, host: Array, number: int = 0) -> Any:
        """Device memory with the bytes of `host`."""
        there, stream = self.device(host, number), self.stream(number) if number else None
        self.issue(there, self.host(host), stream)()
        self.wait(stream)()
        return there

    def _copy(self, target: Any, source: Any, written: Target, stream: Any, calls: int = 1) -> Work:
        issue, wait = self.issue(target, source, stream), self.wait(stream)

        def run() -> None:
            issue()
            wait()

        keep = (target, source)
        return Work(run, targets=(written,), calls=calls, how=self.way, keep=keep)

    def up(
        self,
        host: Array,
        *,
        pinned: bool = False,
        number: int = 0,
        stream: Any = None,
        calls: int = 1,
    ) -> Work:
        """The bytes of `host`, pageable or in page-locked memory of the peer's, to a device."""
        there, source = self.device(host, number), self._source(host, pinned)
        written = Target(host, pointer=self.pointer(there), device=number)
        return self._copy(there, source, written, stream, calls)

    def down(
        self, host: Array, out: Array, *, pinned: bool = False, stream: Any = None, calls: int = 1
    ) -> Work:
        """Device memory with the bytes of `host`, into `out` or into page-locked memory."""
        if pinned:
            target, out = self.locked(host)
        else:
            target = self.host(out)
        return self._copy(target, self.filled(host), Target(host, out=out), stream, calls)

    def issued(
        self, host: Array, *, pinned: bool = False, stream: Any = None, calls: int = 1
    ) -> Work:
        """An asynchronous copy to the device, issued. `after` waits."""
        there, source = self.device(host), self._source(host, pinned)
        return self._issued(there, source, Target(host, pointer=self.pointer(there)), stream, calls)

    def issued_into(self, tensor: Any, host: Array, calls: int) -> Work:
        """As `issued` from page-locked memory, into an array with a shape and a type: one of the
        peer's, or `tensor`, which is PyTorch's, where it has none that it can copy into."""
        return self.issued(host, pinned=True, calls=calls)

    def across(self, host: Array, number: int = 1) -> Work:
        """A copy from the other GPU to GPU `number`, issued. `after` waits."""
        stream = self.stream(1 - number)
        source, there = self.filled(host, 1 - number), self.device(host, number)
        written = Target(host, pointer=self.pointer(there), device=number)
        return self._issued(there, source, written, stream)

    def _issued(
        self, there: Any, source: Any, written: Target, stream: Any, calls: int = 1
    ) -> Work:
        issue, wait, keep = self.issue(there, source, stream), self.wait(stream), (there, source)
        return Work(issue, after=wait, targets=(written,), calls=calls, how=self.way, keep=keep)

    def _source(self, host: Array, pinned: bool) -> Any:
        if not pinned:
            return self.host(host)
        source, array = self.locked(host)
        np.copyto(array, host)
        return source

    def strided_up(self, base: Array, view: View) -> list[Work]:
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
            self.issue(there, self.contiguous(shown))()
            wait()

        ways = [Work(on_device, targets=targets, how="all of it sent, packed on the GPU")]
        if shown.strides[-1] <= 3 * shown.itemsize or shown.nbytes < 1 << 28:
            ways.append(Work(on_host, targets=targets, how=f"packed on the host, {self.way}"))
        return ways  # a large transpose takes seconds on the host

    def strided_down(self, base: Array, view: View, out: Array) -> Work:
        """A C-ordered device array, holding view(base), into `out`, a view of a host array."""
        there, buffer = self.filled(np.ascontiguousarray(view(base))), np.empty_like(out, order="C")
        fetch, wait = self.issue(self.host(buffer), there), self.wait()

        def run() -> None:
            fetch()
            wait()
            out[...] = buffer

        how = f"{self.way}, then NumPy's assignment"
        return Work(run, targets=(Target(view(base), out=out),), how=how)
