"""`cudriver devices`: the GPUs that the driver shows."""

from __future__ import annotations

import sys

from cudriver.cli import terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

    from cudriver import Device

FAILED = 1


def parser() -> ArgumentParser:
    """The command's options."""
    result = terminal.parser(
        "cudriver devices",
        description="The GPUs that the driver shows to this process. Creates no context.",
        epilog="exit status: 0 some are shown, 1 none is or the driver cannot be used, 2 usage",
    )
    add = result.add_argument
    add("--attributes", action="store_true", help="every attribute of each, by its CUDA name")
    add("--json", action="store_true", help="as JSON, attributes included")
    return result


def run(arguments: Namespace) -> int:
    """Prints the devices and returns the exit code."""
    import cudriver as cu

    try:
        found = cu.devices()
    except cu.CudaError as error:
        if arguments.json:
            _print_json({"error": str(error), "devices": []})
        terminal.complain(str(error))
        return FAILED
    rows = [describe(device) for device in found]
    if arguments.json:
        _print_json({"driver": driver(), "devices": rows})
    else:
        _print_text(rows, arguments.attributes)
    return 0 if rows else FAILED


def driver() -> dict[str, Any]:
    """The driver library in use."""
    import cudriver as cu

    return {
        "cuda": str(cu.driver_version()),
        "path": cu.driver_path(),
        "simulated": cu.driver_is_simulated(),
    }


def describe(device: Device) -> dict[str, Any]:
    """A device as JSON has it."""
    return {
        "ordinal": device.ordinal,
        "name": device.name,
        "uuid": device.uuid,
        "pci_bus_id": device.pci_bus_id,
        "compute_capability": "{}.{}".format(*device.compute_capability),
        "total_memory": device.total_memory,
        "multiprocessor_count": device.multiprocessor_count,
        "attributes": dict(device.attributes),
    }


def _print_json(document: dict[str, Any]) -> None:
    import json

    print(json.dumps({"schema": 1, **document}, indent=1))


def _print_text(rows: list[dict[str, Any]], attributes: bool) -> None:
    import cudriver as cu
    from cudriver.stack.say import say

    simulated = cu.driver_is_simulated()
    head = say(
        "simulated driver for CUDA {version}" if simulated else "driver for CUDA {version}",
        version=cu.driver_version(),
    )
    terminal.write(terminal.beside(head, cu.driver_path(), sys.stdout, 3) + "\n")
    if not rows:
        terminal.write(say("no devices") + "\n")
    for row in rows:
        count = row["multiprocessor_count"]
        about = [
            say("compute capability {capability}", capability=row["compute_capability"]),
            say("1 multiprocessor" if count == 1 else "{n} multiprocessors", n=count),
            f"{row['total_memory'] / 2**30:.1f} GiB",
        ]
        terminal.write(
            f"\n{row['ordinal']}  {row['name']}\n"
            f"   {say(', ').join(about)}\n"
            f"   {row['uuid']}  {row['pci_bus_id']}\n"
        )
        if attributes:
            width = max(map(len, row["attributes"]))
            for name, value in row["attributes"].items():
                shown = say("unknown to this driver") if value is None else value
                if name.endswith("cache_size") and value:
                    shown = f"{value}  {value / 2**20:.4g} MiB"
                terminal.write(f"   {name:<{width}}  {shown}\n")
    sys.stdout.flush()
