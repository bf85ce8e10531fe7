"""Copies where no further thread can be started, or no page-locked memory can be had."""

from __future__ import annotations

import pytest

from program import output

COPY = """
    import ctypes, sys
    import numpy as np
    import cudriver as cu

    kind, way, lack = sys.argv[1:]
    stream, MIB = cu.Stream(), 1 << 20
    source = np.random.default_rng(0).integers(0, 255, 16 * MIB, np.uint8)
    if lack == "memory":
        cu.set_host_memory_limit(4096)
    cu.copy_async(cu.device_zeros(1000, np.uint8), source[:1000], stream).wait()
    if lack == "threads":
        # The driver's own have started by now; a new thread's stack would be larger than memory.
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
    }[kind]
    back = np.zeros_like(source)
    offset = view.__array_interface__["data"][0] - source.__array_interface__["data"][0]
    hole = np.ndarray(view.shape, np.uint8, back, offset, view.strides)
    there = cu.device_zeros(view.shape, np.uint8)
    if way == "blocking":
        cu.copy(there, view)
        cu.copy(hole, there)
    else:
        cu.copy_async(there, view, stream)
        cu.copy_async(hole, there, stream).wait()
    assert (hole == view).all() and (there.to_numpy() == view).all()
    assert back.sum(dtype=int) == view.sum(dtype=int), "nothing else was written"
    print("right")
"""


@pytest.mark.parametrize("lack", ["threads", "memory"])
@pytest.mark.parametrize("way", ["blocking", "asynchronous"])
@pytest.mark.parametrize("kind", ["small", "dense", "just staged", "strided", "permuted", "rows"])
def test_copies_are_right_without(kind: str, way: str, lack: str) -> None:
    assert output(COPY, kind, way, lack) == "right\n"
