"""The storm (tests/storm) itself: it finds errors that are planted, and shrinks what it finds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import DRIVER
from native_build import ROOT
from program import run
from storm.parent import as_script, fewer

WITHOUT_SHAPES = """
def copy(dst, src, right=cu.copy):
    try:
        right(dst, src)
    except (TypeError, ValueError):
        pass
cu.copy = copy
"""
WRONG_BYTES = """
def copy(dst, src, right=cu.copy):
    right(dst, src)
    if isinstance(dst, np.ndarray) and dst.size:
        dst[(0,) * dst.ndim] = np.zeros((), dst.dtype)
cu.copy = copy
"""
LEAK = """
kept = []
def to_device(*arguments, right=cu.to_device, **options):
    kept.append(right(*arguments, **options))
    return kept[-1]
cu.to_device = to_device
"""


DIFFER = r"of \d+ bytes differ, the first is byte \d+: \d+, not \d+"


@pytest.mark.parametrize(
    ("planted", "told", "crowd"),
    [
        ("", None, False),
        (WITHOUT_SHAPES, r"cu\.copy\(.*\n  succeeded, expected ", False),
        (WRONG_BYTES, DIFFER, False),
        (LEAK, "left alive|events? uses? it", False),
        ("", None, True),
        (WRONG_BYTES, DIFFER, True),
        (LEAK, "left alive|events? uses? it", True),
    ],
    ids=["nothing", "no error", "wrong bytes", "a leak",
         "nothing shared", "wrong bytes shared", "a leak shared"],
)  # fmt: skip
def test_an_error_is_found(planted: str, told: str | None, crowd: bool) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import numpy as np
import cudriver as cu
{planted}
from tests.storm.runs import run_seeds
from tests.storm.steps import Config
config = Config({3 if crowd else 1}, 60, cu.device_count(), cu.driver_is_simulated(), {crowd})
sys.exit(run_seeds(range({4 if told is None else 60}), config, limit=100, seconds=None))
"""
    done = run(program)
    if told is None:
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.split()[-2:] == ["done", "3"]
    else:
        assert done.returncode == 1
        assert re.search(told, done.stderr)


@pytest.mark.skipif(DRIVER == "real", reason="the simulated driver is made to fail")
def test_a_failing_seed_is_told_and_those_behind_it_run() -> None:
    """The second allocation of device memory fails, in each child."""
    command = [sys.executable, "-m", "tests.storm", "--seeds", "0-2", "--steps", "60"]
    done = subprocess.run(
        [*command, "--threads", "1", "--jobs", "1"],
        cwd=ROOT,
        env={**os.environ, "CUDRIVER_SIM_FAIL": "cuMemAllocFromPoolAsync:2:201"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    for seed in "012":
        assert f"seed {seed}: ended with status 1\nthread 0, after" in done.stdout
        assert f"--steps 60 --driver sim --seeds {seed} --devices 4\n" in done.stdout
    _, found, end = done.stdout.partition("0 seeds passed, 3 failed: 0 1 2\n")
    assert found
    assert "\nseed 0: ended with status 1\nthread 0, after" in end
    assert end.count("\n") < 35


def test_shrinking_keeps_what_is_needed_alone() -> None:
    steps = [(thread, number) for thread in range(3) for number in range(100)]
    needed = {(0, 3), (0, 77), (2, 50)}
    tried: list[int] = []

    def fails(some: list[tuple[int, int]]) -> bool:
        tried.append(len(some))
        return needed <= set(some)

    assert set(fewer(steps, fails)) == needed
    assert len(tried) < 150


def test_a_shrunk_run_is_a_program(tmp_path: Path) -> None:
    log = "0\ta = cu.pinned_zeros(3)\n0\tm.a = np.zeros(3)\n0\ta.nothing\n0\t# AttributeError: no\n"
    path = tmp_path / "script.py"
    path.write_text(as_script(log + "0\tsame(a, m.a)\n0\tprint('the end')\n", "A title."))
    folders = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    done = run("import runpy, sys; runpy.run_path(sys.argv[1])", str(path), PYTHONPATH=folders)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the end\n", "")
