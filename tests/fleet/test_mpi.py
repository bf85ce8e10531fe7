"""Open MPI with eight ranks: reports gathered to rank 0, and a preflight on all of them."""

from __future__ import annotations

import json

import pytest
from enginekit import OTHER, need_programs, run

need_programs("mpirun")
pytest.importorskip("mpi4py", reason="mpi4py is not installed")

PROGRAM = ("-m", "cudriver.fleet.mpi", "--json")
HANGS = "import time; from mpi4py import MPI; time.sleep(300)"
PREFLIGHT = """
import os
from mpi4py import MPI
from cudriver import fleet
os.environ["SLURM_JOB_ID"] = str(MPI.COMM_WORLD.rank)  # not the job that counts
try:
    fleet.preflight(timeout=60)
    said = None
except fleet.PreflightError as error:
    said = str(error)
all = MPI.COMM_WORLD.gather(said)
if MPI.COMM_WORLD.rank == 0:
    import json
    print(json.dumps(all))
"""
LATE = """
import json
from mpi4py import MPI
from cudriver import fleet
from cudriver.fleet import engines
comm, engines.GRACE = MPI.COMM_WORLD, 0.2
if comm.rank != 1:
    comm.recv(source=1, tag=1)  # the others come when rank 1 has given up
try:
    fleet.preflight(timeout=0.2 if comm.rank == 1 else 60)
    said = None
except (fleet.PreflightError, TimeoutError) as error:
    said = str(error)
if comm.rank == 1:
    comm.send(None, 0, tag=1)
    comm.send(None, 2, tag=1)
all = comm.gather(said)
if comm.rank == 0:
    print(json.dumps(all))
"""
TWICE = """
import json
from mpi4py import MPI
from cudriver import fleet, stack

def told(timeout):
    try:
        return fleet.preflight(timeout=timeout)
    except fleet.PreflightError as error:
        return str(error)

comm, inspect = MPI.COMM_WORLD, stack.inspect
if comm.rank == 0:
    said = [told(0.2)]
    comm.send(None, 1, tag=1)
else:
    comm.recv(source=0, tag=1)
    stack.inspect = lambda **options: 1 / 0
    said = [told(60)]
    stack.inspect = inspect
said.append(told(60))
all = comm.gather(said)
if comm.rank == 0:
    print(json.dumps(all))
"""
FAILS = """
import json
from mpi4py import MPI
from cudriver import fleet
from cudriver.fleet import comparing
comparing.compare = lambda reports: 1 / 0
said = []
for call, expected in ((fleet.preflight, fleet.PreflightError), (fleet.mpi, RuntimeError)):
    try:
        call(timeout=60)
    except expected as error:
        said.append(str(error))
all = MPI.COMM_WORLD.gather(said)
if MPI.COMM_WORLD.rank == 0:
    print(json.dumps(all))
"""
DIES = """
import os, signal
from mpi4py import MPI
from cudriver import fleet, stack
if MPI.COMM_WORLD.rank == 1:
    stack.inspect = lambda **options: os.kill(os.getpid(), signal.SIGKILL)
fleet.preflight(timeout=60)
"""


def test_eight_ranks_in_one_environment_agree(pythons):
    done = run(["mpirun", "-n", 8, pythons[0], *PROGRAM])
    told = json.loads(done.stdout)
    assert (told["counts"]["reports"], len(told["groups"]), told["missing"]) == (8, 1, "")
    assert "error" not in {finding["severity"] for finding in told["findings"]}
    assert done.returncode == {"consistent": 0, "unknown": 3}[told["status"]]


def test_ranks_in_another_environment_are_told(pythons):
    fits, other = pythons
    done = run(["mpirun", "-n", 6, fits, *PROGRAM, ":", "-n", 2, other, *PROGRAM])
    told = json.loads(done.stdout)
    assert [group["count"] for group in told["groups"]] == [6, 2]
    wrong = next(f for f in told["findings"] if f["severity"] == "error")
    assert wrong["rule"] == "FL401"
    assert [share["count"] for share in wrong["evidence"] if share["value"] == OTHER] == [2]
    assert done.returncode == 1


def test_a_rank_that_never_answers_is_named_in_time(pythons):
    command = ["mpirun", "-n", 2, pythons[0], *PROGRAM, "--timeout", 30]
    done = run([*command, ":", "-n", 1, pythons[0], "-c", HANGS], timeout=200)
    told, _ = json.JSONDecoder().raw_decode(done.stdout)
    assert told["missing"] == "rank 2"
    assert "no answer within 30 s" in json.dumps(told["findings"])
    assert done.returncode == 3


def test_a_preflight_raises_the_same_on_all_ranks(pythons):
    fits, other = pythons
    done = run(["mpirun", "-n", 3, fits, "-c", PREFLIGHT, ":", "-n", 1, other, "-c", PREFLIGHT])
    said = json.loads(done.stdout)
    assert len(said) == 4
    assert len(set(said)) == 1
    assert "FL401" in said[0]
    assert OTHER in said[0]


def test_a_preflight_passes_where_all_fits(pythons):
    assert json.loads(run(["mpirun", "-n", 2, pythons[0], "-c", PREFLIGHT]).stdout) == [None] * 2


def test_a_rank_that_is_killed_while_checking_ends_the_job(pythons):
    done = run(["mpirun", "-n", 3, pythons[0], "-c", DIES], timeout=100)
    assert done.returncode != 0
    assert "rank 1" in done.stderr


def test_where_rank_0_comes_late_all_raise(pythons):
    said = json.loads(run(["mpirun", "-n", 3, pythons[0], "-c", LATE]).stdout)
    assert said[1] == "rank 0 did not answer rank 1 within 0.6 s"
    assert said[0] == said[2]
    assert said[0].splitlines()[-1] == f"rank 1: {said[1]}"


def test_a_late_report_is_none_of_the_next_call(pythons):
    said = json.loads(run(["mpirun", "-n", 2, pythons[0], "-c", TWICE]).stdout)
    assert "rank 1: no answer within 0.2 s" in said[0][0]
    assert said[1][0] == said[0][0]
    assert [each[1] for each in said] == [None, None]


def test_what_fails_on_rank_0_raises_on_all(pythons):
    said = json.loads(run(["mpirun", "-n", 2, pythons[0], "-c", FAILS]).stdout)
    assert said == [["the comparison failed: ZeroDivisionError: division by zero"] * 2] * 2


def test_what_the_output_cannot_encode_is_escaped(pythons):
    variables = {"PYTHONIOENCODING": "ascii", "CUDA_X": "\u00e9"}
    words = ["mpirun", "-n", 1, pythons[0], "-m", "cudriver.fleet.mpi"]
    words += [":", "-n", 1, "env", "CUDA_X=e", *words[3:]]
    done = run(words, **variables)
    assert "\\xe9" in done.stdout, done.stderr
