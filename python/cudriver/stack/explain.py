"""The rules' pages, and which rule an error's text belongs to."""

from __future__ import annotations

import os

from cudriver.stack.record import Record

FOLDER = os.path.join(os.path.dirname(__file__), "data", "rules")
PATTERNS = "patterns.json"  # {"CU303": ["regular expression", ...]}


class Match(Record):
    """A line of a pasted text that a rule knows."""

    rule: str
    line: int  # from 1
    text: str


def rule_names(folder: str = FOLDER) -> list[str]:
    """Every rule that has a page, in order."""
    return sorted(name[:-3] for name in os.listdir(folder) if name.endswith(".md"))


def page(rule: str, folder: str = FOLDER) -> str:
    """The page of a rule ("CU303"), in Markdown. Raises KeyError for a rule that is none."""
    if rule not in rule_names(folder):
        raise KeyError(rule)
    with open(os.path.join(folder, f"{rule}.md"), encoding="utf-8") as file:
        return file.read()


def title(rule: str, folder: str = FOLDER) -> str:
    """The heading of a rule's page without the number: "undefined symbol"."""
    heading = page(rule, folder).partition("\n")[0].lstrip("# ")
    return heading.removeprefix(rule).lstrip(" :.-")


def match(text: str) -> list[Match]:
    """The rules that know a line of `text`, each once with its last line.

    The end of a traceback is what the user saw, so the last line comes first.
    """
    import json
    import re

    with open(os.path.join(FOLDER, PATTERNS), encoding="utf-8") as file:
        table: dict[str, list[str]] = json.load(file)
    patterns = [
        (rule, re.compile(pattern, re.IGNORECASE))
        for rule, group in table.items()
        for pattern in group
    ]
    found: dict[str, Match] = {}
    lines = text.splitlines()
    for number in range(len(lines), 0, -1):
        line = lines[number - 1][:4096]
        for rule, pattern in patterns:
            if rule not in found and pattern.search(line):
                found[rule] = Match(rule, number, line.strip())
    return list(found.values())
