"""Whole processes: imports, the check of an environment, and memory that processes share."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import cudriver as cu
from benchmarks.bench import GIB, Bench
from benchmarks.measure import (
    NUMPY,
    OURS,
    Goal,
    Make,
    Part,
    Skip,
    Work,
    at_least_rate,
    at_most,
)
from benchmarks.peers import KNOWN

NVIDIA_SMI = "nvidia-smi"
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


def peers(bench: Bench) -> dict[str, str]:
    """The modules of those that are here. PyTorch takes seconds: not in a quick run."""
    known = {who: module for who, (module, *_) in KNOWN.items() if installed(module)}
    if bench.quick:
        known.pop("PyTorch", None)
    return known


def part(label: str, goals: list[Goal], makers: dict[str, Make]) -> Part:
    effort = {"rounds": 11, "budget": 0.7, "least": 3, "long": 1.2}
    return Part(label, unit="ms", goals=goals, makers=makers, effort=effort, warm=False)


def process(*command: str) -> Work:
    """A process from its start to its exit. What it prints is thrown away."""
    quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "check": True}
    return Work(partial(subprocess.run, command, **quiet), how=" ".join(command))


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
    modules = {OURS: "cudriver", **peers(bench)}
    alone = {who: partial(imported, f"import {module}") for who, module in modules.items()}
    core: dict[str, Make] = {
        OURS: lambda: imported("import cudriver, numpy; cudriver.copy"),
        NUMPY: lambda: imported("import numpy"),
    }
    return [part("", [at_most(0.020)], {**alone}), part("with the core and NumPy", [], core)]


def check(prefix: str) -> Work:
    """Any verdict will do, but a report it must be."""
    command = [sys.executable, "-m", "cudriver", "check", "--json", prefix]
    run = partial(subprocess.run, command, stdin=subprocess.DEVNULL, capture_output=True)
    return Work(lambda: json.loads(run().stdout), how="cudriver check --json")


def report(bench: Bench) -> list[Part]:
    """The environment of the interpreter that runs this, symbol check included."""
    makers: dict[str, Make] = {OURS: lambda: check(sys.prefix)}
    if shutil.which(NVIDIA_SMI):
        makers[NVIDIA_SMI] = lambda: process(NVIDIA_SMI)
    for name in REPORTS.keys() & peers(bench):
        makers[name] = partial(process, sys.executable, *REPORTS[name])
    label = "" if installed("torch") else "an environment without PyTorch"
    return [part(label, [at_most(0.150)], makers)]


def large_environment(bench: Bench) -> list[Part]:
    """The environment that --environment names."""
    if not bench.environment:
        raise Skip("no environment given")
    return [part("", [at_most(0.250)], {OURS: lambda: check(bench.environment)})]


# --- memory that processes share ------------------------------------------------------------------

OTHER = """
import sys, time
import cudriver as cu
region = cu.SharedMemory(sys.argv[1], pin=False, pieces=bool(int(sys.argv[2])))
cu.pinned_empty(1)  # CUDA is there
print("ready", flush=True)
input()
begin = time.perf_counter()
region.pin()
print(time.perf_counter() - begin)
"""


def shared_memory(bench: Bench) -> list[Part]:
    """New memory of a region is touched and page-locked: by one process, and by two at once. It
    was reserved before, which is not timed."""
    wanted = 16 * GIB
    size = min(wanted // 8 if bench.quick else wanted, 4 * bench.most)
    effort = {"rounds": 3, "least": 2, "long": 6.0}

    def part(label: str, processes: int, run: Callable[[cu.SharedMemory], float]) -> Part:
        held: list[cu.SharedMemory] = []

        def make() -> Work:
            def before() -> None:
                held.append(cu.SharedMemory(create=True, size=size, pin=False))

            def after() -> None:
                held[0].unlink()
                held.pop().close()

            how = "SharedMemory.pin()"
            return Work(lambda: run(held[0]), before, after, timed=True, how=how)

        made = Part(label, processes * size, [at_least_rate(15)], warm=False, effort=effort)
        made.makers[OURS] = make
        return made

    def alone(region: cu.SharedMemory) -> float:
        begin = time.perf_counter()
        region.pin()
        return time.perf_counter() - begin

    def beside(region: cu.SharedMemory) -> float:
        """The longer of the two times."""
        command = [sys.executable, "-c", OTHER, str(region.name), "0"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes) as other:  # type: ignore[call-overload]
            assert other.stdout.readline() == "ready\n"
            other.stdin.write("\n")
            other.stdin.flush()
            mine = alone(region)
            return max(mine, float(other.stdout.read()))

    label = partial(bench.label, wanted=wanted, used=size)
    return [part(label(""), 1, alone), part(label("two processes at once"), 2, beside)]
