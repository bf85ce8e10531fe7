"""Checkpoints of many tensors and files: parts of tensors, tensors as they land, PyTorch's."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cudriver as cu
from cudriver.memory.arrays import parts
from cudriver.weights import reading
from cudriver.weights import safetensors as loading
from cudriver.weights import safetensors_format as format_
from cudriver.weights import source as sources
from forking import let_threads_rest
from weightskit import entry, raw, safetensors
from weightskit import same_in_order as same

RNG = np.random.default_rng(11)


def device_bytes() -> int:
    return sum(row.nbytes for row in cu.live_allocations() if row.kind == "device array")


def write(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    safetensors.numpy.save_file(arrays, path)
    return path


def experts(count: int, *, first: int = 0, shape: tuple[int, ...] = (8, 64)) -> dict[str, Any]:
    """Arrays of 256 * n bytes each, in the order in which safetensors writes them."""
    return {
        f"expert{first + i:05d}": RNG.integers(0, 9, shape).astype(np.float16) for i in range(count)
    }


# ---- the header, the usual way -------------------------------------------------------------------


def told(tensors: Iterable[format_.Tensor]) -> list[Any]:
    """In the order of their bytes."""
    found = [(begin, kind.extent, kind.dtype, kind.array, name) for name, kind, begin in tensors]
    return sorted(found)


def slowly(data: bytes) -> list[Any] | None:
    try:
        return told(format_.entries(format_.parse(data), 0))
    except (ValueError, RecursionError):
        return None


def quickly(data: bytes) -> list[Any] | None:
    try:
        found = format_.usual(data, 0)
    except ValueError:
        assert slowly(data) is None
        return None
    return found and told(found)


def compact(header: Any) -> bytes:
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()


def header_of(path: Path) -> bytes:
    data = path.read_bytes()
    return data[8 : 8 + int.from_bytes(data[:8], "little")]


def test_what_safetensors_writes_is_read_the_usual_way(tmp_path: Path) -> None:
    made = experts(20) | {
        "größe\N{PILE OF POO}": np.zeros(3),
        "none": np.empty((0, 2)),
        "": np.array(1),
    }
    safetensors.numpy.save_file(made, tmp_path / "x", metadata={"format": "pt", "a": '\\"}{'})
    safetensors.numpy.save_file(made, tmp_path / "y")
    safetensors.numpy.save_file(made, tmp_path / "z", metadata={"format": "pt"})
    assert quickly(header_of(tmp_path / "x")) is None  # a brace in the metadata
    for name in "yz":
        found = quickly(header_of(tmp_path / name))
        assert found is not None
        assert found == slowly(header_of(tmp_path / name))
        assert len(found) == 23
    for name in "xyz":
        assert {*cu.load_safetensors(tmp_path / name)} == {*made}


HEADER = compact(
    {
        "__metadata__": {"format": "pt"},
        "a.weight": entry("BF16", [2, 3], 0, 12),
        "b": entry("F4", [4], 12, 14),
        "c": entry("U8", [], 14, 15),
        "d": entry("F32", [0, 7], 15, 15),
    }
)


@settings(max_examples=150)
@given(data=st.data())
def test_the_usual_way_finds_nothing_else(data: st.DataObject) -> None:
    header = bytearray(HEADER[data.draw(st.sampled_from([0, 0, 31])) :])
    if header[:1] != b"{":
        header[:1] = b"{"
    for _ in range(data.draw(st.integers(0, 3))):
        where = data.draw(st.integers(0, len(header) - 1))
        new = data.draw(st.sampled_from([b"", b" ", *(HEADER[i : i + 1] for i in range(60))]))
        header[where : where + data.draw(st.integers(0, 1))] = new
    found = quickly(bytes(header))
    if found is not None:
        assert found == slowly(bytes(header))


UNUSUAL = {
    "a name twice": b'{"a":%b,"a":%b}',
    "a space": b'{"a": %b,"b":%b}',
    "no comma": b'{"a":%b"b":%b}',
    "two commas": b'{"a":%b,,"b":%b}',
    "a comma behind": b'{"a":%b,"b":%b,}',
    "a brace between": b'{"a":%b}"b":%b}',
    "text behind": b'{"a":%b,"b":%b}}',
    "a control character": b'{"a\n":%b,"b":%b}',
    "an escape": b'{"\\u0061":%b,"b":%b}',
    "metadata as a tensor": b'{"a":%b,"__metadata__":%b}',
    "a mark in front": b'\xef\xbb\xbf{"a":%b,"b":%b}',
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_left_to_the_parser(name: str) -> None:
    entries = compact(entry("U8", [1], 0, 1)), compact(entry("U8", [1], 1, 2))
    assert format_.usual(b'{"a":%b,"b":%b}' % entries, 0) is not None
    assert format_.usual(UNUSUAL[name] % entries, 0) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"dtype": "U9"}, {"shape": "[01]"}, {"shape": "[1,]"}, {"shape": "[,1]"}, {"shape": "[2]"},
        {"begin": "00"}, {"begin": "-0"}, {"begin": "0.0"}, {"end": "2"}, {"end": "1e0"},
        {"end": "01"}, {"shape": "[9223372036854775808]", "end": "9223372036854775808"},
        {"dtype": "F4"},
    ],
)  # fmt: skip
def test_a_wrong_entry_is_not_usual(wrong: dict[str, str]) -> None:
    right = {"dtype": "U8", "shape": "[1]", "begin": "0", "end": "1"}
    text = '{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}}}'
    assert format_.usual(text.format(**right).encode(), 0) is not None
    assert format_.usual(text.format(**right | wrong).encode(), 0) is None


# ---- many tensors --------------------------------------------------------------------------------


def test_tensors_side_by_side_are_one_piece(tmp_path: Path) -> None:
    """As long as they lie in the file as in memory: at multiples of 256 bytes."""
    header, begin = {}, 0
    for i in range(100):
        size = 100 if i == 60 else 256 * (i % 3)
        header[f"{i:02d}"] = entry("U8", [size], begin, begin + size)
        begin += size
    data = RNG.integers(0, 255, begin, np.uint8)
    (tmp_path / "x").write_bytes(raw(header, data.tobytes()))
    with closing(sources.Source(tmp_path / "x")) as source:
        block = loading.Block(source, format_.header(source))
    assert len(block.runs) == 2
    found = cu.load_safetensors(tmp_path / "x")
    for name, value in header.items():
        first, last = value["data_offsets"]
        assert found[name].to_numpy().tobytes() == data[first:last].tobytes()


def test_an_array_keeps_the_allocation_of_its_file(tmp_path: Path) -> None:
    write(tmp_path / "x", experts(4))
    write(tmp_path / "y", experts(4, first=4))
    gc.collect()
    before = device_bytes()
    found = cu.load_safetensors([tmp_path / "x", tmp_path / "y"])
    assert device_bytes() - before == 8 * 1024
    last = found.pop("expert00007")
    found.clear()
    assert device_bytes() - before == 4 * 1024
    del last
    assert device_bytes() == before


@pytest.mark.parametrize("places", [[0, 57], [0, -1], [0, 1 << 70]])
def test_no_view_reaches_beyond_the_memory(places: list[int]) -> None:
    memory = cu.device_empty(64, np.uint8)
    kind = ((2,), np.dtype("f4"))
    views = cu._core._views(memory, parts, ([0, 56], [kind, kind]))
    assert [view.shape for view in views] == [(2,), (2,)]
    with pytest.raises((TypeError, ValueError, OverflowError)):
        cu._core._views(memory, parts, (places, [kind, kind]))
    with pytest.raises(TypeError):
        cu._core._views(memory, parts, ([0], [3]))


# ---- several files -------------------------------------------------------------------------------


def test_several_paths_are_loaded_as_one(tmp_path: Path) -> None:
    made = experts(9)
    names = [*made]
    paths = [
        write(
            tmp_path / f"{i}.safetensors", {name: made[name] for name in names[i * 3 : i * 3 + 3]}
        )
        for i in range(3)
    ]
    same(cu.load_safetensors(paths), made)
    same(cu.load_safetensors(map(str, paths[:2])), {name: made[name] for name in names[:6]})
    same(cu.load_safetensors(map(os.fsencode, paths)), made)  # type: ignore[call-overload]
    same(cu.load_safetensors(paths, names=names[4:5]), {names[4]: made[names[4]]})
    assert cu.load_safetensors([]) == {}
    with pytest.raises(
        ValueError, match=r"0\.safetensors.*1\.safetensors, \.\.\. has no array 'x'"
    ):
        cu.load_safetensors(paths, names=["x"])
    with pytest.raises(ValueError, match=r"^/.*0\.safetensors has no array 'x'"):
        cu.load_safetensors(os.fsencode(paths[0]), names=["x"])  # type: ignore[call-overload]
    with pytest.raises(
        ValueError, match=r"0\.safetensors and .*z both have the tensor 'expert00002'"
    ):
        cu.load_safetensors([*paths, write(tmp_path / "z", {names[2]: made[names[2]]})])
    with pytest.raises(FileNotFoundError, match="nothing"):
        cu.load_safetensors([*paths, tmp_path / "nothing"])


@pytest.mark.parametrize(
    "load", [cu.load_safetensors, lambda path: dict(cu.iter_safetensors(path))]
)
def test_a_wrong_header_of_a_later_file_leaves_nothing(tmp_path: Path, load: Any) -> None:
    write(tmp_path / "x", experts(100))
    (tmp_path / "y").write_bytes(raw({"y": entry("U8", [1], 0, 2)}, b"ab"))
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd")), device_bytes()
    with pytest.raises(ValueError, match="y: tensor 'y' has 2 bytes"):
        load([tmp_path / "x", tmp_path / "y"])
    gc.collect()
    assert (sorted(os.listdir("/proc/self/fd")), device_bytes()) == before


# ---- parts of tensors ----------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_slice_has_what_numpy_finds(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shape = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    dtype = data.draw(st.sampled_from(["u1", "f2", "f8", ml_dtypes.bfloat16]))
    array = RNG.integers(0, 99, shape).astype(dtype)
    axis = data.draw(st.integers(0, len(shape) - 1))
    ends = st.none() | st.integers(-45, 45)
    cut = slice(data.draw(ends), data.draw(ends), data.draw(st.sampled_from([None, 1])))
    more = data.draw(st.integers(0, len(shape) - 1 - axis))
    key = (*[slice(None)] * axis, cut, *[slice(None)] * more)
    path = tmp_path_factory.getbasetemp() / "sliced.safetensors"
    made = {"a": RNG.integers(0, 9, 7).astype("u1"), "b": array, "c": np.ones(3)}
    write(path, made)
    wanted = made | {"b": np.ascontiguousarray(array[key])}
    for names in (None, [*made]):
        cuts = {"b": key if axis or more else cut}
        found = cu.load_safetensors(path, names=names, slices=cuts)
        same({name: found[name] for name in made}, wanted)
        assert {*found} == {*made}


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_slices_of_many_tensors(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of some tensors of the same few kinds, along any dimension; neighbours may be whole."""
    shapes = st.sampled_from([(16, 16), (8, 32), (300,), (3, 5, 7), (256, 0), ()])
    cut = st.sampled_from([None, slice(None), slice(8), slice(8, None), slice(1, -1), slice(2, 1)])
    made: dict[str, Any] = {}
    cuts: dict[str, Any] = {}
    for i in range(data.draw(st.integers(1, 30))):
        shape = data.draw(shapes)
        name = f"{i:02d}"
        made[name] = RNG.integers(0, 255, shape, np.uint8)
        key = data.draw(cut)
        if key is not None:
            axis = data.draw(st.integers(0, max(len(shape) - 1, 0)))
            cuts[name] = (*[slice(None)] * axis, key) if shape else ()
    path = tmp_path_factory.getbasetemp() / "many.safetensors"
    write(path, made)
    wanted = {
        name: np.array(array[cuts[name]], order="C") if name in cuts else array
        for name, array in made.items()
    }
    for names in None, [*made]:
        same(cu.load_safetensors(path, names=names, slices=cuts), wanted)
    same(dict(cu.iter_safetensors(path, slices=cuts)), wanted)


