"""The host memory pool and pins (cext/hostmem/), natively: tests/native/hostmem_test.c.

Built here as the package is, so with a sanitizer in `make asan`, against a driver that can be told
to fail; and against a driver library: the simulated one, or the system's with
CUDRIVER_TEST_DRIVER=real.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import native_build
from conftest import DRIVER
from native_build import BUILD, CEXT, FLAGS, TESTS, sources

pytestmark = native_build.each_build

NATIVE = TESTS / "native"
WRAPPED = ("mmap", "munmap", "madvise", "calloc", "realloc", "pthread_create")
COMMON = [NATIVE / "hostmem_test.c", *sources("hostmem/*.c", "driver/platform.c")]
LOADED = [NATIVE / "loaded_driver.c", CEXT / "driver" / "driver.c"]
SMALLER = {"asan": ["-DHOSTMEM_PIECE=((size_t)8<<20)"], "tsan": ["-DROUNDS=400"]}

# As `hostmem_test` prints them (a test holds the two together): on any driver, on the fake one.
ANY = [
    *(
        "sizes",
        "owns",
        "exact",
        "guards",
        "guards_at_the_end",
        "reuse",
        "try_alloc",
        "too_large",
        "limit",
        "room",
        "trim",
        "zeroed",
    ),
    *("run", "is_registered", "fork", "pins", "pins_without_context"),
    *("foreign_pins", "read_only_pins", "pooled_pins", "model", "pin_model"),
    *("threads", "settings", "huge", "old_kernel"),
]
FAKE = [
    *("spoilt_address", "trim_refused", "no_waiting", "driver_faults"),
    *("system_faults", "pin_makes_room", "wait_for_release"),
    *("steps", "steps_stopped", "steps_refused", "steps_seen"),
]
THREADED = ["fork", "no_waiting", "wait_for_release", "threads", "settings", "huge", "steps_seen"]

CASES = [("fake", name) for name in (THREADED if BUILD == "tsan" else ANY + FAKE)]
if BUILD == "plain":
    again = () if DRIVER == "real" else pytest.mark.apart
    CASES += [pytest.param("loaded", name, marks=again) for name in ANY]


class Programs:
    """The test program by its driver, made when first needed: the fake one, or a loaded one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[str, Path] = {}
        self.library: Path | None = None

    def get(self, name: str) -> Path:
        if name not in self.made:
            driver = LOADED if name == "loaded" else [NATIVE / "fake_driver.c"]
            arguments = [*FLAGS, *SMALLER.get(BUILD, [])]
            arguments.append("-Wl," + ",".join(f"--wrap={symbol}" for symbol in WRAPPED))
            output = self.folder / name
            self.made[name] = native_build.compile_c(output, [*COMMON, *driver], *arguments)
        return self.made[name]

    def run(self, name: str, *arguments: str) -> None:
        environment = native_build.environment()
        environment |= {f"{which}SAN_OPTIONS": "allocator_may_return_null=1" for which in "AT"}
        if name == "loaded" and DRIVER == "sim":
            self.library = self.library or native_build.simulator(self.folder)
            environment["CUDRIVER_LIBRARY"] = str(self.library)
        done = native_build.run(self.get(name), *arguments, env=environment)
        if name == "loaded" and done.returncode == 2:
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, f"{arguments}: {done.stderr[-4000:]}"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("hostmem"))


@pytest.mark.parametrize(("name", "scenario"), CASES)
def test_scenario(programs: Programs, name: str, scenario: str) -> None:
    programs.run(name, scenario)


@pytest.mark.apart
@pytest.mark.skipif(BUILD != "plain", reason="one seed with a sanitizer")
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("scenario", ["model", "pin_model"])
def test_other_seeds(programs: Programs, scenario: str, seed: int) -> None:
    programs.run("fake", scenario, str(seed * 7919))


def test_every_scenario_is_run(programs: Programs) -> None:
    listed = subprocess.check_output([programs.get("fake")], text=True).splitlines()
    assert sorted(line for line in listed if " " not in line) == sorted(ANY)
    assert sorted(line.split()[0] for line in listed if " " in line) == sorted(FAKE)
