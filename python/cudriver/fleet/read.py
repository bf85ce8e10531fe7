"""Reports out of what launchers print: labelled, mixed with other lines, broken off."""

from __future__ import annotations

import json
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, BinaryIO

LINE_LIMIT = 16 << 20  # bytes of a report; a check of a large environment prints 50 KB
BUFFER = 1 << 20  # bytes read at once: some hundred reports
LABEL_LIMIT = 200  # bytes before a report: srun's "3: ", a pod's name, "[1,3]<stdout>:"
BEGINNING = '{"schema"'
_BEGINNING = BEGINNING.encode()
_SRUN_LABEL = re.compile(rb"\s*[0-9]{1,9}: ")
_DECODER = json.JSONDecoder()


class Told:
    """A JSON value that was read, and the name of the place: a label, a file's name or a line."""

    __slots__ = ("name", "value")

    def __init__(self, value: Any, name: str) -> None:
        self.value = value
        self.name = name


class Broken:
    """A line that looks like a report and is none."""

    __slots__ = ("place", "why")

    def __init__(self, place: str, why: str) -> None:
        self.place = place
        self.why = why


class Other:
    """A line of something else."""

    __slots__ = ()


def paths(names: Iterable[str]) -> Iterator[str]:
    """The files; for a folder those in it and below, in order. Raises OSError."""
    for name in names:
        if not os.path.isdir(name):
            yield name
            continue
        for folder, below, files in os.walk(name, onerror=_raise):
            below.sort()
            yield from (os.path.join(folder, file) for file in sorted(files) if file[0] != ".")


def _raise(error: OSError) -> None:
    raise error


def file(path: str) -> Iterator[Told | Broken | Other]:
    """What is in a file. Raises OSError."""
    with open(path, "rb", buffering=BUFFER) as stream:
        yield from lines(stream, path)


def lines(stream: BinaryIO, place: str) -> Iterator[Told | Broken | Other]:
    """What is in a stream of lines, or of one document that fills many lines."""
    stem = os.path.splitext(os.path.basename(place))[0]
    pieces = _Pieces()
    for number, raw in enumerate(iter(lambda: stream.readline(LINE_LIMIT), b""), 1):
        where = f"{place}:{number}"
        if number == 1 and raw.strip() in (b"{", b"["):  # as `check --json` prints it
            document = raw + stream.read(LINE_LIMIT)
            yield from text(document.decode("utf-8", "replace"), where, stem)
            return
        if not raw.endswith(b"\n") and len(raw) == LINE_LIMIT:
            yield Broken(where, f"longer than {LINE_LIMIT >> 20} MiB")
            while raw and not raw.endswith(b"\n"):
                raw = stream.readline(LINE_LIMIT)
        elif raw.strip():
            yield from pieces.add(raw, where)
    yield from pieces.rest()


class _Pieces:
    """Puts together what ``srun --label`` takes apart: it breaks a line after 1,024 bytes, labels
    each piece as a line, and mixes those of several tasks.
    """

    def __init__(self) -> None:
        self._begun: dict[bytes, tuple[bytes, str]] = {}  # by label: the line so far, its place

    def add(self, raw: bytes, where: str) -> Iterator[Told | Broken | Other]:
        """What a line tells; nothing yet if it is a piece of a report, and not the last."""
        label = _SRUN_LABEL.match(raw)
        if label is None:
            yield from text(raw.decode("utf-8", "replace"), where)
            return
        piece = raw[label.end() :].rstrip(b"\r\n")
        if piece.startswith(_BEGINNING):
            yield from self._end(label[0])
        line, first = self._begun.pop(label[0], (label[0], where))
        line += piece
        if piece.endswith(b"}") or not line.startswith(_BEGINNING, label.end()):
            told = list(text(line.decode("utf-8", "replace"), first))
            if not isinstance(told[-1], Broken) or len(line) > LINE_LIMIT:
                yield from told
                return
        self._begun[label[0]] = line, first

    def rest(self) -> Iterator[Told | Broken | Other]:
        """Reports whose end did not come."""
        for label in list(self._begun):
            yield from self._end(label)

    def _end(self, label: bytes) -> Iterator[Told | Broken | Other]:
        if label in self._begun:
            line, first = self._begun.pop(label)
            yield from text(line.decode("utf-8", "replace"), first)


def text(line: str, place: str, name: str = "") -> Iterator[Told | Broken | Other]:
    """The reports in a line: one as a rule, several where their processes share a pipe."""
    start = line.find("{")
    if not 0 <= start <= LABEL_LIMIT:
        yield Other()
        return
    name = name or line[:start].strip().rstrip(":").strip() or place
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
            start, name = line.find(BEGINNING, start + 1), place
            continue
        except (RecursionError, MemoryError) as error:
            yield Broken(place, f"not readable: {type(error).__name__}")
            return
        several = value.get("reports") if isinstance(value, dict) else None
        for each in several if isinstance(several, list) else [value]:
            yield Told(each, name)
        start = line.find("{", end)
