"""Many reports compared: does every node, worker and image carry the same CUDA stack.

    from cudriver import fleet
    print(fleet.compare(open("reports.jsonl")))

A report is a line of ``cudriver check --json --compact``, made where the work runs.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from cudriver.fleet.engines.dask import dask
    from cudriver.fleet.engines.mpi import mpi
    from cudriver.fleet.engines.preflight import PreflightError, preflight
    from cudriver.fleet.engines.ray import ray
    from cudriver.fleet.result import Fleet

__all__ = ["Fleet", "PreflightError", "compare", "dask", "mpi", "preflight", "ray"]


def compare(
    reports: Iterable[Any],
    *,
    baseline: Any = None,
    expect: int | None = None,
    nodes: str | Iterable[str] | None = None,
    strict: bool = False,
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

    Returns
    -------
    Fleet
        Groups of nodes with equal stacks, differences, findings and a status. A report that cannot
        be read is counted, and is a finding.

    Raises
    ------
    ValueError
        `baseline` is no report and no saved baseline, or `nodes` is no list of hosts.

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
    from cudriver.fleet import groups, hosts
    from cudriver.fleet.comparison import look
    from cudriver.fleet.rules import judge

    names = hosts.parse(nodes) if isinstance(nodes, str) else nodes
    facts = look(reports, baseline=baseline, expect=expect, nodes=names)
    return groups.fleet(facts, judge(facts), strict=strict)


# Names of what else there is, and where it lives.
_HOMES = {
    "Fleet": "cudriver.fleet.result",
    "PreflightError": "cudriver.fleet.engines.preflight",
    "dask": "cudriver.fleet.engines.dask",
    "mpi": "cudriver.fleet.engines.mpi",
    "preflight": "cudriver.fleet.engines.preflight",
    "ray": "cudriver.fleet.engines.ray",
}


def __getattr__(name: str) -> Any:
    """Finds a public name where it lives. An engine's own package is imported when it is used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
