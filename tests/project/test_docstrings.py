"""Every public name has a docstring in numpydoc form, which is true and whose example runs."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import json
import operator
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudriver as cu
from cudriver import fleet, stack
from program import output

SECTIONS = ["Parameters", "Attributes", "Returns", "Raises", "Warns", "Notes", "Examples"]


def documented() -> Iterator[tuple[str, Any]]:
    """The public functions and classes, and the methods and properties of what can be made."""
    names = [*cu.__all__, *(f"stack.{name}" for name in (*stack.__all__, "Report"))]
    names += [f"fleet.{name}" for name in fleet.__all__]
    values = [operator.attrgetter(name)(cu) for name in names]
    for value in values:
        if inspect.isclass(value) or inspect.isroutine(value):
            yield value.__name__, value
        if inspect.isclass(value) and not is_plain(value):
            members = [item for item in vars(value).items() if item[0][0] != "_"]
            yield from ((f"{value.__name__}.{name}", item) for name, item in members)


def is_plain(value: Any) -> bool:
    """Properties, exceptions, records and enumerations: nothing to call, or Python's own."""
    kinds = (Exception, tuple, cu.ContextFlags, stack.Finding.__base__)
    return not callable(value) or (inspect.isclass(value) and issubclass(value, kinds))


NAMES = dict(documented())


@pytest.mark.parametrize("name", NAMES)
def test_a_docstring_has_the_form_and_names_every_parameter(name: str) -> None:
    text = inspect.getdoc(NAMES[name]) or ""
    lines = text.splitlines() or [""]
    summary = lines[0] if callable(NAMES[name]) else text
    assert summary.endswith("."), "no sentence of one line"
    assert max(map(len, lines)) <= 100
    underlined = re.findall(r"^(.+)\n(-+)$", text, re.MULTILINE)
    assert [len(line) for _, line in underlined] == [len(title) for title, _ in underlined]
    titles = [title for title, _ in underlined]
    assert titles == [title for title in SECTIONS if title in titles]
    if is_plain(NAMES[name]):
        return
    try:
        wanted = [p for p in inspect.signature(NAMES[name]).parameters if p not in ("self", "type")]
    except ValueError:  # made by functions only: there is nothing to call
        wanted = []
    section = re.search(r"^Parameters\n-+\n(.*?)(\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    given = re.findall(r"^(\S.*?) : \S", section[1], re.MULTILINE) if section else []
    assert [word.lstrip("*") for line in given for word in line.split(", ")] == wanted
    assert "Examples" in titles or "." in name


@pytest.mark.parametrize("name", ["_core", "_elf"])
def test_an_editor_shows_what_help_says(name: str) -> None:
    module = importlib.import_module(f"cudriver.{name}")
    wrong = []
    for thing, node in stub(Path(cu.__file__).with_name(f"{name}.pyi")):
        said, shown = inspect.getdoc(operator.attrgetter(thing)(module)), ast.get_docstring(node)
        if shown != said and (shown or "." not in thing or thing.rpartition(".")[2][0] != "_"):
            wrong.append(thing)
    assert wrong == []


def test_an_editor_shows_no_private_type() -> None:
    """Aliases are shown by their names: those of `cudriver.typing` can be looked up."""
    core = stub(Path(cu.__file__).with_name("_core.pyi"))
    shown = {
        thing: ast.unparse(node.args)
        for thing, node in core
        if thing[0] != "_" and isinstance(node, ast.FunctionDef)
    }
    functions = {name: value for name, value in NAMES.items() if inspect.isfunction(value)}
    shown |= {name: str(inspect.signature(value)) for name, value in functions.items()}
    assert {"copy_async", "explain_copy", "DeviceArray.fill", "load_npz"} <= {*shown}
    assert {name: text for name, text in shown.items() if re.search(r"\b_[A-Z]", text)} == {}


def stub(path: Path) -> Iterator[tuple[str, Any]]:
    """The functions, classes and methods of a stub; of overloads that which has the docstring."""
    found: dict[str, Any] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        owner = getattr(node, "name", "")
        inside = node.body if isinstance(node, ast.ClassDef) else []
        for prefix, each in (("", node), *((f"{owner}.", member) for member in inside)):
            if isinstance(each, (ast.FunctionDef, ast.ClassDef)):
                key = prefix + each.name
                if key not in found or ast.get_docstring(each):
                    found[key] = each
    yield from found.items()


EXAMPLES = [name for name in NAMES if ">>>" in (NAMES[name].__doc__ or "")]


def complaints() -> dict[str, str]:
    """What doctest says of each example."""
    parser = doctest.DocTestParser()
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    said: dict[str, str] = {}
    for name in EXAMPLES:
        lines: list[str] = []
        names = {"cu": cu, "np": np, "stack": stack, "fleet": fleet}
        runner.run(parser.get_doctest(NAMES[name].__doc__, names, name, None, 0), out=lines.append)
        said[name] = "".join(lines)
    return said


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """In a fresh process: what other tests have left alive changes no figure."""
    folder = Path(__file__).parent
    program = """
        import json, os, sys
        sys.path[:0] = sys.argv[2:]
        import test_docstrings
        os.chdir(sys.argv[1])  # examples may write files
        print(json.dumps(test_docstrings.complaints()))
    """
    folders = tmp_path_factory.mktemp("examples"), folder, folder.parent
    answer: dict[str, str] = json.loads(output(program, *map(str, folders)))
    return answer


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_does_what_it_shows(said: dict[str, str], name: str) -> None:
    assert not said[name], said[name]
