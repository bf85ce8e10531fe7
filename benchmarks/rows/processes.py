"""Whole processes: imports, and the check of an environment."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

from benchmarks.bench import Bench
from benchmarks.measure import NUMPY, OURS, Part, Skip, Work, at_most

NVIDIA_SMI = "nvidia-smi"
SLOW = {"PyTorch"}  # left out of a quick run: seconds
MODULES = {
    "PyTorch": "torch",
    "CuPy": "cupy",
    "cuda-core": "cuda.core",
    "cuda-bindings": "cuda.bindings.driver",
}
REPORTS = {
    "PyTorch": ("-m", "torch.utils.collect_env"),
    "CuPy": ("-c", "import cupy; cupy.show_config()"),
}


def installed(module: str) -> bool:
    """Without importing it; its parents are."""
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


def part(label: str, goal_s: float | None, ours: Callable[[], Work]) -> Part:
    effort = {"rounds": 11, "budget": 0.7, "least": 3, "long": 1.2}
    goals = [] if goal_s is None else [at_most(goal_s)]
    made = Part(label, unit="ms", goals=goals, effort=effort, warm=False)
    made.add(OURS, ours)
    return made


def peers(bench: Bench) -> list[str]:
    return [
        name
        for name, module in MODULES.items()
        if installed(module) and not (bench.quick and name in SLOW)
    ]


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

    return Work(timer, timed=True, how=statement)


def imports(bench: Bench) -> list[Part]:
    """The package alone, and with its core and NumPy, which a program that copies needs."""
    alone = part("", 0.020, lambda: imported("import cudriver"))
    for name in peers(bench):
        alone.add(name, partial(imported, f"import {MODULES[name]}"))
    ours = "import cudriver, numpy; cudriver.copy"
    core = part("with the core and NumPy", None, lambda: imported(ours))
    core.add(NUMPY, lambda: imported("import numpy"))
    return [alone, core]


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
    made = part(label, 0.150, lambda: check(sys.prefix))
    if shutil.which(NVIDIA_SMI):
        made.add(NVIDIA_SMI, lambda: process(NVIDIA_SMI))
    for name in peers(bench):
        if name in REPORTS:
            made.add(name, partial(process, sys.executable, *REPORTS[name]))
    return [made]


def large_environment(bench: Bench) -> list[Part]:
    """The environment that --environment names."""
    if not bench.environment:
        raise Skip("no environment given")
    return [part("", 0.250, lambda: check(bench.environment))]
