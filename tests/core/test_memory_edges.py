"""What Python says of devices, contexts, memory and errors, at its edges; the core is stood in."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pytest

import cudriver as cu
from cudriver import _core
from cudriver.memory import contexts, devices, driver, failures, live, room, waiting
from cudriver.memory.failures import failure

MIB = 1 << 20

# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "kind", "text"),
    [
        (
            (2, "cuMemAlloc", "8"), cu.OutOfMemoryError,
            "cuMemAlloc(8): CUDA_ERROR_OUT_OF_MEMORY (2): not enough memory (host, device, or "
            "address space) for the operation",
        ),
        ((2, "f", "", "THEIRS", "their meaning"), cu.OutOfMemoryError,
         "f(): CUDA_ERROR_OUT_OF_MEMORY (2): their meaning"),
        ((12345, "f", "", "CUDA_ERROR_NEW", "new"), cu.CudaError,
         "f(): CUDA_ERROR_NEW (12345): new"),
        ((12345, "f", ""), cu.CudaError,
         "f(): CUDA_ERROR_UNKNOWN_CODE (12345): a code that neither the driver nor "
         "cudriver explains"),
        ((3, "f", "", "", "x"), cu.NotInitializedError, "f(): CUDA_ERROR_NOT_INITIALIZED (3): x"),
        ((3, "f", "", "", "x", True), cu.ForkedProcessError,
         "f(): CUDA_ERROR_NOT_INITIALIZED (3): x. Hint: this process was forked from one in which "
         "CUDA was initialised; start it with the 'spawn' method instead"),
        ((4, "f", "", "", "x", True), cu.NotInitializedError,
         "f(): CUDA_ERROR_DEINITIALIZED (4): x"),
        ((34, "f", "", "", "theirs"), cu.UnsupportedDriverError,
         "f(): CUDA_ERROR_STUB_LIBRARY (34): the loaded libcuda is the toolkit's link-time stub, "
         "not the driver. Hint: take the toolkit's stubs folder off LD_LIBRARY_PATH; the driver's "
         "libcuda.so.1 comes with the NVIDIA driver"),
        ((201, "f", "", "", "x"), cu.InvalidContextError,
         "f(): CUDA_ERROR_INVALID_CONTEXT (201): x"),
        ((709, "f", "", "", "x"), cu.InvalidContextError,
         "f(): CUDA_ERROR_CONTEXT_IS_DESTROYED (709): x. Hint: somebody else destroyed or reset "
         "the context; pop it where it is on this thread's stack (context_stack()), and where it "
         "was a device's primary one, Device.reset_primary_context() begins anew"),
    ],
)  # fmt: skip
def test_an_error_by_its_code(told: Any, kind: type, text: str) -> None:
    error = failure(*told)
    assert (type(error), str(error)) == (kind, text)
    assert (error.code, error.function) == told[:2]
    assert text.startswith(f"{error.function}({told[2]}): {error.name} ({error.code}): ")
    assert error.description in text


def test_gib_stand_beside_bytes_where_memory_is_out() -> None:
    shown = failures.with_gib
    assert shown("17179869184 bytes; 0 used") == "17179869184 bytes (16 GiB); 0 used"
    assert shown("has 8589934592 of 85899345920 free") == (
        "has 8589934592 (8 GiB) of 85899345920 (80 GiB) free"
    )
    assert shown("10737418 bytes, 1181116006400000") == (
        "10737418 bytes (0.01 GiB), 1181116006400000 (1,100,000 GiB)"
    )
    assert shown("1073500000000 bytes") == "1073500000000 bytes (1,000 GiB)"
    same = "9999999 bytes at 0x7f12345678, limit(1073741824), 0x1234567890"
    assert shown(same) == same
    assert "(0.0931 GiB)" in str(failure(2, "cuMemAlloc", "100000000 bytes"))
    assert "GiB" not in str(failure(1, "cuMemAlloc", "100000000 bytes"))


def test_names_of_errors_have_success_first_and_their_prefix() -> None:
    names = cu.errors.error_names()
    assert next(iter(names.items())) == (0, "CUDA_SUCCESS")
    assert len(names) == len(failures.NAMES) + 1
    assert all(name.startswith("CUDA_ERROR_") for code, name in names.items() if code)
    assert {*failures.HINTS, *failures.CLASSES} <= {*names}


# ---- the driver ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "version"),
    [(13000, (13, 0)), (12090, (12, 9)), (11080, (11, 8)), (12034, (12, 3)), (9000, (9, 0))],
)
def test_the_drivers_version(
    monkeypatch: pytest.MonkeyPatch, number: int, version: tuple[int, int]
) -> None:
    monkeypatch.setattr(_core, "_driver", lambda: ("/x", number, False))
    assert cu.driver_version() == version
    assert str(cu.driver_version()) == f"{version[0]}.{version[1]}"
    assert repr(cu.driver_version()) == (
        f"cudriver.typing.DriverVersion(major={version[0]}, minor={version[1]})"
    )


def test_a_version_of_0_is_that_of_the_stub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "_driver", lambda: ("/stub", 0, False))
    with pytest.raises(cu.UnsupportedDriverError, match=r"cuDriverGetVersion\(/stub\): .*STUB"):
        cu.driver_version()


@pytest.mark.parametrize(
    ("choice", "variable", "path"),
    [
        (None, None, None), (None, "", None), (None, "/a", b"/a"), ("/b", "/a", b"/b"),
        ("", "/a", b""), (b"/b", None, b"/b"),
    ],
)  # fmt: skip
def test_which_library_is_chosen(
    monkeypatch: pytest.MonkeyPatch, choice: Any, variable: str | None, path: bytes | None
) -> None:
    monkeypatch.setattr(driver, "_choice", choice)
    monkeypatch.delenv("CUDRIVER_LIBRARY", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDRIVER_LIBRARY", variable)
    assert driver.library() == path
    for name in ("sim", None):
        monkeypatch.setattr(driver, "_choice", name)
        monkeypatch.setenv("CUDRIVER_LIBRARY", "sim")
        assert os.fsdecode(driver.library() or b"").endswith("/libcudriver_sim.so")


@pytest.mark.parametrize(
    ("count", "there"), [(0, False), (1, True), (MemoryError(), False), (cu.CudaError("x"), False)]
)
def test_a_driver_is_available_with_a_device(
    monkeypatch: pytest.MonkeyPatch, count: Any, there: bool
) -> None:
    def counted() -> int:
        if isinstance(count, Exception):
            raise count
        return int(count)

    monkeypatch.setattr(driver, "device_count", counted)
    assert cu.is_available() is there
    monkeypatch.setattr(driver, "device_count", lambda: sys.exit())
    with pytest.raises(SystemExit):
        cu.is_available()


# ---- devices -------------------------------------------------------------------------------------

UUIDS = ["11111111-0000-0000-0000-000000000000", "11111111-0000-0000-0000-00000000000a",
         "2abcdef0-0000-0000-0000-000000000000"]  # fmt: skip


class Driver:
    """Three devices, whose handles are not their ordinals."""

    def __init__(self, count: int = 3) -> None:
        self.count = count
        self.current: int | None = None
        self.calls: list[str] = []

    def query(self, context: Any, function: str, arguments: str, *given: Any) -> Any:
        self.calls.append(f"{function}({arguments})")
        given = tuple(word for word in given if isinstance(word, int))
        if function == "cuDeviceGetCount":
            return self.count
        if function == "cuDeviceGet":
            return given[0] + 10
        if function == "cuDeviceGetUuid_v2":
            return UUID(UUIDS[given[0] - 10]).bytes
        if function in ("cuDeviceGetName", "cuDeviceTotalMem_v2"):
            raise failure(999, function, arguments)
        if function == "cuCtxGetDevice":
            if self.current is None:
                raise failure(201, function, arguments)
            return self.current
        if function == "cuDeviceGetByPCIBusId":
            if arguments == "0:0:0":
                raise failure(101, function, arguments)
            return 10 + int(arguments.rpartition(".")[2])
        if function == "cuDeviceGetAttribute":
            raise failure(int(given[0] == 13) * 999 or 1, function, arguments)
        raise AssertionError(function)


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(devices, "ask", made.query)
    monkeypatch.setattr(devices, "_count", 0)
    monkeypatch.setattr(_core, "init", lambda: None)
    return made


@pytest.mark.parametrize(
    ("named", "ordinal"),
    [
        ("GPU-2abcdef0-0000-0000-0000-000000000000", 2), ("gpu-2ABC", 2), ("GPU-2abc", 2),
        ("2abcdef0-0000-0000-0000-000000000000", 2), (UUIDS[1], 1), ("GPU-" + UUIDS[0], 0),
        ("2ABCDEF0-0000-0000-0000-000000000000", 2),
        ("0:0:0.1", 1), ("cuda:2", 2), ("cuda:002", 2), ("cuda", 0), (None, 0),
    ],
)  # fmt: skip
def test_a_device_by_its_names(three: Driver, named: Any, ordinal: int) -> None:
    assert devices.ordinal_of(named) == ordinal


@pytest.mark.parametrize(
    ("named", "text"),
    [
        (3, "device 3 does not exist: there are 3, numbered from 0"),
        (-1, "device -1 does not exist: there are 3, numbered from 0"),
        ("cuda:3", "device cuda:3 does not exist: there are 3, numbered from 0"),
        ("cuda:" + "0" * 19 + "1", f"device cuda:{'0' * 19}1 does not exist: there are 3, numbered "
         "from 0"),
        ("GPU-1111", "the uuid GPU-1111 fits devices 0 and 1"),
        ("GPU-3333", "no device has the uuid GPU-3333; there are 3 (see devices())"),
        ("3" * 36, f"no device has the uuid {'3' * 36}; there are 3 (see devices())"),
        ("GPU-211", "'GPU-211' is not a CUDA device: expected an ordinal, cuda:ORDINAL, a uuid "
         "(GPU-xxxxxxxx-...) or a PCI bus id (0000:41:00.0)"),
        ("0:0:0", "no device has the PCI bus id 0:0:0 (cuDeviceGetByPCIBusId: "
         "CUDA_ERROR_INVALID_DEVICE)"),
        ("0:0:0.7", "the device at PCI bus id 0:0:0.7 is not in this process's list"),
        ("a\0b", "'a\\x00b' is not a CUDA device: it has a zero byte"),
        ("cuda:²", "'cuda:²' is not a CUDA device: expected cuda or cuda:ORDINAL"),
    ],
)  # fmt: skip
def test_a_device_that_is_not_there_is_told(three: Driver, named: Any, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        devices.ordinal_of(named)
    assert str(caught.value) == text


def test_one_device_is_told_in_the_singular(three: Driver) -> None:
    three.count = 1
    with pytest.raises(ValueError, match=r"no device has the uuid GPU-3333; there is 1 \(see"):
        devices.ordinal_of("GPU-3333")
    with pytest.raises(ValueError, match="device 2 does not exist: there is 1, numbered from 0"):
        devices.ordinal_of(2)


def test_each_name_initialises_the_driver(three: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    monkeypatch.setattr(_core, "init", lambda: begun.append(1))
    for named in (cu.Device(1), "cuda", "GPU-2abc"):
        begun.clear()
        devices.ordinal_of(named)
        assert begun


def test_one_device_and_none(three: Driver) -> None:
    three.count = 1
    with pytest.raises(ValueError, match=r"^device 1 does not exist: there is 1, numbered from 0$"):
        devices.ordinal_of(1)
    three.count = devices._count = 0
    for named in (0, None, "cuda", "cuda:0"):
        with pytest.raises(cu.CudaError, match=r"cuDeviceGet\(0\): CUDA_ERROR_NO_DEVICE \(100\)"):
            devices.ordinal_of(named)
    assert cu.devices() == []


@pytest.mark.parametrize(("current", "ordinal"), [(None, 0), (10, 0), (12, 2), (99, 0)])
def test_cuda_is_the_current_contexts_device(
    three: Driver, current: int | None, ordinal: int
) -> None:
    three.current = current
    assert devices.ordinal_of("cuda") == ordinal


def test_a_device_whose_driver_fails_is_shown_by_its_ordinal(three: Driver) -> None:
    device = cu.Device(2)
    assert repr(device) == "<Device 2>"
    three.calls.clear()
    with pytest.raises(cu.CudaError, match=r"\(999\)"):  # not "an older driver"
        _ = device.attributes
    for name in ("name", "total_memory", "multiprocessor_count", "compute_capability"):
        with pytest.raises(cu.CudaError, match=r"\((\w+, )?device 2\): "):
            getattr(device, name)
    assert {device: 1}[cu.Device(2)] == 1
    assert cu.Device(1) != device
    assert device.__eq__(2) is NotImplemented
    assert pickle.loads(pickle.dumps(device)) == device  # by its ordinal: it has no uuid


# ---- contexts ------------------------------------------------------------------------------------


def test_a_cache_configuration_that_is_new_is_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    context: Any = SimpleNamespace()
    for number, name in ((0, "none"), (3, "equal"), (4, 4), (-1, -1)):
        monkeypatch.setattr(contexts, "ask", lambda *_, number=number: number)
        assert contexts.cache_config(context) == name
    given = []
    monkeypatch.setattr(_core, "_call", lambda *words: given.append(words[1:]))
    contexts.set_cache_config(context, "l1")
    assert given == [("cuCtxSetCacheConfig", "l1", (2,))]
    for bad in ("L1", 2, None):
        with pytest.raises(ValueError, match=f"'l1' or 'equal', not {bad!r}"):
            contexts.set_cache_config(context, bad)


def test_limits_are_those_that_the_device_has(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def query(context: Any, function: str, arguments: str, *given: int | str) -> int:
        asked.append((function, arguments, *given))
        if function == "cuCtxGetLimit" and given == ("Q", 3):
            raise failure(215, function, arguments)
        return 100 + int(given[-1])

    monkeypatch.setattr(contexts, "ask", query)
    monkeypatch.setattr(_core, "_call", lambda _, *words: asked.append(words))
    limits = contexts.limits(SimpleNamespace(closed=False))  # type: ignore[arg-type]
    names = ["stack_size", "printf_fifo_size", "malloc_heap_size",
             "dev_runtime_pending_launch_count", "max_l2_fetch_granularity",
             "persisting_l2_cache_size"]  # fmt: skip
    assert list(limits) == list(limits.keys()) == names
    assert next(iter(limits.items())) == ("stack_size", 100)
    assert limits["persisting_l2_cache_size"] == 106
    assert repr(limits).startswith("<limits {'stack_size': 100, ")
    asked.clear()
    limits["max_l2_fetch_granularity"] = (1 << 64) - 1
    limits["stack_size"] = np.int8(0)
    assert asked == [
        ("cuCtxSetLimit", f"max_l2_fetch_granularity, {(1 << 64) - 1}", (5, (1 << 64) - 1)),
        ("cuCtxSetLimit", "stack_size, 0", (0, 0)),
    ]
    for value, error, text in (
        (1 << 64, ValueError, f"the limit stack_size is an int from 0 to 2**64 - 1, not {1 << 64}"),
        (-1, ValueError, "the limit stack_size is an int from 0 to 2**64 - 1, not -1"),
        (1.0, TypeError, "the limit stack_size is an int from 0 to 2**64 - 1, not float"),
    ):
        with pytest.raises(error) as caught:
            limits["stack_size"] = value  # type: ignore[assignment]
        assert str(caught.value) == text
    assert len(asked) == 2
    for name, error in (("nothing", KeyError), ("stack_size", TypeError)):
        with pytest.raises(error):
            del limits[name]
    monkeypatch.setattr(contexts, "ask", lambda *_: (_ for _ in ()).throw(failure(4, "f", "")))
    with pytest.raises(cu.NotInitializedError):
        len(limits)


def test_what_a_context_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {
        "cuDevicePrimaryCtxGetState": (8, 0), "cuCtxGetFlags": 4, "cuCtxGetApiVersion": (3020, 0),
        "cuCtxGetStreamPriorityRange": (1, -5), "cuMemGetInfo_v2": (10, 20), "cuCtxGetId": (7, 0),
    }  # fmt: skip
    asked = []

    def query(context: Any, function: str, arguments: str, *given: int) -> Any:
        asked.append(
            (context is not None, function, *(x for x in given if x not in ("i", "I", "Q")))
        )
        return answers[function]

    monkeypatch.setattr(contexts, "ask", query)
    monkeypatch.setattr(contexts, "ask_two", query)
    device = SimpleNamespace(ordinal=1, _handle=11)
    primary: Any = SimpleNamespace(is_primary=True, closed=False, device=device)
    own: Any = SimpleNamespace(is_primary=False, closed=False, device=device, handle=5)
    assert (contexts.flags(primary), contexts.flags(own)) == (8, 4)
    assert asked == [(False, "cuDevicePrimaryCtxGetState", 11), (True, "cuCtxGetFlags")]
    assert (contexts.exists(primary), contexts.exists(own)) == (False, True)
    own.closed = True
    answers["cuDevicePrimaryCtxGetState"] = (0, 1)
    assert (contexts.exists(primary), contexts.exists(own)) == (True, False)
    assert contexts.stream_priority_range(own) == (1, -5)
    assert contexts.stream_priority_range(own).greatest == -5
    assert contexts.memory_info_of(own) == (10, 20)
    assert contexts.memory_info_of(own).total == 20
    assert contexts.api_version(own) == 3020


# ---- what is alive -------------------------------------------------------------------------------


def test_the_report_at_exit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[Any] = [(("context", 0, 1, 0, None), True)]
    monkeypatch.setattr(_core, "_live", lambda: rows)
    live.report()
    assert capsys.readouterr() == ("", "")
    rows[:0] = [(("stream", 0, 2, 1, None), False), (("pin", 7, 1, None, "a.py:3"), False)]
    live.report()
    assert capsys.readouterr() == ("", (
        "cudriver: alive at exit: 2, 7 bytes in all\n"
        "  pin, 7 bytes, made at a.py:3\n  stream, 0 bytes, device 1\n"
    ))  # fmt: skip
    assert [row.kind for row in cu.live_allocations()] == ["context", "pin", "stream"]
    monkeypatch.setattr(sys, "stderr", None)
    live.report()


def test_waiting_looks_again_after_an_eighth_of_the_time_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, pauses = [100.0], []
    transfer: Any = SimpleNamespace(done=False)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += max(seconds, 0.008)
        transfer.done = len(pauses) == 4

    monkeypatch.setattr(asyncio, "get_running_loop", lambda: SimpleNamespace(time=lambda: now[0]))
    monkeypatch.setattr(asyncio, "sleep", sleep)

    async def whole() -> None:
        await waiting._poll(transfer)

    runner = whole()
    with pytest.raises(StopIteration):
        runner.send(None)
    assert pauses == pytest.approx([0, 0.001, 0.002, 0.002])
    assert asyncio.iscoroutinefunction(waiting._poll)


# ---- memory of the host --------------------------------------------------------------------------


def test_threads_of_copies_have_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(_core, "_copy_threads", lambda: (3, 1024))
    monkeypatch.setattr(_core, "_set_copy_threads", given.append)
    assert cu.host_memory_stats().copy_threads == 3
    for count in (1, 1024, None, np.int64(5)):
        cu.set_host_memory_policy(copy_threads=count)
    assert given == [1, 1024, 0, 5]
    for bad in (0, 1025, -1):
        with pytest.raises(ValueError, match=f"is 1 to 1024, or None for .*; not {bad}$"):
            cu.set_host_memory_policy(copy_threads=bad)
    with pytest.raises(TypeError):
        cu.set_host_memory_policy(copy_threads=1.5)  # type: ignore[arg-type]
    assert len(given) == 4


@pytest.mark.parametrize(
    ("free", "found"),
    [(0, 0), (64 * MIB, 0), (512 * MIB, 447 * MIB), (64 * MIB + 128 * 1024 + 512, 255)],
)
def test_a_reserve_and_the_page_tables_are_kept(
    monkeypatch: pytest.MonkeyPatch, free: int, found: int
) -> None:
    monkeypatch.setattr(room, "left", lambda root: free)
    assert room.host_room() == found


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, sys.maxsize),
        ({"memory.max": "max\n"}, sys.maxsize),
        ({"memory.max": "100\n"}, 100),
        ({"memory.max": "0\n"}, 0),
        ({"memory.max": "100\n", "memory.current": "30\n"}, 70),
        ({"memory.max": "100\n", "memory.current": "130\n"}, 0),
        ({"memory.max": "100\n", "memory.current": "x\n"}, 100),
        (
            {"memory.max": "100\n", "memory.current": "80\n",
             "memory.stat": "active_file 1\ninactive_file 2\nslab_reclaimable 4\nanon 8\n"}, 27,
        ),
        ({"memory.max": "100\n", "memory.current": "3\n", "memory.stat": "active_file 9\n"}, 100),
        ({"memory.max": f"{1 << 47}\n"}, 1 << 47),
        ({"memory.max": f"{(1 << 47) + 1}\n"}, sys.maxsize),
        ({"memory.max": "-5\n"}, sys.maxsize),
    ],
)  # fmt: skip
def test_what_a_group_has_left(tmp_path: Path, files: dict[str, str], found: int) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert room.group_left(str(tmp_path), room.VERSIONS["cgroup2"]) == found


@pytest.mark.parametrize(
    ("group", "top", "point", "folders"),
    [
        ("/a/b", "/", "/m", ["/m/a/b", "/m/a", "/m"]),
        ("/", "/", "/m", ["/m"]),
        ("/a/b", "/a", "/m", ["/m/b", "/m"]),
        ("/a", "/a", "/m", ["/m"]),
        ("/", "/a", "/m", ["/m"]),
        ("/../x", "/a", "/m", ["/m"]),
        ("/ab", "/a", "/m", []),
        ("/b", "/a", "/m", []),
        ("/a", "/a/b", "/m", []),
        ("/a/b", "/a/", "/m", ["/m/b", "/m"]),
    ],
)
def test_the_folders_of_a_group(group: str, top: str, point: str, folders: list[str]) -> None:
    assert [str(folder) for folder in room.visible(group, top, point)] == folders


def test_of_a_controller_that_is_told_twice_the_first_line_counts(tmp_path: Path) -> None:
    mounts = "1 1 0:1 / /m rw - cgroup cgroup rw,memory\n2 1 0:2 / /n rw - cgroup2 cgroup2 rw\n"
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(mounts + "short\n3 1 0:3 / - cgroup2 x\n")
    found = room.groups(str(tmp_path), "4:cpu,memory:/a\n3:memory:/b\n0::/c\n1:x\n")
    assert [folder.removeprefix(str(tmp_path)) for folder, _ in found] == [
        "/m/a",
        "/m",
        "/n/c",
        "/n",
    ]
    assert [version is room.VERSIONS["cgroup"] for _, version in found] == [
        True,
        True,
        False,
        False,
    ]


def test_the_systems_files_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("a 1 kB\nb x\nc\n\nd 2\na 3\ne -1\n")
    assert room.numbers(str(file)) == {"a": 3, "d": 2}
    assert room.integer(str(file)) is None
    file.write_text(" 7 8\n")
    assert room.integer(str(file)) == 7
    file.write_bytes(b"\xff\n")
    assert room.text(str(file)) == "\udcff\n"
    assert (room.text(str(tmp_path)), room.integer(str(tmp_path / "x"))) == ("", None)


# ---- page-locked arrays --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [(-1, "min_bytes is a number of bytes, not -1"),
     (sys.maxsize + 1, f"min_bytes is a number of bytes, not {sys.maxsize + 1}"),
     (1.5, "min_bytes is a number of bytes, not float"),
     ("1", "min_bytes is a number of bytes, not str")],
)  # fmt: skip
def test_a_number_of_bytes_that_is_none(given: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        cu.pinned_numpy(min_bytes=given)
    assert str(caught.value) == text


def test_a_block_that_nobody_leaves_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[object] = []
    monkeypatch.setattr(cu.pinned_numpy.__del__, "__defaults__", (forgotten.append,))
    for handler in (None, "a handler"):
        block = cu.pinned_numpy()
        block._handler = handler
        del block
    assert forgotten == ["a handler"]


def test_named_tuples_are_shown_as_the_packages() -> None:
    for value in (cu.host_memory_stats(), cu.memory_info(), cu.live_allocations()[-1]):
        kind = type(value)
        assert pickle.loads(pickle.dumps(value)) == value
        assert kind.__module__ == "cudriver.typing"
        assert repr(value).startswith(f"cudriver.typing.{kind.__name__}({kind._fields[0]}=")
    flags = cu.device_zeros((2, 3))[:, 1].flags
    assert repr(flags) == (
        "cudriver.typing.ArrayFlags(c_contiguous=False, f_contiguous=False, owndata=False, "
        "writeable=True)"
    )
