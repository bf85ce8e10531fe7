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
from mpi4py import MPI
from cudriver import fleet
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
