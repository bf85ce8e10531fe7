"""Cases of rules: tests/stack/cases/CODE.txt has facts made by hand and what the rule says of them.

    == error: a node that is closed               what it finds (or "silent"), and the case's name
    | driver=driver(nodes=[DeviceNode("/x", 1)])  what differs from facts(), as in facts.py
    error: /x: permission denied                  all of each finding, as golden.py renders it

What stands before the first case are names for parts that several have. PREFIX, SITE and LIB64 in a
text are the folders of those names. `make golden` writes the findings anew, and neither the facts
nor how grave a finding is: the diff is for people to read.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import facts
import golden

from cudriver.stack import model
from cudriver.stack.rules import registry

FOLDER = Path(__file__).with_name("cases")
NAMES = {"PREFIX": facts.PREFIX, "SITE": facts.SITE, "LIB64": facts.LIB64}


class Case(NamedTuple):
    told: str  # "error", "note note", "silent"
    name: str
    source: str  # arguments of facts()
    words: str


def path(rule: str) -> Path:
    return FOLDER / f"{rule}.txt"


@cache
def read(rule: str) -> tuple[str, dict[str, Case]]:
    """The names that a rule's cases share, and the cases."""
    head, *blocks = re.split(r"(?m)^== ", path(rule).read_text(encoding="utf-8"))
    cases = {}
    for block in blocks:
        first, *lines = block.strip("\n").split("\n")
        told, _, name = first.partition(": ")
        assert name not in cases, f"{rule} has two cases called {name!r}"
        source = "\n".join(line[2:] for line in lines if line[:1] == "|")
        words = "\n".join(line for line in lines if line[:1] not in ("|", "#")).strip("\n")
        cases[name] = Case(told, name, source, words)
    return head, cases


def make(rule: str, case: Case) -> model.Facts:
    """The facts of a case."""
    head, _ = read(rule)
    known = {**vars(model), **vars(facts)}
    exec(in_full(head), known)
    return eval(f"facts({in_full(case.source)})", known)  # type: ignore[no-any-return]


def in_full(source: str) -> str:
    return re.sub(r"\b(PREFIX|SITE|LIB64)(?=[-/:\"'])", lambda name: NAMES[name[0]], source)


def say(found: list[model.Finding]) -> str:
    """What the findings say, with the short names of the folders."""
    text = "\n".join(map(golden.render, found))
    for name in ("SITE", "LIB64", "PREFIX"):
        text = text.replace(NAMES[name], name)
    return text


def check(rule: str, name: str) -> None:
    """The rule finds in a case what it found before; each finding points somewhere and, unless a
    note, fixes something.
    """
    case = read(rule)[1][name]
    found = list(registry()[rule](make(rule, case)))
    for finding in found:
        assert finding.rule == rule
        assert finding.title
        assert finding.evidence, finding
        assert all(e.file for e in finding.evidence)
        assert finding.fix or finding.severity == "note", finding
        for command in finding.fix:
            assert not re.search(r"(?<!unset )(?<!export )LD_LIBRARY_PATH", command)
    assert case.told == (" ".join(f.severity for f in found) or "silent"), say(found)
    if golden.WRITING:
        write(rule, case, say(found))
    else:
        assert case.words == say(found), f"meant so? make golden, and read the diff of {rule}.txt"


def write(rule: str, case: Case, words: str) -> None:
    text = path(rule).read_text(encoding="utf-8")
    whole = re.compile(
        rf"(?m)^(== {re.escape(f'{case.told}: {case.name}')}\n(?:\|.*\n)*)(?:(?!== |#).*\n?)*"
    )
    written = whole.sub(lambda old: f"{old[1]}{words}\n\n" if words else f"{old[1]}\n", text)
    path(rule).write_text(written.rstrip("\n") + "\n", encoding="utf-8")
