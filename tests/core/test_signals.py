"""Ctrl-C in waits that last: the exception comes soon, the work goes on, its memory stays."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from program import output

pytestmark = [
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.skipif(
        threading.current_thread() is not threading.main_thread(),
        reason="signals are handled in the main thread",
    ),
]

#: The simulator holds the work back for ever; whoever waits on regardless is stopped by this.
LATEST = 60.0


#: Calls of which a wait makes many, and whatever comes before it few.
ASKING = ("cuStreamQuery", "cuEventQuery")


def during(soon: threading.Thread, call: Callable[[], Any]) -> None:
    """Calls with the thread started: in pytest.raises(), so that a signal never comes outside."""
    soon.start()
    call()


@pytest.fixture
def interrupted(sim):
    """Sends SIGINT while `call` waits for work that is held; releases the work afterwards."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)

    def asked() -> int:
        return sum(map(sim.call_count, ASKING))

    def send(enough: int, until: float) -> None:
        while asked() < enough and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    def run(call: Callable[[], Any]) -> None:
        late = threading.Timer(LATEST, sim.release)
        soon = threading.Thread(target=send, args=(asked() + 20, time.monotonic() + LATEST / 2))
        late.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                during(soon, call)
            assert late.is_alive(), "the wait ended only when the work did"
        finally:
            late.cancel()
            soon.join()
            late.join()

    yield run
    sim.release()
    signal.signal(signal.SIGINT, previous)


@pytest.fixture
def held(cu, sim):
    """A stream with a copy that is held, and the copy's Transfer and ends."""
    stream = cu.Stream()
    pinned, array = cu.pinned_full(1000, 7, "u1"), cu.device_zeros(1000, "u1")
    sim.hold()
    things = [stream, cu.copy_async(array, pinned, stream), array]
    del stream, array, pinned
    yield things
    sim.release()
    things[0].synchronize()
    things.clear()


def test_transfer_wait(cu, sim, interrupted, held) -> None:
    _, transfer, array = held
    interrupted(transfer.wait)
    assert not transfer.done
    sim.release()
    transfer.wait()
    assert (array.to_numpy() == 7).all(), "the copy went on"


def test_transfer_wait_while_the_driver_does_not_tell(cu, sim, interrupted) -> None:
    """As while another thread captures a graph."""
    pinned, array = cu.pinned_full(1000, 7, "u1"), cu.device_zeros(1000, "u1")
    sim.hold()
    for call in ("cuEventQuery", "cuStreamQuery", "cuStreamSynchronize"):
        sim.fail(f"{call}:*:906")
    transfer = cu.copy_async(array, pinned, None)
    interrupted(transfer.wait)
    assert not transfer.done
    sim.clear_faults()
    sim.release()
    transfer.wait()
    assert (array.to_numpy() == 7).all(), "the copy went on"


def test_a_copy_that_nobody_is_told_the_end_of() -> None:
    """Where no event can be recorded, the call waits. Interrupted, it keeps what the copy uses."""
    program = """
        import ctypes, gc, os, signal, sys, threading, weakref, cudriver as cu
        pinned, array = cu.pinned_full(1000, 7, "u1"), cu.device_zeros(1000, "u1")
        sim, gone = ctypes.CDLL(cu.driver_path()), weakref.ref(pinned)
        large = cu.device_zeros(1 << 18)
        sim.cudriver_sim_hold()
        earlier = cu.copy_async(large, cu.pinned_zeros(1 << 18), None)  # the next copy asks for it
        known = sys.getrefcount(earlier)
        sim.cudriver_sim_fail(
            b"cuEventRecord:*:906,cuStreamQuery:*:906,cuStreamSynchronize:*:906"
        )
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            cu.copy_async(array, pinned, None)
        except KeyboardInterrupt:
            print("interrupted")
        del pinned
        gc.collect()
        print(gone() is not None, sys.getrefcount(earlier) - known)
        sim.cudriver_sim_clear_faults()
        sim.cudriver_sim_release()
        print((array.to_numpy() == 7).all())
    """
    assert output(program, CUDRIVER_LIBRARY="sim").split() == ["interrupted", "True", "0", "True"]


def test_stream_and_event_synchronize(cu, sim, interrupted, held) -> None:
    stream, transfer, array = held
    event = stream.record()
    interrupted(stream.synchronize)
    interrupted(event.synchronize)
    assert not event.done
    sim.release()
    stream.synchronize()
    assert transfer.done
    assert (array.to_numpy() == 7).all()


def test_context_synchronize(cu, sim, interrupted, held) -> None:
    stream, transfer, array = held
    interrupted(stream.context.synchronize)
    assert not transfer.done
    sim.release()
    stream.context.synchronize()
    assert transfer.done
    assert (array.to_numpy() == 7).all()


def test_context_synchronize_behind_another_librarys_work(cu, sim, interrupted) -> None:
    library, array = ctypes.CDLL(cu.driver_path()), cu.device_zeros(1000, "u1")
    context = array.context
    sim.hold()
    assert library.cuMemsetD8Async(ctypes.c_uint64(array.pointer), 7, 1000, None) == 0
    interrupted(context.synchronize)
    sim.release()
    context.synchronize()
    assert (array.to_numpy() == 7).all()


