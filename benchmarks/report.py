"""What a run found: the machine's line, Markdown, JSON, and lines on a terminal."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, usable_cpus
from benchmarks.measure import OURS, Part, Row

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
FIRST = (OURS, "pinned", "driver", "driver, pool")
LAST = ("NumPy", "bare Python", "nvidia-smi")
SWEEP = "any size, 4 KiB to 4 GiB, any path"
SIMULATED = (
    "**SIMULATED DRIVER.** No GPU was measured: arrays are small, copies are the processor's, and "
    "figures of copies tell the cost of calls and of packing, nothing of a bus. No verdict is given "
    "but on what needs no driver."
)


def _read(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _processor() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _nodes() -> int:
    root = Path("/sys/devices/system/node")
    return len(list(root.glob("node[0-9]*"))) or 1


def machine(bench: Bench) -> dict[str, Any]:
    import cudriver as cu

    devices = []
    for device in cu.devices():
        entry: dict[str, Any] = {
            "name": device.name,
            "memory_bytes": device.total_memory,
            "pci_bus_id": device.pci_bus_id,
        }
        place = f"/sys/bus/pci/devices/{device.pci_bus_id.lower()}"
        entry["link"] = " x".join(
            word
            for part in ("speed", "width")
            if (word := _read(f"{place}/current_link_{part}"))
        )
        devices.append(entry)
    return {
        "devices": devices,
        "cuda": str(cu.driver_version()),
        "driver_release": "" if bench.simulated else _read("/sys/module/nvidia/version"),
        "processor": _processor(),
        "processors": usable_cpus(),
        "numa_nodes": _nodes(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def machine_line(about: dict[str, Any]) -> str:
    devices = about["devices"]
    gpus = ", ".join(f"{device['name']}" for device in devices) or "no GPU"
    link = f" ({devices[0]['link']})" if devices and devices[0]["link"] else ""
    release = f"driver {about['driver_release']}, " if about["driver_release"] else ""
    nodes = f"{about['numa_nodes']} NUMA node" + ("s" if about["numa_nodes"] > 1 else "")
    return (
        f"{gpus}{link}; {release}CUDA {about['cuda']}; {about['processors']} processors "
        f"({about['processor']}), {nodes}; Linux {about['kernel']}, Python {about['python']}"
    )


def document(bench: Bench, rows: list[Row], about: dict[str, Any]) -> dict[str, Any]:
    """Everything, for programs. Times are seconds of one run of the work."""

    def part(part: Part) -> dict[str, Any]:
        return {
            "label": part.label,
            "nbytes": part.nbytes,
            "unit": part.unit,
            "ratio_to_target": part.ratio() if part.goals else None,
            "figures": {
                who: {
                    "median_s": part.median(who),
                    "spread": part.spread(who),
                    "rounds": len(part.samples[who]),
                    "value": part.figure(who),
                    "how": part.how.get(who, ""),
                }
                for who in part.samples
            },
            "failed": {who: text for who, text in part.failed.items() if text},
        }

    return {
        "format": 1,
        "simulated": bench.simulated,
        "quick": bench.quick,
        "machine": about,
        "versions": {peer.name: peer.version for peer in bench.peers},
        "absent": bench.absent,
        "loops": bench.driver.loops,
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


# --- tables ----------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Three digits that mean something."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cell(part: Part, who: str, ratio: bool = False) -> str:
    """One figure; with `ratio`, how many times as fast ours is, and the spread."""
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


def columns(rows: list[Row], peers: list[str]) -> list[str]:
    """Those that have a figure or a failure anywhere, in the table's order."""
    seen = {who for row in rows for part in row.parts for who in (*part.samples, *part.failed)}
    order = [*FIRST, *peers]
    order += sorted(seen - set(order) - set(LAST)) + list(LAST)
    return [who for who in order if who in seen]


