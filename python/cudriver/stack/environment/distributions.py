"""Installed distributions: .dist-info and .egg-info folders, and what conda-meta says.

Names and versions come from the folders' names. METADATA is opened for all, but read closely only
where it speaks of CUDA: an environment has hundreds of packages, and a dozen matter.
"""

from __future__ import annotations

import json
import os
import re

from cudriver.stack.environment.markers import Markers, markers_of, normal, versions_of
from cudriver.stack.facts import Distribution, Environment, Evidence, Requirement
from cudriver.stack.record import Record, put
from cudriver.stack.roots.rootfs import Root
from cudriver.stack.tables import matters

HEAD = 512 << 10  # bytes of METADATA that are read; headers are at its start
COMPARED = 1000  # lines of a RECORD that are held against the disk where one package has two
COMPARED_BYTES = 2 << 20  # of a RECORD; that of a large framework has 1.5 MB
CONDA_LIMIT = 32 << 20  # bytes; a record of 15,000 files has 5 MB

VERSION_LIMIT = 200  # characters: every report repeats it
LONGEST = 4096  # characters of a requirement
_INFO = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._]*?)-(?P<version>[^-]+)(?:-py[\d.]+)?\Z")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
# A name, extras and versions, a marker; without a name it is no requirement.
_ASKS = re.compile(r"\n(?i:Requires-Dist):[ \t]*([A-Za-z0-9._-]*)([^\n;]*);?([^\n]*)")


def installed(root: Root, env: Environment) -> list[Distribution]:
    """Every installed distribution; of two with one name, the one that Python imports."""
    reader = _Reader(root, markers_of(env.python, env.platform))
    found: dict[str, Distribution] = {}
    for folder in env.site_packages:
        here: dict[str, list[Distribution]] = {}
        for name in root.names(folder):
            # "~orch-2.8.0.dist-info" is what pip could not remove: Python does not read it.
            if name.endswith((".dist-info", ".egg-info")) and not name.startswith("~"):
                dist = reader.read(folder, name)
                if dist is not None:
                    here.setdefault(dist.name, []).append(dist)
        for name, several in here.items():
            dist = several[0] if len(several) == 1 else reader.present(several)
            dist.beside.extend(each.path for each in several if each is not dist)
            if found.setdefault(name, dist) is not dist:
                found[name].hides.append(dist.path)
    if env.kind == "conda":
        for dist in reader.conda(env.prefix):
            _merge(found, dist)
    return list(found.values())


