"""After a kernel has failed, no CUDA call works in the process any more (seen on an H200). What is
said then: once, where it was seen first, and that the process has to be started again."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import cudriver as cu
from program import run

AGAIN = "start the process again"
WORK = """
import ctypes, gc, sys
import numpy as np
import cudriver as cu
stream, host, there = cu.Stream(), cu.pinned_zeros(1 << 20, "u1"), cu.device_empty(1 << 20, "u1")
cu.synchronize(); driver = ctypes.CDLL(cu.driver_path())
def tell(call):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)
    else:
        print("works")
def work():  # no copy is over before all are issued
    driver.cudriver_sim_hold()
    for _ in range(8): cu.copy_async(there, host, stream)
    driver.cudriver_sim_release()
    stream.synchronize()
tell(work)
"""
BROKEN = {"CUDRIVER_SIM_FAIL": "async:4:700", "CUDRIVER_LIBRARY": "sim"}


def lines(program: str, **environ: str) -> tuple[list[str], list[str]]:
    done = run(WORK + program, **{**BROKEN, **environ})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults that a test injects are no state of the process."""
    from cudriver.memory import failures

    monkeypatch.setattr(failures, "_first", "")
    monkeypatch.setattr(failures, "_told", failures.Counter())


@pytest.mark.parametrize("code", [700, 719, 999])
def test_every_call_says_to_start_the_process_again(code: int, sim: Any) -> None:
    calls = ("lambda: cu.device_empty(3)", "cu.synchronize", "cu.Stream", "cu.memory_info",
             "lambda: cu.Context(0)", "lambda: cu.pin(np.ones(9))", "lambda: cu.to_device([1])",
             "lambda: cu.pinned_empty(64 << 20)")  # fmt: skip
    program = "\n".join(f"tell({call})" for call in calls)
    said, _ = lines(program, CUDRIVER_SIM_FAIL=f"async:4:{code}")
    assert len(said) == 1 + len(calls)
    for line in said:
        assert AGAIN in line
        assert f"({code})" in line
        assert "RLIMIT" not in line, "an old limit is not the cause"


def test_the_line_that_met_it_first_is_named(tmp_path: Any, sim: Any) -> None:
    source = tmp_path / "feed.py"
    source.write_text(WORK + "tell(lambda: cu.device_empty(3))\n")
    done = run(f"import runpy; runpy.run_path({str(source)!r})", **BROKEN)
    where = f"Seen first at {source}:18, `stream.synchronize()`, by cuStream"  # any of its calls
    assert [where in line for line in done.stdout.splitlines()] == [True, True], done.stdout


def test_destructors_write_one_line(sim: Any) -> None:
    program = WORK.replace(
        "tell(work)",
        """
things = [make() for make in (cu.Stream, cu.Event, lambda: cu.device_empty(3)) for _ in range(20)]
tell(work)
del things, stream, there, host
gc.collect()
""",
    )
    done = run(program, **BROKEN)
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("cudriver: cu")
    assert "(in a destructor)" in done.stderr
    assert AGAIN in done.stderr


def test_a_reset_says_so_too(sim: Any) -> None:
    """The pool cannot be given back; without one the driver resets, and makes no new context."""
    said, _ = lines("del host, there, stream; gc.collect()\n"
                    "tell(cu.Device(0).reset_primary_context)\n"
                    "tell(lambda: cu.device_empty(3))")  # fmt: skip
    assert [AGAIN in line for line in said] == [True] * 3
    assert "page-locked memory of arrays" not in said[1]
    kept, _ = lines("tell(cu.Device(0).reset_primary_context)")
    assert AGAIN in kept[1], "and not only that arrays live in it"
    bare = run("""
        import cudriver as cu
        def tell(call):
            try: call()
            except cu.CudaError as error: print(error)
        there = cu.device_zeros(3, "u1")
        tell(lambda: there.fill(1))
        tell(cu.synchronize)
        del there
        tell(cu.Device(0).reset_primary_context)
    """, CUDRIVER_LIBRARY="sim", CUDRIVER_SIM_FAIL="async:2:700")  # fmt: skip
    assert bare.stdout.splitlines()[-1].startswith("cuDevicePrimaryCtxRetain(device 0)"), (
        bare.stdout
    )
    assert AGAIN in bare.stdout.splitlines()[-1]


def test_a_device_that_works_after_its_reset_is_taken_for_one(sim: Any, found: None) -> None:
    from cudriver.memory import failures

    failures.failure(700, "cuStreamQuery", "")
    assert failures.is_lost()
    cu.Device(1).reset_primary_context()
    assert not failures.is_lost()


def test_failures_of_one_kind_in_destructors_are_told_ten_times(
    sim: Any, found: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    sim.fail("cuEventDestroy_v2:*:1")
    for _ in range(30):
        event = cu.Event()
        event.record()
        del event
    sim.clear_faults()
    assert [told.exc_value.code for told in said] == [1] * 10


def test_an_unknown_error_of_the_initialisation_has_its_own_hint(sim: Any) -> None:
    done = run(
        """
        import cudriver as cu
        try: cu.init()
        except cu.CudaError as error: print(error)
    """,
        CUDRIVER_LIBRARY="sim",
        CUDRIVER_SIM_FAIL="cuInit:1:999",
    )
    assert "nvidia_uvm" in done.stdout
    assert AGAIN not in done.stdout
