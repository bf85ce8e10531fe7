"""What a type checker knows of arrays: test_types.py checks it with mypy, and runs it."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import cudriver as cu
import cudriver.typing as cut

F4 = np.float32
host: NDArray[np.float32] = np.arange(6, dtype=F4)
there = cu.to_device(host, device=0)

# Page-locked arrays.
assert_type(cu.pinned_empty((3, 4), F4), NDArray[np.float32])
assert_type(cu.pinned_empty(3, np.dtype(F4), "F"), NDArray[np.float32])
assert_type(cu.pinned_zeros(3, dtype=F4), NDArray[np.float32])
assert_type(cu.pinned_zeros(3), NDArray[np.float64])
assert_type(cu.pinned_zeros(3, float), NDArray[np.float64])
assert_type(cu.pinned_zeros(3, "f4"), NDArray[Any])
assert_type(cu.pinned_full(3, 1, F4), NDArray[np.float32])
assert_type(cu.pinned_empty_like(host), NDArray[np.float32])
assert_type(cu.pinned_empty_like(host, np.int8), NDArray[np.int8])
assert_type(cu.pinned_zeros_like(host), NDArray[np.float32])
assert_type(cu.pinned_zeros_like(host, np.int8), NDArray[np.int8])
assert_type(cu.pin_async(host).array, NDArray[np.float32])
assert_type(cu.pinned_empty_async(3).array, NDArray[np.float64])
assert_type(cu.pinned_empty_async(3, np.int8), cut.Pinning[NDArray[np.int8]])
shared = cu.SharedMemory.anonymous(100)
assert_type(shared, cu.SharedMemory)
assert_type(shared.array(3), NDArray[np.float64])
assert_type(shared.array(3, F4, 8), NDArray[np.float32])
assert_type(shared.array(3, "f4"), NDArray[Any])
assert_type(cu.pinned_array(host), NDArray[np.float32])
assert_type(cu.pinned_array([1, 2], np.int8), NDArray[np.int8])
assert_type(cu.pinned_array([1, 2]), NDArray[Any])

# None is NumPy's default, and NumPy's integers are numbers.
some = np.int64(100)
assert_type(cu.pinned_empty(3, None), NDArray[np.float64])
assert_type(cu.pinned_empty_async(3, None).array, NDArray[np.float64])
assert_type(cu.device_zeros(3, None), cu.DeviceArray[np.float64])
assert_type(cu.SharedMemory.anonymous(some).array(some // 10, np.int8, some // 2), NDArray[np.int8])
cu.set_host_memory_limit(some << 30)
cu.set_host_memory_limit(None)
cu.set_host_memory_policy(numa=some - some)
cu.set_host_memory_policy()
cu.set_host_memory_policy(copy_threads=some)
cu.set_host_memory_policy(copy_threads=None)
cu.trim_host_memory(some)
cu.pinned_numpy(min_bytes=some)

# Device arrays.
assert_type(there, cu.DeviceArray[np.float32])
assert_type(cu.to_device([1, 2]), cu.DeviceArray[Any])
assert_type(cu.to_device(there), cu.DeviceArray[np.float32])
assert_type(cu.device_empty(3, F4), cu.DeviceArray[np.float32])
assert_type(cu.device_zeros(3, F4, device=0), cu.DeviceArray[np.float32])
assert_type(cu.device_zeros(3), cu.DeviceArray[np.float64])
assert_type(cu.device_zeros(3, "f4"), cu.DeviceArray[Any])
assert_type(cu.device_zeros(3, F4, "F"), cu.DeviceArray[np.float32])
assert_type(cu.device_full(3, 1, F4), cu.DeviceArray[np.float32])
assert_type(cu.device_full(3, 1), cu.DeviceArray[Any])
assert_type(cu.device_empty_like(there), cu.DeviceArray[np.float32])
assert_type(cu.device_empty_like(host, np.int8, "C"), cu.DeviceArray[np.int8])
assert_type(there.dtype, "np.dtype[np.float32]")

# Views and copies keep the type.
assert_type(there[1:], cu.DeviceArray[np.float32])
assert_type(there[None, ::2], cu.DeviceArray[np.float32])
assert_type(there.T, cu.DeviceArray[np.float32])
assert_type(there.transpose(), cu.DeviceArray[np.float32])
assert_type(there.reshape(2, 3), cu.DeviceArray[np.float32])
assert_type(there.reshape((2, 3), order="F"), cu.DeviceArray[np.float32])
assert_type(there.copy(), cu.DeviceArray[np.float32])
assert_type(there.view(np.int32), cu.DeviceArray[np.int32])
assert_type(there.view("i4"), cu.DeviceArray[Any])

# Back to the host, and other libraries.
stream = cu.Stream()
assert_type(there.to_numpy(), NDArray[np.float32])
assert_type(there.to_numpy(stream=stream), NDArray[np.float32])
assert_type(there.to_numpy(host, stream=stream), NDArray[np.float32])
assert_type(cu.from_dlpack(there), cu.DeviceArray[np.float32])
assert_type(cu.from_dlpack(there, device="cpu"), NDArray[np.float32])
assert_type(cu.from_dlpack(host), NDArray[np.float32])
assert_type(cu.from_dlpack(host, device=0), cu.DeviceArray[np.float32])
assert_type(cu.copy_async(there, host), cu.Transfer)


def of_any_type(array: cu.DeviceArray) -> int:
    """Without a parameter, a DeviceArray has items of any type."""
    return array.nbytes


assert of_any_type(there) == 24


class TheirStream:
    """A stream of another library."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, stream.handle)


class TheirArray:
    """A host array of another library that has DLPack alone, as PyTorch's tensors."""

    memory = np.arange(6, dtype=F4)

    def __dlpack__(self, *, stream: int | None = None, **more: Any) -> Any:
        return self.memory.__dlpack__(**more)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.memory.__dlpack_device__()


theirs = TheirArray()
with cu.pin(theirs):
    assert cu.is_pinned(theirs)
    assert cu.mapped_pointer(theirs)
assert_type(cu.pin_async(theirs).array, TheirArray)
assert_type(there.to_numpy(theirs), TheirArray)
assert_type(cu.from_dlpack(x=there), cu.DeviceArray[np.float32])


def upload(
    array: cut.HostArray,
    stream: cut.StreamLike | None = None,
    device: cut.DeviceLike | None = None,
    shape: cut.ShapeLike = -1,
) -> cu.DeviceArray:
    """A function of a user's, which passes on what it is given."""
    target: cut.AnyArray = cu.to_device(array, stream=stream, device=device)
    cu.copy(target, array)
    return cu.from_dlpack(target).reshape(shape) if isinstance(target, cu.DeviceArray) else there


assert upload(host, stream).shape == upload(theirs).shape == (6,)
assert upload(memoryview(b"abc"), TheirStream(), cu.Device(0), (3, 1)).shape == (3, 1)
