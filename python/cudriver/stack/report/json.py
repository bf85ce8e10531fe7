"""A report as JSON: its `to_dict`, which ``data/report.schema.json`` describes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from cudriver.stack.facts import SCHEMA
from cudriver.stack.report.outcome import EXIT_CODES, Outcome, exit_code
from cudriver.stack.report.text import How


def page(reports: Sequence[Outcome], how: How) -> str:
    """One report, several in one object, or a line each (--compact) for `cudriver fleet`."""
    data = [report.to_dict() for report in reports]
    if how.node is not None:
        lines = [json.dumps({**each, "node": how.node}, separators=(",", ":")) for each in data]
        return "\n".join([*lines, ""])
    if len(data) == 1 and not how.listed:
        return json.dumps(data[0], indent=2) + "\n"
    worst = next(word for word, code in EXIT_CODES.items() if code == exit_code(reports))
    return json.dumps({"schema": SCHEMA, "verdict": worst, "reports": data}, indent=2) + "\n"
