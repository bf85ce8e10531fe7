"""Every scenario, with the 1st, 2nd, ... driver call made to fail.

Each time there is an exception of ours, or the scenario succeeds by another way that the documents
name (no pool: cuMemAlloc; no page-locked NumPy memory: a warning); and nothing is alive afterwards,
by the package's account and by the simulated driver's.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import at_rest
from native_build import CEXT
from scenarios import SCENARIOS

LIVE = ("contexts", "streams", "events", "allocations", "host_allocs", "modules", "pending")
#: INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE, CONTEXT_IS_DESTROYED, LAUNCH_FAILED, UNKNOWN.
#: (After DEINITIALIZED the driver is gone, and nothing is given back to it.)
CODES = (1, 2, 101, 709, 719, 999)
#: Codes that each call fails with in turn; the first depends on the call's number.
CODES_EACH = 2
#: Of one function's calls in a scenario, these many are made to fail.
MOST_CALLS = 16
#: What a free that failed was to free stays: the driver's doing. Only our own account counts then.
FREES = {
    "cuCtxDestroy_v2",
    "cuStreamDestroy_v2",
    "cuEventDestroy_v2",
    "cuMemFree_v2",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemHostUnregister",
    "cuModuleUnload",
    "cuDevicePrimaryCtxRelease_v2",
    "cuMemPoolDestroy",
    "cuCtxPopCurrent_v2",
}
#: A wait or a look that fails says that the work has failed: what it touched counts as free, though
#: the simulator, which only pretended, may still be at it.
LOOKS = {"cuEventQuery", "cuStreamQuery", "cuCtxSynchronize", "cuStreamSynchronize"}
UNTOLD = {"cuGetErrorName", "cuGetErrorString"}
#: Memory of NumPy's that stays registered would spoil the addresses for all tests after this one:
#: see test_page_lock_that_cannot_be_undone.
APART = {
    ("pins", "cuMemHostUnregister"),
    ("pins_in_the_background", "cuMemHostUnregister"),
    ("arrays_that_are_no_ndarrays", "cuMemHostUnregister"),
    ("shared_memory", "cuMemHostUnregister"),
    # Work whose query fails is over: a real driver fails every later call, too. The simulated one
    # goes on, and the array may be read before its bytes have come.
    ("lent_and_borrowed_arrays", "cuEventQuery"),
}


@pytest.fixture(scope="module")
def functions() -> list[str]:
    header = CEXT / "driver" / "cuda_abi.h"
    if not header.exists():
        pytest.skip("no C sources beside the tests")
    found = set(re.findall(r"X\((cu\w+), \(", header.read_text()))
    assert len(found) > 80
    return sorted(found - UNTOLD)


@pytest.fixture(autouse=True, scope="module")
def given_back(cu: Any, simulator: Any) -> Iterator[None]:
    """Primary contexts whose release failed are the driver's still: not so for the next file."""
    yield
    if simulator is None:
        return
    gc.collect()
    library = ctypes.CDLL(cu.driver_path())
    flags, active = ctypes.c_uint(), ctypes.c_int(1)
    for device in cu.devices()[1:]:
        device.primary_context().close()
        active.value = 1
        while active.value:
            library.cuDevicePrimaryCtxRelease_v2(device.ordinal)
            library.cuDevicePrimaryCtxGetState(
                device.ordinal, ctypes.byref(flags), ctypes.byref(active)
            )
    cu.trim_host_memory()


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What destructors report, kept."""
    said: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    gc.collect()
    gc.freeze()  # and not unfrozen: pytest's own objects would slow all later collections
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # pinned_numpy() fell back
        yield said


class Sweep:
    """One scenario, run again and again."""

    def __init__(self, cu: Any, sim: Any, functions: list[str], said: list[Any]) -> None:
        self.cu, self.sim, self.functions, self.said = cu, sim, functions, said
        self.library = ctypes.CDLL(cu.driver_path())
        cu.memory_info()
        cu.device_empty(1)
        self.depth = len(cu.context_stack())

    def settle(self) -> dict[str, int]:
        """Lets go what is on its way; what is alive then."""
        handle = ctypes.c_void_p()
        while len(self.cu.context_stack()) > self.depth:  # a pop failed
            self.library.cuCtxPopCurrent_v2(ctypes.byref(handle))
        self.said.clear()
        gc.collect()
        self.cu.memory_info()
        self.cu.current_context().synchronize()
        now = {"live_allocations": len(self.cu.live_allocations())}
        self.sim.settle()  # before memory is unmapped that a copy uses whose wait was made to fail
        self.cu.trim_host_memory()
        now.update({what: self.sim.live(what) for what in LIVE})
        return now

    def counts(self) -> dict[str, int]:
        return {name: self.sim.call_count(name) for name in self.functions}

    def run(self, scenario: Any) -> str:
        """How it ended; an exception that is none of ours goes through."""
        try:
            scenario(self.cu)
        except self.cu.CudaError as error:
            assert str(error)
            return f"{error.code} {error}"
        except ValueError as error:  # said where a failed query is an answer
            return f"ValueError {error}"
        return ""


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_call_fails_in_turn(cu, sim, quiet, functions, name: str) -> None:
    scenario = SCENARIOS[name][0]
    sweep = Sweep(cu, sim, functions, quiet)
    assert sweep.run(scenario) == ""
    before = sweep.settle()
    counts = sweep.counts()
    assert sweep.run(scenario) == ""
    calls = {function: sweep.counts()[function] - counts[function] for function in functions}
    assert sweep.settle() == before, "the scenario itself leaves something behind"
    for function, count in sorted(calls.items(), key=lambda call: call[0] in FREES | LOOKS):
        if (name, function) in APART:
            continue
        for nth in range(1, min(count, MOST_CALLS) + 1):
            for turn in range(CODES_EACH):
                code = CODES[(nth + 3 * turn) % len(CODES)]
                if function in ("cuCtxGetApiVersion", "cuCtxGetId") and code == 709:
                    continue  # an answer, no failure: the context is gone with all in it
                sim.fail(f"{function}:{nth}:{code}")
                ended = sweep.run(scenario)
                sim.clear_faults()
                where = f"{function} call {nth} failing with {code}: {ended or 'went well'}"
                try:
                    after = sweep.settle()
                except cu.CudaError as error:
                    assert function in LOOKS, f"{where}; and then {error}"
                if function in LOOKS:
                    sim.settle()
                    sim.reset()  # fixes the devices that the work behind it broke
                    after = sweep.settle()
                resting = function in FREES | LOOKS
                while after != before and not resting:
                    resting = at_rest()  # else a worker of the copy engine is on its way back
                    after = sweep.settle()
                assert after["live_allocations"] == before["live_allocations"], where
                if function in FREES | LOOKS:  # a broken device frees nothing either
                    before = after
                assert after == before, where
    assert sweep.run(scenario) == "", "after all these failures"


@pytest.mark.parametrize("up", [True, False])
def test_what_is_under_way_keeps_its_memory_where_a_call_fails(
    cu, sim, quiet, functions, up: bool
) -> None:
    """Rows for the kernel, one for the driver and one with gaps, in one call. The streams stand
    still, so that memory that is let go too early is others' before it is read or written."""
    there, wide = cu.device_zeros((9, 64), "u1"), cu.device_zeros((2, 1 << 20), "u1")
    gaps = cu.device_zeros((64, 32), "u1")
    far = [*(there[i] for i in range(9)), wide[0], gaps, wide[1]]

    def copy() -> None:
        rows, long = cu.pinned_zeros((9, 64), "u1"), cu.pinned_zeros((2, 1 << 20), "u1")
        near = [*rows, long[0], cu.pinned_zeros((64, 64), "u1")[:, ::2], long[1]]
        with contextlib.suppress(cu.CudaError):
            cu.copy_many_async(*((far, near) if up else (near, far)))

    copy()
    sim.settle()
    counts = {name: sim.call_count(name) for name in functions}
    copy()
    calls = {name: sim.call_count(name) - count for name, count in counts.items()}
    for function, count in calls.items():
        for nth in range(1, count + 1):
            sim.settle()
            sim.hold()
            sim.fail(f"{function}:{nth}:999")
            copying = threading.Thread(target=copy)
            copying.start()
            while copying.is_alive() and not at_rest():
                pass
            sim.clear_faults()
            sizes = () if copying.is_alive() else (9 * 64, 2 << 20, 64 * 64)  # it does not wait
            others = [cu.pinned_full(size, 7, "u1") for size in sizes]  # then those before go
            sim.release()
            copying.join()
            sim.settle()
            arrived = [array.to_numpy().any() for array in (there, wide, gaps)]
            assert arrived == [False] * 3, f"{function} call {nth}"
            assert all((other == 7).all() for other in others), f"{function} call {nth}"


