"""Files of weights that lie: an error with the file's name, and never another array's bytes."""

from __future__ import annotations

import io
import json
import os
import struct
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import cudriver as cu
from cudriver.weights import reading
from cudriver.weights import source as sources
from weightskit import entry, npy, raw

LONG = 3_000_000  # characters of a value that no message may repeat


def npz(*arrays: Any, **named: Any) -> bytearray:
    file = io.BytesIO()
    np.savez(file, *arrays, **named)
    return bytearray(file.getvalue())


def refused(load: Callable[[Any], Any], path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(ValueError) as caught:
        load(path)
    said = str(caught.value)
    assert path.name in said
    assert len(said) < 500 + len(str(path))
    return said


# ---- shapes --------------------------------------------------------------------------------------


@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="NumPy 1 has 32 dimensions at most"
)
def test_sixty_four_dimensions_and_no_more(tmp_path: Path) -> None:
    for count in (64, 65):
        data = raw({"x": entry("U8", [1] * count, 0, 1)}, b"a")
        text = "{'descr':'|u1','fortran_order':False,'shape':(" + "1," * count + ")}\n"
        files = [(cu.load_safetensors, data), (cu.load_npy, npy(text.encode(), b"a"))]
        for load, content in files:
            if count == 64:
                (tmp_path / "x").write_bytes(content)
                found = load(tmp_path / "x")
                array = found["x"] if isinstance(found, dict) else found
                assert array.to_numpy().shape == (1,) * 64
            else:
                assert "at most 64 lengths" in refused(load, tmp_path / "x", content)


