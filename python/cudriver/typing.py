"""Types for annotations: what the functions of this package take, and what some return.

As `numpy.typing` does, this module names what a parameter may be, so that functions of yours which
pass arrays, streams or devices on can say so. What functions return and nobody makes, named tuples
and `Pinning`, has its names here, too. Nothing else imports it at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudriver._core import DeviceArray, Event, Stream
from cudriver.memory.arrays import ArrayFlags
from cudriver.memory.contexts import MemoryInfo, StreamPriorityRange
from cudriver.memory.copies import CopyPlan
from cudriver.memory.devices import Device
from cudriver.memory.driver import DriverVersion
from cudriver.memory.live import Allocation
from cudriver.memory.pinning import Pinning
from cudriver.memory.pool import HostMemoryStats

if TYPE_CHECKING:  # its `default` came to Python's own with 3.13
    from typing_extensions import TypeVar

    ScalarT = TypeVar("ScalarT", bound=np.generic)
    ScalarT_co = TypeVar("ScalarT_co", bound=np.generic, covariant=True, default=Any)
    HostArrayT = TypeVar("HostArrayT", bound="HostArray")

__all__ = [
    "Allocation",
    "AnyArray",
    "ArrayFlags",
    "BasicIndex",
    "CopyPlan",
    "DeviceLike",
    "DriverVersion",
    "EventLike",
    "HasCudaEvent",
    "HasCudaStream",
    "HasDeviceId",
    "HasHandle",
    "HasPtr",
    "HasTypeAndIndex",
    "HostArray",
    "HostMemoryStats",
    "MemoryInfo",
    "NumaLike",
    "Pinning",
    "ShapeLike",
    "StreamLike",
    "StreamPriorityRange",
    "SupportsArrayInterface",
    "SupportsArrayStruct",
    "SupportsBuffer",
    "SupportsCudaArrayInterface",
    "SupportsCudaStream",
    "SupportsDLPack",
]


# ---- arrays --------------------------------------------------------------------------------------


class SupportsCudaArrayInterface(Protocol):
    """Device memory with ``__cuda_array_interface__``, as arrays of CuPy, Numba and PyTorch."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Address, shape, strides, type and stream."""


class SupportsDLPack(Protocol):
    """Memory of a host or a device with ``__dlpack__``, as arrays of most libraries."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        """Return a capsule of the tensor."""

    def __dlpack_device__(self) -> tuple[Any, int]:
        """Return the kind of device and its number."""


class SupportsBuffer(Protocol):
    """Host memory with the buffer protocol: bytes, memoryview, mmap, shared memory."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """Return a view of the memory."""


class SupportsArrayInterface(Protocol):
    """Host memory with ``__array_interface__``, which NumPy takes."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Address, shape, strides and type."""


class SupportsArrayStruct(Protocol):
    """Host memory with ``__array_struct__``, which NumPy takes."""

    @property
    def __array_struct__(self) -> Any:
        """A capsule of a PyArrayInterface."""


HostArray: TypeAlias = (
    NDArray[Any] | SupportsBuffer | SupportsArrayInterface | SupportsArrayStruct | SupportsDLPack
)
"""An array in host memory, of NumPy or of what else NumPy takes without a copy. DLPack's protocol
is that of device memory, too: where an array lies shows when it is used.
"""

AnyArray: TypeAlias = HostArray | DeviceArray | SupportsCudaArrayInterface
"""An array in host or device memory, of any library, as `cudriver.copy` takes it."""

NumaLike: TypeAlias = Literal["policy", "device"] | SupportsIndex | None
"""A NUMA node: by name, by number, or any."""

ShapeLike: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
"""The lengths of the dimensions, or one int."""

BasicIndex: TypeAlias = SupportsIndex | slice | EllipsisType | None
"""An index along one axis of a DeviceArray; NumPy's basic indexing takes one or a tuple."""


# ---- streams and events --------------------------------------------------------------------------


class SupportsCudaStream(Protocol):
    """A stream with ``__cuda_stream__``, as those of cuda-core."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the protocol's version and the handle."""


class HasCudaStream(Protocol):
    """A stream of PyTorch."""

    @property
    def cuda_stream(self) -> int:
        """The handle."""


class HasCudaEvent(Protocol):
    """An event of PyTorch."""

    @property
    def cuda_event(self) -> int:
        """The handle."""


class HasPtr(Protocol):
    """A stream or event of CuPy; its class must be called Stream or Event."""

    @property
    def ptr(self) -> int:
        """The handle."""


class HasHandle(Protocol):
    """A stream or event of Numba, PyCUDA or cuda-core, whose class must be called so."""

    @property
    def handle(self) -> Any:
        """The handle."""


StreamLike: TypeAlias = Stream | SupportsCudaStream | HasCudaStream | HasPtr | HasHandle
"""A stream of this package, PyTorch, CuPy, Numba, PyCUDA, cuda-core."""

EventLike: TypeAlias = Event | HasCudaEvent | HasPtr | HasHandle
"""An event of this package, PyTorch, CuPy, Numba, PyCUDA, cuda-core."""


# ---- devices -------------------------------------------------------------------------------------


class HasTypeAndIndex(Protocol):
    """A ``torch.device``."""

    @property
    def type(self) -> str:
        """``"cuda"``."""

    @property
    def index(self) -> int | None:
        """The number of the device; None for that of the current context."""


class HasDeviceId(Protocol):
    """A ``cuda.core.Device``."""

    @property
    def device_id(self) -> int:
        """The number of the device."""


DeviceLike: TypeAlias = SupportsIndex | str | Device | HasTypeAndIndex | HasDeviceId
"""A device, or what `cudriver.Device` takes, such as 0, ``"cuda:1"``, a uuid, a torch.device."""
