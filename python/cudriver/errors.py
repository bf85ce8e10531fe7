"""The exceptions of cudriver.

Every failed driver call raises a :class:`CudaError` with the driver's code; the subclasses are
those that a caller would catch. Bad arguments raise ``TypeError`` or ``ValueError`` before the
driver is called.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = [
    "CudaError",
    "DriverNotFoundError",
    "ForkedProcessError",
    "InvalidContextError",
    "NotInitializedError",
    "OutOfMemoryError",
    "UnsupportedDriverError",
    "error_names",
]

#: Every error of CUresult, without CUDA_ERROR_: a driver may be too old to know it.
NAMES = {
    1: "INVALID_VALUE",
    2: "OUT_OF_MEMORY",
    3: "NOT_INITIALIZED",
    4: "DEINITIALIZED",
    5: "PROFILER_DISABLED",
    6: "PROFILER_NOT_INITIALIZED",
    7: "PROFILER_ALREADY_STARTED",
    8: "PROFILER_ALREADY_STOPPED",
    34: "STUB_LIBRARY",
    36: "CALL_REQUIRES_NEWER_DRIVER",
    46: "DEVICE_UNAVAILABLE",
    47: "MULTICAST_RESOURCE_FULL",
    100: "NO_DEVICE",
    101: "INVALID_DEVICE",
    102: "DEVICE_NOT_LICENSED",
    200: "INVALID_IMAGE",
    201: "INVALID_CONTEXT",
    202: "CONTEXT_ALREADY_CURRENT",
    205: "MAP_FAILED",
    206: "UNMAP_FAILED",
    207: "ARRAY_IS_MAPPED",
    208: "ALREADY_MAPPED",
    209: "NO_BINARY_FOR_GPU",
    210: "ALREADY_ACQUIRED",
    211: "NOT_MAPPED",
    212: "NOT_MAPPED_AS_ARRAY",
    213: "NOT_MAPPED_AS_POINTER",
    214: "ECC_UNCORRECTABLE",
    215: "UNSUPPORTED_LIMIT",
    216: "CONTEXT_ALREADY_IN_USE",
    217: "PEER_ACCESS_UNSUPPORTED",
    218: "INVALID_PTX",
    219: "INVALID_GRAPHICS_CONTEXT",
    220: "NVLINK_UNCORRECTABLE",
    221: "JIT_COMPILER_NOT_FOUND",
    222: "UNSUPPORTED_PTX_VERSION",
    223: "JIT_COMPILATION_DISABLED",
    224: "UNSUPPORTED_EXEC_AFFINITY",
    225: "UNSUPPORTED_DEVSIDE_SYNC",
    226: "CONTAINED",
    227: "INSUFFICIENT_LOADER_VERSION",
    300: "INVALID_SOURCE",
    301: "FILE_NOT_FOUND",
    302: "SHARED_OBJECT_SYMBOL_NOT_FOUND",
    303: "SHARED_OBJECT_INIT_FAILED",
    304: "OPERATING_SYSTEM",
    400: "INVALID_HANDLE",
    401: "ILLEGAL_STATE",
    402: "LOSSY_QUERY",
    500: "NOT_FOUND",
    600: "NOT_READY",
    700: "ILLEGAL_ADDRESS",
    701: "LAUNCH_OUT_OF_RESOURCES",
    702: "LAUNCH_TIMEOUT",
    703: "LAUNCH_INCOMPATIBLE_TEXTURING",
    704: "PEER_ACCESS_ALREADY_ENABLED",
    705: "PEER_ACCESS_NOT_ENABLED",
    708: "PRIMARY_CONTEXT_ACTIVE",
    709: "CONTEXT_IS_DESTROYED",
    710: "ASSERT",
    711: "TOO_MANY_PEERS",
    712: "HOST_MEMORY_ALREADY_REGISTERED",
    713: "HOST_MEMORY_NOT_REGISTERED",
    714: "HARDWARE_STACK_ERROR",
    715: "ILLEGAL_INSTRUCTION",
    716: "MISALIGNED_ADDRESS",
    717: "INVALID_ADDRESS_SPACE",
    718: "INVALID_PC",
    719: "LAUNCH_FAILED",
    720: "COOPERATIVE_LAUNCH_TOO_LARGE",
    721: "TENSOR_MEMORY_LEAK",
    800: "NOT_PERMITTED",
    801: "NOT_SUPPORTED",
    802: "SYSTEM_NOT_READY",
    803: "SYSTEM_DRIVER_MISMATCH",
    804: "COMPAT_NOT_SUPPORTED_ON_DEVICE",
    805: "MPS_CONNECTION_FAILED",
    806: "MPS_RPC_FAILURE",
    807: "MPS_SERVER_NOT_READY",
    808: "MPS_MAX_CLIENTS_REACHED",
    809: "MPS_MAX_CONNECTIONS_REACHED",
    810: "MPS_CLIENT_TERMINATED",
    811: "CDP_NOT_SUPPORTED",
    812: "CDP_VERSION_MISMATCH",
    900: "STREAM_CAPTURE_UNSUPPORTED",
    901: "STREAM_CAPTURE_INVALIDATED",
    902: "STREAM_CAPTURE_MERGE",
    903: "STREAM_CAPTURE_UNMATCHED",
    904: "STREAM_CAPTURE_UNJOINED",
    905: "STREAM_CAPTURE_ISOLATION",
    906: "STREAM_CAPTURE_IMPLICIT",
    907: "CAPTURED_EVENT",
    908: "STREAM_CAPTURE_WRONG_THREAD",
    909: "TIMEOUT",
    910: "GRAPH_EXEC_UPDATE_FAILURE",
    911: "EXTERNAL_DEVICE",
    912: "INVALID_CLUSTER_SIZE",
    913: "FUNCTION_NOT_LOADED",
    914: "INVALID_RESOURCE_TYPE",
    915: "INVALID_RESOURCE_CONFIGURATION",
    916: "KEY_ROTATION",
    917: "STREAM_DETACHED",
    918: "GRAPH_RECAPTURE_FAILURE",
    919: "FABRIC_NOT_READY",
    999: "UNKNOWN",
}


class CudaError(RuntimeError):
    """A CUDA driver call failed, or cannot be made.

    Attributes
    ----------
    code : int
        The driver's ``CUresult``; 0 if no call was made.
    name : str
        Its name in ``cuda.h``, such as ``"CUDA_ERROR_INVALID_VALUE"``; empty if no call was made.
    description : str
        The driver's own text for the code.
    function : str
        The exported name of the driver's function, such as ``"cuMemAlloc_v2"``.

    Examples
    --------
    >>> try:
    ...     cu.device_empty(1 << 60, np.uint8)
    ... except cu.CudaError as error:
    ...     print(error.code, error.name)
    2 CUDA_ERROR_OUT_OF_MEMORY
    """

    code: int
    name: str
    description: str
    function: str

    def __init__(
        self,
        message: str = "",
        code: int = 0,
        name: str = "",
        description: str = "",
        function: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.name = name
        self.description = description
        self.function = function

    def __reduce__(self) -> tuple[Any, ...]:
        message = self.args[0] if self.args else ""
        return type(self), (message, self.code, self.name, self.description, self.function)


class OutOfMemoryError(CudaError, MemoryError):
    """Device memory, or page-locked memory, is used up (``CUDA_ERROR_OUT_OF_MEMORY``)."""


class NotInitializedError(CudaError):
    """The driver is not initialised, or is shutting down."""


class ForkedProcessError(NotInitializedError):
    """The process is a fork of one that had initialised CUDA: the driver cannot be used in it."""


class InvalidContextError(CudaError):
    """A context is closed, reset, or not the one that must be current here."""


class DriverNotFoundError(CudaError, ImportError):  # type: ignore[misc]  # both have `name`
    """No driver library could be opened; the message says where it was looked for."""


class UnsupportedDriverError(CudaError):
    """The driver is too old for what was asked, or is the toolkit's stub library."""


def error_names() -> dict[int, str]:
    """Return the name of every error code of the driver.

    Returns
    -------
    dict of int to str
        Names as in ``cuda.h``, including those that an older driver does not know.

    Notes
    -----
    Calls no CUDA function; `CudaError.code` is a key.

    Examples
    --------
    >>> cu.errors.error_names()[2]
    'CUDA_ERROR_OUT_OF_MEMORY'
    """
    return {0: "CUDA_SUCCESS"} | {code: f"CUDA_ERROR_{name}" for code, name in NAMES.items()}


def simulated_driver_path() -> str:
    """The simulated driver's library file, as it was installed beside this package."""
    folder = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(folder, "libcudriver_sim.so")
    if not os.path.exists(path):
        raise DriverNotFoundError(
            f"the simulated driver (libcudriver_sim.so) is not in {folder}; install cudriver again"
        )
    return path