def test_context_synchronize_behind_another_librarys_work_on_our_stream(cu, interrupted) -> None:
    """The default stream, which does not wait for that one, is idle."""
    library, stream, go_on = ctypes.CDLL(cu.driver_path()), cu.Stream(), threading.Event()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def pause(_: object) -> None:
        go_on.wait(2 * LATEST)

    assert library.cuLaunchHostFunc(ctypes.c_void_p(stream.handle), pause, None) == 0
    interrupted(stream.context.synchronize)
    assert not stream.done
    go_on.set()
    stream.context.synchronize()
    assert stream.done


def test_blocking_copy_behind_a_streams_work(cu, sim, interrupted, held) -> None:
    stream, _, array = held
    out = np.zeros(1000, "u1")
    pinned, other = cu.pinned_zeros(1000, "u1"), cu.device_zeros(1000, "u1", stream=stream)
    with stream:
        interrupted(lambda: cu.copy(pinned, array))
        interrupted(lambda: cu.copy(out, array))
        interrupted(lambda: cu.copy(other, array))
    assert not out.any()
    sim.release()
    stream.synchronize()
    assert (array.to_numpy() == 7).all()


#: Blocking calls on the default stream: (array, other, pinned, plain), each of 1 MiB.
BLOCKING: dict[str, Callable[..., None]] = {
    "up": lambda cu, a, b, p, h: cu.copy(a, h),
    "small up": lambda cu, a, b, p, h: cu.copy(a[:100], h[:100]),
    "page-locked up": lambda cu, a, b, p, h: cu.copy(a, p[: 1 << 19]),
    "small page-locked up": lambda cu, a, b, p, h: cu.copy(a[:100], p[:100]),
    "rows up": lambda cu, a, b, p, h: cu.copy(a.reshape(-1, 512), p.reshape(-1, 1024)[:, :512]),
    "items up": lambda cu, a, b, p, h: cu.copy(a[:1000], h[:2000:2]),
    "down": lambda cu, a, b, p, h: cu.copy(h, a),
    "page-locked down": lambda cu, a, b, p, h: cu.copy(p[: 1 << 19], a),
    "on the device": lambda cu, a, b, p, h: cu.copy(a, b),
    "rows on the device": lambda cu, a, b, p, h: cu.copy(
        a.reshape(-1, 1024)[:, :64], b.reshape(-1, 1024)[:, :64]
    ),
    "items on the device": lambda cu, a, b, p, h: cu.copy(a[::2], b[1::2]),
    "overlapping": lambda cu, a, b, p, h: cu.copy(a[1:], a[:-1]),
    "fill": lambda cu, a, b, p, h: a.fill(3),
    "fill of items": lambda cu, a, b, p, h: a[::2].fill(3),
}


#: Of these, what the copy is issued of before its stream is idle, and how much the copy writes.
QUEUED = {
    "page-locked up": ("array", 1, 1 << 19),
    "small page-locked up": ("array", 1, 100),
    "page-locked down": ("pinned", 7, 1 << 19),
    "on the device": ("array", 0, 1 << 19),
}


@pytest.mark.parametrize("what", BLOCKING)
def test_blocking_call_behind_another_librarys_work(cu, sim, interrupted, what) -> None:
    """Either nothing was issued that would need the arrays later, or the copy goes on."""
    size, library = 1 << 19, ctypes.CDLL(cu.driver_path())
    array, other = cu.device_zeros(size, "u1"), cu.device_zeros(size, "u1")
    pinned, plain = cu.pinned_full(2 * size, 1, "u1"), np.full(size, 1, "u1")
    BLOCKING[what](cu, array, other, pinned, plain)  # kernels are loaded, slots are there
    array.fill(0)
    array.context.synchronize()
    sim.hold()
    assert library.cuMemsetD8Async(ctypes.c_uint64(array.pointer), 7, size, None) == 0
    pinned[:], plain[:] = 1, 1
    interrupted(lambda: BLOCKING[what](cu, array, other, pinned, plain))
    sim.release()
    array.context.synchronize()
    found = {"array": array.to_numpy(), "pinned": pinned, "plain": plain}
    written, value, most = QUEUED.get(what, ("plain", 1, 0))
    for name, old in ("array", 7), ("pinned", 1), ("plain", 1):
        assert (found[name][most if name == written else 0 :] == old).all()
    assert (found[written][:most] == value).all()


@pytest.mark.parametrize("what", ["page-locked up", "page-locked down", "down", "on the device"])
def test_an_interrupted_copy_keeps_what_it_uses(cu, sim, interrupted, what) -> None:
    size, library = 1 << 19, ctypes.CDLL(cu.driver_path())
    array, other = cu.device_zeros(size, "u1"), cu.device_zeros(size, "u1")
    pinned, plain = cu.pinned_full(2 * size, 5, "u1"), np.full(size, 5, "u1")
    context, ends = array.context, [array, other, pinned, plain]
    gone = [weakref.ref(end) for end in ends]
    used = {"down": [True, False, False, True], "on the device": [True, True, False, False]}
    context.synchronize()
    sim.hold()
    assert library.cuMemsetD8Async(ctypes.c_uint64(array.pointer), 7, size, None) == 0
    del array, other, pinned, plain
    interrupted(lambda: BLOCKING[what](cu, *ends))
    ends.clear()
    gc.collect()
    assert [end() is not None for end in gone] == used.get(what, [True, False, True, False])
    sim.release()
    context.synchronize()
    assert [end() is not None for end in gone] == [False] * 4


