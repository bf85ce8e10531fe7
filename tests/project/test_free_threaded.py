"""On a free-threaded CPython the core switches the GIL on, or is refused where that is forbidden.

Wants such an interpreter with its headers: `python3.14t` or `python3.13t` on PATH, or the one that
CUDRIVER_TEST_FREE_THREADED names. NumPy is the interpreter's own or comes from PyPI.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from native_build import ROOT

NAMES = (os.environ.get("CUDRIVER_TEST_FREE_THREADED", ""), "python3.14t", "python3.13t")
PYTHON = next((found for name in NAMES if (found := shutil.which(name))), None)

pytestmark = [
    pytest.mark.static,
    pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="no source tree beside the tests"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine"),
    pytest.mark.skipif(PYTHON is None, reason="no free-threaded CPython: python3.14t, python3.13t"),
]

HEADERS = "import os, sysconfig; print(os.path.exists(sysconfig.get_path('include') + '/Python.h'))"
GIL = "import sys; print(sys._is_gil_enabled())"


def run(python: object, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LD_"))}
    return subprocess.run(
        [str(python), *words], env=kept | environ, cwd=ROOT, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of that interpreter, with the package built from source."""
    if run(PYTHON, "-c", GIL).stdout != "False\n":
        pytest.skip(f"{PYTHON} is not free-threaded")
    if run(PYTHON, "-c", HEADERS).stdout != "True\n":
        pytest.skip(f"{PYTHON} has no headers")
    folder = tmp_path_factory.mktemp("free-threaded")
    here = folder / "env" / "bin" / "python"
    assert run(PYTHON, "-m", "venv", str(folder / "env")).returncode == 0
    pip = ["-m", "pip", "install", "--quiet", "--only-binary=:all:"]
    if run(here, *pip, "setuptools>=77", "numpy>=2.0", "packaging", "rich").returncode != 0:
        pytest.skip("NumPy has no wheel for this interpreter, or PyPI cannot be reached")
    site = run(here, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").stdout.strip()
    base = ["--build-base", str(folder / "build"), "--build-lib", site]
    built = run(here, "setup.py", "--quiet", "build", *base)
    assert built.returncode == 0, built.stderr
    return here


def test_the_core_switches_the_gil_on_with_a_warning(python: Path) -> None:
    code = f"import cudriver as cu; print(cu.pinned_empty(3).shape); {GIL}"
    done = run(python, "-c", code, CUDRIVER_LIBRARY="sim")
    assert done.stdout == "(3,)\nTrue\n", done.stderr
    assert "RuntimeWarning" in done.stderr
    assert "cudriver._core" in done.stderr


def test_the_elf_reader_leaves_it_off(python: Path) -> None:
    done = run(python, "-c", f"from cudriver import _elf, stack; {GIL}")
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize("forbidden", [{"PYTHON_GIL": "0"}, {}])
def test_a_gil_that_is_forced_off_is_an_import_error(
    python: Path, forbidden: dict[str, str]
) -> None:
    words = [] if forbidden else ["-X", "gil=0"]
    done = run(python, *words, "-c", "import cudriver as cu; cu.is_available()", **forbidden)
    assert done.returncode == 1
    assert "ImportError: cudriver._core needs the GIL" in done.stderr
