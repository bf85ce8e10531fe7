"""On a free-threaded CPython the core leaves the GIL off; before 3.14 it switches the GIL on, or is
refused where that is forbidden.

`.ci/run free-threaded` runs them on one. tests/stack/test_check_threads.py has the other half:
the check and the ELF reader leave the GIL off. What many threads do at once is in tests/storm/.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig

import pytest

pytestmark = pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this CPython is not free-threaded"
)


def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHON_GIL", "PYTHONWARNINGS")}
    return subprocess.run(
        [sys.executable, *words],
        env=kept | {"CUDRIVER_LIBRARY": "sim"} | environ,
        capture_output=True,
        text=True,
    )


CODE = "import cudriver as cu, sys; print(cu.pinned_empty(3).shape, sys._is_gil_enabled())"
old = pytest.mark.skipif(sys.version_info >= (3, 14), reason="needs no GIL here")


@pytest.mark.skipif(sys.version_info < (3, 14), reason="needs the GIL here")
def test_the_core_leaves_the_gil_off_without_a_warning() -> None:
    done = run("-W", "error", "-c", CODE)
    assert (done.stdout, done.stderr) == ("(3,) False\n", "")


@old
def test_the_core_switches_the_gil_on_with_a_warning() -> None:
    done = run("-c", CODE)
    assert done.stdout == "(3,) True\n", done.stderr
    assert "RuntimeWarning" in done.stderr
    assert "cudriver._core" in done.stderr


@old
@pytest.mark.parametrize("forbidden", [{"PYTHON_GIL": "0"}, {}])
def test_a_gil_that_is_forced_off_is_an_import_error(forbidden: dict[str, str]) -> None:
    words = [] if forbidden else ["-X", "gil=0"]
    done = run(*words, "-c", "import cudriver as cu; cu.is_available()", **forbidden)
    assert done.returncode == 1
    assert "ImportError: cudriver._core needs the GIL" in done.stderr
