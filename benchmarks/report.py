"""What a run found: the machine in a line, Markdown, JSON, and lines on a terminal."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path
from typing import Any

import cudriver as cu
from benchmarks.bench import Bench
from benchmarks.measure import DRIVER, NUMPY, OURS, PINNED, Part, Row
from benchmarks.peers import KNOWN
from benchmarks.rows.calls import POOL
from benchmarks.rows.dense import FLOOR, SWEEP
from benchmarks.rows.processes import NVIDIA_SMI
from benchmarks.rows.together import ALONE

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
FIRST, LAST = (OURS, PINNED, DRIVER, POOL), (NUMPY, ALONE, NVIDIA_SMI)
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
    link = ""
    if devices:
        place = f"/sys/bus/pci/devices/{devices[0].pci_bus_id.lower()}/current_link_"
        speed, width = _read(place + "speed"), _read(place + "width")
        link = f" ({speed} x{width})" if speed and width else ""
    lines = _read("/proc/cpuinfo").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1
    release = "" if bench.simulated else _read("/sys/module/nvidia/version")
    return "; ".join(
        [
            ", ".join(device.name for device in devices) + link,
            (f"driver {release}, " if release else "") + f"CUDA {cu.driver_version()}",
            f"{len(os.sched_getaffinity(0))} processors "
            f"({models[0] if models else platform.machine()}), {nodes} NUMA node"
            + ("s" if nodes > 1 else ""),
            f"Linux {platform.release()}, Python {platform.python_version()}",
        ]
    )


def document(bench: Bench, rows: list[Row], machine: str) -> dict[str, Any]:
    """Everything, for programs. Times are seconds of one run of the work."""

    def part(part: Part) -> dict[str, Any]:
        figures = {
            who: {
                "median_s": part.median(who),
                "spread": part.spread(who),
                "rounds": len(part.samples[who]),
                "how": part.how.get(who, ""),
            }
            for who in part.samples
        }
        failed = {who: text for who, text in part.failed.items() if text}
        return {"label": part.label, "nbytes": part.nbytes, "figures": figures, "failed": failed}

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
                "verdict": row.verdict(bench.simulated),
                "took_s": row.seconds,
                "parts": [part(p) for p in row.parts],
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
    value = part.figure(who)
    if value is None:
        text = part.failed.get(who, "")
        return f"failed: {text}" if text else ""
    shown = number(value)
    if ratio:
        shown += f" ±{part.spread(who) * 100:.0f} %"
        mine, theirs = part.median(), part.median(who)
        if who != OURS and mine and theirs:
            shown += f" ({number(theirs / mine)}x)"
    return shown


def columns(parts: list[Part]) -> list[str]:
    """Those that have a figure or a failure anywhere, in the table's order."""
    seen = {who for part in parts for who in (*part.samples, *part.failed)}
    return [who for who in (*FIRST, *(name for name, _, _ in KNOWN), *LAST) if who in seen]


def _table(head: list[str], lines: list[list[str]]) -> str:
    def row(cells: list[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"

    return "\n".join([row(head), row(["---"] * len(head)), *map(row, lines)])


def _verdict_line(row: Row, simulated: bool) -> list[str]:
    ratio = None if simulated else row.ratio()
    judged = ["" if ratio is None else f"{ratio:.2f}", row.verdict(simulated)]
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
    out += ["", _table(head, [_verdict_line(row, bench.simulated) for row in rows]), ""]
    caller = "from C" if bench.driver.loops == "C" else "by ctypes (no C compiler here)"
    out += [
        "Each figure, ± half the quartiles' distance; in brackets how many times as fast ours is.",
        f"`driver` is libcuda called {caller}, `pinned` the same from page-locked memory.",
    ]
    parts = [(row, part) for row in rows if row.name != SWEEP for part in row.parts]
    shown = columns([part for _, part in parts])
    lines = [
        [
            f"{row.name}{': ' if part.label else ''}{part.label}",
            part.unit,
            *(cell(part, who, ratio=True) for who in shown),
        ]
        for row, part in parts
    ]
    out += ["", _table(["work", "unit", *shown], lines)]
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
    return text + _table(["size", *paths], lines)


def insert(path: Path, text: str) -> None:
    """Puts the text between the file's markers, or makes it the file where there are none."""
    have = path.read_text(encoding="utf-8") if path.exists() else ""
    if BEGIN in have and END in have:
        before, _, rest = have.partition(BEGIN)
        text = f"{before}{BEGIN}\n{text}{END}{rest.partition(END)[2]}"
    path.write_text(text, encoding="utf-8")


def terminal(row: Row, simulated: bool) -> str:
    """A row as it is measured."""
    ratio = row.ratio()
    judged = f"  {ratio:.2f} of the target" if ratio is not None and not simulated else ""
    out = [f"{row.name}   [{row.target}]   {row.verdict(simulated)}{judged}"]
    if row.name == SWEEP:
        return "\n".join([*out, sweep_table(row)])
    for part in row.parts:
        figures = [
            f"{who} {cell(part, who, ratio=True)}" for who in columns([part]) if cell(part, who)
        ]
        out.append(f"    {part.label or 'all':<10} {part.unit:<5} " + "   ".join(figures))
    return "\n".join(out)
