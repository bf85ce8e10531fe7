"""How many threads the environment asks for. The core reads it when it is loaded."""

from __future__ import annotations

import os
import re
import warnings

_VARIABLE = "CUDRIVER_COPY_THREADS"


def asked(most: int) -> int | None:
    """What CUDRIVER_COPY_THREADS says: 0 if nothing, None if no number from 1 to `most`."""
    text = os.environ.get(_VARIABLE, "")
    if not text:
        return 0
    number = int(text) if re.fullmatch(r"\s*\+?[0-9]{1,9}", text) else 0
    return number if 1 <= number <= most else None


def wished(usual: int, most: int) -> int:
    """For the core: how many threads to use; 0: as many as usual. RuntimeWarning: not a number."""
    number = asked(most)
    if number is None:
        value, threads = ascii(os.environ[_VARIABLE])[:60], "threads" if usual > 1 else "thread"
        warnings.warn(
            f"{_VARIABLE}={value} is not a number from 1 to {most} and is ignored: copies of "
            f"pageable memory use at most {usual} {threads} here",
            RuntimeWarning,
            stacklevel=1,
        )
    return number or 0
