"""The host memory pool and pins (cext/hostmem/), natively: tests/native/hostmem_test.c.

Built here against a driver that can be told to fail, plainly and with sanitizers, and against a
driver library: the simulated one, or the system's with CUDRIVER_TEST_DRIVER=real.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CEXT, NATIVE = ROOT / "cext", ROOT / "tests" / "native"

pytestmark = [
    pytest.mark.skipif(
        bool(os.environ.get("CUDRIVER_TEST_SANITIZER")),
        reason="these programs are built with sanitizers of their own: make test",
    ),
    pytest.mark.skipif(not CEXT.is_dir(), reason="no C sources beside the tests"),
]

WRAPPED = ("mmap", "munmap", "madvise", "calloc", "realloc", "pthread_create")
COMMON = [NATIVE / "hostmem_test.c", *sorted(CEXT.glob("hostmem/*.c")), CEXT / "driver/platform.c"]

# build: (sources, compiler's arguments, the scenarios: None for all)
SMALL_PIECES = "-DHOSTMEM_PIECE=((size_t)8<<20)"
SANITIZE = ["-O1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
BUILDS: dict[str, tuple[list[Path], list[str]]] = {
    "plain": ([NATIVE / "fake_driver.c"], ["-O2"]),
    "asan": (
        [NATIVE / "fake_driver.c"],
        [*SANITIZE, "-fsanitize=address,undefined", SMALL_PIECES],
    ),
    "tsan": ([NATIVE / "fake_driver.c"], [*SANITIZE, "-fsanitize=thread"]),
    "loaded": ([NATIVE / "loaded_driver.c", CEXT / "driver" / "driver.c"], ["-O2"]),
}

# As `hostmem_test` prints them (a test holds the two together): on any driver, on the fake one.
ANY = [
    *("sizes", "owns", "exact", "reuse", "try_alloc", "too_large", "limit", "trim", "zeroed"),
    *("context_loss", "run", "is_registered", "fork", "pins", "pins_without_context"),
    *("foreign_pins", "read_only_pins", "pooled_pins", "lost_pins", "model", "pin_model"),
    *("threads", "settings", "old_kernel", "refused_region"),
]
FAKE = [
    *("spoilt_address", "trim_refused", "no_waiting", "loss_in_between", "driver_faults"),
    *("system_faults", "losses_by_threads", "stall", "pin_makes_room"),
]
THREADED = ["fork", "no_waiting", "loss_in_between", "threads", "losses_by_threads", "settings"]

CASES = [("plain", name) for name in ANY + FAKE]
CASES += [("asan", name) for name in ANY + FAKE]
CASES += [("tsan", name) for name in THREADED]
CASES += [("loaded", name) for name in ANY]


def compiler() -> list[str]:
    command = os.environ.get("CC", "cc").split()
    if shutil.which(command[0]) is None:
        pytest.skip(f"no C compiler ({command[0]})")
    return command


def build(folder: Path, name: str) -> Path:
    sources, arguments = BUILDS[name]
    program = folder / name
    command = [*compiler(), "-std=c11", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
    command += ["-iquote", str(CEXT), *arguments]
    command += map(str, [*COMMON, *sources])
    command += ["-Wl," + ",".join(f"--wrap={symbol}" for symbol in WRAPPED), "-ldl"]
    done = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


def has_sanitizer(folder: Path, arguments: list[str]) -> bool:
    """Whether a program built with these arguments links and starts here."""
    (folder / "empty.c").write_text("int main(void) { return 0; }\n")
    command = [*compiler(), *arguments, str(folder / "empty.c"), "-o", str(folder / "empty")]
    if subprocess.run(command, capture_output=True).returncode != 0:
        return False
    return subprocess.run([*PREFIX, folder / "empty"], capture_output=True).returncode == 0


def fixed_addresses() -> list[str]:
    """gcc's ThreadSanitizer cannot live with the widest address randomisation of newer kernels."""
    if shutil.which("setarch") is None:
        return []
    prefix = ["setarch", os.uname().machine, "-R"]
    works = subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
    return prefix if works else []


PREFIX = fixed_addresses()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {"": tmp_path_factory.mktemp("hostmem")}


def program(programs: dict[str, Path], name: str) -> Path:
    """Built when first needed, once."""
    if name not in programs:
        folder = programs[""]
        if name in ("asan", "tsan") and not has_sanitizer(folder, BUILDS[name][1]):
            pytest.skip(f"the compiler's {name} does not work on this machine")
        programs[name] = build(folder, name)
    return programs[name]


def environment(programs: dict[str, Path], name: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and "SAN_OPTIONS" not in k}
    kept |= {f"{which}SAN_OPTIONS": "allocator_may_return_null=1" for which in ("A", "T")}
    kept.pop("CUDRIVER_LIBRARY", None)
    if name == "loaded" and os.environ.get("CUDRIVER_TEST_DRIVER", "sim") == "sim":
        library = programs[""] / "libcudriver_sim.so"
        if not library.exists():
            sources = [str(path) for path in sorted((CEXT / "sim").glob("*.c"))]
            command = [*compiler(), "-std=c11", "-O2", "-g", "-fPIC", "-shared", "-pthread"]
            command += ["-iquote", str(CEXT), *sources, "-o", str(library), "-lrt"]
            subprocess.run(command, check=True)
        kept["CUDRIVER_LIBRARY"] = str(library)
    return kept


def run(programs: dict[str, Path], name: str, *arguments: str) -> None:
    file = program(programs, name)
    done = subprocess.run(
        [*(PREFIX if name == "tsan" else []), str(file), *arguments],
        env=environment(programs, name),
        capture_output=True,
        text=True,
        timeout=900,
    )
    if name == "loaded" and done.returncode == 2:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, f"{arguments}: {done.stderr[-4000:]}"


@pytest.mark.threads
@pytest.mark.parametrize(("name", "scenario"), CASES)
def test_scenario(programs: dict[str, Path], name: str, scenario: str) -> None:
    run(programs, name, scenario)


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("scenario", ["model", "pin_model"])
def test_other_seeds(programs: dict[str, Path], scenario: str, seed: int) -> None:
    run(programs, "plain", scenario, str(seed * 7919))


def test_every_scenario_is_run(programs: dict[str, Path]) -> None:
    listed = subprocess.run(
        [str(program(programs, "plain"))], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert sorted(line for line in listed if " " not in line) == sorted(ANY)
    assert sorted(line.split()[0] for line in listed if " " in line) == sorted(FAKE)
