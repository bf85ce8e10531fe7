"""Whole processes: imports, and the check of an environment."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import partial
from importlib.util import find_spec

from benchmarks.bench import Bench
from benchmarks.measure import NUMPY, OURS, Part, Skip, Work, at_most

NVIDIA_SMI = "nvidia-smi"
SLOW = {"PyTorch"}  # left out of a quick run: seconds
IMPORTS = {
    "PyTorch": "import torch",
    "CuPy": "import cupy",
    "cuda-core": "import cuda.core",
    "cuda-bindings": "import cuda.bindings.driver",
}
REPORTS = {  # module, words
    "PyTorch": ("torch", "-m", "torch.utils.collect_env"),
    "CuPy": ("cupy", "-c", "import cupy; cupy.show_config()"),
}
EFFORT = {"rounds": 11, "budget": 0.7, "least": 3, "long": 1.2}


def installed(module: str) -> bool:
    """Without importing it; its parents are."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def process(*command: str) -> Work:
    """A process from its start to its exit. What it prints is thrown away."""

    def run() -> None:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)

    return Work(run, how=" ".join(command))


def imported(statement: str) -> Work:
    """A statement in a process of its own, which tells how long it took."""
    clock = "time.perf_counter()"
    code = f"import time; begin = {clock}; {statement}; print({clock} - begin)"

    def timer() -> float:
        command = [sys.executable, "-c", code]
        return float(subprocess.check_output(command, stderr=subprocess.PIPE))

    return Work(timer, timer=timer, how=statement)


def imports(bench: Bench) -> list[Part]:
    """The package alone, and with its core and NumPy, which a program that copies needs."""
    part = Part("", unit="ms", goals=[at_most(0.020)], effort=EFFORT, warm=False)
    part.add(OURS, lambda: imported("import cudriver"))
    for name, statement in IMPORTS.items():
        if installed(statement.split()[1]) and not (bench.quick and name in SLOW):
            part.add(name, partial(imported, statement))
    core = Part("with the core and NumPy", unit="ms", effort=EFFORT, warm=False)
    core.add(OURS, lambda: imported("import cudriver, numpy; cudriver.copy"))
    core.add(NUMPY, lambda: imported("import numpy"))
    return [part, core]


def check(prefix: str) -> Work:
    """Any verdict will do, but a report it must be."""
    command = [sys.executable, "-m", "cudriver", "check", "--json", prefix]

    def run() -> None:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
        json.loads(done.stdout)

    return Work(run, how="cudriver check --json")


def report(bench: Bench) -> list[Part]:
    """The environment of the interpreter that runs this, symbol check included."""
    label = "" if installed("torch") else "an environment without PyTorch"
    part = Part(label, unit="ms", goals=[at_most(0.150)], effort=EFFORT, warm=False)
    part.add(OURS, lambda: check(sys.prefix))
    if shutil.which("nvidia-smi"):
        part.add(NVIDIA_SMI, lambda: process("nvidia-smi"))
    for name, (module, *words) in REPORTS.items():
        if installed(module) and not (bench.quick and name in SLOW):
            part.add(name, partial(process, sys.executable, *words))
    return [part]


def large_environment(bench: Bench) -> list[Part]:
    """The environment that --environment names."""
    if not bench.environment:
        raise Skip("no environment given")
    part = Part("", unit="ms", goals=[at_most(0.250)], effort=EFFORT, warm=False)
    part.add(OURS, lambda: check(bench.environment))
    return [part]
