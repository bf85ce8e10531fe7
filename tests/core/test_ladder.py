"""What the bench makes of its timings, and how much memory it takes."""

from __future__ import annotations

import statistics
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudriver as cu
from cudriver.ladder import bench, measure, plot, report
from cudriver.ladder.result import Measured, add_ratios, number, show_size
from cudriver.ladder.room import SMALLEST, shrinking
from cudriver.ladder.rungs import BY_NAME

pytestmark = pytest.mark.apart

MIB = 1 << 20


def row(rung: str, way: str, rate: float, **more: Any) -> dict[str, Any]:
    """A row of one size with a rate in GB/s."""
    measured = Measured(BY_NAME[rung], way, MIB, seconds=[MIB / rate / 1e9], asked=MIB, **more)
    return measured.to_dict()


@pytest.mark.parametrize("count", [2, 3, 4, 5, 10])
def test_the_spread_is_half_of_what_lies_between_the_quartiles(count: int) -> None:
    seconds = np.random.default_rng(count).uniform(1e-3, 2e-3, count).tolist()
    measured = Measured(BY_NAME["staged"], "to_device", MIB, seconds=seconds)
    rates = [MIB / each / 1e9 for each in seconds]
    low, high = np.quantile(rates, [0.25, 0.75])
    rate = MIB / statistics.median(seconds) / 1e9
    assert measured.rate == pytest.approx(rate)
    assert measured.spread == pytest.approx((high - low) / 2 / rate)
    found = measured.to_dict()
    assert (found["lowest"], found["highest"]) == pytest.approx((min(rates), max(rates)))


def test_one_timing_has_no_spread_and_none_no_rate() -> None:
    one = Measured(BY_NAME["staged"], "to_device", MIB, seconds=[1.0])
    none = Measured(BY_NAME["peer"], "copy", MIB, skipped="there is one device")
    assert (one.spread, none.rate, none.spread) == (0.0, None, None)
    assert none.to_dict()["lowest"] is None


def test_of_several_pairs_of_peers_the_first_stands_for_all() -> None:
    rows = [
        row("page_locked", "to_device", 10.0),
        row("page_locked", "from_device", 20.0),
        row("peer", "copy", 40.0, devices=(0, 1)),
        row("peer", "copy", 80.0, devices=(1, 0)),
        row("device", "copy", 200.0),
        row("global", "write", 100.0),
        {**row("global", "read", 1.0), "gb_per_s": None},
    ]
    add_ratios(rows)
    above = [each["ratio_to_above"] for each in rows]
    locked = [each["ratio_to_page_locked"] for each in rows]
    # A copy counts as the way to the device, and stands above both ways of the next rung.
    assert [above[0], above[1], above[6], locked[6]] == [None] * 4
    assert above[2:6] == pytest.approx([4.0, 8.0, 5.0, 0.5])
    assert locked[:6] == pytest.approx([1.0, 1.0, 4.0, 8.0, 20.0, 5.0])


def test_ratios_are_of_rows_of_one_size() -> None:
    rows = [row("page_locked", "to_device", 10.0), row("device", "copy", 30.0)]
    rows[1]["size"] = 2 * MIB
    add_ratios(rows)
    assert [rows[1][f"ratio_to_{name}"] for name in ("above", "page_locked")] == [None, None]


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0.125, "0.12"), (9.994, "9.99"), (9.995, "10.0"), (99.94, "99.9"), (99.95, "100"),
        (1234.5, "1,234"),
    ],
)  # fmt: skip
def test_rates_have_three_figures(rate: float, text: str) -> None:
    assert number(rate) == text


def test_sizes_at_the_edge_of_a_unit() -> None:
    sizes = (1023, 1024, 4080, MIB, MIB - 1024, 3 * MIB // 2, 1 << 30)
    told = ["1023 bytes", "1 KiB", "3.984 KiB", "1 MiB", "1023 KiB", "1.5 MiB", "1 GiB"]
    assert [show_size(n) for n in sizes] == told


# --- memory ---


def test_half_after_half_is_tried_down_to_the_smallest() -> None:
    asked: list[int] = []

    def make(size: int) -> int:
        asked.append(size)
        if size > SMALLEST:
            raise MemoryError(f"not {size}")
        return size

    made, note = shrinking(4 * SMALLEST, make)
    assert (made, asked) == (SMALLEST, [4 * SMALLEST, 2 * SMALLEST, SMALLEST])
    assert note == f"No memory for 16 KiB (not {4 * SMALLEST}): measured with 4 KiB."
    assert shrinking(SMALLEST, make) == (SMALLEST, None)
    asked.clear()
    with pytest.raises(MemoryError, match=f"not {SMALLEST + 16}"):
        shrinking(SMALLEST + 16, make)
    assert asked == [SMALLEST + 16]


def test_a_half_is_a_multiple_of_16() -> None:
    sizes: list[int] = []

    def make(size: int) -> int:
        sizes.append(size)
        if len(sizes) == 1:
            raise MemoryError
        return size

    assert shrinking(2 * SMALLEST + 16 + 32, make)[0] == SMALLEST + 16


def test_three_arrays_must_find_room_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "host_room", lambda: 3 * MIB)
    assert bench.Arrays(MIB, cu.Device(0)).size == MIB
    monkeypatch.setattr(bench, "host_room", lambda: 3 * MIB - 1)
    with pytest.raises(MemoryError, match="three such arrays"):
        bench.Arrays(MIB, cu.Device(0))


