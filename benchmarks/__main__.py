"""Measures cudriver, its peers and the driver on the same work, and writes a table of ratios.

    python -m benchmarks [--quick] [--only TEXT] [--markdown FILE] [--json FILE] [--publish]

Without a GPU the simulated driver is used, and the report says so. Exit status: 0, or 1 where a
work of ours failed or gave wrong bytes. A target that is missed is not a failure.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import sys
import time
from pathlib import Path

import cudriver as cu
from benchmarks import page, peers, report
from benchmarks.bench import Bench
from benchmarks.rows import TABLE


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="about a third of the time")
    add("--only", metavar="TEXT", action="append", help="rows whose name has this, in any case")
    add("--markdown", metavar="FILE", type=Path, help="the tables, between this file's markers")
    add("--json", metavar="FILE", type=Path, help="write every figure here")
    add("--publish", action="store_true", help="for docs/performance.md, if this host may")
    add("--most", metavar="BYTES", type=int, help="no array larger than this")
    add("--alone", action="store_true", help="time cudriver alone, and compare no bytes")
    add("--environment", metavar="PREFIX", default="", help="a large one, whose check is timed")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    begin = time.monotonic()
    if "CUDRIVER_LIBRARY" not in os.environ and not cu.is_available():  # anew, simulated
        os.environ["CUDRIVER_LIBRARY"] = "sim"
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]])
    numpy_ms, refused = 0.0, ""
    if options.publish:
        numpy_ms, copy_gbs = page.host_test()
        refused = page.refusal(numpy_ms, copy_gbs)
        if cu.driver_is_simulated():
            refused = "the driver is simulated: nothing is written"
    if refused:
        print(f"--publish: {refused}", file=sys.stderr)
        return 2
    faulthandler.enable()  # a peer's crash should say whose it was
    bench = Bench(options.quick, options.alone, options.most, options.environment)
    if not options.alone and (not bench.simulated or os.environ.get("CUDRIVER_BENCH_PEERS")):
        # CUDRIVER_BENCH_PEERS: for trying the peers' code where libcuda.so.1 is a simulated driver.
        bench.peers, bench.absent = peers.find()
        bench.driver.enter(0)
    gc.disable()  # each part collects when it is over

    about = report.machine(bench)
    if bench.simulated:
        print(report.SIMULATED.replace("**", ""))
    print(about)
    for peer in bench.peers:
        print(f"{peer.name} {peer.version}")
    for name, why in bench.absent.items():
        print(f"{name}: not measured: {why}")
    print(f"prepared in {time.monotonic() - begin:.1f} s\n", flush=True)

    rows = []
    for row in TABLE:
        if options.only and not any(text.lower() in row.name.lower() for text in options.only):
            continue
        row.run(bench)
        rows.append(row)
        print(report.terminal(row), flush=True)
        if options.json:  # after each row: what was measured is not lost with a process that dies
            text = json.dumps(report.document(bench, rows, about), indent=1)
            options.json.write_text(text + "\n", encoding="utf-8")
        if options.markdown:
            report.insert(options.markdown, report.markdown(bench, rows, about))
    if options.publish:
        versions = {peer.name: peer.version for peer in bench.peers}
        print(f"\nwritten: {page.write(rows, about, versions, numpy_ms)}")
        page.main()
    verdicts = [row.verdict() for row in rows]
    met, missed = verdicts.count("met"), verdicts.count("not met")
    judged, took = met + missed, time.monotonic() - begin
    print(f"\n{met} met, {missed} not met, {len(rows) - judged} not judged; {took:.0f} s")
    return int(any(verdict.startswith("FAILED") for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
