"""The declarations: one TOML file an environment, in environments/."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "environments"
NOTES = Path(__file__).with_name("notes.toml")


@dataclass(frozen=True)
class Fault:
    """What is done to a copy of an environment. Paths are relative to site-packages; `environ` and
    `cwd` may hold {prefix}, {site} and {side}, the folder that `side` was installed into.
    """

    name: str
    about: str = ""
    uninstall: tuple[str, ...] = ()
    install: tuple[str, ...] = ()  # wheels, without what they require
    side: tuple[str, ...] = ()  # wheels, into a folder of their own
    delete: tuple[str, ...] = ()  # glob patterns, like those of the next four
    half: tuple[str, ...] = ()  # cut in the middle
    empty: tuple[str, ...] = ()
    pointer: tuple[str, ...] = ()  # replaced by what Git LFS leaves
    folder: tuple[str, ...] = ()  # replaced by a folder
    copy: dict[str, str] = field(default_factory=dict)  # from: to
    link: dict[str, str] = field(default_factory=dict)  # name: target
    environ: dict[str, str] = field(default_factory=dict)
    cwd: str = ""
    check: tuple[str, ...] = ()  # further words for `cudriver check`
    use: tuple[str, ...] = ()  # further code, run after the imports
    expect: tuple[str, ...] = ()  # rules that must fire though no import shows it: "CU402"
    fix: str = "run"  # "no": the fix is for people (buy a GPU, install a driver)

    @property
    def words(self) -> tuple[str, ...]:
        """The names of the files and distributions that it befalls."""
        files = [*self.delete, *self.half, *self.empty, *self.pointer, *self.folder]
        files += [*self.copy.values(), *self.link]
        bases = [re.split(r"[*?\[]", os.path.basename(each))[0] for each in files]
        asked = (*self.uninstall, *self.install, *self.side)
        names = [re.split(r"[^\w.-]", each)[0] for each in asked]
        return tuple(word for word in (*bases, *names) if word)


@dataclass(frozen=True)
class Environment:
    """One environment. An item of `modules` is imported by a process of its own; "torch+jax" is
    two imports in one process, where the second is tried only if the first works.
    """

    name: str
    python: str
    packages: tuple[str, ...]
    modules: tuple[str, ...]
    about: str = ""
    installer: str = "uv"  # or "pip"
    override: tuple[str, ...] = ()  # versions that win over what packages require
    no_deps: tuple[str, ...] = ()  # packages that are installed without what they require
    environ: dict[str, str] = field(default_factory=dict)
    driver: str = "none"  # or "simulated"
    unrelated: tuple[str, ...] = ()  # texts of failures that have nothing to do with CUDA
    ci: bool = False
    faults: tuple[Fault, ...] = ()

    def key(self) -> str:
        """A short hash of all that the result depends on, but for the check itself."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def truth_key(wanted: Environment, fault: Fault | None) -> str:
    """A short hash of what the outcome of the imports depends on."""
    told = asdict(wanted)
    for name in ("about", "unrelated", "ci", "faults"):
        del told[name]
    damage = asdict(fault) if fault else {}
    for name in ("about", "check", "expect", "fix"):
        damage.pop(name, None)
    text = json.dumps([told, damage], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class DeclarationError(ValueError):
    """A file in environments/ that does not say what it should."""


def read(path: Path) -> Environment:
    """One declaration. Raises DeclarationError."""
    try:
        stated = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise DeclarationError(f"{path.name}: {error}") from error
    faults = tuple(_make(Fault, table, path) for table in stated.pop("fault", []))
    names = [fault.name for fault in faults]
    if len(set(names)) != len(names):
        raise DeclarationError(f"{path.name}: two faults have one name: {names}")
    return _make(Environment, {"name": path.stem, **stated, "faults": faults}, path)


def _make(kind: type, stated: dict[str, Any], path: Path) -> Any:
    fields = {name: str(f.type) for name, f in kind.__dataclass_fields__.items()}
    for name, value in stated.items():
        if name not in fields:
            raise DeclarationError(f"{path.name}: {name!r} is none of {', '.join(fields)}")
        wanted: type | tuple[type, ...] = str
        if fields[name].startswith("tuple"):
            wanted = (list, tuple)
        elif fields[name].startswith("dict"):
            wanted = dict
        elif fields[name] == "bool":
            wanted = bool
        if not isinstance(value, wanted):
            raise DeclarationError(f"{path.name}: {name} = {value!r} is not a {fields[name]}")
    values = {n: tuple(v) if isinstance(v, list) else v for n, v in stated.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise DeclarationError(f"{path.name}: {error}") from error


def read_all(folder: Path = FOLDER) -> list[Environment]:
    """Every declaration, by name: neighbours share packages, and so the cache."""
    return [read(path) for path in sorted(folder.glob("*.toml"))]


def read_notes() -> dict[str, dict[str, str]]:
    """Why something stays wrong ([cause], by environment or environment@fault), and what cannot be
    had ([unavailable]).
    """
    return tomllib.loads(NOTES.read_text(encoding="utf-8"))


def select(environments: list[Environment], names: list[str]) -> list[Environment]:
    """Those named; one that ends in * is a prefix. Raises DeclarationError for unknown ones."""
    if not names:
        return environments
    chosen = []
    for name in names:
        found = [
            e
            for e in environments
            if e.name == name or (name.endswith("*") and e.name.startswith(name[:-1]))
        ]
        if not found:
            raise DeclarationError(f"no environment is named {name!r}")
        chosen += [e for e in found if e not in chosen]
    return chosen
