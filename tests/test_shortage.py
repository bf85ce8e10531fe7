"""Copies where no further thread can be started, as under a limit of processes."""

from __future__ import annotations

import pytest

from program import output

# The driver's own threads have started by then; a new thread's stack would be larger than memory.
NO_THREADS = """
    import ctypes, sys
    import numpy as np
    import cudriver as cu

    stream, MIB = cu.Stream(), 1 << 20
    source = np.random.default_rng(0).integers(0, 255, 16 * MIB, np.uint8)
    cu.copy_async(cu.device_zeros(1000, np.uint8), source[:1000], stream).wait()
    libc = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(256)
    assert libc.pthread_attr_init(attributes) == 0
    assert libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(1 << 46)) == 0
    assert libc.pthread_setattr_default_np(attributes) == 0

    view = {
        "small": source[:1000],
        "dense": source,
        "just staged": source[: 2 * MIB],
        "strided": source[::2],
        "permuted": source.reshape(4096, 4096).T,
        "rows": source.reshape(1024, -1)[:, :1000],
    }[sys.argv[1]]
    back = np.zeros_like(source)
    offset = view.__array_interface__["data"][0] - source.__array_interface__["data"][0]
    hole = np.ndarray(view.shape, np.uint8, back, offset, view.strides)
    there = cu.device_zeros(view.shape, np.uint8)
    if sys.argv[2] == "blocking":
        cu.copy(there, view)
        cu.copy(hole, there)
    else:
        cu.copy_async(there, view, stream)
        cu.copy_async(hole, there, stream).wait()
    assert (hole == view).all() and (there.to_numpy() == view).all()
    assert back.sum(dtype=int) == view.sum(dtype=int), "nothing else was written"
    print("right")
"""


@pytest.mark.parametrize("way", ["blocking", "asynchronous"])
@pytest.mark.parametrize(
    "kind", ["small", "dense", "just staged", "strided", "permuted", "rows"]
)  # fmt: skip
def test_copies_are_right_without_threads(kind: str, way: str) -> None:
    assert output(NO_THREADS, kind, way) == "right\n"
