"""What a peer is asked for. A method that a peer has nothing for raises NotImplementedError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.measure import Work

Array = np.ndarray[Any, Any]
View = Callable[[Any], Any]  # takes a view of an array: lambda a: a[:, ::2]


def device_address(array: Any) -> int:
    return int(array.__cuda_array_interface__["data"][0])


class Peer:
    """Each Work waits until its bytes are in place, unless it is said to be asynchronous."""

    name = ""
    version = ""

    def up(self, host: Array) -> Work:
        """Pageable bytes into device memory."""
        raise NotImplementedError

    def down(self, host: Array, out: Array) -> Work:
        """Device memory that holds `host`'s bytes into pageable memory."""
        raise NotImplementedError

    def pinned_up(self, host: Array) -> Work:
        """The bytes of `host`, in page-locked memory of the peer's own, into device memory."""
        raise NotImplementedError

    def pinned_down(self, host: Array) -> Work:
        raise NotImplementedError

    def strided_up(self, base: Array, view: View) -> Work | list[Work]:
        """A view of a host array into a C-ordered device array."""
        raise NotImplementedError

    def strided_down(self, base: Array, view: View, out: Array) -> Work | list[Work]:
        """A C-ordered device array, holding view(base), into `out`, a view of a host array."""
        raise NotImplementedError

    def both_ways(self, host: Array, out: Array) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """A copy up and one down, of plain memory, for two threads at once."""
        raise NotImplementedError

    def to_devices(self, hosts: list[Array]) -> list[Callable[[], Any]]:
        """Copies of plain memory, one to each GPU, for as many threads at once."""
        raise NotImplementedError

    def across(self, host: Array) -> Work:
        """From GPU 0, where the bytes of `host` lie, to GPU 1."""
        raise NotImplementedError

    def across_both(self, host: Array) -> Work:
        """From GPU 0 to GPU 1 and back, other memory, at once."""
        raise NotImplementedError

    def issue(self, host: Array) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """(an asynchronous copy of pageable memory, the wait for its end)"""
        raise NotImplementedError

    def small_issue(self, nbytes: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """(an asynchronous copy from page-locked memory, the wait for their end)"""
        raise NotImplementedError

    def page_lock(self, nbytes: int) -> Work:
        """Page-locked memory for the first time: nothing of it comes from a pool."""
        raise NotImplementedError

    def pinned_array(self, nbytes: int) -> Callable[[], Any]:
        """Page-locked memory as a program gets it again and again."""
        raise NotImplementedError

    def device_memory(self, nbytes: int) -> Callable[[], Any]:
        """Device memory, taken and given back."""
        raise NotImplementedError

    def push_pop(self) -> Callable[[], Any]:
        """A context made current, and the one before again."""
        raise NotImplementedError
