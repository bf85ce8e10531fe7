"""The report of the running process: its interpreter, variables and mapped libraries."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAPS = "/proc/self/maps"


def report(*, probe_driver: bool = True, **identifiers: Any) -> dict[str, Any]:
    """Check the environment that this process runs in, as ``cudriver check --json`` would.

    Parameters
    ----------
    probe_driver : bool, optional
        Whether to ask NVML, in a child process.
    **identifiers : any value
        What the caller knows of the process: ``job``, ``rank``, ``ranks``, ``worker="tcp://..."``.

    Returns
    -------
    dict
        A report, version 1, with ``node``. That has the CUDA libraries that are mapped already
        under ``loaded``.

    Notes
    -----
    CUDA is neither loaded nor initialised in this process.
    """
    from cudriver import stack
    from cudriver.fleet.node import node

    told = stack.inspect(probe_driver=probe_driver).to_dict()
    told["node"] = {**node(**identifiers), "loaded": loaded()}
    return told


def loaded() -> list[dict[str, str | None]]:
    """The CUDA libraries that are mapped into this process: name, version and file."""
    from cudriver.stack.load.file_version import own_version
    from cudriver.stack.names import is_cuda_library
    from cudriver.stack.roots.rootfs import Root

    root, found = Root("/"), []
    for path in sorted(_mapped_files()):
        name = os.path.basename(path)
        if is_cuda_library(name):
            version, _ = own_version(root, path, name, None)
            found.append({"soname": name, "version": version, "path": path})
    return found


def _mapped_files() -> set[str]:
    try:
        with open(MAPS, encoding="utf-8", errors="surrogateescape") as file:
            fields = [line.rstrip("\n").split(maxsplit=5) for line in file]
    except OSError:
        return set()
    return {parts[5] for parts in fields if len(parts) == 6 and parts[5].startswith("/")}
