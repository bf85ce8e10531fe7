"""What a Context tells of itself and of its device, and its limits. The core calls most of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, NoReturn, final

from cudriver import _core
from cudriver.errors import CudaError, InvalidContextError
from cudriver.memory import numbers
from cudriver.memory.asking import ask, ask_two
from cudriver.memory.failures import CONTEXT_IS_DESTROYED
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


def memory_info(device: DeviceLike | None = None) -> MemoryInfo:
    """Return the free and total memory of a device.

    Parameters
    ----------
    device : Device or what `Device` takes, optional
        The default is the current context's.

    Returns
    -------
    MemoryInfo
        A named tuple ``(free, total)`` in bytes.

    Raises
    ------
    ValueError
        There is no such device.

    Notes
    -----
    Uses ``cuMemGetInfo`` in the current context if it is the device's, otherwise in the device's
    primary context, which is created if nobody holds it yet.

    Examples
    --------
    >>> free, total = cu.memory_info()
    >>> 0 < free <= total
    True
    """
    return memory_info_of(_core._context_for_use(device))


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
    return MemoryInfo(*ask_two(context, "cuMemGetInfo_v2", repr(context), "Q"))


def stream_priority_range(context: Context) -> StreamPriorityRange:
    answer = ask_two(context, "cuCtxGetStreamPriorityRange", repr(context), "i")
    return StreamPriorityRange(*answer)


def _primary_state(context: Context) -> tuple[int, int]:
    """The flags and whether it exists, of a closed primary context too: it is the device's."""
    device = context.device
    shown = f"device {device.ordinal}"
    return ask_two(None, "cuDevicePrimaryCtxGetState", shown, "I", device._handle)


def exists(context: Context) -> bool:
    if context.is_primary:
        return bool(_primary_state(context)[1])
    if context.closed:
        return False
    try:  # other code may have destroyed it: then the driver crashes in most calls, not in this one
        ask_two(None, "cuCtxGetId", repr(context), "Q", context.handle)
        api_version(context)  # another context may have the handle now
    except CudaError as error:
        return error.code != CONTEXT_IS_DESTROYED
    return True


def flags(context: Context) -> int:
    if context.is_primary:
        return _primary_state(context)[0]
    return int(ask(context, "cuCtxGetFlags", repr(context), "I"))


def api_version(context: Context) -> int:
    return int(ask_two(context, "cuCtxGetApiVersion", repr(context), "I", 0)[0])


CACHE_CONFIGS = ["none", "shared", "l1", "equal"]  # numbered as in cuda.h


def cache_config(context: Context) -> str | int:
    number: int = ask(context, "cuCtxGetCacheConfig", repr(context), "i")
    return CACHE_CONFIGS[number] if 0 <= number < len(CACHE_CONFIGS) else number


def set_cache_config(context: Context, value: object) -> None:
    if not isinstance(value, str) or value not in CACHE_CONFIGS:
        raise ValueError(f"cache_config is 'none', 'shared', 'l1' or 'equal', not {value!r}")
    _core._call(context, "cuCtxSetCacheConfig", value, (CACHE_CONFIGS.index(value),))


def refuse_pop(context: Context, pushed: bool) -> NoReturn:
    """Raise what is current instead of a context that this thread has pushed, or has not."""
    try:
        current = _core.current_context()
    except CudaError:
        why = "a context that was destroyed, by another library or by a reset"
    else:
        rest = "; pop that first" if pushed else ", and the first was not pushed here"
        why = f"{current!r}{rest}"
        if current is None:
            raise InvalidContextError(
                f"cannot pop {context!r}: nothing is current in this thread, so there is nothing "
                "left to pop"
            )
    raise InvalidContextError(f"cannot pop {context!r}: current in this thread is {why}")


def refuse_end(context: Context, call: str, thread: int) -> NoReturn:
    """Refuse a call that ends a context, which is on a thread's stack."""
    try:
        current = _core.current_context()
    except CudaError:
        current = None
    raise InvalidContextError(
        f"cannot {call} {context!r}: it is on the stack of thread {thread} (here {current} is "
        "current); pop it there first"
    )


def refuse_reset(ordinal: int, busy: Context | None) -> NoReturn:
    """Raise what forbids the reset of a device's primary context: a call that runs in a context, or
    else page-locked memory.
    """
    if busy is not None:
        why = f"a call is running in {busy!r}; wait for it first"
    else:
        why = (
            "page-locked memory of arrays, pins or copies is registered in it, or a thread returns "
            "some just now, as trim_host_memory() does; let that go first (see live_allocations())"
        )
    raise InvalidContextError(f"cannot reset the primary context of device {ordinal}: {why}")


def refuse_during_reset(ordinal: int) -> NoReturn:
    raise InvalidContextError(
        f"a thread is resetting the primary context of device {ordinal}: no call may use the "
        "device meanwhile"
    )


def refuse_use(context: Context, reset: bool) -> NoReturn:
    """Raise that a context is closed, or that its handle went with a reset by others."""
    why = (
        "was reset by other code in this process: everything in it is gone; close what you made in "
        "it, then Device.reset_primary_context() begins anew"
        if reset
        else "is closed"
    )
    raise InvalidContextError(f"{context!r} {why}")


def refuse_at_exit(context: Context) -> NoReturn:
    raise InvalidContextError(f"{context!r}: the interpreter is ending")


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
class ContextLimits(Mapping[str, int]):
    """The limits that a Context's device has: a mapping of name to int; assignment sets one."""

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
                found[name] = ask(self._context, "cuCtxGetLimit", name, "Q", number)
            except CudaError as error:
                if error.function != "cuCtxGetLimit":
                    raise
        return found

    def __getitem__(self, name: str, /) -> int:
        number = self._number(name)
        return int(ask(self._context, "cuCtxGetLimit", name, "Q", number))

    def __setitem__(self, name: str, value: int, /) -> None:
        number = self._number(name)
        size = numbers.number(f"the limit {name} is an int from 0 to 2**64 - 1", value)
        _core._call(self._context, "cuCtxSetLimit", f"{name}, {size}", (number, size))

    def __delitem__(self, name: str, /) -> None:
        self._number(name)
        raise TypeError("a limit can be set, not deleted")

    def __contains__(self, name: object, /) -> bool:
        return name in self._read()

    def __len__(self) -> int:
        return len(self._read())

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __repr__(self) -> str:
        if self._context.closed:
            return f"<limits of {self._context!r}>"
        return f"<limits {self._read()!r}>"


def limits(context: Context) -> ContextLimits:
    return ContextLimits(context)


ContextLimits.__module__ = "cudriver"  # as the types of the core say
