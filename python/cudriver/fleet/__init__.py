"""Many reports compared: does every node, worker and image carry the same CUDA stack.

    from cudriver import fleet
    print(fleet.compare(open("reports.jsonl")))

A report is a line of ``cudriver check --json --compact``, made where the work runs.
"""

from __future__ import annotations

TYPE_CHECKING = bool()  # noqa: UP018 - of a literal, jedi skips what follows
if TYPE_CHECKING:
    from typing import Any

    from cudriver.fleet.comparing import compare
    from cudriver.fleet.engines.dask import dask
    from cudriver.fleet.engines.mpi import mpi
    from cudriver.fleet.engines.preflight import PreflightError, preflight
    from cudriver.fleet.engines.ray import ray
    from cudriver.fleet.report import Fleet

__all__ = ["Fleet", "PreflightError", "compare", "dask", "mpi", "preflight", "ray"]


# The public names, and where each lives.
_HOMES = {
    "Fleet": "cudriver.fleet.report",
    "PreflightError": "cudriver.fleet.engines.preflight",
    "compare": "cudriver.fleet.comparing",
    "dask": "cudriver.fleet.engines.dask",
    "mpi": "cudriver.fleet.engines.mpi",
    "preflight": "cudriver.fleet.engines.preflight",
    "ray": "cudriver.fleet.engines.ray",
}


def __getattr__(name: str) -> Any:
    """Finds a public name where it lives. An engine's own package is imported when it is used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
