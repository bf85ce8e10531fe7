"""`await` for a Transfer or a Pinning, by polls from the running event loop: no thread of the
driver calls into Python."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Protocol

from cudriver.errors import CudaError

if TYPE_CHECKING:
    from cudriver._core import Transfer

#: Seconds between two looks: short at first, for small copies; then an eighth of the time so far.
LONGEST_PAUSE = 0.002


class _Work(Protocol):
    @property
    def done(self) -> bool: ...


async def _poll(work: _Work) -> None:
    import asyncio  # whoever awaits has imported it; pin_async() need not wait for that

    loop = asyncio.get_running_loop()
    begin = loop.time()
    while not work.done:
        await asyncio.sleep(min((loop.time() - begin) / 8, LONGEST_PAUSE))


def text(transfer: Transfer) -> str:
    try:
        state = "done" if transfer.done else "in flight"
    except CudaError as error:
        state = error.name
    return f"<Transfer of {transfer.nbytes} bytes, {state}>"


def wait(work: _Work) -> Generator[Any, None, None]:
    """The iterator behind ``__await__``."""
    return _poll(work).__await__()
