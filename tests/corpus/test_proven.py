"""What becomes a proven set, without network."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from corpus import derived, plan, proven
from cudriver.stack.tables import FOLDER, table

(FIRST, SECOND) = (e for e in proven.declared() if e.name.startswith("set-torch-2.0-"))


def row(wanted, **changes):
    made = {
        "name": wanted.name,
        "key": wanted.key(),
        "state": "done",
        "verdict": "consistent",
        "date": "2026-11-24",
        "findings": [{"rule": "CU109", "severity": "note"}],
        "failures": [],
        "false_alarms": [],
        "misses": [],
        "differences": [],
        "libraries": 8,
        "libraries_right": 8,
        "installed": {"torch": "2.0.1", "numpy": "1.26.4", "pip": "26", "only": wanted.python},
        "frameworks": [
            {"name": "torch", "version": "2.0.1+cu117", "cuda": "11.7", "archs": ["sm_80"]}
        ],
    }
    return {**made, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "not installed", "reason": "no"},
        {"verdict": "mismatch"},
        {"failures": [{"text": "ImportError"}]},
        {"findings": [{"rule": "CU305", "severity": "warning"}]},
        {"false_alarms": ["CU303"]},
        {"libraries_right": 7},
        {"libraries": 0, "libraries_right": 0},
        {"frameworks": [{"name": "torch", "version": "2.0.1+cpu", "cuda": None, "archs": []}]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_did_not_import_cleanly_on_cuda_is_no_set(changes):
    assert proven.is_clean(row(FIRST), FIRST)
    assert not proven.is_clean(row(FIRST, **changes), FIRST)


def test_a_failure_is_told_by_its_cause():
    said = """error: No solution found when resolving dependencies
      cause: Because a==1 depends on c{platform_machine == 'x86_64'}==2.27.5 and b==2 depends on
      c>=3, we can conclude that a==1 and b==2 are incompatible."""
    told = proven._failure(row(FIRST, state="not installed", reason=said), FIRST)
    assert told["reason"] == "a==1 depends on c==2.27.5 and b==2 depends on c>=3"
    warned = row(FIRST, findings=[{"rule": "CU302", "severity": "warning", "title": "x is y"}])
    assert proven._failure(warned, FIRST)["reason"] == "warning CU302, x is y"


def test_runs_are_joined_and_those_of_earlier_kept(tmp_path):
    path = tmp_path / "proven.json"
    proven.write(plan.read_all(), {FIRST.name: row(FIRST)}, path)
    proven.write(plan.read_all(), {SECOND.name: row(SECOND)}, path)
    (made,) = json.loads(path.read_text())["sets"]
    assert made["name"] == "torch-2.0"
    assert made["installed"] == {"numpy": "1.26.4", "torch": "2.0.1"}
    assert [(run["python"], run["installed"]) for run in made["runs"]] == [
        (FIRST.python, {"only": FIRST.python}),
        (SECOND.python, {"only": SECOND.python}),
    ]
    failed = row(FIRST, state="not installed", reason="no solution")
    proven.write(plan.read_all(), {FIRST.name: failed}, path)
    (made,) = json.loads(path.read_text())["sets"]
    assert [run["python"] for run in made["runs"]] == [SECOND.python]


def test_the_data_are_those_of_the_tables(tmp_path, monkeypatch):
    """After a change of a table: PYTHONPATH=tests python -m corpus.derived"""
    shipped = Path(FOLDER)
    (tmp_path / "proven.json").write_bytes((shipped / "proven.json").read_bytes())
    monkeypatch.setattr(derived, "DATA", tmp_path)
    derived.main()
    for made in tmp_path.iterdir():
        assert made.read_text() == (shipped / made.name).read_text()


def test_that_a_plan_was_run_is_written_down(tmp_path):
    path = tmp_path / "proven.json"
    proven.write(plan.read_all(), {FIRST.name: row(FIRST), SECOND.name: row(SECOND)}, path)
    proven.note("torch-2.0", SECOND.python, "uv", path)
    (made,) = json.loads(path.read_text())["sets"]
    assert ["plans" in run for run in made["runs"]] == [False, True]
    proven.write(plan.read_all(), {SECOND.name: row(SECOND)}, path)  # another proof
    (made,) = json.loads(path.read_text())["sets"]
    assert not any("plans" in run for run in made["runs"])


def test_the_plan_that_ci_runs_is_that_of_a_set():
    steps = proven.ROOT / ".ci" / "run"
    if not steps.exists():
        pytest.skip("an installed wheel's tests have no CI beside them")
    (name,) = re.findall(r"-m corpus\.proven (\S+)", steps.read_text())
    assert name in {made["name"] for made in table("proven")["sets"]}
