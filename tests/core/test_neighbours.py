"""`cudriver bench --neighbours`: who waits, and how long. No figure depends on the machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from conftest import DRIVER
from cudriver import cli
from cudriver.ladder import neighbours

WORK = [
    "nothing",
    "page-locked at once",
    "page-locked in pieces",
    "copied, locked at once",
    "copied, locked in pieces",
]
ASKS = "cuMemGetInfo_v2"

simulated = pytest.mark.skipif(DRIVER == "real", reason="turns the simulated driver's knobs")


def test_the_table_fits_a_terminal(cu, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--neighbours", "--rounds", "2", "--size", "4M"]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) < 80
    rows = [line for line in said.splitlines() if line.startswith("  ") and line[2] != " "]
    assert [row[:26].strip() for row in rows] == WORK
    assert [len(row[26:].split()) for row in rows] == [4] * 5
    assert ("no times are given" in said) == (DRIVER == "sim")
    assert "4 MiB are page-locked" in said


def test_the_report_as_json(cu, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--neighbours", "--rounds", "1", "--size", "1M", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["size"], report["rounds"], report["notes"]) == (1 << 20, 1, [])
    assert [row["what"] for row in report["rows"]] == WORK
    assert [row.get("verified") for row in report["rows"]] == [None, None, None, True, True]
    missing = [row[name] is None for row in report["rows"] for name in neighbours.WAITS]
    assert missing == [DRIVER == "sim"] * 15


@pytest.mark.parametrize("option", ["--numa", "--sizes", "--plot=x.svg"])
def test_it_takes_the_ladders_place(cu, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert cli.main(["bench", "--neighbours", option]) == 2
    except SystemExit as end:
        assert end.code == 2
    assert "--neighbours" in capsys.readouterr().err


@simulated
@pytest.mark.parametrize(("call", "who"), [(ASKS, "thread"), ("cuMemcpyHtoDAsync_v2", "copy")])
def test_the_longest_wait_is_that_of_who_waited(cu, sim, call: str, who: str) -> None:
    """A call that is held for a tenth of a second is in the figures, of its column alone."""

    def work() -> None:
        before = sim.call_count(call)
        sim.hold_call(call, 1)
        while sim.call_count(call) == before:
            time.sleep(0.001)
        time.sleep(0.1)
        sim.clear_faults()

    with neighbours.Neighbours(cu.Device(0)) as others:
        found = others.beside(work, 2)
    assert found[who] >= 0.1
    assert found["seconds"] >= 0.1
    assert found["process"] > 0
    other = {"thread": "copy", "copy": "thread"}[who]
    assert found[other] > 0


@simulated
def test_another_process_that_cannot_ask_is_an_error(
    cu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDRIVER_SIM_FAIL", f"{ASKS}:*:2")  # this process has read its own
    assert cli.main(["bench", "--neighbours", "--rounds", "1"]) == 1
    assert "the other process ended with status 1" in capsys.readouterr().err


@simulated
def test_a_failure_ends_the_other_process_and_the_threads(cu) -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), neighbours.Neighbours(cu.Device(0)) as others:
        others.beside(lambda: 1 / 0, 3)
    assert others.process.poll() == 0
    assert threading.active_count() == before


@simulated
def test_an_interrupt_ends_both_processes_quietly() -> None:
    words = [sys.executable, "-m", "cudriver", "bench", "--neighbours", "--rounds", "100000"]
    environ = {**os.environ, "CUDRIVER_LIBRARY": "sim"}
    with subprocess.Popen(
        words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        if not children.exists():
            process.kill()
            pytest.skip("this kernel lists no children")
        deadline = time.monotonic() + 60
        while not (child := children.read_text().split()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        out, error = process.communicate(timeout=60)
    assert (process.returncode, out) in ((130, ""), (-signal.SIGINT, ""))
    assert "Traceback" not in error
    while Path("/proc", child[0]).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@simulated
def test_pieces_that_a_driver_forced_are_told(cu, sim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudriver.memory.pieces.STEP", 8 << 20)
    sim.set_registration_limit(72 << 20)  # enough for a staged copy
    report = neighbours.measure(cu.Device(0), 80 << 20, 1)
    assert ["refused to page-lock 83886080 bytes at once" in note for note in report["notes"]] == [
        True
    ]
    assert neighbours.lines(report)[-2] == report["notes"][0]


def test_rows_without_the_right_bytes_are_marked(cu) -> None:
    row: dict[str, Any] = dict.fromkeys(("seconds", *neighbours.WAITS), 0.25)
    report = {"device": "a GPU", "simulated": False, "size": 1 << 30, "small_copy": 1 << 16,
              "notes": [], "rows": [{"what": "copied", **row, "verified": False}]}  # fmt: skip
    line = neighbours.lines(report)[5]
    assert line.split() == ["copied", *["250"] * 4, "WRONG", "BYTES"]
