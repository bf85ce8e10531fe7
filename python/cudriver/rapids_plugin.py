"""The check as one of `rapids doctor`'s, which finds it by the entry point rapids_doctor_check."""

from __future__ import annotations

import re
import warnings

from cudriver.stack import inspect
from cudriver.stack.facts import ERROR, UNKNOWN, WARNING, Finding
from cudriver.stack.say import translate

_MARKUP = re.compile(r"(\[[a-z#/@][^\[]*?\])")  # `rapids doctor` takes it for a style


def cuda_stack_check(verbose: bool = False, **_: object) -> str | None:
    """Check that the driver, the CUDA libraries and the frameworks here fit together.

    Raises RuntimeError for errors, with the commands that fix them; warnings are warnings.
    """
    report = inspect()
    errors, warned = (
        [_text(finding) for finding in report.findings if finding.severity == severity]
        for severity in (ERROR, WARNING)
    )
    if errors:  # `rapids doctor` shows no warning of a check that fails
        raise RuntimeError("\n".join([*errors, *warned]))
    if report.verdict == UNKNOWN:
        warned += [translate(why, "doubts") for why in report.doubts]
    for text in warned:
        warnings.warn(text, stacklevel=2)
    return f"{report.prefix}: {report.summary}" if verbose else None


def _text(finding: Finding) -> str:
    """What is wrong, and the commands that fix it."""
    lines = [f"{finding.rule}: {translate(finding.title, finding.rule)}", *finding.fix]
    lines += [translate(finding.advice, "fixes")] if finding.advice else []
    return _MARKUP.sub(r"\\\1", "\n  ".join(lines))
