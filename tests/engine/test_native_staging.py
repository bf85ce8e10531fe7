"""The copy engine (cext/engine/), natively: tests/native/staging_test.c.

Built here as the package and its simulated driver are, so with a sanitizer in `make asan` and `make
tsan`; with CUDRIVER_TEST_DRIVER=real for the system's driver. Each copy is compared with one made
item by item.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import native_build
from conftest import DRIVER
from native_build import BUILD, FLAGS, TESTS, compile_c, sources

REAL = DRIVER == "real"
SOURCES = ("driver/driver.c", "driver/platform.c", "hostmem/*.c", "engine/*.c")

pytestmark = native_build.each_build

# scenario: rounds plainly, under a sanitizer. As `staging_test` prints them: a test holds the two
# together.
SCENARIOS = {
    "blocking": (75, 100),
    "async": (75, 40),
    "ordered": (40, 24),
    "threads": (40, 8),
    "shared": (20, 4),
    "closing": (12, 3),
    "faults": (24, 2),
    "interrupted": (16, 6),
    "forget": (40, 12),
    "forked": (12, 4),
    "shutdown": (1, 1),
    "old": (60, 16),
    "sizes": (1, 0),
    "between": (75, 30),
    "unknown": (1, 1),
    "refused": (1, 1),
    "lost": (1, 1),
    "lanes": (4, 4),
    "reading": (4, 2),
}
# Of these a process has one round: as many processes, each with a seed of its own.
ONCE = {"closing"}
ON_THE_SIMULATOR = {
    "faults", "interrupted", "unknown", "refused", "lost", "lanes", "reading",
}  # fmt: skip

ROUNDS = {name: rounds[BUILD != "plain"] for name, rounds in SCENARIOS.items()}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = [TESTS / "native" / "staging_test.c", *sources(*SOURCES)]
    return compile_c(tmp_path_factory.mktemp("staging") / "staging", files, *FLAGS)


@pytest.fixture(scope="module")
def library(program: Path) -> Path | None:
    """The simulated driver."""
    return None if REAL else native_build.simulator(program.parent)


CASES = [(name, rounds, 0) for name, rounds in ROUNDS.items() if rounds]
if BUILD == "plain" and not REAL:  # on a device that is late with all that may be late
    late = {name: n for name, (_, n) in SCENARIOS.items() if n and name != "faults"}
    CASES += [pytest.param(name, n, 300, marks=pytest.mark.apart) for name, n in late.items()]


@pytest.mark.parametrize(("name", "rounds", "late"), CASES)
def test_scenario(program: Path, library: Path | None, name: str, rounds: int, late: int) -> None:
    environment = native_build.environment() | {"CUDRIVER_SIM_LATE_US": str(late)}
    if library is not None:
        environment["CUDRIVER_LIBRARY"] = str(library)
    if name in ("faults", "unknown", "lost"):
        # A call that gives something back and is made to fail leaves it to the driver; what the
        # device may yet use is kept.
        environment["ASAN_OPTIONS"] = "detect_leaks=0"
    for seed in range(1, rounds + 1 if name in ONCE else 2):
        done = native_build.run(program, name, str(seed), str(rounds), env=environment)
        if done.returncode == 2:
            assert REAL or "simulated" in done.stderr, done.stderr
            assert name in ON_THE_SIMULATOR or "no device" in done.stderr, done.stderr
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, f"{seed}: {done.stdout[-1000:]}\n{done.stderr[-4000:]}"


def test_every_scenario_is_run(program: Path) -> None:
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert done.stdout.split() == list(SCENARIOS)
