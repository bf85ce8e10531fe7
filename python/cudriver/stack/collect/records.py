"""Who owns a file: RECORD of wheels, the file lists of conda, and whether the disk agrees.

Only shared libraries and a framework's modules are looked at: torch alone lists 14,000 files. A
library's size against RECORD is compared for all; its hash only where two distributions claim it
and its size does not tell whose it is: hashing NCCL takes half a second.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator

from cudriver import _elf
from cudriver.stack.background import start
from cudriver.stack.collect.distributions import installer
from cudriver.stack.elfbits import ElfBits
from cudriver.stack.glibc import MACHINES
from cudriver.stack.model import LOST, Distribution, Evidence, FileFault, Problem
from cudriver.stack.record import Record, fresh
from cudriver.stack.rootfs import Root

RECORD_LIMIT = 32 << 20
LIBRARIES = 10_000  # shared libraries of one RECORD; a whole environment has a few thousand
HASH_LIMIT = 1 << 30  # bytes; a larger file is not hashed
ALTERED_LIMIT = 128 << 20  # the same of one that was only changed after its package was installed
COPIED = 40  # files that are otherwise; with more the environment is a copy, or much is wrong
SLACK = 2_000_000_000  # ns; archives keep whole seconds
_LINE = re.compile(r'(?:"([^"]*)"|([^,"]*)),([^,]*),([0-9]*)\Z')
_CONDA_LIBRARY = re.compile(rb'\{[^{}]*"_path": *"([^"]+\.so[.0-9]*)"[^{}]*\}')
_CONDA_SIZE = re.compile(rb'"hardlink"[^{}]*"size_in_bytes": *(\d+)')  # a link's says nothing
_DOCUMENTS = re.compile(r"(?:^|/)(?:docs?|examples)(?=/|\Z)")
VITAL = frozenset(("__init__.py", "version.py"))


class Lines:
    """Tells the numbers of a list's lines, by where they begin. Asked for in order they take one
    pass in all; most lists are never asked.
    """

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self._at, self._number = 0, 1

    def number(self, at: int) -> int:
        if at < self._at:
            self._at, self._number = 0, 1
        self._number += self.raw.count(b"\n", self._at, at)
        self._at = at
        return self._number


class Entry(Record):
    """One file of a distribution, as its list has it."""

    distribution: Distribution
    path: str  # inside the root, normalised
    digest: str  # "sha256=...", "" for none
    size: int | None
    text: str
    lines: Lines = fresh(lambda: Lines(b""))  # where the list has it
    at: int = 0

    @property
    def evidence(self) -> Evidence:
        line = self.lines.number(self.at)
        return Evidence(f"{self.distribution.path}/RECORD", line, self.text[:200])


def is_library(name: str) -> bool:
    """Whether a file's name is a shared library's: libcudart.so, libcudart.so.13."""
    if name.endswith(".so"):
        return True
    _, so, number = name.rpartition(".so.")
    return bool(so) and all(part.isdigit() for part in number.split("."))


def read(root: Root, dist: Distribution, problems: list[Problem]) -> bytes:
    """A wheel's RECORD; b"" where there is none."""
    if dist.kind != "wheel":
        return b""
    file = f"{dist.path}/RECORD"
    try:
        raw = root.read(file, RECORD_LIMIT + 1)
    except (OSError, ValueError) as error:
        # Distribution packages of Debian and others have none.
        if getattr(error, "errno", None) not in (errno.ENOENT, errno.ENOTDIR):
            why = getattr(error, "strerror", None) or str(error)
            problems.append(Problem(file, f"cannot be read: {why}"))
        return b""
    if len(raw) > RECORD_LIMIT:
        problems.append(
            Problem(file, f"is larger than {RECORD_LIMIT} bytes; the rest was not read")
        )
        raw = raw[:RECORD_LIMIT]
    return raw


def parsed(dist: Distribution, text: str) -> Entry | None:
    """A line of RECORD; None where it is none."""
    match = _LINE.match(text)
    if match is None:
        return None
    name = match[1] or match[2] or ""
    path = f"{dist.location}/{name}"
    if name.startswith("/") or "/." in path or "//" in path:
        path = os.path.normpath(os.path.join(dist.location, name))
    size = int(match[4]) if match[4] and len(match[4]) < 19 else None
    return Entry(dist, path, match[3], size, text)


