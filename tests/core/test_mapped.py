"""What a copy or a page lock uses stays mapped.

An array that NumPy lays over somebody's buffer holds a reference to it, but no export: its owner
could close it meanwhile. Closing is refused then, as while np.frombuffer() has the buffer.
"""

from __future__ import annotations

import gc
import mmap
import threading
from collections.abc import Callable, Iterator
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudriver as cu
from copykit import wait_for

pytestmark = pytest.mark.usefixtures("no_leaks")
SIZE = 1 << 20

Owner = tuple[Any, Callable[[], None]]  # what lends the buffer, and what would unmap it


@pytest.fixture(params=["shared", "anonymous", "file", "bytearray", "memoryview"])
def owner(request: Any, tmp_path: Path) -> Iterator[Owner]:
    if request.param == "shared":
        region = shared_memory.SharedMemory(create=True, size=SIZE)
        yield region.buf, region.close
        region.unlink()
    elif request.param == "anonymous":
        memory = mmap.mmap(-1, SIZE)
        yield memory, memory.close
    elif request.param == "file":
        path = tmp_path / "weights"
        path.write_bytes(bytes(SIZE))
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), SIZE, flags=mmap.MAP_PRIVATE)
        yield memory, memory.close
    elif request.param == "bytearray":
        data = bytearray(SIZE)
        yield data, data.clear
    else:
        behind = bytearray(SIZE)
        view = memoryview(behind)
        yield view, lambda: (view.release(), behind.clear())[1]


FORMS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda lent: np.ndarray(SIZE, np.uint8, lent),
    "view": lambda lent: np.ndarray((64, SIZE // 64), np.uint8, lent)[::2, 5:500],
    "subclass": lambda lent: np.ndarray(SIZE, np.uint8, lent).view(np.recarray)[100:].view("u1"),
}


def zeros_before(held: Any, shape: Any) -> Any:
    held.release()
    made = cu.device_zeros(shape, np.uint8)
    held.hold()
    return made


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("upwards", [True, False])
def test_memory_of_a_copy_in_flight_cannot_be_closed(
    owner: Owner, held: Any, upwards: bool, form: str
) -> None:
    lent, close = owner
    array = FORMS[form](lent)
    array[...] = 7
    there = zeros_before(held, array.shape)
    stream = cu.Stream()
    transfer = (
        cu.copy_async(there, array, stream) if upwards else cu.copy_async(array, there, stream)
    )
    with pytest.raises(BufferError):
        close()
    held.release()
    transfer.wait()
    assert np.unique(there.to_numpy()).tolist() == ([7] if upwards else [0])
    assert np.unique(array).tolist() == ([7] if upwards else [0])
    del array, lent
    close()  # a Transfer that is over holds nothing


def test_memory_of_many_copies_in_flight_cannot_be_closed(owner: Owner, held: Any) -> None:
    lent, close = owner
    array = np.ndarray((16, SIZE // 16), np.uint8, lent)
    array[...] = np.arange(16)[:, None]
    there = cu.device_empty(array.shape, np.uint8)
    transfer = cu.copy_many_async([there[i] for i in range(16)], list(array), stream=cu.Stream())
    with pytest.raises(BufferError):
        close()
    held.release()
    transfer.wait()
    assert np.array_equal(there.to_numpy(), array)
    del array, lent
    close()


def test_memory_of_a_call_cannot_be_closed(owner: Owner, held: Any) -> None:
    """A blocking copy lets other threads run."""
    lent, close = owner
    array, there = np.ndarray(SIZE, np.uint8, lent), zeros_before(held, SIZE)
    array[...] = 7
    held.reset_counts()
    thread = threading.Thread(target=cu.copy, args=(there, array))
    thread.start()
    wait_for(lambda: held.call_count("cuMemcpyHtoD_v2") > 0, "no copy")
    with pytest.raises(BufferError):
        close()
    held.release()
    thread.join()
    assert np.unique(there.to_numpy()).tolist() == [7]
    del array, lent, thread
    close()


@pytest.mark.parametrize("lock", [cu.pin, cu.pin_async])
@pytest.mark.parametrize("kind", ["array", "buffer"])
def test_page_locked_memory_cannot_be_closed(owner: Owner, lock: Any, kind: str) -> None:
    lent, close = owner
    array = np.ndarray(SIZE, np.uint8, lent) if kind == "array" else lent
    pin = lock(array)
    with pytest.raises(BufferError):
        close()
    pin.close()
    del pin, array, lent
    gc.collect()
    close()


def test_an_array_whose_memory_is_gone_is_refused() -> None:
    memory = mmap.mmap(-1, SIZE)
    array = np.ndarray(SIZE, np.uint8, memory)
    there = cu.device_zeros(SIZE, np.uint8)
    memory.close()
    for call in (
        lambda: cu.copy(there, array),
        lambda: cu.copy(array, there),
        lambda: cu.to_device(array),
        lambda: cu.pin(array),
    ):
        with pytest.raises(ValueError, match="mmap closed"):
            call()


@pytest.mark.parametrize("records", [["x", "y"], ["x"]])
def test_fields_of_records_in_a_buffer_are_refused_likewise(records: list[str]) -> None:
    whole = np.ndarray(10, [("x", "<f4"), ("pad", "<f4"), ("y", "<f4")], bytearray(120))
    part = whole[["x", "y"]]
    with pytest.raises(ValueError, match=r"only the fields \('x', 'y'\)"):
        cu.copy(part, cu.device_zeros(10, part.dtype))


def test_a_registration_is_of_pages_not_of_addresses(driver: Any, sim: Any) -> None:
    """As on an H200: mapped anew at the same addresses, the old bytes arrive."""
    import ctypes

    there = cu.device_zeros(SIZE, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    fixed = 0x10
    at = libc.mmap(None, ctypes.c_size_t(SIZE), 3, 0x21, -1, ctypes.c_long(0))  # shared
    seen = np.ctypeslib.as_array(ctypes.cast(at, ctypes.POINTER(ctypes.c_uint8)), (SIZE,))
    seen[...] = 1
    with cu.pin(seen):
        assert libc.mmap(ctypes.c_void_p(at), ctypes.c_size_t(SIZE), 3, 0x21 | fixed, -1,
                         ctypes.c_long(0)) == at  # fmt: skip
        seen[...] = 2
        cu.copy(there, seen)
        assert np.unique(there.to_numpy()).tolist() == [1]
    cu.copy(there, seen)
    assert np.unique(there.to_numpy()).tolist() == [2]
    del seen
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(SIZE))
