"""The simulated driver with sanitizers: many threads (stress.c), every failure (sweep.c)."""

from __future__ import annotations

from pathlib import Path

import pytest

import native_build
from native_build import BUILD, FLAGS, compile_c, simulator
from simkit import PROGRAMS

pytestmark = native_build.each_build

ROUNDS = {"asan": 120, "ubsan": 120, "tsan": 60}


@pytest.mark.skipif(BUILD not in ROUNDS, reason="with a sanitizer: make asan")
def test_stress(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "stress", [PROGRAMS / "stress.c", simulator(tmp_path)], *FLAGS)
    done = native_build.run(program, str(ROUNDS[BUILD]))
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(BUILD != "asan", reason="with AddressSanitizer: make asan")
def test_every_failure_leaves_nothing_alive(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "sweep", [PROGRAMS / "sweep.c", simulator(tmp_path)], *FLAGS)
    done = native_build.run(program)
    assert done.returncode == 0, done.stderr
