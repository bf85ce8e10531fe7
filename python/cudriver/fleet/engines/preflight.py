"""A job's preflight: every rank's stack compared before the work starts."""

from __future__ import annotations

import os

from cudriver.fleet.engines import TIMEOUT, dask, mpi, ray, seconds, torch
from cudriver.fleet.engines.answers import Answers, answer

# By the launchers' variables there are so many processes.
COUNTS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


class PreflightError(RuntimeError):
    """The stacks of a job's processes do not fit together, or one of them did not answer."""


def preflight(*, timeout: float = TIMEOUT) -> None:
    """Raise on all ranks, with the same message, when their CUDA stacks do not fit together.

    The ranks are those of ``torch.distributed`` if a process group is up, else those of MPI if
    ``mpi4py.MPI`` is imported, else the workers of the program's Dask client, else the nodes of the
    Ray cluster that it is connected to, else this process alone. Every rank of a process group or
    of MPI calls this; in a Dask or Ray program the driver program does.

    Parameters
    ----------
    timeout : float, optional
        Seconds to wait for the others. A rank that takes longer did not answer.

    Raises
    ------
    PreflightError
        The stacks do not fit together, one has an error of its own, or a rank did not answer.
    RuntimeError
        The process is one of several by the launcher's variables, but no group is up yet.
    TimeoutError
        Rank 0 of MPI did not answer, or the process group's store has ended.

    Notes
    -----
    Neither loads nor initialises CUDA in this process. Where the check cannot tell, the work goes
    on.

    Examples
    --------
    >>> fleet.preflight()  # alone: nothing to compare with
    """
    limit = seconds(timeout)
    if torch.running():
        told = torch.exchange(judge, timeout=limit)
    elif mpi.running():
        told = mpi.exchange(judge, timeout=limit)
    elif dask.running():
        told = judge(dask.gather(timeout=limit))
    elif ray.running():
        told = judge(ray.gather(timeout=limit))
    else:
        _refuse_without_group()
        alone = Answers()
        alone.add("this process", answer(), "")
        told = judge(alone)
    if told:
        raise PreflightError(told.decode())


def judge(answers: Answers) -> bytes:
    """What is wrong with the answers; nothing if they fit."""
    from cudriver.stack.facts import ERROR
    from cudriver.stack.text import clean

    lines = []
    for finding in answers.fleet().findings:
        if finding.severity == ERROR:
            shares = (f"{share.value}: {share.nodes}" for share in finding.evidence)
            lines += [f"{finding.rule}  {finding.title}", *(f"    {share}" for share in shares)]
            lines += [f"    fix: {fix}" for fix in finding.fix]
    lines += [f"{name}: {why}" for name, why in answers.silent.items()]
    if not lines:
        return b""
    count = len(answers.reports) + len(answers.silent)
    lines.insert(0, f"the CUDA stacks of {count} processes do not fit together, or are not known:")
    return "\n".join(map(clean, lines)).encode("utf-8", "backslashreplace")


def _refuse_without_group() -> None:
    for name in COUNTS:
        count = os.environ.get(name, "1")
        if count != "1":
            raise RuntimeError(
                f"this process is one of {count} ({name}), but no group of them is up: call "
                "preflight() after torch.distributed.init_process_group() or "
                "from mpi4py import MPI"
            )
