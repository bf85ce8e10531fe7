"""Lists of hosts as Slurm writes them: d[0-3,7] is d0, d1, d2, d3 and d7."""

from __future__ import annotations

import re
from itertools import product

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST = 1_000_000  # names that one list may stand for
# The last number of a host's own name; the domain stays as it is.
_NUMBERED = re.compile(r"([^.]*?)([0-9]{1,15})([^0-9.]*(?:\..*)?)", re.DOTALL)


def fold(names: Iterable[str]) -> list[str]:
    """The names in as few words as there are patterns, in order: ["d[0-3,7]", "login"]."""
    names = dict.fromkeys(names)
    if len(names) == 1:
        return list(names)
    words: list[str] = []
    numbered: dict[tuple[str, str], dict[str, None]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            words.append(name)
        else:
            numbered.setdefault((match[1], match[3]), {})[match[2]] = None
    for (head, tail), digits in numbered.items():
        words += [head + numbers + tail for numbers in _ranges(digits)]
    return sorted(words)


def _ranges(digits: Iterable[str]) -> Iterator[str]:
    """The numbers in brackets, one word a width: 08, 09, 10 are not 8, 9, 10."""
    padded = {len(number) for number in digits if number[0] == "0" and len(number) > 1}
    widths: dict[int, list[int]] = {}
    for number in digits:
        widths.setdefault(len(number) if len(number) in padded else 0, []).append(int(number))
    for width, values in sorted(widths.items()):
        spans: list[list[int]] = []
        for value in sorted(values):
            if spans and value == spans[-1][1] + 1:
                spans[-1][1] = value
            else:
                spans.append([value, value])
        texts = [
            f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}"
            for first, last in spans
        ]
        yield f"[{','.join(texts)}]" if len(values) > 1 else texts[0]


def parse(text: str) -> list[str]:
    """The names that a list stands for, each once.

    Raises
    ------
    ValueError
        The text is no list of hosts, or stands for more than a million.
    """
    names: dict[str, None] = {}
    for word in re.findall(r"(?:[^\s,\[\]]|\[[^\[\]]*\])+|[\[\]]", text):
        parts = [_numbers(part, text) for part in re.split(r"(\[[^\[\]]*\])", word)]
        count = len(names)
        for part in parts:
            count += (len(part) - 1) * max(count, 1)
        if count > MOST:
            raise ValueError(f"{text!r} stands for more than {MOST:,} hosts")
        names.update(("".join(pieces), None) for pieces in product(*parts))
    return list(names)


def _numbers(part: str, text: str) -> list[str]:
    """What a part of a word stands for: itself, or the numbers in its brackets."""
    if not part.startswith(("[", "]")):
        return [part]
    found: list[str] = []
    for span in part[1:-1].split(","):
        first, _, last = span.partition("-")
        last = last or first
        if not all(n.isascii() and n.isdigit() and len(n) < 16 for n in (first, last)):
            raise ValueError(f"{text!r} is no list of hosts like d[0-3,7]: {part!r} has no numbers")
        if int(last) - int(first) + len(found) >= MOST:
            raise ValueError(f"{text!r} stands for more than {MOST:,} hosts")
        found += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    return found
