"""C programs and libraries that tests build: one compiler, one way to call it."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

import cudriver

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
CEXT = ROOT / "cext"

_SANITIZE = ("-O1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")
#: A build of a program: its flags.
BUILDS = {
    "plain": ("-O2",),
    "asan": (*_SANITIZE, "-fsanitize=address,undefined"),
    "ubsan": (*_SANITIZE, "-fsanitize=undefined"),
    "tsan": (*_SANITIZE, "-fsanitize=thread"),
}
#: Programs are built as the package is that the suite runs on.
BUILD = os.environ.get("CUDRIVER_TEST_SANITIZER") or "plain"
FLAGS = BUILDS[BUILD]

#: For a file of tests whose programs are built with each sanitizer in turn: make test, asan, tsan.
each_build = [
    pytest.mark.skipif(not CEXT.is_dir(), reason="no C sources beside the tests"),
    pytest.mark.threads,
]
#: For one whose programs are not.
marks = [
    each_build[0],
    pytest.mark.skipif(BUILD != "plain", reason="without a sanitizer: make test"),
]


def sources(*patterns: str) -> list[Path]:
    """The files of cext/ that patterns name."""
    return [path for pattern in patterns for path in sorted(CEXT.glob(pattern))]


def compiler() -> list[str]:
    command = os.environ.get("CC", "cc").split()
    if shutil.which(command[0]) is None:
        pytest.skip(f"no C compiler ({command[0]})")
    return command


def compile_c(output: Path, files: list[Path], *arguments: str) -> Path:
    """Builds a program, or with -shared a library. Any warning is an error."""
    if not CEXT.is_dir():
        pytest.skip("no C sources beside the tests")
    kernels = runpy.run_path(str(CEXT / "engine" / "kernels_ptx.py"))
    (output.parent / "kernels_ptx.h").write_text(kernels["header"]())
    command = [*compiler(), "-std=c11", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
    command += ["-iquote", str(CEXT), "-iquote", str(output.parent), *arguments]
    command += ["-o", str(output), *map(str, files)]
    command += ["-ldl", "-lrt"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    return output


def shared(output: Path, files: list[Path], *arguments: str) -> Path:
    return compile_c(output, files, "-fPIC", "-shared", *arguments)


def simulator(folder: Path) -> Path:
    """The simulated driver in a file of its own, so with its own globals."""
    library = Path(cudriver.__file__).with_name("libcudriver_sim.so")
    return Path(shutil.copy(library, folder))


def environment() -> dict[str, str]:
    """The environment without what the suite, or a sanitizer that it runs under, has set."""
    return {
        name: value
        for name, value in os.environ.items()
        if name != "LD_PRELOAD" and not name.startswith("CUDRIVER_") and "SAN_OPTIONS" not in name
    }


def run(
    program: Path, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    env = environment() if env is None else env
    return subprocess.run(
        [str(program), *arguments],
        env=env | {"TSAN_OPTIONS": f"suppressions='{TESTS / 'tsan.supp'}'"},
        capture_output=True,
        text=True,
        timeout=500,
    )
