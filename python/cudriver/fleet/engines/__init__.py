"""Adapters to the engines that start many processes: one a file, each engine an extra.

Each offers `running()`, which imports nothing that is not imported already, and a way to gather
the reports of all processes. One that does not answer in time costs its report, never the others'.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

TIMEOUT = (
    120.0  # seconds for the slowest process: a check takes one or two, a cold file system more
)
GRACE = 10.0  # seconds that the exchange itself may take


def engine(module: str, call: str) -> ModuleType:
    """An engine's own package. Raises ImportError, which names it, where it is missing."""
    from importlib import import_module

    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise ImportError(
            f"cudriver.fleet.{call}() needs the package {error.name}, which is not installed: "
            f"pip install {error.name}",
            name=error.name,
        ) from None


def patience(limit: float) -> float:
    """Seconds that a rank waits for rank 0's answer.

    Rank 0 may begin up to `limit` later than the others, and then waits up to `limit` for them.
    """
    return 2 * limit + GRACE


def seconds(timeout: float) -> float:
    """A time limit that is one, else ValueError."""
    if not 0 < timeout < float("inf"):
        raise ValueError(f"timeout={timeout!r}: a positive number of seconds is needed")
    return timeout
