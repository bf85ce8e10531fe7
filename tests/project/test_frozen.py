"""What users rely on stays: public names, options of commands, the report's JSON, codes of rules.

frozen.json lists them. What it lists may not go or change before the next major version: keep the
old name, with a DeprecationWarning. What is new is added by `make golden`; a release
(CUDRIVER_RELEASE=1) wants that done.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from cudriver.cli import COMMANDS
from cudriver.cli.explain import rule_names

pytestmark = pytest.mark.static

STORED = Path(__file__).with_name("frozen.json")
MODULES = {
    "cudriver": None,
    "cudriver.stack": None,
    "cudriver.stack.report": ["Report"],
    "cudriver.stack.planning.report": ["Plan"],
    "cudriver.stack.resolved": ["Resolved"],
    "cudriver.fleet": None,
    "cudriver.errors": ["CudaError"],
    "cudriver.flags": ["ContextFlags"],
    "cudriver.ladder": None,
    "cudriver.typing": None,
    "cudriver.testing.simulated": ["SimulatedCuda"],
    "cudriver.pytest_plugin": ["cuda_stack", "no_cuda_leaks", "simulated_cuda"],
}


def names(module: str, listed: list[str] | None) -> Iterator[str]:
    """Its public names, and those of the classes' members."""
    loaded = importlib.import_module(module)
    for name in loaded.__all__ if listed is None else listed:
        yield name
        value = getattr(loaded, name)
        if inspect.isclass(value) and value.__module__.startswith("cudriver"):
            own = [vars(kind) for kind in value.__mro__ if kind.__module__.startswith("cudriver")]
            members = {member for each in own for member in each if not member.startswith("_")}
            yield from (f"{name}.{member}" for member in members)


def options(command: str) -> Iterator[str]:
    """Its options with the words they take, and its arguments."""
    parser: argparse.ArgumentParser = importlib.import_module(COMMANDS[command][0]).parser()
    for action in parser._actions:
        for word in action.option_strings or [f"({action.dest})"]:
            yield word
            yield from (f"{word} {choice}" for choice in action.choices or ())


def members(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Each member of the documents with its type or values, and whether it is always there."""
    for name, each in schema.get("properties", {}).items():
        kind = each.get("type", each.get("enum", each.get("const", each.get("$ref"))))
        always = ", always" if name in schema.get("required", ()) else ""
        yield f"{path}{name}: {json.dumps(kind)}{always}"
        yield from members(each, f"{path}{name}.")
        yield from members(each.get("items", {}), f"{path}{name}[].")
    for name, each in schema.get("$defs", {}).items():
        yield from members(each, f"#/$defs/{name}.")


def now() -> dict[str, list[str]]:
    """What there is."""
    schema = resources.files("cudriver.stack") / "data" / "report.schema.json"
    others = resources.files("cudriver.cli") / "commands.schema.json"
    found = {
        **{f"names of {module}": names(module, listed) for module, listed in MODULES.items()},
        "commands": iter(COMMANDS),
        **{f"options of cudriver {name}": options(name) for name in COMMANDS},
        "JSON of cudriver check": members(json.loads(schema.read_text("utf-8"))),
        "JSON of the other commands": members(json.loads(others.read_text("utf-8"))),
        "rules": iter(rule_names()),
    }
    return {title: sorted(set(each)) for title, each in found.items()}


@pytest.fixture(scope="module")
def stored() -> dict[str, list[str]]:
    if os.environ.get("CUDRIVER_WRITE_GOLDEN"):
        STORED.write_text(json.dumps(now(), indent=1) + "\n", encoding="utf-8")
    listed: dict[str, list[str]] = json.loads(STORED.read_text(encoding="utf-8"))
    return listed


def test_nothing_that_users_rely_on_is_gone_or_changed(stored: dict[str, list[str]]) -> None:
    found = now()
    gone = {title: sorted({*known} - {*found.get(title, ())}) for title, known in stored.items()}
    assert {title: lost for title, lost in gone.items() if lost} == {}
    assert sum(map(len, stored.values())) > 500


@pytest.mark.skipif(not os.environ.get("CUDRIVER_RELEASE"), reason="asked for by a release")
def test_what_is_new_is_listed(stored: dict[str, list[str]]) -> None:
    new = {title: sorted({*found} - {*stored.get(title, ())}) for title, found in now().items()}
    assert {title: added for title, added in new.items() if added} == {}, "run `make golden`"
