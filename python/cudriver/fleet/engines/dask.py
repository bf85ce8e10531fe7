"""Dask: a task on each worker process tells that process's report."""

from __future__ import annotations

import sys
import time

from cudriver.fleet.engines import TIMEOUT, engine, seconds
from cudriver.fleet.engines.answers import Answers, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cudriver.fleet.report import Fleet

LOOK = 1.0  # seconds between two looks for workers that have ended
FETCH = 10.0  # seconds that all results have to arrive, once every task is done
ENDED = "the worker ended"
FIRST = 1000  # priority: before the tasks that wait
# As text: a worker that cannot import the function of a task ends, and bytecode is one Python's.
ASK = "__import__('cudriver.fleet.engines.answers', fromlist=['answer']).answer(**identifiers)"


def dask(client: Any = None, *, timeout: float = TIMEOUT) -> Fleet:
    """Compare the stacks of all worker processes of a Dask cluster, and the client's with them.

    Parameters
    ----------
    client : distributed.Client, optional
        The cluster's client. The default is the program's current one.
    timeout : float, optional
        Seconds that all workers have. One that takes longer did not answer.

    Returns
    -------
    Fleet
        The comparison: a report a worker process, and the client's.

    Raises
    ------
    ImportError
        Dask is not installed: ``pip install distributed``.
    ValueError
        There is no client, the client is asynchronous, or no worker is connected.

    Notes
    -----
    A worker answers when one of its threads is free. Never initialises CUDA.

    Examples
    --------
    >>> fleet.dask(client).status  # doctest: +SKIP
    'consistent'
    """
    engine("distributed", "dask")
    answers = gather(client, timeout=timeout)
    # In a job of its own: what must be equal among the workers may differ here.
    answers.add("client", answer(job="client", rank=None, ranks=None, worker="client"))
    return answers.fleet()


def running() -> bool:
    """Whether this process is a Dask program with a client, or runs a task."""
    module = sys.modules.get("distributed")
    if module is None:
        return False
    try:
        module.default_client()
    except ValueError:
        return _in_task(module)
    return True


def gather(client: Any = None, *, timeout: float = TIMEOUT) -> Answers:
    """The workers' answers."""
    distributed = sys.modules["distributed"]
    if client is not None:
        return _ask(client, seconds(timeout))
    if _in_task(distributed):  # its thread is free for others meanwhile
        with distributed.worker_client() as client:
            return _ask(client, seconds(timeout))
    return _ask(distributed.default_client(), seconds(timeout))


def _in_task(distributed: Any) -> bool:
    try:
        distributed.get_worker()
    except ValueError:
        return False
    return True


def _ask(client: Any, limit: float) -> Answers:
    if client.asynchronous:
        raise ValueError(f"{client!r} is asynchronous: give a client made with asynchronous=False")
    workers = _workers(client)
    if not workers:
        raise ValueError(f"{client!r} has no worker: wait for one, client.wait_for_workers(1)")
    # A rank is the launcher's, as under dask-mpi, where some ranks are not workers.
    known = {"job": client.scheduler.address, "rank": None, "ranks": None}
    tasks = {
        address: client.submit(
            eval,
            ASK,
            {"identifiers": {**known, "worker": address}},
            workers=[address],
            allow_other_workers=False,
            pure=False,
            priority=FIRST,
        )
        for address in workers
    }
    silent = _wait(client, tasks, limit)
    packed, failed = {}, {}
    end = time.monotonic() + FETCH
    for address in tasks.keys() - silent.keys():
        try:
            packed[address] = tasks[address].result(timeout=max(end - time.monotonic(), LOOK))
        except Exception as error:  # of any package: what was raised there, or by Dask
            failed[address] = _failure(error)
    if failed:  # with a worker that has ended its result is gone
        failed.update((address, ENDED) for address in failed.keys() - _workers(client))
    silent.update(failed)
    answers = Answers()
    for address in tasks:
        answers.add(address, packed.get(address), silent.get(address, ""))
    client.cancel([tasks[address] for address in silent])
    return answers


def _workers(client: Any) -> set[str]:
    """The addresses of all workers, by the scheduler. Not by `client.scheduler_info()`: that
    returns what the client keeps, which its periodic update, without workers, may have replaced.
    """
    return {*client.nthreads()}


def _wait(client: Any, tasks: dict[str, Any], limit: float) -> dict[str, str]:
    """Until every task is done. The workers whose task is not, and why."""
    distributed, end = sys.modules["distributed"], time.monotonic() + limit
    silent: dict[str, str] = {}
    waiting = dict(tasks)
    while waiting and time.monotonic() < end:
        try:
            with client.as_current():
                distributed.wait(list(waiting.values()), timeout=min(LOOK, limit))
        except (TimeoutError, distributed.TimeoutError):  # another class before Python 3.11
            silent.update((each, ENDED) for each in {*waiting} - _workers(client))
        waiting = {a: t for a, t in waiting.items() if not t.done() and a not in silent}
    silent.update((address, f"no answer within {limit:g} s") for address in waiting)
    return silent


def _failure(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("cudriver"):
        return "cudriver is not installed there"
    return f"{type(error).__name__}: {error}"
