"""The simulated driver with sanitizers: many threads (stress.c), every failure (sweep.c)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

import native_build
from native_build import BUILDS, compile_c, simulator
from simkit import PROGRAMS

pytestmark = native_build.marks


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The simulated driver by build, made once."""
    return functools.cache(lambda build: simulator(tmp_path_factory.mktemp("sim"), build))


@pytest.mark.slow
@pytest.mark.parametrize(("build", "rounds"), [("plain", 300), ("asan", 120), ("tsan", 60)])
def test_stress(library: Callable[[str], Path], tmp_path: Path, build: str, rounds: int) -> None:
    files = [PROGRAMS / "stress.c", library(build)]
    program = compile_c(tmp_path / "stress", files, *BUILDS[build])
    done = native_build.run(program, str(rounds), build=build)
    assert done.returncode == 0, done.stderr


def test_every_failure_leaves_nothing_alive(library: Callable[[str], Path], tmp_path: Path) -> None:
    files = [PROGRAMS / "sweep.c", library("asan")]
    done = native_build.run(compile_c(tmp_path / "sweep", files, *BUILDS["asan"]))
    assert done.returncode == 0, done.stderr
