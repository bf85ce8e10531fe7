"""Device, and the ways to name one."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, Self, final
from uuid import UUID

from cudriver import _core
from cudriver.errors import CudaError, InvalidContextError
from cudriver.memory.asking import ROOM, ask
from cudriver.memory.attributes import NUMBERS
from cudriver.memory.contexts import MemoryInfo, memory_info
from cudriver.memory.failures import (
    INVALID_VALUE,
    LOST_HINT,
    NO_DEVICE,
    failure,
    found_again,
    is_lost,
)
from cudriver.memory.names import missing

if TYPE_CHECKING:
    from cudriver._core import Context
    from cudriver.typing import DeviceLike


@final
class Device:
    """One GPU that this process sees.

    Parameters
    ----------
    device : int, str or Device, optional
        An ordinal, a uuid (``"GPU-..."``; its beginning is enough), a PCI bus id
        (``"0000:41:00.0"``), ``"cuda:1"`` or ``"cuda"`` (that of the current
        context), a ``torch.device`` or a ``cuda.core.Device``. The default is
        device 0.

    Raises
    ------
    ValueError
        There is no such device, or the beginning of a uuid fits several.

    Notes
    -----
    Uses ``cuDeviceGet``, ``cuDeviceGetByPCIBusId`` and ``cuDeviceGetUuid``, and
    creates no context. Devices with the same ordinal are equal.

    Examples
    --------
    >>> device = cu.Device(0)
    >>> device == cu.Device(device.uuid) == cu.Device(device.pci_bus_id)
    True
    """

    __slots__ = ("_handle", "_ordinal")

    _handle: int
    _ordinal: int

    def __new__(cls, device: DeviceLike | None = 0) -> Self:
        return cls._of(ordinal_of(device))

    @classmethod
    def _of(cls, ordinal: int) -> Self:
        self = object.__new__(cls)
        self._ordinal, self._handle = ordinal, _handle(ordinal)
        return self

    def _text(self, function: str) -> str:
        shown = f"device {self._ordinal}"
        text: bytes = ask(None, function, shown, f"{ROOM}s", ROOM, self._handle)
        return text.partition(b"\0")[0].decode()

    def _attribute(self, name: str) -> int:
        arguments = f"{name}, device {self._ordinal}"
        return int(ask(None, "cuDeviceGetAttribute", arguments, "i", NUMBERS[name], self._handle))

    @property
    def ordinal(self) -> int:
        """Number in this process's list, from 0."""
        return self._ordinal

    @property
    def name(self) -> str:
        """Name, such as 'NVIDIA H200' (cuDeviceGetName)."""
        return self._text("cuDeviceGetName")

    @property
    def uuid(self) -> str:
        """Uuid as nvidia-smi prints it: 'GPU-' and 36 characters (cuDeviceGetUuid)."""
        newer = _core._driver()[1] >= 11040
        function = "cuDeviceGetUuid_v2" if newer else "cuDeviceGetUuid"
        number: bytes = ask(None, function, f"device {self._ordinal}", "16s", self._handle)
        return f"GPU-{UUID(bytes=number)}"

    @property
    def pci_bus_id(self) -> str:
        """PCI bus id, such as '0000:41:00.0' (cuDeviceGetPCIBusId)."""
        return self._text("cuDeviceGetPCIBusId")

    @property
    def total_memory(self) -> int:
        """Memory in bytes (cuDeviceTotalMem)."""
        arguments = f"device {self._ordinal}"
        return int(ask(None, "cuDeviceTotalMem_v2", arguments, "Q", self._handle))

    @property
    def multiprocessor_count(self) -> int:
        """Number of streaming multiprocessors (cuDeviceGetAttribute)."""
        return self._attribute("multiprocessor_count")

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Compute capability (major, minor), such as (9, 0) (cuDeviceGetAttribute)."""
        major = self._attribute("compute_capability_major")
        return major, self._attribute("compute_capability_minor")

    @property
    def attributes(self) -> Mapping[str, int | None]:
        """Read-only mapping of every attribute of cuda.h: the name behind ``CU_DEVICE_ATTRIBUTE_``
        in lower case, to an int, or None if this driver is too old to know it
        (cuDeviceGetAttribute).
        """
        values: dict[str, int | None] = {}
        for name in NUMBERS:
            try:
                values[name] = self._attribute(name)
            except CudaError as error:
                if error.code != INVALID_VALUE:
                    raise
                values[name] = None
        return MappingProxyType(values)

    def can_access_peer(self, other: DeviceLike, /) -> bool:
        """Return whether this device reaches another one's memory without the host.

        Parameters
        ----------
        other : int, str or Device
            The device that owns the memory.

        Returns
        -------
        bool
            False for the device itself.

        Notes
        -----
        Uses ``cuDeviceCanAccessPeer``.
        """
        peer = _handle(ordinal_of(other))
        if peer == self._handle:
            return False
        arguments = f"devices {self._handle}, {peer}"
        return bool(ask(None, "cuDeviceCanAccessPeer", arguments, "i", self._handle, peer))

    def primary_context(self, flags: int | None = None) -> Context:
        """Return the primary context, which the runtime API and PyTorch use.

        Parameters
        ----------
        flags : int or ContextFlags, optional
            Flags to set first. By default they stay as they are.

        Returns
        -------
        Context
            It stays alive while this object or another owner in the process holds it.

        Raises
        ------
        ValueError
            There are no such flags.
        CudaError
            The driver refuses the flags, or has no memory for the context.

        Notes
        -----
        Uses ``cuDevicePrimaryCtxRetain`` and ``cuDevicePrimaryCtxSetFlags``. The
        context is created if nobody holds it yet. Once a memory call has used it, by
        default or by its `device`, cudriver itself holds it until `Context.close`,
        `reset_primary_context` or exit.

        Examples
        --------
        >>> cu.Device(0).primary_context().is_primary
        True
        """
        if flags is not None:
            number = _flags(flags)
            shown = f"device {self._ordinal}, {number:#x}"
            _core._call(None, "cuDevicePrimaryCtxSetFlags_v2", shown, (self._handle, number))
        return _core._primary_context(self._ordinal)

    def memory_info(self) -> MemoryInfo:
        """Return the free and total memory of the device, as `cudriver.memory_info`.

        Returns
        -------
        MemoryInfo
            A named tuple ``(free, total)`` in bytes.
        """
        return memory_info(self)

    def reset_primary_context(self) -> None:
        """Destroy everything in the primary context, for all libraries of the process.

        Raises
        ------
        InvalidContextError
            Something of cudriver's needs the context: an array, stream or event lives
            in it, page-locked memory in use is registered in it, it is on a thread's
            stack, or a call runs on the device.

        Notes
        -----
        Uses ``cuDevicePrimaryCtxReset``. Free memory of cudriver's pools is returned
        first. After a kernel has failed (``CUDA_ERROR_ILLEGAL_ADDRESS`` and the like),
        the driver makes no new context in this process: the call raises a CudaError
        that says so. Until the reset is over, other threads' calls on the device raise
        InvalidContextError.
        """
        try:
            _core._reset_primary_context(self._ordinal)
        except InvalidContextError as error:
            if not is_lost():
                raise
            raise InvalidContextError(f"{error}; but {LOST_HINT}") from None
        if is_lost():  # the reset itself succeeds
            _core._primary_context(self._ordinal)
            found_again()

    def __eq__(self, other: object) -> bool:
        return self._ordinal == other._ordinal if isinstance(other, Device) else NotImplemented

    def __hash__(self) -> int:
        return self._ordinal

    def __repr__(self) -> str:
        try:
            return f"<Device {self._ordinal}: {self.name}>"
        except CudaError:
            return f"<Device {self._ordinal}>"

    if not TYPE_CHECKING:  # no type checker takes any name for one

        def __getattr__(self, name: str) -> NoReturn:
            missing(self, name)

    def __reduce__(self) -> tuple[type[Device], tuple[str | int]]:
        """A device is a value: its uuid, which is the same in other processes, or its ordinal."""
        try:
            return Device, (self.uuid,)
        except CudaError:
            return Device, (self._ordinal,)

    def __copy__(self) -> Device:
        return self

    def __deepcopy__(self, memo: object) -> Device:
        return self


Device.__module__ = "cudriver"


def device_count() -> int:
    """Return the number of devices that this process sees.

    Returns
    -------
    int
        May be 0.

    Notes
    -----
    Uses ``cuDeviceGetCount``, and creates no context.

    Examples
    --------
    >>> cu.device_count() == len(cu.devices())
    True
    """
    return int(ask(None, "cuDeviceGetCount", "", "i"))


def devices() -> list[Device]:
    """Return all devices that this process sees.

    Returns
    -------
    list of Device
        In the order of their ordinals.

    Notes
    -----
    Uses ``cuDeviceGetCount`` and ``cuDeviceGet``, and creates no context.

    Examples
    --------
    >>> [device.ordinal for device in cu.devices()][0]
    0
    """
    return [Device._of(ordinal) for ordinal in range(device_count())]


def device_at(ordinal: int) -> Device:
    """A device that exists, for the core."""
    return Device._of(ordinal)


def _handle(ordinal: int) -> int:
    """The driver's handle of a device."""
    return int(ask(None, "cuDeviceGet", str(ordinal), "i", ordinal))


