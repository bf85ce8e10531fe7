"""What CUDA an environment really uses, whether it fits together, and what mends it.

    from cudriver import stack
    report = stack.inspect("/opt/conda/envs/train")
    print(report.verdict)

Nothing is run in the inspected environment and libcuda is never loaded into this process.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from cudriver.stack.report import Report

__all__ = ["find_environments", "inspect"]


def inspect(
    prefix: str | None = None,
    *,
    root: str = "/",
    environ: Mapping[str, str] | None = None,
    probe_driver: bool = True,
    assume_driver: str | None = None,
    assume_gpus: Sequence[str] | None = None,
    match: str | None = None,
    match_level: str = "minor",
) -> Report:
    """Inspect the environment at `prefix` (default: the running interpreter's) from outside.

    root: another file system's root; `prefix` is then a path inside it, and nothing of this
    machine is looked at. environ: stands in for the process's environment variables (for another
    root the default is none). probe_driver: ask NVML in a child process. assume_driver
    ("535.104.05") and assume_gpus (["9.0"]) stand in for a machine that is not this one.
    match="system" asks that the environment's toolkit equal the system's at match_level
    ("major", "minor" or "exact").

    Raises NotADirectoryError where `prefix` or `root` is no folder, ValueError for an assumed
    driver or capability that is none. Whatever else goes wrong is a part of the report.
    """
    from cudriver.stack.collect import collect
    from cudriver.stack.report import Report
    from cudriver.stack.rules import judge

    facts = collect(
        prefix,
        root=root,
        environ=environ,
        probe_driver=probe_driver,
        assume_driver=assume_driver,
        assume_gpus=assume_gpus,
    )
    facts.match, facts.match_level = match, match_level
    return Report(facts, judge(facts))


def __getattr__(name: str) -> Any:
    if name == "find_environments":
        from cudriver.stack.discover import find_environments

        return find_environments
    if name == "Report":
        from cudriver.stack.report import Report

        return Report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
