"""`--cuda-stack`: the check of the environment before the first test."""

from __future__ import annotations

import pytest

from cudriver.stack.facts import MISMATCH
from cudriver.stack.text import clean
from cudriver.testing.running import inspect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cudriver.stack.report import Report


class Gate:
    """Checks once, and ends the session or shows the report."""

    def __init__(self, config: pytest.Config) -> None:
        self.ends: bool = config.getoption("--cuda-stack") == "error"
        self.report: Report | None = None

    def pytest_sessionstart(self) -> None:
        self.report = inspect()
        if self.ends and self.report.verdict == MISMATCH:
            text = f"--cuda-stack=error: CUDA cannot work here\n\n{self.report.to_text()}"
            pytest.exit(text, returncode=self.report.exit_code)

    def pytest_report_header(self) -> str | None:
        if self.report is None:
            return None
        return f"cuda stack: {clean(self.report.summary)}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.report is not None and not self.ends and self.report.verdict == MISMATCH:
            terminalreporter.section("CUDA stack", yellow=True)
            terminalreporter.write_line(self.report.to_text())
