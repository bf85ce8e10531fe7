"""One environment from its declaration to its result: a plain dictionary, a line of the results."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from corpus import ask
from corpus.compare import Comparison, Said, Truth, compare, is_cuda_library, states
from corpus.others import Others
from corpus.plan import Environment, Fault, truth_key
from corpus.proven import architectures
from corpus.workshop import InstallError, Workshop, call, distributions, interpreter

MEND_LIMIT = 1200  # seconds
FAILURES = (ask.CheckError, InstallError, OSError, ValueError, subprocess.TimeoutExpired)
FOREIGN_INDEX = re.compile(r"--(?:extra-)?index-url\s+\S+")


def examine(
    wanted: Environment,
    shop: Workshop,
    check: str,
    driver: Path | None,
    with_others: bool = False,
) -> dict:
    """Installs, asks, compares, then does the same with each fault. Nothing of it is raised."""
    started = time.monotonic()
    result: dict = {"name": wanted.name, "key": wanted.key(), "python": wanted.python}
    try:
        prefix = shop.make(wanted)
    except InstallError as error:
        return {**result, "state": "not installed", "reason": str(error)}
    result["installed"] = distributions(prefix)
    result["archs"] = architectures(prefix)
    result["install_s"] = round(time.monotonic() - started, 1)
    driver = driver if wanted.driver == "simulated" else None
    try:
        environ = ask.variables(wanted.environ, driver)
        kept = shop.kept_truth(truth_key(wanted, None))
        row, healthy, _, _ = _look(wanted, None, prefix, environ, prefix, check, kept)
        result.update(row)
        result["state"] = "done"
        others = Others(shop, prefix, environ) if with_others and wanted.faults else None
    except FAILURES as error:
        return {**result, "state": "failed", "reason": f"{type(error).__name__}: {error}"}
    result["faults"] = []
    known = {(f["rule"], f["title"]) for f in result["findings"]}
    for fault in wanted.faults:
        row: dict = {"name": fault.name}
        try:
            row.update(_fault(wanted, fault, prefix, shop, check, driver, known, others, healthy))
        except FAILURES as error:
            row.update(state="failed", reason=f"{type(error).__name__}: {error}")
        result["faults"].append(row)
    result["seconds"] = round(time.monotonic() - started, 1)
    return result


def _look(
    wanted: Environment,
    fault: Fault | None,
    prefix: Path,
    environ: Mapping[str, str],
    cwd: Path,
    check: str,
    kept: Path | None = None,
    healthy: Truth | None = None,
) -> tuple[dict, Truth, Said, Comparison]:
    """Asks both sides once. kept: the file that holds the truth, or will. healthy: what happened
    without the fault.
    """
    code = fault.use if fault else ()
    words = fault.check if fault else ()
    known = healthy.submodules if healthy else ()
    happened = ask.truth(prefix, wanted.modules, environ, cwd, code, kept, known)
    if healthy is not None:
        happened.failures += happened.broke(healthy)
    said = ask.said(check, prefix, environ, cwd, words)
    expect = fault.expect if fault else ()
    outcome = compare(happened, said, unrelated=wanted.unrelated, expect=expect)
    row = {
        "failures": happened.failures,
        "values": happened.values,
        "mapped": [path for path in sorted(happened.mapped) if is_cuda_library(path)],
        "status": said.status,
        "verdict": said.verdict,
        "frameworks": [
            {k: f.get(k) for k in ("name", "version", "cuda", "archs")} for f in said.frameworks
        ],
        "findings": [
            {k: f.get(k) for k in ("rule", "severity", "title", "predicts", "fix")}
            for f in said.findings
        ],
        "states": states(happened, said, wanted.modules, wanted.unrelated),
        **asdict(outcome),
    }
    return row, happened, said, outcome


def _fault(
    wanted: Environment,
    fault: Fault,
    prefix: Path,
    shop: Workshop,
    check: str,
    driver: Path | None,
    known: set[tuple[str, str]],
    others: Others | None,
    healthy: Truth,
) -> dict:
    broken, extra, cwd = shop.break_copy(prefix, fault)
    try:
        environ = ask.variables({**wanted.environ, **extra}, driver)
        kept = shop.kept_truth(truth_key(wanted, fault))
        row, happened, said, _ = _look(wanted, fault, broken, environ, cwd, check, kept, healthy)
        row["state"] = "done"
        if others is not None and happened.failures:
            row["others"] = others.ask(broken, environ, fault.words)
        commands = fixes(said, known)
        row["fix"] = {"commands": commands, "state": "none"}
        if fault.fix == "run" and commands and (happened.failures or fault.expect):
            row["fix"].update(heal(wanted, fault, broken, environ, cwd, check, shop, commands))
    finally:
        shop.remove(broken)
    return row


def fixes(said: Said, known: set[tuple[str, str]]) -> list[str]:
    """The commands that a reader would run: those of the errors; without one, of new warnings."""
    errors = [f for f in said.findings if f["severity"] == "error"]
    chosen = errors or [
        f
        for f in said.findings
        if f["severity"] == "warning" and (f["rule"], f["title"]) not in known
    ]
    commands: list[str] = []
    for finding in chosen:
        lines = (fix["command"] for fix in finding["fix"])
        commands += [line for line in lines if line not in commands]
    return commands


def heal(
    wanted: Environment,
    fault: Fault,
    prefix: Path,
    environ: Mapping[str, str],
    cwd: Path,
    check: str,
    shop: Workshop,
    commands: list[str],
    kept: Path | None = None,
) -> dict:
    """Runs the commands as they are printed, in one shell, then asks again with its variables."""
    foreign = [c for c in commands if FOREIGN_INDEX.search(c)]
    if foreign and not os.environ.get("CORPUS_PYTORCH_INDEX"):
        return {"state": "not tried", "reason": f"needs another index: {foreign[0]}"}
    installers = ("UV_", "PIP_", "PATH")
    tools = {name: v for name, v in shop.environ().items() if name.startswith(installers)}
    report = prefix.with_name(prefix.name + ".environ")
    script = "\n".join(["set -e", *commands, f"env -0 > '{report}'"])
    try:
        # The Python that an environment was made with is on its user's PATH.
        base = Path(interpreter(wanted.python)).parent
        given = {**environ, **tools, "PATH": f"{Path(shop.uv).parent}:{base}:{tools['PATH']}"}
        given["PIP_NO_INPUT"] = "1"
        done = call(["bash", "-c", script], given, cwd, MEND_LIMIT)
    except subprocess.TimeoutExpired:
        return {"state": "failed", "reason": f"still running after {MEND_LIMIT} s"}
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return {"state": "failed", "reason": f"status {done.returncode}: {' '.join(lines[-3:])}"}
    pairs = (entry.partition("=") for entry in report.read_text().split("\0") if entry)
    after = {name: value for name, _, value in pairs if name not in tools or name in environ}
    report.unlink()
    happened = ask.truth(prefix, wanted.modules, after, cwd, fault.use, kept)
    said = ask.said(check, prefix, after, cwd, fault.check, libraries=False)
    failures = [
        f["text"] for f in happened.failures if not any(t in f["text"] for t in wanted.unrelated)
    ]
    errors = [f"{f['rule']} {f['title']}" for f in said.findings if f["severity"] == "error"]
    still = [rule for rule in fault.expect if rule in {f["rule"] for f in said.findings}]
    if failures or errors or still:
        return {"state": "failed", "reason": "left: " + "; ".join([*failures, *errors, *still])}
    return {"state": "works"}
