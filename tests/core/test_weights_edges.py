"""Weights at their edges: what is read by which call, into which memory, and the errors' values."""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cudriver as cu
from cudriver.weights import reading
from cudriver.weights import source as sources
from weightskit import entry, raw, safetensors


def npy(descr: str, shape: str, data: bytes) -> bytes:
    header = f"{{'descr':{descr},'fortran_order':False,'shape':{shape}}}\n".encode()
    return b"\x93NUMPY\2\0" + struct.pack("<I", len(header)) + header + data


def said(path: Path, data: bytes, **options: Any) -> str:
    """What the error says of a file, without its name in front."""
    path.write_bytes(data)
    load = {".npy": cu.load_npy, ".npz": cu.load_npz}.get(path.suffix, cu.load_safetensors)
    with pytest.raises(ValueError) as caught:
        load(path, **options)
    return str(caught.value).replace(str(path), "FILE")


def device_arrays() -> list[int]:
    return [row.nbytes for row in cu.live_allocations() if row.kind == "device array"]


# ---- reads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_are_used_again_when_their_copies_are_over(
    tmp_path: Path, sim: Any, threads: int
) -> None:
    wanted = np.random.default_rng(1).integers(0, 255, 9_500_001, np.uint8)
    np.save(tmp_path / "x.npy", wanted)
    before = cu.host_memory_stats().copy_threads
    cu.set_host_memory_policy(copy_threads=threads)
    sim.set_latency(2_000)
    try:
        found = cu.load_npy(tmp_path / "x.npy")
    finally:
        sim.set_latency(0)
        cu.set_host_memory_policy(copy_threads=before)
    assert (found.to_numpy() == wanted).all()


def test_without_page_locked_memory_files_are_read_all_the_same(tmp_path: Path) -> None:
    wanted = np.random.default_rng(1).integers(0, 255, 5_000_001, np.uint8)
    np.save(tmp_path / "x.npy", wanted)
    cu.trim_host_memory()
    cu.set_host_memory_limit(1)
    try:
        with pytest.raises(cu.OutOfMemoryError):
            cu.pinned_empty(1 << 20, np.uint8)
        found = cu.load_npy(tmp_path / "x.npy")
    finally:
        cu.set_host_memory_limit(None)
    assert (found.to_numpy() == wanted).all()


