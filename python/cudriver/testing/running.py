"""`cuda_stack`: the report of the running environment, held against PyTorch in this process."""

from __future__ import annotations

import os

import pytest

from cudriver import stack
from cudriver.stack.load.file_version import decode
from cudriver.stack.load.observe import Row, compare, dotted
from cudriver.stack.report import Report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

    from cudriver.stack.facts import Facts


class RunningStack(Report):
    """The report of the environment that runs, as the fixture `cuda_stack` gives it.

    Examples
    --------
    >>> from cudriver.testing.running import inspect
    >>> inspect().prefix == sys.prefix
    True
    """

    def compare_with_pytorch(self) -> None:
        """Fail if PyTorch reports other values at run time than the check read from files.

        Compares the driver, CUDA, cuDNN, NCCL, the architectures, and the file of each CUDA
        library in this process (/proc/self/maps). What one side does not know is left out.

        Raises
        ------
        AssertionError
            Values differ. pytest shows which.
        ImportError
            PyTorch is installed, and its import fails.

        Notes
        -----
        Imports PyTorch into this process and initialises no device. Skips the test where PyTorch
        is not installed.
        """
        __tracebackhide__ = True
        try:
            import torch  # type: ignore[import-not-found,unused-ignore]
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            pytest.skip(f"PyTorch is not installed in {self.prefix}")
        rows = [
            row for row in _rows(self.facts, torch) if None not in (row.predicted, row.observed)
        ]
        files = {row.name: row.predicted for row in rows}
        pytorch = {row.name: row.observed for row in rows}
        assert files == pytorch, "the check's files (left) and PyTorch at run time (right) differ"


def inspect() -> RunningStack:
    """The report of this interpreter's environment."""
    report = stack.inspect()
    return RunningStack(report.facts, report.findings)


def _rows(facts: Facts, torch: ModuleType) -> Iterator[Row]:
    """What the check says, and what PyTorch does."""
    known = facts.framework("torch")
    path = os.path.dirname(os.path.realpath(torch.__file__ or ""))
    if known is None:
        yield Row("torch", "(not found)", path)
        return
    yield Row("torch", os.path.realpath(known.path), path)
    driver, native = facts.driver, torch._C
    if hasattr(native, "_cuda_getDriverVersion"):
        number = _get(native._cuda_getDriverVersion)
        seen = f"{number // 1000}.{number % 1000 // 10}" if number else None
        yield Row("driver's CUDA", driver.cuda if driver.path else "(no driver)", seen)
    built = torch.version.cuda
    if known.variant in ("cuda", "cpu"):
        yield Row("torch.version.cuda", known.cuda or "(CPU only)", built or "(CPU only)")
    if built:
        number = _get(lambda: torch.backends.cudnn.version())
        yield Row("torch.backends.cudnn.version()", known.cudnn, decode(number or 0, "cudnn"))
        nccl = _get(lambda: dotted(list(torch.cuda.nccl.version())))
        yield Row("torch.cuda.nccl.version()", known.nccl, nccl)
        flags = _get(lambda: native._cuda_getArchFlags())
        seen = " ".join(sorted(flags.split())) if flags else None
        yield Row("architectures", " ".join(sorted(known.archs)) or None, seen)
    yield from compare(facts, {"imports": {}, "values": {}, "mapped": _mapped()})


def _get(call: Callable[[], Any]) -> Any:
    """What PyTorch answers; None where this build has no answer."""
    try:
        return call()
    except (AttributeError, RuntimeError, TypeError):
        return None


def _mapped() -> list[str]:
    """The files that are mapped in this process."""
    paths = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) == 6 and fields[5].startswith("/"):
                paths.append(fields[5])
    return list(dict.fromkeys(paths))
