"""Whole-process times of the stack check, beside what else tells about an environment.

    python benchmarks/check.py PREFIX [PREFIX ...] [--runs 9] [--all-of 50]

Every figure is wall time from start to exit of a process, in milliseconds: minimum, median and
maximum over the runs. Contenders take turns, so that what slows the machine slows all of them.
A peer that the environment does not have is named as absent. The last part makes a home with 50
environments, copies of the given ones by hard links, and times `check --all` there: 50 environments
with PyTorch each is the worst case, since most that lie on a disk have no CUDA library at all.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BUDGET_MS, ALL_BUDGET_MS = 150.0, 3000.0
PEERS = {
    "python -c pass": ("-c", "pass"),
    "torch.utils.collect_env": ("-m", "torch.utils.collect_env"),
    "cupy.show_config": ("-c", "import cupy; cupy.show_config()"),
    "numba -s": ("-m", "numba", "-s"),
}
MODULES = {"torch.utils.collect_env": "torch", "cupy.show_config": "cupy", "numba -s": "numba"}


def spent(command: list[str], environ: dict[str, str] | None) -> float:
    """Milliseconds from start to exit. What it prints is read and thrown away."""
    started = time.perf_counter()
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=environ)
    return (time.perf_counter() - started) * 1e3


def measure(
    contenders: dict[str, list[str]], runs: int, environ: dict[str, str] | None = None
) -> dict[str, list[float]]:
    """Times by name, one run of each in turn; a first, cold turn is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(runs + 1):
        for name, command in contenders.items():
            taken = spent(command, environ)
            if turn:
                times[name].append(taken)
    return times


def show(times: dict[str, list[float]]) -> None:
    width = max(map(len, times))
    print(f"  {'':<{width}}  {'min':>9} {'median':>9} {'max':>9}  ms")
    for name, values in times.items():
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"  {name:<{width}}  {low:9.1f} {middle:9.1f} {high:9.1f}")


def peers(prefix: Path) -> tuple[dict[str, list[str]], list[str]]:
    """(commands of the peers that this environment has, names of those it has not)"""
    python = str(prefix / "bin" / "python")
    there, absent = {}, []
    for name, words in PEERS.items():
        module = MODULES.get(name)
        if module and not any(prefix.glob(f"lib/python3*/site-packages/{module}")):
            absent.append(name)
        else:
            there[name] = [python, *words]
    return there, absent


def home(folder: Path, prefixes: list[Path], count: int) -> dict[str, str]:
    """Makes `count` environments below a home and returns the variables that lead there."""
    shelf = folder / "envs"
    shelf.mkdir()
    for number in range(count):
        source = prefixes[number % len(prefixes)]
        subprocess.run(["cp", "-al", str(source), str(shelf / f"env{number:02}")], check=True)
    gone = ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_EXE", "MAMBA_ROOT_PREFIX", "WORKON_HOME")
    return {**{k: v for k, v in os.environ.items() if k not in gone}, "HOME": str(folder)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("prefix", nargs="+", type=Path, help="environments with PyTorch")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--all-of", type=int, default=50, help="environments for --all; 0: none")
    options = parser.parse_args()
    check = [sys.executable, "-m", "cudriver", "check"]
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} CPUs, {options.runs} runs each")
    slow = False
    for prefix in options.prefix:
        there, absent = peers(prefix)
        ours = "cudriver check --json"
        print(f"\n{prefix}")
        times = measure({ours: [*check, "--json", str(prefix)], **there}, options.runs)
        show(times)
        for name in absent:
            print(f"  {name}: not in this environment")
        slow |= statistics.median(times[ours]) > BUDGET_MS
    print(f"\nbudget for one environment: {BUDGET_MS:g} ms{', MISSED' if slow else ''}")
    if options.all_of:
        with tempfile.TemporaryDirectory(dir=options.prefix[0].parent) as folder:
            environ = home(Path(folder), options.prefix, options.all_of)
            name = f"cudriver check --all, {options.all_of} and this machine's own"
            times = measure({name: [*check, "--all"]}, max(3, options.runs // 3), environ)
        print()
        show(times)
        late = statistics.median(times[name]) > ALL_BUDGET_MS
        print(f"\nbudget for 50: {ALL_BUDGET_MS:g} ms{', MISSED' if late else ''}")
        slow |= late
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
