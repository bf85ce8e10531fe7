"""The program ``mpirun -n 64 python -m cudriver.fleet.mpi``: all ranks' stacks compared.

It prints on rank 0 what ``cudriver fleet`` would, and ends with its status. From Python, call
`cudriver.fleet.mpi()`.
"""

from __future__ import annotations

import sys

from cudriver.fleet.engines import TIMEOUT, engine
from cudriver.fleet.engines.mpi import mpi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the ranks. Returns the status, which is rank 0's; the others' is 0."""
    from argparse import ArgumentParser

    parser = ArgumentParser(
        prog="python -m cudriver.fleet.mpi",
        description="Compare the CUDA stacks of all ranks of this MPI program.",
    )
    parser.add_argument("--json", action="store_true", help="the comparison as JSON")
    parser.add_argument(
        *("--timeout",),
        type=float,
        default=TIMEOUT,
        metavar="SECONDS",
        help=f"how long to wait for the slowest rank (default: {TIMEOUT:g})",
    )
    arguments = parser.parse_args(argv)
    comm = engine("mpi4py.MPI", "mpi").COMM_WORLD
    fleet = mpi(comm, timeout=arguments.timeout)
    if fleet is None:
        return 0
    text = fleet.to_json() if arguments.json else str(fleet)
    encoding = sys.stdout.encoding or "ascii"  # what it lacks is escaped
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    if fleet.counts["broken"]:
        comm.Abort(fleet.exit_code)  # MPI's end waits for every rank, also for one that hangs
    return fleet.exit_code


if __name__ == "__main__":
    sys.exit(main())
