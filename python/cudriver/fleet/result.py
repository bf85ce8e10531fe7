"""What a comparison has found: groups of equal stacks, what differs, what that means."""

from __future__ import annotations

from cudriver.stack.facts import ERROR, NOTE, WARNING
from cudriver.stack.record import Record, fresh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cudriver.fleet.stacks import Stack

EXIT_CODES = {"consistent": 0, "mismatch": 1, "unknown": 3}
# What no groups may differ in unless --allow names it, and the rules that speak of it.
MAY_DIFFER = {
    "driver": ("FL101", "FL105"),
    "cuda": ("FL201", "FL202", "FL204"),
    "framework": ("FL401", "FL402"),
    "python": ("FL403",),
}
SEVERITIES = (ERROR, WARNING, NOTE)


class Share(Record):
    """One value of a component, and the nodes that have it."""

    value: str
    count: int
    nodes: str  # folded: "d[0-3],login"

    def order(self) -> tuple[int, str]:
        """The most nodes first."""
        return -self.count, self.value


class Difference(Record):
    """A component that is not the same on all nodes."""

    component: str
    values: list[Share] = fresh(list)


class Change(Record):
    """What a group has of a component, and what the group that it is compared with has."""

    component: str
    value: str
    reference: str


class Group(Record):
    """Nodes that carry the same stack."""

    count: int
    nodes: str
    verdict: str  # of the nodes' own checks
    stack: dict[str, str] = fresh(dict)  # the components that tell most of it
    differs: list[Change] = fresh(list)


class Finding(Record):
    """A difference that matters: by which rule, where, why, and what to do."""

    rule: str
    severity: str
    title: str
    why: str
    evidence: list[Share] = fresh(list)
    fix: list[str] = fresh(list)


def finding(
    severity: str, title: str, why: str, evidence: list[Share] | None = None, fix: str = ""
) -> Finding:
    """What a rule tells: `numbered` adds which one."""
    return Finding("", severity, title, why, evidence or [], [fix] if fix else [])


class Result:
    """What `Fleet` is without its forms: what renderers read."""

    def __init__(
        self,
        *,
        groups: list[Group],
        differences: list[Difference],
        findings: list[Finding],
        missing: str = "",
        unsure: bool = False,
        counts: dict[str, int],
        reference: str,
        golden: Stack | None,
        strict: bool = False,
        idle: bool = False,
    ) -> None:
        self.groups = groups
        self.differences = differences
        self.findings = findings
        self.missing = missing
        self.counts = counts
        self.reference = reference
        self.golden = golden
        self.idle = idle
        self._unsure = unsure
        self._strict = strict

    @property
    def status(self) -> str:
        """Status: "consistent", "mismatch" or "unknown" (something could not be told)."""
        asked = {rule for rules in MAY_DIFFER.values() for rule in rules}
        for finding in self.findings:  # what may differ is a note
            strict = self._strict or finding.rule in asked
            if finding.severity == ERROR or (strict and finding.severity == WARNING):
                return "mismatch"
        return "unknown" if self._unsure else "consistent"

    @property
    def exit_code(self) -> int:
        """Exit code of ``cudriver fleet``: 0 consistent, 1 mismatch, 3 could not tell."""
        return EXIT_CODES[self.status]

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data.

        Returns
        -------
        dict
            ``status``, ``counts``, ``missing``, ``groups``, ``differences`` and ``findings``.
        """
        return {
            "schema": 1,
            "status": self.status,
            "counts": self.counts,
            "missing": self.missing,
            "reference": self.reference,
            "groups": [group.to_dict() for group in self.groups],
            "differences": [difference.to_dict() for difference in self.differences],
            "findings": [finding.to_dict() for finding in self.findings],
        }
