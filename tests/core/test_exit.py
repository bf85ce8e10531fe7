"""The interpreter's exit with everything still alive: exit code 0, and nothing said."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from textwrap import dedent

import pytest

from program import output, run

ALIVE = """
import gc, sys, threading, numpy as np, cudriver as cu
class Node: pass
context = cu.Context(); context.push()
streams = [cu.Stream() for _ in range(3)]
event = cu.Event(timing=True).record(streams[0])
pinned = [cu.pinned_zeros(n) for n in (1, 1000, 1 << 20)]
plain = np.zeros(1 << 18)
pin = cu.pin(plain)
block = cu.pinned_numpy(min_bytes=1); block.__enter__()
numpys = np.zeros(5000)
arrays = [cu.device_zeros(1 << 17) for _ in range(3)]
view = arrays[0][1:]
cycle = Node(); cycle.me = cycle; cycle.things = cu.Stream(), cu.pinned_zeros(50), arrays[1][2:]
primary = cu.Device(0).primary_context()
with primary:
    in_primary = cu.device_zeros(100), cu.Stream(), cu.Event()
limits, plan = context.limits, cu.explain_copy(arrays[0], plain[:1 << 17])
streams[2].__enter__()
"""

IN_FLIGHT = (
    ALIVE
    + """
transfers = [cu.copy_async(arrays[i], pinned[2][:1 << 17], streams[i]) for i in range(3)]
transfers += [cu.copy_async(arrays[i], plain[:1 << 17], streams[i]) for i in range(3)]
transfers += [cu.copy_async(plain[:1 << 17], arrays[i], streams[i]) for i in range(3)]
"""
)


def test_everything_alive() -> None:
    assert output(ALIVE) == ""


def test_copies_in_flight() -> None:
    assert output(IN_FLIGHT, CUDRIVER_SIM_LATENCY_US="3000") == ""


def test_copies_in_flight_and_dropped() -> None:
    assert output(IN_FLIGHT + "del transfers\n", CUDRIVER_SIM_LATENCY_US="3000") == ""


@pytest.mark.parametrize(
    "last",
    [
        "sys.modules.pop('cudriver._core'); sys.modules.pop('cudriver'); del cu; gc.collect()",
        "sys.modules['keep'] = Node(); sys.modules['keep'].things = arrays, streams, pinned, pin",
        "import builtins; builtins.keep = arrays, streams, pinned, pin, context, event",
        "import atexit; atexit.register(lambda: cu.to_device(np.ones(3)).to_numpy())",
        "import atexit; atexit.register(lambda: [arrays.clear(), streams.clear(), pinned.clear()])",
        "import weakref; weakref.finalize(node := Node(), cu.live_allocations)",
        "class Late:\n  def __del__(self): pinned.clear(); arrays.clear()\nlate = Late()",
        "class Late:\n  def __del__(self): cu.pinned_zeros(10)\nlate = Late(); late.cu = cu",
        "del cu.__getattr__; gc.freeze()",
        "sys.exit(0)",
    ],
)
def test_odd_endings(last: str) -> None:
    assert output(IN_FLIGHT + last + "\n") == ""


def test_exception_at_exit_is_the_users_own() -> None:
    done = run(IN_FLIGHT + "raise KeyError('mine')\n")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.rstrip().endswith("KeyError: 'mine'")
    assert done.stderr.count("Traceback") == 1


def test_threads_still_running() -> None:
    program = """
        import threading, time, numpy as np, cudriver as cu
        def work():
            stream, pinned = cu.Stream(), cu.pinned_zeros(10000)
            array = cu.device_zeros(10000)
            while True:
                cu.copy_async(array, pinned, stream).wait()
                cu.copy(array, np.zeros(10000))
                cu.pinned_zeros(5000)
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.3)
    """
    for _ in range(3):
        assert output(program) == ""


def test_the_first_call_in_many_threads_finds_all_of_numpy() -> None:
    """NumPy 1.26 has a module there that other threads see before all its names are set."""
    program = """
        import threading, time, numpy as np, cudriver as cu
        def slowly(frame, event, argument):
            if not frame.f_code.co_filename.endswith("_core/_multiarray_umath.py"):
                return None
            time.sleep(0.0005)
            return slowly
        threading.settrace(slowly)
        threads = [threading.Thread(target=cu.pinned_zeros, args=(9,)) for _ in range(4)]
        for thread in threads:
            thread.start()
            time.sleep(0.05)
        for thread in threads:
            thread.join()
    """
    assert output(program) == ""


# A daemon thread that calls until the process ends.
CALLING = """
calls, array = [0], cu.device_zeros(10)
def work():
    begin()
    while True:
        array.fill(1)
        calls[0] += 1
