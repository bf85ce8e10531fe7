"""live_allocations(): what is alive, where it was made, and the report at exit."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

import cudriver.typing as cut
from program import output, run


@pytest.fixture
def ours(cu):
    """What is alive beside what was before."""
    cu.memory_info()
    before = {(row.kind, row.address) for row in cu.live_allocations()}
    return lambda: [row for row in cu.live_allocations() if (row.kind, row.address) not in before]


def test_each_kind_of_thing(cu, ours) -> None:
    plain = np.zeros(1000)
    things = {
        "device array": (cu.device_empty(100), 800, 0),
        "host memory": (cu.pinned_empty(10), 80, None),
        "pin": (cu.pin(plain), 8000, None),
        "stream": (cu.Stream(), 0, 0),
        "event": (cu.Event(), 0, 0),
        "context": (cu.Context(), 0, 0),
    }
    rows = {row.kind: row for row in ours()}
    assert set(rows) == set(things)
    for kind, thing in things.items():
        assert (rows[kind].nbytes, rows[kind].device) == thing[1:], kind
        assert rows[kind].address
        assert rows[kind].where is None
    assert [row.kind for row in ours()] == list(things), "oldest first"
    things.clear()
    del thing
    assert ours() == []


def test_row_is_a_named_tuple(cu) -> None:
    stream = cu.Stream()
    row = cu.live_allocations()[-1]
    assert isinstance(row, cut.Allocation)
    assert row == (row.kind, row.nbytes, row.address, row.device, row.where)
    assert row.address == stream.handle


def test_addresses_are_those_of_the_objects(cu, ours) -> None:
    array, pinned = cu.device_empty(3), cu.pinned_empty(3)
    assert [row.address for row in ours()] == [array.pointer, pinned.ctypes.data]


def test_views_are_not_listed_and_keep_what_is(cu, ours) -> None:
    array, pinned = cu.device_empty((4, 4)), cu.pinned_empty((4, 4))
    views = array[1:, ::2], pinned[1:, ::2]
    assert len(ours()) == 2
    del array, pinned
    assert len(ours()) == 2
    del views
    assert ours() == []


def test_empty_things_are_listed(cu, ours) -> None:
    things = cu.device_empty(0), cu.pinned_empty(0), cu.pin(np.empty(0))
    assert [row.nbytes for row in ours()] == [0, 0, 0]
    del things
    assert ours() == []


def test_copies_in_flight_hold_their_ends(cu, sim, ours) -> None:
    stream, array = cu.Stream(), cu.device_empty(100, "u1")
    sim.hold()
    cu.copy_async(array, cu.pinned_zeros(100, "u1"), stream)
    del array
    assert sorted(row.kind for row in ours()) == ["device array", "host memory", "stream"]
    sim.release()
    stream.synchronize()
    assert [row.kind for row in ours()] == ["stream"]


def test_closed_things_are_not_alive(cu, ours) -> None:
    things = cu.device_empty(3), cu.Stream(), cu.Event(), cu.pin(np.zeros(3)), cu.Context()
    for thing in things:
        thing.close()
    assert ours() == []


def test_pinned_numpy_is_listed(cu, ours) -> None:
    with cu.pinned_numpy(min_bytes=100):
        array = np.empty(1000)
    assert sum(row.nbytes for row in ours()) == 8000
    del array
    assert ours() == []


def test_tracing_tells_the_line(cu, ours) -> None:
    cu.trace_allocations()
    try:
        line = inspect.currentframe().f_lineno + 1
        stream = cu.Stream()
        array = cu.pinned_array([1, 2, 3])
    finally:
        cu.trace_allocations(enabled=False)
    event = cu.Event()
    assert [row.where for row in ours()] == [f"{__file__}:{line}", f"{__file__}:{line + 1}", None]
    del stream, array, event


def test_tracing_from_the_environment() -> None:
    program = (
        "import cudriver as cu; a = cu.pinned_empty(3); print(cu.live_allocations()[-1].where)"
    )
    assert output(program, CUDRIVER_TRACE="1") == "<string>:1\n"
    for off in ("0", "", None):
        assert output(program, CUDRIVER_TRACE=off) == "None\n"


# ---- the report at exit --------------------------------------------------------------------------

LEAKY = """
import numpy as np, cudriver as cu
array = cu.device_empty((1024, 256), "f4")
pinned = cu.pinned_empty(100)
pin = cu.pin(np.zeros(10))
stream = cu.Stream()
"""


def test_report_tells_what_is_alive_at_exit() -> None:
    done = run(LEAKY, CUDRIVER_REPORT_LEAKS="1")
    assert done.returncode == 0
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "cudriver: alive at exit: 4, 1049456 bytes in all",
        "  device array, 1048576 bytes, device 0, made at <string>:3",
        "  host memory, 800 bytes, made at <string>:4",
        "  pin, 80 bytes, made at <string>:5",
        "  stream, 0 bytes, device 0, made at <string>:6",
    ]


def test_report_is_silent_where_nothing_is() -> None:
    clean = LEAKY + "del array, pinned, pin, stream\n"
    assert output(clean, CUDRIVER_REPORT_LEAKS="1") == ""
    assert output("import cudriver._core", CUDRIVER_REPORT_LEAKS="1") == ""
    assert output("import cudriver as cu; cu.memory_info()", CUDRIVER_REPORT_LEAKS="1") == ""


def test_report_is_only_for_who_asks() -> None:
    for off in ("0", "", None):
        assert output(LEAKY, CUDRIVER_REPORT_LEAKS=off) == ""


def test_report_leaves_out_what_only_a_cycle_keeps() -> None:
    program = """
        import cudriver as cu
        class Node: pass
        node = Node(); node.self, node.array = node, cu.pinned_empty(10)
        del node
    """
    assert output(program, CUDRIVER_REPORT_LEAKS="1") == ""


def test_report_counts_contexts_of_the_user() -> None:
    program = "import cudriver as cu; context = cu.Context(); context.push()"
    done = run(program, CUDRIVER_REPORT_LEAKS="1")
    assert done.returncode == 0
    assert re.fullmatch(
        r"cudriver: alive at exit: 1, 0 bytes in all\n"
        r"  context, 0 bytes, device 0, made at <string>:1\n",
        done.stderr,
    )


def test_report_after_an_exception() -> None:
    done = run(LEAKY + "raise SystemExit(3)\n", CUDRIVER_REPORT_LEAKS="1")
    assert done.returncode == 3
    assert "alive at exit: 4" in done.stderr
