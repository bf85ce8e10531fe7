"""``await transfer``: polls from the running event loop: no driver thread calls into Python."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cudriver._core import Transfer

#: Seconds between two looks: short at first, for small copies; then an eighth of the time so far.
LONGEST_PAUSE = 0.002


async def _poll(transfer: Transfer) -> None:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    while not transfer.done:
        await asyncio.sleep(min((loop.time() - begin) / 8, LONGEST_PAUSE))


def wait(transfer: Transfer) -> Generator[Any, None, None]:
    """The iterator behind ``Transfer.__await__``."""
    return _poll(transfer).__await__()