@pytest.mark.parametrize("blocking", [False, True])
def test_copy_of_an_array_whose_producer_is_at_work(cu, sim, interrupted, blocking: bool) -> None:
    """Its `__cuda_array_interface__` names the stream to wait for."""
    library, theirs = ctypes.CDLL(cu.driver_path()), ctypes.c_void_p()
    assert library.cuStreamCreate(ctypes.byref(theirs), 0 if blocking else 1) == 0
    array, out = cu.device_zeros(1000, "u1"), np.zeros(1000, "u1")
    interface = {**array.__cuda_array_interface__, "stream": theirs.value}
    foreign = SimpleNamespace(__cuda_array_interface__=interface)
    pinned, stream = cu.pinned_zeros(1000, "u1"), cu.Stream()
    sim.hold()
    assert library.cuMemsetD8Async(ctypes.c_uint64(array.pointer), 7, 1000, theirs) == 0
    interrupted(lambda: cu.copy(out, foreign))
    interrupted(lambda: cu.copy_async(pinned, foreign, stream))
    assert not out.any()
    sim.release()
    cu.copy(out, foreign)
    assert (out == 7).all()
    assert library.cuStreamDestroy_v2(theirs) == 0


def test_copies_that_no_stream_carries_out(cu, sim, interrupted, held) -> None:
    stream, _, _ = held
    host = np.zeros(10)
    interrupted(lambda: cu.copy_async(host, np.ones(10), stream))
    assert not host.any()
    sim.release()


def test_staged_copy(cu, sim) -> None:
    """A pageable copy on a slow device: the call ends with the signal's exception when what the
    device has been given is over, and nothing of the copy comes after that."""
    plain = np.ones(32 << 20, "u1")
    array = cu.device_zeros(plain.shape, "u1")
    sim.set_bandwidth(16 << 20)
    soon = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        during(soon, lambda: cu.copy(array, plain))
    soon.join()
    sim.set_bandwidth(0)
    array.fill(3)
    plain[:] = 4
    assert (array.to_numpy() == 3).all()


def test_handler_that_returns_lets_the_wait_go_on(cu, sim, held) -> None:
    _, transfer, array = held
    seen = []

    def handler(number: int, frame: object) -> None:
        seen.append(number)
        sim.release()

    previous = signal.signal(signal.SIGUSR1, handler)
    try:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        transfer.wait()
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert seen == [signal.SIGUSR1]
    assert (array.to_numpy() == 7).all()


def test_handler_that_uses_the_package(cu, sim, held) -> None:
    """What runs in a wait finds the stack as the program left it."""
    stream, transfer, _ = held
    context = cu.Context()
    seen: list[Any] = []

    def handler(number: int, frame: object) -> None:
        with context:
            seen.append(cu.current_context() is context)
        for thing in (stream,):
            with pytest.raises(ValueError, match="a running call uses it"):
                thing.close()
        seen.append(len(cu.live_allocations()) > 0)
        sim.release()

    asked = sim.call_count("cuEventQuery")

    def send() -> None:
        while sim.call_count("cuEventQuery") == asked:  # until the wait is seen
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGUSR1)

    previous = signal.signal(signal.SIGUSR1, handler)
    try:
        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        stream.synchronize()
        sender.join()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert seen == [True, True]
    transfer.wait()
    context.close()


@pytest.mark.parametrize("who", ["handler", "thread"])
def test_waiting_for_the_device_in_the_middle_of_a_staged_copy(sim, who: str) -> None:
    """A handler of the copying thread waits for the copy itself, or a thread that keeps the GIL.
    Where the copy does not get on without its caller, the program ends with its stacks."""
    program = """
        import ctypes, faulthandler, signal, sys, threading, time, numpy as np, cudriver as cu
        faulthandler.dump_traceback_later(240, exit=True)
        source = np.ones(128 << 20, "u1")
        there = cu.device_empty(128 << 20, "u1")
        library, current = ctypes.PyDLL(cu.driver_path()), ctypes.c_void_p()  # keeps the GIL
        assert library.cuCtxGetCurrent(ctypes.byref(current)) == 0
        waited = []
        def wait(*_):
            library.cuCtxSetCurrent(current)
            waited.append(library.cuCtxSynchronize())
        if sys.argv[1] == "handler":
            signal.signal(signal.SIGALRM, wait)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
        else:
            threading.Timer(0.1, wait).start()
        cu.copy(there, source)
        while not waited:
            time.sleep(0.01)
        print(waited, (there.to_numpy() == 1).all())
    """
    assert output(program, who, CUDRIVER_SIM_BANDWIDTH="400000000", timeout=300) == "[0] True\n"
