"""Runs peers' own tests, ours of their public calls, and tests/interop, under `cudriver simulate`.

    python -m tests.peers [PYTEST ARGUMENTS]

cuda-bindings, cuda-core, numba-cuda and PyCUDA go into a virtual environment in the cache of the
tests; PyCUDA is compiled there, once, against NVIDIA's headers. cuda-bindings and cuda-core publish
no tests on PyPI, neither in wheels nor as source archives, so test_cuda_*.py are ours. Exit status
77: the packages cannot be had.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.peers import left_out

import cudriver

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CEXT = ROOT / "cext"
NUMBA_TESTS = "numba.cuda.tests.cudadrv"
PYCUDA = "pycuda==2026.1"
REQUIREMENTS = [
    *("cuda-bindings==13.5.0", "cuda-core==1.2.2", "numba-cuda==0.30.4", "numba==0.68.1"),
    *("numpy==2.4.6", "ml_dtypes", "filecheck", "psutil", "cffi"),
    *("pytest>=8", "hypothesis>=6", "pytools", "mako", "platformdirs", "siphash24"),
]
BUILD = ["setuptools<81", "wheel"]
HEADERS = [
    "nvidia-cuda-runtime==13.0.*",
    "nvidia-cuda-profiler-api==13.0.*",
    "nvidia-cuda-crt==13.0.*",
]
CANNOT_BE_HAD = 77


def run(*command: str | Path, cwd: Path | None = None) -> None:
    subprocess.run([*map(str, command)], cwd=cwd, check=True, stdout=sys.stderr)


def fetch(*command: str | Path) -> None:
    try:
        run(*command)
    except subprocess.CalledProcessError as error:
        print(f"the peers cannot be had: {error}", file=sys.stderr)
        sys.exit(CANNOT_BE_HAD)


def cache() -> Path:
    chosen = os.environ.get("CUDRIVER_TEST_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "cudriver-tests"


def environment() -> Path:
    """The folder with the peers' environment, made unless it is there."""
    text = repr((sys.version, REQUIREMENTS, BUILD, HEADERS, PYCUDA))
    place = cache() / "peers" / hashlib.sha256(text.encode()).hexdigest()[:16]
    if (place / "done").exists():
        return place
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    run(sys.executable, "-m", "venv", place / "venv")
    pip = place / "venv" / "bin" / "pip"
    quiet = ["--quiet", "--disable-pip-version-check"]
    fetch(pip, "install", *quiet, *REQUIREMENTS, *BUILD)
    with tempfile.TemporaryDirectory() as folder:
        build_pycuda(place, Path(folder), pip, quiet)
    (place / "done").touch()
    return place


def build_pycuda(place: Path, work: Path, pip: Path, quiet: list[str]) -> None:
    """Compiles PyCUDA without optimisation, linked like every other: with libcuda.so.1."""
    python = place / "venv" / "bin" / "python"
    fetch(pip, "install", *quiet, "--no-deps", "--target", work / "headers", *HEADERS)
    fetch(pip, "download", *quiet, "--no-deps", "--no-build-isolation", "--no-binary", ":all:",
        "--dest", work, PYCUDA)  # fmt: skip
    [archive] = work.glob("pycuda-*.tar.gz")
    run("tar", "-xzf", archive, "-C", work)
    [tree] = (path for path in work.glob("pycuda-*") if path.is_dir())
    link_stub(work)
    root = work / "headers" / "nvidia" / "cu13"
    options = ["--no-cuda-enable-curand", f"--cudadrv-lib-dir={work}", f"--cuda-root={root}"]
    run(python, "configure.py", *options, "--cxxflags=-O0", cwd=tree)
    run(pip, "install", *quiet, "--no-build-isolation", "--no-deps", ".", cwd=tree)
    shutil.copytree(tree / "test", place / "pycuda")


def link_stub(work: Path) -> None:
    """What a toolkit has as lib64/stubs/libcuda.so: the names of all functions, and the SONAME."""
    lists = (CEXT / "driver" / "cuda_abi.h", CEXT / "sim" / "functions.h")
    lists += (CEXT / "sim" / "others" / "absent.h",)
    names = {name for path in lists for name in re.findall(r"X\((cu\w+),", path.read_text())}
    (work / "stub.c").write_text("".join(f"void {name}(void) {{}}\n" for name in sorted(names)))
    run("gcc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", work / "libcuda.so", work / "stub.c")


def numba_files(place: Path, folder: Path) -> None:
    """A file for each module of numba-cuda's tests: pytest cannot import them where they lie."""
    [tests] = (place / "venv").glob("lib/*/site-packages/numba_cuda/numba/cuda/tests/cudadrv")
    there = {path.stem.removeprefix("test_") for path in tests.glob("test_*.py")}
    listed = {*left_out.NUMBA_MODULES, *left_out.NUMBA_MODULES_LEFT_OUT}
    assert there == listed, f"left_out.py: {sorted(there ^ listed)}"
    for name in left_out.NUMBA_MODULES:
        (folder / f"test_numba_{name}.py").write_text(f"from {NUMBA_TESTS}.test_{name} import *\n")


def main() -> int:
    place = environment()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        numba_files(place, folder)
        shutil.copy(place / "pycuda" / "test_driver.py", folder / "test_pycuda_driver.py")
        for path in (*HERE.glob("test_*.py"), HERE / "left_out.py", HERE / "plugin.py"):
            shutil.copy(path, folder)
        python = place / "venv" / "bin" / "python"
        pytest = [python, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-ra"]
        simulate = [sys.executable, "-m", "cudriver", "simulate", "--", *pytest, *sys.argv[1:]]
        # Not its folder, whose NumPy and pytest are others.
        (folder / "cudriver").symlink_to(Path(cudriver.__file__).resolve().parent)
        environ = os.environ | {"PYTHONPATH": name, "CUDRIVER_SIM_DEVICES": "2"}
        status = 0
        for peer in "cuda_bindings", "cuda_core", "numba", "pycuda":  # a process each
            files = sorted(folder.glob(f"test_{peer}*.py"))
            print(f"--- {peer}", flush=True)
            command = [*map(str, simulate), "-p", "plugin", *map(str, files)]
            status |= subprocess.run(command, cwd=folder, env=environ).returncode
        print("--- arrays shared with cudriver", flush=True)
        command = [*map(str, simulate), str(ROOT / "tests" / "interop")]
        status |= subprocess.run(command, cwd=ROOT, env=environ).returncode
        return status


if __name__ == "__main__":
    sys.exit(main())
