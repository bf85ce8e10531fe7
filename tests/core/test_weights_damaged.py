"""Files of weights that lie: an error with the file's name, and never another array's bytes."""

from __future__ import annotations

import io
import json
import os
import struct
import sys
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudriver as cu
from cudriver.weights import reading
from weightskit import entry, npy, raw, safetensors

LONG = 3_000_000  # characters of a value that no message may repeat


def npz(*arrays: Any, **named: Any) -> bytearray:
    file = io.BytesIO()
    np.savez(file, *arrays, **named)
    return bytearray(file.getvalue())


def archive(**named: Any) -> bytearray:
    """The same from zipfile alone, which writes sizes into the header proper."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, array in named.items():
            member = io.BytesIO()
            np.save(member, array)
            made.writestr(f"{name}.npy", member.getvalue())
    return bytearray(file.getvalue())


def put(data: bytearray, at: int, new: bytes) -> None:
    data[at : at + len(new)] = new


#: Where a header or an entry of the directory begins, by its signature.
LOCAL, ENTRY = b"PK\3\4", b"PK\1\2"
#: How an archive is made, the last LOCAL or ENTRY in it, what is written how far behind that, and
#: what is said. np.savez has sizes in an extra field.
LIES: dict[str, tuple[Any, bytes, int, bytes, str]] = {
    "an offset": (npz, ENTRY, 42, bytes(4), "has another name"),
    "a name": (npz, LOCAL, 30, b"cc", "has another name"),
    "encrypted there": (npz, LOCAL, 6, b"\1", "has another flags"),
    "a method": (npz, LOCAL, 8, b"\x08", "has another method"),
    "a size there": (npz, LOCAL, 40, b"\0", "has another size"),
    "a packed size": (npz, ENTRY, 20, b"\0", "has another size"),
    "a whole size": (npz, ENTRY, 24, b"\0", "has another size"),
    **{
        f"flag {bit} there": (archive, LOCAL, 6, struct.pack("<H", 1 << bit), "has another flags")
        for bit in (1, 2, 3, 11, 15)
    },
    **{
        f"{field} in the extra field alone": (archive, LOCAL, at, b"\xff" * 4, "has another size")
        for field, at in (("packed size", 18), ("size", 22))
    },
    # In numpy.savez's form the header itself has the size, 24 + 128 bytes, too.
    **{
        f"{field} in the header too": (
            npz, LOCAL, at, struct.pack("<I", 24 + 128), "has another size",
        )
        for field, at in (("packed size", 18), ("size", 22))
    },
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_member_is_what_the_directory_says(tmp_path: Path, lie: str) -> None:
    make, signature, behind, new, text = LIES[lie]
    if make is npz and sys.version_info < (3, 11, 4):
        pytest.skip("zipfile before Python 3.11.4 writes these headers otherwise")
    data = make(aa=np.arange(3), bb=np.arange(3) + 100)
    put(data, data.rfind(signature) + behind, new)
    said = refused(cu.load_npz, tmp_path / "x.npz", bytes(data))
    assert f"'bb.npy' in {tmp_path / 'x.npz'} {text}" in said
    same = cu.load_npz(tmp_path / "x.npz", names=["aa"])["aa"].to_numpy()
    assert same.tolist() == [0, 1, 2]


@pytest.mark.skipif(sys.version_info < (3, 11, 4), reason="zipfile writes headers otherwise")
def test_the_last_member_ends_at_the_directory_at_most(tmp_path: Path) -> None:
    data = npz(aa=np.arange(3), bb=np.arange(3) + 100)
    local, entry = data.rfind(LOCAL), data.rfind(ENTRY)
    size = int.from_bytes(data[entry + 24 : entry + 28], "little") + 1
    put(data, entry + 20, struct.pack("<II", size, size))
    put(data, local + 40, struct.pack("<QQ", size, size))
    said = refused(cu.load_npz, tmp_path / "x.npz", bytes(data))
    assert f"at byte {data.find(ENTRY)} something else begins" in said


@pytest.mark.parametrize("back", [0, 1, 29, 30])
def test_a_member_that_begins_near_the_end(tmp_path: Path, back: int) -> None:
    """Of its header less than all is there; with all of it, it is another thing."""
    data = archive(a=np.arange(3))
    put(data, data.find(ENTRY) + 42, struct.pack("<I", len(data) - back))
    said = refused(cu.load_npz, tmp_path / "x.npz", bytes(data))
    assert said == f"'a.npy' in {tmp_path / 'x.npz'} is not where the file's directory says"


@pytest.mark.parametrize(("flag", "refuses"), [(1, True), (2, False), (4, False)])
def test_of_the_flags_one_means_encrypted(tmp_path: Path, flag: int, refuses: bool) -> None:
    data = archive(a=np.arange(3))
    for at in (data.find(LOCAL) + 6, data.find(ENTRY) + 8):
        data[at] |= flag
    if refuses:
        assert refused(cu.load_npz, tmp_path / "x.npz", bytes(data)).endswith(
            "is compressed or encrypted: load it with numpy.load, or save it with numpy.savez"
        )
    else:
        (tmp_path / "x.npz").write_bytes(data)
        assert cu.load_npz(tmp_path / "x.npz")["a"].to_numpy().tolist() == [0, 1, 2]


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
    at = data.find(ENTRY)
    name, extra = data[at + 28], data[at + 30]
    put(data, at + 42, b"\xff" * 4)
    data[at + 30] = extra + 12
    data[at + 46 + name : at + 46 + name] = struct.pack("<HHQ", 1, 8, offset)
    data[data.find(b"PK\5\6") + 12] += 12
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
    """In front of an archive may stand anything."""
    made = {"权重": np.arange(2), "ä": np.arange(1), "plain": np.arange(5)}
    (tmp_path / "x.npz").write_bytes(b"in front" + archive(**made))
    found = cu.load_npz(tmp_path / "x.npz")
    assert {name: array.size for name, array in found.items()} == {"权重": 2, "ä": 1, "plain": 5}


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


READ = {
    "an empty tensor behind one that begins there": (
        {"x": entry("U8", [2], 0, 2), "none": entry("U8", [0], 0, 0)}, b"ab"
    ),
    "null as metadata": ({"__metadata__": None, "x": entry("U8", [1], 0, 1)}, b"a"),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_a_header_that_the_formats_own_library_reads_too(tmp_path: Path, name: str) -> None:
    data = raw(*READ[name])
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


@pytest.mark.parametrize("streamed", [False, True])
def test_the_arrays_are_filled_on_return(tmp_path: Path, sim: Any, streamed: bool) -> None:
    np.save(tmp_path / "x.npy", np.arange(200, dtype="u1"))
    stream, other, found = cu.Stream() if streamed else None, cu.Stream(), np.zeros(200, "u1")
    sim.set_latency(50_000)  # microseconds before each operation
    try:
        cu.copy_async(found, cu.load_npy(tmp_path / "x.npy", stream=stream), other).wait()
    finally:
        sim.set_latency(0)
    assert found.tolist() == [*range(200)]


# ---- a change meanwhile --------------------------------------------------------------------------


def test_a_change_whose_time_was_set_back_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(1000, "u1"))
    before = path.stat()
    add = reading.Reading.add

    def changed(self: reading.Reading, *part: Any) -> Any:
        while path.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of files has steps
            with path.open("r+b") as file:
                file.seek(-1, 2)
                file.write(b"\1")
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_mtime_ns == before.st_mtime_ns
        return add(self, *part)

    monkeypatch.setattr(reading.Reading, "add", changed)
    with pytest.raises(ValueError, match=r"x\.npy was changed while it was read"):
        cu.load_npy(path)


@pytest.mark.parametrize("way", ["replaced", "removed", "linked"])
def test_a_file_that_loses_or_gets_a_name_is_read_to_its_end(tmp_path: Path, way: str) -> None:
    """docs/weights.md tells who changes a file to rename a new one over it."""
    path, other = tmp_path / "x", tmp_path / "y"
    header = {name: entry("U8", [2], at, at + 2) for name, at in (("a", 0), ("b", 2))}
    path.write_bytes(raw(header, b"abcd"))
    other.write_bytes(raw(header, b"efgh"))
    time.sleep(0.03)  # the clock of files has steps
    loading = cu.iter_safetensors(path)
    found = {"a": next(loading)[1]}
    if way == "replaced":
        other.replace(path)
    elif way == "removed":
        path.unlink()
    else:
        os.link(path, tmp_path / "z")
    found.update(loading)
    assert {name: array.to_numpy().tobytes() for name, array in found.items()} == {
        "a": b"ab", "b": b"cd",
    }  # fmt: skip
