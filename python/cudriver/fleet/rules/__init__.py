"""The rules: each a function from a comparison to findings, by its number."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from cudriver.fleet.comparison import Comparison
from cudriver.fleet.result import SEVERITIES, Finding

PAGES = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data")
Rule = Callable[[Comparison], Iterable[Finding]]


def registry() -> dict[str, Rule]:
    """Every rule, in order of its number."""
    from cudriver.fleet.rules import machines, nodes, variables, versions

    rules: dict[str, Rule] = {}
    for module in (machines, versions, variables, nodes):
        rules.update(module.RULES)
    return dict(sorted(rules.items()))


def judge(facts: Comparison) -> list[Finding]:
    """What all rules find, the worst first."""
    findings = [finding for rule in registry().values() for finding in rule(facts)]
    return sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), f.rule))
