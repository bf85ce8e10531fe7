"""The peers, each with its best ordinary way to do a work. None is needed."""

from __future__ import annotations

from importlib import import_module

from benchmarks.peers.base import Peer

# In the order of the table's columns: name, module, class.
KNOWN = (
    ("PyTorch", "benchmarks.peers.with_torch", "Torch"),
    ("CuPy", "benchmarks.peers.with_cupy", "CuPy"),
    ("cuda-core", "benchmarks.peers.with_cuda_python", "Core"),
    ("cuda-bindings", "benchmarks.peers.with_cuda_python", "Bindings"),
)


def find(names: str | None = None) -> tuple[list[Peer], dict[str, str]]:
    """(the peers that are installed and see a GPU, why the others are not among them); of `names`,
    by comma, only."""
    chosen = None if names is None else {name.strip().lower() for name in names.split(",")}
    there: list[Peer] = []
    absent: dict[str, str] = {}
    for name, module, kind in KNOWN:
        if chosen is not None and name.lower() not in chosen:
            continue
        try:
            peer = getattr(import_module(module), kind)()
        except ModuleNotFoundError as error:
            absent[name] = f"no module {error.name}"
        except Exception as error:
            absent[name] = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        else:
            there.append(peer)
    return there, absent