def test_a_read_in_parts_has_no_byte_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system gives less at first, then all that is asked for."""
    (tmp_path / "x").write_bytes(bytes(range(100)))
    pread, asked = os.pread, []

    def first_little(fd: int, count: int, at: int) -> bytes:
        asked.append((count, at))
        return pread(fd, 3 if len(asked) <= 2 else count, at)

    monkeypatch.setattr(os, "pread", first_little)
    with contextlib.closing(sources.Source(tmp_path / "x")) as source:
        assert source.read(10, 20) == bytes(range(10, 30))
        assert asked == [(20, 10), (17, 13), (14, 16)]
        assert source.read(90, 20) == bytes(range(90, 100))
        assert source.read(100, 5) == b""


@pytest.mark.parametrize("field", ["st_size", "st_mtime_ns", "st_ctime_ns"])
def test_each_sign_of_a_change_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    with contextlib.closing(sources.Source(tmp_path / "x")) as source:
        source.check_unchanged()
        fields = ("st_size", "st_mtime_ns", "st_ctime_ns", "st_nlink")
        now = SimpleNamespace(**{name: getattr(source.state, name) for name in fields})
        setattr(now, field, getattr(now, field) + 1)
        monkeypatch.setattr(os, "fstat", lambda fd: now)
        with pytest.raises(ValueError, match="x was changed while it was read"):
            source.check_unchanged()


@pytest.mark.parametrize("kept", [0, 5, 300_000, 5_999_999])
@pytest.mark.parametrize("key", [None, (slice(None), slice(1, 999)), (slice(None), slice(9_000))])
def test_a_file_that_ends_early_is_told_by_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int, key: Any
) -> None:
    shape = [6000, 1000] if key is None or key[1].stop == 999 else [600, 10_000]
    data = raw({"x": entry("U8", shape, 0, 6_000_000)}, bytes(6_000_000))
    (tmp_path / "x").write_bytes(data)
    add = reading.Reading.add
    until = len(data) - 6_000_000 + kept

    def cuts(self: Any, *part: Any) -> Any:
        os.truncate(tmp_path / "x", until)
        return add(self, *part)

    monkeypatch.setattr(reading.Reading, "add", cuts)
    slices = {} if key is None else {"x": key}
    message = "was changed" if key and kept == 5_999_999 else f"x was truncated to {until} bytes"
    with pytest.raises(ValueError, match=f"{message} while it"):
        cu.load_safetensors(tmp_path / "x", slices=slices)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("total", "stream", "shows"),
    [
        (reading.SHOWN, Terminal(), True),
        (reading.SHOWN - 1, Terminal(), False),
        (reading.SHOWN, io.StringIO(), False),
        (reading.SHOWN, None, False),
    ],
)
def test_progress_is_for_large_files_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, total: int, stream: Any, shows: bool
) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    with reading.progress(total) as show:
        show(total // 4)
        show(total // 2)
    assert bool(stream and stream.getvalue()) is shows
    if shows:
        assert "0.5/1.0 GB" in stream.getvalue()


# ---- messages ------------------------------------------------------------------------------------


def test_a_value_that_python_cannot_show_is_told_so() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, 10**10_000):
        assert sources.shown(value) == "a value that Python cannot show"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a" * 98, repr("a" * 98)),
        ("a" * 99, f"'{'a' * 99}... (101 characters)"),
        (ValueError("x" * 100), "x" * 100),
        (ValueError("x" * 101), f"{'x' * 100}... (101 characters)"),
    ],
)
def test_a_value_is_shown_up_to_a_hundred_characters(value: object, text: str) -> None:
    assert sources.shown(value) == text


@pytest.mark.parametrize(
    ("count", "has"),
    [(0, "it has 0"), (1, "it has 1: 'a'"), (5, "it has 5: 'a', 'b', 'c', 'd', 'e'"),
     (6, "it has 6: 'a', 'b', 'c', 'd', 'e', ...")],
)  # fmt: skip
def test_an_array_that_is_missing_is_told_beside_those_that_are_there(
    tmp_path: Path, count: int, has: str
) -> None:
    data = raw({name: entry("U8", [0], 0, 0) for name in "fedcba"[6 - count :]})
    assert said(tmp_path / "x", data, names=["z", "y"]) == f"FILE has no array 'y'; {has}"
    with pytest.raises(TypeError, match="names is the str 'a'"):
        cu.load_safetensors(tmp_path / "x", names="a")


LENGTHS = "at most 64 lengths, and of fewer than 2**63 bytes"
BASE = 8 + len(json.dumps({"x": entry("U8", [1], 0, 2), "y": entry("U8", [1], 2, 3)}))
TOLD = {
    "short": (
        b"\1\2",
        "FILE is not a safetensors file, or is cut off: its first 8 bytes announce a header of 513 "
        "bytes, and the file has 2",
    ),
    "header": (
        (3).to_bytes(8, "little") + b"{}",
        "FILE is not a safetensors file, or is cut off: its first 8 bytes announce a header of 3 "
        "bytes, and the file has 10",
    ),
    "gap": (
        raw({"x": entry("U8", [2], 0, 2), "y": entry("U8", [1], 3, 4)}, b"abcd"),
        f"FILE: tensor 'y' begins at byte {BASE + 3} of the file, and the one before it ends at "
        f"{BASE + 2}",
    ),
    "first": (
        raw({"x": entry("U8", [1], 1, 2), "y": entry("U8", [1], 2, 3)}, b"abc"),
        f"FILE: tensor 'x' begins at byte {BASE + 1} of the file, and the one before it ends at "
        f"{BASE}",
    ),
    "cut": (
        raw({"x": entry("U8", [2], 0, 2), "y": entry("U8", [1], 2, 3)}, b"ab"),
        f"FILE has {BASE + 2} bytes, and its header speaks of {BASE + 3}: it is cut off, or "
        "something was appended",
    ),
    "size": (
        raw({"x": entry("F32", [2, 3], 0, 23)}, bytes(23)),
        "FILE: tensor 'x' has 23 bytes; F32 of shape (2, 3) has 24 bytes",
    ),
    "odd size": (
        raw({"x": entry("U8", [3], 0, 2)}, b"ab"),
        "FILE: tensor 'x' has 2 bytes; U8 of shape (3,) has 3 bytes",
    ),
    "half a byte": (
        raw({"x": entry("F4", [3], 0, 1)}, b"0"),
        "FILE: tensor 'x' has 1 bytes; F4 of shape (3,) has 12 bits, not whole bytes",
    ),
    "overlap": (
        raw({"x": entry("U8", [2], 0, 2), "y": entry("U8", [2], 1, 3)}, b"012"),
        f"FILE: tensor 'y' begins at byte {BASE + 1} of the file, and the one before it ends at "
        f"{BASE + 2}",
    ),
    "twice": (raw(b'{"x":1,"x":2}'), "FILE: the header has 'x' twice"),
    "type": (raw({"x": entry("f32", [], 0, 4)}), "FILE: tensor 'x' has the unknown dtype 'f32'"),
    "metadata": (
        raw({"__metadata__": 3}), "FILE: __metadata__ is not a JSON object of strings",
    ),
    **{
        f"no {key}": (
            raw({"x": {k: v for k, v in entry("U8", [1], 0, 1).items() if k != key}}, b"a"),
            "FILE: tensor 'x' lacks a dtype, shape or data_offsets",
        )
        for key in entry("", [], 0, 0)
    },
    **{
        f"offsets {offsets}": (
            raw({"x": {**entry("U8", [1], 0, 1), "data_offsets": offsets}}, b"a"),
            f"FILE: tensor 'x' has the data_offsets {offsets}",
        )
        for offsets in ([0], [0, 1, 1], [0, True], [1, 0], [0, 1.0])
    },
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_an_error_has_the_files_own_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    data, text = TOLD[name]
    with pytest.raises(safetensors.SafetensorError):  # the format's own library agrees
        safetensors.numpy.load(data)
    monkeypatch.setattr("cudriver.weights.safetensors.device_empty", pytest.fail)
    assert said(tmp_path / "x", data) == text


# ---- types, memory, order ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes", "found"),
    [
        ("BOOL", [3], 3, np.empty(3, bool)),
        ("U16", [3], 6, np.empty(3, "u2")),
        ("I64", [3], 24, np.empty(3, "i8")),
        ("C64", [3], 24, np.empty(3, "c8")),
        ("BF16", [], 2, np.empty((), ml_dtypes.bfloat16)),
        ("F8_E4M3", [3], 3, np.empty(3, ml_dtypes.float8_e4m3fn)),
        ("F8_E5M2", [3], 3, np.empty(3, ml_dtypes.float8_e5m2)),
        ("F8_E8M0", [3], 3, np.empty(3, ml_dtypes.float8_e8m0fnu)),
        ("F8_E4M3FNUZ", [3], 3, np.empty(3, ml_dtypes.float8_e4m3fnuz)),
        ("F8_E5M2FNUZ", [3], 3, np.empty(3, ml_dtypes.float8_e5m2fnuz)),
        ("F6_E2M3", [2, 4], 6, np.empty((2, 3), "u1")),
        ("F6_E3M2", [2, 2], 3, np.empty(3, "u1")),  # a row has no whole bytes
        ("F4", [2, 2], 2, np.empty((2, 1), "u1")),
        ("F4", [2, 3], 3, np.empty(3, "u1")),
        ("F4", [4, 0], 0, np.empty((4, 0), "u1")),
        ("F4", [0, 3], 0, np.empty(0, "u1")),
    ],
)
def test_each_type_has_its_array(
    tmp_path: Path, dtype: str, shape: list[int], nbytes: int, found: np.ndarray
) -> None:
    (tmp_path / "x").write_bytes(raw({"x": entry(dtype, shape, 0, nbytes)}, bytes(range(nbytes))))
    array = cu.load_safetensors(tmp_path / "x")["x"].to_numpy()
    assert (array.dtype, array.shape) == (found.dtype, found.shape)
    assert array.tobytes() == bytes(range(nbytes))


def test_arrays_come_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    header = {"b": entry("U8", [1], 1, 2), "c": entry("U8", [1], 2, 3), "a": entry("U8", [1], 0, 1)}
    (tmp_path / "x").write_bytes(raw(header, b"012"))
    for names in (None, ["c", "b", "a"]):
        found = cu.load_safetensors(tmp_path / "x", names=names)
        assert {name: array.to_numpy().tobytes() for name, array in found.items()} == {
            "a": b"0", "b": b"1", "c": b"2",
        }  # fmt: skip
        assert [*found] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("names", "made"),
    [(None, [2 * 256 + 512 + 256]), (["a", "d"], [1, 256]), (iter("abc"), [1, 256, 257]), ([], [])],
)
def test_a_file_is_one_allocation_and_each_name_that_is_asked_for_its_own(
    tmp_path: Path, names: Any, made: list[int]
) -> None:
    sizes = {"a": 1, "b": 256, "c": 257, "d": 256, "e": 0}
    begin, header = 0, {}
    for name, size in sizes.items():
        header[name] = entry("U8", [size], begin, begin + size)
        begin += size
    (tmp_path / "x").write_bytes(raw(header, bytes(begin)))
    before = device_arrays()
    found = cu.load_safetensors(tmp_path / "x", names=names)
    after = device_arrays()
    for size in before:
        after.remove(size)
    assert sorted(after) == sorted(made)
    if names is None:
        first = found["a"].pointer
        assert [found[name].pointer - first for name in "abcd"] == [0, 256, 512, 1024]


@pytest.mark.parametrize("load", [cu.load_npy, cu.load_npz, cu.load_safetensors])
def test_a_stream_has_the_order_and_the_device_the_memory(
    tmp_path: Path, two_devices: Any, sim: Any, load: Any
) -> None:
    paths = {cu.load_npy: "x.npy", cu.load_npz: "x.npz", cu.load_safetensors: "x.safetensors"}
    path, wanted = tmp_path / paths[load], np.arange(1000)
    np.save(tmp_path / "x.npy", wanted)
    np.savez(tmp_path / "x.npz", a=wanted)
    safetensors.numpy.save_file({"a": wanted}, tmp_path / "x.safetensors")
    for device in (0, 1):
        stream = cu.Stream(device=device)
        for options in ({"device": device}, {"device": device, "stream": stream}, {}):
            with contextlib.nullcontext() if options else stream:
                found = load(path, **options)
            array = found if load is cu.load_npy else found["a"]
            stream.synchronize()
            assert array.device.ordinal == device
            assert (array.to_numpy() == wanted).all()
        soon = threading.Timer(0.1, sim.release)
        sim.hold()
        soon.start()
        found = load(path, stream=stream)
        soon.join()


# ---- which files ---------------------------------------------------------------------------------


def index(path: Path, **weights: str) -> None:
    path.write_text(json.dumps({"weight_map": weights}))


def test_the_index_may_have_any_name_and_lie_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = {"x": entry("U8", [1], 0, 1), "y": entry("U8", [1], 1, 2)}
    (tmp_path / "one").write_bytes(raw(both, b"ab"))
    (tmp_path / "two").write_bytes(raw(both, b"cd"))
    index(tmp_path / "other.index.json", x="two", y="one")
    monkeypatch.chdir(tmp_path)
    found = cu.load_safetensors("other.index.json")
    assert {name: a.to_numpy().tobytes() for name, a in found.items()} == {"x": b"c", "y": b"b"}
    index(tmp_path / "index.json", x="two")  # not the name of one
    with pytest.raises(ValueError, match=r"index\.json is not a safetensors file"):
        cu.load_safetensors("index.json")
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors\.index\.json"):
        cu.load_safetensors(tmp_path)
    index(tmp_path / "other.index.json", x="three")
    with pytest.raises(FileNotFoundError, match="three"):
        cu.load_safetensors("other.index.json")
    index(tmp_path / "other.index.json", z="two")
    with pytest.raises(ValueError, match=r"^two has no array 'z'; it has 2: 'x', 'y'$"):
        cu.load_safetensors("other.index.json")


def test_names_of_a_checkpoint_are_those_of_all_its_files(tmp_path: Path) -> None:
    for name in "xy":
        (tmp_path / name).write_bytes(raw({name: entry("U8", [1], 0, 1)}, name.encode()))
    index(tmp_path / "a.index.json", x="x", y="y")
    for names in (["y"], ["x", "y"]):
        found = cu.load_safetensors(tmp_path / "a.index.json", names=names)
        assert {name: a.to_numpy().tobytes() for name, a in found.items()} == {
            name: name.encode() for name in names
        }
    with pytest.raises(
        ValueError, match=r"^.*/a\.index\.json has no array 'z'; it has 2: 'x', 'y'$"
    ):
        cu.load_safetensors(tmp_path / "a.index.json", names=["z"])
    assert said(tmp_path / "x", raw({}), names=["x"]) == "FILE has no array 'x'; it has 0"


def test_a_weight_map_that_is_none_is_named(tmp_path: Path) -> None:
    for text, message in (
        ('{"metadata": {}}', "FILE has no weight_map"),
        ('{"weight_map": {"a": "x", "a": "y"}}', "FILE: the header has 'a' twice"),
        ('{"weight_map": {"a": "b/c"}}',
         "FILE: tensor 'a' lies in 'b/c', which is not a file beside the index"),
    ):  # fmt: skip
        assert said(tmp_path / "a.index.json", text.encode()) == message


# ---- NumPy's files -------------------------------------------------------------------------------


@pytest.mark.parametrize("descr", [">f4", "<U2", "|S3", "<M8[s]", "|V4", "<c16", "<f2"])
def test_what_numpy_has_for_an_item_is_kept(tmp_path: Path, descr: str) -> None:
    size = np.dtype(descr).itemsize
    (tmp_path / "x.npy").write_bytes(npy(repr(descr), "(2,)", (b"a\0\0\0" * size)[: 2 * size]))
    wanted, found = np.load(tmp_path / "x.npy"), cu.load_npy(tmp_path / "x.npy").to_numpy()
    assert (found.dtype, found.tobytes()) == (wanted.dtype, wanted.tobytes())


@pytest.mark.parametrize(
    ("descr", "shape", "data", "text"),
    [
        ("('<f4',(2,))", "(1,)", 8, "the dtype \"('<f4', (2,))\": items that no array has"),
        ("'|O'", "(1,)", 8, "the dtype 'object': Python objects"),
        ("'<f4'", "(-1,)", 8, f"the shape (-1,); a shape is {LENGTHS}"),
        ("'<i8'", f"(0,{1 << 60})", 0, f"the shape (0, {1 << 60}); a shape is {LENGTHS}"),
        ("'<i8'", "(3,)", 23, "int64 of shape (3,) has 24 bytes, and 23 are there"),
        ("'<i8'", "(2,2)", 0, "int64 of shape (2, 2) has 32 bytes, and 0 are there"),
    ],
)
def test_an_npy_file_that_no_array_can_be_made_of(
    tmp_path: Path, descr: str, shape: str, data: int, text: str
) -> None:
    told = said(tmp_path / "x.npy", npy(descr, shape, bytes(data)))
    between = "is cut off: " if "are there" in text else "has "
    assert told == f"FILE {between}{text}"


def test_lengths_beside_a_0_have_numpys_limit(tmp_path: Path) -> None:
    path, shape = tmp_path / "x", [0, (1 << 60) - 1]
    path.write_bytes(npy("'<i8'", str(tuple(shape)), b""))
    assert cu.load_npy(path).shape == np.load(path).shape == tuple(shape)
    path.write_bytes(raw({"x": entry("I64", shape, 0, 0)}))
    assert cu.load_safetensors(path)["x"].shape == tuple(shape)
    shape[1] += 1
    told = f"the shape {shape}; a shape is a list of {LENGTHS}"
    assert said(path, raw({"x": entry("I64", shape, 0, 0)})) == f"FILE: tensor 'x' has {told}"
    with pytest.raises(ValueError, match="too big"):
        np.empty(shape, np.int64)


def test_what_follows_the_array_is_nobodys(tmp_path: Path) -> None:
    """As numpy.load has it."""
    (tmp_path / "x.npy").write_bytes(npy("'<i2'", "(2,)", b"\1\0\2\0rest"))
    assert cu.load_npy(tmp_path / "x.npy").to_numpy().tolist() == [1, 2]
    (tmp_path / "x.npy").write_bytes(npy("'<i2'", "(0,)", b""))
    assert cu.load_npy(tmp_path / "x.npy").shape == (0,)


@pytest.mark.parametrize("version", [(0, 0), (1, 1), (2, 1), (3, 0)])
def test_a_version_that_is_unknown_is_named(tmp_path: Path, version: tuple[int, int]) -> None:
    data = bytearray(npy("'<i2'", "(1,)", b"\1\0"))
    data[6:8] = version
    text = f"version {version[0]}.{version[1]} of the format is unknown"
    assert said(tmp_path / "x.npy", bytes(data)) == f"FILE is not an .npy array: {text}"


def archive(path: Path, *names: str) -> bytearray:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for number, name in enumerate(names):
            made.writestr(name, npy("'|u1'", "(1,)", bytes([number])))
    path.write_bytes(file.getvalue())
    return bytearray(file.getvalue())


def test_an_archive_may_be_empty_and_names_may_lack_their_end(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path)
    assert cu.load_npz(path) == {}
    archive(path, "a", "b.npy", "c.npy.npy", "d/e.npy")
    found, wanted = cu.load_npz(path), np.load(path)
    assert [*found] == ["a", "b", "c.npy", "d/e"]
    assert [array.to_numpy()[0] for array in found.values()] == [0, 1, 2, 3]
    assert {name: a.to_numpy()[0] for name, a in found.items()} == {
        name: wanted[name][0] for name in found
    }
    assert [*cu.load_npz(path, names=iter(["d/e", "b"]))] == ["b", "d/e"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("twice", ["a.npy", "a"])
def test_two_arrays_of_one_name_are_refused(tmp_path: Path, twice: str) -> None:
    """Which of them np.load takes depends on the names as the archive has them."""
    archive(tmp_path / "x.npz", "a.npy", "b.npy", twice)
    with pytest.raises(ValueError, match="has the array 'a' twice"):
        cu.load_npz(tmp_path / "x.npz", names=["b"])


def test_a_member_may_end_where_the_next_one_begins_and_no_later(tmp_path: Path) -> None:
    data = archive(tmp_path / "x.npz", "a.npy", "b.npy")
    assert [*cu.load_npz(tmp_path / "x.npz")] == ["a", "b"]
    second = data.rfind(b"PK\3\4")
    size = second - data.find(b"\x93NUMPY")
    for at in (18, 22, data.find(b"PK\1\2") + 20, data.find(b"PK\1\2") + 24):
        assert data[at : at + 4] == struct.pack("<I", size)
        data[at : at + 4] = struct.pack("<I", size + 1)
    assert said(tmp_path / "x.npz", bytes(data)) == (
        f"'a.npy' in FILE ends at byte {second + 1}, and at byte {second} something else begins"
    )


def test_a_member_may_lie_behind_the_directory(tmp_path: Path) -> None:
    """In the archive's comment, where zipfile finds it too, unless it takes that for a bomb."""
    data = archive(tmp_path / "x.npz", "a.npy")
    directory = data.find(b"PK\1\2")
    member, rest = bytes(data[:directory]), bytearray(data[directory:])
    rest[42:46] = struct.pack("<I", len(rest))  # where the comment begins
    end = rest.find(b"PK\5\6")
    rest[end + 16 : end + 22] = struct.pack("<IH", 0, len(member))
    (tmp_path / "x.npz").write_bytes(rest + member)
    with contextlib.suppress(zipfile.BadZipFile):
        assert zipfile.ZipFile(tmp_path / "x.npz").read("a.npy").endswith(b"}\n\0")
    assert cu.load_npz(tmp_path / "x.npz")["a"].to_numpy().tolist() == [0]


