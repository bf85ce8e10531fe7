"""Dask: a LocalCluster with eight worker processes, half of them in another environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from enginekit import FITS, OTHER

from cudriver import fleet
from cudriver.fleet.engines import dask as engine

distributed = pytest.importorskip("distributed", reason="Dask is not installed")

START = 120  # seconds that workers have to come up


class Cluster:
    """A cluster of workers, each process in the environment that a test names."""

    def __init__(self, client: Any, address: str) -> None:
        self.client = client
        self.address = address
        self.started: list[subprocess.Popen[bytes]] = []

    def worker(self, python: Path | str, *options: str, **variables: str) -> None:
        """Starts a worker process; `wait` is for it."""
        command = [str(python), "-m", "distributed.cli.dask_worker", self.address]
        command += ["--no-nanny", "--no-dashboard", "--nthreads=1", *options]
        quiet = subprocess.DEVNULL
        env = {**os.environ, **variables}
        self.started.append(subprocess.Popen(command, env=env, stdout=quiet, stderr=quiet))

    def wait(self, count: int) -> None:
        self.client.wait_for_workers(count, timeout=START)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=None) as local,
        distributed.Client(local) as client,
    ):
        made = Cluster(client, local.scheduler_address)
        try:
            yield made
        finally:
            for process in made.started:
                process.kill()
                process.wait()


def test_eight_workers_in_two_environments(cluster, pythons, monkeypatch):
    for number in range(8):
        cluster.worker(pythons[number % 2])
    cluster.wait(8)
    monkeypatch.setenv("NCCL_ALGO", "Ring")  # the client's alone, whatever it has installed
    told = fleet.dask(cluster.client)
    wrong = next(f for f in told.findings if f.rule == "FL401")
    shares = {share.value: share.count for share in wrong.evidence}
    assert (wrong.severity, shares) == ("error", {FITS: 4, OTHER: 4})
    assert sorted(group.count for group in told.groups) == [1, 4, 4]
    client = next(group for group in told.groups if group.count == 1)
    assert ("$NCCL_ALGO", "Ring") in [(c.component, c.value) for c in client.differs]
    with pytest.raises(fleet.PreflightError, match="FL401"):
        fleet.preflight()


def test_workers_that_fit_pass_whatever_the_client_is(cluster, pythons, monkeypatch):
    for _ in range(2):
        cluster.worker(pythons[0])
    cluster.wait(2)
    update = cluster.client._update_scheduler_info

    async def race(**options: Any) -> None:
        """The client's periodic update, which asks for no workers, comes right behind."""
        await update(**options)
        await update()

    monkeypatch.setattr(cluster.client, "_update_scheduler_info", race)
    told = fleet.dask(cluster.client)
    assert "error" not in {finding.severity for finding in told.findings}
    assert fleet.preflight() is None
    # The same from within a task, on a worker whose only thread runs it.
    assert cluster.client.submit(eval, "__import__('cudriver').fleet.preflight()").result() is None


def without_cudriver(folder: Path, like: Path) -> Path:
    """The Python of an environment that has all of another's, but cudriver."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (folder / "hide.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'cudriver':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    site = next(folder.glob("lib/python*/site-packages"))
    ours = next((like.parents[1] / "lib").rglob("ours.pth"))
    (site / "ours.pth").write_text(ours.read_text())
    (site / "hide.pth").write_text(f"import sys; sys.path.append({str(folder)!r}); import hide\n")
    return folder / "bin" / "python"


def test_workers_that_cannot_answer_are_told_each_with_its_reason(cluster, pythons, tmp_path):
    kill = tmp_path / "kill.py"
    kill.write_text(
        "import os, signal\n"
        "from cudriver import stack\n"
        "stack.inspect = lambda **options: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    cluster.worker(pythons[0])
    cluster.worker(without_cudriver(tmp_path / "bare", pythons[0]), "--name=bare")
    cluster.worker(pythons[0], "--name=killed", "--preload", str(kill))
    cluster.worker(pythons[0], "--name=hangs")
    cluster.wait(4)
    os.kill(cluster.started[3].pid, signal.SIGSTOP)
    told = fleet.dask(cluster.client, timeout=40).to_dict()
    (silent,) = (finding for finding in told["findings"] if finding["rule"] == "FL604")
    assert {share["value"] for share in silent["evidence"]} == {
        "cudriver is not installed there",
        "the worker ended",
        "no answer within 40 s",
    }
    assert told["counts"]["reports"] == 2  # the client's and the first worker's


def test_a_cluster_without_workers_is_refused(cluster):
    with pytest.raises(ValueError, match="has no worker"):
        fleet.dask(cluster.client)


def test_a_worker_that_ends_with_its_answer_is_told_and_the_others_are_compared(
    cluster, pythons, monkeypatch
):
    for _ in range(2):
        cluster.worker(pythons[0])
    cluster.wait(2)
    wait = engine._wait

    def kill(client: Any, tasks: dict[str, Any], limit: float) -> dict[str, str]:
        silent = wait(client, tasks, limit)
        cluster.started[0].kill()
        while len(client.nthreads()) > 1:
            time.sleep(0.05)
        return silent

    monkeypatch.setattr(engine, "_wait", kill)
    told = fleet.dask(cluster.client).to_dict()
    (silent,) = (finding for finding in told["findings"] if finding["rule"] == "FL604")
    assert [share["value"] for share in silent["evidence"]] == ["the worker ended"]
    assert told["counts"]["reports"] == 2  # the client's and the other worker's


def test_a_client_that_is_not_the_default_one_and_ranks_of_a_launcher(
    cluster, pythons, monkeypatch
):
    """As dask-mpi starts workers: ranks 0 and 1 are the scheduler and the client."""
    ranks = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}
    cluster.worker(pythons[0], **ranks)
    cluster.wait(1)
    cluster.client.close()
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    with distributed.Client(cluster.address, set_as_default=False) as client:
        told = fleet.dask(client)
    assert (told.counts["reports"], told.missing) == (2, "")


def test_a_busy_worker_is_named_whatever_class_dask_s_time_outs_are_of(
    cluster, pythons, monkeypatch
):
    class Late(Exception):
        """As asyncio's before Python 3.11."""

    def wait(*args: Any, **options: Any) -> Any:
        try:
            return real(*args, **options)
        except TimeoutError:
            raise Late from None

    real = distributed.wait
    cluster.worker(pythons[0])
    cluster.wait(1)
    busy = cluster.client.submit(time.sleep, 30)
    monkeypatch.setattr(distributed, "wait", wait)
    monkeypatch.setattr(distributed, "TimeoutError", Late)
    told = fleet.dask(cluster.client, timeout=0.5).to_dict()
    (silent,) = (finding for finding in told["findings"] if finding["rule"] == "FL604")
    assert [share["value"] for share in silent["evidence"]] == ["no answer within 0.5 s"]
    busy.cancel()
