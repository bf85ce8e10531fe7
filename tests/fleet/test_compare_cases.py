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
from cudriver.fleet.result import Finding, Share
from cudriver.fleet.rules import registry

PATH = Path(__file__).with_name("compare_cases.txt")
HEAD, CASES = casekit.read(PATH)
MADE: dict[str, Any] = {**vars(made), "compare": compare}
exec(HEAD, MADE)
WORDS: dict[str, str] = MADE["WORDS"]


def shares(rows: list[Share]) -> str:
    told = (f"{share.value}  {share.count} x {share.nodes}".rstrip() for share in rows)
    return f"    {' | '.join(told)}"


def words(finding: Finding) -> str:
    """Why, and what to do: shown where they are not those that the head has for the rule."""
    text = " $ ".join([finding.why, *finding.fix])
    return "" if WORDS.get(f"{finding.rule} {finding.severity}") == text else f"    why {text}"


def render(found: Fleet) -> str:
    """A comparison in plain lines. The groups show what differs: who has which value is shown
    where no rule tells it."""
    lines = ["; ".join([heading(found), *remarks(found), found.status])]
    if len(found.groups) > 1 or (found.groups[:1] and found.groups[0].differs):
        groups = [f"{group.count} x {group.nodes}" for group in found.groups]
        lines[0] += f": {', '.join(groups)}"
        for group, of in zip(found.groups, groups, strict=True):
            lines += [f"    {c.component}: {c.value} / {c.reference}  {of}" for c in group.differs]
    if found.missing:
        lines.append(f"missing: {found.missing}")
    for difference in [] if found.findings else found.differences:
        lines += [f"differs: {difference.component}", shares(difference.values)]
    for each in found.findings:
        lines += [f"{each.severity} {each.rule}: {each.title}", shares(each.evidence), words(each)]
    return "\n".join(line for line in lines if line)


def saved(told: Report) -> Any:
    """A report as the baseline that is kept of it."""
    golden = compare([told]).golden
    assert golden is not None
    return json.loads(json.dumps(to_baseline(golden)))


def of_case(name: str) -> Fleet:
    found = eval(f"compare({CASES[name].source})", MADE | {"saved": saved})
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
