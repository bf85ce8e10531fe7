"""Fixes are tried on a copy of the facts before they are told: one that does not take its finding
away, or that brings an error or a warning, is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from cudriver.stack.command import Command
from cudriver.stack.facts import ERROR, NOTE, Facts, Finding
from cudriver.stack.fixes import fix
from cudriver.stack.fixes.after import Recollect, after, downloads

Run = Callable[[Facts], list[Finding]]  # all rules
Lines = tuple[Command, ...]
Key = tuple[str, str, str | None]
Seen = dict[str, Counter[Key]]

OWN_BUILD = re.compile(r"[+.]nv\d|a0\+")  # 2.6.0a0+ecf3bae.nv25.01 of a container, 2.9.0a0+git1
TRIALS = 24  # different commands; those of further findings are told untried
NONE = "no command that is known here fixes this and breaks nothing else."


def try_fixes(facts: Facts, findings: list[Finding], run: Run, recollect: Recollect | None) -> None:
    """Keeps of each finding's fixes those that heal it. Of several that one cause has, each of its
    findings gets the one that takes most away. run: all rules.
    """
    fixable = [f for f in findings if f.severity != NOTE and (f.fix or f.advice) and not f.crashed]
    trials = _Trials(facts, findings, run, recollect)
    parts = {id(f): _parts(f.fix) for f in fixable}
    # So many different ones are tried: what follows is linear in the findings.
    whole = _at_once([line for f in fixable for part in parts[id(f)] for line in part])
    mine = ((f, part) for f in fixable for part in (*parts[id(f)], *whole))
    tried = dict.fromkeys(part for f, part in mine if trials.heals(f, part))
    count = {part: sum(bool(trials.heals(f, part)) for f in fixable) for part in tried}
    # Of those that take as many away the one that fetches least.
    worth = {p: (n, -sum(trials.price[c] or 0 for c in p)) for p, n in count.items()}
    pool = [part for part in tried if not trials.removes(part)]
    for finding in fixable:
        kept = [p for p in parts[id(finding)] if trials.heals(finding, p) is not False]
        proven = [p for p in kept if trials.heals(finding, p)]
        healing = [p for p in pool if trials.heals(finding, p)] or proven
        best = max(healing, key=worth.__getitem__, default=())
        if best not in kept:
            kept = [best] if best else kept
        price = trials.price.get
        finding.fix = [
            Command.of(c, heals=p in healing, downloads=price(c)) for p in kept for c in p
        ]
        finding.advice = "" if best else finding.advice or NONE * (not kept)


def keep_own_builds(facts: Facts, findings: list[Finding]) -> None:
    """Tells of a build that no index has, in place of commands that would bring another for it."""
    own = {d.name: d for d in facts.distributions if OWN_BUILD.search(d.version)}
    for finding in findings if own else ():
        lost = {line: own.keys() & _replaced(facts, line) for line in finding.fix}
        names = sorted(set().union(*lost.values()))
        if names:
            finding.fix = [line for line in finding.fix if not lost[line]]
            finding.advice = (
                f"{names[0]} {own[names[0]].version} is a build of its own, which no index has: "
                "take a container of another release, or build anew what is to go with it."
            )


def _replaced(facts: Facts, line: Command) -> set[str]:
    """What a command may put another release in place of."""
    names = {fix.bare(each) for each in line.installs} | {line.removes}
    dists = [d for d in facts.distributions if d.name in names and not line.alone]
    asked = {name for d in dists for name, *_ in d.asks}
    return names | asked | {r.name for d in dists for r in d.requires}


def fold(findings: list[Finding]) -> list[Finding]:
    """The findings, the worst first, each with those that the same proven fix takes away in `also`:
    they have the same cause, and one command.
    """
    first: dict[tuple[str, ...], Finding] = {}
    kept = []
    for finding in findings:
        main = first.setdefault(tuple(finding.fix), finding) if finding.proven else finding
        if main is finding:
            kept.append(finding)
        else:
            main.also.append(finding)
    return kept


def _parts(fix: list[Command]) -> list[Lines]:
    """What is tried by itself: every line, but a list that begins by taking something away."""
    return [tuple(fix)] if fix and fix[0].removes else [(line,) for line in fix]


def _at_once(lines: list[Command]) -> list[Lines]:
    """What several commands do to a variable, as one: the second would undo the first."""
    left: dict[str, list[list[str]]] = {}
    for name, value in dict.fromkeys(line.sets for line in lines if line.sets):
        left.setdefault(name, []).append(fix.entries(name, value or ""))
    several = {name: each for name, each in left.items() if len(each) > 1}
    kept = {
        name: [e for e in each[0] if all(e in other for other in each)]
        for name, each in several.items()
    }
    return [(fix.setting(name, entries),) for name, entries in kept.items()]


class _Trials:
    """What the rules find after each command."""

    def __init__(
        self, facts: Facts, findings: list[Finding], run: Run, recollect: Recollect | None
    ) -> None:
        self.facts, self.run, self.recollect = facts, run, recollect
        self.before = _seen(findings)
        self.price: dict[Command, int | None] = {}
        self._after: dict[Lines, Seen | None] = {}
        self._removing: set[Lines] = set()

    def heals(self, finding: Finding, lines: Lines) -> bool | None:
        """Whether these lines take a finding away and bring none; None where it is not known."""
        if lines not in self._after:
            self._after[lines] = self._try(lines) if len(self._after) < TRIALS else None
        seen = self._after[lines]
        if seen is None:
            return None
        key = _key(finding)
        worse = any(seen[level] - self.before[level] for level in seen)
        return not worse and seen["all"][key] < self.before["all"][key]

    def removes(self, lines: Lines) -> bool:
        """Whether these lines take a framework away, so that nothing can be wrong with it."""
        return lines in self._removing

    def _try(self, lines: Lines) -> Seen | None:
        self.price.update((line, downloads(self.facts, line)) for line in lines)
        changed = after(self.facts, [*lines], self.recollect)
        if changed is None:
            return None
        if len(changed.frameworks) < len(self.facts.frameworks):
            self._removing.add(lines)
        return _seen(self.run(changed))


def _seen(findings: list[Finding]) -> Seen:
    """How often each rule speaks of each subject, for which cause: in errors and warnings, and in
    errors alone.
    """
    serious = [f for f in findings if f.severity != NOTE]
    errors = [f for f in serious if f.severity == ERROR]
    return {k: Counter(map(_key, v)) for k, v in (("all", serious), ("bad", errors))}


def _key(finding: Finding) -> Key:
    return finding.rule, finding.subject, finding.because
