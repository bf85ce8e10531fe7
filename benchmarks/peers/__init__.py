"""The peers, each with its best ordinary way to do a work. None is needed."""

from __future__ import annotations

from importlib import import_module

from benchmarks.measure import told
from benchmarks.peers.base import Peer

# In the order of the table's columns: what is imported, and the module and the class here.
KNOWN = {
    "PyTorch": ("torch", "with_torch", "Torch"),
    "CuPy": ("cupy", "with_cupy", "CuPy"),
    "cuda-core": ("cuda.core", "with_cuda_python", "Core"),
    "cuda-bindings": ("cuda.bindings.driver", "with_cuda_python", "Bindings"),
}


def find() -> tuple[list[Peer], dict[str, str]]:
    """The peers that are installed and see a GPU, and why the others are not among them."""
    there: list[Peer] = []
    absent: dict[str, str] = {}
    for name, (_, module, kind) in KNOWN.items():
        try:
            there.append(getattr(import_module(f"benchmarks.peers.{module}"), kind)())
        except Exception as error:
            absent[name] = told(error)
    return there, absent
