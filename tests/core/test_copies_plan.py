"""explain_copy() of many copies: what it says is what the driver is then asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cudriver as cu
import cudriver.typing as cut

pytestmark = pytest.mark.usefixtures("no_leaks")

COPIES = ("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2")
MIB = 1 << 20


def device(*shape: int) -> Any:
    return cu.device_empty(shape, np.uint8)


def locked(*shape: int) -> Any:
    return cu.pinned_zeros(shape, np.uint8)


def plain(*shape: int) -> Any:
    return np.zeros(shape, np.uint8)


#: The ends of copy_rows, how many rows; the path, launches of the kernel, copies by the driver.
ROWS: dict[str, tuple[Callable[[], Any], Callable[[], Any], int, str, int, int]] = {
    "up": (lambda: device(9, 512), lambda: locked(9, 512), 9, "kernel", 1, 0),
    "down": (lambda: locked(9, 512), lambda: device(9, 512), 9, "kernel", 1, 0),
    "on the device": (lambda: device(9, 512), lambda: device(9, 512), 9, "kernel", 1, 0),
    "few": (lambda: device(3, 512), lambda: locked(3, 512), 3, "direct", 0, 3),
    "as few as it does": (lambda: device(4, 512), lambda: locked(4, 512), 4, "kernel", 1, 0),
    "large": (lambda: device(5, MIB), lambda: locked(5, MIB), 5, "direct", 0, 5),
    "almost large": (lambda: device(5, MIB - 1), lambda: locked(5, MIB - 1), 5, "kernel", 1, 0),
    "pageable": (lambda: device(9, MIB), lambda: plain(9, MIB), 9, "staged", -1, 0),
    "strided": (lambda: device(5, 64)[:, ::2], lambda: locked(5, 64)[:, ::2], 5, "apart", -1, -1),
    "one pageable": (lambda: device(1, MIB), lambda: plain(1, MIB), 1, "apart", -1, -1),
    "none": (lambda: device(5, 64), lambda: locked(5, 64), 0, "empty", 0, 0),
}


@pytest.mark.parametrize("case", ROWS)
def test_rows_go_as_it_says(sim: Any, case: str) -> None:
    there, source, count, path, launches, copies = ROWS[case]
    dst, src, rows = there(), source(), np.arange(count)
    warm = device(9, 64), locked(9, 64)
    cu.copy_rows(warm[0], warm[1], range(9), range(9))  # loads the kernel
    sim.settle()
    sim.reset_counts()
    plan = cu.explain_copy(dst, src, dst_rows=rows, src_rows=rows[::-1])
    assert [sim.call_count(name) for name in (*COPIES, "cuLaunchKernel")] == [0] * 4
    assert plan.path == path
    assert plan.counts == ({path: count} if count else {})
    cu.copy_rows(dst, src, rows, rows[::-1])
    if launches >= 0:
        assert sim.call_count("cuLaunchKernel") == launches
    elif path == "staged":
        assert sim.call_count("cuLaunchKernel") > 0
    if copies >= 0:
        assert sum(map(sim.call_count, COPIES)) == copies
    assert plan.nbytes == count * dst[:1].nbytes
    assert (plan.multiprocessors > 0) == (path in ("kernel", "staged"))


def test_beside_a_big_copy_it_tells_what_the_call_does(held: Any) -> None:
    sizes = (2 * MIB, 65536)
    there, source = [device(each) for each in sizes], [locked(each) for each in sizes]
    big, other = (device(64 * MIB), locked(64 * MIB)), cu.Stream()
    held.settle()
    held.hold()
    flying = cu.copy_async(*big, cu.Stream())
    plan = cu.explain_copy(there, source)
    assert plan.counts == {"kernel": 2}
    assert plan.why.endswith("; copy_async() for each takes none")
    assert cu.explain_copy(there[1:], [plain(65536)]).counts == {"staged": 1}
    held.reset_counts()
    copied = cu.copy_many_async(there, source, other)
    assert [held.call_count(name) for name in (*COPIES, "cuLaunchKernel")] == [0, 0, 0, 1]
    held.release()
    copied.wait()
    flying.wait()


def test_it_says_what_the_kernel_takes_and_how_to_avoid_it() -> None:
    there, source = device(64, 1 << 18), locked(64, 1 << 18)
    plan = cu.explain_copy(there, source, dst_rows=range(64), src_rows=range(64))
    has = cu.Device(0).multiprocessor_count
    assert plan.multiprocessors == min(32, has)
    assert f"at most {plan.multiprocessors} of the device's {has} multiprocessors" in plan.why
    assert plan.seconds == pytest.approx(16 * MIB / 50e9)
    assert "for about 335.5 us" in plan.why
    assert "copies of 1 MiB and more" in plan.why
    assert "copy_async()" in plan.why


def test_many_copies_of_many_kinds() -> None:
    there = [device(64) for _ in range(5)] + [device(2 * MIB), device(64), device(64), device(0)]
    source = [locked(64) for _ in range(5)] + [locked(2 * MIB), plain(64), plain(64), plain(0)]
    there.append(device(2, 64)[:, ::2])
    source.append(locked(2, 64)[:, ::2])
    plan = cu.explain_copy(there, source)
    assert plan.counts == {"kernel": 5, "direct": 1, "staged": 2, "apart": 1}
    assert plan.path == "direct", "of most of the bytes"
    assert plan.nbytes == 7 * 64 + 2 * MIB + 64
    assert (plan.page_locked, plan.staging, plan.threads) == (False, None, 0)
    assert type(plan) is type(cu.explain_copy(there[0], source[0])) is cut.CopyPlan
    assert cu.explain_copy(there[:6], source[:6]).page_locked
    html = plan._repr_html_()
    assert "kernel: 5, direct: 1, staged: 2, apart: 1" in html
    assert f"up to {plan.multiprocessors}" in html
    assert cu.explain_copy(tuple(there), tuple(source)) == plan
    assert cu.explain_copy([], []).path == "empty"


def test_memory_that_is_page_locked_in_part() -> None:
    source, there = plain(16, 4096), device(16, 4096)
    with cu.pin(source[4:12]):
        at = range(16)
        plan = cu.explain_copy([there[i] for i in at], [source[i] for i in at])
        assert plan.counts == {"kernel": 8, "staged": 8}
    whole = cu.explain_copy(there, source, dst_rows=range(16), src_rows=range(16))
    assert whole.counts == {"staged": 16}


@pytest.mark.parametrize(
    ("error", "text", "call"),
    [
        (TypeError, "together", lambda d, h: cu.explain_copy(d, h, dst_rows=[0])),
        (TypeError, "together", lambda d, h: cu.explain_copy(d, h, src_rows=[0])),
        (IndexError, "index 4", lambda d, h: cu.explain_copy(d, h, dst_rows=[4], src_rows=[0])),
        (ValueError, "twice", lambda d, h: cu.explain_copy(d, h, dst_rows=[1, 1], src_rows=[0, 1])),
        (ValueError, "lengths", lambda d, h: cu.explain_copy(d, h, dst_rows=[1], src_rows=[])),
        (ValueError, "overlap", lambda d, h: cu.explain_copy([d, d[1:]], [h, h[1:]])),
        (ValueError, "1 destinations", lambda d, h: cu.explain_copy([d], [])),
        (TypeError, "not an array", lambda d, h: cu.explain_copy([d], [3])),
    ],
)
def test_it_raises_what_the_copies_would(error: type[Exception], text: str, call: Any) -> None:
    with pytest.raises(error, match=text):
        call(device(4, 64), locked(4, 64))
