"""The functions of Python's that the core calls exist, and take what it passes; the named tuples
that it makes have the fields that it fills in."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.static

HEADER = Path(__file__).parents[2] / "cext" / "python" / "functions.h"
ENTRY = re.compile(r'^    X\((\w+), (\w+), (?:"(.*?)"|NULL)\)', re.MULTILINE)
LISTED = ENTRY.findall(HEADER.read_text())


def count(values: str) -> int:
    """The arguments that Py_BuildValue makes of a format: "(Osy#)" are three."""
    assert values.startswith("(")
    assert values.endswith(")")
    return len(re.findall(r"[a-zA-Z]#?", values))


@pytest.mark.parametrize(("module", "name", "values"), LISTED, ids=lambda text: text or "method")
def test_it_takes_what_the_core_passes(module: str, name: str, values: str) -> None:
    function = getattr(importlib.import_module(f"cudriver.memory.{module}"), name)
    signature = inspect.signature(function)
    given = count(values) if values else 1  # the object, then what the caller passes
    if values:
        signature.bind(*range(given))
    else:
        signature.bind_partial(*range(given))


#: The fields that Python adds behind the core's.
ADDED = {
    "pool.HostMemoryStats": ("nodes", "copy_threads"),
    "live.Allocation": (),
    "copies.ChosenCopy": (),
}
TUPLES = {
    name: re.findall(r"X\((\w+),", fields)
    for path in HEADER.parents[1].rglob("*.c")
    for name, fields in re.findall(r"define (\w+)_FIELDS\(X\)((?:.*\\\n)+.*)", path.read_text())
}


@pytest.mark.parametrize("name", ADDED)
def test_the_core_fills_in_the_fields_of_a_named_tuple(name: str) -> None:
    module, kind = name.split(".")
    named = getattr(importlib.import_module(f"cudriver.memory.{module}"), kind)
    assert (*TUPLES[kind], *ADDED[name]) == named._fields


def test_every_list_of_fields_is_compared() -> None:
    assert TUPLES.keys() == {name.partition(".")[2] for name in ADDED}


def test_the_list_is_read_whole_and_sorted() -> None:
    assert len(LISTED) == HEADER.read_text().count("\n    X(")
    assert len(LISTED) > 70
    assert sorted(LISTED) == LISTED


def test_no_call_names_a_function_in_a_string() -> None:
    sources = [path for path in HEADER.parents[1].rglob("*.c") if "sim" not in path.parts]
    assert sources
    for path in sources:
        assert not re.search(r'cudriver_call(?:_method)?\("', path.read_text()), path
