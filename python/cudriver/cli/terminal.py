"""What a terminal allows: colour, width, symbols, and progress on standard error."""

from __future__ import annotations

import errno
import os
import sys

from cudriver.stack.say import LANGUAGES, can_encode, choose, say, translate
from cudriver.stack.text import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, HelpFormatter
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from typing import Any, NoReturn, TextIO, TypeVar

    from cudriver.stack.report.text import Style

    T = TypeVar("T")

NARROW, WIDE = 40, 100
CANNOT_WRITE = (errno.EBADF, errno.EFBIG, errno.EIO, errno.ENOSPC, errno.EDQUOT)
PATIENCE = 1.0  # seconds before a progress bar shows


def wants_colour(stream: TextIO) -> bool:
    """True on a terminal that shows colour, unless NO_COLOR is set (https://no-color.org), and
    everywhere if FORCE_COLOR or CLICOLOR_FORCE is.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if any(
        os.environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")
    ):
        return True
    return os.environ.get("TERM") != "dumb" and stream.isatty()


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


def fit(text: str, stream: TextIO, indent: int = 0) -> str:
    """The text in a terminal's lines, broken at blanks, so that paths stay whole; all but the first
    start with `indent` blanks. Where there is no terminal it comes back as it is.
    """
    if columns(stream) is None:
        return text
    from cudriver.stack.text import wrap

    room = width(stream)
    lines = [part for line in text.split("\n") for part in wrap(line, room, room - indent)]
    return ("\n" + " " * indent).join(lines)


def beside(head: str, tail: str, stream: TextIO, indent: int) -> str:
    """`head`, two blanks and `tail`; on a terminal that is too narrow `tail` has its own line."""
    from cudriver.stack.text import columns as used

    room = columns(stream)
    if room is None or used(head) + 2 + used(tail) <= room:
        return f"{head}  {tail}"
    return f"{head}\n{' ' * indent}{tail}"


def redraws(stream: TextIO) -> bool:
    """Whether a line can be drawn again and again: on a terminal, but not in a notebook.

    IPython's kernels give a `!command` a terminal that keeps all that was ever drawn. They set both
    pagers to cat, because nothing can be steered there.
    """
    pagers = {os.environ.get("PAGER"), os.environ.get("GIT_PAGER")}
    return stream.isatty() and "JPY_PARENT_PID" not in os.environ and pagers != {"cat"}


def style(stream: TextIO) -> Style:
    """How a report is to be written on this stream."""
    from cudriver.stack.report.text import ELLIPSIS, MARKS, Style

    ascii_only = not can_encode(stream, ELLIPSIS + "".join(MARKS.values()))
    return Style(width=width(stream), colour=wants_colour(stream), ascii_only=ascii_only)


def write(text: str) -> None:
    """To standard output; what its encoding lacks is escaped (a file name may hold any byte)."""
    encoding = sys.stdout.encoding or "ascii"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def write_file(text: str, path: str) -> None:
    """To a file, or ("-") to standard output, where what its encoding lacks is a reference of HTML.
    Raises OSError.
    """
    if path == "-":
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "xmlcharrefreplace").decode(encoding))
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        error.filename = path  # that of a full disk names none
        raise


def progress(
    items: Iterable[T], total: int, label: str, name: Callable[[T], str] | None = None
) -> Iterable[T]:
    """Yields the items; where that takes over a second, with a bar on a terminal's stderr.

    `name` says what an item is, and stands beside the bar in the label's place while it is worked.

    `rich` is imported only then: it costs more than a whole quiet check.
    """
    if not redraws(sys.stderr):
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
        self.label: str = clean(label)
        self.status: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        if redraws(sys.stderr):
            from rich.console import Console

            self.status = Console(stderr=True).status(self.label)
            self.status.__enter__()

    def __exit__(self, *failure: object) -> None:
        if self.status is not None:
            self.status.__exit__(*failure)  # type: ignore[arg-type]


def parser(
    prog: str, *, description: str, epilog: str, raw: bool = False, verbose: str = ""
) -> ArgumentParser:
    """A command's parser: it knows the terminal's width, for its help and for its errors.

    raw: the lines of the description and the epilog stay as they are where they fit. verbose:
    what -v shows besides the traceback of what fails in cudriver.
    """
    from argparse import SUPPRESS, Action, ArgumentParser

    class Colour(Action):
        def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
            os.environ["NO_COLOR"] = "1" if values == "never" else ""
            if values != "never":
                os.environ["FORCE_COLOR"] = "1" if values == "always" else ""
                os.environ["CLICOLOR_FORCE"] = ""

    class Parser(ArgumentParser):
        def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
            choose(_wish(list(args or [])))  # before --help, and before what is wrong
            return super().parse_known_args(args, namespace)

        def _print_message(self, message: str, file: Any = None) -> None:
            (file or sys.stderr).write(message)  # argparse's own hides that it could not

        def error(self, message: str) -> NoReturn:
            near = _nearest_option(self, message)
            if not near:
                _say(self.format_usage().rstrip("\n"))
            message = translate(message, "usage")
            message += say("; did you mean {near}?", near=near) if near else ""
            text = say("{program}: error: {message}", program=self.prog, message=message)
            _say(fit(clean(text), sys.stderr, 4))
            raise SystemExit(2)

    shape: Any = formatter(raw)
    result = Parser(prog=prog, description=description, epilog=epilog, formatter_class=shape)
    shown = f"{verbose}; " if verbose else ""
    shown += "the traceback if cudriver itself fails"
    result.add_argument("-v", "--verbose", action="store_true", help=shown)
    result.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        action=Colour,
        default=SUPPRESS,
        help="colours: on a terminal (auto), always or never; without it NO_COLOR, FORCE_COLOR and "
        "CLICOLOR_FORCE decide",
    )
    result.add_argument(
        "--lang",
        choices=LANGUAGES,
        help="the language (default: Chinese where LC_ALL, LC_MESSAGES or LANG says zh, else "
        "English); JSON is English",
    )
    return result


def _wish(words: list[str]) -> str | None:
    """The language that a command line asks for; None: the locale's."""
    own = words[: words.index("--")] if "--" in words else words
    for at, word in enumerate(own):
        if word.startswith("--lang="):
            return word.partition("=")[2]
        if word == "--lang":
            return own[at + 1] if at + 1 < len(own) else None
    return None


