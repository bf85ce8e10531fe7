"""The report as text: a table that fits 80 columns, or 60, with a word on each rung.

It is English unless a style says otherwise.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cudriver.ladder.result import number, show_size
from cudriver.ladder.rungs import BACK, RECORDED, RUNGS, Rung

WHOLE = 80
TITLE, RATE, ABOVE, LOCKED = 24, 16, 11, 13
NARROW_RATE, NARROW_LOCKED = 13, 10  # where 60 columns have to do, without the rung above
SIZE, COLUMN = 9, 10
MOVED, NARROW_MOVED, PATH, RATES = 14, 12, 16, 12  # of the simulated driver's table


def english(text: str, **values: object) -> str:
    """The sentence with its values."""
    return text.format(**values) if values else text


@dataclass(frozen=True)
class Style:
    """How to write: columns, colour, and whether signs beyond ASCII are there."""

    width: int = 80
    colour: bool = False
    plain: bool = False
    say: Callable[..., str] = english  # a sentence and its values in the reader's language
    columns: Callable[[str], int] = len  # how wide a terminal shows a text
    break_up: Callable[[str, int], list[str]] | None = None  # of a language without blanks

    def pad(self, text: str, width: int) -> str:
        """The text, filled with blanks to so many columns."""
        return text + " " * (width - self.columns(text))

    def right(self, text: str, width: int) -> str:
        """The same with the blanks before it."""
        return " " * (width - self.columns(text)) + text

    def strong(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.colour else text

    def faint(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.colour else text

    def loud(self, text: str) -> str:
        return f"\x1b[1;31m{text}\x1b[0m" if self.colour else text

    def wrap(self, text: str, indent: str = "", hang: str = "", head: str = "") -> Iterator[str]:
        """Lines of `width` columns, all but the first further in by `hang`; a path stays whole.
        `head` stands before the text.
        """
        if self.break_up is not None:
            first, *rest = self.break_up(text, self.width - self.columns(indent + hang))
            return iter([indent + head + first, *(indent + hang + line for line in rest)])
        return iter(
            textwrap.wrap(
                head + text,
                self.width,
                initial_indent=indent,
                subsequent_indent=indent + hang,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )


def lines(report: dict[str, Any], why_simulated: str | None, style: Style) -> Iterator[str]:
    """The whole report, line by line."""
    say = style.say
    if report["simulated"]:
        why = say("SIMULATED DRIVER: {why}.", why=why_simulated)
        yield from map(style.loud, style.wrap(why))
        yield from style.wrap(
            say(
                "No GPU takes part, so no rates are shown: only what was copied and verified, and "
                "by which path. The last column is another machine's: {recorded}.",
                recorded=say(RECORDED),
            )
        )
        yield ""
    device, driver = report["device"], report["driver"]
    labels = [say("device"), say("driver"), say("arrays")]
    room = max(map(style.columns, labels)) + 2
    sizes = ", ".join(show_size(size) for size in report["sizes"])
    count = report["rounds"]
    how = say("1 round" if count == 1 else "{n} rounds", n=count)
    if not report["simulated"]:
        spread = sign(style, "±", "+-")
        told = "the median of {rounds}, {sign} half of what lies between the quartiles"
        how = say(told, rounds=how, sign=spread)
    values = (
        f"{device['ordinal']}, {device['name']}",
        f"CUDA {driver['cuda']}  {driver['path']}",
        f"{sizes}; {how}",
    )
    for label, value in zip(labels, values, strict=True):
        yield from style.wrap(value, hang=" " * room, head=style.pad(label, room))
    yield ""
    if report["simulated"]:
        yield from verified(report, style)
    elif len(report["sizes"]) == 1:
        yield from one_size(report, style)
    else:
        yield from sweep(report, style)
    for note in report["notes"]:
        yield from style.wrap(say(note))
    yield ""
    if report["verified"]:
        yield say("every byte is right")
    else:
        yield style.loud(say("WRONG BYTES: see above"))


def one_size(report: dict[str, Any], style: Style) -> Iterator[str]:
    """A row a rung, slowest first, and what it teaches below it."""
    last = "page-locked" if style.width >= WHOLE else "locked"
    for cells in (
        ("", "to device", "from device", "against", "against"),
        ("GB/s", "or read", "or write", "one above", last),
    ):
        yield style.strong(columns(style, *map(style.say, cells)))
    yield style.faint(sign(style, "─", "-") * len(columns(style, "", "", "", "", "")))
    for rung in RUNGS:
        rows = [row for row in report["rungs"] if row["rung"] == rung.name]
        for pair in pairs(rows):
            yield from row_lines(style.say(rung.title), pair, style)
        if rows:
            for text in dict.fromkeys([rung.teaches, *(n for row in rows for n in row["notes"])]):
                yield from map(style.faint, style.wrap(style.say(text), "  "))


def verified(report: dict[str, Any], style: Style) -> Iterator[str]:
    """A row a rung: what was moved each way, by which path, and what a real device's rate was."""
    wide = style.width >= WHOLE
    moved = MOVED if wide else NARROW_MOVED

    def line(title: str, there: str, back: str, path: str, rate: str) -> str:
        pad, end = style.pad, style.right(rate, RATES)
        cells = pad(title, TITLE) + pad(there, moved) + pad(back, moved)
        return cells + pad(path, PATH) + end if wide else cells + end

    say = style.say
    path, recorded = say("path of"), say("recorded,")
    yield style.strong(line("", say("to device"), say("from device"), path, recorded))
    yield style.strong(line("", say("or read"), say("or write"), "cu.copy", "GB/s"))
    yield style.faint(sign(style, "─", "-") * len(line("", "", "", "", "")))
    for rung in RUNGS:
        rows = [row for row in report["rungs"] if row["rung"] == rung.name]
        ways = [[r for r in rows if (r["direction"] in BACK) == back] for back in (False, True)]
        skipped = dict.fromkeys(row["skipped"] for row in rows if row["skipped"])
        rate = "" if rung.recorded is None else number(rung.recorded)
        if any(row["verified"] is not None for row in rows):
            paths = dict.fromkeys(row["path"] for row in rows if row["path"])
            there, back = (moved_bytes(way, style, rung.sized) for way in ways)
            yield line(style.say(rung.title), there, back, ", ".join(paths), rate).rstrip()
        for text in skipped:
            yield from not_measured(style.say(rung.title), text, style)
        if rows and len(report["sizes"]) == 1:
            yield from map(style.faint, style.wrap(style.say(rung.teaches), "  "))


