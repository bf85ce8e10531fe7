"""Loading recipes: what a framework loads, from where and in which order, as data.

Each is one file, data/loading/NAME.json, described in docs/recipes.md. `load.imports` follows
them. A distribution that is installed beside cudriver may bring others.
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from functools import cache

from cudriver.stack.facts import FEATURE, GPU, IMPORT, NOTHING, USE
from cudriver.stack.record import Any, Record, fresh
from cudriver.stack.roots.rootfs import Root
from cudriver.stack.tables import FOLDER

ALL, FIRST, LOADS, NEAREST = "all", "first", "loads", "nearest"
VERBS = ("load", "open", "find", "builtin")
GROUP = "cudriver.recipes"  # entry points: "package:file.json", a file in the package's folder
_RE = ("name", "tag", "conda", "match")  # patterns of a build's sources
_CHOICES = {
    "when": (IMPORT, USE),
    "fails": (IMPORT, USE, GPU, FEATURE, NOTHING),
    "absent": (IMPORT, USE, GPU, FEATURE, NOTHING),
    "choose": (ALL, FIRST, LOADS, NEAREST),
}


class Step(Record):
    """One thing that a framework does to get at libraries. Exactly one of the verbs is given."""

    load: list[str] = fresh(list)  # files by path: patterns, relative to a site-packages folder
    open: list[str] = fresh(list)  # names that dlopen gets, found by the loader's rules
    find: list[str] = fresh(list)  # names of one library, found by cuda.pathfinder's rules
    builtin: str = ""  # what only code can tell: "torch"
    places: list[str] = fresh(list)  # of `find`: folders of wheels ("nvidia/cu13/lib")
    anchors: list[str] = fresh(list)  # of `find`: folders below a toolkit's or conda's prefix
    by: str = ""  # the mapped library that calls dlopen; default: the interpreter
    choose: str = ALL  # of several: every one, the first, the first from the last name back
    # that loads, the nearest to PyTorch's CUDA
    spread: bool = False  # RTLD_GLOBAL
    idle: bool = False  # it is only opened, or asked for its version: its parts are not wanted
    pathfinder: bool = False  # cuda.pathfinder loads the CUDA libraries that the files need, before
    when: str = IMPORT  # or at first USE
    fails: str = IMPORT  # what ends where it does not load: IMPORT, USE, GPU, a FEATURE, NOTHING
    absent: str = NOTHING  # the same, where `load` finds no file
    alone: bool = False  # a FEATURE where another package requires this one: it may do without
    says: str = ""  # what the framework says then; default: what the loader says
    purpose: str = ""  # what the framework needs it to do: "compile a kernel"; default: use CUDA
    within: str = ""  # the file of site-packages that does this; without it nobody does
    without: str = ""  # a file of site-packages whose package does it in this one's place
    versions: str = ""  # of the framework that do this: ">=2.9"
    cuda: str = ""  # releases of CUDA that builds which do this are for: "<13"


class Rescue(Record):
    """What a program can do before, so that a step that fails does not."""

    say: str  # "import torch before onnxruntime."
    after: list[str] = fresh(list)  # frameworks to import first
    steps: list[Step] = fresh(list)
    versions: str = ""


class Recipe(Record):
    """How one framework loads its libraries."""

    name: str
    distributions: list[str]  # patterns; of several the first that is installed tells the version
    module: str  # what a program imports
    source: str  # the files and releases that this was read from
    package: str = ""  # its folder or file in site-packages; default: the module's
    versions: str = ""  # releases that it holds for; how others load their libraries is not known
    after: list[str] = fresh(list)  # frameworks that its import imports first
    shown: str = "always"  # "cuda": only where it uses a CUDA library
    build: dict[str, list[dict[str, str]]] = fresh(dict)  # fact -> where it is stated
    steps: list[Step] = fresh(list)
    rescues: list[Rescue] = fresh(list)
    cpu: bool = False  # the package is for the CPU as well: without any CUDA library it is whole
    extra: str = ""  # the extra that brings its CUDA libraries: "and-cuda", "cuda{major}"


def parse(data: dict[str, Any]) -> Recipe:
    """A recipe from its file's content. Raises ValueError for what is not a recipe."""
    try:
        made = Recipe(**data)
        _check(made)
        made.steps = [_step(each) for each in made.steps]
        made.rescues = [_rescue(each) for each in made.rescues]
    except TypeError as error:
        raise ValueError(f"{data.get('name', 'a recipe')}: {error}") from None
    for sources in made.build.values():
        for pattern in (text for source in sources for kind, text in source.items() if kind in _RE):
            _compiled(pattern)
    made.package = made.package or made.module.replace(".", "/")
    return made


