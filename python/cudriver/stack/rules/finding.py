"""How a rule tells what it has found, and gets its number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType

from cudriver.stack.command import parted
from cudriver.stack.facts import Evidence, Finding
from cudriver.stack.record import Any


def finding(
    severity: str,
    title: str,
    evidence: Iterable[Evidence | None] = (),
    predicts: str | None = None,
    fix: Iterable[str | None] = (),
    subject: str | None = "",
    because: str | None = None,
    **more: Any,
) -> Finding:
    """A finding. None in evidence and fixes is left out; sentences among the fixes are advice."""
    shown, (commands, advice) = [e for e in evidence if e], parted([line for line in fix if line])
    fields = severity, title, shown, predicts, commands, advice, subject or "", because
    return Finding("", *fields, **more)


def numbered(*modules: ModuleType) -> dict[str, Any]:
    """The rules of these modules in order: CU101 is the function cu101, and so are its findings."""
    functions = (f for module in modules for f in vars(module).items())
    rules = {name.upper(): f for name, f in functions if re.fullmatch(r"(cu|fl)\d{3}", name)}
    return {number: _rule(number, rules[number]) for number in sorted(rules)}


def _rule(number: str, rule: Callable[[Any], Iterable[Any]]) -> Callable[[Any], Iterator[Any]]:
    def run(facts: Any) -> Iterator[Any]:
        for each in rule(facts):
            each.rule = number
            yield each

    return run
