"""What a terminal allows: colour, width, symbols, and progress on standard error."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import HelpFormatter
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from typing import TextIO, TypeVar

    from cudriver.stack.report_text import Style

    T = TypeVar("T")

NARROW, WIDE = 40, 100
PATIENCE = 1.0  # seconds before a progress bar shows


def wants_colour(stream: TextIO) -> bool:
    """True on a terminal that shows colour, unless NO_COLOR is set (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def columns(stream: TextIO) -> int | None:
    """The terminal's columns; None where there is none, so that nothing needs to be broken."""
    wish = os.environ.get("COLUMNS", "")
    if wish.isdecimal() and int(wish) > 0:
        return int(wish)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def width(stream: TextIO) -> int:
    """Columns to write text in: the terminal's, within reason; 80 where there is none."""
    return min(max(columns(stream) or 80, NARROW), WIDE)


def can_encode(stream: TextIO, text: str) -> bool:
    """Whether the stream's encoding has these characters (a C locale has no tick)."""
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def style(stream: TextIO) -> Style:
    """How a report is to be written on this stream."""
    from cudriver.stack.report_text import ELLIPSIS, MARKS, Style

    plain = not can_encode(stream, ELLIPSIS + "".join(MARKS.values()))
    return Style(width=width(stream), colour=wants_colour(stream), plain=plain)


def write(text: str) -> None:
    """To standard output; what its encoding lacks is escaped (a file name may hold any byte)."""
    encoding = sys.stdout.encoding or "ascii"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def progress(
    items: Iterable[T], total: int, label: str, name: Callable[[T], str] | None = None
) -> Iterable[T]:
    """Yields the items; where that takes over a second, with a bar on a terminal's stderr.

    `name` says what an item is, and stands beside the bar in the label's place while it is worked.

    `rich` is imported only then: it costs more than a whole quiet check.
    """
    if not sys.stderr.isatty():
        yield from items
        return
    from time import monotonic

    started = monotonic()
    left = iter(items)
    for position, item in enumerate(left, 1):
        yield item
        if monotonic() - started > PATIENCE:
            from rich.console import Console
            from rich.progress import Progress

            with Progress(console=Console(stderr=True), transient=True) as bar:
                task = bar.add_task(label, total=total, completed=position)
                for item in left:
                    if name is not None:
                        bar.update(task, description=name(item))
                    yield item
                    bar.advance(task)


class busy:
    """Shows on a terminal's stderr that one long step is under way, as a context manager."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.status: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        if sys.stderr.isatty():
            from rich.console import Console

            self.status = Console(stderr=True).status(self.label)
            self.status.__enter__()

    def __exit__(self, *failure: object) -> None:
        if self.status is not None:
            self.status.__exit__(*failure)  # type: ignore[arg-type]


def formatter(raw: bool = False) -> Callable[[str], HelpFormatter]:
    """A help formatter that knows its width: argparse would import shutil to ask, on every run."""
    from argparse import HelpFormatter, RawDescriptionHelpFormatter

    kind = RawDescriptionHelpFormatter if raw else HelpFormatter
    columns = width(sys.stdout) - 2
    return lambda prog: kind(prog, width=columns)


def complain(text: str) -> None:
    """One line on standard error, named after the program."""
    print(f"cudriver: {text}", file=sys.stderr)
