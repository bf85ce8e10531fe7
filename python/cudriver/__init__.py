"""cudriver: CUDA contexts, page-locked NumPy arrays and copies, straight from the driver API.

``import cudriver as cu``. Importing it creates no context and imports no NumPy; the driver library is
opened by the first call that needs it. ``cudriver.stack`` and the command ``cudriver check`` tell which
CUDA an environment really uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudriver._core import (
    Allocation,
    Context,
    CopyPlan,
    Device,
    DeviceArray,
    DriverVersion,
    Event,
    HostMemoryStats,
    MemoryInfo,
    Stream,
    StreamPriorityRange,
    Transfer,
    context_stack,
    copy,
    copy_async,
    current_context,
    device_count,
    device_empty,
    device_zeros,
    devices,
    driver_is_simulated,
    driver_path,
    driver_version,
    error_names,
    explain_copy,
    host_memory_stats,
    init,
    is_available,
    is_pinned,
    live_allocations,
    mapped_pointer,
    memory_info,
    pin,
    pinned_array,
    pinned_empty,
    pinned_empty_like,
    pinned_full,
    pinned_numpy,
    pinned_zeros,
    set_host_memory_limit,
    to_device,
    trace_allocations,
    trim_host_memory,
    use_driver,
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

if TYPE_CHECKING:
    from cudriver import stack
    from cudriver.flags import ContextFlags

__version__ = "0.1.0"

__all__ = [
    "Allocation",
    "Context",
    "ContextFlags",
    "CopyPlan",
    "CudaError",
    "Device",
    "DeviceArray",
    "DriverNotFoundError",
    "DriverVersion",
    "Event",
    "ForkedProcessError",
    "HostMemoryStats",
    "InvalidContextError",
    "MemoryInfo",
    "NotInitializedError",
    "OutOfMemoryError",
    "Stream",
    "StreamPriorityRange",
    "Transfer",
    "UnsupportedDriverError",
    "__version__",
    "context_stack",
    "copy",
    "copy_async",
    "current_context",
    "device_count",
    "device_empty",
    "device_zeros",
    "devices",
    "driver_is_simulated",
    "driver_path",
    "driver_version",
    "error_names",
    "explain_copy",
    "host_memory_stats",
    "init",
    "is_available",
    "is_pinned",
    "live_allocations",
    "mapped_pointer",
    "memory_info",
    "pin",
    "pinned_array",
    "pinned_empty",
    "pinned_empty_like",
    "pinned_full",
    "pinned_numpy",
    "pinned_zeros",
    "set_host_memory_limit",
    "stack",
    "to_device",
    "trace_allocations",
    "trim_host_memory",
    "use_driver",
]


def __getattr__(name: str) -> Any:
    """Loads what the import leaves out, at its first use."""
    import importlib

    if name == "ContextFlags":
        return importlib.import_module("cudriver.flags").ContextFlags
    if name == "stack":
        return importlib.import_module("cudriver.stack")
    raise AttributeError(f"module 'cudriver' has no attribute {name!r}")
