"""How long `cudriver fleet` takes, and how much memory, for many nodes with known differences.

    python -m benchmarks.fleet [--nodes 10000,100000] [--write FILE] [--html FILE]

Reports are made up, those of a node with eight GPUs and PyTorch; what was planted must be found,
and nothing else. Exit status: 0, or 1 where the comparison found anything else. `--write` keeps the
reports, for `cudriver fleet FILE`.
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
LIBRARIES = {
    "libcudart.so.12": ("cuda-runtime", "12.8.90"), "libnvrtc.so.12": ("cuda-nvrtc", "12.8.93"),
    "libnvJitLink.so.12": ("nvjitlink", "12.8.93"), "libcudnn.so.9": ("cudnn", "9.10.2"),
    "libcusparseLt.so.0": ("cusparselt", "0.7.1"), "libcufile.so.0": ("cufile", "1.13.1.3"),
    "libcupti.so.12": ("cuda-cupti", "12.8.90"), "libcublas.so.12": ("cublas", "12.8.4.1"),
    "libcublasLt.so.12": ("cublas", "12.8.4.1"), "libcufft.so.11": ("cufft", "11.3.3.83"),
    "libcurand.so.10": ("curand", "10.3.9.90"), "libcusolver.so.11": ("cusolver", "11.7.3.90"),
    "libcusparse.so.12": ("cusparse", "12.5.8.93"), "libnccl.so.2": ("nccl", "2.27.3"),
    "libnvToolsExt.so.1": ("nvtx", "12.8.90"), "libcudnn_graph.so.9": ("cudnn", "9.10.2"),
    "libcudnn_ops.so.9": ("cudnn", "9.10.2"), "libcudnn_cnn.so.9": ("cudnn", "9.10.2"),
    "libcudnn_adv.so.9": ("cudnn", "9.10.2"), "libnvshmem_host.so.3": ("nvshmem", "3.3.9"),
}  # fmt: skip
GPU = "NVIDIA H200"


def report(number: int) -> dict[str, Any]:
    """One node's, as `cudriver check --json --compact` prints it: 10 KB."""
    gpus = [
        {"index": i, "name": GPU, "uuid": f"GPU-{number:08x}-0000-4000-8000-{i:012x}",
         "pci_bus_id": f"0000:{i:02x}:00.0", "compute_capability": "9.0",
         "memory": 150_754_820_096, "visible": True, "assumed": False}
        for i in range(8)
    ]  # fmt: skip
    libraries = [
        {"soname": name, "version": version, "shadowed": [],
         "path": f"{SITE}/nvidia/{package.replace('-', '_')}/lib/{name}",
         "provided_by": f"nvidia-{package}-cu12 {version}",
         "found_by": f"RPATH of libtorch_cuda.so ($ORIGIN/../../nvidia/{package}/lib)"}
        for name, (package, version) in LIBRARIES.items()
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
        told = json.dumps(report(number), separators=(",", ":"))
        if number % 100 == 7:
            told = told.replace("580.65.06", "570.86.15")
        if number % 1000 == 8:
            told = told.replace('"nccl":"2.27.3"', '"nccl":"2.26.2"')
            told = told.replace('"soname":"libnccl.so.2","version":"2.27.3"',
                                '"soname":"libnccl.so.2","version":"2.26.2"')  # fmt: skip
        yield f"{number}: {told if number < nodes - 1 else told[: len(told) // 2]}\n"


def wrong(found: dict[str, Any], nodes: int) -> list[str]:
    """What the comparison should have found, and did not, or found besides."""
    drivers = sum(number % 100 == 7 for number in range(nodes - 1))
    nccls = sum(number % 1000 == 8 for number in range(nodes - 1))
    groups = [nodes - 1 - drivers - nccls, drivers, nccls]
    wanted = {
        "groups": sorted(filter(None, groups), reverse=True),
        "rules": {
            "FL301": [nodes - 1 - nccls, nccls],
            "FL101": [nodes - 1 - drivers, drivers],
            "FL603": [1],
            "FL604": [1],
        },
        "missing": f"d{nodes - 1}",
    }
    told = {
        "groups": [group["count"] for group in found["groups"]],
        "rules": {f["rule"]: [s["count"] for s in f["evidence"]] for f in found["findings"]},
        "missing": found["missing"],
    }
    return [
        f"{name}: {told[name]} for {wanted[name]}" for name in wanted if told[name] != wanted[name]
    ]


def measure(path: str, nodes: int, html: str | None) -> dict[str, Any]:
    """One run of the command in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    words = [
        sys.executable,
        "-m",
        "cudriver",
        "fleet",
        path,
        "--nodes",
        f"d[0-{nodes - 1}]",
        "--json",
    ]
    done = subprocess.Popen(words + (["--html", html] if html else []), stdout=subprocess.PIPE)
    out = done.communicate()[0]
    elapsed = time.monotonic() - begin
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(out)
    return {
        "nodes": nodes,
        "bytes": os.path.getsize(path),
        "seconds": round(elapsed, 2),
        "processor_seconds": round(
            usage.ru_utime - before.ru_utime + usage.ru_stime - before.ru_stime, 2
        ),
        "peak_mb": round(usage.ru_maxrss / 1024),  # the largest child so far: sizes go upwards
        "status": found["status"],
        "wrong": wrong(found, nodes),
    }


def show(row: dict[str, Any]) -> None:
    """A line of the table."""
    size = f"{row['nodes']:>8,} nodes  {row['bytes'] / 1e6:>7.1f} MB"
    cost = f"{row['seconds']:>6} s ({row['processor_seconds']} s of a CPU)  {row['peak_mb']:>4} MB"
    print(f"{size}  {cost}  {'; '.join(row['wrong']) or 'all found'}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--nodes", default="1000,10000,100000", help="how many, by comma")
    parser.add_argument("--write", metavar="FILE", help="keep the last reports here")
    parser.add_argument("--html", metavar="FILE", help="keep the last page here")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="cudriver-fleet-") as folder:
        for nodes in sorted(map(int, options.nodes.split(","))):
            path = options.write or os.path.join(folder, "reports.jsonl")
            with open(path, "w", encoding="ascii") as file:
                file.writelines(lines(nodes))
            rows.append(measure(path, nodes, options.html))
            if not options.json:
                show(rows[-1])
    if options.json:
        print(json.dumps(rows, indent=2))
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
