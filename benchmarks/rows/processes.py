"""Whole processes: imports, the environment report, and machines with few processors."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable

from benchmarks.bench import MIB, Bench, usable_cpus
from benchmarks.check import PEERS as REPORTS
from benchmarks.measure import DRIVER, OURS, PINNED, Part, Row, Work, at_most, over

BARE = "bare Python"
NVIDIA_SMI = "nvidia-smi"
# Which statement brings a peer in, and which of its modules says that it is installed.
IMPORTS = {
    "PyTorch": "import torch",
    "CuPy": "import cupy",
    "cuda-core": "import cuda.core",
    "cuda-bindings": "import cuda.bindings.driver",
    "numba-cuda": "import numba.cuda",
    "JAX": "import jax",
    "PyCUDA": "import pycuda.driver",
}
REPORT_OF = {
    "PyTorch": ("torch.utils.collect_env", "torch"),
    "CuPy": ("cupy.show_config", "cupy"),
    "numba-cuda": ("numba -s", "numba"),
}
HEAVY = {"PyTorch", "JAX", "numba-cuda"}  # left out of a quick run: seconds each


def installed(module: str) -> bool:
    """Without importing it; its parents are."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def process(*command: str) -> Work:
    """A process from its start to its exit. What it prints is thrown away."""

    def run() -> None:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)

    return Work(run, how=" ".join(command[1:]) if command[0] == sys.executable else command[0])


def _code(statement: str) -> Work:
    return process(sys.executable, "-c", statement)


EFFORT = {"rounds": 11, "budget": 0.7, "least": 3, "long": 1.2}


def imports(bench: Bench) -> Row:
    row = Row("import, over a bare interpreter", "<= 20 ms", anywhere=True)
    part = Part("", unit="ms", goals=[over(BARE, 0.020)], effort=EFFORT)
    part.add(OURS, lambda: _code("import cudriver"))
    part.add(BARE, lambda: _code("pass"))
    for name, statement in IMPORTS.items():
        if installed(statement.split()[1]) and not (bench.quick and name in HEAVY):
            part.add(name, lambda statement=statement: _code(statement))
    row.parts.append(part)
    return row


def first_use(bench: Bench) -> Row:
    """What an import saves is not saved for ever: with NumPy, and with the core that needs it."""
    row = Row("import and first use: NumPy and the core loaded", "", anywhere=True)
    part = Part("", unit="ms", effort=EFFORT)
    part.add(OURS, lambda: _code("import cudriver; cudriver.copy"))
    part.add("NumPy", lambda: _code("import numpy"))
    part.add(BARE, lambda: _code("pass"))
    row.parts.append(part)
    return row


def report(bench: Bench) -> Row:
    """The environment of the interpreter that runs this, symbol check included."""
    row = Row("environment report", "<= 150 ms, whole process", anywhere=True)
    libraries = "" if installed("torch") else "an environment without PyTorch"
    part = Part(libraries, unit="ms", goals=[at_most(0.150)], effort=EFFORT)

    def ours() -> Work:
        work = process(sys.executable, "-m", "cudriver", "check", "--json", sys.prefix)

        def run() -> None:
            done = subprocess.run(
                [sys.executable, *work.how.split()], stdin=subprocess.DEVNULL, capture_output=True
            )
            json.loads(done.stdout)  # any verdict will do, but a report it must be

        work.run = run
        return work

    part.add(OURS, ours)
    if shutil.which("nvidia-smi"):
        part.add(NVIDIA_SMI, lambda: process("nvidia-smi"))
    for name, (peer, module) in REPORT_OF.items():
        if installed(module) and not (bench.quick and name in HEAVY):
            part.add(name, lambda peer=peer: process(sys.executable, *REPORTS[peer]))
    row.parts.append(part)
    return row


def small_machine(cpus: int) -> Callable[[Bench], Row]:
    """A process that may use only so many processors: the copy engine counts what it may use."""

    def build(bench: Bench) -> Row:
        word = {1: "one processor", 2: "two processors", 4: "four processors"}[cpus]
        row = Row(f"plain 256 MiB where the process may use {word}", "")
        if usable_cpus() < cpus:
            row.note = f"{usable_cpus()} processors here"
            return row
        size = bench.size(256 * MIB)
        for way in ("up", "down"):
            part = Part(bench.label(way, 256 * MIB), size)
            part.how[OURS] = f"sched_setaffinity to {cpus}, in a process of its own"
            row.parts.append(part)
        rounds = 3 if bench.quick or bench.simulated else 7
        command = [sys.executable, "-m", "benchmarks.small", str(cpus), str(size), str(rounds)]
        done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
        if done.returncode != 0:
            text = (done.stderr.strip().splitlines() or ["no output"])[-1][:160]
            for part in row.parts:
                part.failed[OURS] = text
            return row
        answer = json.loads(done.stdout)
        for part, way in zip(row.parts, ("up", "down"), strict=True):
            for who in (OURS, PINNED, DRIVER):
                part.samples[who] = answer[way][who]
            part.how[OURS] += f", {answer['threads']} threads"
        return row

    return build


