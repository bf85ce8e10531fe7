"""The verdict: whether each framework that is here for CUDA can use it, and what is not known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cudriver.stack.environment.markers import Markers, markers_of
from cudriver.stack.facts import (
    CPU_ONLY,
    ERROR,
    FAILS,
    NOT_KNOWN,
    SPARE,
    UNMODELLED,
    WARNING,
    WORKS,
    Facts,
    Finding,
    Framework,
    every,
)
from cudriver.stack.record import Record

DAMAGED = ("CU404", "CU409")  # these tell of an installation that cannot be imported whole
ASKED = ("CU2", "CU602")  # these compare with what was asked for: everything may work all the same


class Question(Record):
    """Something that nobody could tell. about: frameworks whose state it leaves open; None: all."""

    text: str
    about: list[str] | None = None
    import_tells: bool = False


def states(
    findings: Iterable[Finding], facts: Facts, *, strict: bool = False
) -> dict[str, str | None]:
    """The state of each framework by its name; None: it is here without CUDA."""
    findings = list(every(findings))
    asked = [q for q in questions(findings, facts, strict) if not answered(q, facts)]
    found = {f.name: _state(f, findings, asked, facts) for f in facts.frameworks}
    for framework in facts.frameworks:
        cause: Framework | None = framework
        for _ in facts.frameworks:  # its import ends with that one's
            cause = facts.framework(cause.blocked) if cause and cause.blocked else cause
        if cause is not None and found[framework.name] == WORKS:
            state = found[cause.name]
            found[framework.name] = state if state in (FAILS, NOT_KNOWN) else WORKS
    return found


def _state(
    framework: Framework, findings: list[Finding], asked: list[Question], facts: Facts
) -> str | None:
    wrong = (f for f in findings if f.severity == ERROR and not f.rule.startswith(ASKED))
    errors = [finding for finding in wrong if concerns(finding, framework, facts)]
    failed = any(facts.imports.get(name or "") for name in framework.names)
    if errors or failed:
        return CPU_ONLY if not failed and all(finding.cpu for finding in errors) else FAILS
    spare = any(f.framework == framework.name and f.means == SPARE for f in facts.load_faults)
    if spare or framework.without_cuda:
        return None
    open_ones = (q.about is None or framework.name in q.about for q in asked)
    return NOT_KNOWN if any(open_ones) else WORKS


def concerns(finding: Finding, framework: Framework, facts: Facts) -> bool:
    """Whether a finding is about a framework: by its name, by a library that it loads, by what it
    requires, or since it is about the machine or the interpreter.
    """
    subject = finding.subject
    if not subject:
        return not finding.rule.startswith(ASKED) and not framework.without_cuda
    if subject in (framework.name, framework.distribution, framework.module):
        return True
    if finding.because in framework.loads or subject in framework.loads:
        return True
    for fault in facts.load_faults:  # that of several frameworks is told once
        if fault.framework == framework.name and fault.severity == finding.severity:
            needs = f"needs {fault.name}"
            if any((e.file, e.value) == (fault.library, needs) for e in finding.evidence):
                return True
    other = next((f for f in facts.frameworks if subject in f.names), None)
    if other is not None and not (other.fails or finding.rule in DAMAGED):
        return False  # it is judged by itself
    if other is None and subject in _of_cuda(framework, facts):
        return True
    package = other.package if other is not None else subject
    sure = finding.severity == ERROR and not finding.doubt
    return sure and package in _directly(framework.package, facts)


def _directly(name: str, facts: Facts, markers: Markers | None = None) -> Iterator[str]:
    """What an installed distribution itself requires here, for no extra."""
    dist, env = facts.distribution(name), facts.environment
    markers = markers or markers_of(env.python, env.platform)
    for required, _, marker in dist.asks if dist else ():
        if "extra" not in marker and (not marker.strip() or markers.holds(marker) is not False):
            yield required


def _in_all(framework: Framework, facts: Facts) -> set[str]:
    """What its distribution requires, and what that requires."""
    env, left = facts.environment, [framework.package]
    markers, found = markers_of(env.python, env.platform), set[str]()
    for name in left:  # grows
        new = {*_directly(name, facts, markers)} - found
        found |= new
        left += new
    return found


def _of_cuda(framework: Framework, facts: Facts) -> set[str]:
    """Its distribution and those of CUDA's that it requires, by METADATA."""
    found = {framework.package}
    left = [*found]
    for name in left:  # grows
        dist = facts.distribution(name)
        asked = dist.requires if dist else ()
        new = {r.name for r in asked if not r.extra or r.name.startswith("nvidia-")} - found
        found |= new
        left += new
    return found


