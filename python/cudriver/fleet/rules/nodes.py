"""FL6: nodes that are not well by themselves, or did not answer, and the baseline."""

from __future__ import annotations

from collections.abc import Iterator

from cudriver.fleet.comparison import BASELINE, Comparison, title
from cudriver.fleet.result import Finding, Share, finding
from cudriver.fleet.stacks import FINDING, VERDICT, Stack
from cudriver.stack.facts import ERROR, NOTE, WARNING
from cudriver.stack.text import some


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
    count, of = sum(len(facts.stacks[stack]) for stack in bad), len(facts.nodes)
    title = "the report tells of errors"
    if of > 1:
        title = f"{count} of {of} reports tell of errors of their own"
    why = "there an import, or the first use of CUDA, fails"
    line = "Run `cudriver check` on one of these nodes: it says how to fix it."
    yield finding(ERROR, title, why, sorted(shares, key=Share.order), line)


def fl602(facts: Comparison) -> Iterator[Finding]:
    """Nodes whose own check came to no verdict."""
    unsure = [stack for stack in facts.stacks if stack.first(VERDICT) == "unknown"]
    if unsure:
        share = facts.share("no verdict", unsure)
        title = f"{share.count:,} report{'s' if share.count > 1 else ''} without a verdict"
        why = "their own check could not tell whether the stack works: it may fail there"
        line = "Run `cudriver check` on one of these nodes: it names what it could not look into."
        yield finding(WARNING, title, why, [share], line)


def fl603(facts: Comparison) -> Iterator[Finding]:
    """Nodes that did not answer."""
    if facts.missed:
        names = ",".join(facts.missing)
        why = "they may be down, or their check was ended or is still under way"
        evidence = [Share("no report", facts.missed, names)] if names else []
        yield finding(WARNING, f"{facts.missed:,} did not answer", why, evidence)


def fl604(facts: Comparison) -> Iterator[Finding]:
    """Processes without a report that can be used: it is damaged, or was not made."""
    count = facts.counts["broken"]
    if count:
        title = f"{count:,} process{'es' if count > 1 else ''} without a usable report"
        why = "the comparison lacks what they would have reported"
        evidence = [Share(broken.why, 1, broken.place) for broken in facts.broken]
        line = "Gather damaged reports again: srun --label, or a file for each process. Where a "
        line += "process was killed or did not answer, run `cudriver check` on its node."
        yield finding(WARNING, title, why, evidence, line)


def fl605(facts: Comparison) -> Iterator[Finding]:
    """Reports of several versions of cudriver."""
    versions: dict[str, list[str]] = {}
    for node in facts.nodes:
        versions.setdefault(node.cudriver, []).append(facts.labels[node])
    if len(versions) > 1:
        title = f"reports of {len(versions)} versions of cudriver"
        why = "a newer one may see more, so that some differences may be its own"
        evidence = [facts.named(version or "unknown", names) for version, names in versions.items()]
        yield finding(NOTE, title, why, evidence)


def fl606(facts: Comparison) -> Iterator[Finding]:
    """Nodes that are not as the baseline."""
    if facts.baseline is None:
        return
    other = [stack for stack in facts.stacks if stack is not facts.baseline]
    if other:
        names = [title(key) for key in facts.differing]
        share = facts.share(f"not as {BASELINE}", other)
        about = f"{share.count:,} of {len(facts.nodes):,} differ from {BASELINE}"
        yield finding(WARNING, about, f"in {some(names, 6)}", [share])