def test_what_fits_the_cache_is_said_to_its_last_byte() -> None:
    device = cu.Device(0)
    cache = device.attributes["l2_cache_size"]
    assert cache
    notes = []
    for touched in (cache, cache + 1):
        measured = Measured(BY_NAME["device"], "copy", MIB)
        bench.Bench(device, 1, False).mark_cached(measured, touched)
        notes.append(len(measured.notes))
    assert notes == [1, 0]


@pytest.mark.parametrize(
    ("size", "enough", "count"),
    [(1, 16, 16), (16, 16, 1), (17, 16, 1), (1, 257, 256), (1, 255, 255)],
)
def test_small_pieces_are_timed_several_at_once(size: int, enough: int, count: int) -> None:
    assert bench.Bench(cu.Device(0), 1, False).at_once(size, enough) == count
    assert bench.Bench(cu.Device(0), 1, True).at_once(size, enough) == 1


@pytest.mark.parametrize("simulated", [False, True])
def test_a_timing_is_of_one_copy(monkeypatch: pytest.MonkeyPatch, simulated: bool) -> None:
    """A copy takes 2 s by this clock, however many are timed at once."""
    now = [0.0]

    class Event:
        def __init__(self, **_: Any) -> None:
            self.at = 0.0

        def record(self, stream: Any) -> None:
            self.at = now[0]

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: Event) -> float:
            return (end.at - self.at) * 1e3

    copies = 0

    def copy() -> None:
        """The first takes longer: it is timed by nobody."""
        nonlocal copies
        now[0] += 2.0 if copies else 100.0
        copies += 1

    monkeypatch.setattr(bench, "perf_counter", lambda: now[0])
    monkeypatch.setattr(cu, "Event", Event)
    timed = bench.Bench(cu.Device(0), 3, simulated)
    stream: Any = SimpleNamespace(device=timed.device)
    array: Any = SimpleNamespace(nbytes=MIB)
    assert timed.blocking(copy, MIB) == [2.0] * 3
    assert copies == 1 + 3 * (1 if simulated else 16)
    at_once, copies = 1 if simulated else 256, 0
    assert timed.issued(copy, stream, array) == [2.0] * 3
    assert copies == 1 + 3 * at_once
    # A time that the events do not resolve is not taken for nothing.
    assert timed.issued(lambda: None, stream, array) == [bench.RESOLUTION / at_once] * 3


@pytest.mark.parametrize("size", [0, SMALLEST - 16, SMALLEST + 4, SMALLEST + 8, MIB + 1])
def test_sizes_that_no_kernel_takes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"a size is a multiple of 16 .*, not {size}"):
        measure(cu.Device(0), [MIB, size], 1)


def test_no_round_is_too_few() -> None:
    with pytest.raises(ValueError, match="from 1 on, not 0"):
        measure(cu.Device(0), [MIB], 0)


# --- what is shown ---


@pytest.mark.parametrize("count", [1, 3, 4])
def test_up_to_three_pairs_of_peers_have_a_bar_each(count: int) -> None:
    rows = [
        row("peer", "copy", 10.0 + target, devices=ends)
        for target in range(1, count + 1)
        for ends in ((0, target), (target, 0))
    ]
    names = [name for name, *_ in plot.bar_pairs({"rungs": rows}, "peer")]
    if count > 3:
        wanted = ["fastest peer, GPU 0 and 4", "slowest peer, GPU 0 and 1"]
    else:
        wanted = [f"peer, GPU 0 and {target}" for target in range(1, count + 1)]
    assert names == wanted


