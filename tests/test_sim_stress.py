"""The simulated driver with sanitizers: many threads (stress.c), every failure (sweep.c)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import simkit

pytestmark = simkit.marks

BUILDS = {
    "plain": (("-O2",), 300),
    "asan": (("-O1", *simkit.ASAN_UBSAN), 120),
    "tsan": (("-O1", *simkit.TSAN), 60),
}


@pytest.mark.slow
@pytest.mark.parametrize("build", BUILDS)
def test_stress(tmp_path: Path, build: str) -> None:
    flags, rounds = BUILDS[build]
    sources = [simkit.PROGRAMS / "stress.c", *sorted((simkit.CEXT / "sim").glob("*.c"))]
    program = simkit.compile_c(tmp_path / "stress", sources, "-std=c11", *flags)
    done = subprocess.run(
        [program, str(rounds)],
        env=simkit.environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


def test_every_failure_leaves_nothing_alive(tmp_path: Path) -> None:
    sources = [simkit.PROGRAMS / "sweep.c", *sorted((simkit.CEXT / "sim").glob("*.c"))]
    program = simkit.compile_c(tmp_path / "sweep", sources, "-std=c11", "-O1", *simkit.ASAN_UBSAN)
    done = subprocess.run(
        [program], env=simkit.environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
