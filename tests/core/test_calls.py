"""What a small call costs beside the driver's work: which driver calls it makes, what it allocates,
and how it takes its arguments."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dlpackkit as kit
import native_build
import program
from parallel import together

HEADER = native_build.CEXT / "driver" / "cuda_abi.h"
BYTES = 1 << 20


# ---- driver calls -----------------------------------------------------------------------------


def driver_calls(sim: Any, work: Callable[[], object]) -> dict[str, int]:
    """The driver calls of one `work`, the second time: what is made once is there then."""
    work()
    names = re.findall(r"^    X\((cu\w+), \(", HEADER.read_text(), re.MULTILINE)
    assert names
    sim.reset_counts()
    work()
    return {name: count for name in names if (count := sim.call_count(name)) > 0}


#: What a stream is waited for with, besides calls that ask or wait (WAITS), as often as it takes.
WAITS = ("cuStreamQuery", "cuStreamSynchronize")
#: Of an event behind a blocking copy that is not over at once.
ASKING = ("cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventDestroy_v2")
WORD = "cuStreamWriteValue32_v2"
#: Whether somebody else has page-locked the memory.
LOOK = "cuPointerGetAttribute"
#: Whether a graph captures the stream.
ASK = "cuStreamIsCapturing"
#: Before and after calls that a capture, maybe by another thread, forbids: those that wait.
RELAX = "cuThreadExchangeStreamCaptureMode"
#: To see that the primary context is current, and still the one that it was.
HERE = "cuCtxGetId"


def in_context(context: Any) -> None:
    with context:
        pass


@pytest.mark.skipif(not HEADER.is_file(), reason="no C sources beside the tests")
@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ("copy_async(there, pooled, stream)", f"{HERE} {ASK} cuMemcpyHtoDAsync_v2 cuEventRecord"),
        ("copy_async(pooled, there, stream)", f"{HERE} {ASK} cuMemcpyDtoHAsync_v2 cuEventRecord"),
        ("copy_async(there, ordinary, stream)", f"{HERE} {ASK} cuMemcpyHtoDAsync_v2 cuEventRecord"),
        ("copy_async(there, plain, stream)", f"{HERE} {ASK} cuMemcpyHtoDAsync_v2 cuEventRecord"),
        (
            "copy_async(there[::2], pooled[::2], stream)",
            f"{HERE} {ASK} cuMemcpy3DAsync_v2 cuEventRecord",
        ),
        ("copy(there, pooled)", f"{HERE} {ASK} cuMemcpyHtoDAsync_v2 {WORD}"),
        ("copy(pooled, there)", f"{HERE} {ASK} cuMemcpyDtoHAsync_v2 {WORD}"),
        ("copy(there, plain)", f"{HERE} {ASK} cuMemcpyHtoD_v2"),
        ("copy(plain, there)", f"{HERE} {ASK} cuMemcpyDtoHAsync_v2 {WORD}"),
        ("copy(larger, large)", f"{LOOK} {HERE} {ASK} cuMemcpyDtoHAsync_v2 {WORD}"),
        ("copy(there, other)", f"{HERE} {ASK} cuMemcpyDtoDAsync_v2 {WORD}"),
        ("pinned_empty(BYTES, np.uint8)", ""),
        ("numpy_array()", ""),
        ("in_context(context)", "cuCtxPushCurrent_v2 cuCtxGetCurrent cuCtxPopCurrent_v2"),
        ("in_context(stream)", ""),
    ],
)
def test_driver_calls(cu, sim, work: str, expected: str) -> None:
    pooled, ordinary = cu.pinned_empty((8, 512), np.uint8), np.empty((8, 512), np.uint8)
    there, stream = cu.device_empty(pooled.shape, np.uint8), cu.Stream()
    other = cu.device_empty(pooled.shape, np.uint8)
    large, larger = cu.device_empty(BYTES // 4, np.uint8), np.zeros(BYTES // 4, np.uint8)
    plain = np.zeros_like(pooled)
    context = cu.current_context()

    def numpy_array() -> object:
        with cu.pinned_numpy():
            return np.empty(BYTES, np.uint8)

    names = {name: getattr(cu, name) for name in cu.__all__} | globals() | locals()
    for transfer in [cu.copy_async(there, pooled, stream) for _ in range(9)]:
        transfer.wait()  # and its event is there for the next copy
    del transfer
    with cu.pin(ordinary):
        made = driver_calls(sim, lambda: eval(work, names))
        stream.synchronize()
    for name in WAITS:
        made.pop(name, None)
    if work.startswith("copy("):  # waits, as long as the simulated device takes
        for name in (*ASKING, RELAX):
            made.pop(name, None)
    asked = made.pop("cuEventQuery", 0)  # whether the copy before is over
    assert asked <= 2
    assert made.pop(RELAX, 0) == 2 * asked
    if asked:
        made[HERE] -= asked
    assert made == dict.fromkeys(expected.split(), 1)


@pytest.mark.skipif(not HEADER.is_file(), reason="no C sources beside the tests")
def test_a_thread_without_a_context_makes_the_primary_one_current_once(cu, sim) -> None:
    """As the runtime API does. A manual context does not stay."""
    pooled, made = cu.pinned_zeros(9), list[dict[str, int]]()
    together(lambda: cu.device_empty(1).close())  # the context of threads that have none is known

    def thread(context: Any) -> None:
        with context:
            there, stream = cu.device_empty(9), cu.Stream()

        def body() -> None:
            made.append(driver_calls(sim, lambda: cu.copy_async(there, pooled, stream)))

        together(body)
        stream.synchronize()

    thread(cu.Device(0).primary_context())
    thread(cu.Context(0))
    assert made[0].get(HERE) == 1
    pushes = [calls.get("cuCtxPushCurrent_v2", 0) for calls in made]
    assert pushes == [calls.get("cuCtxPopCurrent_v2", 0) for calls in made] == [0, 1]


@pytest.mark.skipif(not HEADER.is_file(), reason="no C sources beside the tests")
def test_the_context_of_anothers_stream_is_one_question(cu, sim) -> None:
    """That of a default stream is none: it is the current one."""
    stream, there, pooled = cu.Stream(), cu.device_empty(9), cu.pinned_zeros(9)
    given, default = SimpleNamespace(cuda_stream=stream.handle), SimpleNamespace(cuda_stream=2)

    def copy(other: object) -> None:
        cu.copy_async(there, pooled, other).wait()

    made = driver_calls(sim, lambda: copy(given))
    assert made.pop("cuStreamGetCtx_v2") == 1
    assert made.keys() - {"cuEventQuery"} == {
        *(HERE, ASK, RELAX),  # to wait asks, as often as it takes
        *("cuMemcpyHtoDAsync_v2", "cuEventRecord"),
        "cuStreamGetPriority",  # whether it is to go beside others
    }
    assert "cuStreamGetCtx_v2" not in driver_calls(sim, lambda: copy(default))


@pytest.mark.skipif(not HEADER.is_file(), reason="no C sources beside the tests")
def test_driver_calls_of_another_librarys_array(cu, sim) -> None:
    """By its type's table: the memory is asked about once. An event puts the copy behind the work
    on the other library's stream: to ask whether there is any takes longer."""
    there, pooled, stream = cu.device_empty(9), cu.pinned_zeros(9), cu.Stream()
    table = kit.ExchangeTable(
        1, 3, None, kit.ALLOCATE(), kit.FROM_OBJECT(lambda lender, out: lender.lend(out)),
        kit.TO_OBJECT(), None, kit.CURRENT_STREAM(lambda kind, device, out: 0),
    )  # fmt: skip

    class Tensor(kit.Lender):
        __dlpack_c_exchange_api__ = kit.capsule(ctypes.addressof(table), b"dlpack_exchange_api")

        def lend(self, out: Any) -> int:
            out[0] = ctypes.addressof(self.managed)
            return 0

    for transfer in [cu.copy_async(there, pooled, stream) for _ in range(9)]:
        transfer.wait()  # and its event is there for the next copy
    del transfer
    tensor = Tensor(there.pointer, there.shape, dtype=(kit.FLOAT, 64, 1), owner=there)
    look = {"cuPointerGetAttributes": 1, "cuCtxGetCurrent": 1}  # of memory from a pool
    assert driver_calls(sim, lambda: cu.from_dlpack(tensor)) == look
    made = driver_calls(sim, lambda: cu.copy_async(tensor, pooled, stream))
    event = ("cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuEventDestroy_v2")
    once = ("cuMemcpyHtoDAsync_v2", *event)
    asked = made.pop("cuEventQuery", 0)  # whether the copy before is over
    assert made == look | dict.fromkeys(once, 1) | {
        HERE: 2 + asked,
        "cuEventRecord": 2,
        ASK: 3,
        RELAX: 2 + 2 * asked,
    }
    stream.synchronize()