@pytest.mark.parametrize("names", [None, ["few", "rows", "close", "apart", "end"]])
def test_what_several_threads_read_is_all_there(tmp_path: Path, names: Any) -> None:
    made = {
        "few": RNG.integers(0, 99, 7).astype("u1"),  # the others begin at odd bytes
        "rows": RNG.integers(0, 99, (1001, 3001)).astype("u1"),
        "close": RNG.integers(0, 99, (2003, 1501)).astype("u1"),
        "apart": RNG.integers(0, 99, (301, 20_011)).astype("u1"),
        "end": RNG.integers(0, 99, 1_234_567).astype("u1"),
    }
    write(tmp_path / "x", made)
    wanted = {name: made[name] for name in sorted(made)}  # as the file has them
    same(cu.load_safetensors(tmp_path / "x", names=names), wanted)
    cuts: Any = {
        "rows": slice(17, 990),
        "close": (slice(None), slice(700, 1405)),
        "apart": (slice(None), slice(3, 15_000)),
    }
    found = cu.load_safetensors(tmp_path / "x", names=names, slices=cuts)
    same(found, wanted | {name: np.ascontiguousarray(made[name][cuts[name]]) for name in cuts})


def test_items_of_less_than_a_byte_are_cut_between_bytes(tmp_path: Path) -> None:
    header = {"x": entry("F4", [3, 8], 0, 12)}
    (tmp_path / "x").write_bytes(raw(header, bytes(range(12))))

    def load(*key: slice) -> Any:
        return cu.load_safetensors(tmp_path / "x", slices={"x": key})["x"].to_numpy().tolist()

    assert load(slice(1, 2)) == [[4, 5, 6, 7]]
    assert load(slice(None), slice(2, 6)) == [[1, 2], [5, 6], [9, 10]]
    with pytest.raises(ValueError, match=r"cuts tensor 'x', F4 of shape \(3, 8\), within a byte"):
        load(slice(None), slice(1, 4))


