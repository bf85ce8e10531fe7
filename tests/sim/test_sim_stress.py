"""The simulated driver with sanitizers: many threads (stress.c), every failure (sweep.c)."""

from __future__ import annotations

from pathlib import Path

import pytest

import native_build
from native_build import BUILDS, compile_c, sources
from simkit import PROGRAMS

pytestmark = native_build.marks


@pytest.mark.slow
@pytest.mark.parametrize(("build", "rounds"), [("plain", 300), ("asan", 120), ("tsan", 60)])
def test_stress(tmp_path: Path, build: str, rounds: int) -> None:
    files = [PROGRAMS / "stress.c", *sources("sim/*.c")]
    program = compile_c(tmp_path / "stress", files, *BUILDS[build])
    done = native_build.run(program, str(rounds), build=build)
    assert done.returncode == 0, done.stderr


def test_every_failure_leaves_nothing_alive(tmp_path: Path) -> None:
    files = [PROGRAMS / "sweep.c", *sources("sim/*.c")]
    done = native_build.run(compile_c(tmp_path / "sweep", files, *BUILDS["asan"]))
    assert done.returncode == 0, done.stderr
