"""Devices that read pageable memory through the host's page tables: a profile of the simulator."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import native_build
from conftest import DRIVER
from program import output

SIZE = 4 << 20  # staged elsewhere

pytestmark = pytest.mark.skipif(DRIVER == "real", reason="needs the simulated devices")


@pytest.fixture
def coherent(cu, sim) -> Iterator[Any]:
    sim.set_profile("coherent")
    yield sim
    sim.set_profile("default")


def of_file(path: Path) -> np.ndarray:
    path.write_bytes(bytes(SIZE))
    return np.memmap(path, np.uint8, "r+")


def shared(path: Path) -> np.ndarray:
    return np.frombuffer(mmap.mmap(-1, SIZE), np.uint8)


MAKERS = {
    "anonymous": (lambda path: np.zeros(SIZE, np.uint8), "direct", "page tables: one driver"),
    "small": (lambda path: np.zeros(100, np.uint8), "direct", "dense and small"),
    "of a file": (of_file, "staged", "mapped file"),
    "shared": (shared, "staged", "mapped file"),  # a file without a name, to the system
    "strided": (lambda path: np.zeros(2 * SIZE, np.uint8)[::2], "staged", "strided and pageable"),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_the_way_depends_on_the_memory(cu, coherent, kind: str, tmp_path: Path) -> None:
    make, path, why = MAKERS[kind]
    array = make(tmp_path / "file")
    array[...] = np.random.default_rng(3).integers(0, 255, array.shape, np.uint8)
    there = cu.device_zeros(array.shape, np.uint8)
    for plan in (cu.explain_copy(there, array), cu.explain_copy(array, there)):
        assert (plan.path, why in plan.why, plan.page_locked) == (path, True, False)
    cu.copy(there, array)
    right = array.copy()
    assert (there.to_numpy() == right).all()
    array[...] = 0
    cu.copy(array, there)
    assert (array == right).all()


def test_page_locked_memory_goes_as_everywhere(cu, coherent) -> None:
    plan = cu.explain_copy(cu.device_zeros(SIZE, "u1"), cu.pinned_zeros(SIZE, "u1"))
    assert (plan.path, plan.why.endswith("bus's own speed")) == ("direct", True)


def test_an_asynchronous_copy_keeps_the_streams_order(cu, coherent) -> None:
    """The driver may read pageable memory at once: such a copy is staged here, too."""
    stream, plain = cu.Stream(), np.zeros(SIZE, np.uint8)
    first, second = cu.device_zeros(SIZE, np.uint8), cu.device_zeros(SIZE, np.uint8)
    first.fill(7)
    first.context.synchronize()
    coherent.hold()
    cu.copy_async(plain, first, stream)
    last = cu.copy_async(second, plain, stream, borrow=True)  # reads what the first will write
    coherent.release()
    last.wait()
    assert (second.to_numpy() == 7).all()


@pytest.mark.parametrize(("setting", "path"), [("0", "staged"), ("1", "direct"), (None, "direct")])
def test_a_setting_has_the_last_word(setting: str | None, path: str) -> None:
    program = """
        import numpy as np
        import cudriver as cu

        plan = cu.explain_copy(cu.device_zeros(4 << 20, "u1"), np.zeros(4 << 20, "u1"))
        print(plan.path, cu.Device(0).attributes["pageable_memory_access"])
    """
    said = output(program, CUDRIVER_COHERENT=setting, CUDRIVER_SIM_PROFILE="coherent")
    assert said == f"{path} 1\n"


def test_the_bench_asks_its_owner_to_report(cu, coherent) -> None:
    from cudriver import ladder

    notes = ladder.measure(cu.Device(0), [1 << 20], 1)["notes"]
    assert ["CUDRIVER_COHERENT=0 cudriver bench" in note for note in notes] == [True]


# ---- a driver that crawls ------------------------------------------------------------------------

CRAWL = """
    import sys
    import numpy as np
    import cudriver as cu

    plain, there = np.ones(64 << 20, "u1"), cu.device_zeros(64 << 20, "u1")

    def way(up, count=64 << 20):
        ends = (there[:count], plain[:count]) if up else (plain[:count], there[:count])
        plan = cu.explain_copy(*ends)
        return f"{plan.path}, slow" if "less than 5 GB/s" in plan.why else plan.path

    cu.copy(there[:60 << 20], plain[:60 << 20])  # not big
    print(way(True), way(False))
    cu.copy(there, plain)
    print(way(True), way(False), way(True, 4 << 20), way(True, 1000))
    cu.copy(plain, there)
    print(way(True), way(False))
    plain[...] = 3
    cu.copy(there, plain)
    print((there.to_numpy() == 3).all())
