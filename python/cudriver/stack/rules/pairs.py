"""Pairs of packages that are built for each other, by the table of them."""

from __future__ import annotations

from cudriver.stack.model import Distribution, Facts, Requirement
from cudriver.stack.rules.fix import KIN, series_for
from cudriver.stack.tables import table
from cudriver.stack.versions import cut, satisfies

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def broken(facts: Facts) -> Iterator[tuple[Distribution, Requirement, dict[str, str]]]:
    """The pairs that are known to fail here: the package, what it should have, the table's row."""
    for row in table("pairs")["pairs"]:
        dist, other = facts.distribution(row["package"]), facts.distribution(row["with"])
        if dist is None or not satisfies(dist.version, row["versions"]):
            continue
        if satisfies(other.version, row["fails"]) if other else row["fails"] == "absent":
            wants = row["wants"].replace("{version}", dist.version)
            yield dist, Requirement(row["with"], wants, dist.evidence), row


def goes_with(facts: Facts, name: str, version: str) -> bool:
    """Whether a release is known to be built for what is installed beside it."""
    torch = facts.distribution("torch")
    if name in KIN:
        return torch is not None and series_for(name, torch.version) == cut(version, 2)
    rows = [r for r in table("pairs")["pairs"] if r["package"] == name]
    beside = [(r, facts.distribution(r["with"])) for r in rows if satisfies(version, r["versions"])]
    return any(d is not None and satisfies(d.version, r["wants"]) for r, d in beside)
