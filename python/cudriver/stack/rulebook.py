"""The rules' pages, and which rule an error's text belongs to."""

from __future__ import annotations

import os
import re
import sys
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from cudriver.stack.record import Record
from cudriver.stack.tables import table

FOLDER = os.path.join(os.path.dirname(__file__), "data", "rules")
KINDS = ("cause", "symptom", "mention")  # of words in patterns.json, the most telling first
LINE_LIMIT = 4096  # characters of a line that are looked at
ANYTHING = re.compile(r"(?<!\(\?!)\.\*")  # between the parts of a pattern
MISSING = re.compile(r"cannot import name '?\w{1,100}'? from '(\w{1,100})[.']")


class Match(Record):
    """A line of a pasted text that a rule knows."""

    rule: str
    line: int  # from 1
    text: str


def rule_names(folder: str = FOLDER) -> list[str]:
    """Every rule that has a page, in order, and the texts without a rule (EX101)."""
    return sorted(name[:-3] for name in os.listdir(folder) if name.endswith(".md"))


def check_rules(names: Iterable[str]) -> None:
    """Raises ValueError for what is neither a rule nor the start of one."""
    known = rule_names()
    for name in names:
        if len(name) < 3 or not any(rule.startswith(name) for rule in known):
            raise ValueError(f"{name!r} is neither a rule (CU303) nor the start of one (CU3)")


def page(rule: str, lang: str = "en", folder: str = FOLDER) -> str:
    """The page of a rule ("CU303"), in Markdown; where a language has none, the English one. Raises
    KeyError for a rule that is none.
    """
    if rule not in rule_names(folder):
        raise KeyError(rule)
    files = (os.path.join(folder, part, f"{rule}.md") for part in (lang, ""))
    with open(next(filter(os.path.exists, files)), encoding="utf-8") as file:
        return file.read()


def title(rule: str, lang: str = "en", folder: str = FOLDER) -> str:
    """The heading of a rule's page without the number: "undefined symbol"."""
    heading = page(rule, lang, folder).partition("\n")[0].lstrip("# ")
    return heading.removeprefix(rule).lstrip(" :.-")


def summary(rule: str, lang: str) -> str:
    """The first sentence of a rule's page."""
    paragraph = page(rule, lang).split("\n\n")[2]
    text = " ".join(paragraph.split()).replace("`", "")
    return re.split(r"(?<=\.) (?=[A-Z])|(?<=。)", text, maxsplit=1)[0]


def match(text: str) -> list[Match]:
    """The rules that know a line of `text`, each once with its last line, the likeliest first.

    Words that name a cause come before those that several causes end in, and these before those
    that stand beside anything. Among equals the last line comes first, because the end of a
    traceback is what the user saw; what has no rule (EX101) comes after what has one. Of a line the
    first 4,096 characters count. The time is that of the text's length, whatever is in it.
    """
    patterns: dict[str, dict[str, list[str]]] = table("rules/patterns")
    lines = [line[:LINE_LIMIT] for line in text.splitlines()]
    for at, named in enumerate(map(MISSING.search, lines)):
        if named and named[1] in sys.stdlib_module_names:
            lines[at] = ""  # a name is missing in the standard library: no package brings it
    if not lines:
        return []
    lowered = "\n".join(lines).lower()
    ends = [*accumulate(len(line) + 1 for line in lowered.split("\n"))]
    found: dict[str, int] = {}
    for kind in KINDS:
        here = {
            rule: last
            for rule, group in patterns[kind].items()
            if rule not in found
            and (last := max(_last_line(pattern, lowered, ends) for pattern in group)) >= 0
        }
        order = sorted(here, key=lambda rule: (rule.startswith("EX"), -here[rule]))
        found.update((rule, here[rule]) for rule in order)
    return [Match(rule, number + 1, lines[number].strip()) for rule, number in found.items()]


def _last_line(pattern: str, text: str, ends: list[int]) -> int:
    """The last line in which the pattern's parts stand one after the other; -1 if there is none.

    Where a part is not found, it is not looked for again behind a later place of those before it:
    an expression with `.*` would be.
    """
    first, *others = (re.compile(part) for part in ANYTHING.split(pattern.lower()))
    last = -1
    found = first.search(text)
    while found:
        line = bisect_right(ends, found.start())
        for part in others:
            found = part.search(text, found.end(), ends[line] - 1)
            if not found:
                break
        else:
            last = line
        found = first.search(text, ends[line])
    return last
