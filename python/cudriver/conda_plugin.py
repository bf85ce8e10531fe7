"""The check as one of `conda doctor`'s, which finds this module by the entry point conda."""

from __future__ import annotations

from conda.plugins import hookimpl  # type: ignore[import-not-found,unused-ignore]
from conda.plugins.types import CondaHealthCheck  # type: ignore[import-not-found,unused-ignore]


def cuda_stack(prefix: str, verbose: bool) -> None:
    """Prints whether the driver, the CUDA libraries and the frameworks of a prefix fit together."""
    from conda.base.constants import (  # type: ignore[import-not-found,unused-ignore]
        OK_MARK,
        X_MARK,
    )

    from cudriver.stack import inspect

    report = inspect(prefix)
    if verbose or report.exit_code:
        print(f"{X_MARK if report.exit_code else OK_MARK} CUDA:\n")
        print(report.to_text(verbose=bool(verbose)))
    else:
        print(f"{OK_MARK} CUDA: {report.summary}.\n")


@hookimpl  # type: ignore[untyped-decorator,unused-ignore]
def conda_health_checks() -> list[CondaHealthCheck]:
    """What conda's plugin manager asks for. It imports this at each start: the check waits."""
    return [CondaHealthCheck(name="cuda-stack", action=cuda_stack)]
