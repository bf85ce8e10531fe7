"""From reports to groups of equal stacks, and to what differs between them."""

from __future__ import annotations

from itertools import groupby

from cudriver.fleet import hosts, read
from cudriver.fleet.result import Share
from cudriver.fleet.stacks import (
    KINDS,
    LOADED,
    VARIABLE,
    Node,
    Reducer,
    Stack,
    Unusable,
    said,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from typing import Any

    from cudriver.fleet.stacks import Component, Value

BASELINE = "the baseline"
NONE = "none"  # a component that a node does not have
BROKEN_SHOWN = 20
FINDINGS_KEPT = 20  # of one rule; those that are left out are counted
SHARES_KEPT = 100  # values of a component, or lines of evidence; the rest are counted


class Split:
    """Nodes apart by a value: who has which, and the jobs in which both are."""

    def __init__(self, shares: list[Share], jobs: list[str]) -> None:
        self.shares = shares
        self.jobs = jobs


class Comparison:
    """All that the rules may look at."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.stacks: dict[Stack, list[Node]] = {}
        self.labels: dict[Node, str] = {}
        self.jobs: dict[str, set[Stack]] = {}
        self.baseline: Stack | None = None
        self.broken: list[read.Broken] = []
        self.missing: list[str] = []
        self.missed = 0  # how many, which may be more than have a name
        self.counts: dict[str, int] = dict.fromkeys(
            ("nodes", "reports", "older", "differing", "broken", "other"), 0
        )
        self.differing: dict[Component, dict[Value, list[Stack]]] = {}

    @property
    def all_stacks(self) -> list[Stack]:
        """The nodes' and the baseline's."""
        extra = [self.baseline] if self.baseline and self.baseline not in self.stacks else []
        return [*self.stacks, *extra]

    def having(self, component: Component) -> list[Stack]:
        """The stacks that have a component, whatever its value. It is one that differs."""
        return [stack for stacks in self.differing[component].values() for stack in stacks]

    def without(self, component: Component) -> list[Stack]:
        """The nodes' stacks that lack a component."""
        return [stack for stack in self.stacks if component not in stack.parts]

    def names(self, nodes: Iterable[Node]) -> list[str]:
        """What they are called."""
        return [self.labels[node] for node in nodes]

    def share(self, value: str, stacks: Iterable[Stack], jobs: Collection[str] = ()) -> Share:
        """The nodes with these stacks, as a line of evidence; of these jobs, if any are given."""
        stacks = list(stacks)
        nodes = (node for stack in stacks for node in self.stacks.get(stack, ()))
        found = self.named(value, self.names(n for n in nodes if not jobs or n.job in jobs))
        if self.baseline in stacks:
            found.nodes += f",{BASELINE}" if found.nodes else BASELINE
        return found

    def named(self, value: str, names: Iterable[str]) -> Share:
        """Nodes by their names, as a line of evidence."""
        names = list(names)
        return Share(value, len(names), ",".join(hosts.fold(names)))

    def split(
        self,
        key: Callable[[Stack], str | None],
        among: Iterable[Stack] | None = None,
        *,
        by_job: bool = False,
    ) -> Split | None:
        """The nodes apart by what `key` says of their stacks; those of which it says None are in no
        part. None where there is one part at most. With `among`, the only stacks of which it says
        anything, the time is that of these. With `by_job`, and where some jobs are apart,
        only the nodes of those jobs count: what other jobs carry is not evidence against them.
        """
        by_value: dict[str, list[Stack]] = {}
        for stack in self.all_stacks if among is None else among:
            value = key(stack)
            if value is not None:
                by_value.setdefault(value, []).append(stack)
        if len(by_value) < 2:
            return None
        of = {stack: value for value, stacks in by_value.items() for stack in stacks}
        shared = {of[self.baseline]} if self.baseline in of else set()
        of_job: dict[str, set[str]] = {}
        for stack, value in of.items():
            for node in self.stacks.get(stack, ()):
                of_job.setdefault(node.job, {*shared}).add(value)
        jobs = {job for job, values in of_job.items() if len(values) > 1}
        counted = jobs if by_job else ()
        shares = [self.share(value, stacks, counted) for value, stacks in by_value.items()]
        shares = sorted((share for share in shares if share.nodes), key=Share.order)
        return Split(shares, sorted(jobs))


def look(
    reports: Iterable[Any],
    *,
    baseline: Any = None,
    expect: int | None = None,
    nodes: Iterable[str] | None = None,
) -> Comparison:
    """Read the reports, each as it comes, and find what differs. Raises Unusable."""
    reducer = Reducer()
    facts = Comparison()
    _gather(reports, reducer, facts)
    if baseline is not None:
        facts.baseline = stack_of(baseline, reducer)
    _label(facts)
    _miss(facts, expect, nodes)
    facts.differing = _differing(facts)
    return facts


def _gather(reports: Iterable[Any], reducer: Reducer, facts: Comparison) -> None:
    """Reduces each report as it comes. Of the reports of one process the newest counts.

    Another boot id may be that of another machine with the same name, or the machine has been
    started again. Nothing tells which, so a newer report replaces only an equal one.
    """
    known: dict[tuple[bytes, str], Node] = {}
    replaced: dict[tuple[bytes, str], set[Stack]] = {}
    for number, item in enumerate(_told(reports), 1):
        if isinstance(item, read.Other):
            facts.counts["other"] += 1
            continue
        try:
            if isinstance(item, read.Broken):
                raise Unusable(item.why)
            node = reducer.node(item.value, item.name or f"report {number}")
        except (Unusable, ValueError, RecursionError) as error:
            place = item.place if isinstance(item, read.Broken) else item.name
            facts.counts["broken"] += 1
            if len(facts.broken) < BROKEN_SHOWN:
                facts.broken.append(read.Broken(place or f"report {number}", str(error)))
            continue
        facts.counts["reports"] += 1
        process = node.identity, node.boot
        before = known.get(process)
        if before is None:
            known[process] = node
            continue
        known[process], older = (node, before) if before.time <= node.time else (before, node)
        replaced.setdefault(process, set()).add(older.stack)
    newest: dict[tuple[bytes, Stack], Node] = {}
    for node in known.values():
        before = newest.setdefault((node.identity, node.stack), node)
        if before.time < node.time:
            newest[node.identity, node.stack] = node
    facts.nodes = list(newest.values())
    facts.counts["older"] = facts.counts["reports"] - len(facts.nodes)
    facts.counts["differing"] = sum(
        len(stacks - {known[process].stack}) for process, stacks in replaced.items()
    )
    facts.counts["nodes"] = len({(node.host, node.boot) for node in facts.nodes})
    for node in facts.nodes:
        facts.stacks.setdefault(node.stack, []).append(node)
        facts.jobs.setdefault(node.job, set()).add(node.stack)


def _told(reports: Iterable[Any]) -> Iterator[read.Told | read.Broken | read.Other]:
    """What a program passes: reports as objects or dicts, or lines of text as a file has them."""
    for is_text, items in groupby(reports, lambda item: isinstance(item, (str, bytes))):
        if is_text:
            yield from read.told(map(_encoded, items), "")
            continue
        for item in items:
            if isinstance(item, (read.Told, read.Broken, read.Other)):
                yield item
            else:
                yield read.Told(item.to_dict() if hasattr(item, "to_dict") else item, "")


def _encoded(line: str | bytes) -> bytes:
    return line.encode("utf-8", "replace") if isinstance(line, str) else line


def _label(facts: Comparison) -> None:
    """A node is named by its host; where nodes of several groups are named alike, by more."""
    facts.labels = {node: node.host for node in facts.nodes}
    for more in (lambda node: node.detail, lambda node: f" boot {node.boot}"):
        alike: dict[str, list[Node]] = {}
        for node, label in facts.labels.items():
            alike.setdefault(label, []).append(node)
        for nodes in alike.values():
            if len({node.stack for node in nodes}) > 1 and len({*map(more, nodes)}) > 1:
                facts.labels.update((node, facts.labels[node] + more(node)) for node in nodes)


def _miss(facts: Comparison, expect: int | None, nodes: Iterable[str] | None) -> None:
    """Who did not answer: of the nodes named, of the ranks of a job, or of so many."""
    if nodes is not None:
        answered = {name for node in facts.nodes for name in (node.host, node.hostname)}
        answered |= {host.partition(".")[0] for host in answered}
        absent = [name for name in dict.fromkeys(nodes) if name not in answered]
        facts.missing, facts.missed = hosts.fold(absent), len(absent)
    ranks: dict[str, dict[int, int]] = {}
    for node in facts.nodes:
        if node.rank is not None and node.ranks:
            ranks.setdefault(node.job, {})[node.rank] = node.ranks
    for job, seen in ranks.items():
        size = max(seen.values())
        gaps = _gaps(sorted(rank for rank in seen if rank < size), size)
        if gaps:
            of = f" of job {job}" if job else ""
            words = [f"{a}" if a == b else f"{a}-{b}" for a, b in gaps]
            facts.missing.append(f"rank {','.join(words)}{of}")
            facts.missed += sum(b - a + 1 for a, b in gaps)
    if expect is not None:
        facts.missed = max(facts.missed, expect - len(facts.nodes))


def _gaps(seen: list[int], size: int) -> list[tuple[int, int]]:
    """First and last of each run of ranks below `size` that are not seen."""
    edges = zip([-1, *seen], [*seen, size], strict=True)
    return [(before + 1, after - 1) for before, after in edges if after - before > 1]


def _differing(facts: Comparison) -> dict[Component, dict[Value, list[Stack]]]:
    """The components that are not the same everywhere, with who has which value. Who has none is
    not listed: of a component that one node has, that would be all others.
    """
    stacks = facts.all_stacks
    values: dict[Component, dict[Value, list[Stack]]] = {}
    for stack in stacks:
        for component, value in stack.parts.items():
            values.setdefault(component, {}).setdefault(value, []).append(stack)
    return {
        component: values[component]
        for component in sorted(values, key=place)
        if len(values[component]) > 1 or sum(map(len, values[component].values())) < len(stacks)
    }


def few(shares: list[Share]) -> list[Share]:
    """The first of many shares, and one that tells how many more there are."""
    rest = shares[SHARES_KEPT:]
    if not rest:
        return shares
    count = sum(share.count for share in rest)
    return [*shares[:SHARES_KEPT], Share(f"and {len(rest):,} more", count, "")]


def listed(words: list[str]) -> str:
    """Words for a title, the first four of them: "12 and 13"."""
    return " and ".join(words[:4] + [f"{len(words) - 4:,} more"] * (len(words) > 4))


def place(component: Component) -> tuple[int, str]:
    return KINDS.index(component[0]), component[1]


def title(component: Component) -> str:
    """How people call it."""
    kind, name = component
    if kind == VARIABLE:
        return f"${name}"
    if kind in (LOADED, "built for"):
        return f"{name}, {kind}"
    return name or kind


def shown(value: Value | None, other: Value | None = None) -> str:
    """A value in a line; what is not first in it stands in brackets. Beside another value only what
    tells the two apart.
    """
    if value is None:
        return NONE
    first, *rest = value
    if other is not None:
        rest = [] if other[0] != first else [text for text in rest if text not in other]
    told = ", ".join(filter(None, rest))
    return f"{first} ({told})" if first and told else first or told


def to_baseline(stack: Stack) -> dict[str, Any]:
    """What --save-baseline writes."""
    rows = sorted(stack.parts.items(), key=lambda item: place(item[0]))
    return {"schema": 1, "baseline": [[*key, *value] for key, value in rows]}


def stack_of(baseline: Any, reducer: Reducer) -> Stack:
    """The stack of a baseline: a saved one, or a report. Raises Unusable."""
    if hasattr(baseline, "to_dict"):
        baseline = baseline.to_dict()
    rows = baseline.get("baseline") if isinstance(baseline, dict) else None
    if rows is None:
        return reducer.node(baseline, BASELINE).stack
    parts = {}
    for row in rows if isinstance(rows, list) else [None]:
        if not isinstance(row, list) or len(row) < 3 or row[0] not in KINDS:
            raise Unusable("a baseline that --save-baseline did not write")
        kind, name, *value = map(said, row)
        parts[kind, name] = tuple(value)
    return reducer.stack(parts)
