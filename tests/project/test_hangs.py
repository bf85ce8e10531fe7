"""A test that hangs, or whose process dies, ends `make test`, which names it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from native_build import ROOT, TESTS

pytestmark = [
    pytest.mark.static,
    pytest.mark.skipif(not (ROOT / "Makefile").exists(), reason="no Makefile beside the tests"),
]

TESTS_THAT_HANG = """
import ctypes, pytest

wait = ctypes.PyDLL(None).pause  # in which no other thread runs

@pytest.fixture
def end():
    yield
    wait()

def test_passes(): pass
def test_hangs(): wait()
def test_fails_and_hangs(end): raise ValueError
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_made.py").write_text(TESTS_THAT_HANG)
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", folder]
    # Setting up takes two of these seconds on a busy machine.
    command += ["-p", "conftest", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=4"]
    environ = os.environ | {"PYTHONPATH": str(TESTS)}
    return subprocess.run(
        [*command, *options], cwd=folder, env=environ, capture_output=True, text=True, timeout=200
    )


@pytest.mark.apart
def test_by_the_processes_of_make(tmp_path: Path) -> None:
    """One that hangs dies, so that both are tested."""
    pytest.importorskip("xdist")
    (options,) = re.findall(r"^PROCESSES = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    done = run(tmp_path, *options.split(), "-k", "passes or test_hangs")
    assert done.returncode == 1
    assert "crashed while running 'test_made.py::test_hangs'" in done.stdout


def test_where_it_fails_and_then_hangs(tmp_path: Path) -> None:
    done = run(tmp_path, "-k", "fails_and_hangs")
    assert done.returncode == 1
    assert re.search(r"Timeout(.|\n)*test_made.py\", line 9 in end", done.stderr)
