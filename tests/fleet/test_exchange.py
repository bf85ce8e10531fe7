"""What the ranks of a process group tell each other: each a thread, with a client of the store."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from made import report

from cudriver.fleet.engines import answers
from cudriver.fleet.engines import torch as engine
from cudriver.fleet.engines.preflight import judge
from cudriver.fleet.node import node

distributed = pytest.importorskip("torch.distributed", reason="PyTorch is not installed")


class Group:
    """A process group of `size`, of which those ranks call that a test starts."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.here = threading.local()
        self.server = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.pool = ThreadPoolExecutor()

    def start(self, rank: int, timeout: float, judge: Any = judge) -> Future[bytes]:
        """The rank calls; its answer is the result."""
        return self.pool.submit(self._call, rank, timeout, judge)

    def _call(self, rank: int, timeout: float, judge: Any) -> bytes:
        self.here.rank = rank
        store = distributed.TCPStore(
            "127.0.0.1", self.server.port, is_master=False, wait_for_workers=False
        )
        self.here.store = distributed.PrefixStore("default_pg", store)
        return engine.exchange(judge, timeout=timeout)

    def module(self) -> SimpleNamespace:
        """It stands in for torch.distributed, where a process has one rank."""
        return SimpleNamespace(
            get_rank=lambda: self.here.rank,
            get_world_size=lambda: self.size,
            distributed_c10d=SimpleNamespace(_get_default_store=lambda: self.here.store),
        )


@pytest.fixture
def group(monkeypatch):
    """Makes a group; each rank's report is another host's, in a Slurm job of its own."""

    def told(**identifiers: Any) -> dict[str, Any]:
        rank = identifiers["rank"]
        about = node({"SLURM_JOB_ID": str(100 + rank)}, **identifiers)
        return {**report(), "node": {**about, "host": f"d{rank}"}}

    def make(size: int) -> Group:
        made = Group(size)
        monkeypatch.setitem(engine.sys.modules, "torch.distributed", made.module())
        pools.append(made.pool)
        return made

    pools: list[ThreadPoolExecutor] = []
    monkeypatch.setattr(answers, "report", told)
    yield make
    for pool in pools:
        pool.shutdown()


def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ranks wait beyond their time limits is little."""
    monkeypatch.setattr("cudriver.fleet.engines.GRACE", 0.2)
    monkeypatch.setattr(engine, "GRACE", 0.2)


def test_the_ranks_of_a_group_are_one_job_whatever_their_jobs_are(group, monkeypatch):
    fits = answers.report

    def differs(**identifiers: Any) -> dict[str, Any]:
        told = fits(**identifiers)
        told["frameworks"][0]["version"] = f"2.{identifiers['rank']}.0"
        return told

    monkeypatch.setattr(answers, "report", differs)
    made = group(2)
    said = [call.result() for call in [made.start(rank, 60) for rank in range(2)]]
    assert said[0] == said[1]
    assert b"2.1.0: d1" in said[0]


def test_where_rank_0_comes_after_the_others_time_all_are_told_so(group, monkeypatch):
    short(monkeypatch)
    made = group(2)
    said = made.start(1, 0.2).result()
    assert said == b"rank 0 did not answer rank 1 within 0.6 s"
    assert made.start(0, 60).result() == said


def test_ranks_with_other_limits_are_told_the_same(group, monkeypatch):
    short(monkeypatch)
    made = group(4)  # the last never comes
    calls = [made.start(rank, limit) for rank, limit in ((0, 3), (1, 0.2), (2, 60))]
    assert {call.result() for call in calls} == {b"rank 0 did not answer rank 1 within 0.6 s"}


def test_that_many_are_missing_takes_no_time_of_its_own(group):
    """A tenth of a second for each would be longer than rank 1 waits."""
    made = group(300)
    said = [call.result() for call in [made.start(rank, 0.5) for rank in (0, 1)]]
    assert said[0] == said[1]
    assert said[0].splitlines()[-1] == b"rank 299: no answer within 0.5 s"


def test_what_fails_on_rank_0_is_told_to_all(group):
    made = group(2)
    said = [made.start(rank, 60, lambda answers: 1 / 0).result for rank in range(2)]
    assert {each() for each in said} == {
        b"the comparison failed: ZeroDivisionError: division by zero"
    }


def test_ranks_whose_store_has_ended_raise(group):
    made = group(2)
    call = made.start(1, 60)
    made.server.wait(["default_pg/cudriver/preflight/1/1"])
    del made.server
    with pytest.raises(TimeoutError, match="rank 0 ended before it answered rank 1"):
        call.result()
