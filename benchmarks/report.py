"""What a run found: the machine in a line, Markdown, JSON, and lines on a terminal."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections import Counter
from pathlib import Path
from typing import Any

import cudriver as cu
from benchmarks.bench import Bench
from benchmarks.measure import DRIVER, NUMPY, OURS, PINNED, Part
from benchmarks.peers import KNOWN
from benchmarks.peers.driver import POOL
from benchmarks.row import Row
from benchmarks.rows.blocks import STRATEGIES
from benchmarks.rows.copies import FLOOR, SWEEP
from benchmarks.rows.processes import NVIDIA_SMI
from benchmarks.rows.threads import has_gil
from benchmarks.rows.together import ALONE

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
LAST = (NUMPY, ALONE, NVIDIA_SMI)
SIMULATED = (
    "**SIMULATED DRIVER.** No GPU was measured: arrays are small, and copies are the processor's. "
    "Figures tell the cost of calls and of packing, nothing of a bus."
)


def _read(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    return ""


def machine(bench: Bench) -> str:
    """The devices and their link, the driver, the processors, the system."""
    devices = cu.devices()
    names = Counter(device.name for device in devices)
    link = f"/sys/bus/pci/devices/{devices[0].pci_bus_id.lower()}/current_link_"
    speed, width = _read(link + "speed"), _read(link + "width")
    model = re.search(r"^model name\s*: (.*)", _read("/proc/cpuinfo"), re.MULTILINE)
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1
    release = "" if bench.simulated else _read("/sys/module/nvidia/version")
    return "; ".join(
        [
            ", ".join(f"{n} x {name}" if n > 1 else name for name, n in names.items())
            + (f" ({speed} x{width})" if speed and width else ""),
            (f"driver {release}, " if release else "") + f"CUDA {cu.driver_version()}",
            f"{len(os.sched_getaffinity(0))} processors "
            f"({model[1] if model else platform.machine()}), {nodes} NUMA node{'s' * (nodes > 1)}",
            f"Linux {platform.release()}, Python {platform.python_version()}"
            + ("" if has_gil() else " without a GIL"),
        ]
    )


def document(bench: Bench, rows: list[Row], machine: str) -> dict[str, Any]:
    """Everything, for programs. Times are seconds of one run of the work."""

    def told(part: Part) -> dict[str, Any]:
        figures = {
            who: {
                "median_s": part.median(who),
                "spread": part.spread(who),
                "rounds": len(samples),
                "how": part.how.get(who, ""),
            }
            for who, samples in part.samples.items()
        }
        about = {"label": part.label, "nbytes": part.nbytes}
        return {**about, "figures": figures, "failed": part.failed}

    return {
        "format": 2,
        "simulated": bench.simulated,
        "package": cu.__file__,
        "machine": machine,
        "versions": {peer.name: peer.version for peer in bench.peers},
        "absent": bench.absent,
        "rows": [
            {
                "name": row.name,
                "target": row.target,
                "ratio_to_target": row.ratio(),
                "verdict": row.verdict(),
                "took_s": row.seconds,
                "parts": [told(part) for part in row.parts],
            }
            for row in rows
        ],
    }


# --- tables ---------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Three digits that mean something."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cell(part: Part, who: str, ratio: bool = False) -> str:
    """One figure; with `ratio`, the spread and how many times as fast ours is."""
    value, mine, theirs = part.figure(who), part.median(), part.median(who)
    if value is None:
        return f"failed: {part.failed[who]}" if who in part.failed else ""
    shown = number(value)
    if ratio:
        shown += f" ±{part.spread(who) * 100:.0f} %"
        if who != OURS and mine and theirs:
            shown += f" ({number(theirs / mine)}x)"
    return shown


def columns(parts: list[Part]) -> list[str]:
    """Those that have a figure or a failure anywhere: first those of the table, in its order."""
    seen = {who: None for part in parts for who in (*part.samples, *part.failed)}
    names = (OURS, PINNED, DRIVER, POOL, *KNOWN, *STRATEGIES, *LAST)
    return [*(who for who in names if who in seen), *(who for who in seen if who not in names)]


def table(head: list[str], lines: list[list[str]]) -> str:
    def row(cells: list[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"

    return "\n".join([row(head), row(["---"] * len(head)), *map(row, lines)])


def _verdict_line(row: Row) -> list[str]:
    ratio = None if row.simulated else row.ratio()
    judged = ["" if ratio is None else f"{ratio:.2f}", row.verdict()]
    if row.name == SWEEP:
        known = [(found, part.label) for part in row.parts if (found := part.ratio()) is not None]
        worst = f"worst {min(known)[0] * FLOOR:.2f} ({min(known)[1]})" if known else ""
        return [row.name, row.target, worst, *judged, ""]
    units = {part.unit for part in row.parts}
    ours = " / ".join(text for part in row.parts if (text := cell(part, OURS)))
    if ours and len(units) == 1:
        ours += f" {units.pop()}"
    best = []
    for part in row.parts:
        others = [who for who in part.samples if who not in (OURS, PINNED, *LAST)]
        if others:
            who = min(others, key=lambda name: part.median(name) or 0.0)
            best.append(f"{cell(part, who)} ({who})")
    return [row.name, row.target, ours, *judged, " / ".join(best)]


def markdown(bench: Bench, rows: list[Row], machine: str) -> str:
    """The table of targets, then every figure beside its peers'."""
    versions = ", ".join(f"{peer.name} {peer.version}" for peer in bench.peers) or "no peers"
    out = [SIMULATED] if bench.simulated else []
    out += [f"{machine}.", f"Measured beside {versions}."]
    if bench.absent:
        out[-1] += f" Not here: {', '.join(bench.absent)}."
    if bench.quick:
        out.append("A quick run: few rounds, no array above 1 GiB, no slow processes.")
    head = ["work", "target", "ours", "ratio to target", "", "best other"]
    out += [
        "",
        table(head, [_verdict_line(row) for row in rows]),
        "",
        "Each figure, ± half the quartiles' distance; in brackets how many times as fast ours is.",
        "`driver` is libcuda called from C, `pinned` the same from page-locked memory.",
    ]
    parts = [(row, part) for row in rows if row.name != SWEEP for part in row.parts]
    shown = columns([part for _, part in parts])
    lines = [
        [
            f"{row.name}: {part.label}".removesuffix(": "),
            part.unit,
            *(cell(part, who, ratio=True) for who in shown),
        ]
        for row, part in parts
    ]
    out += ["", table(["work", "unit", *shown], lines)]
    out += ["\n" + sweep_table(row) for row in rows if row.name == SWEEP and row.parts]
    return "\n".join(out) + "\n"


