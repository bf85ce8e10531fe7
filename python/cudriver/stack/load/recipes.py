"""Loading recipes: what a framework loads, from where and in which order, as data.

Each is one file, data/loading/NAME.json, described in docs/recipes.md. `load.imports` follows
them; tests/stack/test_recipes.py keeps to what may stand in one.
"""

from __future__ import annotations

import os
from functools import cache

from cudriver.stack.facts import IMPORT, NOTHING
from cudriver.stack.record import Any, Record, fresh
from cudriver.stack.tables import FOLDER, table

ALL, FIRST, LOADS, NEAREST = "all", "first", "loads", "nearest"


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
    shown: str = "always"  # "cuda": where it uses a CUDA library; "beside": and another does
    build: dict[str, list[dict[str, str]]] = fresh(dict)  # fact -> where it is stated
    steps: list[Step] = fresh(list)
    rescues: list[Rescue] = fresh(list)
    cpu: bool = False  # the package is for the CPU as well: without any CUDA library it is whole
    extra: str = ""  # the extra that brings its CUDA libraries: "and-cuda", "cuda{major}"


def parse(data: dict[str, Any]) -> Recipe:
    """A recipe from its file's content."""
    made = Recipe(**data)
    made.steps = [Step(**each) for each in data["steps"]]
    made.rescues = [Rescue(**each) for each in data.get("rescues", ())]
    for rescue, each in zip(made.rescues, data.get("rescues", ()), strict=True):
        rescue.steps = [Step(**step) for step in each.get("steps", ())]
    made.package = made.package or made.module.replace(".", "/")
    return made


@cache
def listed() -> list[dict[str, Any]]:
    """The content of every recipe's file, PyTorch's first, others by name. `parse` makes a recipe
    of one: few are needed, and to make them all takes as long as to read the files.
    """
    files = os.listdir(os.path.join(FOLDER, "loading"))
    files.sort(key=lambda name: (name != "torch.json", name))
    return [table(f"loading/{name[:-5]}") for name in files if name.endswith(".json")]
