"""What CUDA an environment really uses, whether it fits together, and what fixes it.

    from cudriver import stack
    report = stack.inspect("/opt/conda/envs/train")
    print(report.verdict)

Nothing is run in the inspected environment and libcuda is never loaded into this process.
"""

from __future__ import annotations

TYPE_CHECKING = bool()  # noqa: UP018 - of a literal, jedi skips what follows
if TYPE_CHECKING:
    from typing import Any

    from cudriver.stack.environment.discover import find_environments
    from cudriver.stack.explaining import explain
    from cudriver.stack.facts import Evidence, Finding
    from cudriver.stack.inspecting import inspect
    from cudriver.stack.planning import plan
    from cudriver.stack.report import Report
    from cudriver.stack.resolved import which

__all__ = [
    "Evidence",
    "Finding",
    "Report",
    "explain",
    "find_environments",
    "inspect",
    "plan",
    "which",
]


_HOMES = {
    "Evidence": "cudriver.stack.facts",
    "Finding": "cudriver.stack.facts",
    "Report": "cudriver.stack.report",
    "explain": "cudriver.stack.explaining",
    "find_environments": "cudriver.stack.environment.discover",
    "inspect": "cudriver.stack.inspecting",
    "plan": "cudriver.stack.planning",
    "which": "cudriver.stack.resolved",
}


def __getattr__(name: str) -> Any:
    """Finds a public name where it lives, when it is used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