def _check(made: Record) -> None:
    """Raises ValueError where a value is not of its field's type."""
    for name, kind in type(made).__annotations__.items():
        value = getattr(made, name, None)
        if not _is(value, kind):
            raise ValueError(f"{name} is no {kind}: {value!r:.60}")


def _is(value: Any, kind: str) -> bool:
    if kind.startswith("list["):
        return isinstance(value, list) and all(_is(each, kind[5:-1]) for each in value)
    if kind.startswith("dict["):
        inner = kind[5:-1].partition(", ")[2]
        pairs = value.items() if isinstance(value, dict) else [(None, None)]
        return all(isinstance(name, str) and _is(each, inner) for name, each in pairs)
    return isinstance(value, {"str": str, "bool": bool}.get(kind, dict))


def _compiled(pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{pattern!r:.60} is no pattern: {error}") from None


def _step(data: Any) -> Step:
    made = Step(**data)
    _check(made)
    if sum(bool(getattr(made, verb)) for verb in VERBS) != 1:
        raise ValueError(f"a step needs one of {', '.join(VERBS)}: {data}")
    for field, values in _CHOICES.items():
        if getattr(made, field) not in values:
            raise ValueError(f"{field} is one of {', '.join(values)}: {data}")
    return made


def _rescue(data: Any) -> Rescue:
    made = Rescue(**data)
    _check(made)
    made.steps = [_step(each) for each in made.steps]
    return made


@cache
def listed() -> list[dict[str, Any]]:
    """The content of every recipe's file, PyTorch's first, others by name, then those of other
    distributions, which replace ours of the same name. `parse` makes a recipe of one: few are
    needed, and to make them all takes as long as to read the files.
    """
    folder, root = os.path.join(FOLDER, "loading"), Root()
    found = []
    for name in sorted(os.listdir(folder), key=lambda name: (name != "torch.json", name)):
        if name.endswith(".json"):
            found.append(json.loads(root.read(os.path.join(folder, name))))
    brought = {recipe["name"]: recipe for recipe in _brought(root)}
    return [brought.pop(recipe["name"], recipe) for recipe in found] + [*brought.values()]


def _brought(root: Root) -> list[dict[str, Any]]:
    """The recipes that other distributions bring. Nothing of them is imported or run."""
    infos = (
        os.path.join(path, name, "entry_points.txt")
        for path in sys.path
        for name in root.names(path)
        if name.endswith(".dist-info")
    )
    if not any(f"[{GROUP}]" in (root.text(path) or "") for path in infos):
        return []  # without importlib.metadata, whose own import takes 10 ms
    from importlib.metadata import entry_points
    from importlib.util import find_spec

    found = []
    for entry in entry_points(group=GROUP):
        package, _, name = entry.value.partition(":")
        try:
            spec = find_spec(package) if package.isidentifier() else None  # "a.b" would import a
            if spec is None or not spec.submodule_search_locations:
                raise ValueError(f"{package!r} is not the name of a package")
            data = json.loads(root.read(os.path.join(spec.submodule_search_locations[0], name)))
            parse({**data})
            found.append(data)
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            warnings.warn(f"{GROUP}: {entry.name} is left out: {error}", stacklevel=2)
    return found
