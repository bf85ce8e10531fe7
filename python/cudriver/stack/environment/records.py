"""Who owns a shared library: RECORD of wheels, the file lists of conda, and whose the one on the
disk is where two claim it. A hash is compared only where its size does not tell: hashing NCCL takes
half a second.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator

from cudriver.stack.elf.parts import is_whole
from cudriver.stack.environment.distributions import installer
from cudriver.stack.facts import (
    DAMAGED,
    EDITED,
    MISSING,
    OWNERS,
    SHARED,
    Distribution,
    Evidence,
    FileFault,
)
from cudriver.stack.names import is_cuda_library
from cudriver.stack.record import Record, put
from cudriver.stack.roots.rootfs import Root

RECORD_LIMIT = 32 << 20
LONGEST = 4096  # bytes of a path
LIBRARIES = 10_000  # shared libraries of one RECORD; a whole environment has a few thousand
HASH_LIMIT = 1 << 30  # bytes; a larger file is not hashed
ALGORITHMS = ("sha256", "sha384", "sha512")  # of a RECORD
SPARSE = 100  # times its blocks: no file system compresses so well
_LINE = re.compile(r'(?:"([^"]*)"|([^,"]*)),([^,]*),([0-9]*)\Z')
_LIBRARY = re.compile(rb'\.so[,."]')
_CONDA_LIBRARY = re.compile(rb'\{[^{}]*"_path": *"([^"]+\.so[.0-9]*)"[^{}]*\}')
_CONDA_SIZE = re.compile(rb'"hardlink"[^{}]*"size_in_bytes": *(\d+)')  # a link's says nothing


class Entry(Record):
    """One file of a distribution, as its list has it."""

    distribution: Distribution
    path: str  # inside the root, normalised
    digest: str  # "sha256=...", "" for none
    size: int | None  # in bytes, as the list has it
    text: str
    line: int = 0
    found: int | None = None  # its size on the disk; None: no regular file is there, or not asked

    @property
    def inside(self) -> str:
        """Its path in the list."""
        return self.text.partition(",")[0]

    @property
    def same_size(self) -> bool:
        """Whether only its content can be another than the list says."""
        return self.size is None or self.found == self.size

    @property
    def evidence(self) -> Evidence:
        return Evidence(f"{self.distribution.path}/RECORD", self.line, self.text[:200])

    def fault(self, what: str, why: str = "", says: str = "") -> FileFault:
        """What is wrong with it, for the report."""
        return FileFault(self.distribution.name, self.path, what, self.evidence, why=why, says=says)


def is_library(name: str) -> bool:
    """Whether a file's name is a shared library's: libcudart.so, libcudart.so.13."""
    if name.endswith(".so"):
        return True
    _, so, number = name.rpartition(".so.")
    return bool(so) and all(part.isdigit() for part in number.split("."))


def read(root: Root, dist: Distribution, quiet: bool = False) -> bytes:
    """A wheel's RECORD; b"" where there is none. quiet: nothing is noted of one that is bad."""
    if dist.kind != "wheel":
        return b""
    file = f"{dist.path}/RECORD"
    try:
        raw = root.read(file, RECORD_LIMIT + 1)
    except (OSError, ValueError) as error:
        # Distribution packages of Debian and others have none.
        absent = getattr(error, "errno", None) in (errno.ENOENT, errno.ENOTDIR)
        if not (absent or quiet):
            root.note(file, f"cannot be read: {getattr(error, 'strerror', None) or error}")
        return b""
    if len(raw) > RECORD_LIMIT and not quiet:
        root.note(file, f"is larger than {RECORD_LIMIT} bytes; the rest was not read")
    return raw[:RECORD_LIMIT]


def parsed(dist: Distribution, text: str, line: int = 0) -> Entry | None:
    """A line of RECORD; None where it is none."""
    match = _LINE.match(text)
    if match is None:
        return None
    name = match[1] or match[2] or ""
    path = f"{dist.location}/{name}"
    if name.startswith("/") or "/." in path or "//" in path:
        path = os.path.normpath(os.path.join(dist.location, name))
    size = int(match[4]) if match[4] and len(match[4]) < 19 else None
    return Entry(dist, path, match[3], size, text, line)


def libraries(root: Root, dist: Distribution, raw: bytes) -> list[Entry]:
    """The shared libraries that a wheel's RECORD lists."""
    file = f"{dist.path}/RECORD"
    if b"\0" in raw[:4096]:
        root.note(file, "is not text")
        return []
    found: list[Entry] = []
    line, seen, end = 1, 0, 0
    for match in _LIBRARY.finditer(raw):
        if match.start() < end:
            continue  # of a line that was read
        start, end = raw.rfind(b"\n", 0, match.start()) + 1, raw.find(b"\n", match.end())
        end = len(raw) if end < 0 else end
        text = raw[start:end].decode("utf-8", "replace").strip() if end - start < 8192 else ""
        entry = parsed(dist, text)
        if entry is not None and is_library(entry.path):
            if len(found) == LIBRARIES:
                why = f"lists more than {LIBRARIES} shared libraries; the rest was not read"
                root.note(file, why)
                break
            line, seen = line + raw.count(b"\n", seen, start), start
            entry.line = line
            found.append(entry)
    return found


def differs(root: Root, path: str, digest: str, stop: Callable[[], bool] | None = None) -> bool:
    """Whether a file has another content than its RECORD's hash says. (False: unknown.)

    stop: once it says so, no more is read, and the answer says nothing.
    """
    import base64

    kind, _, wanted = digest.partition("=")
    made = hash_of(root, path, kind, stop) if kind in ALGORITHMS else None
    if made is None:
        return False
    return base64.urlsafe_b64encode(made).rstrip(b"=").decode() != wanted.rstrip("=")


