"""Cases of rules, tests/stack/cases/CODE.txt: facts made by hand, as differences from facts() in
the words of facts.py, and the rule's findings, as golden.py renders them. tried_cases.txt: what all
rules find in such facts, and whether each fix is proven. casekit.py has the form. PREFIX, SITE and
LIB64 in a text are the folders of those names.
"""

from __future__ import annotations

import re
from pathlib import Path

import facts
import golden

import casekit
from cudriver.stack import facts as types
from cudriver.stack import machine_facts
from cudriver.stack.rules import judge, registry

TRIED = Path(__file__).with_name("tried_cases.txt")
FOLDER = Path(__file__).with_name("cases")
NAMES = {"SITE": facts.SITE, "LIB64": facts.LIB64, "PREFIX": facts.PREFIX}


def path(rule: str) -> Path:
    return FOLDER / f"{rule}.txt"


def in_full(source: str) -> str:
    return re.sub(r"\b(PREFIX|SITE|LIB64)(?=[-/:\"'])", lambda name: NAMES[name[0]], source)


def make(rule: str, case: casekit.Case) -> types.Facts:
    """The facts of a case."""
    return facts_of(casekit.read(path(rule))[0], case.source)


def facts_of(head: str, source: str) -> types.Facts:
    known = {**vars(machine_facts), **vars(types), **vars(facts)}
    exec(in_full(head), known)
    return eval(f"facts({in_full(source)})", known)  # type: ignore[no-any-return]


def check(rule: str, name: str) -> None:
    """The rule finds in a case what it found before; each finding points somewhere and, unless a
    note, fixes something.
    """
    case = casekit.read(path(rule))[1][name]
    found = list(registry()[rule](make(rule, case)))
    for finding in found:
        assert finding.rule == rule
        assert finding.title
        assert finding.evidence, finding
        assert all(e.file for e in finding.evidence)
        assert finding.fix or finding.advice or finding.severity == "note", finding
        for command in finding.fix:
            assert not re.search(r"(?<!unset )(?<!export )LD_LIBRARY_PATH", command)
    words = "\n".join(map(golden.render, found))
    for short, folder in NAMES.items():
        words = words.replace(folder, short)
    told = " ".join(finding.severity for finding in found) or "silent"
    casekit.check(path(rule), case, told, words)


def tried() -> tuple[str, dict[str, casekit.Case]]:
    return casekit.read(TRIED)


def of_fixes(name: str) -> types.Facts:
    head, known = tried()
    return facts_of(head, known[name].source)


def check_fixes(name: str) -> None:
    """What all rules find, with the fixes that were tried on a copy of the facts."""
    lines, loud = [], []
    for found in judge(of_fixes(name)):
        if found.severity != "note":
            loud.append(found.severity)
            also = "".join(f", {other.rule} {other.severity}" for other in found.also)
            lines.append(f"{found.rule} {found.severity}{also}: {found.title}")
            lines += [f"    says {found.predicts}"] * (found.predicts is not None)
            lines += [f"    {'proven' if each.heals else 'untried'}: {each}" for each in found.fix]
            lines += [f"    advice: {found.advice}"] * bool(found.advice)
    words = "\n".join(lines)
    for short, folder in NAMES.items():
        words = words.replace(folder, short)
    casekit.check(TRIED, tried()[1][name], " ".join(loud) or "silent", words or "nothing")
