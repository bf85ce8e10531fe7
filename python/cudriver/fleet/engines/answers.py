"""What processes answer: a report each as bytes, or why there is none."""

from __future__ import annotations

import json
import zlib

from cudriver.fleet.here import report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cudriver.fleet.report import Fleet


class Answers:
    """Reports of processes, and why the others have none.

    `reports` has them in the processes' order; `silent` maps a process's name to the reason.
    """

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.silent: dict[str, str] = {}

    def add(self, name: str, packed: bytes | None, otherwise: str = "") -> None:
        """Take a process's answer; None is one that gave none, for the reason `otherwise`."""
        told = {"failed": otherwise} if packed is None else json.loads(zlib.decompress(packed))
        if "failed" in told:
            self.silent[name] = told["failed"]
        else:
            self.reports.append(told)

    def fleet(self) -> Fleet:
        """The reports compared. A process without one leaves the status open."""
        from cudriver.fleet.comparing import compare
        from cudriver.fleet.read import Broken

        return compare([*self.reports, *(Broken(*item) for item in self.silent.items())])


def answer(**identifiers: Any) -> bytes:
    """This process's report, or why it has none: others wait for the one or the other."""
    try:
        told = report(**identifiers)
    except Exception as error:
        return failed(f"the check failed: {type(error).__name__}: {error}")
    return _packed(told)


def failed(why: str) -> bytes:
    """The answer of a process that has no report."""
    return _packed({"failed": why})


def judged(judge: Callable[[Answers], bytes], answers: Answers) -> bytes:
    """What `judge` says, or what it raises: all ranks wait for the one or the other."""
    try:
        return judge(answers)
    except Exception as error:
        told = f"the comparison failed: {type(error).__name__}: {error}"
        return told.encode("utf-8", "backslashreplace")


def _packed(told: dict[str, Any]) -> bytes:
    return zlib.compress(json.dumps(told, separators=(",", ":")).encode(), 1)