class _Reader(Record):
    """Reads what a folder of packages says of each."""

    root: Root
    markers: Markers

    def present(self, several: list[Distribution]) -> Distribution:
        """Of several records of one package in a folder the one whose files are there: an update
        that was broken off, or done by another tool, leaves the old record behind. Else the first.
        """
        return max(several, key=self._share)

    def _share(self, dist: Distribution) -> float:
        """How many files of a RECORD the disk has in its size, of a sample: from 0 to 1."""
        lines = self.root.raw(f"{dist.path}/RECORD", COMPARED_BYTES).splitlines()
        lines = [line for line in lines if b".dist-info/" not in line]
        lines = lines[:: max(1, len(lines) // COMPARED)]
        good = 0
        for line in lines:
            rest, _, size = line.rpartition(b",")
            path = f"{dist.location}/{os.fsdecode(rest.rpartition(b',')[0])}"
            good += size.strip() == b"%d" % (self.root.regular(path)[0] or 0)
        return good / len(lines) if lines else 0.0

    def read(self, folder: str, entry: str) -> Distribution | None:
        """The distribution of a .dist-info or .egg-info folder; None where it has no name."""
        path = f"{folder}/{entry}"
        stem, _, suffix = entry.rpartition(".")
        match = _INFO.match(stem)
        kind = "wheel" if suffix == "dist-info" else "egg"
        metadata = f"{path}/METADATA" if kind == "wheel" else f"{path}/PKG-INFO"
        if match and not matters(normal(match["name"])) and kind == "egg":
            return Distribution(normal(match["name"]), match["version"], kind, path, folder)
        known = len(self.root.problems)
        try:
            raw = self.root.read(metadata, HEAD)
        except (OSError, ValueError) as error:
            if kind == "wheel":
                self.root.note(metadata, f"cannot be read: {_reason(error)}")
            raw = b""
        head = _head(raw)
        if not match:
            parts = (_header(head, key)[0].replace("-", "_") for key in (b"Name", b"Version"))
            match = _INFO.match("-".join(parts))
            if match is None:
                if raw:
                    self.root.note(metadata, "has no Name and Version")
                return None
        name = normal(match["name"])
        dist = Distribution(name, match["version"], kind, path, folder)
        text = head.decode("utf-8", "replace")
        asked = [(normal(found[1]), found) for found in _ASKS.finditer(text)]
        dist.asks.extend((other, found[2], found[3]) for other, found in asked if other)
        if matters(dist.name) or any(matters(other) for other, _ in asked):
            installer(self.root, dist)
            if len(head) > HEAD:
                why = f"its headers go on past {HEAD} bytes; the rest was not read"
                self.root.note(metadata, why)
            if b"\0" in head:
                self.root.note(metadata, "is not text")
            else:
                version, line = _header(head, b"Version")
                if version and len(version) <= VERSION_LIMIT:  # else that of the folder's name
                    put(dist, version=version, line=line)
                # Those that ask for extras, too: through these others come to count.
                read = [(n, m) for n, m in asked if not n or "[" in m[2] or matters(n)]
                self.root.take(0, 0, len(read))
                at, line = 0, 0
                for other, found in read:
                    line, at = line + text.count("\n", at, found.start(1)), found.start(1)
                    self._require(dist, metadata, line, other, found)
        unversioned = kind == "wheel" and b"\nversion:" not in head.lower()
        if unversioned and len(self.root.problems) == known:
            self.root.note(metadata, "has no Version", 1)
        return dist

    def _require(
        self, dist: Distribution, file: str, number: int, name: str, found: re.Match[str]
    ) -> None:
        """Keeps a requirement with the line it stands on, where it may count here."""
        text, marker, extra = found[0].partition(":")[2].strip(), found[3].strip(), ""
        if "@" in found[2]:
            return  # a direct reference says nothing about versions
        if not name or len(text) >= LONGEST:
            self.root.note(file, f"a requirement that cannot be read: {text[:80]}", number)
            return
        if marker:
            applies = self.markers.holds(marker)
            if applies is None:
                self.root.note(file, f"a marker that cannot be read: {marker[:80]}", number)
                return
            if not applies:
                # Kept with its extra: only a distribution that asks for the extra makes it count.
                wanted = _EXTRA.search(marker)
                if not wanted or not self.markers.holds(marker, wanted[1]):
                    return
                extra = normal(wanted[1])
        stated = found[2].partition("[")[2].partition("]")[0].split(",")
        extras = [normal(each.strip()) for each in stated if each.strip()]
        evidence, versions = Evidence(file, number, text), versions_of(found[2])
        dist.requires.append(Requirement(name, versions, evidence, extras, extra))

    def conda(self, prefix: str) -> list[Distribution]:
        """Its packages of every kind."""
        found = []
        folder = f"{prefix}/conda-meta"
        for entry in self.root.names(folder):
            parts = entry.removesuffix(".json").rsplit("-", 2)
            if not entry.endswith(".json") or len(parts) != 3 or not all(parts):
                continue
            name = normal(parts[0])
            dist = Distribution(name, parts[1], "conda", f"{folder}/{entry}", prefix)
            put(dist, build=parts[2], installer="conda")
            if matters(name, "conda"):
                self._conda_record(dist)
            found.append(dist)
        return found

    def _conda_record(self, dist: Distribution) -> None:
        """What a conda package depends on."""
        try:
            raw = self.root.read(dist.path, CONDA_LIMIT)
            depends = json.loads(raw).get("depends")
        except OSError as error:
            self.root.note(dist.path, f"cannot be read: {_reason(error)}")
            return
        except (ValueError, RecursionError) as error:
            line = getattr(error, "lineno", None)
            self.root.note(dist.path, f"is not JSON: {getattr(error, 'msg', error)}", line)
            return
        except AttributeError:
            self.root.note(dist.path, "is not a JSON object")
            return
        at, line = 0, 1
        for text in filter(None, depends if isinstance(depends, list) else []):
            words = str(text).split()
            if words and matters(normal(words[0]), "conda"):
                self.root.take(0, 0, 1)
                # They stand in their order; what is written with escapes is not looked for again.
                before, at = at, raw.find(f'"{text}"'.encode(), at) if at >= 0 else -1
                line += raw.count(b"\n", before, at) if at >= 0 else 0
                evidence = Evidence(dist.path, line if at >= 0 else None, str(text))
                versions = words[1] if len(words) > 1 else ""
                dist.requires.append(Requirement(normal(words[0]), versions, evidence))


def _merge(found: dict[str, Distribution], conda: Distribution) -> None:
    """A conda package of Python code has a .dist-info too: one distribution, with conda's build."""
    known = found.get(conda.name) or found.get("torch" if conda.name == "pytorch" else "")
    if known is not None and known.kind == "wheel" and known.installer in ("conda", None):
        put(known, build=conda.build, installer="conda", conda_name=conda.name)
    found.setdefault(conda.name, conda)


def installer(root: Root, dist: Distribution) -> str | None:
    """What the INSTALLER of its .dist-info folder says: pip, uv, conda. Read where it is asked for:
    of few of them.
    """
    if dist.installer is None:
        lines = (root.text(f"{dist.path}/INSTALLER", 256) or "").strip().splitlines()
        put(dist, installer=lines[0] if lines else None)
    return dist.installer


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _head(raw: bytes) -> bytes:
    """The headers, up to the first blank line, with a line's end before them."""
    lines = raw.replace(b"\r\n", b"\n") if b"\r" in raw else raw
    return b"\n" + lines.partition(b"\n\n")[0]


def _header(head: bytes, key: bytes) -> tuple[str, int]:
    """A header's text and line; "" where it is not there."""
    at = head.rfind(b"\n" + key + b":")
    if at < 0:
        return "", 0
    start, end = at + len(key) + 2, head.find(b"\n", at + 1)
    text = head[start : end if end >= 0 else len(head)].decode("utf-8", "replace")
    return text.strip(), head.count(b"\n", 0, start)
