"""Arrays in safetensors files: that safetensors reads them, and that no file is ever half a one."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cudriver as cu
from conftest import DRIVER
from cudriver.weights import saving
from program import output
from weightskit import safetensors, same

RNG = np.random.default_rng(11)
TYPES = ["bool", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8"]
TYPES += [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
OLD = b"the old file"


def arrays() -> dict[str, np.ndarray]:
    made = {
        f"t.{i}": RNG.integers(0, 2, (i + 1, 37)).astype(np.dtype(kind))
        for i, kind in enumerate(TYPES)
    }
    return made | {
        "scalar": np.array(3, "f4"),
        "none": np.empty((0, 3), "f4"),
        "": np.ones(3, "f2"),
        'a "name" of é, \\, \t, \0, \x7f and \U0001f600': np.ones((1, 1), "u1"),
    }


def on_device(made: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: cu.to_device(array) for name, array in made.items()}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    """So that small arrays are written in several blocks, and in parts."""
    monkeypatch.setattr(saving, "BLOCK", 4096)
    return 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that there is already, and nothing beside it."""
    made = tmp_path / "model.safetensors"
    made.write_bytes(OLD)
    return made


def untouched(path: Path) -> bool:
    return path.read_bytes() == OLD and [*path.parent.iterdir()] == [path]


# ---- what is written -----------------------------------------------------------------------------


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}, {"é\n": '"\U0001f600"'}])
def test_the_bytes_are_those_that_safetensors_writes(path: Path, metadata: Any) -> None:
    made = arrays()
    cu.save_safetensors(path, on_device(made), metadata=metadata)
    found = path.read_bytes()
    if metadata == {}:  # the package takes none for it
        metadata = None
        assert b'"__metadata__":{}' in found
    else:
        assert found == safetensors.numpy.save(made, metadata=metadata)
    entries = dict(safetensors.deserialize(found))
    assert {name: bytes(each["data"]) for name, each in entries.items()} == {
        name: array.tobytes() for name, array in made.items()
    }
    same(cu.load_safetensors(path), made)
    assert [*path.parent.iterdir()] == [path]


def test_no_arrays_are_a_file_too(path: Path) -> None:
    cu.save_safetensors(path, {})
    assert path.read_bytes() == safetensors.numpy.save({})


@pytest.mark.parametrize("kind", ["complex64", "float8_e8m0fnu", "float8_e4m3fnuz"])
def test_types_that_only_newer_safetensors_know_come_back(path: Path, kind: str) -> None:
    made = {"x": RNG.integers(0, 2, (3, 5)).astype(np.dtype(getattr(ml_dtypes, kind, kind)))}
    cu.save_safetensors(path, on_device(made))
    same(cu.load_safetensors(path), made)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda x: x,
    "transposed": lambda x: x.T,
    "every second column": lambda x: x[:, ::2],
    "backwards": lambda x: x[::-1, ::-1],
    "one row": lambda x: x[3],
    "no row": lambda x: x[:0],
    "three dimensions": lambda x: x.reshape(10, 10, -1)[:, 1:, ::3],
    "one item": lambda x: x[0, 0:1],
}


@pytest.mark.parametrize("where", ["device", "host"])
def test_any_strides_are_saved_in_c_order(path: Path, small_blocks: int, where: str) -> None:
    whole = RNG.integers(0, 255, (100, 9000), np.uint8)
    there = cu.to_device(whole) if where == "device" else whole
    made = {name: layout(whole) for name, layout in LAYOUTS.items()}
    cu.save_safetensors(path, {name: layout(there) for name, layout in LAYOUTS.items()})
    found = safetensors.numpy.load_file(path)
    assert {*found} == {*made}
    for name, array in made.items():
        assert found[name].shape == array.shape
        assert (found[name] == array).all(), name


@settings(max_examples=40)
@given(data=st.data())
def test_parts_are_small_and_make_the_array_in_order(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 9), min_size=0, max_size=4))
    made = np.arange(np.prod(shape, dtype=int), dtype="u2").reshape(shape).T
    most = data.draw(st.integers(2, 64))
    block, saving.BLOCK = saving.BLOCK, most
    try:
        packs = [*saving.packs([made, made[:0] if made.ndim else made])]
        parts = [part.tobytes() for pack in packs for part in pack]
        assert all(0 < sum(part.nbytes for part in pack) <= most for pack in packs)
    finally:
        saving.BLOCK = block
    assert b"".join(parts) == made.tobytes() * (1 if made.ndim else 2)


