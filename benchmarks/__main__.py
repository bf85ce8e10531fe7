"""Measures cudriver, its peers and the driver on the same work, and writes a table of ratios.

    python -m benchmarks [--quick] [--only PATTERN] [--markdown FILE] [--json FILE] [--devices 0,1]

Without a GPU the simulated driver is used, and the report says so. Exit status: 0, or 1 where a
work of ours failed or gave wrong bytes; a target that is missed is told, and is no failure.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import json
import os
import sys
import time
from pathlib import Path

LIMIT_S = 115.0
QUICK_S = 40.0


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="about 40 s instead of two minutes")
    parser.add_argument(
        "--only", metavar="PATTERN", action="append", help="rows whose name has or matches this"
    )
    parser.add_argument(
        "--markdown", metavar="FILE", help="write the tables here, or between the file's markers"
    )
    parser.add_argument("--json", metavar="FILE", help="write every figure here")
    parser.add_argument("--devices", metavar="LIST", help="GPUs to use, as CUDA_VISIBLE_DEVICES")
    parser.add_argument("--most", metavar="BYTES", type=int, help="no array larger than this")
    parser.add_argument(
        "--peers", metavar="NAMES", help="only these peers, by comma; 'none' for none of them"
    )
    return parser.parse_args(words)


def wanted(name: str, patterns: list[str] | None) -> bool:
    """By a part of the name or a pattern of it, in any case."""
    name = name.lower()
    return not patterns or any(
        p.lower() in name or fnmatch.fnmatchcase(name, p.lower()) for p in patterns
    )


def choose_driver() -> None:
    """Starts anew with the simulated driver where the real one cannot be used."""
    import cudriver as cu

    if os.environ.get("CUDRIVER_LIBRARY") or cu.is_available():
        return
    environ = dict(os.environ, CUDRIVER_LIBRARY="sim")
    os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]], environ)


def main() -> int:
    options = arguments()
    begin = time.monotonic()
    if options.devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = options.devices
        os.environ["CUDRIVER_SIM_DEVICES"] = str(len(options.devices.split(",")))
    choose_driver()

    from benchmarks import peers, report
    from benchmarks.bench import Bench
    from benchmarks.rows import BESIDE, TABLE

    limit = QUICK_S if options.quick else LIMIT_S
    bench = Bench(quick=options.quick, most=options.most, limit_s=limit)
    bench.begin = begin
    if options.peers != "none" and (not bench.simulated or os.environ.get("CUDRIVER_BENCH_PEERS")):
        # CUDRIVER_BENCH_PEERS: for trying the peers' code where libcuda.so.1 is a simulated driver.
        bench.peers, bench.absent = peers.find(options.peers)
        bench.driver.enter(0)
    gc.collect()
    gc.freeze()  # what the peers brought in is not looked through again

    about = report.machine(bench)
    if bench.simulated:
        print(report.SIMULATED.replace("**", ""))
    print(report.machine_line(about))
    for peer in bench.peers:
        print(f"{peer.name} {peer.version}")
    for name, why in bench.absent.items():
        print(f"{name}: not measured: {why}")
    print(f"prepared in {time.monotonic() - begin:.1f} s\n", flush=True)

    rows = []
    for name, build in {**TABLE, **BESIDE}.items():
        if not wanted(name, options.only):
            continue
        started = time.monotonic()
        row = build(bench)
        for part in row.parts:
            if part.makers:
                part.run(bench.effort(**part.effort))
        row.seconds = time.monotonic() - started
        rows.append(row)
        print(report.terminal(row, bench.simulated and not row.anywhere), flush=True)

    if options.json:
        text = json.dumps(report.document(bench, rows, about), indent=1)
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    if options.markdown:
        report.insert(Path(options.markdown), report.markdown(bench, rows, about))
    judged = [row.verdict(bench.simulated) for row in rows if row.target]
    print(
        f"\n{judged.count('met')} met, {judged.count('not met')} not met, "
        f"{len(judged) - judged.count('met') - judged.count('not met')} not judged; "
        f"{time.monotonic() - begin:.0f} s"
    )
    return int("FAILED" in judged)


if __name__ == "__main__":
    sys.exit(main())
