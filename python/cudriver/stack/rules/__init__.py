"""The rules: each a function from facts to findings, by its number."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cudriver.stack.facts import RANK, WARNING, Evidence, Facts, Finding
from cudriver.stack.record import but
from cudriver.stack.rules.finding import numbered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cudriver.stack.fixes.after import Recollect

Rule = Callable[[Facts], Iterable[Finding]]


def registry() -> dict[str, Rule]:
    """Every rule, in order of its number."""
    from cudriver.stack.rules import cu1, cu2, cu3, cu4, cu4_files, cu4_pins, cu5, cu6

    return numbered(cu1, cu2, cu3, cu4, cu4_files, cu4_pins, cu5, cu6)


def judge(
    facts: Facts, rules: dict[str, Rule] | None = None, recollect: Recollect | None = None
) -> list[Finding]:
    """What all rules find, the worst first, with the fixes that heal it.

    recollect: gives the facts as they are with other environment variables.
    """
    findings = run(facts, rules)
    if any(finding.fix for finding in findings):
        from cudriver.stack.fixes.tried import fold, keep_own_builds, try_fixes

        keep_own_builds(facts, findings)
        # An import that failed, and why is told, says nothing of what a fix brings.
        untold = {finding.because for finding in findings if finding.rule == "CU603"}
        kept = {name: e for name, e in facts.imports.items() if e is None or name in untold}
        try_fixes(facts, findings, lambda made: run(but(made, imports=kept), rules), recollect)
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
    if facts.imports:
        from cudriver.stack.rules.cu6 import settled

        findings = [*settled(findings, facts.imports)]
    # A framework without CUDA last: it can be imported.
    findings.sort(key=lambda f: (RANK[f.severity], f.rule == "CU401", f.rule))
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
    advice = "report this as a bug of cudriver, with the output of `cudriver check --json`."
    return Finding(number, WARNING, title, evidence, None, [], advice, number, crashed=True)
