"""Many reports as a list for --all: a line an environment, then how many are not well."""

from __future__ import annotations

from collections.abc import Sequence

from cudriver.stack.facts import CONSISTENT, ERROR, NOTE, UNKNOWN, WARNING, WORKS, Framework
from cudriver.stack.report.components import ABSENT, OK, judged_for, using_cuda
from cudriver.stack.report.outcome import Outcome
from cudriver.stack.report.text import SEVERITY_COLOUR, How, Style
from cudriver.stack.say import say
from cudriver.stack.text import clean, columns, wrap


def page(reports: Sequence[Outcome], how: How) -> str:
    """For which driver all is judged, where that is not the one here; a line each; the summary."""
    style = how.style or Style()
    judged = filter(None, (judged_for(report.facts) for report in reports))
    lines = [*judged][:1] + [one_line(report, style) for report in reports]
    lines += wrap(summary([standing(report) for report in reports]), style.width)
    return "\n".join([*lines, ""])


def one_line(report: Outcome, style: Style) -> str:
    """An environment in a line, for --all: its mark, prefix, frameworks, and the rules that fired.
    Where that is wider than `style.width`, each has lines of its own.
    """
    uses = [f"{f.name} {f.version}".rstrip() + in_short(f) for f in report.frameworks]
    shown = ", ".join(uses) or say("no framework that uses CUDA")
    prefix, shown, rules = clean(report.prefix), clean(shown), ", ".join(rules_of(report))
    severity = standing(report)
    mark, colour = style.mark(severity), SEVERITY_COLOUR.get(severity, "yellow")
    if columns("  ".join(filter(None, (prefix, shown, rules)))) <= style.width - 2:
        return "  ".join(filter(None, (f"{mark} {prefix}", shown, style.paint(rules, colour))))
    below = [style.paint(line, colour) for line in wrap(rules, style.width - 4) if line]
    return "\n    ".join([f"{mark} {prefix}", *wrap(shown, style.width - 4), *below])


def rules_of(report: Outcome) -> list[str]:
    """The rules of its errors and warnings, each once."""
    return list(dict.fromkeys(f.rule for f in report.findings if f.severity != NOTE))


def in_short(framework: Framework) -> str:
    """What it was built for, and its state where it does not work."""
    parts = [f"CUDA {framework.cuda}" if framework.cuda else ""]
    if framework.state is None:
        parts = [say("without CUDA")]
    elif framework.state != WORKS:
        parts.append(say(framework.state))
    text = say(", ").join(filter(None, parts))
    return f" ({text})" if text else ""


def standing(report: Outcome) -> str:
    """What an environment's mark says: the worst of its findings, or that it could not be told."""
    if report.verdict == UNKNOWN:
        return UNKNOWN
    if report.verdict != CONSISTENT:
        return ERROR
    if any(f.severity == WARNING for f in report.findings):
        return WARNING
    return OK if using_cuda(report) else ABSENT


def summary(standings: list[str]) -> str:
    """The last line of --all: how many environments, and how many of them are not well."""
    counts = {kind: standings.count(kind) for kind in ("error", "warning", "unknown")}
    n = len(standings)
    text = say("1 environment" if n == 1 else "{n} environments", n=n) + say(", ")
    text += say("{n} with a mismatch", n=counts["error"] or say("none"))
    if counts["warning"]:
        text += say(", ") + say("{n} with warnings", n=counts["warning"])
    if counts["unknown"]:
        text += say(", ") + say("{n} unknown", n=counts["unknown"])
    return text
