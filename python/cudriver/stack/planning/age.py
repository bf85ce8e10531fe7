"""How old the tables of releases are."""

from __future__ import annotations

import time

from cudriver.stack.planning.question import Line
from cudriver.stack.tables import table

OLD, VERY_OLD = 90, 365  # days


def drawn() -> str:
    """The day on which the releases were drawn from the package index, "2026-11-29"."""
    return str(table("derived")["drawn"])


def today() -> int:
    """The day, as a number."""
    return int(time.time() // 86400)


def remarks() -> list[Line]:
    """What is said of old tables; nothing where they are not."""
    days = today() - _day(drawn())
    if days < OLD:
        return []
    return [Line("very old" if days >= VERY_OLD else "old", date=drawn(), days=days)]


def _day(date: str) -> int:
    from calendar import timegm

    return timegm(time.strptime(date, "%Y-%m-%d")) // 86400
