"""Host memory that others own: where an array or a buffer has it, and where devices see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cudriver import _core
from cudriver.errors import CudaError
from cudriver.memory.asking import ask
from cudriver.memory.failures import INVALID_VALUE
from cudriver.memory.foreign import view

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cudriver.typing import HostArray

LARGEST = (1 << 63) - 1  # bytes; no process has more


class HostRange(NamedTuple):
    """Memory from the lowest to the highest byte of an array, alive as long as the owner.

    owner: the array, and what keeps a buffer from moving, or None. shown: it as an ndarray. first:
    the address of the first item.
    """

    owner: tuple[HostArray, NDArray[Any] | None]
    shown: NDArray[Any]
    low: int
    first: int
    nbytes: int
    writable: bool


def host_range(array: Any, refusal: str = "expected an array in host memory") -> HostRange:
    """The memory of an ndarray, of a buffer, or of what NumPy's interface or DLPack lends."""
    if isinstance(array, np.ndarray):
        return _of_ndarray(array)
    try:
        shown = view(array)
    except BufferError:  # JAX has no buffer of bfloat16, but lends it
        if not hasattr(array, "__dlpack__"):
            raise
        shown = None
    if shown is not None:
        return _of_ndarray(shown)._replace(owner=(array, shown))
    if isinstance(array, type) or not isinstance(lent := _lent(array), np.ndarray):
        raise TypeError(f"{refusal}, not {type(array).__name__}")
    return _of_ndarray(lent)


def _of_ndarray(array: NDArray[Any]) -> HostRange:
    first: int = array.__array_interface__["data"][0]
    if array.flags.forc:  # dense: the usual case
        return HostRange((array, None), array, first, first, array.nbytes, array.flags.writeable)
    reaches = [
        (length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)
    ]
    low = first + sum(reach for reach in reaches if reach < 0) if array.size else first
    high = first + sum(reach for reach in reaches if reach > 0) + array.itemsize
    nbytes = min(high - low, LARGEST) if array.size else 0
    return HostRange((array, None), array, low, first, nbytes, array.flags.writeable)


def _lent(thing: Any) -> Any:
    """What an object lends by DLPack; None: it lends nothing."""
    if getattr(thing, "requires_grad", False) and hasattr(thing, "detach"):  # PyTorch's
        thing = thing.detach()
    return _core._borrow(thing, True) if hasattr(thing, "__dlpack__") else None


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
    _, _, low, first, nbytes, _ = host_range(array)
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
    return _core.PageLock(*memory.owner, memory.low, memory.nbytes, memory.writable)
