"""What `fleet` and `plan` do alike: make an outcome and print it in the form that is wanted."""

from __future__ import annotations

from cudriver.cli import USAGE_ERROR, terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from typing import TypeVar

    from cudriver.fleet.report import Fleet
    from cudriver.stack.plan.report import Plan

    T = TypeVar("T", Fleet, Plan)


def show(make: Callable[[], T], text: Callable[[T], str], arguments: Namespace) -> int:
    """Prints what `make` returns, as --json, --html or text, and returns its exit code."""
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
