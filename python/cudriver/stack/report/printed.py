"""What the outcomes of `check` and of `fleet` share: JSON, text, a page, a notebook's tables."""

from __future__ import annotations

from cudriver.stack.record import Any


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
