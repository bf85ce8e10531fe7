"""Lists of hosts as Slurm writes them: d[0-3,7] is d0, d1, d2, d3 and d7."""

from __future__ import annotations

import re
from itertools import product

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST = 1_000_000  # names that one list may stand for
SHOWN = 80  # characters of what is refused
_SPAN = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15}))?")
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
        The text is not a list of hosts, or has more than a million names.
    """
    names: dict[str, None] = {}
    count = 0
    for word in re.findall(r"(?:[^\s,\[\]]|\[[^\[\]]*\])+|[\[\]]", text):
        if word in "[]":
            raise ValueError(f"a {word!r} lacks its other half: a list of hosts is like d[0-3,7]")
        plain, *rest = re.split(r"\[([^\[\]]*)\]", word)
        numbers = [_spans(inside) for inside in rest[::2]]
        several = 1
        for many in (1, *(sum(len(span) for _, span in spans) for spans in numbers)):
            several *= many
            if count + several > MOST:
                raise ValueError(f"{word[:SHOWN]!r}: more than {MOST:,} names in a list of hosts")
        count += several
        choices = [[plain]]
        for spans, tail in zip(numbers, rest[1::2], strict=True):
            choices.append([f"{n:0{width}}{tail}" for width, span in spans for n in span])
        names.update(("".join(pieces), None) for pieces in product(*choices))
    return list(names)


def _spans(inside: str) -> list[tuple[int, range]]:
    """The numbers in brackets, as spans: how wide they are written, and which."""
    found = []
    for word in inside.split(","):
        match = _SPAN.fullmatch(word)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or last < first:
            raise ValueError(
                f"{word[:SHOWN]!r} in the brackets of a list of hosts is neither a number nor a "
                "span of numbers like 0-3"
            )
        found.append((len(match[1]), range(first, last + 1)))
    return found