def hash_of(
    root: Root, path: str, kind: str, stop: Callable[[], bool] | None = None
) -> bytes | None:
    """A file's hash; None where it cannot be read, or is mostly holes: reading those has no end."""
    import hashlib

    made, buffer = hashlib.new(kind, usedforsecurity=False), bytearray(1 << 20)
    try:
        descriptor, about = root.open(path)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if about.st_size > SPARSE * (about.st_blocks * 512 + len(buffer)):
                return None
            left = about.st_size
            while left > 0 and not (stop and stop()) and (size := file.readinto(buffer)):
                root.take(size, 0)
                made.update(memoryview(buffer)[:size])
                left -= size
    except (OSError, ValueError):
        return None
    return made.digest()


def before(raw: bytes, ending: bytes) -> Iterator[str]:
    """What stands in the lines of a RECORD before an ending: ".py,"."""
    at = raw.find(ending)
    while at >= 0:
        least = max(at - LONGEST, 0)
        yield os.fsdecode(raw[max(raw.rfind(b"\n", least, at) + 1, least) : at])
        at = raw.find(ending, at + 1)


def packages_of(raw: bytes) -> set[str]:
    """The packages that a RECORD lists, those in no other."""
    names = before(raw, b"/__init__.py,")
    return {name for name in names if name.isidentifier() and not name.startswith("_")}


def module_of(dist: Distribution, raw: bytes) -> str:
    """What a program imports of a distribution, by its RECORD; "" where that is not known."""
    packages, own = packages_of(raw), dist.name.replace("-", "_")
    if own in packages:
        return own
    return packages.pop() if len(packages) == 1 else ""


class Owners:
    """Which distributions claim a file."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.by_path: dict[str, list[Entry]] = {}
        self.of: dict[str, list[Entry]] = {}  # distribution's path -> its entries
        self.records: dict[str, bytes] = {}  # distribution's path -> its RECORD
        self._conda: list[tuple[Distribution, bytes]] = []

    def add(self, dist: Distribution) -> None:
        if dist.kind == "conda":
            self._conda.append((dist, self.root.raw(dist.path, RECORD_LIMIT)))
            return
        raw = self.records[dist.path] = read(self.root, dist)
        entries = self.of[dist.path] = libraries(self.root, dist, raw)
        put(dist, size=sum(entry.size or 0 for entry in entries) if raw else None)
        for entry in entries:
            self.by_path.setdefault(entry.path, []).append(entry)

    def owner(self, path: str) -> Distribution | None:
        """The distribution that a file belongs to: of two claims, the one whose size fits."""
        claims = self.by_path.get(path)
        if claims:
            if len(claims) > 1:
                size = self.root.regular(path)[0]
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
        """What two RECORDs say of one library, or a conda list of its own, and the disk denies."""
        found: list[FileFault] = []
        for path, claims in self.by_path.items():
            size = self.root.regular(path)[0]
            if len(claims) == 1 and (size is not None or self._of_conda(path) is None):
                continue
            if size is None and os.path.dirname(path) in self.root.unlisted:
                continue
            owners = [f"{c.distribution.name} {c.distribution.version}" for c in claims]
            in_doubt = len({c.digest for c in claims if c.size in (None, size)}) > 1
            known = len(found)
            for claim in claims:
                name, evidence = claim.distribution.name, claim.evidence
                if size is None:
                    what = MISSING
                elif claim.size is not None and claim.size != size:
                    text = f"{evidence.value} (on disk: {size} bytes)"
                    evidence, what = Evidence(evidence.file, evidence.line, text), OWNERS
                elif in_doubt and size <= HASH_LIMIT and differs(self.root, path, claim.digest):
                    what = OWNERS
                else:
                    continue
                # Of what conda brought its own list says whether a file should be there: after pip
                # has written RECORD a recipe may move files, and conda patches paths in them.
                kept = size is None and self._of_conda(path) is not None
                if kept or installer(self.root, claim.distribution) != "conda":
                    found.append(FileFault(name, path, what, evidence, owners))
            first = claims[0]
            several = any(c.distribution.name != first.distribution.name for c in claims)
            if several and len(found) == known and is_cuda_library(os.path.basename(path)):
                name = first.distribution.name
                found.append(FileFault(name, path, SHARED, first.evidence, owners))
        return found + [fault for dist, raw in self._conda for fault in self._of_list(dist, raw)]

    def _of_list(self, dist: Distribution, raw: bytes) -> Iterator[FileFault]:
        """What a conda package lists and the disk denies, where no wheel has the file."""
        for match in _CONDA_LIBRARY.finditer(raw):
            path = f"{dist.location}/{os.fsdecode(match[1])}"
            stated, size = _CONDA_SIZE.search(match[0]), self.root.regular(path)[0]
            same = size is not None and (stated is None or size == int(stated[1]))
            if same or path in self.by_path or os.path.dirname(path) in self.root.unlisted:
                continue
            what = MISSING if size is None else EDITED if is_whole(self.root, path) else DAMAGED
            text = f"{os.fsdecode(match[1])}, {int(stated[1]) if stated else '?'} bytes"
            line = raw.count(b"\n", 0, match.start(1)) + 1
            owner = f"{dist.name} {dist.version}"
            why = "" if what != DAMAGED else "ends too early" if size else "is empty"
            evidence = Evidence(dist.path, line, text)
            yield FileFault(dist.name, path, what, evidence, [owner], why)