def sweep_table(row: Row) -> str:
    """Sizes down, paths across: ours over the driver, and the driver's time of one copy."""
    parts = {tuple(part.label.rsplit(", ", 1)): part for part in row.parts}
    paths = list(dict.fromkeys(path for path, _ in parts))

    def entry(part: Part) -> str:
        ours, driver = part.median(), part.median(DRIVER)
        if ours and driver:
            return f"{driver / ours:.2f} ({number(driver * 1e6)} us)"
        return next((f"failed: {text}" for text in part.failed.values()), "")

    sizes = dict.fromkeys(size for _, size in parts)
    lines = [[size, *(entry(parts[path, size]) for path in paths)] for size in sizes]
    text = "Ours over the driver by size and path (in brackets the driver's time):\n\n"
    return text + table(["size", *paths], lines)


def insert(path: Path, text: str) -> None:
    """Puts the text between the file's markers, or makes it the file where there are none."""
    have = path.read_text(encoding="utf-8") if path.exists() else ""
    have = have if BEGIN in have else BEGIN + END
    new = re.sub(f"(?s){BEGIN}.*{END}", lambda _: f"{BEGIN}\n{text}{END}", have)
    path.write_text(new, encoding="utf-8")


def terminal(row: Row) -> str:
    """A row as it is measured."""
    ratio = None if row.simulated else row.ratio()
    judged = "" if ratio is None else f"  {ratio:.2f} of the target"
    out = [f"{row.name}   [{row.target}]   {row.verdict()}{judged}"]
    if row.name == SWEEP:
        return "\n".join([*out, sweep_table(row)])
    for part in row.parts:
        shown = {who: cell(part, who, ratio=True) for who in columns([part])}
        figures = "   ".join(f"{who} {text}" for who, text in shown.items() if text)
        out.append(f"    {part.label or 'all':<10} {part.unit:<5} {figures}")
    return "\n".join(out)
