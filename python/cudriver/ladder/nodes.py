"""Copies of page-locked memory of each NUMA node: what `cudriver bench --numa` measures."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import cudriver as cu
from cudriver.ladder.result import number, show_size
from cudriver.memory import numa

ROWS = "nodes"  # of the report
ONE = "This machine has one NUMA node: there is nothing to choose."
SEVERAL = (
    "The nearest node has the rates of the bus. Another has lower ones where the link between the "
    "sockets is slower than the bus, or busy; cudriver's arrays and copies keep to the nearest. "
    "It was never run on a machine with two sockets: if another node is faster here, or "
    "none is marked as the nearest, please report this output."
)


def measure(device: cu.Device, size: int, rounds: int) -> dict[str, Any]:
    """The median rate of each way, in GB/s, by node; None on the simulated driver."""
    simulated = cu.driver_is_simulated()
    rows = []
    with device.primary_context():
        there = cu.device_empty(size, np.uint8)
        for node in numa.nodes() or (0,):
            array = cu.pinned_full(size, 1 + node, np.uint8, numa=node)
            seconds: tuple[list[float], list[float]] = ([], [])
            for _ in range(1 + rounds):  # the first is not timed
                begin = perf_counter()
                cu.copy(there, array)
                between = perf_counter()
                cu.copy(array, there)
                seconds[0].append(between - begin)
                seconds[1].append(perf_counter() - between)
            verified = bool((there.to_numpy() == 1 + node).all() and (array == 1 + node).all())
            up, down = (None if simulated else size / median(way[1:]) / 1e9 for way in seconds)
            near = node == numa.near(device)
            rates = {"to_device": up, "from_device": down}
            rows.append({"node": node, "nearest": near, **rates, "verified": verified})
    about = {"schema": 1, "device": device.name, "simulated": simulated, "size": size}
    return {**about, "nodes": rows}


def lines(report: dict[str, Any]) -> list[str]:
    """The report as text."""
    size = show_size(report["size"])
    found = [
        f"Page-locked memory of each NUMA node, {size}, GB/s: {report['device']}",
        "  node     to device  from device",
    ]
    for row in report["nodes"]:
        rates = (row["to_device"], row["from_device"])
        up, down = ("-" if rate is None else number(rate) for rate in rates)
        mark = "  nearest" if row["nearest"] else ""
        mark += "" if row["verified"] else "  WRONG BYTES"
        found.append(f"  {row['node']:4}  {up:>12}  {down:>11}{mark}")
    if report["simulated"]:
        found.append("simulated driver: no GPU takes part, so no rates are given")
    return [*found, "", ONE if len(report["nodes"]) < 2 else SEVERAL]
