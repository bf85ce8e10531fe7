"""Measures cudriver, its peers and the driver on the same work, and writes a table of ratios.

    python -m benchmarks [--quick] [--only TEXT] [--markdown FILE] [--json FILE] [--devices 0,1]

Without a GPU the simulated driver is used, and the report says so. Exit status: 0, or 1 where a
work of ours failed or gave wrong bytes. A target that is missed is no failure.
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

LIMIT_S = 150.0  # past 0.85 of it the rows that are left get less time
QUICK_S = 45.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="about a third of the time")
    add("--only", metavar="TEXT", action="append", help="rows whose name has this, in any case")
    add("--markdown", metavar="FILE", help="write the tables here, or between the file's markers")
    add("--json", metavar="FILE", help="write every figure here")
    add("--devices", metavar="LIST", help="GPUs to use, as CUDA_VISIBLE_DEVICES")
    add("--processors", metavar="N", type=int, help="use N processors only, as in a container")
    add("--most", metavar="BYTES", type=int, help="no array larger than this")
    add("--peers", metavar="NAMES", help="only these peers, by comma; 'none' for none of them")
    add("--alone", action="store_true", help="time cudriver alone, and compare no bytes")
    add("--environment", metavar="PREFIX", default="", help="a large one, whose check is timed")
    return parser.parse_args()


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
    if options.processors is not None:  # before anything is loaded that counts them
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.processors])
    choose_driver()

    from benchmarks import peers, report
    from benchmarks.bench import Bench
    from benchmarks.rows import TABLE

    faulthandler.enable()  # a peer's crash should say whose it was

    bench = Bench(
        QUICK_S if options.quick else LIMIT_S,
        quick=options.quick,
        most=options.most,
        alone=options.alone,
        environment=options.environment,
    )
    use_peers = not options.alone and options.peers != "none"
    if use_peers and (not bench.simulated or os.environ.get("CUDRIVER_BENCH_PEERS")):
        # CUDRIVER_BENCH_PEERS: for trying the peers' code where libcuda.so.1 is a simulated driver.
        bench.peers, bench.absent = peers.find(options.peers)
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
        print(report.terminal(row, bench.simulated), flush=True)
        if options.json:  # after each row: what was measured is not lost with a process that dies
            text = json.dumps(report.document(bench, rows, about), indent=1)
            Path(options.json).write_text(text + "\n", encoding="utf-8")
    if options.markdown:
        report.insert(Path(options.markdown), report.markdown(bench, rows, about))
    verdicts = [row.verdict(bench.simulated) for row in rows]
    met, missed = verdicts.count("met"), verdicts.count("not met")
    print(
        f"\n{met} met, {missed} not met, {len(rows) - met - missed} not judged; "
        f"{time.monotonic() - begin:.0f} s"
    )
    return int(any(verdict.startswith("FAILED") for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
