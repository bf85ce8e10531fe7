"""Files of arrays in device memory: what safetensors and NumPy wrote, and what nobody should."""

from __future__ import annotations

import ctypes
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cudriver as cu
from weightskit import entry, raw, safetensors, same

RNG = np.random.default_rng(7)


def tensors() -> dict[str, np.ndarray]:
    types = ["bool", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8", "c8"]
    types += [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
    made = {
        f"t{i}": RNG.integers(0, 2, (i + 1, 37)).astype(np.dtype(kind)).reshape(37, i + 1)
        for i, kind in enumerate(types)
    }
    return made | {"scalar": np.array(3, "f4"), "none": np.empty((0, 3), "f4")}


def test_a_file_that_safetensors_wrote_comes_back_as_it_was(tmp_path: Path) -> None:
    made = tensors()
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(made, path, metadata={"format": "np"})
    found = cu.load_safetensors(path)
    same(found, made)
    assert all(array.pointer % 256 == 0 for array in found.values())
    same(cu.load_safetensors(tmp_path), made)  # a folder's


def test_some_names_alone_have_memory_of_their_own(tmp_path: Path) -> None:
    made = tensors()
    safetensors.numpy.save_file(made, tmp_path / "x.safetensors")
    found = cu.load_safetensors(tmp_path / "x.safetensors", names=["t5", "t8"])
    same(found, {name: made[name] for name in ("t5", "t8")})
    found["t5"].close()
    same({"t8": found["t8"]}, {"t8": made["t8"]})


def test_a_checkpoint_in_several_files_is_one_dict(tmp_path: Path) -> None:
    made = tensors()
    names = sorted(made)
    files = {"a.safetensors": names[:7], "b.safetensors": names[7:]}
    for file, some in files.items():
        safetensors.numpy.save_file({name: made[name] for name in some}, tmp_path / file)
    index = {"weight_map": {name: file for file, some in files.items() for name in some}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    same(cu.load_safetensors(tmp_path), made)
    same(
        cu.load_safetensors(tmp_path / "model.safetensors.index.json", names=["t1", "none"]),
        {name: made[name] for name in ("t1", "none")},
    )
    del index["weight_map"]["t3"]  # the file has more than the index lists
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    same(cu.load_safetensors(tmp_path), {name: made[name] for name in names if name != "t3"})


@pytest.mark.parametrize(
    "file", ["/etc/passwd", "../x.safetensors", "", ".", "..", 3, None, "a\0", "\ud800", "a" * 256]
)
def test_an_index_names_files_beside_it_only(tmp_path: Path, file: Any) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": file}}))
    with pytest.raises(ValueError, match="which is not a file beside the index"):
        cu.load_safetensors(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', "[" * 100_000, "\xff"])
def test_a_wrong_index_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json"):
        cu.load_safetensors(tmp_path)


GOOD = {"x": entry("F32", [2], 0, 8), "y": entry("U8", [3], 8, 11)}
WRONG = {
    "no bytes": b"",
    "a header beyond the limit": ((1 << 64) - 1).to_bytes(8, "little") + b"{}",
    "no JSON": raw(b"{]"),
    "a list": raw(b"[]"),
    "no UTF-8": raw(b'{"\xff":1}'),
    "UTF-16": raw('{"__metadata__":{}}'.encode("utf-16")),
    "depth": raw(b'{"x":' + b"[" * 100_000),
    "cut off": raw(GOOD, b"0123456789"),
    "something appended": raw(GOOD, b"0123456789ab"),
    "metadata of numbers": raw({"__metadata__": {"a": 1}}),
    "no object": raw({"x": 3}),
    "a type that is not text": raw({"x": entry([], [1], 0, 1)}, b"0"),  # type: ignore[arg-type]
    "a negative length": raw({"x": entry("U8", [-1, -1], 0, 1)}, b"0"),
    "a length that is true": raw({"x": entry("U8", [True], 0, 1)}, b"0"),
    "a length that is not an integer": raw({"x": entry("U8", [1.0], 0, 1)}, b"0"),
    "a product that overflows": raw({"x": entry("U8", [1 << 62, 4], 0, 0)}),
    "negative offsets": raw({"x": entry("U8", [1], -1, 0)}, b"0"),
    "an offset beyond all": raw({"x": entry("U8", [1], (1 << 64) - 1, 1 << 64)}, b"0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_an_error_before_anything_is_allocated(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(WRONG[name])
    with pytest.raises(safetensors.SafetensorError):  # the format's own library agrees
        safetensors.numpy.load(WRONG[name])
    monkeypatch.setattr("cudriver.weights.safetensors.device_empty", pytest.fail)
    with pytest.raises(ValueError, match=r"x\.safetensors"):
        cu.load_safetensors(path)


@settings(max_examples=80)
@given(data=st.data())
def test_a_changed_file_is_refused_or_read_as_safetensors_reads_it(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    right = bytearray(raw(GOOD, b"0123456789a"))
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.integers(0, len(right) - 1))
        byte = data.draw(st.sampled_from(b'0123456789{}[]",:-.eF\0\xff ') | st.integers(0, 255))
        right[where] = byte
    path = tmp_path_factory.getbasetemp() / "changed.safetensors"
    path.write_bytes(right)
    try:
        wanted = safetensors.numpy.load(bytes(right))
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, AttributeError):
        wanted = None
    try:
        found = cu.load_safetensors(path)
    except (ValueError, ImportError):
        found = None
    if wanted is not None and found is not None:
        same(found, wanted)


def write_npy(path: Path, array: np.ndarray, version: tuple[int, int] | None = None) -> None:
    with path.open("wb") as file:
        np.lib.format.write_array(file, array, version)


ARRAYS = {
    "C": np.arange(24.0).reshape(2, 3, 4),
    "Fortran": np.asfortranarray(np.arange(24, dtype="i2").reshape(2, 3, 4)),
    "no dimension": np.array(7),
    "no item": np.empty((3, 0, 2)),
    "bool": np.array([True, False]),
    "complex": np.array([1 + 2j]),
    "large": RNG.integers(0, 255, (101, 103), dtype="u1"),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_an_npy_file_comes_back_as_numpy_reads_it(
    tmp_path: Path, name: str, version: tuple[int, int]
) -> None:
    write_npy(tmp_path / "x.npy", ARRAYS[name], version)
    found, wanted = cu.load_npy(tmp_path / "x.npy"), np.load(tmp_path / "x.npy")
    same({"": found}, {"": wanted})
    assert found.strides == wanted.strides or wanted.size < 2


def test_an_npz_file_comes_back_as_numpy_reads_it(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **ARRAYS)
    same(cu.load_npz(tmp_path / "x.npz"), dict(np.load(tmp_path / "x.npz")))
    same(cu.load_npz(tmp_path / "x.npz", names=["large"]), {"large": ARRAYS["large"]})
    with pytest.raises(ValueError, match="no array 'small'"):
        cu.load_npz(tmp_path / "x.npz", names=["small"])


def saved(save: Callable[..., None], *arrays: Any) -> bytes:
    file = io.BytesIO()
    save(file, *arrays)
    return file.getvalue()


def zipped(name: str, data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, data)
    return file.getvalue()


NPY = saved(np.save, np.arange(100))
NPZ = saved(np.savez, np.arange(100))
WRONG_NUMPY = {
    "an empty .npy": (cu.load_npy, b"", "is not an .npy array"),
    "another file": (cu.load_npy, b"PK\3\4" + bytes(100), "is not an .npy array"),
    "a version of the future": (cu.load_npy, b"\x93NUMPY\7\0" + NPY[8:], "unknown"),
    "a header without a dict": (cu.load_npy, NPY.replace(b"{", b"[", 1), "is not an .npy array"),
    "a cut .npy": (
        cu.load_npy,
        NPY[:-1],
        r"cut off: int64 of shape \(100,\) has 800 bytes, and 799",
    ),
    "a negative length": (cu.load_npy, NPY.replace(b"(100,", b"(-10,"), "shape"),
    "objects": (cu.load_npy, saved(np.save, np.array([None])), "dtype 'object'"),
    "an empty .npz": (cu.load_npz, b"", "is not an .npz file"),
    "a cut .npz": (cu.load_npz, NPZ[:-30], "is not an .npz file"),
    "compressed": (cu.load_npz, saved(np.savez_compressed, np.arange(9)), "numpy.savez"),
    "another member": (cu.load_npz, zipped("a.txt", b"text"), "'a.txt' in .* is not an .npy array"),
    "a member that is gone": (cu.load_npz, NPZ.replace(b"PK\3\4", b"PK\3\5"), "not where"),
}


@pytest.mark.parametrize("name", WRONG_NUMPY)
def test_a_wrong_file_of_numpys_is_an_error(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, data, match = WRONG_NUMPY[name]
    (tmp_path / "x").write_bytes(data)
    monkeypatch.setattr("cudriver.weights.numpy_files.device_empty", pytest.fail)
    with pytest.raises(ValueError, match=match):
        load(tmp_path / "x")


def test_what_is_no_file_is_an_error_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is not a regular file"):
        cu.load_npy(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a regular file"):
        cu.load_npy(tmp_path)
    with pytest.raises(FileNotFoundError, match="nothing"):
        cu.load_safetensors(tmp_path / "nothing")


def test_a_captured_stream_is_refused(tmp_path: Path, sim: Any) -> None:
    np.save(tmp_path / "x.npy", np.arange(5))
    stream, library = cu.Stream(), ctypes.CDLL(cu.driver_path())
    handle, graph = ctypes.c_void_p(stream.handle), ctypes.c_void_p()
    assert library.cuStreamBeginCapture_v2(handle, 2) == 0
    with pytest.raises(cu.CudaError, match=r"^load_npy\(\) cannot be captured: stream"):
        cu.load_npy(tmp_path / "x.npy", stream=stream)
    assert library.cuStreamEndCapture(handle, ctypes.byref(graph)) == 0
    assert library.cuGraphDestroy(graph) == 0


def test_no_file_and_no_memory_stays_open_after_an_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(raw({"x": entry("U8", [1], 1, 2)}, b"01"))
    before = sorted(os.listdir("/proc/self/fd")), cu.live_allocations()
    for _ in range(3):
        with pytest.raises(ValueError, match="begins at byte"):
            cu.load_safetensors(tmp_path / "x")
        with pytest.raises(ValueError, match="is no"):
            cu.load_npz(tmp_path / "x")
    assert (sorted(os.listdir("/proc/self/fd")), cu.live_allocations()) == before


def test_arrays_that_lie_side_by_side_are_read_one_by_one(tmp_path: Path) -> None:
    """Each by itself in device memory: no copy of the driver's crosses from one into the next."""
    arrays = {f"t{i}": np.full(4096, i, np.float32) for i in range(8)}
    safetensors.numpy.save_file(arrays, tmp_path / "side.safetensors")
    for names in (list(arrays), list(arrays)[::2], list(arrays)[2:5]):
        found = cu.load_safetensors(tmp_path / "side.safetensors", names=names)
        assert {name: set(found[name].to_numpy()) for name in names} == {
            name: {float(name[1:])} for name in names
        }


def test_records_are_loaded(tmp_path: Path) -> None:
    points = np.zeros((3, 5), [("xyz", "<f4", 3), ("intensity", "<u2"), ("pair", "i4,f8")])
    points["intensity"] = np.arange(15).reshape(3, 5)
    points["pair"]["f1"] = 2.5
    np.save(tmp_path / "x.npy", np.asfortranarray(points))
    np.savez(tmp_path / "x.npz", points=points, other=np.ones(3))
    for there in (cu.load_npy(tmp_path / "x.npy"), cu.load_npz(tmp_path / "x.npz")["points"]):
        assert there.dtype == points.dtype
        assert np.array_equal(there.to_numpy(), points)
        assert np.array_equal(there["intensity"].to_numpy(), points["intensity"])


@pytest.mark.parametrize("by", ["load_npy", "load_safetensors"])
def test_a_load_follows_the_earlier_work_of_its_stream(tmp_path: Path, sim: Any, by: str) -> None:
    """What that work still uses may be what the load is given."""
    source = np.arange(1000.0)
    np.save(tmp_path / "x.npy", source)
    safetensors.numpy.save_file({"x": source}, tmp_path / "x")
    stream, there = cu.Stream(), cu.device_zeros(1000)
    transfer = cu.copy_async(there, cu.pinned_zeros(1000), stream)
    sim.reset_counts()
    if by == "load_npy":
        loaded = cu.load_npy(tmp_path / "x.npy", stream=stream)
    else:
        loaded = cu.load_safetensors(tmp_path / "x", stream=stream)["x"]
    assert sim.call_count("cuStreamWaitEvent") > 0
    assert np.array_equal(loaded.to_numpy(), source)
    transfer.wait()


def test_without_a_thread_it_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As copies are made without one."""
    import threading

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    parts = {f"x{i}": np.full(100, i, "f4") for i in range(5)}
    for number in range(3):
        safetensors.numpy.save_file(parts, tmp_path / str(number))
    np.save(tmp_path / "x.npy", parts["x3"])
    monkeypatch.setattr(threading.Thread, "start", start)
    assert np.array_equal(cu.load_npy(tmp_path / "x.npy").to_numpy(), parts["x3"])
    loaded = cu.load_safetensors(tmp_path / "0")
    for name, array in cu.iter_safetensors([tmp_path / "1"]):
        assert np.array_equal(array.to_numpy(), parts[name])
    assert all(np.array_equal(loaded[name].to_numpy(), parts[name]) for name in parts)
