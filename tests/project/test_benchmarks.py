"""benchmarks/: that a run makes every row of the table, and that its ratios are right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from native_build import ROOT, compiler

pytestmark = [
    pytest.mark.apart,
    pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="no benchmarks beside the tests"),
    pytest.mark.skipif(
        bool(os.environ.get("CUDRIVER_TEST_SANITIZER")), reason="a sanitizer's times mean nothing"
    ),
]

# The works that the project is held to, as they were agreed.
WORKS = [
    "plain NumPy array to device, 1-2 GiB",
    "device to plain NumPy array, 1-2 GiB",
    "the same, 256 MiB",
    "the same, 64 MiB",
    "the same, 16 MiB",
    "the same, 4 MiB",
    "pinned array to or from device, 1 GiB",
    "`a.T` of a plain 512 MiB array into a C-ordered device array",
    "`a[:, ::2]` to the device, 256 MiB of data",
    "`a[:, :n/2]` to the device, 256 MiB",
    "device to `a[:, ::2]`",
    "plain arrays to two GPUs at once, 32 cores",
    "up and down at once on one GPU, plain arrays",
    "from one GPU to another, 1 GiB (NVLink)",
    "`copy_async` of ordinary memory until it returns, the source read",
    "the same on a stream that is busy for 50 ms",
    "256 MiB with `borrow=True` until it returns",
    "page-locked copies of 4 KiB, 64 KiB, 1 and 16 MiB beside 1 GiB in the same direction",
    "any size, 4 KiB to 4 GiB, any path",
    "page-locked 2 GiB, first time",
    "page-locked 32 GiB beside other work; the longest wait of a 64 KiB copy meanwhile",
    "page-locked 48 GiB with `pieces=True`; the longest wait of another process and thread",
    "shared memory of 16 GiB: touched and page-locked",
    "page-locked array from the pool, 1 MiB and 1 GiB",
    "np.empty inside `pinned_numpy()`, reuse",
    "4 KiB asynchronous copy, issue cost",
    "4 KiB asynchronous copies from 1 to 16 threads, a stream each",
    "page-locked 1 MiB, taken and given back by 1 to 16 threads",
    "device allocate + free, 1 MiB",
    "context push + pop",
    "import, over a bare interpreter",
    "environment report",
    "`NHWC -> NCHW` of 256 uint8 images of 512 x 512 x 3 (192 MiB) to the device",
    "5 of 64 float64 columns of 2^20 rows (40 MiB) to the device",
    "feeding 8 plain batches of 36.8 MiB while the GPU computes for 77.6 ms",
    "1 MiB plain, one copy right after another",
    "`to_device` of 1000 floats",
    "`torch.from_dlpack(d)`",
    "`cu.from_dlpack(t)`, with address, shape, strides and type",
    "4 KiB asynchronous copy into another library's array, shape and type checked, issue cost",
    "`copy_rows`, 4,096 random rows of a page-locked GiB",
    "the same rows of plain memory",
    "the same, until the call returns",
    "blocks of 4 KiB to 1 MiB, as in vllm#48936: naive, batch, swap and Triton",
    "check of an environment with torch, JAX, TensorFlow and ONNX Runtime",
    "safetensors, 5 GiB of bfloat16 in 40 tensors, in the page cache",
    "the same, not in the page cache",
    "a mixture of experts, 16 GiB of bfloat16 in 14,004 tensors in 4 files in memory",
    "`save_safetensors`, 16 GiB of 14,004 device arrays into a file",
    "two GPUs: 64 KiB beside 1 GiB of the other GPU's, or between the two",
    "two GPUs: two ranks load one set of weight files, a half of each matrix each",
    "two GPUs: `save_safetensors`, 16 GiB that lie on both",
    "two GPUs: shared memory of 16 GiB, page-locked by two processes at once",
]
NOT_HERE = {"one GPU", "needs PyTorch", "no environment given"}
OURS = "cudriver"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def part(**more: Any) -> Any:
    from benchmarks.measure import Part

    made = Part("", **more)
    made.samples = {OURS: [0.02, 0.01, 0.03], "pinned": [0.018] * 3, "driver": [0.1, 0.1, 0.1]}
    return made


@pytest.mark.slow
def test_a_run_makes_every_row(tmp_path: Path) -> None:
    tables, figures = tmp_path / "performance.md", tmp_path / "figures.json"
    tables.write_text("before\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nafter\n")
    compiler()  # times the driver's calls
    command = [sys.executable, "-m", "benchmarks", "--quick", "--most", "262144"]
    environ = dict(os.environ)
    if environ.get("CUDRIVER_LIBRARY") == "sim":
        environ["CUDRIVER_SIM_DEVICES"] = "2"
    done = subprocess.run(
        [*command, "--markdown", str(tables), "--json", str(figures)],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    document = json.loads(figures.read_text())
    rows = {row["name"]: row for row in document["rows"]}
    assert list(rows) == WORKS
    for name, row in rows.items():
        if row["verdict"] in NOT_HERE:
            continue
        assert row["parts"], name
        for measured in row["parts"]:
            assert not {OURS, "pinned", "driver"} & set(measured["failed"]), name
            assert measured["figures"][OURS]["median_s"] > 0, name
    text = tables.read_text()
    assert text.startswith("before\n<!-- bench:begin -->\n")
    assert text.endswith("<!-- bench:end -->\nafter\n")
    assert "old" not in text
    lines = text.splitlines()
    assert all(any(line.startswith(f"| {name} |") for line in lines) for name in WORKS)
    if document["simulated"]:
        assert "SIMULATED DRIVER" in text
        assert rows[WORKS[0]]["verdict"] == "simulated"


def test_ratios_are_to_the_target() -> None:
    from benchmarks.measure import at_least_rate, at_most, times_as_fast

    nbytes = 10**9  # 50 GB/s in the median of 20 ms
    assert part(nbytes=nbytes).figure() == pytest.approx(50)
    assert at_least_rate(40)(part(nbytes=nbytes)) == pytest.approx(50 / 40)
    assert at_most(0.01)(part()) == pytest.approx(0.5)
    # ours reaches 18/20 of the pinned rate
    assert times_as_fast(0.9, "pinned")(part()) == pytest.approx(1.0)
    assert times_as_fast(1.0)(part()) == pytest.approx(0.9)  # against the fastest
    assert times_as_fast(2.5, "driver")(part()) == pytest.approx(2.0)
    assert times_as_fast(1.0, "nobody")(part()) is None


def test_a_row_is_met_where_its_worst_part_is() -> None:
    from benchmarks.measure import at_most
    from benchmarks.row import Row

    def row(*parts: Any, note: str = "") -> Any:
        return Row("", "", lambda bench: [], list(parts), note)

    good, bad = part(goals=[at_most(0.04)]), part(goals=[at_most(0.01)])
    assert row(good).verdict() == "met"
    assert row(good, bad).ratio() == pytest.approx(0.5)
    assert row(good, bad).verdict() == "not met"
    assert row(good, part()).verdict() == "met"  # a part without a goal is not judged
    assert row(good, note="one GPU").verdict() == "one GPU"
    simulated = row(bad)
    simulated.simulated = True
    assert simulated.verdict() == "simulated"


def test_what_cannot_be_measured_is_noted() -> None:
    from benchmarks.measure import Skip
    from benchmarks.row import Row

    def fails(error: Exception) -> Any:
        def build(bench: Any) -> list[Any]:
            raise error

        row = Row("", "", build)
        row.run(SimpleNamespace(simulated=False))  # type: ignore[arg-type]
        return row.verdict()

    assert fails(Skip("one GPU")) == "one GPU"
    assert fails(OSError("no such thing")) == "FAILED: OSError: no such thing"


def test_one_contestants_failure_is_its_own() -> None:
    from benchmarks.measure import Part, Target, Work, WrongBytes

    def broken() -> Work:
        raise OSError("no such thing")

    def late() -> Work:
        runs = iter([None])
        return Work(lambda: next(runs))

    def verify(work: Work) -> None:
        raise WrongBytes("other bytes")

    def nothing() -> Work:
        raise NotImplementedError

    made = Part("", calls=5)
    made.makers[OURS] = lambda: lambda: None
    made.makers["nothing"] = nothing
    made.makers["broken"] = broken
    made.makers["late"] = late
    made.makers["liar"] = lambda: Work(lambda: None, targets=(Target(np.zeros(1)),))
    made.run({"rounds": 4, "budget": 1, "least": 3, "long": 1.5}, verify)
    assert len(made.samples[OURS]) == 4
    assert set(made.samples) == {OURS}
    assert made.failed == {
        "broken": "OSError: no such thing",
        "late": "StopIteration: ",
        "liar": "WrongBytes: other bytes",
    }


@pytest.fixture
def bench(no_leaks: None) -> Iterator[Any]:
    """Arrays of 64 KiB at most."""
    from benchmarks.bench import Bench

    made = Bench(quick=True, most=1 << 16)
    yield made
    vars(made).clear()  # pytest still references it while `no_leaks` counts


def test_wrong_bytes_are_seen(cu: Any, bench: Any) -> None:
    from benchmarks.measure import Target, Work, WrongBytes

    host, out = bench.host(4096), bench.out(4096)
    there = cu.to_device(host)
    down, up = (Target(host, out=out),), (Target(host, pointer=there.pointer),)
    bench.verify(Work(lambda: cu.copy(there, host), targets=up))
    bench.verify(Work(lambda: cu.copy(out, there), targets=down))
    assert np.array_equal(out, host)
    for work in (
        Work(lambda: None, targets=up),
        Work(lambda: cu.copy(out[1:], there[1:]), targets=down),
        Work(lambda: cu.copy(there, host), targets=up + down),
    ):
        with pytest.raises(WrongBytes):
            bench.verify(work)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_view_is_compared_item_by_item(cu: Any, bench: Any, transposed: bool) -> None:
    from benchmarks.measure import Target, Work, WrongBytes

    base = bench.host(4096).reshape(32, 128)
    shown = base.T if transposed else base[:, ::2]
    there, out = cu.device_empty(shown.shape, np.uint8), np.empty((64, 256), np.uint8)[:, ::2]
    bench.verify(bench.ours.strided_up(base, lambda a: a.T if transposed else a[:, ::2]))
    bench.verify(bench.ours.strided_down(base, lambda a: a[::-1], out[:32]))
    up = (Target(shown, pointer=there.pointer),)
    for targets in (up, (Target(base, out=out[32:]),)):
        with pytest.raises(WrongBytes):
            bench.verify(Work(lambda: cu.copy(there, np.flip(shown, 0).copy()), targets=targets))


@pytest.mark.parametrize("pinned", [False, True], ids=["plain", "pinned"])
def test_the_drivers_own_copies_do_the_work(bench: Any, pinned: bool) -> None:
    compiler()
    host, out, driver = bench.host(5000, pinned), bench.out(5000, pinned), bench.driver
    for options in ({"calls": 2}, {"stream": driver.stream()}, {"wait": False}):
        bench.verify(driver.up(host, **options))
        bench.verify(driver.down(host, out, **options))
    assert driver.up(host, wait=False).after is not None


def test_a_sequence_of_calls_passes_what_one_has_written_to_the_next(bench: Any) -> None:
    import ctypes
    import gc

    compiler()
    place = ctypes.c_uint64(0)
    take = ("cuMemAlloc_v2", ctypes.addressof(place), 4096)
    works = [
        bench.driver.timed([take, ("cuMemFree_v2", place)], 3),
        bench.driver.timed([take], after=[("cuMemFree_v2", place)]),
    ]
    gc.collect()  # the words of a sequence live as long as it
    assert all(work.seconds() > 0 for work in works)
    with pytest.raises(RuntimeError, match=r"cuMemFree_v2.*: 1"):
        bench.driver.timed([("cuMemFree_v2", place.value + 1)]).run()


def test_without_a_compiler_the_driver_alone_has_no_figures(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.measure import Part
    from benchmarks.peers import driver

    driver.compiled.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    (part,) = bench.offer(Part(""), lambda who: who.up(bench.host(64)))
    part.run(bench.effort(part), bench.verify)
    assert list(part.samples) == [OURS]
    assert "no-such-compiler" in part.failed["driver"]


def test_works_at_once_raise_what_one_of_them_raises() -> None:
    from benchmarks.measure import Work
    from benchmarks.rows.together import at_once

    done: list[int] = []
    with pytest.raises(ZeroDivisionError):
        at_once([Work(lambda: 1 // 0), Work(lambda: done.append(1))]).run()
    assert done == [1]


def test_a_peers_works_are_built_from_how_it_copies(cu: Any, bench: Any) -> None:
    """A peer that is cudriver itself, so that every work can be verified."""
    from benchmarks.peers.base import Peer
    from benchmarks.peers.ours import Own

    class AddressesOnly(Own):
        own, views = cu.Stream(), True

        def locked(self, like: Any) -> Any:
            made = cu.pinned_empty_like(like)
            return made, made

        def issue(self, target: Any, source: Any, stream: Any = None) -> Any:
            to, origin = weakref.ref(target), weakref.ref(source)
            return lambda: cu.copy_async(to(), origin(), stream or self.own)

        def wait(self, stream: Any = None) -> Any:
            return (stream or self.own).synchronize

        def contiguous(self, shown: Any) -> Any:
            return np.ascontiguousarray(shown)

        def assign(self, there: Any, view: Any) -> None:
            self.own.synchronize()
            cu.copy(there, view)

    peer, host, out = AddressesOnly(), bench.host(4096), bench.out(4096)
    base = host.reshape(32, 128)
    for pinned in (False, True):
        sent, got = bench.host(4096, pinned), bench.out(4096, pinned)
        bench.verify(peer.up(sent, calls=2))
        bench.verify(peer.up(sent, stream=peer.stream()))
        bench.verify(peer.down(sent, got))
        bench.verify(peer.up(sent, wait=False))
    packed_there, packed_here = peer.strided_up(base, lambda a: a[:, ::2])
    bench.verify(packed_there)
    bench.verify(packed_here)
    bench.verify(peer.strided_down(base, lambda a: a[:, ::2], out.reshape(32, 128)[:, ::2]))
    if cu.device_count() > 1:
        for number in (0, 1):
            bench.verify(peer.across(host, 1 - number, number))
    with pytest.raises(NotImplementedError):
        Peer().strided_up(base, lambda a: a)


def test_strategies_of_moving_blocks_do_the_same_work(
    cu: Any, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With contestants that need no GPU; blocks above 64 KiB do not fit into so small a cache."""
    from benchmarks.peers.ours import Own
    from benchmarks.rows import blocks

    compiler()

    class OneByOne(Own):
        def issue(self, target: Any, source: Any, stream: Any = None) -> Any:
            return lambda: cu.copy(target, source)

        def rows_issue(self, target: Any, source: Any, to: Any, of: Any, width: int) -> Any:
            pairs = list(zip((to // width).tolist(), (of // width).tolist(), strict=True))
            return lambda: [cu.copy(target[there], source[here]) for there, here in pairs]

        def wait(self, stream: Any = None) -> Any:
            return cu.synchronize

    class Nothing(OneByOne):
        def rows_issue(self, target: Any, source: Any, to: Any, of: Any, width: int) -> Any:
            return lambda: None

    peers = OneByOne(), OneByOne(), bench.driver, Nothing()
    made = dict(zip(blocks.STRATEGIES, peers, strict=True))
    with monkeypatch.context() as patch:  # ends before `no_leaks` counts
        patch.setattr(blocks, "strategies", lambda bench: made)
        patch.setattr(blocks, "SIZES", blocks.SIZES[:2])
        parts = blocks.row(bench)
    assert [part.label for part in parts] == [
        f"{size} KiB {way} as 64 KiB" for size in (4, 16) for way in ("up", "down")
    ]
    for part in parts:
        part.run(bench.effort(part), bench.verify)
        assert {who: why.partition(":")[0] for who, why in part.failed.items()} == {
            "Triton": "WrongBytes"
        }
        assert set(part.samples) == {OURS, "naive", "batch", "swap"}
        assert part.ratio() is not None


def test_peers_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import peers

    assert list(peers.KNOWN) == ["PyTorch", "CuPy", "cuda-core", "cuda-bindings"]
    known = {"Nobody": ("", "no_such_peer", "X"), "Base": ("", "base", "Peer")}
    monkeypatch.setattr(peers, "KNOWN", known)
    there, absent = peers.find()
    assert [type(peer).__name__ for peer in there] == ["Peer"]
    assert absent == {
        "Nobody": "ModuleNotFoundError: No module named 'benchmarks.peers.no_such_peer'"
    }


# --- two builds in turns ---


def test_the_band_holds_what_equal_builds_can_show() -> None:
    from benchmarks.paired import band

    assert band([1.0] * 12) == (1, 1)
    ratios = [0.98, 1.01, 1.0, 0.99, 1.02, 1.0, 1.03, 0.97, 1.0, 1.01, 0.99, 1.0]
    low, high = band(ratios)
    assert 0.97 <= low < 1 < high <= 1 / 0.97
    narrow = band([ratio**0.1 for ratio in ratios])
    assert low < narrow[0] < 1 < narrow[1] < high


def test_a_slower_row_is_told_from_noise(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.paired import compare

    noise = [1.0, 1.02, 0.98, 1.01, 0.99, 1.0] * 2
    old = [{"slow": 1.0, "same": 1.0, "fast": 1.0, "gone": 1.0} for _ in noise]
    new = [{"slow": 1.2 * n, "same": n, "fast": 0.8 * n} for n in noise]
    again = [{"slow": n, "same": n, "fast": n, "gone": n} for n in noise]
    assert compare(old, new, again) == 1
    _, *lines = capsys.readouterr().out.splitlines()
    words = {line.split()[-1]: line.split()[-2] for line in lines}
    assert words == {"slow": "slower", "same": ".", "fast": "faster"}


def test_two_folders_are_compared() -> None:
    import cudriver

    site = str(Path(cudriver.__file__).parent.parent)
    command = [sys.executable, "-m", "benchmarks.paired", site, site, "--rounds", "1"]
    command += ["--most", "65536", "--only", "`to_device`", "--only", "NHWC"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stderr  # equal builds, but one round
    _, images, floats = done.stdout.splitlines()
    assert "NHWC -> NCHW" in images
    assert "`to_device` of 1000 floats" in floats


def test_a_folder_without_the_package_is_refused(tmp_path: Path) -> None:
    import cudriver

    site = str(Path(cudriver.__file__).parent.parent)
    command = [sys.executable, "-m", "benchmarks.paired", str(tmp_path), site, "--only", "push"]
    environ = dict(os.environ, PYTHONPATH=site)
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    assert str(tmp_path) in done.stderr
