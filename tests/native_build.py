"""C programs and libraries that tests build: one compiler, one way to call it."""

from __future__ import annotations

import functools
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
    "tsan": (*_SANITIZE, "-fsanitize=thread"),
}

#: For a file of tests whose programs are built in several of these ways.
marks = [
    pytest.mark.skipif(
        bool(os.environ.get("CUDRIVER_TEST_SANITIZER")),
        reason="these programs are built with sanitizers of their own: make test",
    ),
    pytest.mark.skipif(not CEXT.is_dir(), reason="no C sources beside the tests"),
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


def simulator(folder: Path, build: str = "plain") -> Path:
    """The simulated driver in a file of its own, so with its own globals: the installed package's,
    or one built with a sanitizer."""
    if build != "plain":
        return shared(folder / f"libsim_{build}.so", sources("sim/*.c"), *BUILDS[build])
    library = Path(cudriver.__file__).with_name("libcudriver_sim.so")
    return Path(shutil.copy(library, folder))


@functools.cache
def fixed_addresses() -> tuple[str, ...]:
    """gcc's ThreadSanitizer cannot live with the widest address randomisation of newer kernels."""
    prefix = ("setarch", os.uname().machine, "-R")
    if shutil.which(prefix[0]) is None:
        return ()
    return prefix if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0 else ()


def need(folder: Path, build: str) -> None:
    """Skips the test where a program built in this way does not link or start."""
    if build == "plain":
        return
    (folder / "empty.c").write_text("int main(void) { return 0; }\n")
    command = [*compiler(), *BUILDS[build], str(folder / "empty.c"), "-o", str(folder / "empty")]
    if (
        subprocess.run(command, capture_output=True).returncode != 0
        or subprocess.run([*fixed_addresses(), folder / "empty"], capture_output=True).returncode
        != 0
    ):
        pytest.skip(f"the compiler's {build} does not work on this machine")


def environment() -> dict[str, str]:
    """The environment without what the suite, or a sanitizer that it runs under, has set."""
    return {
        name: value
        for name, value in os.environ.items()
        if name != "LD_PRELOAD" and not name.startswith("CUDRIVER_") and "SAN_OPTIONS" not in name
    }


def run(
    program: Path, *arguments: str, build: str = "plain", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    prefix = fixed_addresses() if build == "tsan" else ()
    env = environment() if env is None else env
    if build == "tsan":
        env = env | {"TSAN_OPTIONS": f"suppressions='{TESTS / 'tsan.supp'}'"}
    return subprocess.run(
        [*prefix, str(program), *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=500,
    )