def test_settling_waits_for_other_contexts(cu, sim, two_devices, quiet) -> None:
    sweep = Sweep(cu, sim, [], quiet)
    array = cu.device_empty(1, device=two_devices[1])
    before = sweep.settle()
    sim.set_latency(500_000)
    del array  # a free in the order of a stream there
    assert sim.live("pending") == 1
    assert sweep.settle()["pending"] == before["pending"] == 0


def test_settling_unmaps_nothing_under_a_copy_whose_wait_failed(
    cu, sim, two_devices, quiet
) -> None:
    sweep = Sweep(cu, sim, [], quiet)
    there = cu.device_zeros(3, device=two_devices[1])
    sweep.settle()
    here, stream = cu.pinned_empty(3), cu.Stream(device=two_devices[1])
    sim.set_late(500_000)
    sim.fail_next("cuEventQuery", 2)
    with stream, pytest.raises(cu.CudaError, match="cuEventQuery"):
        cu.copy_many([here], [there])
    assert sim.live("pending") > 0
    del here
    assert sweep.settle()["pending"] == 0  # else a thread of the simulator's ends the process


def test_page_lock_that_cannot_be_undone(cu, sim) -> None:
    library = ctypes.CDLL(cu.driver_path())
    cu.memory_info()
    cu.current_context().synchronize()
    gc.collect()
    before = len(cu.live_allocations())
    with mmap.mmap(-1, 1 << 16) as memory:
        handle = cu.pin(memory)
        sim.fail_next("cuMemHostUnregister", 999)
        with pytest.raises(cu.CudaError, match="cuMemHostUnregister"):
            handle.close()
        assert handle.closed
        assert len(cu.live_allocations()) == before
        handle.close()
        address = ctypes.addressof(view := ctypes.c_char.from_buffer(memory))
        assert library.cuMemHostUnregister(ctypes.c_void_p(address)) == 0
        del view
