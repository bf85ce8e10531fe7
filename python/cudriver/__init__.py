"""cudriver: CUDA contexts, page-locked NumPy arrays and copies, straight from the driver API.

``import cudriver as cu``. Importing it loads neither NumPy nor the driver; each name below brings
what it needs at its first use. ``cudriver.stack`` and the command ``cudriver check`` tell which
CUDA an environment really uses, and need none of the rest.

Examples in docstrings assume ``import cudriver as cu`` and ``import numpy as np``.
"""

from __future__ import annotations

from cudriver._version import __version__

TYPE_CHECKING = bool()  # noqa: UP018 - of a literal, jedi skips what follows
if TYPE_CHECKING:  # typing itself costs more than the rest of this file
    from typing import Any

    from cudriver import errors, fleet, stack
    from cudriver._core import (
        Context,
        DeviceArray,
        Event,
        Stream,
        Transfer,
        context_stack,
        copy,
        copy_async,
        current_context,
        init,
    )
    from cudriver.errors import (
        CudaError,
        DriverNotFoundError,
        ForkedProcessError,
        InvalidContextError,
        NotInitializedError,
        OutOfMemoryError,
        UnsupportedDriverError,
    )
    from cudriver.flags import ContextFlags
    from cudriver.memory.borrowing import (
        dlpack_pinned,
        from_cuda_array_interface,
        from_pointer,
    )
    from cudriver.memory.contexts import (
        memory_info,
        synchronize,
    )
    from cudriver.memory.copies import explain_copy
    from cudriver.memory.devices import Device, device_count, devices
    from cudriver.memory.dlpack import from_dlpack
    from cudriver.memory.driver import (
        driver_is_simulated,
        driver_path,
        driver_version,
        is_available,
        use_driver,
    )
    from cudriver.memory.host import is_pinned, mapped_pointer
    from cudriver.memory.live import live_allocations, trace_allocations
    from cudriver.memory.making import (
        device_empty,
        device_empty_like,
        device_full,
        device_zeros,
    )
    from cudriver.memory.moving import to_device
    from cudriver.memory.pinned import pinned_empty, pinned_full, pinned_zeros
    from cudriver.memory.pinned_like import pinned_array, pinned_empty_like, pinned_zeros_like
    from cudriver.memory.pinned_numpy import pinned_numpy
    from cudriver.memory.pinning import pin_async, pinned_empty_async
    from cudriver.memory.pins import pin
    from cudriver.memory.pool import (
        host_memory_stats,
        set_host_memory_limit,
        set_host_memory_policy,
        trim_host_memory,
    )
    from cudriver.memory.rows import copy_many, copy_many_async, copy_rows, copy_rows_async
    from cudriver.memory.shared import SharedMemory
    from cudriver.weights import (
        iter_safetensors,
        load_npy,
        load_npz,
        load_safetensors,
        save_safetensors,
    )

__all__ = [
    "Context",
    "ContextFlags",
    "CudaError",
    "Device",
    "DeviceArray",
    "DriverNotFoundError",
    "Event",
    "ForkedProcessError",
    "InvalidContextError",
    "NotInitializedError",
    "OutOfMemoryError",
    "SharedMemory",
    "Stream",
    "Transfer",
    "UnsupportedDriverError",
    "__version__",
    "context_stack",
    "copy",
    "copy_async",
    "copy_many",
    "copy_many_async",
    "copy_rows",
    "copy_rows_async",
    "current_context",
    "device_count",
    "device_empty",
    "device_empty_like",
    "device_full",
    "device_zeros",
    "devices",
    "dlpack_pinned",
    "driver_is_simulated",
    "driver_path",
    "driver_version",
    "errors",
    "explain_copy",
    "fleet",
    "from_cuda_array_interface",
    "from_dlpack",
    "from_pointer",
    "host_memory_stats",
    "init",
    "is_available",
    "is_pinned",
    "iter_safetensors",
    "live_allocations",
    "load_npy",
    "load_npz",
    "load_safetensors",
    "mapped_pointer",
    "memory_info",
    "pin",
    "pin_async",
    "pinned_array",
    "pinned_empty",
    "pinned_empty_async",
    "pinned_empty_like",
    "pinned_full",
    "pinned_numpy",
    "pinned_zeros",
    "pinned_zeros_like",
    "save_safetensors",
    "set_host_memory_limit",
    "set_host_memory_policy",
    "stack",
    "synchronize",
    "to_device",
    "trace_allocations",
    "trim_host_memory",
    "use_driver",
]


_ERRORS = frozenset(name for name in __all__ if name.endswith("Error"))
_MODULES = frozenset({"errors", "fleet", "stack"})
_HOMES = {
    "flags": ("ContextFlags",),
    "memory.borrowing": ("dlpack_pinned", "from_cuda_array_interface", "from_pointer"),
    "memory.contexts": ("memory_info", "synchronize"),
    "memory.copies": ("explain_copy",),
    "memory.devices": ("Device", "device_count", "devices"),
    "memory.dlpack": ("from_dlpack",),
    "memory.driver": (
        "driver_is_simulated",
        "driver_path",
        "driver_version",
        "is_available",
        "use_driver",
    ),
    "memory.host": ("is_pinned", "mapped_pointer"),
    "memory.live": ("live_allocations", "trace_allocations"),
    "memory.making": ("device_empty", "device_empty_like", "device_full", "device_zeros"),
    "memory.moving": ("to_device",),
    "memory.pinned": ("pinned_empty", "pinned_full", "pinned_zeros"),
    "memory.pinned_like": ("pinned_array", "pinned_empty_like", "pinned_zeros_like"),
    "memory.pinned_numpy": ("pinned_numpy",),
    "memory.pinning": ("pin_async", "pinned_empty_async"),
    "memory.pins": ("pin",),
    "memory.pool": (
        "host_memory_stats",
        "set_host_memory_limit",
        "set_host_memory_policy",
        "trim_host_memory",
    ),
    "memory.rows": ("copy_many", "copy_many_async", "copy_rows", "copy_rows_async"),
    "memory.shared": ("SharedMemory",),
    "weights": (
        "iter_safetensors",
        "load_npy",
        "load_npz",
        "load_safetensors",
        "save_safetensors",
    ),
}  # of what is not in the core


def __getattr__(name: str) -> Any:
    """Finds a public name where it lives, once."""
    from importlib import import_module

    if name not in __all__:
        hint = ""
        if not name.startswith("_"):
            hint = import_module("cudriver.memory.names").ours("cudriver", name)
        raise AttributeError(f"module 'cudriver' has no attribute {name!r}{hint}")
    if name in _MODULES:
        return import_module(f"cudriver.{name}")
    home = "errors" if name in _ERRORS else "_core"
    for module, names in _HOMES.items():
        home = module if name in names else home
    value = getattr(import_module(f"cudriver.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
