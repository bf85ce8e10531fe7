"""Host memory that others own: where an array or a buffer has it, and where devices see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cudriver import _core
from cudriver.errors import CudaError
from cudriver.memory.asking import ask
from cudriver.memory.failures import INVALID_VALUE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cudriver.typing import HostArray

LARGEST = (1 << 63) - 1  # bytes; no process has more


class HostRange(NamedTuple):
    """Memory from the lowest to the highest byte of an array.

    shown: it as an ndarray, which keeps the memory where it is. first: the address of the first
    item.
    """

    shown: NDArray[Any]
    low: int
    first: int
    nbytes: int


def host_range(array: Any, refusal: str = "expected an array in host memory") -> HostRange:
    """The memory of what `copy` takes for an array on the host, also if that is read-only."""
    shown = _core._lend(array, True, None)
    if not isinstance(shown, np.ndarray):
        raise TypeError(f"{refusal}, not {type(array).__name__}")
    first: int = shown.__array_interface__["data"][0]
    if shown.flags.forc:  # dense: the usual case
        return HostRange(shown, first, first, shown.nbytes)
    reaches = [
        (length - 1) * stride for length, stride in zip(shown.shape, shown.strides, strict=True)
    ]
    low = first + sum(reach for reach in reaches if reach < 0) if shown.size else first
    high = first + sum(reach for reach in reaches if reach > 0) + shown.itemsize
    return HostRange(shown, low, first, min(high - low, LARGEST) if shown.size else 0)


def is_pinned(array: HostArray, /) -> bool:
    """Return whether all of an array's memory is page-locked.

    Parameters
    ----------
    array : array
        Any array in host memory that `copy` takes.

    Returns
    -------
    bool
        True if the driver knows the memory as page-locked, by whichever library.
        False where there is no driver, and in a forked child.

    Notes
    -----
    Uses ``cuPointerGetAttribute``, and creates no context.

    Examples
    --------
    >>> cu.is_pinned(np.empty(10)), cu.is_pinned(cu.pinned_empty(10))
    (False, True)
    """
    memory = host_range(array)
    return _core._is_page_locked(memory.low, max(memory.nbytes, 1))


def mapped_pointer(array: HostArray, /) -> int:
    """Return the device address of an array in page-locked memory.

    Parameters
    ----------
    array : numpy.ndarray, or what else has host memory
        For example of `pinned_empty`.

    Returns
    -------
    int
        The address of the first item (``CUdeviceptr``), in the current context.

    Raises
    ------
    ValueError
        The memory is not page-locked, or not all of it is.

    Notes
    -----
    Uses ``cuMemHostGetDevicePointer`` and ``cuPointerGetAttribute``.

    Examples
    --------
    >>> array = cu.pinned_empty(10)
    >>> cu.mapped_pointer(array[1:]) - cu.mapped_pointer(array)
    8
    """
    _, low, first, nbytes = host_range(array)
    wrong = "not all page-locked"
    try:
        address: int = ask(
            _core._context_for_use(None), "cuMemHostGetDevicePointer_v2", f"{low:#x}", "Q", low, 0
        )
        if _core._is_page_locked(low, max(nbytes, 1)):  # the driver looks at the first byte alone
            return address + first - low
    except CudaError as error:
        if error.code != INVALID_VALUE:
            raise
        wrong = "not page-locked"
    raise ValueError(
        f"{nbytes} bytes at {low:#x} are {wrong}: make the array with pinned_empty, or pin() it"
    )


def page_lock(array: HostArray) -> _core.PageLock:
    """A page lock on an array's memory, behind `pin` and `Pinning`: closed until its `lock`."""
    memory = host_range(array, "only an array in host memory can be page-locked")
    if (dtype := memory.shown.dtype).hasobject:
        raise TypeError(
            f"dtype {dtype} holds Python objects, which have no place in memory that a device reads"
        )
    return _core.PageLock(
        array, memory.shown, memory.low, memory.nbytes, memory.shown.flags.writeable
    )