def test_no_product_is_made_of_too_many_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The product of n large lengths takes a time that grows with the square of n."""
    monkeypatch.setattr("math.prod", pytest.fail)
    shape = [1 << 62] * 65
    refused(cu.load_safetensors, tmp_path / "x", raw({"x": entry("U8", shape, 0, 1)}, b"a"))
    text = f"{{'descr':'|u1','fortran_order':False,'shape':{tuple(shape)}}}\n"
    refused(cu.load_npy, tmp_path / "x", npy(text.encode(), b"a"))


# ---- messages ------------------------------------------------------------------------------------

LARGE = "x" * LONG
LISTS = [[1]] * (LONG // 5)
REPEATED = {
    "a name": {LARGE: 3},
    "a name of a wrong type": {LARGE: entry("Q8", [1], 0, 1)},
    "a name of a wrong size": {LARGE: entry("U8", [1], 0, 2)},
    "a name with a gap": {LARGE: entry("U8", [1], 1, 2)},
    "a type": {"x": entry(LARGE, [1], 0, 1)},
    "a list as type": {"x": entry(LISTS, [1], 0, 1)},
    "a shape": {"x": entry("U8", LISTS, 0, 1)},
    "a shape of numbers": {"x": entry("U8", [(1 << 63) - 1] * 64, 0, 1)},
    "offsets": {"x": {"dtype": "U8", "shape": [1], "data_offsets": LISTS}},
    "a name twice": f'{{"{LARGE}":1,"{LARGE}":1}}'.encode(),
    "no JSON": b"{" + LARGE.encode(),
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_message_does_not_repeat_what_is_large(tmp_path: Path, name: str) -> None:
    refused(cu.load_safetensors, tmp_path / "x.safetensors", raw(REPEATED[name], b"ab"))


@pytest.mark.parametrize("index", [{LARGE: "../x"}, {"x": LARGE}, {"x": LISTS}])
def test_nor_what_an_index_says(tmp_path: Path, index: Any) -> None:
    path = tmp_path / "model.safetensors.index.json"
    refused(cu.load_safetensors, path, json.dumps({"weight_map": index}).encode())


def test_nor_what_the_caller_or_the_file_calls_an_array(tmp_path: Path) -> None:
    data = raw({LARGE + "0": entry("U8", [1], 0, 1)}, b"a")
    (tmp_path / "x").write_bytes(data)
    for names in ([LARGE], LARGE, ["y"]):
        with pytest.raises((ValueError, TypeError)) as caught:
            cu.load_safetensors(tmp_path / "x", names=names)
        assert len(str(caught.value)) < 500 + len(str(tmp_path))


def test_nor_a_large_header_of_numpys(tmp_path: Path) -> None:
    fields = ",".join(f"('{'f' * 30}{i}','<f4')" for i in range(200))
    for header in (
        f"{{'descr':[{fields}],'fortran_order':False,'shape':(1,)}}",
        "{'descr':'" + "f" * 9000 + "','fortran_order':False,'shape':(1,)}",
        "{'descr':'<f4','fortran_order':False,'shape':(" + "1," * 4000 + ")}",
        "{'descr':'<f4','fortran_order':False,'shape':(0x" + "f" * 9000 + ",)}",
        "{'descr':'<f4','fortran_order':False,'shape':(-0x" + "f" * 9000 + ",)}",
    ):
        refused(cu.load_npy, tmp_path / "x.npy", npy(header.encode() + b"\n", b"abcd"))
    name = "y" * 60_000
    data = npz(**{name: np.arange(3)})
    at = data.find(b"PK\3\4")
    data[at + 26] ^= 1
    refused(cu.load_npz, tmp_path / "x.npz", bytes(data))


# ---- what NumPy and zipfile raise ----------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr':'<f4','fortran_order':False,'shape':(",  # tokenize.TokenError
        b")",
        b"  {\n 1}",  # IndentationError
        b"{'descr':'<f4','fortran_order':False,'shape':(0777,)}",  # SyntaxError
        b"{'descr':'<f4','fortran_order':False,'shape':(True,)}",
        b"{'descr':('<f4',(1 << 70,)),'fortran_order':False,'shape':(1,)}",
        b"{'descr':('<f4',(1180591620717411303424,)),'fortran_order':False,'shape':(1,)}",
        b"{'descr':'|S0','fortran_order':False,'shape':(1,)}",
        b"{'descr':'|V0','fortran_order':False,'shape':(1,)}",
        b"(" * 5000,  # RecursionError, or MemoryError
        b"{[]:1}",  # TypeError
        b"\xff\x00",
    ],
)
def test_a_wrong_header_of_numpys_is_a_value_error(tmp_path: Path, header: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python's parser
        refused(cu.load_npy, tmp_path / "x.npy", npy(header, bytes(8)))


@pytest.mark.parametrize("offset", [1 << 63, (1 << 63) - 1, (1 << 64) - 1, 1 << 40])
def test_an_offset_beyond_all_files_is_a_value_error(tmp_path: Path, offset: int) -> None:
    data = npz(a=np.arange(3))
    at = data.find(b"PK\1\2")
    name, extra = data[at + 28], data[at + 30]
    data[at + 42 : at + 46] = b"\xff" * 4
    data[at + 30] = extra + 12
    data[at + 46 + name : at + 46 + name] = struct.pack("<HHQ", 1, 8, offset)
    end = data.find(b"PK\5\6")
    data[end + 12] += 12
    refused(cu.load_npz, tmp_path / "x.npz", bytes(data))


def test_an_error_of_the_system_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.npz").write_bytes(npz(a=np.arange(3)))

    def fails(*_: Any) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(zipfile, "ZipFile", fails)
    with pytest.raises(OSError, match="Input/output error"):
        cu.load_npz(tmp_path / "x.npz")


# ---- .npz: the directory against the headers -----------------------------------------------------


def test_an_npz_written_to_a_pipe_is_read(tmp_path: Path) -> None:
    """The sizes then stand behind each array."""
    read, write = os.pipe()
    with os.fdopen(write, "wb") as file:  # small enough for the pipe's buffer
        np.savez(file, a=np.arange(3), b=np.ones(2))
    with os.fdopen(read, "rb") as file:
        (tmp_path / "x.npz").write_bytes(file.read())
    found = cu.load_npz(tmp_path / "x.npz")
    assert [found[name].to_numpy().tolist() for name in "ab"] == [[0, 1, 2], [1.0, 1.0]]


def test_names_of_any_language_and_other_writers_are_read(tmp_path: Path) -> None:
    """zipfile alone writes sizes into the header proper, and in front of it may stand anything."""
    file = io.BytesIO(b"in front")
    file.seek(0, 2)
    with zipfile.ZipFile(file, "a") as archive:
        for name in ("权重", "ä", "plain"):
            member = io.BytesIO()
            np.save(member, np.arange(len(name)))
            archive.writestr(f"{name}.npy", member.getvalue())
    (tmp_path / "x.npz").write_bytes(file.getvalue())
    found = cu.load_npz(tmp_path / "x.npz")
    assert {name: array.size for name, array in found.items()} == {"权重": 2, "ä": 1, "plain": 5}


def two() -> tuple[bytearray, int, int]:
    """A file of two arrays, and where the second one's header and its directory entry are."""
    data = npz(aa=np.arange(3), bb=np.arange(3) + 100)
    return data, data.rfind(b"PK\3\4"), data.rfind(b"PK\1\2")


