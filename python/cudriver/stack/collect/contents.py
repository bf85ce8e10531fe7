"""Files of which an import reads what is in them, and cannot: a version's text, METADATA, entry
points, JSON.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterator

from cudriver.stack.collect import records
from cudriver.stack.collect.libraries import Resolver
from cudriver.stack.model import Distribution, Evidence, Facts, FileFault, Framework
from cudriver.stack.recipes import Recipe
from cudriver.stack.rootfs import TEXT_LIMIT, Root
from cudriver.stack.versions import satisfies

# What an entry point names: "module:object [extra]". Since Python 3.15 importlib.metadata refuses
# to read another.
REFERENCE = re.compile(r"[\w.]+\s*(:\s*[\w.]+\s*)?(\[.*\]\s*)?")
Wheels = list[tuple[Distribution, bytes]]
Parse = Callable[[str], tuple[str, str]]


class Contents:
    """Looks into them."""

    def __init__(self, tree: Root, facts: Facts, resolver: Resolver, wheels: Wheels) -> None:
        """wheels: with their RECORD."""
        self.tree: Root = tree
        self.facts: Facts = facts
        self.wheels: Wheels = wheels
        known = ((each, resolver.recipes.get(each.name)) for each in facts.frameworks)
        self._readers: list[tuple[Framework, Recipe]] = [
            (each, recipe) for each, recipe in known if recipe is not None and not each.fails
        ]

    def faults(self) -> Iterator[FileFault]:
        """Those that are not what a package brought, or cannot be parsed."""
        yield from self._unread()
        yield from self._without_metadata()
        yield from self._other_versions()
        yield from self._unopened()

    def _without_metadata(self) -> Iterator[FileFault]:
        """Distributions of which importlib.metadata knows no version, nor what they require."""
        starts = ("cannot be read", "is not text", "has no ")
        lost = {p.file: p.text for p in self.facts.problems if p.text.startswith(starts)}
        for dist in self.facts.distributions:
            path = f"{dist.path}/METADATA"
            if path not in lost:
                continue
            what = "hash" if self.tree.exists(path) else "missing"
            fault = FileFault(dist.name, path, what, Evidence(f"{dist.path}/RECORD", None, path))
            for framework, recipe in self._readers:
                for each in recipe.reads:
                    if each.of == dist.name and satisfies(framework.version, each.versions):
                        says = self._without_version(path, each.says)
                        if says:
                            fault.framework, fault.says = framework.name, says
            yield fault

    def _without_version(self, path: str, asker: str) -> str:
        """What is said where importlib.metadata finds no version in METADATA; "": it finds one,
        however much of the rest is zeros. `asker`: what who asks for it says of None.
        """
        try:
            text = self._read(path)
        except OSError as error:
            if error.errno == errno.ELOOP:
                return os.strerror(errno.ELOOP)
            text = b""
        head = text.partition(b"\n\n")[0]
        if re.search(rb"^version:", head, re.MULTILINE | re.IGNORECASE):
            return ""
        if self.facts.environment.minor < 15:
            return asker
        return "KeyError: 'Version'" if text else "No package metadata was found"

    def _other_versions(self) -> Iterator[FileFault]:
        """Files whose text an import takes for its package's version, and that hold another."""
        for framework, recipe in self._readers:
            for each in recipe.reads:
                entry = self._listed(each.file) if each.file else None
                if entry is None or not satisfies(framework.version, each.versions):
                    continue
                says = each.says
                try:
                    text = self._read(entry.path).decode("ascii", "replace")
                    if text.strip() == entry.distribution.version:
                        continue
                    if text.count(".") > 1:
                        says = "invalid literal for int()"
                    if not records.differs(self.tree, entry.path, entry.digest):
                        continue
                    yield _fault(framework, entry, "hash", says)
                except OSError as error:
                    yield _unopened(framework, entry, error)

    def _unopened(self) -> Iterator[FileFault]:
        """Files that an import opens, or looks for, and cannot."""
        for framework, recipe in self._readers:
            for releases, names in recipe.opens.items():
                for name in names if satisfies(framework.version, releases) else ():
                    entry = self._listed(name)
                    if entry is None:
                        continue
                    try:
                        self._read(entry.path)
                    except OSError as error:
                        yield _unopened(framework, entry, error)
            for name, says in recipe.asks.items():
                entry = self._listed(name)
                if entry is not None and not self.tree.exists(entry.path):
                    yield _fault(framework, entry, "missing", says)

    def _read(self, path: str) -> bytes:
        """As an import does. Raises OSError."""
        if self.tree.is_dir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return self.tree.read(path, TEXT_LIMIT)

    def _listed(self, file: str) -> records.Entry | None:
        """A file as a RECORD has it."""
        for dist, raw in self.wheels:
            start = (b"\n" + raw).find(b"\n%s," % file.encode())
            if start >= 0:
                line = raw[start:].partition(b"\n")[0].decode("utf-8", "replace").strip()
                entry = records.parsed(dist, line)
                if entry is not None:
                    entry.lines, entry.at = records.Lines(raw), start
                return entry
        return None

    def _unread(self) -> Iterator[FileFault]:
        """Files that an import parses, and cannot: entry points, by importlib.metadata; JSON."""
        files: dict[str, tuple[str, str, Parse]] = {}
        for framework, recipe in self._readers:
            if recipe.entry_points and satisfies(framework.version, recipe.entry_points):
                for dist in self.facts.distributions:
                    entry = dist.name, framework.module, self._unparsed
                    files.setdefault(f"{dist.path}/entry_points.txt", entry)
            for inside in recipe.json:
                path = f"{os.path.dirname(framework.path)}/{inside}"
                if self.tree.exists(path):
                    files[path] = (framework.distribution or "", framework.name, _not_json)
        for path, (name, reader, parse) in files.items():
            try:
                says, line = parse(self._read(path).decode())
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                continue
            except UnicodeDecodeError as error:
                says, line = str(error), ""
            except OSError as error:
                if parse is not _not_json and isinstance(error, IsADirectoryError):
                    continue  # importlib.metadata passes it over
                says, line = error.strerror or "", ""
            if says:
                evidence = Evidence(path, None, line[:200])
                yield FileFault(name, path, "hash", evidence, framework=reader, says=says)

    def _unparsed(self, text: str) -> tuple[str, str]:
        """What importlib.metadata says of entry points, and the line that it cannot read."""
        section = False
        for line in filter(None, map(str.strip, text.splitlines())):
            if line.startswith("[") and line.endswith("]"):
                section = True
            elif section and not line.startswith("#"):
                _, equals, value = line.partition("=")
                if not equals:
                    return "missing 1 required positional argument: 'value'", line
                if self.facts.environment.minor >= 15 and not REFERENCE.fullmatch(value.strip()):
                    return "Invalid object reference", line
        return "", ""


def _fault(framework: Framework, entry: records.Entry, what: str, says: str) -> FileFault:
    of, told = entry.distribution.name, entry.evidence
    return FileFault(of, entry.path, what, told, framework=framework.name, says=says)


def _unopened(framework: Framework, entry: records.Entry, error: OSError) -> FileFault:
    return _fault(framework, entry, "missing", f"[Errno {error.errno}] {error.strerror}")


def _not_json(text: str) -> tuple[str, str]:
    """What Python's json says of a text that is none, and its first line."""
    try:
        json.loads(text)
    except ValueError as error:
        return str(error), text.partition("\n")[0]
    return "", ""
