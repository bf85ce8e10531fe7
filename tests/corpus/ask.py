"""Asks both sides: children of the environment for the truth, cudriver for its prediction."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from corpus.compare import Said, Truth
from corpus.workshop import call, clean_environ

IMPORT_LIMIT = 300  # seconds, for each child
CHECK_LIMIT = 300
DEATHS = 20  # of children that import submodules
CHILD = Path(__file__).with_name("child.py")


class CheckError(Exception):
    """cudriver itself failed."""


def truth(
    prefix: Path,
    modules: tuple[str, ...],
    environ: Mapping[str, str],
    cwd: Path,
    code: tuple[str, ...] = (),
    kept: Path | None = None,
    submodules: Iterable[str] | None = None,
) -> Truth:
    """One child for each item of `modules`; all that failed, and what the sound ones mapped. kept:
    the file that holds this from an earlier run, or will. submodules: those that are imported too,
    of packages that can be; without any those that are public; None: no submodules.
    """
    if kept is not None and kept.exists():
        return Truth(**json.loads(kept.read_text()))
    result = Truth()
    for group in modules:
        names = group.split("+")
        answer, end = _child(prefix, names, environ, cwd, code)
        failed = [s for s in answer["steps"] if s["error"] is not None]
        if end and (not failed or failed[-1]["error"] != "died"):
            failed.append({"name": "exit", "error": "died"})
        for step in failed:
            text = f"died: {end}" if step["error"] == "died" else step["error"]
            row = {"step": step["name"], "text": text, "shown": step.get("shown", text)}
            if text.startswith("died: SIG"):  # as a shell tells it
                told = signal.strsignal(signal.Signals[end]) or text
                row["shown"] = step.get("shown", "") + told
            row["module"] = step.get("module", names[0].partition(".")[0])
            result.failures.append(row)
        result.values.update(answer["values"])
        if any(step["name"].startswith("import ") for step in failed) or end:
            continue  # half an import maps half of the libraries
        if submodules is not None:
            package = names[0].partition(".")[0]
            own = [name for name in submodules if name.startswith(f"{package}.")]
            if own or not submodules:
                result.submodules.update(_submodules(prefix, package, environ, cwd, own))
        for path in answer["mapped"]:
            real = os.path.realpath(path)
            result.mapped[real] = answer["versions"].get(path) or result.mapped.get(real, "")
    if kept is not None:
        kept.write_text(json.dumps(asdict(result)))
    return result


def _submodules(
    prefix: Path, package: str, environ: Mapping[str, str], cwd: Path, names: list[str]
) -> dict[str, str | None]:
    """What came of each: a child that dies of one is followed by another."""
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        out = Path(folder) / "answer.json"
        words = [str(prefix / "bin" / "python"), str(CHILD), str(out), "--submodules", package]
        for _ in range(DEATHS):
            try:
                if call([*words, *names], environ, cwd, IMPORT_LIMIT).returncode == 0:
                    break
            except subprocess.TimeoutExpired:
                break
        told: dict[str, str | None] = json.loads(out.read_text()) if out.exists() else {}
        return told


def _child(
    prefix: Path,
    names: list[str],
    environ: Mapping[str, str],
    cwd: Path,
    code: tuple[str, ...],
) -> tuple[dict, str]:
    """The child's answer, and how it ended where that was not by itself."""
    empty = {"steps": [], "mapped": [], "versions": {}, "values": {}}
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        out = Path(folder) / "answer.json"
        words = [str(prefix / "bin" / "python"), str(CHILD), str(out), *names]
        words += ["--", *code] if code else []
        end = ""
        with open(Path(folder) / "output", "w+", errors="replace") as output:
            try:
                child = subprocess.Popen(
                    words,
                    env=dict(environ),
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            except OSError as error:
                failure = {"name": f"import {names[0]}", "error": f"python: {error.strerror}"}
                return {**empty, "steps": [failure]}, ""
            try:
                status = child.wait(IMPORT_LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                status, end = child.wait(), f"no answer within {IMPORT_LIMIT} s"
            output.seek(0)
            left = Path(f"{out}.written")  # by a step that died
            written = left.read_text(errors="replace") if left.exists() else ""
            lines = (output.read() + written).strip().splitlines()
        if status < 0 and not end:
            end = signal.Signals(-status).name
        elif status > 0:
            end = f"status {status}: {lines[-1] if lines else ''}"
        try:
            answer = json.loads(out.read_text())
            if written:
                answer["steps"][-1]["shown"] = f"{written[-20000:].strip()}\n"
            return answer, end
        except (OSError, ValueError):
            failure = {"name": f"import {names[0]}", "error": "died"}
            return {**empty, "steps": [failure]}, end or (lines[-1] if lines else "no answer")


def said(
    check: str,
    prefix: Path,
    environ: Mapping[str, str],
    cwd: Path,
    words: tuple[str, ...] = (),
    libraries: bool = True,
) -> Said:
    """`cudriver check --json`, and `cudriver which --json` for the libraries. Raises CheckError."""
    report, status = _json([check, "check", "--json", *words, str(prefix)], environ, cwd)
    which: dict = {}
    if libraries:
        which, _ = _json([check, "which", "--json", "--prefix", str(prefix)], environ, cwd)
    rows = [
        {**row, "path": os.path.realpath(row["path"])}
        for row in which.get("libraries", [])
        if row.get("path")
    ]
    every = [f for each in report["findings"] for f in (each, *each.get("also", []))]
    findings = [{**finding, "predicts": finding.get("predicts")} for finding in every]
    missing = [row["soname"] for row in which.get("missing", [])]
    return Said(status, report["verdict"], findings, rows, report.get("frameworks", []), missing)


def _json(words: list[str], environ: Mapping[str, str], cwd: Path) -> tuple[dict, int]:
    try:
        done = call(words, environ, cwd, CHECK_LIMIT)
    except subprocess.TimeoutExpired as error:
        raise CheckError(f"{' '.join(words[1:])}: no answer within {CHECK_LIMIT} s") from error
    try:
        return json.loads(done.stdout), done.returncode
    except ValueError as error:
        end = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise CheckError(f"{' '.join(words[1:])}: status {done.returncode}, {end}") from error


def variables(extra: Mapping[str, str], driver: Path | None) -> dict[str, str]:
    """What the children and the check get alike; `driver`: a folder with a simulated libcuda."""
    environ = clean_environ(extra)
    if driver is not None:
        paths = [str(driver), environ.get("LD_LIBRARY_PATH", "")]
        environ["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))
    return environ
