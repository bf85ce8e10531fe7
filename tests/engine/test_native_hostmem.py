"""The host memory pool and pins (cext/hostmem/), natively: tests/native/hostmem_test.c.

Built here as the package is, so with a sanitizer in `make asan`, on the simulated driver, or the
system's with CUDRIVER_TEST_DRIVER=real: behind functions that can be told to fail.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import native_build
from conftest import DRIVER
from native_build import BUILD, FLAGS, TESTS, sources

pytestmark = native_build.each_build

NATIVE = TESTS / "native"
WRAPPED = ("mmap", "munmap", "madvise", "calloc", "realloc", "pthread_create")
FILES = [NATIVE / "hostmem_test.c", NATIVE / "driver_under_test.c"]
FILES += sources("hostmem/*.c", "driver/platform.c", "driver/driver.c")
SMALLER = {"asan": ["-DHOSTMEM_PIECE=((size_t)8<<20)"], "tsan": ["-DROUNDS=400"]}

SCENARIOS = re.findall(r'\{"(\w+)", test_', FILES[0].read_text())
THREADED = ["fork", "no_waiting", "wait_for_release", "threads", "settings", "huge", "steps_seen"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wrapped = "-Wl," + ",".join(f"--wrap={symbol}" for symbol in WRAPPED)
    output = tmp_path_factory.mktemp("hostmem") / "hostmem"
    return native_build.compile_c(output, FILES, *FLAGS, *SMALLER.get(BUILD, []), wrapped)


def run(program: Path, *arguments: str) -> None:
    environment = native_build.environment()
    environment |= {f"{which}SAN_OPTIONS": "allocator_may_return_null=1" for which in "AT"}
    if DRIVER == "sim":
        environment["CUDRIVER_LIBRARY"] = str(native_build.simulator(program.parent))
    done = native_build.run(program, *arguments, env=environment)
    if DRIVER == "real" and done.returncode == 2:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, f"{arguments}: {done.stderr[-4000:]}"


@pytest.mark.parametrize("scenario", THREADED if BUILD == "tsan" else SCENARIOS)
def test_scenario(program: Path, scenario: str) -> None:
    run(program, scenario)


@pytest.mark.apart
@pytest.mark.skipif(BUILD != "plain", reason="one seed with a sanitizer")
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("scenario", ["model", "pin_model"])
def test_other_seeds(program: Path, scenario: str, seed: int) -> None:
    run(program, scenario, str(seed * 7919))