def shown(sizes: list[int], rows: list[dict[str, Any]], width: int) -> list[str]:
    whole = {
        "simulated": False, "device": {"ordinal": 0, "name": "x"}, "rounds": 1, "sizes": sizes,
        "driver": {"cuda": "13.0", "path": "/x"}, "notes": [], "verified": True, "rungs": rows,
    }  # fmt: skip
    add_ratios(rows)
    return list(report.lines(whole, None, report.Style(width)))


def test_eighty_columns_have_the_ratio_to_the_rung_above() -> None:
    heads = {width: "\n".join(shown([MIB], [], width)) for width in (79, 80, 81)}
    assert {width: "one above" in head for width, head in heads.items()} == {
        79: False,
        80: True,
        81: True,
    }


def test_a_sweep_says_once_why_a_rung_was_skipped() -> None:
    rows = [
        Measured(BY_NAME["peer"], "copy", size, skipped="there is one device", asked=size).to_dict()
        for size in (MIB, 2 * MIB)
    ]
    lines = shown([MIB, 2 * MIB], rows, 80)
    assert [line for line in lines if "one device" in line] == ["peer: there is one device"]


def test_a_sequence_is_looked_at_to_its_end() -> None:
    length = (1 << 18) + 5  # more than the piece that is compared at once
    words = (np.arange(length, dtype=np.uint64) * 0x9E3779B1 + 20).astype(np.uint32)
    assert bench.is_sequence(words, 20)
    assert not bench.is_sequence(words, 21)
    for at in (0, (1 << 18) - 1, 1 << 18, length - 1):
        wrong = words.copy()
        wrong[at] ^= 1
        assert not bench.is_sequence(wrong, 20)


# --- what is verified ---


def climbed(rungs: tuple[str, ...] = ()) -> dict[str, Any]:
    """The report of one size of one round, of these rungs or of all."""

    def some(steps: list[bench.Step]) -> list[bench.Step]:
        return [step for step in steps if not rungs or step.name.endswith(rungs)]

    return measure(cu.Device(0), [SMALLEST], 1, some)


def wrong(told: dict[str, Any]) -> set[str]:
    assert told["verified"] is all(row["verified"] for row in told["rungs"] if not row["skipped"])
    return {f"{row['rung']} {row['direction']}" for row in told["rungs"] if not row["verified"]}


