"""How long `cudriver fleet` takes, and how much memory, for many nodes with known differences.

    python -m tests.fleet.many [--nodes 10000,100000]

Reports are made up, those of a node with eight GPUs and PyTorch; what was planted must be found,
and nothing else. Exit status: 0, or 1 where the comparison found anything else.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from tests.fleet import made

LIBRARIES = 26


def lines(nodes: int) -> Iterator[str]:
    """Reports of 8 KB, labelled as srun does it. Node 7 of each hundred has another driver, node 8
    of each thousand another NCCL; the last line is broken off, and its node is missing."""
    for number in range(nodes):
        report = made.report(f"d{number}", rank=number)
        nccl = made.library(report, "libnccl.so.2")
        report["libraries"] += [{**nccl, "soname": f"lib{i}.so.2"} for i in range(LIBRARIES)]
        if number % 1000 == 8:
            report["frameworks"][0]["nccl"] = nccl["version"] = "2.26.2"
        told = json.dumps(report, separators=(",", ":"))
        if number % 100 == 7:
            told = told.replace("580.65.06", "570.86.15")
        yield f"{number}: {told if number < nodes - 1 else told[: len(told) // 2]}\n"


def wrong(found: dict[str, Any], nodes: int) -> list[str]:
    """What the comparison should have found, and did not, or found besides."""
    whole = nodes - 1
    drivers, nccls = len(range(7, whole, 100)), len(range(8, whole, 1000))
    groups = [count for count in (whole - drivers - nccls, drivers, nccls) if count]
    rules = {f["rule"]: [s["count"] for s in f["evidence"]] for f in found["findings"]}
    told = {
        "groups": ([group["count"] for group in found["groups"]], sorted(groups, reverse=True)),
        "FL301": (rules.pop("FL301", None), [whole - nccls, nccls]),
        "FL101": (rules.pop("FL101", None), [whole - drivers, drivers]),
        "missing": (found["missing"], f"d{whole}"),
        "other rules": (rules, {"FL603": [1], "FL604": [1]}),
    }
    return [f"{name}: {seen} for {want}" for name, (seen, want) in told.items() if seen != want]


def measure(path: str, nodes: int) -> dict[str, Any]:
    """One run of the command in a process of its own."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "cudriver", "fleet", path, "--nodes", f"d[0-{nodes - 1}]"]
    done = subprocess.run([*command, "--json"], stdout=subprocess.PIPE)
    elapsed, usage = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = usage.ru_utime + usage.ru_stime - before.ru_utime - before.ru_stime
    return {
        "nodes": nodes,
        "bytes": os.path.getsize(path),
        "seconds": round(elapsed, 2),
        "processor_seconds": round(processor, 2),
        "peak_mb": round(usage.ru_maxrss / 1024),  # the largest child so far: sizes go upwards
        "wrong": wrong(json.loads(done.stdout), nodes),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fleet.many", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--nodes", default="1000,10000,100000", help="how many, by comma")
    rows = []
    with tempfile.TemporaryDirectory(prefix="cudriver-fleet-") as folder:
        for nodes in sorted(map(int, parser.parse_args().nodes.split(","))):
            path = os.path.join(folder, "reports.jsonl")
            with open(path, "w", encoding="ascii") as file:
                file.writelines(lines(nodes))
            rows.append(measure(path, nodes))
            print(json.dumps(rows[-1]), flush=True)
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