threading.Thread(target=work, daemon=True).start()
while calls[0] < 10:
    time.sleep(0.001)
"""


def test_no_other_thread_reaches_the_driver_once_the_end_has_begun() -> None:
    program = """
        import atexit, threading, time
        def late():  # runs after the package's own
            before = calls[0]
            time.sleep(0.3)
            print(calls[0] - before <= 1, cu.device_zeros(10).to_numpy().sum())
        atexit.register(late)
        import cudriver as cu
        begin = lambda: None
    """
    assert output(dedent(program) + CALLING) == "True 0.0\n"


def test_a_thread_that_is_held_at_the_end_does_not_end_before_the_process() -> None:
    """What the driver keeps for a thread must not go while the driver itself goes. The end takes
    longer here than a thread is held."""
    program = """
        import atexit, ctypes, threading, time
        def late():  # runs after the package's own, until the thread is held
            before = -1
            while before != calls[0]:
                before = calls[0]
                time.sleep(0.3)
        atexit.register(late)
        import cudriver as cu
        libc, key = ctypes.CDLL(None), ctypes.c_uint()
        leave, sleep = (ctypes.cast(f, ctypes.c_void_p) for f in (libc._exit, libc.sleep))
        assert libc.pthread_key_create(ctypes.byref(key), leave) == 0
        libc.__cxa_atexit(sleep, ctypes.c_void_p(3), None)
        def begin():
            libc.pthread_setspecific(key, ctypes.c_void_p(7))  # at the thread's end: _exit(7)
    """
    assert output(dedent(program) + CALLING) == ""


def test_thread_that_waits_for_ever() -> None:
    """A daemon thread in a wait does not hold the exit up."""
    program = """
        import ctypes, threading, cudriver as cu
        stream, array = cu.Stream(), cu.device_zeros(10)
        if cu.driver_is_simulated():
            ctypes.CDLL(cu.driver_path()).cudriver_sim_set_latency(ctypes.c_ulonglong(200_000))
        array.fill(1, stream=stream)
        started = threading.Event()
        def wait():
            started.set(); stream.synchronize()
        threading.Thread(target=wait, daemon=True).start()
        started.wait()
    """
    assert output(program) == ""


def test_os_exit_and_system_exit() -> None:
    assert run(IN_FLIGHT + "import os; os._exit(5)\n").returncode == 5
    assert run(IN_FLIGHT + "raise SystemExit(6)\n").returncode == 6


def test_import_alone_and_again() -> None:
    assert output("import cudriver._core") == ""
    program = """
        import sys, cudriver as cu
        array = cu.pinned_zeros(10)
        first = sys.modules.pop("cudriver._core")
        import cudriver._core as second
        assert second is not first
        assert second._pinned(5, float, False, -2, True).sum() == 0 == array.sum()
        del array
    """
    assert output(program) == ""


def test_interrupted_from_outside() -> None:
    program = (
        IN_FLIGHT + "print('ready', flush=True)\nwhile True: cu.copy(arrays[0], plain[:1 << 17])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode == -signal.SIGINT


def test_a_copy_that_the_exit_stopped_is_not_done() -> None:
    """Its stream goes on, so the event behind it is reached; the bytes were never sent."""
    program = """
        import ctypes, numpy as np, cudriver as cu
        sim = ctypes.CDLL(cu.driver_path())
        there, plain, stream = cu.device_zeros(1 << 22, "u1"), np.ones(1 << 22, "u1"), cu.Stream()
        sim.cudriver_sim_hold()
        there.fill(2, stream=stream)
        transfer = cu.copy_async(there, plain, stream)
        cu._core._shutdown()
        sim.cudriver_sim_release()
        try:
            transfer.wait()
            print("done")
        except cu.CudaError as error:
            print(error.name)
    """
    assert output(program, CUDRIVER_LIBRARY="sim") == "CUDA_ERROR_DEINITIALIZED\n"