@pytest.mark.usefixtures("two_devices")
def test_a_rung_whose_bytes_do_not_arrive_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong(climbed()) == set()
    copy, kernel = cu.copy, bench._core._ladder_kernel
    with monkeypatch.context() as patch:
        patch.setattr(bench._core, "_ladder_copy", lambda target, source: None)
        assert wrong(climbed()) == {"pageable to_device", "pageable from_device"}
    with monkeypatch.context() as patch:
        patch.setattr(cu, "copy_async", lambda *_: None)
        # The copies between devices are those of cu.copy, where they wait.
        assert wrong(climbed()) == {"peer copy"}
    for name, missed in (("read", 0), ("write", 1)):

        def idle(kind: str, memory: Any, sums: Any, *rest: int, name: str = name) -> list[float]:
            return [1.0] if kind.endswith(name) else kernel(kind, memory, sums, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(bench._core, "_ladder_kernel", idle)
            way = ("read", "write")[missed]
            assert wrong(climbed()) == {f"{rung} {way}" for rung in ("mapped", "global", "shared")}

    def half(target: Any, source: Any) -> None:
        """Copies all but the last word."""
        copy(target, source)
        if isinstance(target, np.ndarray):
            target[-1] ^= 1
        else:
            target[-1:].fill(1)

    with monkeypatch.context() as patch:
        patch.setattr(cu, "copy", half)
        found = wrong(climbed())
    assert {"staged to_device", "staged from_device", "page_locked to_device"} <= found
    assert {"page_locked from_device", "device copy"} <= found
    with monkeypatch.context() as patch:
        patch.setattr(bench._core, "_ladder_copy", half)
        assert wrong(climbed()) == {"pageable to_device", "pageable from_device"}


def test_the_steps_are_the_rungs_size_by_size_and_the_last_has_what_no_size_changes() -> None:
    steps = bench.Bench(cu.Device(0), 1, True).steps([SMALLEST, MIB])
    titles = [rung.title for rung in BY_NAME.values()]
    assert titles[-1] == "shared, in a kernel"
    assert [step.name for step in steps] == [
        *(f"4 KiB: {title}" for title in titles[:-1]), *(f"1 MiB: {title}" for title in titles)
    ]  # fmt: skip


def test_the_report_tells_the_device_and_the_driver() -> None:
    told, device = climbed(("to device", "page-locked")), cu.Device(0)
    assert {row["rung"] for row in told["rungs"]} == {"device", "page_locked"}
    major, minor = device.compute_capability
    assert told["device"] == {
        "ordinal": 0, "name": device.name, "compute_capability": f"{major}.{minor}",
        "multiprocessor_count": device.multiprocessor_count,
        "l2_cache_bytes": device.attributes["l2_cache_size"],
    }  # fmt: skip
    assert told["driver"] == {"cuda": str(cu.driver_version()), "path": cu.driver_path()}
    assert (told["schema"], told["rounds"], told["sizes"]) == (1, 1, [SMALLEST])
    assert (told["interrupted"], told["notes"]) == (False, [])
    assert told["device_count"] == cu.device_count()
    simulated = "simulated driver: no GPU takes part, so no rates are given"
    assert told["meaningless"] == (simulated if cu.driver_is_simulated() else None)


def test_the_cache_is_said_where_both_ends_of_a_copy_or_what_a_kernel_touches_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    touched = []
    monkeypatch.setattr(
        bench.Bench, "mark_cached", lambda _, result, size: touched.append((result.rung.name, size))
    )
    climbed()
    assert touched == [("device", 2 * SMALLEST), ("global", SMALLEST), ("global", SMALLEST)]


def test_the_bench_leaves_no_memory_behind(no_leaks: None) -> None:
    before = cu.host_memory_stats().registered_bytes
    climbed()
    assert cu.host_memory_stats().registered_bytes <= before


@pytest.mark.usefixtures("two_devices")
def test_two_devices_that_do_not_reach_each_other_are_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for reach, notes in (
        (False, ["These two cannot reach each other: the driver goes by the host."]),
        (True, []),
    ):
        monkeypatch.setattr(cu.Device, "can_access_peer", lambda _, other, reach=reach: reach)
        rows = [row for row in climbed(("peer",))["rungs"] if row["devices"] in ([0, 1], [1, 0])]
        assert [row["devices"] for row in rows] == [[0, 1], [1, 0]]
        assert [row["notes"] for row in rows] == [notes, notes]


@pytest.mark.usefixtures("two_devices")
def test_a_peer_copy_that_finds_less_memory_is_of_that(monkeypatch: pytest.MonkeyPatch) -> None:
    timed, devices = bench.Bench(cu.Device(0), 1, True), []
    arrays, stream = bench.Arrays(2 * SMALLEST, cu.Device(0)), cu.Stream
    monkeypatch.setattr(bench, "shrinking", lambda size, make: (make(size // 2), "less"))

    def made(**options: Any) -> cu.Stream:
        devices.append(options["device"].ordinal)
        return stream(**options)

    monkeypatch.setattr(cu, "Stream", made)
    found = timed.peer(arrays, cu.Device(1), cu.Device(0))
    assert (found.size, found.devices, found.notes[0]) == (SMALLEST, (1, 0), "less")
    assert (found.verified, devices) == (True, [1])  # in the order of the source


def test_a_size_s_arrays_go_before_the_next_ones_come(monkeypatch: pytest.MonkeyPatch) -> None:
    timed, seen, arrays = bench.Bench(cu.Device(0), 1, True), [], bench.Arrays

    def made(size: int, device: cu.Device) -> bench.Arrays:
        seen.append((size, timed.arrays))
        return arrays(size, device)

    monkeypatch.setattr(bench, "Arrays", made)
    for step in timed.steps([SMALLEST, 2 * SMALLEST]):
        if step.name.endswith("page-locked"):
            step.run()
            step.run()
    assert seen == [(SMALLEST, None), (2 * SMALLEST, None)]


def test_a_driver_too_old_to_tell_of_threads_and_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    known = dict(cu.Device(0).attributes)
    known |= {"max_threads_per_multiprocessor": None, "l2_cache_size": None}
    monkeypatch.setattr(cu.Device, "attributes", property(lambda self: known))
    told = climbed(("global, in a kernel",))
    assert wrong(told) == set()
    assert [row["notes"] for row in told["rungs"]] == [[], []]
    assert told["device"]["l2_cache_bytes"] is None


def test_what_cu_copy_moves_has_its_path_and_nothing_else_has() -> None:
    paths: dict[str, set[str | None]] = {}
    for row in climbed()["rungs"]:
        paths.setdefault(row["rung"], set()).add(row["path"])
    paths.pop("peer")
    # 4 KiB: so small an array is left to the driver.
    assert paths == {
        "pageable": {None}, "staged": {"direct"}, "page_locked": {"direct"}, "mapped": {None},
        "device": {"direct"}, "global": {None}, "shared": {None},
    }  # fmt: skip
