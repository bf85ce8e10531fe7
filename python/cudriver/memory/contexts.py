"""What a Context tells of itself and of its device, and its limits. The core calls most of it."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, final

from cudriver import _core
from cudriver.errors import CudaError
from cudriver.memory.named import public

if TYPE_CHECKING:
    from cudriver._core import Context
    from cudriver.typing import DeviceLike


@public
class MemoryInfo(NamedTuple):
    """Free and total bytes of a device's memory."""

    free: int
    total: int


@public
class StreamPriorityRange(NamedTuple):
    """The range of stream priorities of a context: of the lowest one, and of the highest."""

    least: int
    greatest: int


def memory_info() -> MemoryInfo:
    """Return the free and total memory of the current context's device.

    Returns
    -------
    MemoryInfo
        A named tuple ``(free, total)`` in bytes.

    Notes
    -----
    Uses ``cuMemGetInfo``. Where no context is current, device 0's primary context
    becomes it.

    Examples
    --------
    >>> free, total = cu.memory_info()
    >>> 0 < free <= total
    True
    """
    return memory_info_of(_core._context_for_use(None))


def synchronize(device: DeviceLike | None = None) -> None:
    """Wait until all work of a device is over.

    Parameters
    ----------
    device : int, str or Device, optional
        As everywhere; by default the current context's.

    Raises
    ------
    ValueError
        There is no such device.
    CudaError
        Work before it failed, or the wait did.

    Notes
    -----
    Uses ``cuCtxSynchronize`` in the current context if it is the device's, otherwise in the
    device's primary context. Other threads run meanwhile.

    Examples
    --------
    >>> cu.synchronize()
    """
    _core._context_for_use(device).synchronize()


def memory_info_of(context: Context) -> MemoryInfo:
    return MemoryInfo(*_core._query(context, "cuMemGetInfo_v2", repr(context)))


def stream_priority_range(context: Context) -> StreamPriorityRange:
    answer = _core._query(context, "cuCtxGetStreamPriorityRange", repr(context))
    return StreamPriorityRange(*answer)


def _primary_state(context: Context) -> tuple[int, int]:
    """The flags and whether it exists, of a closed primary context too: it is the device's."""
    device = context.device
    state: tuple[int, int] = _core._query(
        None, "cuDevicePrimaryCtxGetState", f"device {device.ordinal}", device._handle
    )
    return state


def exists(context: Context) -> bool:
    return bool(_primary_state(context)[1]) if context.is_primary else not context.closed


def active(context: Context) -> bool:
    warnings.warn("Context.active is called exists", DeprecationWarning, stacklevel=2)
    return exists(context)


def flags(context: Context) -> int:
    if context.is_primary:
        return _primary_state(context)[0]
    value: int = _core._query(context, "cuCtxGetFlags", repr(context))
    return value


def api_version(context: Context) -> int:
    version: int = _core._query(context, "cuCtxGetApiVersion", repr(context))
    return version


CACHE_CONFIGS = ["none", "shared", "l1", "equal"]  # numbered as in cuda.h


def cache_config(context: Context) -> str | int:
    number: int = _core._query(context, "cuCtxGetCacheConfig", repr(context))
    return CACHE_CONFIGS[number] if 0 <= number < len(CACHE_CONFIGS) else number


def set_cache_config(context: Context, value: object) -> None:
    if not isinstance(value, str) or value not in CACHE_CONFIGS:
        raise ValueError(f"cache_config is 'none', 'shared', 'l1' or 'equal', not {value!r}")
    _core._query(context, "cuCtxSetCacheConfig", value, CACHE_CONFIGS.index(value))


# ---- limits --------------------------------------------------------------------------------------

# Names as in cuda.h, without CU_LIMIT_, and their numbers there.
NUMBERS = {
    "stack_size": 0,
    "printf_fifo_size": 1,
    "malloc_heap_size": 2,
    "dev_runtime_sync_depth": 3,
    "dev_runtime_pending_launch_count": 4,
    "max_l2_fetch_granularity": 5,
    "persisting_l2_cache_size": 6,
}


@final
class ContextLimits:
    """The limits of a Context: a mapping of name to int; assignment sets one."""

    __slots__ = ("_context",)

    def __init__(self, context: Context, /) -> None:
        self._context = context

    def _number(self, name: str) -> int:
        if not isinstance(name, str) or name not in NUMBERS:
            raise KeyError(name)
        return NUMBERS[name]

    def _read(self) -> dict[str, int]:
        """The limits that this device supports."""
        found = {}
        for name, number in NUMBERS.items():
            try:
                found[name] = _core._query(self._context, "cuCtxGetLimit", name, number)
            except CudaError as error:
                if error.function != "cuCtxGetLimit":
                    raise
        return found

    def __getitem__(self, name: str, /) -> int:
        number = self._number(name)
        value: int = _core._query(self._context, "cuCtxGetLimit", name, number)
        return value

    def __setitem__(self, name: str, value: int, /) -> None:
        number = self._number(name)
        meaning = f"the limit {name} is an int from 0 to 2**64 - 1, not"
        try:
            size = operator.index(value)
        except TypeError:
            raise TypeError(f"{meaning} {type(value).__name__}") from None
        if not 0 <= size < 1 << 64:
            raise ValueError(f"{meaning} {value}")
        _core._query(self._context, "cuCtxSetLimit", f"{name}, {size}", number, size)

    def __delitem__(self, name: str, /) -> None:
        self._number(name)
        raise TypeError("a limit can be set, not deleted")

    def __len__(self) -> int:
        return len(self._read())

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __repr__(self) -> str:
        if self._context.closed:
            return f"<limits of {self._context!r}>"
        return f"<limits {self._read()!r}>"

    def keys(self) -> list[str]:
        """Return the names of the limits that this device has.

        Returns
        -------
        list of str
            See `Context.limits`.
        """
        return list(self._read())

    def items(self) -> list[tuple[str, int]]:
        """Return the limits that this device has, with their values.

        Returns
        -------
        list of tuple
            Pairs of name and value.

        Notes
        -----
        Uses ``cuCtxGetLimit``.
        """
        return list(self._read().items())


def limits(context: Context) -> ContextLimits:
    return ContextLimits(context)


ContextLimits.__module__ = "cudriver"  # as the types of the core say
