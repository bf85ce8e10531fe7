"""Reports out of what launchers print: labelled, mixed with other lines, broken off."""

from __future__ import annotations

import json
import os
import re
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, BinaryIO

LINE_LIMIT = 16 << 20  # bytes of a report; a check of a large environment prints 50 KB
BUFFER = 1 << 20  # bytes read at once: some hundred reports
DAMAGED_LIMIT = 20  # values of a line that cannot be read; what follows is not looked at
LABEL_LIMIT = 200  # bytes before a report: srun's "3: ", a pod's name, "[1,3]<stdout>:"
TOO_LONG = f"longer than {LINE_LIMIT >> 20} MiB"
BEGINNING = '{"schema"'
_BEGINNING = BEGINNING.encode()
_SRUN_LABEL = re.compile(rb"\s*[0-9]{1,9}: ")
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_DECODER = json.JSONDecoder()


class Told:
    """A JSON value that was read, and the name of the place: a label, a file's name or a line."""

    __slots__ = ("name", "value")

    def __init__(self, value: Any, name: str) -> None:
        self.value: Any = value
        self.name: str = name


class Broken:
    """A line that looks like a report and is none."""

    __slots__ = ("place", "why")

    def __init__(self, place: str, why: str) -> None:
        self.place: str = place
        self.why: str = why


class Other:
    """A line of something else."""

    __slots__ = ()


def named(name: str) -> Iterator[Told | Broken | Other]:
    """What is in a file, or in the regular files of a folder and below it, in order. What cannot be
    read there is Broken. Raises OSError for a file that is named itself.
    """
    if not os.path.isdir(name):
        yield from file(name)
        return
    unread: list[Broken] = []
    for folder, folders, files in os.walk(
        name, onerror=lambda error: unread.append(_unread(error.filename, error))
    ):
        folders.sort()
        for path in (os.path.join(folder, each) for each in sorted(files) if each[0] != "."):
            try:
                if stat.S_ISREG(os.stat(path).st_mode):  # a FIFO may have no writer
                    yield from file(path)
            except OSError as error:
                yield _unread(path, error)
    yield from unread


def _unread(path: str, error: OSError) -> Broken:
    return Broken(path, error.strerror or str(error))


def file(path: str) -> Iterator[Told | Broken | Other]:
    """What is in a file. Without a report it is Broken if its name says JSON. Raises OSError."""
    other = True
    with open(path, "rb", buffering=BUFFER) as stream:
        for item in lines(stream, path):
            other &= isinstance(item, Other)
            yield item
    if other and path.endswith((".json", ".jsonl")):
        yield Broken(path, "no report in it")


def lines(stream: BinaryIO, place: str) -> Iterator[Told | Broken | Other]:
    """What is in a stream of lines, or of one document that fills many lines. Raises OSError."""
    try:
        yield from told(_bounded(stream), place)
    except OSError as error:
        error.filename = place  # that of a read names none
        raise


def _bounded(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a stream; of one that is too long only its beginning, which is too long, too."""
    while raw := stream.readline(LINE_LIMIT + 1):
        yield raw
        while len(raw) > LINE_LIMIT and not raw.endswith(b"\n"):
            raw = stream.readline(LINE_LIMIT + 1)


def told(raws: Iterable[bytes], place: str) -> Iterator[Told | Broken | Other]:
    """What lines tell, each by itself or one document together. Without a `place` none is named."""
    stem = os.path.splitext(os.path.basename(place))[0]
    pieces, source = _Pieces(), iter(raws)
    for number, raw in enumerate(source, 1):
        where = f"{place}:{number}" if place else ""
        if number == 1 and raw.strip() in (b"{", b"["):  # as `check --json` prints it
            document = bytearray(raw)
            while len(document) <= LINE_LIMIT and (raw := next(source, b"")):
                document += raw
            yield from text(document.decode("utf-8", "replace"), where, stem)
            return
        if len(raw) > LINE_LIMIT:
            yield Broken(where, TOO_LONG)
        elif raw.strip():
            yield from pieces.add(raw, where)
    yield from pieces.rest()


class _Begun:
    """A report of which pieces have come. Each is looked at once: whether it closes all braces."""

    __slots__ = ("_backslash", "_depth", "_quoted", "line", "place")

    def __init__(self, label: bytes, place: str) -> None:
        self.line = bytearray(label)
        self.place = place
        self._depth = 0
        self._quoted = False  # the next piece begins inside a string
        self._backslash = b""  # the first half of an escape whose other half is in the next piece

    def add(self, piece: bytes) -> bool:
        """Take a piece; whether it is the last."""
        self.line += piece
        plain = _ESCAPED.sub(b"", self._backslash + piece)
        self._backslash = b"\\" if plain.endswith(b"\\") else b""
        parts = plain.split(b'"')
        outside = b"".join(parts[self._quoted :: 2])
        self._quoted ^= len(parts) % 2 == 0
        self._depth += outside.count(b"{") - outside.count(b"}")
        return self._depth <= 0


class _Pieces:
    """Puts together what ``srun --label`` takes apart: it breaks a line after 1,024 bytes, labels
    each piece as a line, and mixes those of several tasks.
    """

    def __init__(self) -> None:
        self._begun: dict[bytes, _Begun] = {}  # by label

    def add(self, raw: bytes, where: str) -> Iterator[Told | Broken | Other]:
        """What a line tells; nothing yet if it is a piece of a report, and not the last."""
        label = _SRUN_LABEL.match(raw)
        piece = raw[label.end() :].rstrip(b"\r\n") if label else b""
        begins = piece.startswith(_BEGINNING)
        if label is None or not (begins or label[0] in self._begun):
            yield from text(raw.decode("utf-8", "replace"), where)
            return
        if begins:
            yield from self._end(label[0])
            self._begun[label[0]] = _Begun(label[0], where)
        report = self._begun[label[0]]
        if report.add(piece) or len(report.line) > LINE_LIMIT:
            yield from self._end(label[0])

    def rest(self) -> Iterator[Told | Broken | Other]:
        """Reports whose end did not come."""
        for label in list(self._begun):
            yield from self._end(label)

    def _end(self, label: bytes) -> Iterator[Told | Broken | Other]:
        report = self._begun.pop(label, None)
        if report is not None:
            yield from text(report.line.decode("utf-8", "replace"), report.place)


def text(line: str, place: str, name: str = "") -> Iterator[Told | Broken | Other]:
    """The reports in a line: one as a rule, several where their processes share a pipe."""
    start = line.find("{")
    if not 0 <= start <= LABEL_LIMIT:
        yield Other()
        return
    name = name or line[:start].strip().rstrip(":").strip() or place
    damaged = 0
    while start >= 0:
        try:
            value, end = _DECODER.raw_decode(line, start)
        except ValueError as error:
            # Some other program's line may hold a brace, too.
            begun = "".join(line[start : start + 16].split())[: len(BEGINNING)]
            is_report = len(begun) > 1 and BEGINNING.startswith(begun)
            at = getattr(error, "pos", start) - start
            yield (
                Broken(place, f"broken off or damaged after {at:,} characters")
                if is_report
                else Other()
            )
            damaged += 1  # each costs as much as the line is long
            if damaged == DAMAGED_LIMIT:
                return
            start, name = line.find(BEGINNING, start + 1), place
            continue
        except (RecursionError, MemoryError) as error:
            yield Broken(place, f"not readable: {type(error).__name__}")
            return
        several = value.get("reports") if isinstance(value, dict) else None
        for each in several if isinstance(several, list) else [value]:
            yield Told(each, name)
        start = line.find("{", end)