def test_the_directory_says_how_names_are_written(tmp_path: Path) -> None:
    data = archive(tmp_path / "x.npz", "ä.npy")
    assert [*cu.load_npz(tmp_path / "x.npz")] == ["ä"]
    entry = data.find(b"PK\1\2")
    data[entry + 9] ^= 8  # UTF-8 in the header alone: zipfile then reads the name in cp437
    data[entry + 46 : entry + 48] = data[30:32]
    assert said(tmp_path / "x.npz", bytes(data)) == (
        f"'{'ä'.encode().decode('cp437')}.npy' in FILE has another flags there than in the file's "
        "directory"
    )


def test_each_file_of_a_checkpoint_is_looked_at_for_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "xy":
        (tmp_path / name).write_bytes(raw({name: entry("U8", [1], 0, 1)}, b"a"))
    index(tmp_path / "a.index.json", x="x", y="y")
    seen: list[str] = []
    monkeypatch.setattr(
        sources.Source, "check_unchanged", lambda source: seen.append(source.path[-1])
    )
    cu.load_safetensors(tmp_path / "a.index.json")
    assert sorted(seen) == ["x", "y"]


def test_progress_counts_all_that_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = []

    class Reading(reading.Reading):
        def __init__(self, *words: Any) -> None:
            super().__init__(*words)
            readers.append(self)

    monkeypatch.setattr("cudriver.weights.safetensors.Reading", Reading)
    (tmp_path / "x").write_bytes(raw({"x": entry("U8", [95], 0, 95)}, bytes(95)))
    cu.load_safetensors(tmp_path / "x")
    assert [int(done[0]) for reader in readers for done in reader.begun] == [95]


