"""The rules: each a function from a comparison to findings, by its number."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from cudriver.fleet.comparison import FINDINGS_KEPT, Comparison, few
from cudriver.fleet.result import MAY_DIFFER, SEVERITIES, Finding
from cudriver.stack.facts import NOTE

PAGES = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data")
Rule = Callable[[Comparison], Iterable[Finding]]


def registry() -> dict[str, Rule]:
    """Every rule, in order of its number."""
    from cudriver.fleet.rules import machines, nodes, variables, versions
    from cudriver.stack.rules.finding import numbered

    return numbered(machines, versions, variables, nodes)


def judge(facts: Comparison, allow: Iterable[str] = ()) -> list[Finding]:
    """What all rules find, the worst first. allow: of MAY_DIFFER; what is allowed is a note."""
    allowed = {rule for each in allow for rule in MAY_DIFFER[each]}
    findings: list[Finding] = []
    for rule in registry().values():
        found = sorted(rule(facts), key=_order)
        rest = found[FINDINGS_KEPT:]
        if len(rest) > 1:  # a rule may have counted by itself what it leaves out
            worst = rest[0]
            title = f"{len(rest):,} more: {worst.title} ..."
            found[FINDINGS_KEPT:] = [Finding(worst.rule, worst.severity, title, worst.why)]
        findings += found
    for finding in findings:
        finding.evidence = few(finding.evidence)
        finding.severity = NOTE if finding.rule in allowed else finding.severity
    return sorted(findings, key=_order)


def _order(finding: Finding) -> tuple[int, str]:
    return SEVERITIES.index(finding.severity), finding.rule