@pytest.mark.parametrize(("kind", "shape", "nbytes"), [("F4", (6, 3), 9), ("F6_E2M3", (8, 3), 18)])
def test_rows_of_no_whole_bytes_are_not_cut(
    tmp_path: Path, kind: str, shape: tuple[int, int], nbytes: int
) -> None:
    """The next row begins within a byte, even where the cut does not."""
    (tmp_path / "x").write_bytes(raw({"x": entry(kind, list(shape), 0, nbytes)}, bytes(nbytes)))
    stop = 2 if kind == "F4" else 3
    for key in ((slice(None), slice(0, stop)), (slice(None), slice(0, 0))):
        if key[1].stop == shape[1]:
            continue
        with pytest.raises(ValueError, match="within a byte"):
            cu.load_safetensors(tmp_path / "x", slices={"x": key})


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        ({"x": slice(0, 4, 2)}, "only one dimension can be cut, in steps of 1"),
        ({"x": slice(None, None, -1)}, "only one dimension can be cut, in steps of 1"),
        ({"x": (slice(1, 3), slice(1, 3))}, "only one dimension can be cut"),
        ({"x": (slice(1), slice(None), slice(None))}, r"shape is \(4, 6\): it takes a slice"),
        ({"x": 3}, "slices has 3 for tensor 'x'"),
        ({"x": (Ellipsis, slice(1))}, "it takes a slice, or one for each of the first dimensions"),
        ({"x": None}, "slices has None"),
        ({"scalar": slice(1)}, r"shape is \(\)"),
        ({"y": slice(1)}, "has no array 'y'; it has 2: 'scalar', 'x'"),
    ],
)
def test_a_slice_that_does_not_fit_is_told(
    tmp_path: Path, slices: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "x", {"x": np.ones((4, 6)), "scalar": np.array(1)})
    monkeypatch.setattr("cudriver.weights.safetensors.device_empty", pytest.fail)
    with pytest.raises(ValueError, match=message):
        cu.load_safetensors(tmp_path / "x", slices=slices)
    with pytest.raises(ValueError, match="has no array 'x'"):
        cu.load_safetensors(tmp_path / "x", names=["scalar"], slices={"x": slice(1)})
    with pytest.raises(TypeError, match=r"slices is \['x'\]; a dict of names and slices is needed"):
        cu.load_safetensors(tmp_path / "x", slices=["x"])  # type: ignore[call-overload]