def not_measured(title: str, why: str, style: Style) -> Iterator[str]:
    """A rung's row that has a reason in place of rates."""
    yield from style.wrap(style.say(why), hang=" " * TITLE, head=style.pad(title, TITLE))


def moved_bytes(rows: list[dict[str, Any]], style: Style, sized: bool) -> str:
    """What arrived one way: how much, if that says something, and whether it was right."""
    known = [row for row in rows if row["verified"] is not None]
    if not known:
        return ""
    if not all(row["verified"] for row in known):
        return style.loud(style.say("WRONG"))
    right = sign(style, "✓", "ok")
    if len(known) > 1:
        several = "{n} copies" if known[0]["devices"] else "{n} sizes"
        return f"{style.say(several, n=len(known))} {right}"
    return f"{show_size(known[0]['bytes'])} {right}" if sized else right


def columns(style: Style, title: str, there: str, back: str, above: str, locked: str) -> str:
    """A line of the table; a narrow one leaves out the ratio to the rung above."""
    if style.width >= WHOLE:
        rates = style.pad(there, RATE) + style.pad(back, RATE) + style.right(above, ABOVE)
        return style.pad(title, TITLE) + rates + style.right(locked, LOCKED)
    rates = style.pad(there, NARROW_RATE) + style.pad(back, NARROW_RATE)
    return style.pad(title, TITLE) + rates + style.right(locked, NARROW_LOCKED)


def pairs(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any] | None]]:
    """A rung's rows as they stand side by side: there and back."""
    ways = [row for row in rows if row["devices"] is None]
    if ways:
        there = [row for row in ways if row["direction"] not in BACK]
        back = [row for row in ways if row["direction"] in BACK]
        yield [there[0] if there else None, back[0] if back else None]
    peers = {tuple(row["devices"]): row for row in rows if row["devices"] is not None}
    for (source, target), row in peers.items():
        if source < target:
            yield [row, peers.get((target, source))]