def _nearest_option(parser: ArgumentParser, message: str) -> str:
    """The option that was meant, if argparse complains of one that is none."""
    from difflib import get_close_matches

    unknown = message.partition("unrecognized arguments: ")[2].split()
    options = [name for action in parser._actions for name in action.option_strings]
    wrong = next((word.partition("=")[0] for word in unknown if word.startswith("-")), "")
    ends = f"-{wrong.rpartition('-')[2]}"
    alike = [name for name in options if wrong and name.endswith(ends)]  # --gpu, --assume-gpu
    return next(iter(alike or get_close_matches(wrong, options, n=1)), "")


def formatter(raw: bool = False) -> Callable[[str], HelpFormatter]:
    """A help formatter that knows its width: argparse would import shutil to ask, on every run."""
    import re
    from argparse import HelpFormatter

    from cudriver.stack.text import columns as used
    from cudriver.stack.text import wrap

    class Formatter(HelpFormatter):
        """In the reader's language, whose characters may take two columns."""

        def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any = None) -> None:
            super().add_usage(usage, actions, groups, say("usage: ") if prefix is None else prefix)

        def _format_usage(self, *parts: Any) -> str:
            return super()._format_usage(*parts).replace("\n ", "\n " + " " * wider)

        def format_help(self) -> str:
            colon = say("usage: ").strip()[-1]  # argparse's own, after a heading, is ASCII
            return re.sub(r":$", colon, super().format_help(), flags=re.MULTILINE)

        def start_section(self, heading: Any) -> None:
            super().start_section(heading and say(heading))

        def _get_help_string(self, action: Any) -> str:
            return say(action.help or "")

        def _split_lines(self, text: str, width: int) -> list[str]:
            return wrap(text, width)

        def _fill_text(self, text: str, width: int, indent: str) -> str:
            told = say(text)
            return "\n".join(fit_help(told, width + 2) if raw else wrap(told, width))

    wider = used(say("usage: ")) - len(say("usage: "))  # than argparse takes it for
    room = width(sys.stdout) - 2 - wider
    return lambda prog: Formatter(prog, width=room)


def fit_help(text: str, room: int) -> list[str]:
    """The lines as they are if all fit; else each paragraph is wrapped, and an example (a line that
    starts with blanks) has what it says about a command below that.
    """
    from cudriver.stack.text import CLOSING, columns, wrap

    lines, paragraph = text.splitlines(), ""
    if max(map(columns, lines), default=0) <= room:
        return lines
    shown: list[str] = []
    for line in [*lines, ""]:
        if line and not line.startswith(" "):
            gap = "" if paragraph.endswith(tuple(CLOSING)) else " "
            paragraph = f"{paragraph}{gap}{line}".strip()
            continue
        shown += wrap(paragraph, room) if paragraph else []
        paragraph = ""
        command, _, about = line.rpartition("  ")
        if columns(line) <= room or not about or not command:
            shown.append(line)
            continue
        shown += [command.rstrip()] * bool(command.strip())
        shown.append(f"      {about}")
    return shown[:-1]


class plain_warnings:
    """As a context manager: warnings read as what a command complains of, not as Python's."""

    def __enter__(self) -> None:
        import warnings

        self.kept: warnings.catch_warnings[None] = warnings.catch_warnings()
        self.kept.__enter__()
        warnings.showwarning = lambda message, *_, **__: complain(str(message))

    def __exit__(self, *failure: object) -> None:
        self.kept.__exit__(*failure)  # type: ignore[arg-type]


def complain(text: str) -> None:
    """What is wrong, on standard error, named after the program; a line, but on a terminal."""
    _say(fit(clean(f"cudriver: {translate(text, 'usage')}"), sys.stderr, 4))


def complain_of_file(error: OSError) -> None:
    """Says which file could not be used. Raises the error again if it is standard output's."""
    if error.filename is None and error.errno is not None:
        raise error
    complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def complain_of_failure(error: Exception, where: str = "", *, trace: bool) -> None:
    """What failed inside cudriver, in a line; with its traceback where that is wanted."""
    if isinstance(error, OSError) and error.filename is None and error.errno in CANNOT_WRITE:
        complain(f"standard output: {os.strerror(error.errno)}")
        return
    if trace:
        import traceback

        lines = "".join(traceback.format_exception(error)).rstrip("\n").split("\n")
        _say("\n".join(map(clean, lines)))
    # What cannot be imported is the environment's doing: no NumPy, or a GIL that is forced off.
    bug = "" if isinstance(error, ImportError) else ": this is a bug of cudriver"
    hint = "" if trace else "; -v shows where"
    complain(f"{where}{failure(error)}{bug}{hint}")


def failure(error: BaseException) -> str:
    """An exception in a line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _say(text: str) -> None:
    """To standard error; where nothing can be written the exit status has to do."""
    from contextlib import suppress

    with suppress(OSError):
        print(text, file=sys.stderr)
