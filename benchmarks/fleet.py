"""How long `cudriver fleet` takes, and how much memory, for many nodes with known differences.

    python -m benchmarks.fleet [--nodes 10000,100000]

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

PREFIX = "/opt/envs/train"
SITE = f"{PREFIX}/lib/python3.12/site-packages"
LIBRARIES = [
    "cudart",
    "nvrtc",
    "nvJitLink",
    "cudnn",
    "cudnn_graph",
    "cudnn_ops",
    "cudnn_cnn",
    "cudnn_adv",
    "cusparse",
    "cusparseLt",
    "cufile",
    "cupti",
    "cublas",
    "cublasLt",
    "cufft",
    "curand",
    "cusolver",
    "nvToolsExt",
    "nvshmem_host",
    "nccl",
]


def report(number: int) -> dict[str, Any]:
    """One node's, as `cudriver check --json --compact` prints it: 8 KB."""
    gpus = [
        {"index": i, "name": "NVIDIA H200", "uuid": f"GPU-{number:08x}-0000-4000-8000-{i:012x}",
         "pci_bus_id": f"0000:{i:02x}:00.0", "compute_capability": "9.0",
         "memory": 150_754_820_096, "visible": True, "assumed": False}
        for i in range(8)
    ]  # fmt: skip
    libraries = [
        {"soname": f"lib{name}.so.2", "version": "2.27.3", "shadowed": [],
         "path": f"{SITE}/nvidia/{name}/lib/lib{name}.so.2",
         "provided_by": f"nvidia-{name}-cu12 2.27.3",
         "found_by": f"RPATH of libtorch_cuda.so ($ORIGIN/../../nvidia/{name}/lib)"}
        for name in LIBRARIES
    ]  # fmt: skip
    archs = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
    return {
        "schema": 1, "verdict": "consistent",
        "environment": {"prefix": PREFIX, "kind": "venv", "python": "3.12.4"},
        "driver": {"release": "580.65.06", "kernel_release": "580.65.06", "cuda": "13.0",
                   "path": "/usr/lib64/libcuda.so.580.65.06", "error": None, "devices": gpus},
        "toolkits": [{"origin": "system", "kind": "directory", "version": "12.8",
                      "path": "/usr/local/cuda-12.8"}],
        "frameworks": [{"name": "torch", "version": "2.8.0+cu128", "cuda": "12.8",
                        "cudnn": "9.10.2", "nccl": "2.27.3", "archs": archs,
                        "path": f"{SITE}/torch", "modelled": True}],
        "libraries": libraries, "findings": [], "problems": [],
        "node": {"host": f"d{number}", "time": "2026-11-22T12:00:00Z", "boot_id": f"{number:032x}",
                 "cudriver": "0.1.0", "job": "71", "rank": number, "ranks": None,
                 "scheduler": {"SLURM_NODEID": str(number), "SLURM_PROCID": str(number)},
                 "variables": {"NCCL_DEBUG": "WARN", "LD_LIBRARY_PATH": f"{PREFIX}/lib"}},
    }  # fmt: skip


def lines(nodes: int) -> Iterator[str]:
    """The reports, labelled as srun does it. Node 7 of each hundred has another driver, node 8 of
    each thousand another NCCL; the last line is broken off, and its node is missing.
    """
    for number in range(nodes):
        made = report(number)
        if number % 1000 == 8:
            made["frameworks"][0]["nccl"] = made["libraries"][-1]["version"] = "2.26.2"
        told = json.dumps(made, separators=(",", ":"))
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
        prog="python -m benchmarks.fleet", description=(__doc__ or "").partition("\n")[0]
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
