"""What a comparison finds, compare_cases.txt: reports made by hand, in the words of made.py, and
all that is told of them. casekit.py has the form.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import made
import pytest
from made import Report

import casekit
from cudriver.fleet import compare
from cudriver.fleet.comparison import to_baseline
from cudriver.fleet.report import Fleet
from cudriver.fleet.report_text import heading, remarks
from cudriver.fleet.result import Share
from cudriver.fleet.rules import registry

PATH = Path(__file__).with_name("compare_cases.txt")
HEAD, CASES = casekit.read(PATH)


def shares(rows: list[Share]) -> list[str]:
    return [f"    {share.value}  {share.count} x {share.nodes}".rstrip() for share in rows]


def render(found: Fleet) -> str:
    """A comparison in plain lines. The groups show what differs: who has which value is shown
    where no rule tells it."""
    lines = [heading(found), *remarks(found)]
    if found.missing:
        lines.append(f"missing: {found.missing}")
    if len(found.groups) > 1 or (found.groups[:1] and found.groups[0].differs):
        for group in found.groups:
            lines.append(f"group {group.count} x {group.nodes}")
            lines += [f"    {c.component}: {c.value} / {c.reference}" for c in group.differs]
    for difference in [] if found.findings else found.differences:
        lines += [f"differs: {difference.component}", *shares(difference.values)]
    for each in found.findings:
        lines += [f"{each.severity} {each.rule}: {each.title}", *shares(each.evidence)]
        lines += [f"  why {each.why}", *(f"  $ {fix}" for fix in each.fix)]
    return "\n".join([*lines, found.status])


def saved(told: Report) -> Any:
    """A report as the baseline that is kept of it."""
    golden = compare([told]).golden
    assert golden is not None
    return json.loads(json.dumps(to_baseline(golden)))


def of_case(name: str) -> Fleet:
    known = {**vars(made), "compare": compare, "saved": saved}
    exec(HEAD, known)
    found = eval(f"compare({CASES[name].source})", known)
    assert isinstance(found, Fleet)
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_case(name: str) -> None:
    found = of_case(name)
    assert all(each.why for each in found.findings)
    rules = ", ".join(f"{each.rule} {each.severity}" for each in found.findings)
    casekit.check(PATH, CASES[name], rules or "silent", render(found))


def test_every_rule_has_a_case() -> None:
    told = {rule for case in CASES.values() for rule in case.told.split() if rule[:2] == "FL"}
    assert {*registry()} - told == {"FL604"}  # of what cannot be read: test_told.py
