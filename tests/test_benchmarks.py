"""benchmarks/: that a run makes every row of the table, and that its ratios are right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [
    pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="no benchmarks beside the tests"),
    pytest.mark.skipif(
        bool(os.environ.get("CUDRIVER_TEST_SANITIZER")), reason="a sanitizer's times mean nothing"
    ),
]

# The works that the project is held to, as they were agreed.
WORKS = [
    "plain NumPy array to device, 1-2 GiB",
    "device to plain NumPy array, 1-2 GiB",
    "the same, 256 MiB",
    "the same, 64 MiB",
    "the same, 16 MiB",
    "the same, 4 MiB",
    "pinned array to or from device, 1 GiB",
    "`a.T` of a plain 512 MiB array into a C-ordered device array",
    "`a[:, ::2]` to the device, 256 MiB of data",
    "`a[:, :n/2]` to the device, 256 MiB",
    "device to `a[:, ::2]`",
    "plain arrays to two GPUs at once, 32 cores",
    "up and down at once on one GPU, plain arrays",
    "from one GPU to another, 1 GiB (NVLink)",
    "asynchronous copy of a plain 256 MiB array: time until the call returns",
    "any size, 4 KiB to 4 GiB, any path",
    "page-locked 2 GiB, first time",
    "page-locked array from the pool, 1 MiB and 1 GiB",
    "np.empty inside `pinned_numpy()`, reuse",
    "4 KiB asynchronous copy, issue cost",
    "device allocate + free, 1 MiB",
    "context push + pop",
    "import, over a bare interpreter",
    "environment report",
]
OURS = "cudriver"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def part(**more: Any) -> Any:
    from benchmarks.measure import Part

    made = Part("", **more)
    made.samples = {OURS: [0.02, 0.01, 0.03], "pinned": [0.018] * 3, "driver": [0.1, 0.1, 0.1]}
    return made


@pytest.mark.slow
def test_a_run_makes_every_row(tmp_path: Path) -> None:
    tables, figures = tmp_path / "performance.md", tmp_path / "figures.json"
    tables.write_text("before\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nafter\n")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--peers", "none", "--most", "262144"]
    environ = dict(os.environ)
    if environ.get("CUDRIVER_LIBRARY") == "sim":
        environ["CUDRIVER_SIM_DEVICES"] = "2"
    done = subprocess.run(
        [*command, "--markdown", str(tables), "--json", str(figures)],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    document = json.loads(figures.read_text())
    rows = {row["name"]: row for row in document["rows"]}
    assert [name for name in rows if rows[name]["target"]] == WORKS
    for name, row in rows.items():
        if row["verdict"] == "one GPU" or row["verdict"].endswith("processors here"):
            continue
        assert row["parts"], name
        for measured in row["parts"]:
            assert measured["failed"] == {}, name
            assert measured["figures"][OURS]["median_s"] > 0, name
    text = tables.read_text()
    assert text.startswith("before\n<!-- bench:begin -->\n")
    assert text.endswith("<!-- bench:end -->\nafter\n")
    assert "old" not in text
    lines = text.splitlines()
    assert all(any(line.startswith(f"| {name} |") for line in lines) for name in WORKS)
    if document["simulated"]:
        assert "SIMULATED DRIVER" in text
        assert rows[WORKS[0]]["verdict"] == "simulated"


def test_ratios_are_to_the_target() -> None:
    from benchmarks.measure import at_least_rate, at_most, times_as_fast

    nbytes = 10**9  # 50 GB/s in the median of 20 ms
    assert part(nbytes=nbytes).figure() == pytest.approx(50)
    assert at_least_rate(40)(part(nbytes=nbytes)) == pytest.approx(50 / 40)
    assert at_most(0.01)(part()) == pytest.approx(0.5)
    # ours reaches 18/20 of the pinned rate
    assert times_as_fast(0.9, "pinned")(part()) == pytest.approx(1.0)
    assert times_as_fast(1.0)(part()) == pytest.approx(0.9)  # against the fastest
    assert times_as_fast(2.5, "driver")(part()) == pytest.approx(2.0)
    assert times_as_fast(1.0, "nobody")(part()) is None


def test_a_row_is_met_where_its_worst_part_is() -> None:
    from benchmarks.measure import Row, at_most

    good, bad = part(goals=[at_most(0.04)]), part(goals=[at_most(0.01)])
    assert Row("", "", [good]).verdict() == "met"
    assert Row("", "", [good, bad]).ratio() == pytest.approx(0.5)
    assert Row("", "", [good, bad]).verdict() == "not met"
    assert Row("", "", [good, part()]).verdict() == "met"  # a part without a goal is not judged
    assert Row("", "", [good], note="one GPU").verdict() == "one GPU"
    assert Row("", "", [bad]).verdict(simulated=True) == "simulated"


def test_figures_over_a_base() -> None:
    from benchmarks.measure import at_most

    made = part(unit="ms", base="pinned", goals=[at_most(0.001)])
    assert made.figure() == pytest.approx(2)
    assert made.ratio() == pytest.approx(0.5)


def test_one_contestants_failure_is_its_own() -> None:
    from benchmarks.measure import Effort, Part, Work, WrongBytes

    def broken() -> Work:
        raise OSError("no such thing")

    def late() -> Work:
        runs = iter([None])
        return Work(lambda: next(runs))

    def verify(work: Work) -> None:
        work.run()
        if work.how == "lies":
            raise WrongBytes("other bytes")

    made = Part("", verify=verify)
    made.add(OURS, lambda: Work(lambda: None))
    made.add("broken", broken)
    made.add("late", late)
    made.add("liar", lambda: Work(lambda: None, how="lies"))
    made.run(Effort(rounds=4, budget=1))
    assert len(made.samples[OURS]) == 4
    assert set(made.samples) == {OURS}
    assert made.failed == {
        "broken": "OSError: no such thing",
        "late": "StopIteration: ",
        "liar": "WrongBytes: other bytes",
    }


def test_wrong_bytes_are_seen(cu: Any) -> None:
    import numpy as np
    from benchmarks.bench import Bench
    from benchmarks.measure import Work, WrongBytes

    bench = Bench(quick=True, most=1 << 16, limit_s=60)
    host, out = bench.plain(4096), bench.out(4096)
    there = cu.to_device(host)
    verify = bench.verifier(host)
    verify(Work(lambda: cu.copy(there, host), pointer=lambda: there.pointer))
    verify(Work(lambda: cu.copy(out, there), out=out))
    assert np.array_equal(out, host)
    with pytest.raises(WrongBytes):
        verify(Work(lambda: None, pointer=lambda: there.pointer))
    with pytest.raises(WrongBytes):
        verify(Work(lambda: cu.copy(out[1:], there[1:]), out=out))