@pytest.mark.skipif(not HEADER.is_file(), reason="no C sources beside the tests")
def test_driver_calls_of_device_memory(cu, sim) -> None:
    stream = cu.Stream()
    for how in ({}, {"stream": stream}):
        made = driver_calls(sim, lambda: cu.device_empty(BYTES, np.uint8, **how))  # noqa: B023
        assert made.pop(HERE) == 2
        assert made.pop("cuCtxGetCurrent", 1) == 1
        assert made == {"cuMemAllocFromPoolAsync": 1, "cuMemFreeAsync": 1, RELAX: 4}


@pytest.mark.parametrize("seen", ["pointer", "__dlpack__", "__cuda_array_interface__"])
def test_memory_that_others_know_is_freed_behind_all_work(cu, sim, seen: str) -> None:
    """Whoever knows its address may have queued work on it that only cuMemFree waits for."""
    array = cu.device_zeros(8)
    found = getattr(array[2:], seen)
    if seen == "__dlpack__":
        found = found()
    sim.reset_counts()
    del found, array
    assert (sim.call_count("cuMemFree_v2"), sim.call_count("cuMemFreeAsync")) == (1, 0)


@pytest.mark.skipif(not HEADER.is_file(), reason="no C sources beside the tests")
def test_driver_calls_of_a_new_array_with_the_hosts_numbers(cu, sim) -> None:
    """Four steps in relaxed mode, at most: the allocation, the wait for it, the copy, the free."""
    host = np.zeros(1000, np.float32)
    made = driver_calls(sim, lambda: cu.to_device(host))
    assert made.pop(HERE) == 4
    assert made.pop("cuCtxGetCurrent") == 1
    assert made.pop("cuStreamQuery") >= 1  # as often as it takes
    assert made.pop("cuStreamSynchronize") == 2  # for the allocation and for the copy
    memory = {"cuMemAllocFromPoolAsync": 1, "cuMemFreeAsync": 1}
    assert made.pop(RELAX) <= 8
    assert made == memory | {"cuMemcpyHtoD_v2": 1, ASK: 1}


