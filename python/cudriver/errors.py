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
]


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


def simulated_driver_path() -> str:
    """The simulated driver's library file, as it was installed beside this package."""
    folder = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(folder, "libcudriver_sim.so")
    if not os.path.exists(path):
        raise DriverNotFoundError(
            f"the simulated driver (libcudriver_sim.so) is not in {folder}; install cudriver again"
        )
    return path
