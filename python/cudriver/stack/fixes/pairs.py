"""Packages that are built for a release of another: what the table of pairs knows of them."""

from __future__ import annotations

from collections.abc import Iterator

from cudriver.stack.environment.markers import normal
from cudriver.stack.facts import Distribution, Facts, Requirement
from cudriver.stack.fixes import fix
from cudriver.stack.tables import table
from cudriver.stack.versions import cut, satisfies


def broken(facts: Facts) -> Iterator[tuple[Distribution, Requirement, dict[str, str]]]:
    """The pairs that are known to fail here: the package, what it should have, the table's row."""
    for row in table("pairs")["pairs"]:
        dist, other = facts.distribution(row["package"]), facts.distribution(row["with"])
        if dist is None or not satisfies(dist.version, row["versions"]):
            continue
        wants, fails = row["wants"].replace("{version}", dist.version), row["fails"]
        if fails == "unmet":
            wants = next((rest for name, rest in dist.asks if normal(name) == row["with"]), "")
            wants = wants.strip(" ()")
            bad = other and ";" not in wants and satisfies(other.version, wants) is False
        elif fails == "absent":
            bad = other is None
        else:
            bad = other and satisfies(other.version, fails)
        if bad:
            yield dist, Requirement(row["with"], wants, dist.evidence), row


def goes_with(facts: Facts, name: str, version: str) -> bool:
    """Whether a release is known to be built for what is installed beside it."""
    torch = facts.distribution("torch")
    if name in fix.KIN:
        return torch is not None and fix.series_for(name, torch.version) == cut(version, 2)
    rows = [r for r in table("pairs")["pairs"] if r["package"] == name and r["wants"]]
    beside = [(r, facts.distribution(r["with"])) for r in rows if satisfies(version, r["versions"])]
    return any(d is not None and satisfies(d.version, r["wants"]) for r, d in beside)
