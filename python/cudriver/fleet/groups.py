"""The groups of nodes that carry equal stacks, and what differs between them."""

from __future__ import annotations

from cudriver.fleet import hosts
from cudriver.fleet.comparison import BASELINE, Comparison, place, shown, title
from cudriver.fleet.report import Fleet
from cudriver.fleet.result import Change, Difference, Finding, Group, Share
from cudriver.fleet.stacks import DRIVER, FRAMEWORK, GPUS, OFFERS, PYTHON, VERDICT, Stack

ABOUT = (DRIVER, OFFERS, GPUS, PYTHON, FRAMEWORK)  # what a group is described by


def fleet(facts: Comparison, findings: list[Finding], *, strict: bool = False) -> Fleet:
    """The comparison as people get it."""
    ranked = sorted(facts.stacks, key=lambda stack: _order(stack, facts))
    reference = facts.baseline or (ranked[0] if ranked else Stack({}))
    unsure = any(stack.first(VERDICT) == "unknown" for stack in ranked)
    return Fleet(
        groups=[_group(stack, reference, facts) for stack in ranked],
        differences=_differences(facts),
        findings=findings,
        missing=",".join(facts.missing),
        unsure=bool(unsure or facts.missed or facts.broken or not ranked),
        counts=facts.counts,
        reference=BASELINE if facts.baseline else "group 1",
        golden=ranked[0] if ranked else None,
        strict=strict,
    )


def _order(stack: Stack, facts: Comparison) -> tuple[int, bool, str]:
    nodes = facts.stacks[stack]
    return -len(nodes), stack.first(VERDICT) != "consistent", min(facts.names(nodes))


def _group(stack: Stack, reference: Stack, facts: Comparison) -> Group:
    nodes = facts.stacks[stack]
    about = sorted((key for key in stack.parts if key[0] in ABOUT), key=place)
    mine, theirs = stack.parts, reference.parts
    changed = {key for key, _ in mine.items() ^ theirs.items()} if stack is not reference else set()
    changes = []
    for key in sorted(changed, key=place):
        here, there = mine.get(key), theirs.get(key)
        if here is None or there is None:  # the version of the other is enough
            here, there = here and here[:1], there and there[:1]
        changes.append(Change(title(key), shown(here, there), shown(there, here)))
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
    for component, having in facts.differing.items():
        shares = [facts.share(shown(value), stacks) for value, stacks in having.items()]
        shares.sort(key=Share.order)
        found.append(Difference(title(component), shares))
    return found
