"""What ld.so makes of libraries, dlopen_cases.txt: files below a folder, in the words of `Files`,
and what a program that opens them gets. This machine's own loader is asked too, and the model has
to say the same and to map the same files. casekit.py has the form; F in a text is the folder.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

import casekit
import elfkit
from cudriver.stack.loader.process import Load, Process
from cudriver.stack.loader.search import Loader
from elfkit import clean_environment, compile_c, run_host

PATH = Path(__file__).with_name("dlopen_cases.txt")
HEAD, CASES = casekit.read(PATH)
LAZY = "-Wl,-z,lazy"


def compare(host: Path, dlopens: list[str], cwd: str = "/", **variables: str) -> list[Load]:
    """Run the dlopens for real and in the model; the same errors and objects, or it fails."""
    steps, stderr, code = run_host(host, dlopens, clean_environment(**variables), Path(cwd))
    process = Process(Loader(environ=variables, cwd=cwd), str(host))
    loads = []
    if process.start.error is not None:
        assert code == 127, stderr
        assert process.start.error in stderr
        return [process.start]
    assert code == 0, stderr
    for given, step in zip(dlopens, steps[1:], strict=True):
        load = process.dlopen(given[3:], now=given[0] == "N", everywhere=given[1] == "G")
        assert load.error == step.error
        assert [o.path if o is not process.main else "" for o in process.objects] == step.mapped
        loads.append(load)
    return loads


class Files:
    """Libraries and programs, and what became of each dlopen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[str] = []
        self.lines: list[str] = []

    def path(self, name: str) -> Path:
        return self.folder / name

    def lib(
        self, name: str, source: str = "int made;", *words: str, versions: str | None = None
    ) -> None:
        """A library whose SONAME is its file's name. words: flags, and files to link to."""
        flags = [f"-Wl,-soname,{os.path.basename(name)}", "-Wl,--no-as-needed"]
        flags += [
            word.replace("{F}", str(self.folder)) if word[0] == "-" else str(self.path(word))
            for word in words
        ]
        compile_c(self.path(name), source, *flags, versions=versions)

    def program(self, name: str, *flags: str) -> None:
        """One that opens what it is told to, and has a function `show`."""
        source = elfkit.HOST_SOURCE.replace("static int show", "int show")
        compile_c(self.path(name), source, "-ldl", LAZY, *flags, shared=False)

    def link(self, name: str, target: str) -> None:
        self.path(name).symlink_to(target.replace("{F}", str(self.folder)))

    def hard_link(self, name: str, target: str) -> None:
        os.link(self.path(target), self.path(name))

    def remove(self, name: str) -> None:
        self.path(name).unlink()

    def run(self, *dlopens: str, by: str = "host", **variables: str) -> None:
        """Opens in a process these, as elfkit's program takes them; "./" is the folder."""
        if not self.path(by).exists():
            self.program(by)
        folder = str(self.folder)
        environ = {name: value.replace("{F}", folder) for name, value in variables.items()}
        names = [each.replace(":./", f":{folder}/") for each in dlopens]
        given = " ".join(f"{name}={value}" for name, value in variables.items())
        self.lines.append(f"$ {given} {by}".replace("  ", " "))
        loads = compare(self.path(by), names, folder, **environ)
        for name, load in zip(dlopens, loads, strict=True):
            self.told.append("ok" if load.error is None else "fails")
            self.lines.append(f"{name}: {load.error or 'ok'}")
            if load.error is None:
                self.lines += [f"    later {fault.message}" for fault in load.later]
            elif len(load.faults) > 1:
                self.lines.append(f"    and {len(load.faults) - 1} more")


@pytest.mark.parametrize("name", CASES)
def test_a_case(tmp_path: Path, name: str) -> None:
    files, case = Files(tmp_path), CASES[name]
    known: dict[str, Any] = {each: getattr(files, each) for each in dir(files)}
    exec(HEAD, known)
    eval(f"({case.source},)", known)
    words = "\n".join(files.lines).replace("{F}", "F").replace(str(tmp_path), "F")
    words = re.sub(r"(no_\w)[12]\b", r"\1", words)  # the compiler decides which comes first
    casekit.check(PATH, case, " ".join(files.told), words)