def test_a_primary_context_that_is_current_is_looked_for_once(cu, sim) -> None:
    """As another library leaves it: no context of ours need live between two arrays."""
    program.output(
        """
        import ctypes, cudriver as cu
        cu.init()
        library, handle = ctypes.CDLL(cu.driver_path()), ctypes.c_void_p()
        assert library.cuDevicePrimaryCtxRetain(ctypes.byref(handle), 0) == 0
        assert library.cuCtxSetCurrent(handle) == 0
        cu.device_empty(10)
        library.cudriver_sim_reset_counts()
        library.cudriver_sim_call_count.restype = ctypes.c_longlong
        for _ in range(5):
            cu.device_empty(10)
        for name in (b"cuDevicePrimaryCtxRetain", b"cuCtxGetDevice", b"cuStreamCreateWithPriority"):
            assert library.cudriver_sim_call_count(name) == 0, name
        """
    )


@pytest.mark.parametrize("use", ["pointer", "fill", "copy"])
def test_device_memory_is_waited_for_before_its_first_use(cu, sim, use: str) -> None:
    """It may be used on any stream: one wait is for all made so far."""
    host = np.zeros(16, np.uint8)
    works: dict[str, Callable[[Any], object]] = {
        "pointer": lambda array: array.pointer,
        "fill": lambda array: array.fill(1, stream=cu.Stream()),
        "copy": lambda array: cu.copy(host, array),
    }
    arrays = [cu.device_empty(16, np.uint8) for _ in range(3)]
    sim.reset_counts()
    for array in arrays:
        works[use](array)
    assert sim.call_count("cuStreamSynchronize") == 1
    later = cu.device_empty(16, np.uint8)
    works[use](later)
    works[use](later)
    assert sim.call_count("cuStreamSynchronize") == 2


def test_memory_registered_while_another_context_was_current_is_not_asked_about(cu, sim) -> None:
    """Registrations are made in a primary context: our books hold for all."""
    cu.trim_host_memory()
    with cu.Context(0):
        other = cu.pinned_empty(BYTES * 9, np.uint8)  # large: memory of its own
    there, stream = cu.device_empty(other.shape, np.uint8), cu.Stream()
    sim.reset_counts()
    cu.copy_async(there, other, stream).wait()
    assert sim.call_count("cuPointerGetAttribute") == 0


