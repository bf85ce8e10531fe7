"""torch.distributed: the ranks exchange reports through the job's own key-value store.

Every process group has that store, whatever its backend: it needs no GPU and no connection between
ranks, so it tells which rank is missing where a collective could only time out.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta

from cudriver.fleet.engines import GRACE, TIMEOUT, seconds
from cudriver.fleet.engines.answers import Answers, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

LOOK = 0.1  # seconds for a rank's answer when the time is over: it may have come long before


def running() -> bool:
    """Whether this process is in a process group."""
    module = sys.modules.get("torch.distributed")
    return module is not None and bool(module.is_available() and module.is_initialized())


def exchange(judge: Callable[[Answers], bytes], *, timeout: float = TIMEOUT) -> bytes:
    """Each rank gives its report and gets what `judge` says of all of them on rank 0."""
    distributed = sys.modules["torch.distributed"]
    limit = seconds(timeout)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    store = distributed.distributed_c10d._get_default_store()
    call = store.add(f"cudriver/preflight/calls/{rank}", 1)  # the ranks' nth calls belong together
    prefix = f"cudriver/preflight/{call}"
    packed = answer(rank=rank, ranks=size)
    if rank == 0:
        got = {0: packed, **_gather(store, prefix, range(1, size), limit)}
        answers = Answers()
        for number in range(size):
            answers.add(f"rank {number}", got.get(number), f"no answer within {limit:g} s")
        told = judge(answers)
        store.set(f"{prefix}/answer", told)
        # The store ends with this process: the others read it first.
        _gather(store, f"{prefix}/read", [number for number in got if number], GRACE)
        return told
    store.set(f"{prefix}/{rank}", packed)
    outcome = _get(store, f"{prefix}/answer", limit + GRACE)
    if outcome is None:
        raise TimeoutError(f"rank 0 did not answer rank {rank} within {limit + GRACE:g} s")
    store.set(f"{prefix}/read/{rank}", b"")
    return outcome


def _gather(store: Any, prefix: str, ranks: Iterable[int], limit: float) -> dict[int, bytes]:
    """What these ranks have put into the store, as far as it comes in time."""
    end = time.monotonic() + limit
    got = {
        rank: _get(store, f"{prefix}/{rank}", max(end - time.monotonic(), LOOK)) for rank in ranks
    }
    return {rank: packed for rank, packed in got.items() if packed is not None}


def _get(store: Any, key: str, limit: float) -> bytes | None:
    """A key's value as soon as it has one; None after so many seconds, or if the store is gone."""
    try:
        store.wait([key], timedelta(seconds=limit))
    except RuntimeError:  # DistStoreError, DistNetworkError
        return None
    return bytes(store.get(key))