def context_arguments(device: Any, flags: Any) -> tuple[int, int]:
    """For the core: the ordinal and the flags that Context() is given."""
    number = _flags(flags)
    return ordinal_of(device), number


def _flags(flags: Any) -> int:
    try:
        number = operator.index(flags)
    except TypeError:
        name = type(flags).__name__
        raise TypeError(f"flags must be an int or a ContextFlags, not {name}") from None
    if not 0 <= number <= 0xFF:
        raise ValueError(f"{flags!r} are not context flags: see ContextFlags")
    return number


# ---- naming one ----------------------------------------------------------------------------------


def ordinal_of(device: Any) -> int:
    """The ordinal of a device that exists, from a `device` argument. Initialises the driver."""
    if device is None:
        return _existing(0)
    if isinstance(device, Device):
        _core.init()
        return device._ordinal
    if isinstance(device, str):
        _core.init()
        return _by_text(device)
    if not isinstance(device, bool):
        try:
            ordinal = operator.index(device)
        except TypeError:  # an array has an index only if it holds one item
            pass
        else:
            return _existing(ordinal, device)
    return _by_object(device)


_count = 0  # of devices, once the driver in use shows some: it stays so


def _existing(ordinal: int, given: object = None) -> int:
    """The ordinal, if there is such a device. given: what the message calls it."""
    global _count
    _core.init()
    count = _count = _count or device_count()
    if count == 0:
        raise failure(NO_DEVICE, "cuDeviceGet", str(ordinal))
    if not 0 <= ordinal < count:
        raise ValueError(f"device {given} does not exist: {_there(count)}, numbered from 0")
    return ordinal


