"""torch.distributed: the ranks exchange reports through the job's own key-value store.

Every process group has that store, whatever its backend: it needs no GPU and no connection between
ranks, so it tells which rank is missing where a collective could only time out.
"""

from __future__ import annotations

import sys
from datetime import timedelta

from cudriver.fleet.engines import GRACE, TIMEOUT, patience, seconds
from cudriver.fleet.engines.answers import Answers, answer, judged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


def running() -> bool:
    """Whether this process is in a process group."""
    module = sys.modules.get("torch.distributed")
    return module is not None and bool(module.is_available() and module.is_initialized())


def exchange(judge: Callable[[Answers], bytes], *, timeout: float = TIMEOUT) -> bytes:
    """Each rank gives its report and gets what `judge` says of all of them on rank 0.

    If rank 0 takes too long, a rank that waits answers for it. The first answer counts for all.
    """
    distributed = sys.modules["torch.distributed"]
    limit = seconds(timeout)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    store = distributed.distributed_c10d._get_default_store()
    call = store.add(f"cudriver/preflight/calls/{rank}", 1)  # the ranks' nth calls belong together
    prefix = f"cudriver/preflight/{call}"
    packed = answer(job=None, rank=rank, ranks=size)  # the group is the job
    if rank == 0:
        got = {0: packed, **_gather(store, prefix, range(1, size), limit)}
        answers = Answers()
        for number in range(size):
            answers.add(f"rank {number}", got.get(number), f"no answer within {limit:g} s")
        told = _agree(store, prefix, judged(judge, answers))
        # The store ends with this process: the others read it first.
        _wait(store, [f"{prefix}/read/{number}" for number in got if number], GRACE)
        return told
    store.set(f"{prefix}/{rank}", packed)
    late = ""
    if not _wait(store, [f"{prefix}/answer"], patience(limit)):
        late = f"rank 0 did not answer rank {rank} within {patience(limit):g} s"
    try:
        told = _agree(store, prefix, late.encode())
        store.set(f"{prefix}/read/{rank}", b"")
    except RuntimeError as error:  # DistNetworkError: the store has ended, and rank 0 with it
        raise TimeoutError(f"rank 0 ended before it answered rank {rank}") from error
    return told


def _agree(store: Any, prefix: str, told: bytes) -> bytes:
    """The answer that all ranks get: this one, if there is none yet."""
    # An empty value stands for "no answer yet", so every answer begins with "=".
    return bytes(store.compare_set(f"{prefix}/answer", "", f"={told.decode()}"))[1:]


def _gather(store: Any, prefix: str, ranks: Sequence[int], limit: float) -> dict[int, bytes]:
    """What these ranks have put into the store, as far as it comes in time."""
    keys = {rank: f"{prefix}/{rank}" for rank in ranks}
    if not _wait(store, [*keys.values()], limit):
        keys = {rank: key for rank, key in keys.items() if store.check([key])}
    return dict(zip(keys, map(bytes, store.multi_get([*keys.values()])), strict=True))


def _wait(store: Any, keys: list[str], limit: float) -> bool:
    """Until all these keys have values: False after so many seconds, or if the store has ended."""
    try:
        store.wait(keys, timedelta(seconds=limit))
    except RuntimeError:  # DistStoreError, DistNetworkError
        return False
    return True
