"""What is read of files, collect_cases.txt: what lies below a root, in the words of `Tree`, and all
that is told of it. casekit.py has the form; the first word of a case is what is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import synth

import casekit
from cudriver.stack.collect import ask, collect
from cudriver.stack.environment import distributions, interpreter
from cudriver.stack.environment.discover import find_environments
from cudriver.stack.facts import Evidence, Problem, Requirement
from cudriver.stack.loader.search import Hit, Search
from cudriver.stack.machine import compilers, driver, toolkits
from cudriver.stack.record import Record
from cudriver.stack.roots.asked import Asked
from cudriver.stack.roots.rootfs import Root
from elfkit import compile_c

PATH = Path(__file__).with_name("collect_cases.txt")
HEAD, CASES = casekit.read(PATH)

ALONE = {"include-system-site-packages": "false"}


class Tree:
    """A root, and the environment /env in it, which the first call that needs it makes."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.variables: dict[str, str] = {}
        self.made: synth.Prefix | None = None
        self.problems: list[Problem] = []
        self.found = Search("libcuda.so.1", None)
        for folder in ("usr/local/bin", "usr/bin", "home/ana"):
            (top / folder).mkdir(parents=True)

    # ---- what lies there ----

    def environ(self, **variables: str) -> None:
        self.variables |= variables

    def path(self, name: str) -> Path:
        path = self.top / name.lstrip("/").replace("SITE", "env/lib/python3.11/site-packages")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def file(self, name: str, content: str | bytes = "", mode: int = 0o644) -> None:
        path = self.path(name)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)

    def program(self, name: str, content: str = "\x7fELF") -> None:
        self.file(name, content, 0o755)

    def folder(self, name: str) -> None:
        self.path(name).mkdir(parents=True)

    def link(self, name: str, target: str) -> None:
        self.path(name).symlink_to(target)

    def remove(self, name: str) -> None:
        self.path(name).unlink()

    def record(self, name: str, *lines: str) -> None:
        """Adds lines to a RECORD, at its end."""
        with open(self.path(f"SITE/{name}.dist-info/RECORD"), "a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def move(self, name: str, to: str) -> None:
        self.path(name).rename(self.path(to))

    def fifo(self, name: str) -> None:
        os.mkfifo(self.path(name))

    def library(self, name: str, source: str = "int x;", *flags: str) -> None:
        compile_c(self.path(name), source, *flags).with_name(f"{self.path(name).name}.c").unlink()

    def toolkit(self, name: str, version: str, **more: Any) -> None:
        synth.toolkit(self.path(name), version, **more)

    def prefix(self) -> synth.Prefix:
        return self.made or self.venv()

    def venv(self, **settings: str) -> synth.Prefix:
        self.made = synth.Prefix(self.top / "env", root=self.top).venv(**settings)
        return self.made

    def plain(self) -> None:
        """A prefix in which nothing says what it is."""
        self.made = synth.Prefix(self.top / "env", root=self.top)

    def conda(self) -> None:
        self.made = synth.Prefix(self.top / "env", root=self.top).conda()

    def venv_at(self, name: str, version: str = "3.11.7", **settings: str) -> None:
        lines = {"home": "/usr/bin", "version": version, **ALONE, **settings}
        self.file(f"{name}/bin/python")
        self.file(f"{name}/pyvenv.cfg", "".join(f"{k} = {v}\n" for k, v in lines.items()))

    def conda_at(self, name: str) -> None:
        self.folder(f"{name}/conda-meta")

    def package(self, name: str, version: str, **more: Any) -> None:
        self.prefix().conda_package(name, version, **more)

    def dist(self, name: str, version: str, *requires: str, **more: Any) -> None:
        self.prefix().dist(name, version, requires, **more)

    def torch(self, *words: Any, **more: Any) -> None:
        self.prefix().torch(*words, **more)

    def libcuda(self, folder: str, release: str) -> None:
        self.file(f"{folder}/libcuda.so.{release}")
        self.link(f"{folder}/libcuda.so.1", f"libcuda.so.{release}")

    def finds(self, path: str, *shadowed: str, rule: str = "cache") -> None:
        """What the loader finds as libcuda.so.1."""
        self.found = Search("libcuda.so.1", None, path, rule=rule)
        self.found.shadowed = [Hit(each, each, "cache") for each in shadowed]

    # ---- what is told of it ----

    def asked(self) -> Asked:
        """What is asked of /env, or where nothing is there of the root."""
        made = Asked(Root(str(self.top)), self.made.inside if self.made else "/", self.variables)
        made.root.problems = self.problems
        return made

    def env(self) -> Any:
        self.prefix()
        return interpreter.describe(self.asked())

    def environment(self) -> Iterable[Record]:
        return [self.env()]

    def packages(self) -> Iterable[Record]:
        env = self.env()
        return distributions.installed(self.asked().root, env)

    def system(self) -> Iterable[Record]:
        return toolkits.system(self.asked())

    def own(self) -> Iterable[Record]:
        env, root = self.env(), self.asked().root
        return toolkits.inside(root, env, distributions.installed(root, env))

    def nvcc(self) -> Iterable[Record]:
        env = self.env()
        return [toolkits.choice(self.asked(), env, list(self.system()))]  # type: ignore[arg-type]

    def compiler(self) -> Iterable[Record]:
        env = self.env()
        found = compilers.host_compiler(self.asked(), env)
        return [found] if found else []

    def driver(self) -> Iterable[Record]:
        loader = SimpleNamespace(search=lambda _: self.found)
        return [driver.describe(self.asked(), loader)]  # type: ignore[arg-type]

    def faults(self) -> Iterable[Record]:
        """As a root shows it, and without one: they are the same."""
        prefix, more = self.prefix(), {"environ": self.variables, "probe": False}
        inside = collect(ask(prefix.inside, root=str(self.top), **more)).file_faults  # type: ignore[arg-type]
        outside = collect(ask(str(prefix.path), **more)).file_faults  # type: ignore[arg-type]
        assert [*map(render, inside)] == [render(f).replace(str(self.top), "") for f in outside]
        return inside

    def environments(self) -> Iterable[Record]:
        listed = find_environments(str(self.top), environ=self.variables)
        return sorted(listed, key=lambda each: each.prefix)

    def frameworks(self) -> Iterable[Record]:
        inside = self.prefix().inside
        asked = ask(inside, root=str(self.top), environ=self.variables, probe=False)
        found = collect(asked)
        self.problems = found.problems
        return found.frameworks


ASKED = {"environment", "environments", "packages", "frameworks", "faults", "driver"}
ASKED |= {"system", "own", "nvcc", "compiler"}  # toolkits, and what builds with them


# What a record is known by stands in its first line, in the order of its fields.
TITLES = {
    "Distribution": ("name", "version", "kind", "path", "location", "installer"),
    "FileFault": ("distribution", "file", "what"),
    "Found": ("prefix", "kind", "source", "python"),
    "Framework": ("name", "version", "cuda", "distribution", "module", "path", "variant"),
    "HostCompiler": ("path", "version", "kind", "chosen_by"),
    "NvccChoice": ("home", "chosen_by", "nvcc"),
    "Toolkit": ("origin", "kind", "version", "path"),
    "Environment": ("prefix", "kind", "python", "executable", "installer"),
}


def render(record: Record) -> str:
    """The fields of a record that say something, but for what they say by default and the platform,
    which is this machine's; of a problem not what Python's libraries say.
    """
    if isinstance(record, Problem):
        text, _, theirs = record.text.partition(": ")
        return f"problem  {record.file if theirs else at(record)}  {text}"
    head, name = "", type(record).__name__
    lines = []
    for field in record._fields:
        value = getattr(record, field)
        if isinstance(value, Evidence):
            value = f"{at(value)}  {value.value}"
        elif isinstance(value, list):
            value = ", ".join(words(each) for each in value)
        if field in TITLES.get(name, ()):
            head += f"  {value or '-'}"
        elif (
            value not in (None, "", {}, record._defaults.get(field, False)) and field != "platform"
        ):
            of = field.removesuffix("_evidence")
            if field != of and lines and lines[-1].startswith(f"    {of}"):
                lines[-1] += f"  {value}"
            else:
                lines.append(f"    {field}  {value}")  # the platform is this machine's
    lines.insert(0, name + head)
    return "\n".join(lines)


def words(item: Any) -> str:
    """One of a list of a record's."""
    if isinstance(item, Requirement):
        extras = f"[{','.join(item.extras)}]" if item.extras else ""
        extra = f" for {item.extra}" if item.extra else ""
        return f"{item.name}{extras}{item.specifier}{extra} (line {item.evidence.line})"
    return f"{at(item)} {item.value}" if isinstance(item, Evidence) else str(item)


def at(where: Any) -> str:
    return where.file if where.line is None else f"{where.file}:{where.line}"


@pytest.mark.parametrize("name", CASES)
def test_a_case(tmp_path: Path, name: str) -> None:
    tree, case = Tree(tmp_path), CASES[name]
    assert case.told in ASKED
    known = {each: getattr(tree, each) for each in dir(tree)}
    exec(HEAD, known)
    eval(f"({case.source},)", known)
    found = [*map(render, getattr(tree, case.told)()), *map(render, tree.problems)]
    words = "\n".join(found).replace("/env/lib/python3.11/site-packages", "SITE")
    casekit.check(PATH, case, case.told, words or "nothing")
