"""Whole-process times of the stack check, beside what else tells about an environment.

    python benchmarks/check.py PREFIX [PREFIX ...] [--runs 9] [--all-of 50]

Every figure is wall time from start to exit of a process, in milliseconds: minimum, median and
maximum over the runs. Contenders take turns, so that what slows the machine slows all of them.
A peer that the environment does not have is named as absent. The last part makes a machine of 50
environments (links to the given ones under one root) and times `check --all` on it.
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


def spent(command: list[str]) -> float:
    """Milliseconds from start to exit. What it prints is read and thrown away."""
    started = time.perf_counter()
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return (time.perf_counter() - started) * 1e3


def measure(contenders: dict[str, list[str]], runs: int) -> dict[str, list[float]]:
    """Times by name, one run of each in turn; a first, cold turn is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(runs + 1):
        for name, command in contenders.items():
            taken = spent(command)
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


def machine(folder: Path, prefixes: list[Path], count: int) -> None:
    """A root with `count` environments: hard links to the text, links to nothing outside."""
    (folder / "srv").mkdir(parents=True)
    for number in range(count):
        source = prefixes[number % len(prefixes)]
        target = folder / "srv" / f"env{number:02}"
        subprocess.run(["cp", "-al", str(source), str(target)], check=True)


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
            root = os.path.join(folder, "root")
            machine(Path(root), options.prefix, options.all_of)
            times = measure(
                {f"check --all, {options.all_of}": [*check, "--all", "--root", root]},
                max(3, options.runs // 3),
            )
            print()
            show(times)
            late = statistics.median(next(iter(times.values()))) > ALL_BUDGET_MS
            print(f"\nbudget for 50: {ALL_BUDGET_MS:g} ms{', MISSED' if late else ''}")
            slow |= late
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