def libraries(dist: Distribution, raw: bytes, problems: list[Problem]) -> list[Entry]:
    """The shared libraries that a wheel's RECORD lists."""
    file = f"{dist.path}/RECORD"
    if b"\0" in raw[:4096]:
        problems.append(Problem(file, "is not text"))
        return []
    found: list[Entry] = []
    lines, at = Lines(raw), raw.find(b".so")
    while at >= 0:
        if raw[at + 3 : at + 4] not in (b",", b".", b'"'):  # ".sort.py"
            at = raw.find(b".so", at + 3)
            continue
        start, end = raw.rfind(b"\n", 0, at) + 1, raw.find(b"\n", at)
        end = len(raw) if end < 0 else end
        text = raw[start:end].decode("utf-8", "replace").strip() if end - start < 8192 else ""
        entry = parsed(dist, text)
        if entry is not None and is_library(entry.path):
            if len(found) == LIBRARIES:
                why = f"lists more than {LIBRARIES} shared libraries; the rest was not read"
                problems.append(Problem(file, why))
                break
            entry.lines, entry.at = lines, start
            found.append(entry)
        at = raw.find(b".so", end)
    return found


class LostModules:
    """The Python files and extension modules that wheels' RECORDs list and that are gone, empty
    where they were not, no ELF files where they should be, or changed after RECORD was written and
    of another hash. (In another root only those that every import reads are asked for their size.)

    One that was edited, or stripped, is not yet a fault: it is a suspect, of which the imports
    that reach it tell. Images are often made smaller: tests are left out, folders of documentation
    (suspects too), and sources whose compiled files stay. To ask for thousands of files takes a
    fifth of a check, so a thread does it while the libraries are resolved.
    """

    def __init__(
        self, root: Root, wheels: list[tuple[Distribution, bytes]], platform: str = "x86_64"
    ) -> None:
        """wheels: each with its RECORD."""
        self.root = root
        self.machine: int = MACHINES.get(platform, 0)
        self.wheels: list[tuple[Distribution, bytes]] = [
            (dist, raw) for dist, raw in wheels if dist.installer != "conda"
        ]
        root.take(files=sum(len(raw) for _, raw in self.wheels) // 64)  # a line has about as many
        # In another root links have to be followed inside it, so there all are looked at here.
        asked = [
            (raw, dist.location if root.host else None, _installed_at(root, dist))
            for dist, raw in self.wheels
        ]
        self._absent = start(lambda: _elf.absent(asked))

    def faults(self) -> tuple[list[FileFault], list[FileFault]]:
        """What is a fault, and what is suspect."""
        found: list[FileFault] = []
        absent = self._absent()
        hashed = sum(map(len, absent)) <= COPIED
        for (dist, _), lines in zip(self.wheels, absent, strict=True):
            lost = _lost(self.root, dist, lines, hashed, self.machine)
            if lost and not by_conda(self.root, dist):
                found += lost
        faults: list[FileFault] = []
        suspects: list[FileFault] = []
        for fault in found:
            suspected = fault.what == "edited" or _documents(self.root, fault)
            (suspects if suspected else faults).append(fault)
        return faults, suspects


def _documents(root: Root, fault: FileFault) -> bool:
    """Whether a file is missing with a whole folder that, by its name, has documentation."""
    folders = (fault.file[: found.end()] for found in _DOCUMENTS.finditer(fault.file))
    return fault.what == "missing" and not all(map(root.is_dir, folders))


def _installed_at(root: Root, dist: Distribution) -> int:
    """When a wheel was installed, in ns: an installer writes RECORD last."""
    try:
        return root.stat(f"{dist.path}/RECORD").st_mtime_ns + SLACK
    except (OSError, ValueError):
        return (1 << 63) - 1


def _lost(
    root: Root, dist: Distribution, absent: list[tuple[int, str]], hashed: bool, machine: int
) -> list[FileFault]:
    """Of the lines that C found those that are a fault, or suspect."""
    folders: dict[str, list[tuple[str, int, str]]] = {}
    for number, line in absent:
        folder, _, name = line.partition(",")[0].rpartition("/")
        folders.setdefault(folder, []).append((name, number, line.strip()))
    found: list[FileFault] = []
    # Documentation, which may be left out, comes last.
    for folder, lines in sorted(folders.items(), key=lambda each: bool(_DOCUMENTS.search(each[0]))):
        if folder.startswith(("/", "..", '"')):
            continue
        place = f"{dist.location}/{folder}".rstrip("/")
        there = {*root.names(place)}
        compiled = {n.partition(".")[0] for n in there if n.endswith((".pyc", ".so"))}
        for name, number, said in lines:
            path, stated = f"{place}/{name}", said.rpartition(",")[2]
            gone = name not in there or (root.host and root.is_dir(path))
            size = None
            if name in VITAL or (root.host and not gone):
                size = root.size(path)
                gone = gone or size is None
            what = "missing" if gone else "edited"
            if not gone and (size is None or str(size) == stated or not stated.isdecimal()):
                if size is None or not root.host or not altered(root, path, said, hashed, machine):
                    continue
                what = "hash" if is_library(name) else "edited"
            elif not gone and (
                (size == 0 and name.endswith(".py")) or (is_library(name) and not whole(root, path))
            ):
                what = "size"
            kept = name not in there and name.partition(".")[0] in compiled
            if place in root.unlisted or kept:
                continue
            evidence = Evidence(f"{dist.path}/RECORD", number, said[:200])
            owners = [f"{dist.name} {dist.version}"]
            found.append(FileFault(dist.name, path, what, evidence, owners))
            if len(found) == LOST:
                return found
    return found


def differs(root: Root, path: str, digest: str, stop: Callable[[], bool] | None = None) -> bool:
    """Whether a file has another content than its RECORD's hash says. (False: unknown.)

    stop: once it says so, no more is read, and the answer says nothing.
    """
    import base64
    import hashlib

    kind, _, wanted = digest.partition("=")
    if kind != "sha256":
        return False
    made, buffer = hashlib.sha256(), bytearray(1 << 20)
    try:
        with os.fdopen(root.open(path), "rb", buffering=0) as file:
            while not (stop and stop()) and (size := file.readinto(buffer)):
                root.take(size, 0)
                made.update(memoryview(buffer)[:size])
    except (OSError, ValueError):
        return False
    return base64.urlsafe_b64encode(made.digest()).rstrip(b"=").decode() != wanted.rstrip("=")


def whole(root: Root, path: str, machine: int = 0) -> bool:
    """Whether a file of another size is a library all the same: stripped, changed by patchelf, or
    listed wrongly by whoever built the wheel. machine: of that machine.
    """
    with ElfBits(root, path) as file:
        return file.whole and machine in (0, file.machine)


def ending(root: Root, path: str, machine: int = 0) -> str | None:
    """How the load of a library ends of which not all is there that a loader maps, reads or runs at
    once, in the words that a user reads; "" where they are not known, or the loader refuses it;
    None where it loads. Of an extension module, Python runs one function more. machine: that
    loads it.
    """
    module = os.path.basename(path).partition(".")[0]
    with ElfBits(root, path) as file:
        usable = file.sound and machine in (0, file.machine)
        return file.ending(f"PyInit_{module}") if usable else ""


def altered(root: Root, path: str, line: str, hashed: bool, machine: int) -> bool:
    """Whether a file of the right size has other bytes than RECORD says. hashed: it may be read,
    though it may be a library all the same.
    """
    odd = is_library(os.path.basename(path)) and not whole(root, path, machine)
    digest = line.rpartition(",")[0].rpartition(",")[2]
    size = root.size(path) or 0
    return (odd or (hashed and size <= ALTERED_LIMIT)) and differs(root, path, digest)


def listed(root: Root, dist: Distribution) -> set[str]:
    """The paths of all files that a wheel's RECORD lists."""
    lines = os.fsdecode(read(root, dist, [])).split("\n")
    return {f"{dist.location}/{line.partition(',')[0]}" for line in lines}


def by_conda(root: Root, dist: Distribution) -> bool:
    """Whether conda installed it. Asked only where there is a fault to tell.

    After pip has written RECORD, a recipe may move files, and conda patches paths in them.
    """
    dist.installer = dist.installer or installer(root, dist.path)
    return dist.installer == "conda"


class Owners:
    """Which distributions claim a file."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.by_path: dict[str, list[Entry]] = {}
        self.of: dict[str, list[Entry]] = {}  # distribution's path -> its entries
        self.records: dict[str, bytes] = {}  # distribution's path -> its RECORD
        self._conda: list[tuple[Distribution, bytes]] = []

    def add(self, dist: Distribution, problems: list[Problem]) -> None:
        raw = self.records[dist.path] = read(self.root, dist, problems)
        entries = self.of[dist.path] = libraries(dist, raw, problems)
        for entry in entries:
            self.by_path.setdefault(entry.path, []).append(entry)

    def add_conda(self, dist: Distribution) -> None:
        self._conda.append((dist, self.root.raw(dist.path, RECORD_LIMIT)))

    def owner(self, path: str) -> Distribution | None:
        """The distribution that a file belongs to: of two claims, the one whose size fits."""
        claims = self.by_path.get(path)
        if claims:
            if len(claims) > 1:
                size = self.root.size(path)
                claims = [c for c in claims if c.size == size] or claims
            return claims[0].distribution
        return self._of_conda(path)

    def _of_conda(self, path: str) -> Distribution | None:
        for dist, raw in self._conda:
            inside = path.removeprefix(dist.location.rstrip("/") + "/")
            if inside != path and b'"%s"' % inside.encode("utf-8", "surrogateescape") in raw:
                return dist
        return None

    def faults(self) -> list[FileFault]:
        """What RECORD says and the disk denies."""
        found: list[FileFault] = []
        for path, claims in self.by_path.items():
            size = self.root.size(path)
            if len(claims) == 1 and size == claims[0].size is not None:
                continue
            if size is None and os.path.dirname(path) in self.root.unlisted:
                continue
            size = None if self.root.is_dir(path) else size
            owners = [f"{c.distribution.name} {c.distribution.version}" for c in claims]
            in_doubt = len({c.digest for c in claims if c.size in (None, size)}) > 1
            for claim in claims:
                name, evidence = claim.distribution.name, claim.evidence
                if size is None:
                    what = "missing"
                elif claim.size is not None and claim.size != size:
                    said = f"{evidence.value} (on disk: {size} bytes)"
                    evidence = Evidence(evidence.file, evidence.line, said)
                    what = "owners"
                    if len(claims) == 1:
                        what = "edited" if whole(self.root, path) else "size"
                elif in_doubt and size <= HASH_LIMIT and differs(self.root, path, claim.digest):
                    what = "owners"
                else:
                    continue
                # Of what conda brought its own list says whether a file should be there.
                kept = size is None and self._of_conda(path) is not None
                if kept or not by_conda(self.root, claim.distribution):
                    found.append(FileFault(name, path, what, evidence, owners))
        return found + [fault for dist, raw in self._conda for fault in self._of_list(dist, raw)]

    def _of_list(self, dist: Distribution, raw: bytes) -> Iterator[FileFault]:
        """What a conda package lists and the disk denies, where no wheel has the file."""
        for match in _CONDA_LIBRARY.finditer(raw):
            path = f"{dist.location}/{os.fsdecode(match[1])}"
            stated, size = _CONDA_SIZE.search(match[0]), self.root.size(path)
            same = size is not None and (stated is None or size == int(stated[1]))
            if same or path in self.by_path or os.path.dirname(path) in self.root.unlisted:
                continue
            what = "missing" if size is None else "edited" if whole(self.root, path) else "size"
            said = f"{os.fsdecode(match[1])}, {int(stated[1]) if stated else '?'} bytes"
            line = raw.count(b"\n", 0, match.start(1)) + 1
            owner = f"{dist.name} {dist.version}"
            yield FileFault(dist.name, path, what, Evidence(dist.path, line, said), [owner])