# ---- allocations ------------------------------------------------------------------------------

COUNT = """
import ctypes, os, sys
from itertools import repeat
import numpy as np
import cudriver as cu

library = ctypes.CDLL(sys.argv[1])
library.count_malloc_skip.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
library.count_malloc_skip.restype = library.count_malloc_begin.restype = None
library.count_malloc_end.restype = ctypes.c_long
begin, end = library.count_malloc_begin, library.count_malloc_end

cu.init()
driver = os.path.realpath(cu.driver_path())
lines = [line for line in open("/proc/self/maps") if line.rstrip().endswith(driver)]
ranges = [[int(n, 16) for n in line.split()[0].split("-")] for line in lines if " r-xp " in line]
assert len(ranges) == 1, lines
library.count_malloc_skip(*ranges[0])

pooled, there = cu.pinned_empty(4096, np.uint8), cu.device_empty(4096, np.uint8)
copy_async, stream = cu.copy_async, cu.Stream()

def allocations(up, down, make=0):
    begin()
    for _ in repeat(None, up):
        copy_async(there, pooled, stream)
    for _ in repeat(None, down):
        copy_async(pooled, there, stream=stream)
    for _ in repeat(None, make):
        bytearray(5000)
    count = end()
    stream.synchronize()
    return count

allocations(1, 1)
print(allocations(0, 0), allocations(50, 50), allocations(100, 0), allocations(0, 0, 10))
"""


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that counts a thread's allocations, for LD_PRELOAD."""
    if os.environ.get("CUDRIVER_TEST_SANITIZER"):
        pytest.skip("a sanitizer brings its own malloc")
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("not glibc: there is no name for the malloc behind malloc")
    compiled = tmp_path_factory.mktemp("count") / "libcount.so"
    source = native_build.TESTS / "native" / "count_malloc.c"
    return native_build.shared(compiled, [source], "-O1", "-fno-builtin")


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="its allocator cannot be replaced"
)
def test_issuing_a_copy_of_page_locked_memory_allocates_a_transfer(counter: Path) -> None:
    """With Python's own allocator off, every object counts, too; the driver's own do not."""
    text = program.output(COUNT, str(counter), LD_PRELOAD=str(counter), PYTHONMALLOC="malloc")
    none, both, up, ten = map(int, text.split())
    assert ten >= none + 10  # the counter counts
    assert (both, up) == (none + 100, none + 100)


# ---- arguments --------------------------------------------------------------------------------

FUNCTIONS = {
    "pinned_empty": ("shape", 3, {"shape": 4}),
    "pinned_zeros": ("shape", 3, {"shape": 4}),
    "device_empty": ("shape", 3, {"shape": 4}),
    "device_zeros": ("shape", 3, {"shape": 4}),
    "to_device": ("array", 1, {"array": [1.0]}),
    "fill": ("value", 1, {"value": 1}),
}


def function_of(cu: Any, name: str) -> Callable[..., object]:
    return getattr(cu if hasattr(cu, name) else cu.device_zeros(4), name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_by_name(cu, name: str) -> None:
    first, most, named = FUNCTIONS[name]
    function = function_of(cu, name)
    function(**named)
    function(*named.values())
    missing = rf"{name}\(\) missing .*argument:? '{first}'"
    with pytest.raises(TypeError, match=missing):
        function()
    with pytest.raises(TypeError, match=missing):
        function(**{"dtype" if "empty" in name or "zeros" in name else "stream": None})
    with pytest.raises(TypeError, match=rf"{name}\(\) .*'{first}'"):
        function(*named.values(), **named)
    with pytest.raises(TypeError, match=rf"(?=.*{name}\(\)).*'no'"):
        function(**named, no=1)
    with pytest.raises(TypeError, match=rf"{name}\(\) takes .* positional"):
        function(*range(most + 1))


def test_arguments_by_any_name_in_any_order(cu) -> None:
    array = cu.pinned_empty(order="F", shape=(2, 3), dtype="i2")
    assert (array.shape, array.dtype, array.flags.f_contiguous) == ((2, 3), np.int16, True)
    there = cu.device_zeros(stream=None, device=None, dtype="i2", shape=(2, 3))
    assert (there.shape, there.dtype) == ((2, 3), np.int16)
    out = np.ones((2, 3), np.int16)
    assert there.to_numpy(out=out) is out
    assert not out.any()
