from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Work
from benchmarks.peers.base import Array, Peer, View


def tensor(array: Array) -> Any:
    """The same memory as a tensor; types that PyTorch lacks as signed ones."""
    signed = {"uint16": np.int16, "uint32": np.int32, "uint64": np.int64}
    kind = signed.get(array.dtype.name)
    return torch.from_numpy(array.view(kind) if kind is not None else array)


class Torch(Peer):
    name = "PyTorch"

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("torch.cuda.is_available() is False")
        torch.empty(1, device="cuda:0")
        self.version = torch.__version__
        self.sync = torch.cuda.synchronize

    def _there(self, host: Array, device: str = "cuda:0") -> Any:
        return torch.empty(host.shape, dtype=tensor(host).dtype, device=device)

    def _locked(self, host: Array) -> Any:
        locked = torch.empty(host.shape, dtype=tensor(host).dtype, pin_memory=True)
        return locked.copy_(tensor(host))

    def _copy(self, target: Any, source: Any, **more: Any) -> Work:
        def run() -> None:
            target.copy_(source)
            self.sync()

        return Work(run, keep=(target, source), how="Tensor.copy_", **more)

    def up(self, host: Array) -> Work:
        there = self._there(host)
        return self._copy(there, tensor(host), pointer=there.data_ptr)

    def down(self, host: Array, out: Array) -> Work:
        return self._copy(tensor(out), tensor(host).to("cuda:0"), out=out)

    def pinned_up(self, host: Array) -> Work:
        there = self._there(host)
        return self._copy(there, self._locked(host), pointer=there.data_ptr)

    def pinned_down(self, host: Array) -> Work:
        out = torch.empty(host.shape, dtype=tensor(host).dtype, pin_memory=True)
        return self._copy(out, tensor(host).to("cuda:0"), out=out.numpy())

    def strided_up(self, base: Array, view: View) -> Work | list[Work]:
        host = tensor(base)
        there = torch.empty(tuple(view(host).shape), dtype=host.dtype, device="cuda:0")
        whole = torch.empty(tuple(host.shape), dtype=host.dtype, device="cuda:0")

        def on_device() -> None:
            whole.copy_(host)
            there.copy_(view(whole))
            self.sync()

        ways = [Work(on_device, pointer=there.data_ptr, how="all of it sent, copied on the GPU")]
        if view(host).stride(-1) <= 2:  # a transpose packed on the host takes seconds
            direct = self._copy(there, view(host), pointer=there.data_ptr)
            ways.append(direct)
        return ways

    def strided_down(self, base: Array, view: View, out: Array) -> Work | list[Work]:
        there = tensor(np.ascontiguousarray(view(base))).to("cuda:0")
        buffer = np.empty(out.shape, out.dtype)

        def by_numpy() -> None:
            tensor(buffer).copy_(there)
            out[...] = buffer

        packed = Work(by_numpy, out=out, how="Tensor.copy_, then NumPy's assignment")
        return [self._copy(tensor(out), there, out=out), packed]

    def both_ways(self, host: Array, out: Array) -> tuple[Callable[[], Any], Callable[[], Any]]:
        there, source = self._there(host), tensor(host).to("cuda:0")
        streams = torch.cuda.Stream(), torch.cuda.Stream()

        def copy(stream: Any, target: Any, origin: Any) -> Callable[[], None]:
            def run() -> None:
                with torch.cuda.stream(stream):
                    target.copy_(origin)
                stream.synchronize()

            return run

        return copy(streams[0], there, tensor(host)), copy(streams[1], tensor(out), source)

    def to_devices(self, hosts: list[Array]) -> list[Callable[[], Any]]:
        def copy(number: int, host: Array) -> Callable[[], None]:
            device = f"cuda:{number}"
            there, source = self._there(host, device), tensor(host)

            def run() -> None:
                with torch.cuda.device(device):
                    there.copy_(source)
                    torch.cuda.synchronize(device)

            return run

        return [copy(number, host) for number, host in enumerate(hosts)]

    def _sync_both(self) -> None:
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)

    def across(self, host: Array) -> Work:
        source, there = tensor(host).to("cuda:0"), self._there(host, "cuda:1")
        self._sync_both()

        def run() -> None:
            there.copy_(source)
            self._sync_both()

        return Work(run, pointer=there.data_ptr, keep=(source,), how="Tensor.copy_")

    def across_both(self, host: Array) -> Work:
        one, two = tensor(host).to("cuda:0"), tensor(host).to("cuda:1")
        to_one, to_two = self._there(host, "cuda:0"), self._there(host, "cuda:1")
        # A copy uses the current stream of both devices: its own pair for each direction.
        streams = [[torch.cuda.Stream(d) for d in (0, 1)] for _ in range(2)]
        self._sync_both()

        def run() -> None:
            with torch.cuda.stream(streams[0][0]), torch.cuda.stream(streams[0][1]):
                to_two.copy_(one, non_blocking=True)
            with torch.cuda.stream(streams[1][0]), torch.cuda.stream(streams[1][1]):
                to_one.copy_(two, non_blocking=True)
            self._sync_both()

        return Work(run, how="Tensor.copy_, streams of their own")

    def issue(self, host: Array) -> tuple[Callable[[], Any], Callable[[], Any]]:
        there, source = self._there(host), tensor(host)
        return lambda: there.copy_(source, non_blocking=True), self.sync

    def small_issue(self, nbytes: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        locked = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(nbytes, dtype=torch.uint8, device="cuda:0")
        return lambda: there.copy_(locked, non_blocking=True), self.sync

    def _empty_cache(self) -> None:
        empty = getattr(torch._C, "_host_emptyCache", None)
        if empty is None:
            raise NotImplementedError
        empty()

    def page_lock(self, nbytes: int) -> Work:
        held: list[Any] = []

        def after() -> None:
            held.clear()
            self._empty_cache()

        return Work(
            lambda: held.append(torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)),
            before=self._empty_cache,
            after=after,
            how="torch.empty(pin_memory=True), its cache emptied",
        )

    def pinned_array(self, nbytes: int) -> Callable[[], Any]:
        return lambda: torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def device_memory(self, nbytes: int) -> Callable[[], Any]:
        return lambda: torch.empty(nbytes, dtype=torch.uint8, device="cuda:0")