def other_offset(data: bytearray, local: int, entry: int) -> None:
    data[entry + 42 : entry + 46] = bytes(4)


def other_name(data: bytearray, local: int, entry: int) -> None:
    data[local + 30 : local + 32] = b"cc"


def other_flags(data: bytearray, local: int, entry: int) -> None:
    data[local + 6] |= 1  # encrypted


def other_method(data: bytearray, local: int, entry: int) -> None:
    data[local + 8] = 8  # deflated


def other_size(data: bytearray, local: int, entry: int) -> None:
    data[local + 30 + 6 + 4] ^= 8  # in the extra field


def packed_size(data: bytearray, local: int, entry: int) -> None:
    data[entry + 20] ^= 8


def whole_size(data: bytearray, local: int, entry: int) -> None:
    data[entry + 24] ^= 8


LIES = {
    other_offset: "another name",
    other_name: "another name",
    other_flags: "another flags",
    other_method: "another method",
    other_size: "another size",
    packed_size: "another size",
    whole_size: "another size",
}


EDITED_BY_PLACE = pytest.mark.skipif(
    sys.version_info < (3, 11, 4),
    reason="edits headers by their place; zipfile before Python 3.11.4 writes them otherwise",
)


@EDITED_BY_PLACE
@pytest.mark.parametrize("change", LIES)
def test_a_member_is_what_the_directory_says(
    tmp_path: Path, change: Callable[[bytearray, int, int], None]
) -> None:
    data, local, entry = two()
    change(data, local, entry)
    said = refused(cu.load_npz, tmp_path / "x.npz", bytes(data))
    assert f"'bb.npy' in {tmp_path / 'x.npz'} has {LIES[change]}" in said
    same = cu.load_npz(tmp_path / "x.npz", names=["aa"])["aa"].to_numpy()
    assert same.tolist() == [0, 1, 2]


@EDITED_BY_PLACE
def test_the_last_member_ends_at_the_directory_at_most(tmp_path: Path) -> None:
    data, local, entry = two()
    size = int.from_bytes(data[entry + 24 : entry + 28], "little") + 1
    data[entry + 20 : entry + 28] = struct.pack("<II", size, size)
    data[local + 40 : local + 56] = struct.pack("<QQ", size, size)
    said = refused(cu.load_npz, tmp_path / "x.npz", bytes(data))
    assert f"at byte {data.find(b'PK' + bytes([1, 2]))} something else begins" in said


# ---- the header of safetensors -------------------------------------------------------------------