# ---- tensors as they land ------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
def test_tensors_come_in_the_files_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    monkeypatch.setattr(loading, "GROUP", 3000)
    made = experts(20)
    names = [*made]
    for i in range(2):
        write(tmp_path / f"{i}", {name: made[name] for name in names[i * 10 : i * 10 + 10]})
    stream = cu.Stream() if streamed else None
    found = {}
    for name, array in cu.iter_safetensors([tmp_path / "0", tmp_path / "1"], stream=stream):
        if stream is not None:
            stream.synchronize()
        found[name] = array.to_numpy()
    assert [*found] == names
    assert all((found[name] == made[name]).all() for name in names)
    some = cu.iter_safetensors(tmp_path / "0", names=names[3:5], slices={names[4]: slice(2)})
    assert [(name, array.shape) for name, array in some] == [
        (names[3], (8, 64)),
        (names[4], (2, 64)),
    ]
    assert [*cu.iter_safetensors([])] == []


def test_who_keeps_nothing_needs_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "GROUP", 4096)
    write(tmp_path / "x", experts(100))
    gc.collect()
    before, most = device_bytes(), 0
    for _, array in cu.iter_safetensors(tmp_path / "x"):
        del array
        most = max(most, device_bytes() - before)
    assert most == 2 * 4096
    assert device_bytes() == before


