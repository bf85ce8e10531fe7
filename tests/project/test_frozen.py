"""What users rely on stays: public names, options of commands, the report's JSON, codes of rules.

frozen.txt lists them, the members of each class apart. What it lists may not go or change before
the next major version: keep the old name, with a DeprecationWarning. What is new is added by `make
golden`; a release (CUDRIVER_RELEASE=1) wants that done.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import textwrap
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from cudriver.cli import COMMANDS
from cudriver.cli.explain import rule_names

pytestmark = pytest.mark.static

STORED = Path(__file__).with_name("frozen.txt")
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


def names(module: str) -> dict[str, list[str]]:
    """Its public names, and those of the classes' members."""
    loaded = importlib.import_module(module)
    listed = MODULES[module] or loaded.__all__
    found = {f"names of {module}": list(listed)}
    for name in listed:
        value = getattr(loaded, name)
        if inspect.isclass(value) and value.__module__.startswith("cudriver"):
            own = [vars(kind) for kind in value.__mro__ if kind.__module__.startswith("cudriver")]
            members = {member for each in own for member in each if not member.startswith("_")}
            found[f"names of {module}.{name}"] = sorted(members)
    return {title: each for title, each in found.items() if each}


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
        **{title: iter(each) for module in MODULES for title, each in names(module).items()},
        "commands": iter(COMMANDS),
        **{f"options of cudriver {name}": options(name) for name in COMMANDS},
        "JSON of cudriver check": members(json.loads(schema.read_text("utf-8"))),
        "JSON of the other commands": members(json.loads(others.read_text("utf-8"))),
        "rules": iter(rule_names()),
    }
    return {title: sorted(set(each)) for title, each in found.items()}


def write(found: dict[str, list[str]]) -> None:
    """A paragraph a title: a golden file that a screen or two hold."""
    wrapper = textwrap.TextWrapper(100, break_long_words=False, break_on_hyphens=False)
    rows = [f"{title}:\n{wrapper.fill('; '.join(each))}\n" for title, each in found.items()]
    STORED.write_text("\n".join(rows), encoding="utf-8")


@pytest.fixture(scope="module")
def stored() -> dict[str, list[str]]:
    if os.environ.get("CUDRIVER_WRITE_GOLDEN"):
        write(now())
    paragraphs = STORED.read_text(encoding="utf-8").strip().split("\n\n")
    titled = (each.replace("\n", " ").partition(": ") for each in paragraphs)
    return {title: text.split("; ") for title, _, text in titled}


def test_nothing_that_users_rely_on_is_gone_or_changed(stored: dict[str, list[str]]) -> None:
    found = now()
    gone = {title: sorted({*known} - {*found.get(title, ())}) for title, known in stored.items()}
    assert {title: lost for title, lost in gone.items() if lost} == {}
    assert sum(map(len, stored.values())) > 500


@pytest.mark.skipif(not os.environ.get("CUDRIVER_RELEASE"), reason="asked for by a release")
def test_what_is_new_is_listed(stored: dict[str, list[str]]) -> None:
    new = {title: sorted({*found} - {*stored.get(title, ())}) for title, found in now().items()}
    assert {title: added for title, added in new.items() if added} == {}, "run `make golden`"
