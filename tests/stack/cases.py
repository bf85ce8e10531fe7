"""Cases of rules, tests/stack/cases/CODE.txt: facts made by hand, as differences from facts() in
the words of facts.py, and the rule's findings, as golden.py renders them. casekit.py has the form.
PREFIX, SITE and LIB64 in a text are the folders of those names.
"""

from __future__ import annotations

import re
from pathlib import Path

import facts
import golden

import casekit
from cudriver.stack import model
from cudriver.stack.rules import registry

FOLDER = Path(__file__).with_name("cases")
NAMES = {"SITE": facts.SITE, "LIB64": facts.LIB64, "PREFIX": facts.PREFIX}


def path(rule: str) -> Path:
    return FOLDER / f"{rule}.txt"


def in_full(source: str) -> str:
    return re.sub(r"\b(PREFIX|SITE|LIB64)(?=[-/:\"'])", lambda name: NAMES[name[0]], source)


def make(rule: str, case: casekit.Case) -> model.Facts:
    """The facts of a case."""
    known = {**vars(model), **vars(facts)}
    exec(in_full(casekit.read(path(rule))[0]), known)
    return eval(f"facts({in_full(case.source)})", known)  # type: ignore[no-any-return]


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
        assert finding.fix or finding.severity == "note", finding
        for command in finding.fix:
            assert not re.search(r"(?<!unset )(?<!export )LD_LIBRARY_PATH", command)
    words = "\n".join(map(golden.render, found))
    for short, folder in NAMES.items():
        words = words.replace(folder, short)
    told = " ".join(finding.severity for finding in found) or "silent"
    casekit.check(path(rule), case, told, words)
