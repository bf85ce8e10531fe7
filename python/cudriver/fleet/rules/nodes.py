"""FL6: nodes that are not well by themselves, or did not answer, and the baseline."""

from __future__ import annotations

from collections.abc import Iterator

from cudriver.fleet.comparison import BASELINE, Comparison, title
from cudriver.fleet.result import Finding, Share
from cudriver.fleet.stacks import FINDING, VERDICT, Stack
from cudriver.stack.model import ERROR, NOTE, WARNING


def fl601(facts: Comparison) -> Iterator[Finding]:
    """Nodes whose own check found a mismatch."""
    bad = [stack for stack in facts.stacks if stack.first(VERDICT) == "mismatch"]
    if not bad:
        return
    told: dict[str, dict[Stack, None]] = {}  # each stack once, in order
    for stack in bad:
        errors = [(name, value) for name, value in stack.of_kind(FINDING) if value[1] == "error"]
        for name, value in errors:
            told.setdefault(f"{name.partition(' ')[0]} {value[0]}", {})[stack] = None
        if not errors:
            told.setdefault("a mismatch by the options of its check", {})[stack] = None
    shares = [facts.share(text, stacks) for text, stacks in told.items()]
    count = sum(len(facts.stacks[stack]) for stack in bad)
    of = len(facts.nodes)
    yield Finding(
        "FL601",
        ERROR,
        f"{count} of {of} report{'s tell' if of > 1 else ' tells'} of errors of their own"
        if of > 1
        else "the report tells of errors",
        "there an import, or the first use of CUDA, fails",
        sorted(shares, key=Share.order),
        ["Run `cudriver check` on one of these nodes: it says how to fix it."],
    )


def fl602(facts: Comparison) -> Iterator[Finding]:
    """Nodes whose own check came to no verdict."""
    unsure = [stack for stack in facts.stacks if stack.first(VERDICT) == "unknown"]
    if unsure:
        share = facts.share("no verdict", unsure)
        yield Finding(
            "FL602",
            WARNING,
            f"{share.count:,} report{'s' if share.count > 1 else ''} without a verdict",
            "their own check could not tell whether the stack works: it may fail there",
            [share],
            ["Run `cudriver check` on one of these nodes: it names what it could not look into."],
        )


def fl603(facts: Comparison) -> Iterator[Finding]:
    """Nodes that did not answer."""
    if facts.missed:
        count = facts.missed
        names = ",".join(facts.missing)
        yield Finding(
            "FL603",
            WARNING,
            f"{count:,} did not answer",
            "they may be down, or their check was ended or is still under way",
            [Share("no report", count, names)] if names else [],
        )


def fl604(facts: Comparison) -> Iterator[Finding]:
    """Processes without a report that can be used: it is damaged, or was not made."""
    count = facts.counts["broken"]
    if count:
        yield Finding(
            "FL604",
            WARNING,
            f"{count:,} process{'es' if count > 1 else ''} without a usable report",
            "the comparison lacks what they would have reported",
            [Share(broken.why, 1, broken.place) for broken in facts.broken],
            [
                "Gather damaged reports again: srun --label, or a file for each process. Where a "
                "process was killed or did not answer, run `cudriver check` on its node."
            ],
        )


def fl605(facts: Comparison) -> Iterator[Finding]:
    """Reports of several versions of cudriver."""
    versions: dict[str, list[str]] = {}
    for node in facts.nodes:
        versions.setdefault(node.cudriver, []).append(facts.labels[node])
    if len(versions) > 1:
        yield Finding(
            "FL605",
            NOTE,
            f"reports of {len(versions)} versions of cudriver",
            "a newer one may see more, so that some differences may be its own",
            [facts.named(version or "unknown", names) for version, names in versions.items()],
        )


def fl606(facts: Comparison) -> Iterator[Finding]:
    """Nodes that are not as the baseline."""
    if facts.baseline is None:
        return
    other = [stack for stack in facts.stacks if stack is not facts.baseline]
    if other:
        names = [title(key) for key in facts.differing]
        share = facts.share(f"not as {BASELINE}", other)
        yield Finding(
            "FL606",
            WARNING,
            f"{share.count:,} of {len(facts.nodes):,} differ from {BASELINE}",
            f"in {', '.join(names[:6])}" + (f" and {len(names) - 6} more" if names[6:] else ""),
            [share],
        )


RULES = {
    "FL601": fl601,
    "FL602": fl602,
    "FL603": fl603,
    "FL604": fl604,
    "FL605": fl605,
    "FL606": fl606,
}
