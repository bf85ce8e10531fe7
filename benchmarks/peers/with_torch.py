from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.measure import Array, Work
from benchmarks.peers.base import Call, Peer

SIDE = 4096  # of the matrices whose product keeps the GPU busy


def tensor(array: Array) -> Any:
    """The same memory as a tensor, unsigned integers as signed ones: PyTorch lacks most."""
    signed = {"uint16": np.int16, "uint32": np.int32, "uint64": np.int64}
    kind = signed.get(array.dtype.name)
    return torch.from_numpy(array.view(kind) if kind is not None else array)


class Torch(Peer):
    name = "PyTorch"
    way = "Tensor.copy_"
    views = True

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("torch.cuda.is_available() is False")
        self.gpu = "cuda"
        torch.empty(1, device=self.gpu)
        self.version = torch.__version__

    def device(self, like: Array, number: int = 0) -> Any:
        kind = tensor(np.empty(0, like.dtype)).dtype
        return torch.empty(like.shape, dtype=kind, device=f"{self.gpu}:{number}")

    def pointer(self, there: Any) -> int:
        return int(there.data_ptr())

    def host(self, array: Array) -> Any:
        return tensor(array)

    def locked(self, like: Array) -> tuple[Any, Array]:
        kind = tensor(np.empty(0, like.dtype)).dtype
        made = torch.empty(like.shape, dtype=kind, pin_memory=True)
        return made, made.numpy()

    def stream(self, number: int = 0) -> Any:
        return torch.cuda.Stream(device=number)

    def issue(self, target: Any, source: Any, stream: Any = None) -> Call:
        if stream is None:
            return lambda: target.copy_(source, non_blocking=True)

        def run() -> None:
            with torch.cuda.stream(stream):
                target.copy_(source, non_blocking=True)

        return run

    def wait(self, stream: Any = None) -> Call:
        chosen = torch.cuda.current_stream(0) if stream is None else stream
        return chosen.synchronize  # type: ignore[no-any-return]

    def page_lock(self, nbytes: int) -> Work:
        older = getattr(torch._C, "_host_emptyCache", None)
        empty = older or torch.accelerator.empty_host_cache
        held: list[Any] = []

        def after() -> None:
            held.clear()
            empty()

        return Work(
            lambda: held.append(torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)),
            before=empty,
            after=after,
            how="torch.empty(pin_memory=True), its cache emptied",
        )

    def pinned_array(self, nbytes: int) -> Call:
        return lambda: torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def device_memory(self, nbytes: int) -> Call:
        return lambda: torch.empty(nbytes, dtype=torch.uint8, device=self.gpu)

    def to_device(self, host: Array) -> Call:
        return lambda: torch.from_numpy(host).to(self.gpu)

    def takes(self, lender: Any) -> Call:
        def call() -> Any:
            made = torch.from_dlpack(lender)
            return made.data_ptr(), made.shape, made.stride(), made.dtype

        return call

    def contiguous(self, shown: Array) -> Any:
        return tensor(shown).contiguous()

    def assign(self, there: Any, view: Any) -> None:
        there.copy_(view)

    def pinned_each(self, host: Array, stream: Any) -> Work:
        work = self.issued(host, stream=stream)
        there, source = work.keep

        def run() -> None:
            with torch.cuda.stream(stream):
                there.copy_(source.pin_memory(), non_blocking=True)

        work.run = run
        return work

    def computing(self, seconds: float) -> Call:
        left, right, out = (torch.rand(SIDE, SIDE, device=self.gpu) for _ in range(3))
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for event in (begin, end):  # the first product loads the library
            torch.mm(left, right, out=out)
            event.record()
        end.synchronize()
        count = max(1, round(seconds * 1e3 / begin.elapsed_time(end)))

        def call() -> None:
            for _ in range(count):
                torch.mm(left, right, out=out)

        return call
