"""`compare`: from reports to the outcome that people read."""

from __future__ import annotations

from cudriver.fleet import groups, hosts
from cudriver.fleet.comparison import look
from cudriver.fleet.result import MAY_DIFFER
from cudriver.fleet.rules import judge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from cudriver.fleet.report import Fleet


def compare(
    reports: Iterable[Any],
    *,
    baseline: Any = None,
    expect: int | None = None,
    nodes: str | Iterable[str] | None = None,
    strict: bool = False,
    allow: Iterable[str] = (),
) -> Fleet:
    """Compare the reports of many nodes: which agree, what differs, and what that means.

    Parameters
    ----------
    reports : iterable of dict, str or Report
        Reports of `cudriver.stack.inspect`, or of ``cudriver check --json --compact`` as objects
        or as lines. Of two reports of one process the newer counts; if the machine has been
        started in between, only where they are equal: another may have the same name.
    baseline : dict or Report, optional
        What the nodes should carry: a report, or what ``--save-baseline`` wrote.
    expect : int, optional
        How many reports there should be.
    nodes : str or iterable of str, optional
        The nodes that should answer, by name or as Slurm lists them: ``"d[0-3,7]"``.
    strict : bool, optional
        Whether warnings count as mismatches too.
    allow : iterable of {"driver", "cuda", "framework", "python"}, optional
        What may differ between the groups. Without it nodes that differ in the driver's branch, in
        CUDA, in a framework or in Python are a mismatch.

    Returns
    -------
    Fleet
        Groups of nodes with equal stacks, differences, findings and a status. A report that cannot
        be read is counted, and is a finding.

    Raises
    ------
    TypeError
        `reports` is one report or one text, not many.
    ValueError
        `baseline` is neither a report nor a saved baseline, `expect` is negative, `nodes` is not
        a list of hosts, or `allow` has another word than those above.

    Notes
    -----
    Reports are read one at a time and reduced at once: 10,000 of them take a few megabytes.

    Examples
    --------
    >>> report = stack.inspect(probe_driver=False).to_dict()
    >>> here = {**report, "node": {"host": "d0"}}
    >>> there = {**report, "node": {"host": "d1"}}
    >>> [group.nodes for group in fleet.compare([here, there]).groups]
    ['d[0-1]']
    """
    if isinstance(reports, (str, bytes, dict)):
        raise TypeError(f"reports is one {type(reports).__name__}: pass a list or a file")
    if expect is not None and expect < 0:
        raise ValueError(f"expect={expect!r}: a number of reports is 0 or more")
    allowed = [allow] if isinstance(allow, str) else list(allow)
    for each in allowed:
        if each not in MAY_DIFFER:
            raise ValueError(f"allow={each!r}: it is one of {', '.join(MAY_DIFFER)}")
    names = hosts.parse(nodes) if isinstance(nodes, str) else nodes
    facts = look(reports, baseline=baseline, expect=expect, nodes=names)
    return groups.fleet(facts, judge(facts, allowed), strict=strict)
