"""Ray: a task on each node tells the report of the worker process that runs it."""

from __future__ import annotations

import sys

from cudriver.fleet.engines import TIMEOUT, engine, seconds
from cudriver.fleet.engines.answers import Answers, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cudriver.fleet.report import Fleet


def ray(*, runtime_env: Mapping[str, Any] | None = None, timeout: float = TIMEOUT) -> Fleet:
    """Compare the stacks of all nodes of the Ray cluster that this program is connected to.

    Parameters
    ----------
    runtime_env : mapping, optional
        A runtime environment to look into, as Ray takes it: ``{"py_executable": ...}``,
        ``{"pip": [...]}``. The default is the program's own, that of ``ray.init``.
    timeout : float, optional
        Seconds that all nodes have, with the making of the runtime environment. One that takes
        longer did not answer.

    Returns
    -------
    Fleet
        The comparison: a report a node.

    Raises
    ------
    ImportError
        Ray is not installed: ``pip install ray``.
    ValueError
        The program is not connected to a cluster: call ``ray.init`` first.

    Notes
    -----
    The tasks ask for no CPU and no GPU, so that they run on a busy cluster too. Never initialises
    CUDA.

    Examples
    --------
    >>> fleet.ray().status  # doctest: +SKIP
    'consistent'
    """
    if not engine("ray", "ray").is_initialized():
        raise ValueError("this program is connected to no Ray cluster: call ray.init() first")
    return gather(runtime_env=runtime_env, timeout=timeout).fleet()


def running() -> bool:
    """Whether this process is connected to a Ray cluster."""
    module = sys.modules.get("ray")
    return module is not None and bool(module.is_initialized())


def gather(*, runtime_env: Mapping[str, Any] | None = None, timeout: float = TIMEOUT) -> Answers:
    """The nodes' answers."""
    module, limit = sys.modules["ray"], seconds(timeout)
    job = module.get_runtime_context().get_job_id()
    tasks = {
        _name(found): _task(module, found["NodeID"], job, runtime_env)
        for found in module.nodes()
        if found["Alive"]
    }
    done, _ = module.wait(list(tasks.values()), num_returns=len(tasks), timeout=limit)
    answers = Answers()
    for name, task in tasks.items():
        packed, why = None, f"no answer within {limit:g} s"
        if task in done:
            try:
                packed = module.get(task)
            except Exception as error:  # of any package: what was raised there, or by Ray
                why = _failure(error)
        else:
            module.cancel(task, force=True)
        answers.add(name, packed, why)
    return answers


def _task(module: Any, node: str, job: str, runtime_env: Mapping[str, Any] | None) -> Any:
    """A task that this node runs, or none."""
    from ray.util.scheduling_strategies import (  # type: ignore[import-not-found,unused-ignore]
        NodeAffinitySchedulingStrategy,
    )

    where = NodeAffinitySchedulingStrategy(node, soft=False)
    options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": where}
    if runtime_env is not None:
        options["runtime_env"] = dict(runtime_env)
    known = {"job": job, "rank": None, "ranks": None, "worker": f"node {node[:8]}"}
    return module.remote(answer).options(**options).remote(**known)


def _name(found: Mapping[str, Any]) -> str:
    return f"{found['NodeManagerHostname']} ({found['NodeID'][:8]})"


def _failure(error: Exception) -> str:
    """What happened, in a line: Ray's own texts have pages."""
    if "No module named 'cudriver'" in str(error):
        return "cudriver is not installed there"
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"