def row_lines(title: str, pair: list[dict[str, Any] | None], style: Style) -> Iterator[str]:
    first = pair[0] or pair[1]
    assert first is not None
    if first["skipped"]:
        yield from not_measured(title, first["skipped"], style)
        return
    if first["devices"]:
        arrow = sign(style, "⇄", "<>")
        title = f"{title}, GPU {first['devices'][0]} {arrow} {first['devices'][1]}"
    rates = [show_rate(row, style) for row in pair]
    ratios = [show_ratio(first[f"ratio_to_{name}"]) for name in ("above", "page_locked")]
    yield columns(style, title, rates[0], rates[1], ratios[0], ratios[1])
    if any(row is not None and not row["verified"] for row in pair):
        yield style.loud(f"  {style.say('WRONG BYTES arrived')}")


def sweep(report: dict[str, Any], style: Style) -> Iterator[str]:
    """A table each way: a row a size, a column a rung."""
    for back, head in ((False, "to the device, or read"), (True, "from the device, or write")):
        rows = [row for row in report["rungs"] if (row["direction"] in BACK) == back]
        shown = [r for r in RUNGS if r.sized and any(measured(row, r) for row in rows)]
        width = min(COLUMN, (style.width - SIZE) // max(len(shown), 1))
        yield style.strong(f"GB/s {style.say(head)}")
        heads = "".join(style.right(style.say(r.short), width) for r in shown)
        size = style.say("size")  # the first head may be wider than its column
        whole = SIZE - style.columns(size) + width * len(shown)
        yield style.strong(size + style.right(heads, whole))
        yield style.faint(sign(style, "─", "-") * (SIZE + width * len(shown)))
        for size in report["sizes"]:
            cells = []
            for rung in shown:
                here = [r for r in rows if r["rung"] == rung.name and r["size"] == size]
                rates = [row["gb_per_s"] for row in here if row["gb_per_s"]]
                cells.append(f"{number(rates[0]) if rates else '':>{width}}")
            yield f"{show_size(size):<{SIZE}}{''.join(cells)}".rstrip()
        yield ""
    for rung in RUNGS:
        rows = [row for row in report["rungs"] if measured(row, rung)]
        if not rung.sized and rows:
            ways = ", ".join(f"{row['direction']} {show_rate(row, style)}" for row in rows)
            told = "{title}, at any size: {ways} (GB/s)"
            told = style.say(told, title=style.say(rung.title), ways=ways)
            yield from style.wrap(told, hang="  ")
    say = style.say
    skipped = (f"{say(r['title'])}: {say(r['skipped'])}" for r in report["rungs"] if r["skipped"])
    for text in dict.fromkeys(skipped):  # once, not for each size
        yield from style.wrap(text, hang="  ")
    notes: dict[tuple[str, str], dict[str, None]] = {}
    for row in report["rungs"]:
        for note in row["notes"]:
            notes.setdefault((row["title"], note), {})[show_size(row["size"])] = None
    for (title, note), sizes in notes.items():
        yield from style.wrap(f"{say(title)}, {', '.join(sizes)}: {say(note)}")
    if not all(row["verified"] for row in report["rungs"] if not row["skipped"]):
        for row in report["rungs"]:
            if row["verified"] is False:
                where = f"{say(row['title'])}, {row['direction']}, {show_size(row['size'])}"
                yield style.loud(f"{say('WRONG BYTES arrived')}: {where}")


def measured(row: dict[str, Any], rung: Rung) -> bool:
    return row["rung"] == rung.name and row["gb_per_s"] is not None


def sign(style: Style, fine: str, plain: str) -> str:
    """A sign, or what stands for it in ASCII."""
    return plain if style.plain else fine


def show_rate(row: dict[str, Any] | None, style: Style) -> str:
    if row is None or row["gb_per_s"] is None:
        return ""
    return f"{number(row['gb_per_s'])} {sign(style, '±', '+-')}{row['spread'] * 100:.0f}%"


def show_ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{number(ratio)}x"
