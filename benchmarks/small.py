"""Copies of plain memory in a process that may use only a few processors.

python -m benchmarks.small PROCESSORS BYTES ROUNDS: seconds of each round, as JSON. The affinity is
set before anything is loaded, as a container or a batch system sets it.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    cpus, size, rounds = map(int, sys.argv[1:4])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cpus])

    import numpy as np

    import cudriver as cu
    from benchmarks.bench import Bench, address
    from benchmarks.measure import DRIVER, OURS, PINNED, Effort, Part, Work

    bench = Bench(quick=False, most=size, limit_s=120)
    host, out, pinned = bench.plain(size), bench.out(size), bench.pinned(size)
    there = cu.to_device(host)
    pointer, direct = there.pointer, bench.driver
    answer: dict[str, object] = {"threads": cu.explain_copy(there, host).threads}
    for up, way in ((True, "up"), (False, "down")):
        plain = host if up else out
        ends = (there, host) if up else (out, there)
        part = Part(way, size, verify=bench.verifier(host))
        target: dict[str, object] = {"pointer": lambda: pointer} if up else {"out": out}
        part.add(
            OURS, lambda ends=ends, target=target: Work(lambda: cu.copy(*ends), **target)
        )
        part.add(
            PINNED,
            lambda up=up: Work(
                lambda: None,
                timer=lambda: direct.copy_async(up, pointer, address(pinned), size),
            ),
        )
        part.add(
            DRIVER,
            lambda up=up, plain=plain, target=target: Work(
                lambda: None,
                timer=lambda: direct.copy(up, pointer, address(plain), size),
                **target,
            ),
        )
        part.run(Effort(rounds=rounds, budget=0.5))
        if part.failed:
            sys.exit(str(part.failed))
        answer[way] = part.samples
    assert np.array_equal(out, host)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
