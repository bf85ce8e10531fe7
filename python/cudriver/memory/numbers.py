"""Numbers that users give."""

from __future__ import annotations

import operator
from typing import Any

MOST = (1 << 64) - 1  # of a size_t


def number(meaning: str, value: Any, most: int = MOST) -> int:
    """An int from 0 to `most`, or what has __index__. meaning: what an error's message says."""
    try:
        given = operator.index(value)
    except TypeError:
        raise TypeError(f"{meaning}, not {type(value).__name__}") from None
    if not 0 <= given <= most:
        raise ValueError(f"{meaning}, not {value}")
    return given