def test_the_formats_limit_of_the_header(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    text = json.dumps({"x": entry("U8", [1], 0, 1)})
    for length in (100_000_000, 100_000_001):
        path.write_bytes(raw(text.ljust(length).encode(), b"a"))
        if length == 100_000_000:
            assert safetensors.numpy.load_file(path)["x"].tolist() == [97]
            assert cu.load_safetensors(path)["x"].to_numpy().tolist() == [97]
        else:
            with pytest.raises(safetensors.SafetensorError):
                safetensors.numpy.load_file(path)
            with pytest.raises(ValueError, match="announce a header of 100000001 bytes"):
                cu.load_safetensors(path)


def test_an_empty_tensor_may_stand_anywhere(tmp_path: Path) -> None:
    """Listed after one that begins at the same byte."""
    header = {"x": entry("U8", [2], 0, 2), "none": entry("U8", [0], 0, 0)}
    data = raw(header, b"ab")
    (tmp_path / "x").write_bytes(data)
    wanted = safetensors.numpy.load(data)
    found = {name: a.to_numpy().tolist() for name, a in cu.load_safetensors(tmp_path / "x").items()}
    assert found == {name: array.tolist() for name, array in wanted.items()}


def test_a_shard_that_begins_where_the_last_one_ends(tmp_path: Path) -> None:
    first = raw({"x": entry("U8", [8], 0, 8)}, b"AAAAAAAA")
    text = json.dumps({"y": entry("U8", [8], 0, 8)}).ljust(len(first) - 8).encode()
    (tmp_path / "a.safetensors").write_bytes(first)
    (tmp_path / "b.safetensors").write_bytes(raw(text, b"BBBBBBBB"))
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = cu.load_safetensors(tmp_path)
    assert {name: array.to_numpy().tobytes() for name, array in found.items()} == {
        "x": b"AAAAAAAA",
        "y": b"BBBBBBBB",
    }


def test_the_header_begins_with_a_brace(tmp_path: Path) -> None:
    """The format says so, though its own library lets blanks pass."""
    text = json.dumps({"x": entry("U8", [1], 0, 1)}).encode()
    said = refused(cu.load_safetensors, tmp_path / "x", raw(b" " + text, b"a"))
    assert "not a JSON object" in said


def test_a_whole_file_goes_before_an_index(tmp_path: Path) -> None:
    """As transformers has it."""
    (tmp_path / "model.safetensors").write_bytes(raw({"x": entry("U8", [1], 0, 1)}, b"a"))
    (tmp_path / "old.safetensors").write_bytes(raw({"x": entry("U8", [1], 0, 1)}, b"b"))
    index = {"weight_map": {"x": "old.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert cu.load_safetensors(tmp_path)["x"].to_numpy().tobytes() == b"a"


def test_a_file_name_may_be_as_long_as_linux_has_it(tmp_path: Path) -> None:
    name = "权" * 85  # 255 bytes
    (tmp_path / name).write_bytes(raw({"x": entry("U8", [1], 0, 1)}, b"a"))
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"x": name}}))
    assert cu.load_safetensors(path)["x"].to_numpy().tobytes() == b"a"
    said = refused(
        cu.load_safetensors, path, json.dumps({"weight_map": {"x": name + "a"}}).encode()
    )
    assert "not a file beside the index" in said


# ---- reading -------------------------------------------------------------------------------------


def test_a_read_may_give_less_than_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, count, at: pread(fd, min(count, 3), at))
    monkeypatch.setattr(os, "preadv", lambda fd, parts, at: preadv(fd, [parts[0][:2]], at))
    (tmp_path / "x").write_bytes(raw({"x": entry("U8", [5], 0, 5)}, b"abcde"))
    assert cu.load_safetensors(tmp_path / "x")["x"].to_numpy().tobytes() == b"abcde"


def test_without_a_stream_the_arrays_are_filled_on_return(
    tmp_path: Path, sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", np.arange(200, dtype="u1"))
    streams: list[cu.Stream] = []

    def made(**more: Any) -> cu.Stream:
        streams.append(cu.Stream(**more))
        return streams[-1]

    monkeypatch.setattr(reading, "Stream", made)
    sim.set_latency(300_000)  # microseconds before each operation
    try:
        there = cu.load_npy(tmp_path / "x.npy")
        assert [stream.done for stream in streams] == [True]
    finally:
        sim.set_latency(0)
    assert there.to_numpy().tolist() == [*range(200)]


# ---- a change meanwhile --------------------------------------------------------------------------


def test_a_change_whose_time_was_set_back_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(1000, "u1"))
    before = path.stat()
    read_into = sources.Source.read_into

    def changed(source: sources.Source, slot: memoryview, offset: int) -> None:
        while path.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of files has steps
            with path.open("r+b") as file:
                file.seek(-1, 2)
                file.write(b"\1")
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_mtime_ns == before.st_mtime_ns
        read_into(source, slot, offset)

    monkeypatch.setattr(sources.Source, "read_into", changed)
    with pytest.raises(ValueError, match=r"x\.npy was changed while it was read"):
        cu.load_npy(path)
