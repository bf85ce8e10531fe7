"""The groups of nodes that carry equal stacks, and what differs between them."""

from __future__ import annotations

from cudriver.fleet import hosts
from cudriver.fleet.comparison import BASELINE, Comparison, few, place, shown, title
from cudriver.fleet.report import Fleet
from cudriver.fleet.result import Change, Difference, Finding, Group, Share
from cudriver.fleet.stacks import DRIVER, FRAMEWORK, GPUS, OFFERS, PYTHON, VERDICT, WITHOUT, Stack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cudriver.fleet.stacks import Value

ABOUT = (DRIVER, OFFERS, GPUS, PYTHON, FRAMEWORK)  # what a group is described by
# What is kept of many; what is left out is counted.
GROUPS_COMPARED = 200  # groups of which each change is told
CHANGES_KEPT = 100  # of a group
DIFFERENCES_KEPT = 100


def fleet(facts: Comparison, findings: list[Finding], *, strict: bool = False) -> Fleet:
    """The comparison as people get it."""
    ranked = sorted(facts.stacks, key=lambda stack: _order(stack, facts))
    reference = facts.baseline or (ranked[0] if ranked else Stack({}))
    unsure = any(stack.first(VERDICT) == "unknown" for stack in ranked)
    return Fleet(
        groups=[
            _group(stack, reference, facts, CHANGES_KEPT if number < GROUPS_COMPARED else 0)
            for number, stack in enumerate(ranked)
        ],
        differences=_differences(facts),
        findings=findings,
        missing=",".join(facts.missing),
        unsure=bool(unsure or facts.missed or facts.broken or not ranked),
        counts={**facts.counts, "components": len(facts.differing)},
        reference=BASELINE if facts.baseline else "group 1",
        golden=ranked[0] if ranked else None,
        strict=strict,
        idle=all(
            value[-1] == WITHOUT
            for stack in ranked
            for key, value in stack.parts.items()
            if key[0] == FRAMEWORK
        ),
    )


def _order(stack: Stack, facts: Comparison) -> tuple[int, bool, str]:
    nodes = facts.stacks[stack]
    return -len(nodes), stack.first(VERDICT) != "consistent", min(facts.names(nodes))


def _group(stack: Stack, reference: Stack, facts: Comparison, most: int) -> Group:
    """A group, with at most so many changes."""
    nodes = facts.stacks[stack]
    about = sorted((key for key in stack.parts if key[0] in ABOUT), key=place)
    mine, theirs = stack.parts, reference.parts
    changed = {key for key, _ in mine.items() ^ theirs.items()} if stack is not reference else set()
    changes = []
    for key in sorted(changed, key=place)[:most]:
        here, there = mine.get(key), theirs.get(key)
        if here is None or there is None:  # the version of the other is enough
            here, there = here and here[:1], there and there[:1]
        changes.append(Change(title(key), shown(here, there), shown(there, here)))
    if len(changed) > most:
        more = f"and {len(changed) - most:,} more" if most else f"{len(changed):,} components"
        changes.append(Change(more, "", ""))
    words = ",".join(hosts.fold(facts.names(nodes)))
    return Group(
        len(nodes),
        words,
        stack.first(VERDICT) or "unknown",
        {title(key): shown(mine[key]) for key in about},
        changes,
    )


def _differences(facts: Comparison) -> list[Difference]:
    found = []
    for component in [*facts.differing][:DIFFERENCES_KEPT]:
        told: dict[Value | None, list[Stack]] = {}
        for stack in facts.all_stacks:
            told.setdefault(stack.parts.get(component), []).append(stack)
        shares = [facts.share(shown(value), stacks) for value, stacks in told.items()]
        shares.sort(key=Share.order)
        found.append(Difference(title(component), few(shares)))
    if len(facts.differing) > DIFFERENCES_KEPT:
        more = f"and {len(facts.differing) - DIFFERENCES_KEPT:,} more components"
        found.append(Difference(more, []))
    return found