def test_the_index_is_kept_to_the_headers_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(raw({"x": entry("U8", [1], 0, 1)}, b"a"))
    path = tmp_path / "a.index.json"
    path.write_text(json.dumps({"weight_map": {"x": "x"}, "more": "than the file's header" * 9}))
    size = path.stat().st_size
    monkeypatch.setattr("cudriver.weights.safetensors_format.HEADER_MOST", size)
    assert [*cu.load_safetensors(path)] == ["x"]
    monkeypatch.setattr("cudriver.weights.safetensors_format.HEADER_MOST", size - 1)
    assert said(path, path.read_bytes()).startswith("FILE: the header is not valid JSON: ")


@pytest.mark.parametrize("options", [{"names": ["x", "y"]}, {"slices": {"x": slice(1)}}])
def test_types_are_looked_at_in_all_files_before_memory_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    (tmp_path / "x").write_bytes(raw({"x": entry("U8", [1], 0, 1)}, b"a"))
    (tmp_path / "y").write_bytes(raw({"y": entry("BF16", [1], 0, 2)}, b"ab"))
    index(tmp_path / "a.index.json", x="x", y="y")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    monkeypatch.setattr("cudriver.weights.safetensors.device_empty", pytest.fail)
    with pytest.raises(ImportError, match="NumPy has no bfloat16; the package ml_dtypes has it"):
        cu.load_safetensors(tmp_path / "a.index.json", **options)


