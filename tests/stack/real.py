"""A check and a real import of an environment, both with variables that steer no loading."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from cudriver.stack.facts import every


def clean_environ(**extra: str) -> dict[str, str]:
    """This process's variables without those that steer loading."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LD_", "CUDA", "PYTHON", "VIRTUAL_ENV", "CONDA"))
    }
    return {**environ, "PYTHONDONTWRITEBYTECODE": "1", **extra}


def findings(report: Any) -> list[Any]:
    """All of a report, also what is told beside another finding: on a machine with a GPU, CU401."""
    return [one for finding in report.findings for one in (finding, *finding.also)]


def run(*command: object, **extra: str) -> subprocess.CompletedProcess[str]:
    """A program with clean variables; the caller looks at its status."""
    return subprocess.run(
        [str(word) for word in command],
        env=clean_environ(**extra),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=1800,
        check=False,
    )


def import_error(prefix: Path, module: str, **variables: str) -> str | None:
    """The last line of the traceback of a real import; None where it works. Not ours: Python's."""
    done = run(prefix / "bin" / "python", "-c", f"import {module}", **variables)
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"killed by signal {-done.returncode}"
    return done.stderr.strip().splitlines()[-1]


def ask(prefix: Path, code: str, **variables: str) -> object:
    """What a script of ours prints as JSON in that environment, by its own interpreter."""
    done = run(prefix / "bin" / "python", "-c", code, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(prefix: Path, **options: object):
    """The report of an environment, with clean variables unless `environ` is given."""
    from cudriver import stack

    options.setdefault("environ", clean_environ())
    return stack.inspect(str(prefix), **options)


def rules(report, *severities: str) -> set[str]:
    """The rules that fired, of these severities (errors and warnings where none is named)."""
    wanted = severities or ("error", "warning")
    return {finding.rule for finding in every(report.findings) if finding.severity in wanted}


def rules_of_environment(report) -> set[str]:
    """Errors and warnings but for those about the machine: its driver, its toolkits, its GPUs."""
    return {rule for rule in rules(report) if rule.startswith(("CU3", "CU4"))}


def finding(report, rule: str):
    """The first finding of a rule; fails where it did not fire."""
    found = [f for f in every(report.findings) if f.rule == rule]
    assert found, f"{rule} did not fire: {[f.rule for f in every(report.findings)]}"
    return found[0]
