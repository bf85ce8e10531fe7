"""Arrays over memory of others that DLPack does not show, and page-locked memory for others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np

from cudriver import _core
from cudriver.memory import dlpack
from cudriver.memory.devices import ordinal_of
from cudriver.memory.foreign import INTERFACE, Placed, address_of
from cudriver.memory.host import is_pinned
from cudriver.memory.making import device_empty
from cudriver.memory.pinned_like import pinned_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike, NDArray

    from cudriver._core import DeviceArray
    from cudriver.typing import (
        DeviceLike,
        ScalarT,
        ShapeLike,
        SupportsCudaArrayInterface,
        SupportsDLPack,
    )


def from_cuda_array_interface(x: SupportsCudaArrayInterface) -> DeviceArray:
    """Return an array over the device memory that an object shows by the CUDA array interface.

    Parameters
    ----------
    x : object with ``__cuda_array_interface__``
        An array of Numba, PyCUDA or OpenCV's ``GpuMat``, ... For arrays that have
        ``__dlpack__``, `from_dlpack` does the same.

    Returns
    -------
    DeviceArray
        It keeps `x` alive, and is read-only if `x` says that it is.

    Raises
    ------
    TypeError
        `x` has no such interface, or one that is masked or wrong.
    ValueError
        The driver knows no such memory, or it ends before the array does.

    Notes
    -----
    Uses ``cuPointerGetAttribute``. If `x` names a stream, its work is waited for.
    Nothing is copied.

    Examples
    --------
    >>> theirs = cu.device_zeros((2, 3), np.float32)  # stands for another library's
    >>> array = cu.from_cuda_array_interface(theirs)
    >>> array[0].fill(1)
    >>> theirs.to_numpy()
    array([[1., 1., 1.],
           [0., 0., 0.]], dtype=float32)
    """
    if isinstance(x, _core.DeviceArray):
        return x[...]
    if isinstance(x, type) or not hasattr(x, INTERFACE):
        other = "; from_dlpack() takes it" if hasattr(x, "__dlpack__") else ""
        raise TypeError(f"{type(x).__name__} has no {INTERFACE}{other}")
    lent: Any = _core._lend(x, False, None)
    return lent if isinstance(lent, _core.DeviceArray) else device_empty(lent.shape, lent.dtype)


@overload
def from_pointer(
    pointer: Any,
    shape: ShapeLike,
    dtype: type[ScalarT] | np.dtype[ScalarT],
    *,
    strides: Sequence[int] | None = None,
    owner: object = None,
    device: DeviceLike | None = None,
) -> DeviceArray[ScalarT]: ...
@overload
def from_pointer(
    pointer: Any,
    shape: ShapeLike,
    dtype: DTypeLike,
    *,
    strides: Sequence[int] | None = None,
    owner: object = None,
    device: DeviceLike | None = None,
) -> DeviceArray: ...
def from_pointer(
    pointer: Any,
    shape: ShapeLike,
    dtype: DTypeLike,
    *,
    strides: Sequence[int] | None = None,
    owner: object = None,
    device: DeviceLike | None = None,
) -> DeviceArray:
    """Return an array over device memory at an address that another library gives.

    Parameters
    ----------
    pointer : int or object
        Address of the first item: an int, a ``CUdeviceptr``, an allocation of PyCUDA's,
        or a ctypes pointer.
    shape : int or sequence of int
        Lengths of the dimensions.
    dtype : dtype_like
        Type of an item.
    strides : sequence of int, optional
        Bytes from one item to the next, for each dimension. The default is C order.
    owner : object, optional
        What keeps the memory alive; the array keeps it. The default is `pointer`, if
        that is an object. For an int without an owner, keep the memory yourself.
    device : Device or what `Device` takes, optional
        Where the memory has to be; another device is an error.

    Returns
    -------
    DeviceArray
        Its `close` lets `owner` go, and frees nothing.

    Raises
    ------
    TypeError
        `pointer` is no address, or the items are Python objects.
    ValueError
        The driver knows no such memory, it ends before the array does, or it is on
        another device.

    Notes
    -----
    Uses ``cuPointerGetAttribute``. Nothing is copied and nothing is waited for: order
    your work behind that of who wrote there.

    Examples
    --------
    >>> theirs = cu.device_zeros(6, np.float32)  # stands for another library's
    >>> array = cu.from_pointer(theirs.pointer, (2, 3), np.float32, owner=theirs)
    >>> array[1].fill(2)
    >>> theirs.to_numpy()
    array([0., 0., 0., 2., 2., 2.], dtype=float32)
    """
    try:
        address = address_of(pointer)
    except TypeError:
        wrong = f"a pointer is an int, or an object with an address, not {pointer!r}"
        raise TypeError(wrong) from None
    if not 0 <= address < 1 << 64:
        raise ValueError(f"{address} is not an address")
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"dtype {kind} holds Python objects, which device memory cannot have")
    lengths = (shape,) if not np.iterable(shape) else tuple(shape)
    keeps = pointer if owner is None and not isinstance(pointer, int) else owner
    try:
        placed = Placed(address, lengths, kind, strides, keeps)
        if placed.geometry.size == 0:
            return device_empty(placed.geometry.shape, kind, device=device)
        if address == 0:
            raise ValueError(f"from_pointer(): an array of shape {placed.geometry.shape} lies at 0")
        lent: Any = _core._lend(placed, False, None)
    except ValueError as error:
        raise ValueError(str(error).replace(f"{Placed.__name__}:", "from_pointer():", 1)) from None
    if device is not None and (there := ordinal_of(device)) != lent.device.ordinal:
        raise ValueError(
            f"the memory at {address:#x} is on device {lent.device.ordinal}, not on {there}"
        )
    made: DeviceArray = lent
    return made


class _PinnedTensor:
    """Page-locked memory as DLPack's kind of it; see `dlpack_pinned`."""

    __slots__ = ("_array",)

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return ``(3, 0)``: page-locked host memory."""
        return dlpack.CUDA_HOST, 0

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a capsule with the memory, or with a page-locked copy of it."""
        return dlpack.export_pinned(
            pinned_array(self._array) if copy else self._array, max_version, dl_device, bool(copy)
        )


def dlpack_pinned(array: NDArray[Any], /) -> SupportsDLPack:
    """Return an object that lends page-locked memory as such, by DLPack.

    Parameters
    ----------
    array : numpy.ndarray
        In page-locked memory: of `pinned_empty`, or while a `pin` of it is open.

    Returns
    -------
    object with ``__dlpack__``
        Its ``__dlpack_device__()`` is ``(3, 0)``, DLPack's kDLCUDAHost: for who asks for
        page-locked memory, as ``jax.dlpack.from_dlpack`` does. An ndarray says that it
        is in ordinary memory, wherever it is.

    Raises
    ------
    TypeError
        It is no ndarray.
    ValueError
        The memory is not all page-locked.

    Examples
    --------
    >>> host = cu.pinned_zeros(3)
    >>> cu.dlpack_pinned(host).__dlpack_device__()
    (3, 0)
    >>> cu.from_dlpack(cu.dlpack_pinned(host)).ctypes.data == host.ctypes.data
    True
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"an ndarray is lent as page-locked memory, not {type(array).__name__}")
    if not is_pinned(array):
        raise ValueError(
            f"the {array.nbytes} bytes at {array.__array_interface__['data'][0]:#x} are not "
            "page-locked: make the array with pinned_empty, or pin() it"
        )
    return _PinnedTensor(array)
