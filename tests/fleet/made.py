"""Reports as nodes of a cluster would send them, with differences planted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Report = dict[str, Any]
PREFIX = "/opt/envs/train"
SITE = f"{PREFIX}/lib/python3.12/site-packages"
ARCHS = ["sm_80", "sm_90", "sm_100", "sm_120"]
VERSIONS = {
    "libcudart.so.12": ("12.8.90", "nvidia-cuda-runtime-cu12 12.8.90"),
    "libcublas.so.12": ("12.8.4.1", "nvidia-cublas-cu12 12.8.4.1"),
    "libcudnn.so.9": ("9.10.2", "nvidia-cudnn-cu12 9.10.2.21"),
    "libnccl.so.2": ("2.27.3", "nvidia-nccl-cu12 2.27.3"),
}


def report(host: str = "d0", *, rank: int | None = None, ranks: int | None = None) -> Report:
    """A healthy node with eight GPUs and PyTorch."""
    gpus = [
        {"index": number, "name": "NVIDIA H200", "uuid": f"GPU-{host}-{number}", "memory": 1 << 37,
         "pci_bus_id": f"0:{number}", "compute_capability": "9.0", "visible": True,
         "assumed": False}
        for number in range(8)
    ]  # fmt: skip
    torch = {"name": "torch", "version": "2.8.0+cu128", "cuda": "12.8", "cudnn": "9.10.2",
             "nccl": "2.27.3", "archs": [*ARCHS], "path": f"{SITE}/torch",
             "modelled": True}  # fmt: skip
    return {
        "schema": 1,
        "verdict": "consistent",
        "environment": {"prefix": PREFIX, "kind": "venv", "python": "3.12.4"},
        "driver": {"release": "580.65.06", "kernel_release": "580.65.06", "cuda": "13.0",
                   "path": "/usr/lib64/libcuda.so.580.65.06", "error": None, "devices": gpus},
        "toolkits": [
            {"origin": "system", "kind": "directory", "version": "12.8", "path": "/usr/local/cuda"},
            {"origin": "environment", "kind": "wheels", "version": "12.8", "path": PREFIX},
        ],
        "frameworks": [torch],
        "libraries": [
            {"soname": name, "version": version, "path": f"{SITE}/nvidia/lib/{name}",
             "provided_by": package, "found_by": "RPATH", "shadowed": []}
            for name, (version, package) in VERSIONS.items()
        ],
        "findings": [],
        "problems": [],
        "node": {"host": host, "time": "2026-11-22T12:00:00Z", "boot_id": host, "job": "71",
                 "cudriver": "0.1.0", "rank": rank, "ranks": ranks, "scheduler": {},
                 "variables": {"NCCL_ALGO": "Ring", "LD_LIBRARY_PATH": f"{PREFIX}/lib"}},
    }  # fmt: skip


def library(told: Report, name: str) -> Report:
    """The row of a library."""
    row: Report = next(row for row in told["libraries"] if row["soname"] == name)
    return row


def finding(severity: str, rule: str = "CU303", title: str = "undefined symbol") -> Report:
    return {"rule": rule, "severity": severity, "title": title, "evidence": [], "predicts": None,
            "fix": [], "subject": "torch"}  # fmt: skip


def fleet_of(count: int, change: Callable[[Report], object], at: int = 3) -> list[Report]:
    """So many nodes, d0 to the last; one of them is changed."""
    found = [report(f"d{number}") for number in range(count)]
    change(found[at])
    return found


def lines(reports: list[Report]) -> str:
    return "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in reports)