def test_a_tensor_is_there_when_it_is_handed_out(
    tmp_path: Path, sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "GROUP", 2048)
    made = experts(6)
    write(tmp_path / "x", made)
    sim.set_latency(20_000)  # microseconds before each operation
    try:
        for name, array in cu.iter_safetensors(tmp_path / "x"):
            there = np.empty((8, 64), np.float16)
            other = cu.Stream()
            cu.copy_async(there, array, other).wait()
            assert (there == made[name]).all()
    finally:
        sim.set_latency(0)


def test_an_iterator_may_be_left_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "GROUP", 2048)
    write(tmp_path / "x", experts(50))
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd")), device_bytes()
    some = cu.iter_safetensors(tmp_path / "x")
    assert next(some)[0] == "expert00000"
    some.close()  # type: ignore[attr-defined]
    for name, array in cu.iter_safetensors(tmp_path / "x"):
        del array
        if name == "expert00003":
            break
    del some
    gc.collect()
    assert (sorted(os.listdir("/proc/self/fd")), device_bytes()) == before
    unused = cu.iter_safetensors(tmp_path / "nothing")  # nothing is read before the first step
    with pytest.raises(FileNotFoundError):
        next(unused)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_child_is_told_that_it_cannot_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "GROUP", 1024)
    made = experts(2)
    write(tmp_path / "x", made)
    read, may = reading.Reading.read, threading.Event()

    def late(self: Any, source: Any, arrays: Any, runs: Any, *rest: Any) -> None:
        if runs["offset"].min() > 1024:  # the second
            may.wait(60)
        read(self, source, arrays, runs, *rest)

    monkeypatch.setattr(reading.Reading, "read", late)
    some = cu.iter_safetensors(tmp_path / "x")
    found = dict([next(some)])
    let_threads_rest()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        status = 1
        try:
            next(some)
        except cu.ForkedProcessError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    may.set()
    found.update(some)
    assert all((found[name].to_numpy() == made[name]).all() for name in made)


