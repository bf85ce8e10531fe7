"""examples/slurm/cudriver-health: what `cudriver check` prints becomes what Slurm is told."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from enginekit import need_programs, run

from cudriver import stack
from native_build import ROOT
from stack.synth import Prefix

need_programs("timeout")

HEALTH = ROOT / "examples" / "slurm" / "cudriver-health"
IDLE = "NodeName=d0\n   State=IDLE\n"
OURS = "NodeName=d0\n   State=IDLE+DRAIN\n   Reason=cudriver: CU303 undefined symbol\n"
OTHERS = "NodeName=d0\n   State=IDLE+DRAIN\n   Reason=fan\n"
RESUME = "update NodeName=d0 State=RESUME"


def environment(folder: Path, verdict: str) -> Path:
    """An environment on which the check comes to this verdict, on every machine."""
    prefix = Prefix(folder).venv()
    if verdict == "mismatch":
        prefix.torch(pins={})
        (prefix.site / "torch/lib/libtorch_cuda.so").write_bytes(b"")
    elif verdict == "unknown":
        prefix.dist("mine", "1.0", ["nvidia-cublas-cu12"])
    report = stack.inspect(folder)
    assert report.verdict == verdict, report
    return folder


def health(
    folder: Path, prefix: Path, node: str, **variables: str
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Runs the program on a node that Slurm shows so; what it tells Slurm to do."""
    programs = {
        "cudriver": f'exec {sys.executable} -m cudriver "$@"',
        "scontrol": f'if [ "$1" = show ]; then echo {shlex.quote(node)}; '
        f'else echo "$*" >>{folder}/told; fi',
    }
    for name, program in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{program}\n")
        (folder / name).chmod(0o755)
    done = run(
        [HEALTH],
        CUDRIVER=str(folder / "cudriver"),
        CUDRIVER_PREFIX=str(prefix),
        SLURMD_NODENAME="d0",
        PATH=os.pathsep.join([str(folder), os.environ["PATH"]]),
        **variables,
    )
    told = folder / "told"
    return done, told.read_text().rstrip("\n") if told.exists() else ""


@pytest.mark.parametrize(("node", "drained"), [(IDLE, True), (OURS, True), (OTHERS, False)])
@pytest.mark.parametrize("job", ["", "71"])
def test_the_check_s_first_error_is_the_reason(tmp_path, node, drained, job):
    prefix = environment(tmp_path / "env", "mismatch")
    first = next(each for each in stack.inspect(prefix).findings if each.severity == "error")
    reason = f"cudriver: {first.rule} {first.title}"
    done, told = health(tmp_path, prefix, node, SLURM_JOB_ID=job)
    assert told == (f"update NodeName=d0 State=DRAIN Reason={reason}" if drained else "")
    assert done.returncode == (1 if job else 0)
    assert done.stderr == f"{reason}\n"


@pytest.mark.parametrize("job", ["", "71"])
def test_no_verdict_drains_no_node_and_stops_no_job(tmp_path, job):
    prefix = environment(tmp_path / "env", "unknown")
    done, told = health(tmp_path, prefix, OURS, SLURM_JOB_ID=job)
    assert (done.returncode, told) == (0, "")
    assert done.stderr.startswith("cudriver: could not tell (status 3): ")


@pytest.mark.parametrize(
    ("node", "job", "told"),
    [(IDLE, "", ""), (OURS, "", RESUME), (OTHERS, "", ""), (OURS, "71", "")],
)
def test_a_node_that_fits_is_put_back_if_it_was_ours(tmp_path, node, job, told):
    prefix = environment(tmp_path / "env", "consistent")
    done, said = health(tmp_path, prefix, node, SLURM_JOB_ID=job)
    assert (done.returncode, said, done.stderr) == (0, told, "")
