"""Drivers that are too old for what is to run on them, or too new for a GPU."""

from __future__ import annotations

from cudriver.stack.model import Device, Driver
from cudriver.stack.tables import table
from cudriver.stack.versions import compare, major


def too_old(driver: Driver, cuda: str, floor: str) -> bool:
    """By release where that is a Linux driver's; by CUDA major for WSL, Tegra and compat."""
    if driver.kind == "native" and driver.release and not driver.wsl:
        return compare(driver.release, floor) < 0
    offered, wanted = major(driver.cuda), major(cuda)
    return offered is not None and wanted is not None and offered < wanted


def out_of_range(driver: Driver, device: Device) -> tuple[int, str] | None:
    """The "first" or the "last" branch of drivers that knows a GPU which this driver's does not."""
    branch = major(driver.release)
    rows = table("driver")["architectures"]
    row = next((r for r in rows if r["capability"] == device.compute_capability), None)
    if branch is None or row is None or not device.assumed or driver.kind == "tegra":
        return None
    first, last = row["first_branch"], row["last_branch"]
    if last is not None and branch > last:
        return last, "last"
    return (first, "first") if first is not None and branch < first else None