def test_many_small_arrays_are_copied_together(
    path: Path, small_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {f"{i:04}": np.full(16, i, "u4") for i in range(1000)}
    calls: list[int] = []
    copied = saving.copied

    def counted(destinations: list[Any], sources: list[Any], stream: Any) -> None:
        calls.append(len(sources))
        copied(destinations, sources, stream)

    monkeypatch.setattr(saving, "copied", counted)
    cu.save_safetensors(path, on_device(made))
    assert calls == [64] * 15 + [40]
    same(cu.load_safetensors(path), made)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_pairs_and_other_libraries_arrays_are_saved(path: Path) -> None:
    array = cu.to_device(np.arange(6.0).reshape(2, 3))
    shown = SimpleNamespace(__cuda_array_interface__=array.T.__cuda_array_interface__, owner=array)
    lender = SimpleNamespace(of=array)
    kind = type(
        "Lender",
        (),
        {
            "__dlpack__": lambda self, **asked: lender.of.__dlpack__(**asked),
            "__dlpack_device__": lambda self: lender.of.__dlpack_device__(),
        },
    )
    pairs: list[tuple[str, Any]] = [("a", array), ("b", shown), ("c", kind()), ("d", b"bytes")]
    pairs += [("e", np.asmatrix([[1, 2], [3, 4]])), ("f", np.float32([1])[0:1])]
    cu.save_safetensors(path, iter(pairs))
    wanted = array.to_numpy()
    found = safetensors.numpy.load_file(path)
    assert (found["a"] == wanted).all()
    assert (found["b"] == wanted.T).all()
    assert (found["c"] == wanted).all()
    assert found["d"].tobytes() == b"bytes"
    assert (found["e"] == [[1, 2], [3, 4]]).all()


def test_arrays_of_several_contexts_are_one_file(path: Path, small_blocks: int) -> None:
    made = {f"{i}": np.full(500, i, "u2") for i in range(20)}
    there: dict[str, Any] = {}
    last = cu.device_count() - 1
    with cu.Context() as context:
        for i, (name, array) in enumerate(made.items()):
            there[name] = [cu.to_device(array), cu.to_device(array, device=last), array][i % 3]
    cu.save_safetensors(path, there)
    same(cu.load_safetensors(path), made)
    del there
    context.close()


def test_host_arrays_need_no_driver(tmp_path: Path) -> None:
    program = """
        import sys, numpy as np, cudriver as cu
        cu.save_safetensors(sys.argv[1], {"x": np.arange(3, dtype="u1")})
        print(open(sys.argv[1], "rb").read()[-3:])
    """
    missing = str(tmp_path / "libcuda.so")
    assert output(program, str(tmp_path / "x"), CUDRIVER_LIBRARY=missing) == "b'\\x00\\x01\\x02'\n"


def test_without_page_locked_memory_files_are_saved_too(path: Path, small_blocks: int) -> None:
    made, there = arrays(), on_device(arrays())
    made = {name: array.to_numpy() for name, array in there.items()}
    cu.trim_host_memory()
    cu.set_host_memory_limit(1)
    try:
        cu.save_safetensors(path, there)
    finally:
        cu.set_host_memory_limit(None)
    same(cu.load_safetensors(path), made)


# ---- in which order ------------------------------------------------------------------------------


@pytest.mark.threads
def test_work_before_it_on_any_stream_is_waited_for(held: Any, path: Path) -> None:
    """A non-blocking stream, another one, and the default stream, at work when the call comes."""
    first, second = cu.Stream(), cu.Stream()
    there = {name: cu.device_empty(1000, "u1", stream=None) for name in "abc"}
    there["a"].fill(1, stream=first)
    there["b"].fill(2, stream=second)
    cu.copy_async(there["c"], cu.pinned_full(1000, 3, "u1"), None)
    with ThreadPoolExecutor(1) as pool:
        saved = pool.submit(cu.save_safetensors, path, there)
        held.step(1)
        assert path.read_bytes() == OLD
        held.release()
        saved.result()
    found = safetensors.numpy.load_file(path)
    assert {name: {*array.tolist()} for name, array in found.items()} == {
        "a": {1}, "b": {2}, "c": {3},
    }  # fmt: skip


def test_arrays_cannot_be_closed_while_they_are_saved(
    path: Path, small_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {"a": RNG.integers(0, 255, 50_000, np.uint8), "b": np.ones(9, "u1")}
    there, errors = on_device(made), []
    put = saving.Writing.put

    def closing(self: Any, data: Any, offset: int) -> None:
        for array in there.values():
            with pytest.raises(ValueError, match="view") as error:
                array.close()
            errors.append(error)
        put(self, data, offset)

    monkeypatch.setattr(saving.Writing, "put", closing)
    cu.save_safetensors(path, there)
    assert len(errors) > 10
    same(cu.load_safetensors(path), made)
    for array in there.values():
        array.close()


# ---- what goes wrong -----------------------------------------------------------------------------


def closed() -> Any:
    array = cu.device_zeros(3)
    array.close()
    return array


def several() -> Any:
    return [("x", np.zeros(2)), ("x", np.zeros(2))]


WRONG: dict[str, tuple[Callable[[], Any], Any, type[Exception], str]] = {
    "a number": (lambda: 3, None, TypeError, "arrays is 3; a dict"),
    "one array": (lambda: cu.device_zeros(3), None, TypeError, "cannot iterate over <DeviceArray"),
    "names alone": (lambda: ["abc"], None, TypeError, "arrays has 'abc'; a name and an array"),
    "a name that is no text": (lambda: {3: np.zeros(2)}, None, TypeError, "3 is the name"),
    "half a character": (lambda: {"\ud800": np.zeros(2)}, None, TypeError, "ud800' is the name"),
    "a name twice": (several, None, ValueError, "'x' twice"),
    "the format's own name": (
        lambda: {"__metadata__": np.zeros(2)}, None, ValueError, "cannot have the name",
    ),
    "a list": (lambda: {"x": [1.0, 2.0]}, None, TypeError, "'x' is not an array"),
    "a closed array": (lambda: {"x": closed()}, None, ValueError, "'x' is closed"),
    "complex128": (lambda: {"x": cu.device_zeros(2, "c16")}, None, TypeError, "'x' .* complex128"),
    "records": (lambda: {"x": np.zeros(2, "i4,f4")}, None, TypeError, "'x' has the dtype"),
    "named as a type": (
        lambda: {"x": np.zeros(2, [("float32", "f4")])}, None, TypeError, "'x' has the dtype",
    ),
    "objects": (lambda: {"x": np.array([None])}, None, TypeError, "'x' .* object"),
    "the other byte order": (lambda: {"x": cu.device_zeros(2, ">f4")}, None, TypeError, ">f4"),
    "items of 4 bits": (
        lambda: {"x": np.zeros(2, ml_dtypes.float4_e2m1fn)}, None, TypeError, "float4_e2m1fn",
    ),
    "metadata of numbers": (dict, {"step": 3}, TypeError, "'step': 3; both are valid text"),
    "metadata by numbers": (dict, {3: "x"}, TypeError, "metadata has 3: 'x'"),
    "metadata of half a character": (dict, {"x": "\udc00"}, TypeError, "both are valid text"),
    "no metadata": (dict, [("x", "y")], TypeError, "metadata is .*; a dict of str"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_an_error_before_anything_is_written(
    path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, metadata, kind, match = WRONG[name]
    found = given()
    monkeypatch.setattr(os, "open", pytest.fail)
    with pytest.raises(kind, match=match):
        cu.save_safetensors(path, found, metadata=metadata)
    assert untouched(path)


def test_a_header_beyond_the_formats_limit_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cudriver.weights.safetensors_format.HEADER_MOST", 1000)
    with pytest.raises(ValueError, match="the header has 1008 bytes, and the format allows 1000"):
        cu.save_safetensors(path, {"x" * 948: np.zeros(2)})
    assert untouched(path)


def test_only_files_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for target in (tmp_path, tmp_path / "fifo", Path("/dev/null")):
        with pytest.raises(ValueError, match=f"{target} is not a regular file"):
            cu.save_safetensors(target, {})
    for target in (tmp_path / "none" / "x", tmp_path / "none" / "y", tmp_path / ("a" * 256)):
        with pytest.raises(OSError) as error:
            cu.save_safetensors(target, {})
        assert error.value.filename == str(target)
    assert [each.name for each in tmp_path.iterdir()] == ["fifo"]
    with pytest.raises(TypeError, match="not int"):
        cu.save_safetensors(3, {})  # type: ignore[arg-type]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(OLD)
    (tmp_path / "link").symlink_to("blob")
    cu.save_safetensors(tmp_path / "link", {"x": np.ones(2)})
    assert (tmp_path / "blob").read_bytes() == OLD
    assert not (tmp_path / "link").is_symlink()


def test_who_reads_the_old_file_reads_it_to_its_end(path: Path) -> None:
    with path.open("rb") as file:
        cu.save_safetensors(os.fsencode(path), {"x": np.ones(2)})
        assert file.read() == OLD
    old = os.umask(0o027)
    try:
        cu.save_safetensors(path, {"x": np.ones(2)})
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640


def fail(number: int, real: Callable[..., Any], short: bool = False) -> Callable[..., Any]:
    """The disk is full from the second block on, some bytes of which still have room."""

    def pwrite(fd: int, data: Any, offset: int) -> int:
        if offset < 5000:
            return int(real(fd, data, offset))
        if short and offset % 4096 < 1000 and len(data) > 1:
            return int(real(fd, data[: len(data) // 2], offset))
        raise OSError(number, os.strerror(number))

    return pwrite


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_write_that_fails_leaves_the_old_file(
    path: Path, small_blocks: int, monkeypatch: pytest.MonkeyPatch, number: int, short: bool
) -> None:
    there, threads = cu.device_zeros(100_000, "u1"), threading.active_count()
    descriptors = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "pwrite", fail(number, os.pwrite, short))
    with pytest.raises(OSError, match=rf"\[Errno {number}\].*model\.safetensors'$") as error:
        cu.save_safetensors(path, {"x": there}, fsync=True)
    assert error.value.errno == number
    assert untouched(path)
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors
    there.close()  # though the exception is kept


@pytest.mark.threads
def test_the_file_is_open_as_long_as_a_thread_writes(
    path: Path, small_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its descriptor may be another file's afterwards."""
    put, failed, seen = saving.Writing.put, threading.Event(), []

    def failing(self: Any, data: Any, offset: int) -> None:
        if 0 < offset < 4096:
            failed.wait()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if 4096 < offset < 8192:
            failed.set()
            time.sleep(0.2)  # the other one has ended by then
            seen.append(os.readlink(f"/proc/self/fd/{self.fd}"))
        put(self, data, offset)

    monkeypatch.setattr(saving.Writing, "put", failing)
    cu.set_host_memory_policy(copy_threads=2)
    try:
        with pytest.raises(OSError, match=r"model\.safetensors"):
            cu.save_safetensors(path, {"x": cu.device_zeros(100_000, "u1")})
    finally:
        cu.set_host_memory_policy(copy_threads=None)
    assert [Path(each).parent for each in seen] == [path.parent]
    assert untouched(path)


def test_short_writes_go_on(path: Path, small_blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = arrays() | {"large": RNG.integers(0, 255, 30_000, np.uint8)}, os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:777], at))
    cu.save_safetensors(path, on_device(made))
    same(cu.load_safetensors(path), made)


@pytest.mark.parametrize("call", ["fsync", "close", "replace"])
def test_an_end_that_fails_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Network file systems say only when a file is closed that their disk is full."""
    real = getattr(os, call)

    def failing(*arguments: Any) -> None:
        if call == "close":
            real(*arguments)
        monkeypatch.setattr(os, call, real)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, call, failing)
    with pytest.raises(OSError, match=r"Disk quota exceeded: .*model\.safetensors'$"):
        cu.save_safetensors(path, {"x": np.zeros(3)}, fsync=True)
    assert untouched(path)


# A folder of 1 MiB, and a file in it that another lies over; in a mount namespace of our own.
FULL = """
    import ctypes, os, sys

    libc, folder = ctypes.CDLL(None), sys.argv[1]
    ids = os.getuid(), os.getgid()
    if libc.unshare(0x10000000 | 0x20000):
        sys.exit(print("skip"))
    maps = {"setgroups": "deny", "uid_map": f"0 {ids[0]} 1", "gid_map": f"0 {ids[1]} 1"}
    for name, text in maps.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    if libc.mount(b"none", folder.encode(), b"tmpfs", 0, b"size=1m"):
        sys.exit(print("skip"))
    import numpy as np  # has threads, which may not change their namespace
    import cudriver as cu

    for name in "ab":
        cu.save_safetensors(f"{folder}/{name}", {"x": np.arange(3)})
    if libc.mount(f"{folder}/a".encode(), f"{folder}/b".encode(), b"", 4096, b""):
        sys.exit(print("skip"))
    before = open(f"{folder}/a", "rb").read()
    for name, nbytes in ("a", 40 << 20), ("b", 1000):
        try:
            cu.save_safetensors(f"{folder}/{name}", {"x": cu.device_zeros(nbytes, "u1")})
        except OSError as error:
            print(error.strerror, error.filename2 or error.filename)
        print(sorted(os.listdir(folder)), open(f"{folder}/a", "rb").read() == before)
    cu.save_safetensors(f"{folder}/a", {"x": cu.device_zeros(900_000, "u1")})
"""


@pytest.mark.slow
def test_a_disk_that_is_full_and_a_name_that_cannot_be_taken(tmp_path: Path) -> None:
    """The kernel's own answers, half of the blocks written: before that, room is given back."""
    said = output(FULL, str(tmp_path))
    if said == "skip\n":
        pytest.skip("no mount namespace can be had here")
    assert said.splitlines() == [
        f"No space left on device {tmp_path}/a",
        "['a', 'b'] True",
        f"Device or resource busy {tmp_path}/b",
        "['a', 'b'] True",
    ]


def test_ctrl_c_leaves_the_old_file(
    path: Path, small_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, put = cu.device_zeros(1 << 20, "u1"), saving.Writing.put

    def interrupted(self: Any, data: Any, offset: int) -> None:
        if offset > 20_000:
            os.kill(os.getpid(), signal.SIGINT)
            monkeypatch.setattr(saving.Writing, "put", put)
        put(self, data, offset)

    monkeypatch.setattr(saving.Writing, "put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cu.save_safetensors(path, {"x": there})
    assert untouched(path)
    there.close()


def test_a_copy_that_fails_leaves_the_old_file(
    path: Path, small_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, copied = cu.device_zeros(100_000, "u1"), saving.copied

    def failing(destinations: list[Any], sources: list[Any], stream: Any) -> None:
        monkeypatch.setattr(saving, "copied", lambda *arguments: 1 / 0)
        copied(destinations, sources, stream)

    monkeypatch.setattr(saving, "copied", failing)
    with pytest.raises(ZeroDivisionError) as error:  # kept
        cu.save_safetensors(path, {"x": there, "y": there[5:9]})
    assert untouched(path)
    assert error.value is not None
    there.close()


@pytest.mark.skipif(DRIVER == "real", reason="needs the simulated driver's faults")
@pytest.mark.parametrize("call", ["cuCtxSynchronize", "cuStreamCreateWithPriority"])
def test_a_device_that_fails_leaves_the_old_file(path: Path, sim: Any, call: str) -> None:
    there = cu.device_zeros(1000, "u1")
    sim.fail(f"{call}:1:700")
    with pytest.raises(cu.CudaError, match="700"):
        cu.save_safetensors(path, {"x": there})
    sim.put_back()
    assert untouched(path)
    there.close()


# ---- on the disk ---------------------------------------------------------------------------------


def test_fsync_is_of_the_file_before_its_name_and_of_the_folder_after(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, bool]] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}")
        seen.append((name, path.read_bytes() == OLD))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    cu.save_safetensors(path, {"x": np.zeros(3)})
    assert seen == []
    path.write_bytes(OLD)
    monkeypatch.chdir(path.parent)  # a name without a folder
    cu.save_safetensors(path.name, {"x": np.zeros(3)}, fsync=True)
    (beside, first), (folder, then) = seen
    assert (Path(beside).parent, first) == (path.parent, True)
    assert Path(beside).name.startswith(".")
    assert (folder, then) == (str(path.parent), False)
