"""The rules: each a function from facts to findings, by its number."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cudriver.stack.facts import (
    CONSISTENT,
    ERROR,
    MISMATCH,
    NOTE,
    UNKNOWN,
    WARNING,
    Evidence,
    Facts,
    Finding,
    every,
)
from cudriver.stack.rules.finding import numbered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cudriver.stack.fixes.after import Recollect

Rule = Callable[[Facts], Iterable[Finding]]

_ORDER = {ERROR: 0, WARNING: 1, NOTE: 2}


def registry() -> dict[str, Rule]:
    """Every rule, in order of its number."""
    from cudriver.stack.rules import cu1, cu2, cu3, cu4, cu4_files, cu4_pins, cu5

    return numbered(cu1, cu2, cu3, cu4, cu4_files, cu4_pins, cu5)


def judge(
    facts: Facts, rules: dict[str, Rule] | None = None, recollect: Recollect | None = None
) -> list[Finding]:
    """What all rules find, the worst first, with the fixes that heal it.

    recollect: gives the facts as they are with other environment variables.
    """
    findings = run(facts, rules)
    if any(finding.fix and finding.severity != NOTE for finding in findings):
        from cudriver.stack.fixes.tried import fold, try_fixes

        try_fixes(facts, findings, lambda changed: run(changed, rules), recollect)
        return fold(findings)
    return findings


def run(facts: Facts, rules: dict[str, Rule] | None = None) -> list[Finding]:
    """What all rules find. A rule that fails is a finding, and the others run."""
    findings: list[Finding] = []
    for number, rule in (registry() if rules is None else rules).items():
        try:
            findings.extend(rule(facts))
        except Exception as error:
            findings.append(_crash(number, error))
    # A framework without CUDA last: it can be imported.
    findings.sort(key=lambda f: (_ORDER[f.severity], f.rule == "CU401", f.rule))
    return findings


def _crash(number: str, error: Exception) -> Finding:
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    evidence = []
    if where is not None:
        file = where.tb_frame.f_code.co_filename
        evidence = [Evidence(file, where.tb_lineno, f"{type(error).__name__}: {error}")]
    title = f"{number} could not be checked: {type(error).__name__}: {error}"
    fix = ["report this as a bug of cudriver, with the output of `cudriver check --json`"]
    return Finding(number, WARNING, title, evidence, None, fix, number, crashed=True)


def verdict(findings: Iterable[Finding], facts: Facts) -> str:
    """ "mismatch" with an error, "unknown" where something decisive could not be told."""
    findings = list(findings)
    if any(f.severity == ERROR for f in findings):
        return MISMATCH
    return UNKNOWN if doubts(findings, facts) else CONSISTENT


def doubts(findings: Iterable[Finding], facts: Facts) -> list[str]:
    """Why it cannot be told whether all fits; nothing where it can."""
    findings, env = list(every(findings)), facts.environment
    why = [*facts.unsure, *(f.title for f in findings if f.crashed)]
    told = [evidence for finding in findings for evidence in finding.evidence]
    for fault in facts.load_faults:
        if fault.doubt in told:  # it would be an error, had that been looked at
            why.append(f"{fault.doubt.file}: {fault.doubt.value}")
    if facts.match is not None:
        from cudriver.stack.rules.cu2 import settled

        if not settled(facts):
            why.append("there are no two toolkit versions to compare, as --match asks")
    if env.python is None and not facts.distributions:
        near = f"; did you mean {env.near}?" if env.near else ""
        why.append(f"{env.prefix} has neither a Python nor packages{near}")
    return list(dict.fromkeys([*why, *open_questions(findings, facts)]))


def open_questions(findings: Iterable[Finding], facts: Facts) -> list[str]:
    """Those doubts that a real import settles."""
    why = [finding.doubt for finding in every(findings) if finding.doubt]
    if facts.frameworks and not any(f.modelled for f in facts.frameworks):
        names = ", ".join(f.name for f in facts.frameworks)
        why.append(f"how {names} loads its libraries is not known")  # no verdict without a look
    return why
