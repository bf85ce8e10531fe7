"""The copy engine (cext/engine/), natively: tests/native/staging_test.c.

Built here plainly and with sanitizers, with the simulated driver built the same way; and plainly
for the system's driver with CUDRIVER_TEST_DRIVER=real. Each copy is compared with one made item by
item.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CEXT, NATIVE = ROOT / "cext", ROOT / "tests" / "native"
REAL = os.environ.get("CUDRIVER_TEST_DRIVER", "sim") == "real"

pytestmark = [
    pytest.mark.skipif(
        bool(os.environ.get("CUDRIVER_TEST_SANITIZER")),
        reason="these programs are built with sanitizers of their own: make test",
    ),
    pytest.mark.skipif(not CEXT.is_dir(), reason="no C sources beside the tests"),
]

SANITIZE = ["-O1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
BUILDS = {
    "plain": ["-O2"],
    "asan": [*SANITIZE, "-fsanitize=address,undefined"],
    "tsan": [*SANITIZE, "-fsanitize=thread"],
}
SOURCES = ["driver/driver.c", "driver/platform.c"]

# scenario: rounds plainly, under a sanitizer. As `staging_test` prints them: a test holds the two
# together.
SCENARIOS = {
    "blocking": (600, 100),
    "async": (150, 40),
    "ordered": (80, 24),
    "threads": (40, 8),
    "shared": (20, 4),
    "closing": (12, 3),
    "faults": (24, 6),
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
    "scarce": (2, 2),
    "rings": (2, 2),
}
# Of these a process has one round: as many processes, each with a seed of its own.
ONCE = {"closing"}
ON_THE_SIMULATOR = {"faults", "interrupted", "unknown", "refused", "lost", "scarce", "rings"}

if REAL:
    CASES = [("plain", name) for name in SCENARIOS]
else:
    CASES = [
        (build, name)
        for build in BUILDS
        for name, (_, rounds) in SCENARIOS.items()
        if build == "plain" or rounds > 0
    ]


def compiler() -> list[str]:
    command = os.environ.get("CC", "cc").split()
    if shutil.which(command[0]) is None:
        pytest.skip(f"no C compiler ({command[0]})")
    return command


def fixed_addresses() -> list[str]:
    """gcc's ThreadSanitizer cannot live with the widest address randomisation of newer kernels."""
    prefix = ["setarch", os.uname().machine, "-R"]
    if shutil.which(prefix[0]) is None:
        return []
    return prefix if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0 else []


PREFIX = fixed_addresses()


def works(folder: Path, arguments: list[str]) -> bool:
    """Whether a program built with these arguments links and starts here."""
    (folder / "empty.c").write_text("int main(void) { return 0; }\n")
    command = [*compiler(), *arguments, str(folder / "empty.c"), "-o", str(folder / "empty")]
    if subprocess.run(command, capture_output=True).returncode != 0:
        return False
    return subprocess.run([*PREFIX, folder / "empty"], capture_output=True).returncode == 0


class Programs:
    """The test program and the simulated driver, by build; made when first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[str, tuple[Path, Path]] = {}

    def get(self, build: str) -> tuple[Path, Path]:
        if build not in self.made:
            arguments = BUILDS[build]
            if build != "plain" and not works(self.folder, arguments):
                pytest.skip(f"the compiler's {build} does not work on this machine")
            command = [*compiler(), "-std=c11", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
            command += ["-iquote", str(CEXT), *arguments]
            files = [NATIVE / "staging_test.c", *(CEXT / name for name in SOURCES)]
            files += [*sorted(CEXT.glob("hostmem/*.c")), *sorted(CEXT.glob("engine/*.c"))]
            program, library = self.folder / build, self.folder / f"libsim_{build}.so"
            self.run([*command, *map(str, files), "-ldl", "-o", str(program)])
            if not REAL:
                simulator = [str(path) for path in sorted((CEXT / "sim").glob("*.c"))]
                self.run([*command, "-fPIC", "-shared", *simulator, "-lrt", "-o", str(library)])
            self.made[build] = program, library
        return self.made[build]

    @staticmethod
    def run(command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("staging"))


@pytest.mark.parametrize(("build", "name"), CASES)
def test_scenario(programs: Programs, build: str, name: str) -> None:
    program, library = programs.get(build)
    environment = {
        key: value
        for key, value in os.environ.items()
        if key != "LD_PRELOAD" and not key.startswith("CUDRIVER_") and "SAN_OPTIONS" not in key
    }
    if not REAL:
        environment["CUDRIVER_LIBRARY"] = str(library)
    if name in ("faults", "unknown", "lost"):
        # A call that gives something back and is made to fail leaves it to the driver; what the
        # device may yet use is kept.
        environment["ASAN_OPTIONS"] = "detect_leaks=0"
    rounds = SCENARIOS[name][0 if build == "plain" else 1]
    prefix = PREFIX if build == "tsan" else []
    for seed in range(1, rounds + 1 if name in ONCE else 2):
        done = subprocess.run(
            [*prefix, str(program), name, str(seed), str(rounds)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
        )
        if done.returncode == 2:
            assert REAL or "simulated" in done.stderr, done.stderr
            assert name in ON_THE_SIMULATOR or "no device" in done.stderr, done.stderr
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, f"{seed}: {done.stdout[-1000:]}\n{done.stderr[-4000:]}"


def test_every_scenario_is_run(programs: Programs) -> None:
    program, _ = programs.get("plain")
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert done.stdout.split() == list(SCENARIOS)
