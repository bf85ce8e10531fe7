from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

# Else JAX takes three quarters of the GPU's memory at its first use.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import Work
from benchmarks.peers.base import Array, Peer, View


class Jax(Peer):
    """JAX's arrays do not change: each copy makes a new one, on both sides."""

    name = "JAX"

    def __init__(self) -> None:
        self.devices = jax.devices("gpu")
        self.version = jax.__version__

    def _up(self, host: Any, sharding: Any, how: str) -> Work:
        held: list[Any] = []

        def run() -> None:
            held[:] = [jax.device_put(host, sharding)]
            held[0].block_until_ready()

        # The one before goes first, so that its memory can be used again.
        return Work(
            run, before=held.clear, pointer=lambda: held[0].unsafe_buffer_pointer(), how=how
        )

    def _down(self, there: Any, out: Array, fetch: Callable[[Any], Any], how: str) -> Work:
        held: list[Any] = []
        got: list[Any] = []

        def before() -> None:
            got.clear()
            held[:] = [jnp.copy(there)]  # an array keeps what was fetched of it once
            held[0].block_until_ready()

        def check() -> None:
            # Only while verifying: later runs leave `out` alone.
            if not work.keep:
                out[...] = got[0]
                work.keep = (True,)

        work = Work(
            lambda: got.append(fetch(held[0])), before=before, after=check, out=out, how=how
        )
        return work

    def _there(self, host: Array) -> Any:
        return jax.device_put(host, self.devices[0]).block_until_ready()

    def up(self, host: Array) -> Work:
        return self._up(host, self.devices[0], "device_put")

    def down(self, host: Array, out: Array) -> Work:
        return self._down(self._there(host), out, np.asarray, "numpy.asarray(array)")

    def _sharding(self, kind: str) -> Any:
        return jax.sharding.SingleDeviceSharding(self.devices[0], memory_kind=kind)

    def pinned_up(self, host: Array) -> Work:
        locked = jax.device_put(host, self._sharding("pinned_host")).block_until_ready()
        return self._up(locked, self._sharding("device"), "device_put from pinned_host")

    def pinned_down(self, host: Array) -> Work:
        sharding = self._sharding("pinned_host")
        out = np.empty_like(host)

        def fetch(array: Any) -> Any:
            return jax.device_put(array, sharding).block_until_ready()

        return self._down(self._there(host), out, fetch, "device_put to pinned_host")

    def strided_up(self, base: Array, view: View) -> Work | list[Work]:
        held: list[Any] = []
        arrange = jax.jit(view)

        def run() -> None:
            held[:] = [arrange(jax.device_put(base, self.devices[0]))]
            held[0].block_until_ready()

        return Work(
            run,
            before=held.clear,
            pointer=lambda: held[0].unsafe_buffer_pointer(),
            how="all of it sent, arranged by a jitted function",
        )

    def strided_down(self, base: Array, view: View, out: Array) -> Work | list[Work]:
        there = self._there(np.ascontiguousarray(view(base)))
        held: list[Any] = []

        def before() -> None:
            held[:] = [jnp.copy(there)]
            held[0].block_until_ready()

        def run() -> None:
            out[...] = np.asarray(held[0])

        return Work(run, before=before, out=out, how="numpy.asarray, then NumPy's assignment")

    def across(self, host: Array) -> Work:
        source = self._there(host)
        return self._up(source, self.devices[1], "device_put")

    def _issue(self, host: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
        held: list[Any] = []
        device = self.devices[0]

        def wait() -> None:
            for array in held:
                array.block_until_ready()
            held.clear()

        return lambda: held.append(jax.device_put(host, device)), wait

    def issue(self, host: Array) -> tuple[Callable[[], Any], Callable[[], Any]]:
        return self._issue(host)

    def small_issue(self, nbytes: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        return self._issue(np.zeros(nbytes, np.uint8))  # it takes no page-locked array of NumPy
