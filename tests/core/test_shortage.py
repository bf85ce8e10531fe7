"""Copies where no further thread can be started, or no page-locked memory can be had."""

from __future__ import annotations

import pytest

from conftest import DRIVER
from program import output

COPY = """
    import ctypes, sys
    import numpy as np
    import cudriver as cu

    lack = sys.argv[1]
    stream, MIB = cu.Stream(), 1 << 20
    source = np.random.default_rng(0).integers(0, 255, 6 * MIB, np.uint8)
    if lack == "memory":
        cu.set_host_memory_limit(4096)
    if lack == "long registrations":  # INVALID_VALUE
        limit = ctypes.CDLL(cu.driver_path()).cudriver_sim_set_registration_limit
        limit(ctypes.c_ulonglong(int(sys.argv[2])))
    cu.copy_async(cu.device_zeros(1000, np.uint8), source[:1000], stream).wait()
    if lack == "threads":
        # The driver's own have started by now; a new thread's stack would be larger than memory.
        libc = ctypes.CDLL(None)
        attributes = ctypes.create_string_buffer(256)
        assert libc.pthread_attr_init(attributes) == 0
        assert libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(1 << 46)) == 0
        assert libc.pthread_setattr_default_np(attributes) == 0

    views = {
        "small": source[:1000],
        "dense": source,
        "just staged": source[: 2 * MIB],
        "strided": source[::2],
        "permuted": source.reshape(2048, 3072).T,
        "rows": source.reshape(1024, -1)[:, :1000],
    }
    for kind, view in views.items():
        back = np.zeros_like(source)
        offset = view.__array_interface__["data"][0] - source.__array_interface__["data"][0]
        hole = np.ndarray(view.shape, np.uint8, back, offset, view.strides)
        for way in ("blocking", "asynchronous"):
            back[...] = 0
            there = cu.device_zeros(view.shape, np.uint8)
            if way == "blocking":
                cu.copy(there, view)
                cu.copy(hole, there)
            else:
                cu.copy_async(there, view, stream)
                cu.copy_async(hole, there, stream).wait()
            assert (hole == view).all() and (there.to_numpy() == view).all(), (kind, way)
            assert back.sum(dtype=int) == view.sum(dtype=int), "nothing else was written"
    print("right")
"""


@pytest.mark.parametrize("lack", ["threads", "memory"])
def test_copies_are_right_without(lack: str) -> None:
    assert output(COPY, lack) == "right\n"


@pytest.mark.skipif(DRIVER == "real", reason="the simulated driver refuses")
@pytest.mark.parametrize("limit", [1, 3 << 20])
def test_copies_are_right_where_a_driver_refuses_long_registrations(limit: int) -> None:
    """With INVALID_VALUE, as was seen of 2 GiB, and now and then of less."""
    assert output(COPY, "long registrations", str(limit)) == "right\n"


ALONE = """
    import atexit, sys, threading, time, signal, os, ctypes
    import numpy as np
    finish = []
    atexit.register(lambda: [act() for act in finish])  # runs after the package's own ending
    import cudriver as cu

    how, kind = sys.argv[1:]
    sim, stream, size = ctypes.CDLL(cu.driver_path()), cu.Stream(), 4 << 20
    sim.cudriver_sim_live.restype = ctypes.c_longlong
    plain = np.ones(size, "u1") if kind == "dense" else np.ones(2 * size, "u1")[::2]
    array = cu.device_zeros(size, "u1")
    array.context.synchronize()
    cu.set_host_memory_limit(4096)  # so that the calling thread copies through a block of 1 MiB
    sim.cudriver_sim_hold()

    def when_it_waits(act):
        def wait():
            while sim.cudriver_sim_live(b"pending") == 0:
                time.sleep(0.01)
            time.sleep(0.2)
            act()
        threading.Thread(target=wait).start()

    def copy():
        try:
            with stream:
                cu.copy(array, plain)
        except cu.CudaError as error:
            print(error.name)
        except KeyboardInterrupt:
            print("interrupted")
        else:
            print("done")

    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)  # it asks for signals while it waits
        sim.cudriver_sim_release()

    if how == "interrupted":
        signal.signal(signal.SIGINT, signal.default_int_handler)
        when_it_waits(interrupt)
        copy()
        print(array[:10].to_numpy().sum(), array[-10:].to_numpy().sum())
    else:
        copying = threading.Thread(target=copy, daemon=True)
        copying.start()
        while sim.cudriver_sim_live(b"pending") == 0:
            time.sleep(0.01)
        finish += sim.cudriver_sim_release, copying.join, sys.stdout.flush
"""


@pytest.mark.skipif(DRIVER == "real", reason="needs the simulated driver, held")
@pytest.mark.parametrize("kind", ["dense", "strided"])
@pytest.mark.parametrize(
    ("how", "end"),
    [("interrupted", "interrupted\n10 0\n"), ("at exit", "CUDA_ERROR_DEINITIALIZED\n")],
)
def test_a_copy_alone_ends_between_its_pieces(how: str, kind: str, end: str) -> None:
    """Whoever asks it to stop waits for one piece, not for the whole."""
    assert output(ALONE, how, kind) == end


WAITING = """
    import ctypes, faulthandler, os, signal, sys, threading
    import numpy as np
    import cudriver as cu

    faulthandler.dump_traceback_later(60, exit=True)
    sim, size = ctypes.CDLL(cu.driver_path()), int(sys.argv[1])
    stream, plain, there = cu.Stream(), np.ones(size, "u1"), cu.device_zeros(size, "u1")
    there.context.synchronize()
    cu.set_host_memory_limit(4096)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sim.cudriver_sim_hold()
    there.fill(5, stream=stream)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        cu.copy_async(there, plain, stream)
    except KeyboardInterrupt:
        print("interrupted")
    sim.cudriver_sim_release()
    stream.synchronize()
    print((there.to_numpy() == 5).all())
"""


@pytest.mark.skipif(DRIVER == "real", reason="needs the simulated driver, held")
@pytest.mark.parametrize("size", [(1 << 16) + 1, 4 << 20])
def test_a_copy_that_has_to_wait_for_its_stream_can_be_interrupted(size: int) -> None:
    """An asynchronous one without slots. It would wait for ever for what this thread does later."""
    assert output(WAITING, str(size)) == "interrupted\nTrue\n"
