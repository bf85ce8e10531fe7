"""A report as Markdown, to be pasted into an issue tracker: redacted, as the terminal shows it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cudriver.stack.report.outcome import Outcome
from cudriver.stack.report.text import ELSEWHERE, How, render


def page(reports: Sequence[Outcome], _: How) -> str:
    """A block of code a report, in a fence that none of its lines can close."""
    texts = [render(report.redacted(), ELSEWHERE, verbose=True) for report in reports]
    fence = max(["``", *re.findall("`+", "".join(texts))], key=len) + "`"
    return "\n".join(f"{fence}text\n{text}{fence}\n" for text in texts)
