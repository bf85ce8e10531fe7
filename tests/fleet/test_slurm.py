"""Slurm with three virtual nodes: lines from srun compared, and a node drained with a reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from enginekit import OTHER, need_programs, run
from test_fleets_page import recipe

from native_build import ROOT

need_programs("slurmctld", "slurmd", "srun", "munged")
if os.geteuid() != 0:
    pytest.skip("a cluster of virtual nodes needs root", allow_module_level=True)

KIT = Path(__file__).parent / "slurm-cluster"
HEALTH = ROOT / "examples" / "slurm" / "cudriver-health"
CUDRIVER = Path(sys.executable).with_name("cudriver")
BROKEN = 'error CU303  libcudnn.so.9 "9.1" hides the one that torch\'s build needs\n'


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A running cluster's folder. A node is unwell while it has a file of its name in `unwell`."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "unwell").mkdir()
    check = folder / "cudriver"
    check.write_text(
        f'#!/bin/sh\n[ -e "{folder}/unwell/$SLURMD_NODENAME" ] || exit 0\n'
        f'cat "{folder}/unwell/$SLURMD_NODENAME"\nexit 1\n'
    )
    health = folder / "health"
    health.write_text(
        f"#!/bin/sh\nexport SLURM_CONF={folder}/slurm.conf CUDRIVER={check}\nexec {HEALTH}\n"
    )
    for program in (check, health):
        program.chmod(0o755)
    lines = [f"HealthCheckProgram={health}", "HealthCheckInterval=1", "HealthCheckNodeState=ANY"]
    lines += [f"Prolog={health}", "PrologFlags=Alloc"]
    try:
        subprocess.run([KIT, "start", folder, "3", *lines], check=True, timeout=300)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", f"{folder}/slurm.conf")
            yield folder
    finally:
        subprocess.run([KIT, "stop", folder], check=True)


def reason(node: str, *, within: float = 60, until: str | None = None) -> str:
    """Why a node is drained; "" for one in service. Waits until it is as a test expects."""
    end = time.monotonic() + within
    while True:
        done = run(["sinfo", "-h", "-N", "-n", node, "-t", "drain", "-o", "%E"])
        said = done.stdout.strip()
        if until is None or (said.startswith(until) and bool(said) == bool(until)):
            return said
        assert time.monotonic() < end, f"{node}: {said!r}"
        time.sleep(0.2)


def test_a_pipe_from_srun_names_who_differs(slurm, pythons, tmp_path):
    fits, other = pythons
    script = tmp_path / "check"
    script.write_text(
        f'#!/bin/sh\n[ "$SLURMD_NODENAME" = d1 ] && exec {other} "$@"\nexec {fits} "$@"\n'
    )
    script.chmod(0o755)
    code = "import sys; from cudriver.cli import main; sys.exit(main())"
    check = f"srun -N3 -l {script} -c '{code}' check --json --compact"
    done = run(["bash", "-c", f"{check} | {CUDRIVER} fleet --json"])
    told = json.loads(done.stdout)
    assert [group["count"] for group in told["groups"]] == [2, 1], done.stderr
    wrong = next(finding for finding in told["findings"] if finding["severity"] == "error")
    assert wrong["rule"] == "FL401"
    shares = {share["value"]: share["nodes"] for share in wrong["evidence"]}
    assert shares[OTHER] == "d1"
    assert done.returncode == 1


def test_the_page_s_recipe(slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "3")  # as a job of three nodes with a CPU each has it
    monkeypatch.setenv("SLURM_JOB_NODELIST", "d[0-2]")
    done = recipe("Slurm", tmp_path)
    assert done.stdout.startswith("3 nodes: all the same\n"), done.stderr
    assert "did not answer" not in done.stdout
    monkeypatch.setenv("SLURM_JOB_NODELIST", "d[0-3]")
    assert "1 did not answer" in recipe("Slurm", tmp_path).stdout


def test_a_node_that_is_unwell_is_drained_and_put_back(slurm):
    unwell = slurm / "unwell" / "d1"
    unwell.write_text(BROKEN)
    said = reason("d1", until="cudriver: CU303")
    assert said == "cudriver: CU303 libcudnn.so.9 9.1 hides the one that torch s build needs"
    assert reason("d0") == ""
    unwell.unlink()
    reason("d1", until="")


def test_another_s_reason_stays(slurm):
    run(["scontrol", "update", "NodeName=d0", "State=DRAIN", "Reason=fan"])
    unwell = slurm / "unwell" / "d0"
    try:
        unwell.write_text(BROKEN)
        time.sleep(3)  # of which the health check runs in each
        unwell.unlink()
        time.sleep(3)
        assert reason("d0") == "fan"
    finally:
        run(["scontrol", "update", "NodeName=d0", "State=RESUME"])
    reason("d0", until="")


@pytest.mark.parametrize(("says", "status"), [(BROKEN, 1), ("", 0)])
def test_as_prolog_it_keeps_a_job_from_a_node(slurm, says, status):
    """Run as slurmd runs a prolog, so that the health check is not first."""
    unwell = slurm / "unwell" / "d9"
    if says:
        unwell.write_text(says)
    done = run([slurm / "health"], SLURMD_NODENAME="d9", SLURM_JOB_ID="1")
    unwell.unlink(missing_ok=True)
    assert done.returncode == status
    assert ("cudriver: CU303" in done.stderr) == bool(says)
