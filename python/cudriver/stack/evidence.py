"""Where a fact was read."""

from __future__ import annotations

import re

from cudriver.stack.record import Record


class Evidence(Record, frozen=True):
    """Where a fact was read.

    Attributes
    ----------
    file : str
        Its path.
    line : int or None
        Counted from 1; None where lines mean nothing.
    value : str
        What stands there.
    """

    file: str
    line: int | None = None
    value: str = ""

    @classmethod
    def found(cls, file: str, text: str, match: re.Match[str], value: str = "") -> Evidence:
        """What a pattern found in a file's text. value: what it says, where that is not all."""
        line = text.count("\n", 0, match.start(match.lastindex or 0)) + 1
        return cls(file, line, value or match[0].strip()[:200])
