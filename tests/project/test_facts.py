"""Facts are frozen, and each field of them has one author: what collects them, never a rule."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from cudriver.stack import evidence, facts, machine_facts
from cudriver.stack.record import Record, but
from native_build import ROOT

pytestmark = pytest.mark.static

STACK = ROOT / "python" / "cudriver" / "stack"
FACTS = [
    found
    for module in (facts, machine_facts, evidence)
    for found in vars(module).values()
    if isinstance(found, type) and issubclass(found, Record) and found.__module__ == module.__name__
]
FROZEN = [found for found in FACTS if found is not facts.Finding]  # a rule makes those
COLLECTING = {"collect", "machine", "environment", "load", "integrity"}
COPIES = "fixes/after.py"  # writes copies of its own


@pytest.mark.parametrize("fact", FROZEN, ids=lambda fact: str(fact.__name__))
def test_a_fact_stays_as_it_was_found(fact: type[Record]) -> None:
    made = fact(*["x"] * sum(name not in vars(fact) for name in fact._fields))
    name = fact._fields[0]
    assert getattr(but(made, **{name: "y"}), name) == "y"
    assert getattr(made, name) != "y"
    for name in fact._fields:
        with pytest.raises(AttributeError, match=f"{fact.__name__}.{name} is a fact"):
            setattr(made, name, None)


def written() -> dict[str, set[str]]:
    """The fields that `put` writes in a file, by its path below stack/: "facts.driver" of Facts."""
    found = defaultdict(set)
    for path in (path for path in STACK.rglob("*.py") if path.name != "record.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "put":
                whole = ast.unparse(node.args[0]).endswith("facts")
                names = {word.arg for word in node.keywords} - {None}  # ** of names
                found[str(path.relative_to(STACK))] |= {"facts." * whole + str(n) for n in names}
    return found


def test_only_what_collects_facts_writes_them() -> None:
    files = {file for file in written() if file != COPIES}
    assert {Path(file).parts[0].removesuffix(".py") for file in files} == COLLECTING


def test_what_is_written_is_a_field() -> None:
    """The types see what a constructor is given, not what `put` is."""
    fields = {name for fact in FROZEN for name in fact._fields}
    fields |= {f"facts.{name}" for name in facts.Facts._fields}
    assert [(file, names - fields) for file, names in written().items() if names - fields] == []


# Fields of one name of several facts, which have an author each.
SEVERAL = {"version", "cuda", "kind", "says"}


def test_a_field_is_written_in_one_room() -> None:
    authors = defaultdict(set)
    for file, names in written().items():
        for name in names if file != COPIES else ():
            authors[name].add(Path(file).parts[0])
    assert {n: rooms for n, rooms in authors.items() if len(rooms) > 1 and n not in SEVERAL} == {}