def test_an_error_of_a_read_ends_the_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "GROUP", 2048)
    write(tmp_path / "x", experts(20))
    add, added = reading.Reading.add, []

    def fails(self: reading.Reading, source: sources.Source, *more: Any) -> Any:
        added.append(self)
        if len(added) in (3, 11):  # from here on, reads fail
            os.dup2(writable, source.fd)
        return add(self, source, *more)

    monkeypatch.setattr(reading.Reading, "add", fails)
    writable = os.open(tmp_path / "x", os.O_WRONLY)
    try:
        found = []
        with pytest.raises(OSError, match="Bad file descriptor"):
            found += [name for name, _ in cu.iter_safetensors(tmp_path / "x")]
        added = added[:1] * 10
        with pytest.raises(OSError, match="Bad file descriptor"):
            cu.load_safetensors(tmp_path / "x")
    finally:
        os.close(writable)


# ---- PyTorch -------------------------------------------------------------------------------------


class Tensor:
    """Of a PyTorch that is not: a view of device memory."""

    def __init__(self, memory: Any, kind: str = "uint8", place: Any = None) -> None:
        self.memory, self.kind, self.place = memory, kind, place
        self.itemsize = np.dtype(kind).itemsize

    def __dlpack__(self, **more: Any) -> object:
        return self.memory.__dlpack__(**more)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.memory.__dlpack_device__()
        return device

    def view(self, kind: str) -> Tensor:
        assert self.memory.nbytes % np.dtype(kind).itemsize == 0
        return Tensor(self.memory, kind)

    def as_strided(self, shape: Any, strides: Any, offset: int) -> Tensor:
        return Tensor(self.memory, self.kind, (shape, strides, offset))

    @property
    def data(self) -> Tensor:
        return self

    def numpy(self) -> np.ndarray:
        shape, strides, offset = self.place
        items = self.memory.to_numpy().view(self.kind)
        steps = [step * self.itemsize for step in strides]
        return np.lib.stride_tricks.as_strided(items[offset:], shape, steps)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    def empty(nbytes: int, dtype: str, device: str) -> Tensor:
        assert (dtype, device) == ("uint8", "cuda:0")
        return Tensor(cu.device_empty(nbytes, np.uint8))

    kinds = {name: name for name in ("uint8", "float16", "float32", "float64", "int64")}
    stream = cu.Stream()
    cuda = SimpleNamespace(current_stream=lambda ordinal: stream)
    module = SimpleNamespace(empty=empty, cuda=cuda, __version__="0.1", **kinds)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("names", [None, ["a", "b", "scalar", "none", "odd"]])
def test_pytorch_gets_the_same_geometry(tmp_path: Path, names: Any) -> None:
    made = {
        "a": RNG.random((3, 4, 5)),
        "b": RNG.integers(0, 9, (7,)),
        "scalar": np.array(3, "f4"),
        "none": np.empty((0, 3), "f2"),
        "odd": RNG.integers(0, 9, (3, 3)).astype("u1"),
    }
    write(tmp_path / "x", made)
    for found in (
        cu.load_safetensors(tmp_path / "x", framework="torch", names=names),
        cu.load_safetensors(tmp_path / "x", framework="torch", names=names, stream=cu.Stream()),
        dict(cu.iter_safetensors(tmp_path / "x", framework="torch", names=names)),
    ):
        assert {*found} == {*made}
        for name, array in made.items():
            there = found[name].numpy()
            assert (there.dtype, there.shape) == (array.dtype, array.shape)
            assert (there == array).all()


def test_a_framework_that_is_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: Any
) -> None:
    write(tmp_path / "x", {"x": np.ones(3, ml_dtypes.bfloat16)})
    with pytest.raises(ImportError, match=r"PyTorch 0\.1 has no bfloat16"):
        cu.load_safetensors(tmp_path / "x", framework="torch")
    with pytest.raises(ValueError, match="framework is 'jax'; it is None or 'torch'"):
        cu.load_safetensors(tmp_path / "x", framework="jax")  # type: ignore[call-overload]
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="framework='torch' needs PyTorch"):
        next(cu.iter_safetensors(tmp_path / "x", framework="torch"))
