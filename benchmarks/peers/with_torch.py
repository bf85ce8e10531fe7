from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

# Its fastest way to page-lock, which it reads when it first does so.
SETTINGS = "pinned_use_cuda_host_register:True,pinned_num_register_threads:16"
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", SETTINGS)

import torch  # noqa: E402

from benchmarks.measure import Array, Call, Work  # noqa: E402
from benchmarks.peers.base import Peer, first_time  # noqa: E402

SIDE = 4096  # of the matrices whose product keeps the GPU busy


class Torch(Peer):
    name = "PyTorch"
    way = "Tensor.copy_"
    views = True

    def __init__(self) -> None:
        torch.empty(1, device="cuda")
        self.version = torch.__version__

    def device(self, like: Array, number: int = 0) -> Any:
        return self._like(like, device=f"cuda:{number}")

    def pointer(self, there: Any) -> int:
        return int(there.data_ptr())

    def host(self, array: Array) -> Any:
        return torch.from_numpy(array)

    def locked(self, like: Array) -> tuple[Any, Array]:
        made = self._like(like, pin_memory=True)
        return made, made.numpy()

    def _like(self, like: Array, **where: Any) -> Any:
        dense = torch.contiguous_format
        return torch.empty_like(torch.from_numpy(like), memory_format=dense, **where)

    def stream(self, number: int = 0) -> Any:
        return torch.cuda.Stream(device=number)

    def issue(self, target: Any, source: Any, stream: Any = None) -> Call:
        if stream is None:
            return lambda: target.copy_(source, non_blocking=True)

        def run() -> None:
            with torch.cuda.stream(stream):
                target.copy_(source, non_blocking=True)

        return run

    def current(self) -> Any:
        return torch.cuda.current_stream(0)

    def wait(self, stream: Any = None) -> Call:
        chosen = self.current() if stream is None else stream
        return chosen.synchronize  # type: ignore[no-any-return]

    rows_way = "indices on both sides"

    def rows_issue(self, target: Any, source: Any, to: Array, of: Array, width: int) -> Call:
        def run() -> None:
            read = torch.from_numpy(of // width).to(source.device)
            write = torch.from_numpy(to // width).to(target.device)
            target[write] = source[read].to(target.device)

        return run

    def page_lock(self, nbytes: int) -> Work:
        older = getattr(torch._C, "_host_emptyCache", None)
        empty = older or torch.accelerator.empty_host_cache
        how = f"torch.empty(pin_memory=True), its cache emptied, {SETTINGS}"
        return first_time(self.pinned_array(nbytes), empty, how)

    def pinned_array(self, nbytes: int) -> Call:
        return lambda: torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def device_memory(self, nbytes: int) -> Call:
        return lambda: torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    def to_device(self, host: Array) -> Call:
        return lambda: torch.from_numpy(host).to("cuda")

    def takes(self, lender: Any) -> Call:
        def call() -> Any:
            made = torch.from_dlpack(lender)
            return made.data_ptr(), made.shape, made.stride(), made.dtype

        return call

    def contiguous(self, shown: Array) -> Any:
        return torch.from_numpy(shown).contiguous()

    def assign(self, there: Any, view: Any) -> None:
        there.copy_(view)

    def pinned_each(self, host: Array, stream: Any, wait: bool) -> Work:
        """As `up`, with a new page-locked copy of `host` each time."""
        work = self.up(host, stream=stream, wait=wait)
        there, source = work.keep

        def run() -> None:
            with torch.cuda.stream(stream):
                there.copy_(source.pin_memory(), non_blocking=True)

        return replace(work, run=run, how="pin_memory each")

    def computing(self, seconds: float) -> Call:
        """Work for the device for so long, which a call issues."""
        left, right, out = (torch.rand(SIDE, SIDE, device="cuda") for _ in range(3))
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
