"""Reports as nodes of a cluster would send them, with differences planted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Report = dict[str, Any]
Change = Callable[[Report], object]
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


# ---- what may differ ---------------------------------------------------------------------------


def nccl(told: Report) -> None:
    told["frameworks"][0]["nccl"] = "2.26.2"
    library(told, "libnccl.so.2").update(version="2.26.2", provided_by="nvidia-nccl-cu12 2.26.2")


def cudnn(told: Report) -> None:
    told["frameworks"][0]["cudnn"] = "9.8.0"
    library(told, "libcudnn.so.9").update(version="9.8.0", provided_by="nvidia-cudnn-cu12 9.8.0.87")


def torch(**changes: object) -> Change:
    return lambda told: told["frameworks"][0].update(changes)


def driver(release: str) -> Change:
    path = f"/usr/lib64/libcuda.so.{release}"
    return lambda told: told["driver"].update(release=release, kernel_release=release, path=path)


def no_driver(told: Report) -> None:
    told["driver"].update(release=None, kernel_release=None, cuda=None, path=None, devices=[])


def gpus(capability: str, count: int = 8) -> Change:
    def change(told: Report) -> None:
        del told["driver"]["devices"][count:]
        for device in told["driver"]["devices"]:
            device.update(compute_capability=capability, name=f"GPU of {capability}")

    return change


def two_kinds(told: Report) -> None:
    for device in told["driver"]["devices"][:4]:
        device["name"] = "NVIDIA L4"


def toolkit(row: int, version: str | None) -> Change:
    return lambda told: told["toolkits"][row].update(version=version)


def runtime(*majors: int) -> Change:
    """The CUDA runtimes of these majors, in place of 12's."""

    def change(told: Report) -> None:
        told["libraries"] = [
            row for row in told["libraries"] if row["soname"] != "libcudart.so.12"
        ] + [
            {**library(report(), "libcudart.so.12"), "soname": f"libcudart.so.{major}"}
            for major in majors
        ]

    return change


def without(name: str) -> Change:
    return lambda told: told["libraries"].remove(library(told, name))


def cublas(told: Report) -> None:
    library(told, "libcublas.so.12").update(
        version="12.9.1.4", provided_by="nvidia-cublas-cu12 12.9.1.4"
    )


def elsewhere(told: Report) -> None:
    library(told, "libcublas.so.12").update(
        path="/usr/local/cuda/lib64/libcublas.so.12", provided_by=None
    )


def of_library(name: str, **changes: object) -> Change:
    return lambda told: library(told, name).update(changes)


def moved(told: Report) -> None:
    text = json.dumps(told).replace(PREFIX, "/scratch/d3/env")
    told.update(json.loads(text))


def failing(told: Report) -> None:
    told.update(verdict="mismatch", findings=[finding("error")])


def of(*path: str | int, **changes: object) -> Change:
    """A change of the members of an object of a report."""

    def change(told: Report) -> None:
        for name in path:
            told = told[name]
        told.update(changes)

    return change


def all_of(*changes: Change) -> Change:
    def change(told: Report) -> None:
        for each in changes:
            each(told)

    return change


def nothing(told: Report) -> None:
    pass


def in_job(name: str | None) -> Change:
    return of("node", job=name)


def at(time: str) -> Change:
    return of("node", time=f"2026-11-22T{time}:00Z")


def fleet(*changes: Change, **by_name: Change) -> list[Report]:
    """A node for each of these changes, d0 to the last, and those that have names of their own."""
    named = {**{f"d{number}": change for number, change in enumerate(changes)}, **by_name}
    found = [report(name) for name in named]
    for told, change in zip(found, named.values(), strict=True):
        change(told)
    return found


def ranks(numbers: str, of: int, *changes: Change, hosts: bool = False) -> list[Report]:
    """Reports of these ranks, on one host or on one each."""
    found = [report(f"d{r}" if hosts else "d0", rank=int(r), ranks=of) for r in numbers.split(",")]
    for told, change in zip(found, changes, strict=False):
        change(told)
    return found


def algo(name: str) -> Change:
    return of("node", "variables", NCCL_ALGO=name)


def no_framework(told: Report) -> None:
    told["frameworks"].clear()


def without_visible(told: Report) -> None:
    for device in told["driver"]["devices"]:
        del device["visible"]


def more(rows: str, **changes: object) -> Change:
    """One more framework or library, which is the first but for these changes."""
    return lambda told: told[rows].append({**told[rows][0], **changes})


def mapped(*names: str) -> Change:
    """The process has these files mapped."""
    return lambda told: told["node"].update(
        loaded=[{"soname": name, "version": "2.26.2", "path": f"/x/{name}"} for name in names]
    )


def another_error(title: str, subject: str = "torch", severity: str = "error") -> Change:
    row = {**finding(severity, title=title), "subject": subject}
    return lambda told: told["findings"].append(row)


def pod(told: Report) -> None:
    told["node"]["scheduler"] = {"NODE_NAME": "n4", "POD_NAME": told["node"]["host"]}


def pairs(*jobs: str | None) -> list[Report]:
    """Two nodes in each of these jobs, the second with another NCCL."""
    named = {}
    for number, job in enumerate(jobs):
        named[f"d{number}a"] = in_job(job)
        named[f"d{number}b"] = all_of(in_job(job), nccl)
    return fleet(**named)
