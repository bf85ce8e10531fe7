"""MPI, by mpi4py: rank 0 gathers the reports, judges them, and tells every rank the outcome."""

from __future__ import annotations

import sys
import time

from cudriver.fleet.engines import GRACE, TIMEOUT, engine, patience, seconds
from cudriver.fleet.engines.answers import Answers, answer, failed, judged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cudriver.fleet.report import Fleet

TAG, CALLS = 27100, 2000  # the first tag, and how many calls have their own; MPI promises 32767
NAP = 0.002  # seconds between two looks: a rank that waits leaves its core to those that check

_unsent: list[Any] = []  # MPI still reads their memory
_key: list[int] = []  # of the attribute that counts a communicator's calls


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
        mpi4py is not installed: ``pip install mpi4py``.
    RuntimeError
        The comparison failed, on all ranks.
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

    told = exchange(judge, comm, timeout=timeout)
    if told:
        raise RuntimeError(told.decode())
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
    report, reply = _tags(comm)
    packed = answer(job=None, rank=rank, ranks=size)  # the communicator is the job
    if rank == 0:
        told = judged(judge, _gather(comm, report, packed, limit))
        _tell(comm, reply, told)
        return told
    _keep([comm.isend(packed, 0, report)])
    end = time.monotonic() + patience(limit)
    while not comm.iprobe(0, reply):
        _keep([])  # moves it on
        if time.monotonic() > end:
            late = f"rank 0 did not answer rank {rank} within {patience(limit):g} s"
            _keep([comm.isend(failed(late), 0, report)])  # so that rank 0 raises, too
            raise TimeoutError(late)
        time.sleep(NAP)
    outcome: bytes = comm.recv(source=0, tag=reply)
    return outcome


def _tags(comm: Any) -> tuple[int, int]:
    """Tags for reports and answers: the ranks' nth calls on a communicator belong together, and
    what comes late belongs to no other call.
    """
    if not _key:
        _key.append(comm.Create_keyval())
    call = comm.Get_attr(_key[0]) or 0
    comm.Set_attr(_key[0], (call + 1) % CALLS)
    return TAG + 2 * call, TAG + 2 * call + 1


def _keep(requests: list[Any]) -> None:
    """Keep what is not sent yet, until it is."""
    _unsent[:] = [request for request in [*_unsent, *requests] if not request.test()[0]]


def _tell(comm: Any, reply: int, told: bytes) -> None:
    """Send the answer to the others. One that hangs holds up nobody."""
    sent = [comm.isend(told, rank, reply) for rank in range(1, comm.Get_size())]
    end = time.monotonic() + GRACE
    while sent and time.monotonic() < end:
        sent = [request for request in sent if not request.test()[0]]
        time.sleep(NAP if sent else 0)
    _keep(sent)


def _gather(comm: Any, report: int, own: bytes, limit: float) -> Answers:
    """The reports that arrive in time, by rank; of a rank that has given up it is the second."""
    got = {0: own}
    end = time.monotonic() + limit
    status = sys.modules["mpi4py.MPI"].Status()
    while True:
        message = comm.improbe(tag=report, status=status)
        if message is not None:
            got[status.Get_source()] = message.recv()
        elif len(got) == comm.Get_size() or time.monotonic() > end:
            break
        else:
            time.sleep(NAP)
    answers = Answers()
    for rank in range(comm.Get_size()):
        answers.add(f"rank {rank}", got.get(rank), f"no answer within {limit:g} s")
    return answers
