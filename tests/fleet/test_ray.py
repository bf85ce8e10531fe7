"""Ray: three nodes on one host, one with other variables, and a runtime environment."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from enginekit import FITS

from cudriver import fleet

ray = pytest.importorskip("ray", reason="Ray is not installed")

STORE = 80_000_000  # bytes of a node's object store: the least that Ray takes


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        node = {"num_cpus": 1, "object_store_memory": STORE}
        made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        try:
            made.add_node(**node)
            others = {"LD_LIBRARY_PATH": "/opt/other/lib"}
            others.update(OMPI_COMM_WORLD_RANK="2", OMPI_COMM_WORLD_SIZE="4")  # its launcher's
            made.last = made.add_node(**node, env_vars=others)
            ray.init(address=made.address, log_to_driver=False)
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


def test_a_node_with_another_variable_is_told(cluster):
    told = fleet.ray()
    assert told.missing == ""
    assert sorted(group.count for group in told.groups) == [1, 2]
    searched = next(finding for finding in told.findings if finding.rule == "FL501")
    assert {share.value: share.count for share in searched.evidence} == {
        "not set": 2,
        "/opt/other/lib": 1,
    }
    assert fleet.preflight() is None  # a warning stops no job


def test_a_runtime_environment_is_looked_into(cluster, pythons):
    told = fleet.ray(runtime_env={"py_executable": str(pythons[0])})
    assert told.counts["reports"] == 3
    assert {group.stack.get("jax") for group in told.groups} == {f"{FITS} (without CUDA)"}


def test_a_node_that_never_answers_is_named_in_time(cluster):
    """Last: Ray takes a node that it does not hear of for dead."""
    stopped = [process.process.pid for process in cluster.last.all_processes["raylet"]]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        told = fleet.ray(timeout=40)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert told.counts["reports"] == 2
    assert "no answer within 40 s" in json.dumps(told.to_dict()["findings"])


def test_without_a_cluster_the_error_says_what_to_call(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ValueError, match=r"ray\.init\(\) first"):
        fleet.ray()
