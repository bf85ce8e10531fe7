"""Environments that engines start processes in: real ones, which differ in what is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

from stack.synth import Prefix

# As root, and with more ranks than there are cores.
MPIRUN = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
FITS, OTHER = "0.10.2", "0.9.1"  # versions of JAX, which a job must have one of


def need_programs(*names: str) -> None:
    """Skip this file's tests where an engine's programs are not installed."""
    for name in names:
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)


def environment(folder: Path, jax: str) -> Path:
    """The Python of a virtual environment with all that this one has, and a JAX of its own."""
    version = ".".join(map(str, sys.version_info[:3]))
    home = os.path.dirname(os.path.realpath(sys.executable))
    # Without a GIL its folder is python3.14t.
    python = version.rpartition(".")[0] + sys.abiflags
    prefix = Prefix(folder, python=python).venv(home=home, version=version)
    ours = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    lines = [f"import site; site.addsitedir({path!r})\n" for path in sorted(ours)]
    (prefix.site / "ours.pth").write_text("".join(lines))
    for name in ("jax", "jaxlib"):
        prefix.dist(name, jax)
    return folder / "bin" / "python"


def start(command: Sequence[object], **variables: str) -> subprocess.Popen[str]:
    """A program with what it says in pipes."""
    return subprocess.Popen(
        [str(word) for word in command],
        env={**os.environ, **MPIRUN, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(
    command: Sequence[object], timeout: float = 120, **variables: str
) -> subprocess.CompletedProcess[str]:
    """What a program says, and how it ends; one that hangs fails the test."""
    with start(command, **variables) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
