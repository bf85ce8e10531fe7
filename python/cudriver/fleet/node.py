"""Which machine, job and process a report is of: the report's `node`."""

from __future__ import annotations

import os
import time

from cudriver._version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

BOOT_ID = "/proc/sys/kernel/random/boot_id"

# A launcher's variables for a process's rank and how many there are, the innermost launcher first:
# torchrun runs below srun, and mpirun in a batch script that has a SLURM_PROCID of its own.
# SLURM_NTASKS is the job's, not the step's.
RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
JOBS = ("SLURM_JOB_ID", "FLUX_JOB_ID", "PBS_JOBID", "LSB_JOBID", "TORCHELASTIC_RUN_ID")
IDENTIFIERS = (
    *(name for pair in RANKS for name in pair),
    *JOBS,
    *("SLURMD_NODENAME", "SLURM_NODEID", "SLURM_STEP_ID", "SLURM_LOCALID", "LOCAL_RANK"),
    *("OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_NAMESPACE", "PMIX_RANK", "JOB_COMPLETION_INDEX"),
    *("POD_NAME", "POD_NAMESPACE", "NODE_NAME"),
)

# Variables that change what is loaded or how it works. No other is told: they may hold secrets.
VARIABLES = (
    *("CONDA_PREFIX", "LD_BIND_NOW", "LD_LIBRARY_PATH", "LD_PRELOAD", "NVIDIA_DRIVER_CAPABILITIES"),
    *("NVIDIA_TF32_OVERRIDE", "NVIDIA_VISIBLE_DEVICES", "PYTHONHOME", "PYTHONNOUSERSITE"),
    *("PYTHONPATH", "PYTHONUSERBASE", "PYTORCH_ALLOC_CONF", "VIRTUAL_ENV", "XLA_FLAGS"),
    *("UCX_TLS", "UCX_NET_DEVICES", "FI_PROVIDER"),
)
VARIABLES_LIKE = ("CUDA_", "NCCL_", "PYTORCH_CUDA_", "TORCH_CUDA_", "TORCH_NCCL_")


def node(environ: Mapping[str, str] | None = None, **identifiers: Any) -> dict[str, Any]:
    """Host, time, boot, job and rank of this process, and its variables that matter to CUDA.

    Parameters
    ----------
    environ : mapping of str to str, optional
        Stands in for the process's environment variables.
    **identifiers : any value
        What the caller knows of the process: ``job``, ``rank`` and ``ranks`` go before what the
        variables say; any other is kept as text with the scheduler's identifiers.

    Returns
    -------
    dict
        As ``node`` in ``stack/data/report.schema.json``.

    Notes
    -----
    Starts no process and asks nothing of the network.
    """
    variables = os.environ if environ is None else environ
    rank, ranks = _rank(variables)
    job = next((variables[name] for name in JOBS if variables.get(name, "none") != "none"), None)
    known: dict[str, Any] = {"job": job, "rank": rank, "ranks": ranks}
    known.update((name, identifiers.pop(name)) for name in known if name in identifiers)
    scheduler = {name: variables[name] for name in IDENTIFIERS if name in variables}
    if "KUBERNETES_SERVICE_HOST" in variables:
        scheduler.setdefault("POD_NAME", os.uname().nodename)  # a pod's host name is its own
    scheduler.update((name, str(value)) for name, value in identifiers.items())
    return {
        "host": os.uname().nodename,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "boot_id": _boot_id(),
        "cudriver": __version__,
        **known,
        "scheduler": scheduler,
        "variables": {
            name: value
            for name, value in sorted(variables.items())
            if name in VARIABLES or name.startswith(VARIABLES_LIKE)
        },
    }


def _rank(variables: Mapping[str, str]) -> tuple[int | None, int | None]:
    """The process's rank and how many there are. RANK alone may be anybody's."""
    for rank, ranks in RANKS:
        number, count = variables.get(rank, ""), variables.get(ranks, "")
        if _is_number(number) and (_is_number(count) or rank != "RANK"):
            return int(number), int(count) if _is_number(count) else None
    return None, None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _boot_id() -> str | None:
    try:
        with open(BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return None
