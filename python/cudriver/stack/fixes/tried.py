"""Fixes are tried on a copy of the facts before they are told: one that does not take its finding
away, or that brings an error or a warning, is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from cudriver.stack.facts import ERROR, NOTE, Facts, Finding
from cudriver.stack.fixes.after import Recollect, after
from cudriver.stack.record import but

Lines = tuple[str, ...]
Key = tuple[str, str, str | None]
Seen = dict[str, Counter[Key]]

TRIALS = 24  # different commands; those of further findings are told untried
NONE = "no command that is known here fixes this and breaks nothing else."


def try_fixes(
    facts: Facts,
    findings: list[Finding],
    run: Callable[[Facts], list[Finding]],
    recollect: Recollect | None,
) -> None:
    """Keeps of each finding's fixes those that heal it. Of several that one cause has, each of its
    findings gets the one that takes most away. run: all rules.
    """
    told = [f for f in findings if f.severity != NOTE and f.fix and not f.crashed]
    trials = _Trials(facts, findings, run, recollect)
    parts = {id(f): _parts(f.fix) for f in told}
    # So many different ones are tried: what follows is linear in the findings.
    tried = dict.fromkeys(part for f in told for part in parts[id(f)] if trials.heals(f, part))
    count = {part: sum(bool(trials.heals(f, part)) for f in told) for part in tried}
    pool = [part for part in tried if not trials.removes(part)]
    for finding in told:
        kept = [p for p in parts[id(finding)] if trials.heals(finding, p) is not False]
        proven = [p for p in kept if trials.heals(finding, p)]
        if not kept:
            finding.fix = [NONE]
        elif proven or len(kept) < len(parts[id(finding)]):
            finding.fix = [line for part in kept for line in part]
        healing = [p for p in pool if trials.heals(finding, p)] or proven
        finding.proven = bool(healing)
        best = max(healing, key=count.__getitem__, default=())
        if best not in kept:
            finding.fix = [*best] or finding.fix


def fold(findings: list[Finding]) -> list[Finding]:
    """The findings, the worst first, each with those that the same proven fix takes away in `also`:
    they have the same cause, and one command.
    """
    first: dict[Lines, Finding] = {}
    kept = []
    for finding in findings:
        main = first.setdefault(tuple(finding.fix), finding) if finding.proven else finding
        if main is finding:
            kept.append(finding)
        else:
            main.also.append(finding)
    return kept


def alone(finding: Finding) -> Finding:
    """A copy without what was folded into it."""
    return but(finding, also=[])


def _parts(fix: list[str]) -> list[Lines]:
    """What is tried by itself: every line, but a list that begins by taking something away."""
    words = fix[0].split()
    whole = "uninstall" in words or "remove" in words
    return [tuple(fix)] if whole else [(line,) for line in fix]


class _Trials:
    """What the rules find after each command."""

    def __init__(
        self,
        facts: Facts,
        findings: list[Finding],
        run: Callable[[Facts], list[Finding]],
        recollect: Recollect | None,
    ) -> None:
        self.facts, self.run, self.recollect = facts, run, recollect
        self.before = _seen(findings)
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
    told = [f for f in findings if f.severity != NOTE]
    errors = [f for f in told if f.severity == ERROR]
    return {k: Counter(map(_key, v)) for k, v in (("all", told), ("bad", errors))}


def _key(finding: Finding) -> Key:
    return finding.rule, finding.subject, finding.because
