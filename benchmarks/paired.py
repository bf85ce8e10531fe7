"""Compares two builds of cudriver on one machine: is the new one slower?

    python -m benchmarks.paired OLD NEW [--rounds 12] [options of benchmarks, such as --only]

OLD and NEW are folders that `pip install --target FOLDER .` has filled. Each round runs the rows of
`benchmarks` with old, with new, and with old once more, a process each, in an order that changes
from round to round. A row's figure is the median of old's time over new's, each within its round:
above 1, new is faster. The band is estimated from the two runs of old; a row outside it is called
faster or slower. Simulated with twelve rounds, one row in a hundred of equal builds lies outside;
with fewer than six many do. Repeat the rows that are slower. Exit status: 1 if any row is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import OURS

ROOT = Path(__file__).parent.parent
RESAMPLES = 5000
OUTSIDE = 5  # of them on each side of the band
Seconds = dict[str, float]  # of one run, by row and part


def run(site: Path, words: list[str]) -> Seconds:
    """Measures the build in `site`, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder, "figures.json")
        command = [sys.executable, "-m", "benchmarks", "--quick", "--alone", "--json", str(figures)]
        environ = dict(os.environ, PYTHONPATH=str(site.resolve()))
        done = subprocess.run(
            [*command, *words], cwd=ROOT, env=environ, capture_output=True, text=True
        )
        if done.returncode != 0:
            sys.exit(f"{site}:\n{done.stdout}{done.stderr}")
        document = json.loads(figures.read_text(encoding="utf-8"))
    if site.resolve() not in Path(document["package"]).parents:
        sys.exit(f"measured was {document['package']}, which is not in {site}")
    return {
        f"{row['name']}: {part['label']}".rstrip(": "): part["figures"][OURS]["median_s"]
        for row in document["rows"]
        for part in row["parts"]
    }


def band(ratios: list[float]) -> tuple[float, float]:
    """Where the median of as many ratios lies, drawn again and again from these and their inverses:
    which of two equal builds is called the old one makes no difference."""
    both, draw = ratios + [1 / ratio for ratio in ratios], random.Random(1)
    draws = (draw.choices(both, k=len(ratios)) for _ in range(RESAMPLES))
    medians = sorted(map(statistics.median, draws))
    return medians[OUTSIDE], medians[-1 - OUTSIDE]


def compare(old: list[Seconds], new: list[Seconds], again: list[Seconds]) -> int:
    """Prints a line a row, from each round's times. Returns how many rows are slower."""
    slower = 0
    print("   old ms     new ms  old/new  band of old/old")
    for name in [name for name in old[0] if name in new[0]]:
        before, after, same = ([round[name] for round in rounds] for rounds in (old, new, again))
        ratio = statistics.median(a / b for a, b in zip(before, after, strict=True))
        low, high = band([a / b for a, b in zip(before, same, strict=True)])
        word = "slower" if ratio < low else "faster" if ratio > high else ""
        slower += word == "slower"
        figures = [statistics.median(seconds) * 1e3 for seconds in (before, after)]
        print(
            f"{figures[0]:9.4f}  {figures[1]:9.4f} {ratio:8.3f}  {low:.3f} to {high:.3f}  "
            f"{word or '.':6}  {name}"
        )
    return slower


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=12)
    options, words = parser.parse_known_args()
    if options.rounds < 1:
        parser.error(f"--rounds is a number from 1 on, not {options.rounds}")
    sites = [options.old, options.new, options.old]
    rounds: list[list[Seconds]] = [[], [], []]
    for turn in range(options.rounds):
        for number in range(3):
            which = (number + turn) % 3
            rounds[which].append(run(sites[which], words))
    return int(compare(*rounds) > 0)


if __name__ == "__main__":
    sys.exit(main())
