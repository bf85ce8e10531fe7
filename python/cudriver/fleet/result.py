"""What a comparison has found: groups of equal stacks, what differs, what that means."""

from __future__ import annotations

from cudriver.stack.model import ERROR, NOTE, WARNING
from cudriver.stack.record import Record, fresh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cudriver.fleet.stacks import Stack

EXIT_CODES = {"consistent": 0, "mismatch": 1, "unknown": 3}
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


class Fleet:
    """Many reports compared, as `cudriver.fleet.compare` returns it.

    Parameters
    ----------
    groups : list of Group
        Nodes that carry equal stacks, the largest group first.
    differences : list of Difference
        The components that are not the same on all nodes.
    findings : list of Finding
        The differences that matter, the worst first.
    missing : str, optional
        Who did not answer: ``"d[3,7]"``, ``"rank 5"``.
    unsure : bool, optional
        Whether something could not be told.
    counts : dict of str to int
        How many ``nodes`` and ``reports`` there are, and how many reports are ``older`` ones of the
        same (``differing`` of these told of other stacks), ``broken``, or ``other`` lines.
    reference : str
        What groups are compared with: ``"group 1"`` or ``"the baseline"``.
    golden : Stack or None
        What the largest group carries.
    strict : bool, optional
        Whether warnings count as mismatches too.

    Notes
    -----
    Read only. ``print`` shows it as the terminal does, a notebook as tables. Names of nodes are
    folded as Slurm does it: ``d[0-3]``.

    Examples
    --------
    >>> fleet.compare([]).status
    'unknown'
    """

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
    ) -> None:
        self.groups = groups
        self.differences = differences
        self.findings = findings
        self.missing = missing
        self.counts = counts
        self.reference = reference
        self.golden = golden
        self._unsure = unsure
        self._strict = strict

    @property
    def status(self) -> str:
        """Status: "consistent", "mismatch" or "unknown" (something could not be told)."""
        severities = {finding.severity for finding in self.findings}
        if ERROR in severities or (self._strict and WARNING in severities):
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

    def to_json(self, indent: int | None = 2) -> str:
        """Return the comparison as JSON.

        Parameters
        ----------
        indent : int or None, optional
            Spaces of a level; None for one line.

        Returns
        -------
        str
            In the form of `to_dict`.
        """
        import json

        return json.dumps(self.to_dict(), indent=indent)

    def to_text(self, *, width: int = 80, colour: bool = False, verbose: bool = False) -> str:
        """Return the comparison as the terminal shows it.

        Parameters
        ----------
        width : int, optional
            Columns of the terminal.
        colour : bool, optional
            Whether to colour the text.
        verbose : bool, optional
            Whether to show every group, every difference and every name.

        Returns
        -------
        str
            Lines of text.
        """
        from cudriver.fleet.report_text import render
        from cudriver.stack.report_text import Style

        return render(self, Style(width=width, colour=colour), verbose=verbose)

    def to_html(self) -> str:
        """Return the comparison as a web page.

        Returns
        -------
        str
            A whole page: no script, nothing loaded from elsewhere.
        """
        from cudriver.fleet.report_html import page

        return page(self)

    def _repr_html_(self) -> str:
        from cudriver.fleet.report_html import fragment

        return fragment(self)

    def __str__(self) -> str:
        text = self.to_text().rstrip("\n")
        return text.encode("utf-8", "backslashreplace").decode()

    def __repr__(self) -> str:
        rules = ", ".join(dict.fromkeys(f.rule for f in self.findings)) or "no findings"
        nodes = self.counts["nodes"]
        return f"<Fleet of {nodes} node{'' if nodes == 1 else 's'}: {self.status}, {rules}>"
