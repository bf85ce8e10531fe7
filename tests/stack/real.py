"""Real environments for the tests: PyTorch from its own wheels, kept between runs.

They live in CUDRIVER_TEST_CACHE (default ~/.cache/cudriver-tests), several GB. A test that breaks
one works on a clone of hard links: pip replaces files, it never writes into them.
"""

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cudriver.stack.facts import every

CACHE = Path(os.environ.get("CUDRIVER_TEST_CACHE", "~/.cache/cudriver-tests")).expanduser()
ENVIRONMENTS = {
    "torch-2.8.0-cu128": ["torch==2.8.0", "numpy"],
    "torch-2.11.0-cu130": ["torch==2.11.0", "numpy"],
    "torch-cpu": ["torch==2.13.0+cpu", "numpy"],
}
PYTHON = "3.11"  # PyTorch's wheels of all three are there for it
IMPORT_LIMIT = 300  # seconds


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


def python_for_wheels() -> str:
    """An interpreter of version PYTHON, or the test is skipped."""
    if sys.version_info[:2] == tuple(map(int, PYTHON.split("."))):
        return os.path.join(sys.base_prefix, "bin", f"python{PYTHON}")
    found = shutil.which(f"python{PYTHON}")
    if found is None:
        pytest.skip(f"needs python{PYTHON} on PATH, for which PyTorch's wheels are")
    return found


def environment(name: str) -> Path:
    """The cached environment `name`; made on first use. Skips where its wheels cannot be had."""
    prefix = CACHE / name
    done = prefix / ".done"
    if not done.exists():
        shutil.rmtree(prefix, ignore_errors=True)
        CACHE.mkdir(parents=True, exist_ok=True)
        made = run(python_for_wheels(), "-m", "venv", prefix)
        assert made.returncode == 0, made.stderr
        got = pip(prefix, "install", "--no-cache-dir", *ENVIRONMENTS[name])
        if got.returncode != 0:
            shutil.rmtree(prefix, ignore_errors=True)
            reason = (got.stderr.strip().splitlines() or ["no message"])[-1]
            pytest.skip(f"{' '.join(ENVIRONMENTS[name])} cannot be installed here: {reason}")
        done.touch()
    return prefix


def pip(prefix: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """pip of the environment, by its interpreter: a clone's script would name the original."""
    return run(prefix / "bin" / "python", "-m", "pip", "--quiet", *words)


def wheel(requirement: str, prefix: Path) -> Path:
    """One wheel in the cache, downloaded with the environment's pip on first use."""
    folder = CACHE / "wheels"
    name, _, version = requirement.partition("==")
    stem = f"{name.replace('-', '_')}-{version}-"
    if not any(folder.glob(stem + "*.whl")):
        got = pip(prefix, "download", "--no-deps", "--no-cache-dir", "-d", folder, requirement)
        if got.returncode != 0:
            pytest.skip(f"{requirement} cannot be downloaded here: {got.stderr.strip()[-300:]}")
    return next(folder.glob(stem + "*.whl"))


def install(prefix: Path, *requirements: str) -> None:
    """Puts these wheels into a clone and nothing else."""
    files = [wheel(requirement, prefix) for requirement in requirements]
    got = pip(prefix, "install", "--no-deps", "--no-index", "--force-reinstall", *files)
    assert got.returncode == 0, got.stderr


def uninstall(prefix: Path, *names: str) -> None:
    got = pip(prefix, "uninstall", "--yes", *names)
    assert got.returncode == 0, got.stderr


@contextmanager
def clone(name: str) -> Iterator[Path]:
    """A copy of a cached environment, made of hard links, gone afterwards."""
    source = environment(name)
    target = CACHE / "clones" / f"{name}-{uuid.uuid4().hex[:8]}"
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copytree(source, target, symlinks=True, copy_function=link)
        yield target
    finally:
        shutil.rmtree(target, ignore_errors=True)


def link(source: str, target: str) -> str:
    """A hard link, or a copy where the file system has none; small text files are copied."""
    if os.path.islink(source) or source.endswith((".py", ".cfg", "RECORD", "METADATA")):
        return shutil.copy2(source, target, follow_symlinks=False)
    try:
        os.link(source, target)
    except OSError:
        return shutil.copy2(source, target)
    return target


def site_packages(prefix: Path) -> Path:
    return prefix / "lib" / f"python{PYTHON}" / "site-packages"


def import_error(prefix: Path, module: str = "torch", **variables: str) -> str | None:
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
