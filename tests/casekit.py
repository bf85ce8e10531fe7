"""Files of cases: what is given, in Python's words, and below it what is found, in plain lines.

    NAME = expression            parts that several cases share
    == error: a node is closed   what is found, in short, and the case's name
    | driver=driver(nodes=[])    what is given
    or driver=driver(gpus=[])    what else is given, in which the same is found
    error: nodes are closed      what is found, all of it

`make golden` writes what is found anew, and neither what is given nor the line above it: the diff
is for people to read. Lines that begin with "# " are remarks.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

GIVEN = re.compile(r"\||or ").match
WRITING = bool(os.environ.get("CUDRIVER_WRITE_GOLDEN"))


class Case(NamedTuple):
    told: str
    name: str
    source: str
    words: str

    @property
    def text(self) -> str:
        """Of a case that gives nothing: a text of one line is its name."""
        return self.words or self.name


@cache
def read(path: Path) -> tuple[str, dict[str, Case]]:
    """What the cases of a file share, and the cases by name."""
    head, *blocks = re.split(r"(?m)^== ", path.read_text(encoding="utf-8"))
    cases = {}
    for block in blocks:
        first, *lines = block.strip("\n").split("\n")
        told, _, name = first.partition(": ")
        assert name not in cases, f"{path.name} has two cases called {name!r}"
        given = "\n".join(line[2:] if line[:1] == "|" else line for line in lines if GIVEN(line))
        found = "\n".join(line for line in lines if not GIVEN(line) and line[:2] != "# ")
        for number, source in enumerate(re.split(r"(?m)^or ", given), start=1):
            one = name if number == 1 else f"{name} ({number})"
            cases[one] = Case(told, one, source, found.strip("\n"))
    return head, cases


def check(path: Path, case: Case, told: str, words: str) -> None:
    assert case.told == told, words
    if WRITING:
        write(path, case, words)
    else:
        assert case.words == words, f"meant so? make golden, and read the diff of {path.name}"


def write(path: Path, case: Case, words: str) -> None:
    title = re.escape(f"{case.told}: {case.name}")
    whole = re.compile(rf"(?m)^(== {title}\n(?:(?:\||or ).*\n)*)(?:(?!== |# ).*\n?)*")
    text = path.read_text(encoding="utf-8")
    text = whole.sub(lambda old: f"{old[1]}{words}\n\n" if words else f"{old[1]}\n", text)
    path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
