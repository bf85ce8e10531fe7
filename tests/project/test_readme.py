"""The README's example runs as it stands, and what there is to call is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import cudriver as cu
from cudriver.cli import COMMANDS
from native_build import ROOT

README = ROOT / "README.md"


def test_the_example_runs_and_is_short(tmp_path: Path) -> None:
    match = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert match, "README.md has no python example"
    code = match.group(1)
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "True" in done.stdout
    assert done.stderr == ""


def test_every_function_and_command_is_named() -> None:
    """Types that only come back from a call, and exceptions, may stay unnamed."""
    words = set(re.findall(r"\w+", README.read_text(encoding="utf-8")))
    called = {name for name in cu.__all__ if name[0].islower()}
    assert len(called) > 30
    assert called - words == set()
    text = README.read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"cudriver {name}" not in text] == []