def _table(head: list[str], lines: list[list[str]]) -> str:
    def row(cells: list[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"

    return "\n".join([row(head), row(["---"] * len(head)), *map(row, lines)])


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _verdict_line(row: Row, simulated: bool) -> list[str]:
    if row.name == SWEEP:
        return _sweep_line(row, simulated)
    units = {part.unit for part in row.parts}
    ours = " / ".join(text for part in row.parts if (text := cell(part, OURS)))
    if ours and len(units) == 1:
        ours += f" {units.pop()}"
    best = []
    for part in row.parts:
        others = [who for who in part.samples if who not in (OURS, "pinned", *LAST)]
        if others:
            who = min(others, key=lambda name: part.median(name) or 0.0)
            best.append(f"{cell(part, who)} ({who})")
    ratio = "" if simulated and not row.anywhere else _ratio(row.ratio())
    verdict = row.verdict(simulated)
    return [row.name, row.target, ours, ratio, verdict, " / ".join(best)]


def _sweep_line(row: Row, simulated: bool) -> list[str]:
    judged = [(ratio, part) for part in row.parts if (ratio := part.ratio()) is not None]
    verdict = row.verdict(simulated)
    if not judged:
        return [row.name, row.target, "", "", verdict, ""]
    worst, part = min(judged, key=lambda pair: pair[0])
    ours = f"worst {worst * 0.97:.2f} ({part.label})"
    return [row.name, row.target, ours, "" if simulated else _ratio(worst), verdict, ""]


def markdown(bench: Bench, rows: list[Row], about: dict[str, Any]) -> str:
    """The table of targets, then every figure beside its peers'."""
    peers = [peer.name for peer in bench.peers]
    versions = ", ".join(f"{peer.name} {peer.version}" for peer in bench.peers) or "no peers"
    absent = ", ".join(bench.absent)
    out = [f"{machine_line(about)}.", f"Measured beside {versions}."]
    if absent:
        out[-1] += f" Not here: {absent}."
    if bench.simulated:
        out.insert(0, SIMULATED)
    if bench.quick:
        out.append("A quick run: few rounds, no array above 1 GiB, no slow processes.")
    head = ["work", "target", "ours", "ratio to target", "", "best other"]
    lines = [_verdict_line(row, bench.simulated) for row in rows if row.target]
    out += ["", _table(head, lines), ""]
    out += [
        "Each figure, ± half the quartiles' distance; in brackets how many times as fast ours is.",
        "`driver` is libcuda called from C, `pinned` the same from page-locked memory."
        if bench.driver.loops == "C"
        else "`driver` is libcuda called by ctypes (no C compiler here), `pinned` the same from "
        "page-locked memory.",
    ]
    plain = [row for row in rows if row.name != SWEEP and row.parts]
    shown = columns(plain, peers)
    lines = [
        [
            f"{row.name}{': ' if part.label else ''}{part.label}",
            part.unit,
            *(cell(part, who, ratio=True) for who in shown),
        ]
        for row in plain
        for part in row.parts
    ]
    out += ["", _table(["work", "unit", *shown], lines)]
    out += [sweep_table(row) for row in rows if row.name == SWEEP and row.parts]
    return "\n".join(out) + "\n"


def sweep_table(row: Row) -> str:
    """Sizes down, paths across: ours over the driver, and the driver's time of one copy."""
    parts = {tuple(part.label.rsplit(", ", 1)): part for part in row.parts}
    paths = list(dict.fromkeys(path for path, _ in parts))
    lines = []
    for size in dict.fromkeys(size for _, size in parts):
        line = [size]
        for path in paths:
            part = parts.get((path, size))
            ours, driver = (part.median(), part.median("driver")) if part else (None, None)
            if ours and driver:
                line.append(f"{driver / ours:.2f} ({number(driver * 1e6)} us)")
            else:
                line.append(next((f"failed: {t}" for t in part.failed.values()), "") if part else "")
        lines.append(line)
    text = "\n\nOurs over the driver by size and path (in brackets the driver's time):\n\n"
    return text + _table(["size", *paths], lines)


def insert(path: Path, text: str) -> None:
    """Puts the text between the file's markers, or makes it the file where there are none."""
    if path.exists():
        have = path.read_text(encoding="utf-8")
        if BEGIN in have and END in have:
            before, _, rest = have.partition(BEGIN)
            _, _, after = rest.partition(END)
            path.write_text(f"{before}{BEGIN}\n{text}{END}{after}", encoding="utf-8")
            return
    path.write_text(text, encoding="utf-8")


def terminal(row: Row, simulated: bool) -> str:
    """A row as it is measured."""
    ratio = row.ratio()
    judged = f"  {ratio:.2f} of the target" if ratio is not None and not simulated else ""
    out = [f"{row.name}   [{row.target or 'no target'}]   {row.verdict(simulated)}{judged}"]
    if row.name == SWEEP:
        return "\n".join([*out, sweep_table(row).strip()])
    for part in row.parts:
        figures = [
            f"{who} {cell(part, who, ratio=True)}"
            for who in columns([Row("", "", [part])], [])
            if cell(part, who)
        ]
        out.append(f"    {part.label or 'all':<10} {part.unit:<5} " + "   ".join(figures))
    return "\n".join(out)