def _there(count: int) -> str:
    return f"there {'is' if count == 1 else 'are'} {count}"


def _by_text(text: str) -> int:
    if text == "cuda":
        return _current()
    if text.startswith("cuda:"):
        digits = text.removeprefix("cuda:")
        if not (digits.isascii() and digits.isdigit()):
            raise ValueError(f"{text!r} is not a CUDA device: expected cuda or cuda:ORDINAL")
        return _existing(int(digits) if len(digits) < 20 else -1, text)
    if "\0" in text:
        raise ValueError(f"{text!r} is not a CUDA device: it has a zero byte")
    if ":" in text:
        return _by_bus(text)
    if len(text) >= 8 if text[:4].upper() == "GPU-" else len(text) == 36:
        return _by_uuid(text)
    raise ValueError(
        f"{text!r} is not a CUDA device: expected an ordinal, cuda:ORDINAL, a uuid "
        "(GPU-xxxxxxxx-...) or a PCI bus id (0000:41:00.0)"
    )


def _current() -> int:
    """The device of this thread's current context; without one, the first."""
    first = _existing(0)
    try:
        current = ask(None, "cuCtxGetDevice", "", "i")
    except CudaError:
        return first
    return next((i for i in range(device_count()) if _handle(i) == current), first)


def _by_uuid(text: str) -> int:
    start = text.lower() if text[:4].upper() == "GPU-" else f"gpu-{text.lower()}"
    fitting = [d._ordinal for d in devices() if d.uuid.lower().startswith(start)]
    if not fitting:
        raise ValueError(f"no device has the uuid {text}; {_there(device_count())} (see devices())")
    if len(fitting) > 1:
        raise ValueError(f"the uuid {text} fits devices {fitting[0]} and {fitting[1]}")
    return fitting[0]


def _by_bus(text: str) -> int:
    try:
        handle = ask(None, "cuDeviceGetByPCIBusId", text, "i", text.encode())
    except CudaError as error:
        raise ValueError(
            f"no device has the PCI bus id {text} (cuDeviceGetByPCIBusId: {error.name})"
        ) from None
    for device in devices():
        if device._handle == handle:
            return device._ordinal
    raise ValueError(f"the device at PCI bus id {text} is not in this process's list")


def _by_object(device: object) -> int:
    """Of another library: torch.device has `type` and `index`, cuda.core.Device `device_id`."""
    missing = object()
    ordinal = getattr(device, "device_id", missing)
    if isinstance(ordinal, int):
        return ordinal_of(ordinal)
    kind = getattr(device, "type", None) if ordinal is missing else None
    if isinstance(kind, str) and hasattr(device, "index"):
        if kind != "cuda":
            raise ValueError(f"{device!r} is not a CUDA device: its type is {kind!r}")
        return ordinal_of("cuda" if device.index is None else f"cuda:{device.index}")
    raise TypeError(
        'a device is an ordinal, a Device, a uuid or a PCI bus id, "cuda:0", a torch.device or a '
        f"cuda.core.Device, not {type(device).__name__}"
    )
