"""The copy engine (cext/engine/), natively: tests/native/staging_test.c.

Built here plainly and with sanitizers, with the simulated driver built the same way; and plainly
for the system's driver with CUDRIVER_TEST_DRIVER=real. Each copy is compared with one made item by
item.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import native_build
from conftest import DRIVER
from native_build import BUILDS, TESTS, compile_c, sources

REAL = DRIVER == "real"
SOURCES = ("driver/driver.c", "driver/platform.c", "hostmem/*.c", "engine/*.c")

pytestmark = native_build.marks

# scenario: rounds plainly, under a sanitizer. As `staging_test` prints them: a test holds the two
# together.
SCENARIOS = {
    "blocking": (600, 100),
    "async": (150, 40),
    "ordered": (80, 24),
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
    "between": (150, 30),
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

if REAL:
    CASES = [("plain", name) for name in SCENARIOS]
else:
    CASES = [
        (build, name)
        for build in BUILDS
        for name, (_, rounds) in SCENARIOS.items()
        if build == "plain" or rounds > 0
    ]


class Programs:
    """The test program and the simulated driver, by build; made when first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[str, tuple[Path, Path | None]] = {}

    def get(self, build: str) -> tuple[Path, Path | None]:
        if build not in self.made:
            native_build.need(self.folder, build)
            files = [TESTS / "native" / "staging_test.c", *sources(*SOURCES)]
            program = compile_c(self.folder / build, files, *BUILDS[build])
            library = None if REAL else native_build.simulator(self.folder, build)
            self.made[build] = program, library
        return self.made[build]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("staging"))


@pytest.mark.parametrize(("build", "name"), CASES)
def test_scenario(programs: Programs, build: str, name: str) -> None:
    program, library = programs.get(build)
    environment = native_build.environment()
    environment |= {k: v for k, v in os.environ.items() if k == "CUDRIVER_SIM_LATE_US"}
    if library is not None:
        environment["CUDRIVER_LIBRARY"] = str(library)
    if name in ("faults", "unknown", "lost"):
        # A call that gives something back and is made to fail leaves it to the driver; what the
        # device may yet use is kept.
        environment["ASAN_OPTIONS"] = "detect_leaks=0"
    rounds = SCENARIOS[name][0 if build == "plain" else 1]
    for seed in range(1, rounds + 1 if name in ONCE else 2):
        done = native_build.run(program, name, str(seed), str(rounds), build=build, env=environment)
        if done.returncode == 2:
            assert REAL or "simulated" in done.stderr, done.stderr
            assert name in ON_THE_SIMULATOR or "no device" in done.stderr, done.stderr
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, f"{seed}: {done.stdout[-1000:]}\n{done.stderr[-4000:]}"


def test_every_scenario_is_run(programs: Programs) -> None:
    program, _ = programs.get("plain")
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert done.stdout.split() == list(SCENARIOS)