"""
#: The clock stands nearly still: whatever the machine takes is little.
SLOW_CLOCK = r"""
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time)
{
    long result = syscall(SYS_clock_gettime, clock, time);

    if (result == 0 && clock == CLOCK_MONOTONIC) {
        long long ns = (time->tv_sec * 1000000000ll + time->tv_nsec) / 1000000;
        time->tv_sec = ns / 1000000000;
        time->tv_nsec = ns % 1000000000;
    }
    return (int)result;
}
"""


def test_copies_that_crawl_are_staged_from_then_on() -> None:
    """Each direction by itself: one may be fast."""
    said = output(CRAWL, CUDRIVER_SIM_PROFILE="crawling").splitlines()
    assert said == [
        "direct direct",
        "staged, slow direct staged, slow direct",
        "staged, slow staged, slow",
        "True",
    ]


@pytest.mark.parametrize("way", ["up", "down"])
def test_the_rest_of_a_long_copy_that_crawls_is_staged_at_once(way: str) -> None:
    """Its first part tells, 256 MiB: all may take hours."""
    program = f"""
        import ctypes
        import numpy as np
        import cudriver as cu

        there, plain = cu.device_empty((257 << 20) + 5, "u1"), np.full((257 << 20) + 5, 3, "u1")
        calls = ctypes.CDLL(cu.driver_path()).cudriver_sim_call_count
        calls.restype = ctypes.c_longlong
        if {way == "up"}:
            cu.copy(there, plain)
            back = cu.pinned_empty(plain.shape, "u1")
            cu.copy(back, there)
            print(calls(b"cuMemcpyHtoD_v2"), (back == 3).all())
        else:
            there.fill(4)
            cu.copy(plain, there)
            print(calls(b"cuMemcpyDtoH_v2"), (plain == 4).all())
    """
    assert output(program, CUDRIVER_SIM_PROFILE="crawling") == "1 True\n"


def test_an_error_of_the_rest_is_told_as_it_is() -> None:
    program = """
        import numpy as np
        import cudriver as cu

        try:
            cu.copy(cu.device_empty(600 << 20, "u1"), np.zeros(600 << 20, "u1"))
        except cu.CudaError as error:
            print(error.code, error.function)
    """
    fault = "cuMemcpyHtoDAsync_v2:3:719"
    said = output(program, CUDRIVER_SIM_PROFILE="crawling", CUDRIVER_SIM_FAIL=fault)
    assert said == "719 cudriver.copy\n"


@pytest.mark.skipif(
    native_build.BUILD != "plain", reason="a sanitizer cannot be preloaded behind another library"
)
def test_copies_that_do_not_stay_with_the_driver(tmp_path: Path) -> None:
    (tmp_path / "clock.c").write_text(SLOW_CLOCK)
    clock = native_build.shared(tmp_path / "clock.so", [tmp_path / "clock.c"])
    said = output(CRAWL, CUDRIVER_SIM_PROFILE="coherent", LD_PRELOAD=str(clock)).splitlines()
    assert said == ["direct direct", "direct direct direct direct", "direct direct", "True"]
