"""MPI, by mpi4py: rank 0 gathers the reports, judges them, and tells every rank the outcome."""

from __future__ import annotations

import sys
import time

from cudriver.fleet.engines import GRACE, TIMEOUT, engine, seconds
from cudriver.fleet.engines.answers import Answers, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cudriver.fleet.result import Fleet

REPORT, ANSWER = 27101, 27102  # tags; MPI promises 0 to 32767
NAP = 0.002  # seconds between two looks: a rank that waits leaves its core to those that check

_unsent: list[Any] = []  # MPI still reads their memory


def mpi(comm: Any = None, *, timeout: float = TIMEOUT) -> Fleet | None:
    """Compare the stacks of all ranks of an MPI program.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, optional
        The ranks; each of them calls this. The default is ``MPI.COMM_WORLD``.
    timeout : float, optional
        Seconds that rank 0 waits for the others. A rank that takes longer did not answer.

    Returns
    -------
    Fleet or None
        The comparison on rank 0, None on the others.

    Raises
    ------
    ImportError
        mpi4py is not installed: ``pip install 'cudriver[mpi]'``.
    TimeoutError
        Rank 0 did not answer.

    Notes
    -----
    Never initialises CUDA. Ranks that wait use no CPU time.

    Examples
    --------
    >>> fleet.mpi().status  # doctest: +SKIP
    'consistent'
    """
    comm = engine("mpi4py.MPI", "mpi").COMM_WORLD if comm is None else comm
    fleets: list[Fleet] = []

    def judge(answers: Answers) -> bytes:
        fleets.append(answers.fleet())
        return b""

    exchange(judge, comm, timeout=timeout)
    return fleets[0] if fleets else None


def running() -> bool:
    """Whether this process is one of several ranks, and MPI is up."""
    module = sys.modules.get("mpi4py.MPI")
    if module is None or not module.Is_initialized() or module.Is_finalized():
        return False
    return bool(module.COMM_WORLD.Get_size() > 1)


def exchange(
    judge: Callable[[Answers], bytes], comm: Any = None, *, timeout: float = TIMEOUT
) -> bytes:
    """Each rank gives its report and gets what `judge` says of all of them on rank 0."""
    comm = sys.modules["mpi4py.MPI"].COMM_WORLD if comm is None else comm
    limit = seconds(timeout)
    rank, size = comm.Get_rank(), comm.Get_size()
    packed = answer(rank=rank, ranks=size)
    if rank == 0:
        told = judge(_gather(comm, packed, limit))
        _tell(comm, told)
        return told
    sent = comm.isend(packed, 0, REPORT)
    end = time.monotonic() + limit + GRACE
    while not comm.iprobe(0, ANSWER):
        sent.test()  # moves the message on
        if time.monotonic() > end:
            raise TimeoutError(f"MPI rank 0 did not answer rank {rank} within {limit + GRACE:g} s")
        time.sleep(NAP)
    outcome: bytes = comm.recv(source=0, tag=ANSWER)
    return outcome


def _tell(comm: Any, told: bytes) -> None:
    """Send the answer to the others. One that hangs holds up nobody."""
    sent = [comm.isend(told, rank, ANSWER) for rank in range(1, comm.Get_size())]
    end = time.monotonic() + GRACE
    while sent and time.monotonic() < end:
        sent = [request for request in sent if not request.test()[0]]
        time.sleep(NAP if sent else 0)
    _unsent.extend(sent)


def _gather(comm: Any, own: bytes, limit: float) -> Answers:
    """The reports that arrive in time, by rank."""
    got = {0: own}
    end = time.monotonic() + limit
    status = sys.modules["mpi4py.MPI"].Status()
    while len(got) < comm.Get_size() and time.monotonic() < end:
        message = comm.improbe(tag=REPORT, status=status)
        if message is None:
            time.sleep(NAP)
        else:
            got[status.Get_source()] = message.recv()
    answers = Answers()
    for rank in range(comm.Get_size()):
        answers.add(f"rank {rank}", got.get(rank), f"no answer within {limit:g} s")
    return answers