def answered(question: Question, facts: Facts) -> bool:
    """Whether the real imports, which all worked, leave nothing open of those it is about."""
    made, about = facts.imports, question.about
    asked = (f for f in facts.frameworks if about is not None and f.name in about)
    whole = all(not made.keys().isdisjoint(f.names) for f in asked)
    return question.import_tells and bool(made) and not any(made.values()) and whole


def questions(
    findings: Iterable[Finding], facts: Facts, strict: bool = False
) -> Iterator[Question]:
    """What could not be told, each text once. strict: how a framework loads is asked, too."""
    seen = set()
    for question in _questions(list(every(findings)), facts, strict):
        if question.text not in seen:
            seen.add(question.text)
            yield question


def _questions(findings: list[Finding], facts: Facts, strict: bool) -> Iterator[Question]:
    env, frameworks = facts.environment, facts.frameworks
    for text in facts.unsure:
        whose = [f.name for f in frameworks if text.startswith((f"{f.name}: ", f.path or "\0"))]
        yield Question(text, whose or None)
    for finding in findings:
        if finding.crashed:
            yield Question(finding.title)
    shown = [evidence for finding in findings for evidence in finding.evidence]
    for fault in facts.load_faults:
        if fault.doubt is not None and fault.doubt in shown:  # an error, had that been looked at
            yield Question(f"{fault.doubt.file}: {fault.doubt.value}", [fault.framework or ""])
    if env.python is None and not facts.distributions:
        near = f"; did you mean {env.near}?" if env.near else ""
        packages = env.near is not None and env.near.startswith("PYTHONPATH=")
        what = "packages, but no Python" if packages else "neither a Python nor packages"
        yield Question(f"{env.prefix} has {what}{near}")
    for finding in findings:
        if finding.doubt:
            whose = [f.name for f in frameworks if concerns(finding, f, facts)]
            whose += [f.name for f in frameworks if finding.subject in _in_all(f, facts)]
            yield Question(finding.doubt, whose, not finding.rule.startswith(ASKED))
    names = {name for f in frameworks for name in (f.name, f.distribution, f.module)}
    wrong = [f for f in findings if f.severity == ERROR and not f.rule.startswith(ASKED)]
    wrong = [f for f in wrong if f.subject and f.subject not in names and not f.doubt]
    for framework in (f for f in frameworks if wrong and not f.without_cuda):
        needed = _in_all(framework, facts)
        for finding in wrong:
            if finding.subject in needed and not concerns(finding, framework, facts):
                text = f"whether {framework.name} works is not known: it needs {finding.subject}"
                yield Question(f"{text}, which has an error", [framework.name], True)
    for framework in (f for f in frameworks if not f.modelled):
        text = f"how {framework.name} loads its libraries is not known"
        mine = (f for f in facts.load_faults if f.framework == framework.name and not f.lazy)
        refused = next((f for f in mine if f.means == UNMODELLED), None)
        if refused is not None and refused.kind == "not found":
            text += f", and {refused.name}, which it links, is not found"
        elif refused is not None:
            text += f", and the loader refuses {refused.file}"
        warnings = (x for x in findings if x.severity == WARNING and x.subject)
        warned = any(concerns(x, framework, facts) for x in warnings)
        if refused is not None or warned or strict:
            yield Question(text, [framework.name], True)