def test_the_allocation_is_in_the_streams_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    (tmp_path / "x").write_bytes(raw({"x": entry("U8", [1], 0, 1)}, b"a"))
    asked: list[Any] = []

    def empty(*words: Any, **options: Any) -> cu.DeviceArray:
        asked.append(options)
        return cu.device_empty(*words, **options)

    monkeypatch.setattr("cudriver.weights.numpy_files.device_empty", empty)
    monkeypatch.setattr("cudriver.weights.safetensors.device_empty", empty)
    stream = cu.Stream()
    cu.load_npy(tmp_path / "x.npy", stream=stream)
    cu.load_safetensors(tmp_path / "x", stream=stream, device=0)
    cu.load_safetensors(tmp_path / "x", stream=stream, names=["x"])
    assert [(each["device"], each["stream"]) for each in asked] == [
        (None, stream), (0, stream), (None, stream),
    ]  # fmt: skip
    stream.synchronize()


def test_an_archive_whose_front_is_missing(tmp_path: Path) -> None:
    """Its members then begin before the file does."""
    data = archive(tmp_path / "x.npz", "a.npy", "b.npy")
    told = said(tmp_path / "x.npz", bytes(data[1:]))
    assert told == "'a.npy' in FILE is not where the file's directory says"
    assert [*cu.load_npz(tmp_path / "x.npz", names=["b"])] == ["b"]
