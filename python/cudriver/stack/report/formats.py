"""The formats of a report, a row each. A new format is a row here and the module that it names.

The module has `page(reports, how)`: the reports of a call as one text. The command's option, its
help and its completion come from the row. What an outcome of `fleet` or `plan` shares: `Printed`.
"""

from __future__ import annotations

from cudriver.stack.record import Any, Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudriver.stack.report.outcome import Outcome
    from cudriver.stack.report.text import How


class Format(Record):
    """A format of reports."""

    name: str  # and of the option: --html
    help: str  # of the option; "": what is printed without one
    file: bool = False  # the option takes a FILE; else it is printed
    module: str = ""  # that has `page`; else the one of this folder with the format's name

    def write(self, reports: Sequence[Outcome], how: How) -> str:
        """The reports in this format."""
        from importlib import import_module

        module = import_module(self.module or f"cudriver.stack.report.{self.name}")
        text: str = module.page(reports, how)
        return text


FORMATS = (
    Format("json", "the report as JSON, schema version 1"),
    Format("html", "write the report as one HTML file too ('-': to stdout)", file=True),
    Format("markdown", "as Markdown too, for an issue ('-': to stdout)", file=True),
    Format("text", ""),
    Format("list", ""),
)


def written(name: str, report: Outcome) -> str:
    """A report in the format of this name."""
    from cudriver.stack.report.text import How

    return next(row for row in FORMATS if row.name == name).write([report], How())


class Printed:
    """An outcome that prints itself. Subclasses give its data and call their renderers."""

    def to_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def to_json(self, indent: int | None = 2) -> str:
        """Return the outcome as JSON.

        Parameters
        ----------
        indent : int or None, optional
            Spaces of a level; None for one line.

        Returns
        -------
        str
            In the form of `to_dict`. Text of a file name that is not Unicode is escaped, never
            lost.
        """
        import json

        return json.dumps(self.to_dict(), indent=indent)

    def to_text(self, *, width: int = 80, colour: bool = False, verbose: bool = False) -> str:
        """Return the outcome as the terminal shows it.

        Parameters
        ----------
        width : int, optional
            Columns of the terminal.
        colour : bool, optional
            Whether to colour the text.
        verbose : bool, optional
            Whether to show everything: of a check libraries and notes, of a fleet every group,
            every difference and every name.

        Returns
        -------
        str
            Lines of text.
        """
        raise NotImplementedError

    def to_html(self) -> str:
        """Return the outcome as a web page.

        Returns
        -------
        str
            A whole page: no script, nothing loaded from elsewhere.
        """
        raise NotImplementedError

    def __str__(self) -> str:
        text = self.to_text().rstrip("\n")
        return text.encode("utf-8", "backslashreplace").decode()  # a path may hold any byte
