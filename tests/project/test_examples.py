"""examples/: each program runs where there is no GPU, and says what it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from native_build import ROOT

EXAMPLES = ROOT / "examples"

pytestmark = [
    pytest.mark.apart,
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="no examples beside the tests"),
]

RUNS = {
    "feed_model.py": (["--batches", "5"], "5 batches arrived and came back\n"),
    "several_contexts.py": ([], "closed: True; alive outside: 1048575\n"),
    "plot_bandwidth.py": (["rates.png", "--largest", "1"], "rates.png: 9 sizes up to 1 MiB\n"),
}


def run(*words: object, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=os.environ | {"CUDRIVER_LIBRARY": "sim"} | environ,
    )


@pytest.mark.parametrize("name", RUNS)
def test_a_program_runs_on_the_simulated_driver(tmp_path: Path, name: str) -> None:
    if name == "plot_bandwidth.py":
        pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    options, said = RUNS[name]
    done = run(EXAMPLES / name, *options, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(said)
    for picture in tmp_path.iterdir():
        assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_check_for_ci_asks_about_the_machines_of_the_job(tmp_path: Path) -> None:
    done = run(EXAMPLES / "check_for_ci.py", "--driver", "580.159.04", "--gpu", "9.0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "580.159.04" in done.stdout
    broken = tmp_path / "lib/python3.12/site-packages/torch/version.py"
    broken.parent.mkdir(parents=True)
    broken.write_text("__version__ = '2.8.0+cu128'\ncuda = '12.8'\n")
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\n")
    done = run(EXAMPLES / "check_for_ci.py", tmp_path, "--driver", "470.57.02", cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "::error title=CU103::" in done.stdout


def test_a_projects_suite_passes_and_skips_what_needs_a_gpu(tmp_path: Path) -> None:
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLES / "pytest-suite"]
    done = run(*words, cwd=tmp_path, CUDRIVER_LIBRARY="/not/there")
    assert "2 passed, 1 skipped" in done.stdout, done.stdout
