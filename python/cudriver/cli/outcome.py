"""What `check`, `fleet` and `plan` do alike: print an outcome in the forms that are wanted."""

from __future__ import annotations

from cudriver.cli import USAGE_ERROR, terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from typing import TypeVar

    from cudriver.fleet.report import Fleet
    from cudriver.stack.planning.report import Plan

    T = TypeVar("T", Fleet, Plan)


def crowded(arguments: Namespace) -> bool:
    """Says, and returns, whether standard output would get two reports or a file has no name."""
    for name in ("html", "markdown"):
        if vars(arguments).get(name) == "":
            terminal.complain(f"--{name} needs the name of a file")
            return True
    wanted = [f"--{name} -" for name in ("html", "markdown") if vars(arguments).get(name) == "-"]
    wanted = ["--json"] * arguments.json + wanted
    if len(wanted) > 1:
        names = " and ".join(wanted[:2])
        terminal.complain(f"{names} both write to standard output: give one of them a file")
    return len(wanted) > 1


def show(make: Callable[[], T], text: Callable[[T], str], arguments: Namespace) -> int:
    """Prints what `make` returns, as --json, --html or text, and returns its exit code."""
    if crowded(arguments):
        return USAGE_ERROR
    try:
        made = make()
        if arguments.html:
            from cudriver.stack.report.html import signed

            terminal.write_file(signed(made.to_html(), arguments.words), arguments.html)
    except OSError as error:
        terminal.complain_of_file(error)
        return USAGE_ERROR
    except ValueError as error:
        terminal.complain(str(error))
        return USAGE_ERROR
    if arguments.json:
        print(made.to_json())
    elif arguments.html != "-":
        terminal.write(text(made))
    return made.exit_code
