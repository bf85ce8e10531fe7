"""A report as Markdown, to be pasted into an issue tracker: redacted, and every value escaped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from cudriver.stack.facts import UNKNOWN, Facts, Finding
from cudriver.stack.report.components import RANK, components
from cudriver.stack.report.outcome import Outcome
from cudriver.stack.report.text import MARKS, How, about, counted, place_of, remarks, value_of
from cudriver.stack.say import said, say
from cudriver.stack.text import clean


def page(reports: Sequence[Outcome], _: How) -> str:
    """One section a report."""
    return "\n".join(line for report in reports for line in _section(report.redacted())) + "\n"


def _section(report: Outcome) -> Iterator[str]:
    facts = report.facts
    yield from (f"## {_text(report.prefix)}", "", _text(", ".join(about(facts))), "")
    yield from (f"**{_text(counted(report))}**", "")
    for why in report.doubts if report.verdict == UNKNOWN else ():
        yield f"- {_text(said(why, 'doubts'))}"
    yield from ("", "| | | |", "|---|---|---|")
    for label, mark, text in components(report):
        yield f"| {MARKS[mark].strip()} | {_text(label)} | {_text(text)} |"
    for finding in sorted(report.findings, key=lambda finding: RANK[finding.severity]):
        yield from _finding(finding, facts)
    yield ""


def _finding(finding: Finding, facts: Facts) -> Iterator[str]:
    title = said(finding.title, finding.rule)
    yield from ("", f"### {say(finding.severity)} {_text(f'{finding.rule}: {title}')}", "")
    yield from _code(finding.predicts.splitlines() if finding.predicts else [])
    for each in (finding, *finding.also):
        if each is not finding:
            yield f"- {say('also')} {_text(f'{each.rule}: {said(each.title, each.rule)}')}"
        for evidence in each.evidence:
            yield f"- {_text(place_of(facts, evidence))} {_text(value_of(evidence))}".rstrip()
    yield from _code([*finding.fix, *(f"# {text}" for text in remarks(finding))])
    if finding.advice:
        yield from (_text(said(finding.advice, "fixes")), "")


def _code(lines: Sequence[str]) -> Iterator[str]:
    """A block of code, in a fence that none of its lines can close."""
    if lines:
        text = "\n".join(map(clean, lines))
        fence = max(["``", *re.findall("`+", text)], key=len) + "`"
        yield from ("", fence, text, fence, "")


def _text(text: str) -> str:
    """Text that means nothing to Markdown, and no tag."""
    return re.sub(r"([\\`*_{}\[\]<>#|&~@])", r"\\\1", " ".join(clean(text).split()))
