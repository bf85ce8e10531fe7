"""Who comes from another library is answered with what a thing is called here."""

from __future__ import annotations

import copy
import pickle
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudriver as cu
from cudriver.memory.names import OURS
from graphkit import ACTIVE, Capture
from native_build import ROOT

pytestmark = pytest.mark.usefixtures("no_leaks")
PAGE = ROOT / "docs" / "howto" / "coming-from.md"


def things() -> dict[str, Any]:
    there, stream = cu.device_zeros(3), cu.Stream()
    transfer = cu.copy_async(there, np.zeros(3), stream)
    transfer.wait()
    return {
        "cudriver": cu,
        "DeviceArray": there,
        "Stream": stream,
        "Event": stream.record(),
        "Transfer": transfer,
        "Context": cu.current_context(),
        "Device": cu.Device(0),
    }


@pytest.mark.parametrize("kind", OURS)
def test_a_name_of_another_library_is_answered(kind: str) -> None:
    thing = things()[kind]
    for name, ours in OURS[kind].items():
        if name.endswith("="):
            with pytest.raises(TypeError, match=re.escape(f"use {ours}")):
                getattr(cu, kind)(**{name[:-1]: True})
            continue
        assert name not in dir(thing), f"{kind} has {name}"
        with pytest.raises(AttributeError, match=re.escape(f"{name!r}; use {ours}")):
            getattr(thing, name)
        assert not hasattr(thing, name)


@pytest.mark.parametrize("kind", OURS)
def test_what_is_named_instead_exists(kind: str) -> None:
    """The first word of an answer is an attribute, or a function of the package."""
    thing = things()[kind]
    for name, ours in OURS[kind].items():
        if re.match(r"nothing|`|CuPy|the command|Device\(0\), |array\.|start\.", ours):
            continue
        word = re.match(r"(?:cudriver\.)?(\w+)", ours)
        assert word is not None
        if not name.endswith("="):
            assert hasattr(thing, word[1]) or hasattr(cu, word[1]), f"{kind}.{name}: {ours}"


def test_other_names_are_missing_as_anywhere() -> None:
    for kind, thing in things().items():
        with pytest.raises(AttributeError) as caught:
            getattr(thing, "frobnicate")  # noqa: B009
        assert str(caught.value).endswith("has no attribute 'frobnicate'"), kind
        assert not hasattr(thing, "__frobnicate__")
    with pytest.raises(TypeError, match=r"'foo' is an invalid keyword argument for Event\(\)$"):
        cu.Event(foo=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="invalid keyword argument for Stream"):
        cu.Stream(priority=0, foo=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        cu.Event(True, True)  # type: ignore[call-arg,misc]


ROW = re.compile(r"^\| (?P<theirs>.+?) \| (?P<ours>.+) \|$", re.MULTILINE)
#: Rows of names that belong to other things: their modules, classes and numbers.
ELSEWHERE = {
    "autoinit",
    "init",
    "Device",
    "Context",
    "push",
    "pop",
    "Stream",
    "Event",
    "synchronize",
    "name",
    "from_handle",
    "get_device_pointer",
    "PageLockedMemoryPool",
    "host",
    "astype",
    "is_available",
    "device_count",
    "get_mem_info",
    "copy_",
    "from_dlpack",
    "is_pinned",
    "record",
    "elapsed_time",
    "DataLoader",
    "share_memory_",
    "cudaHostRegister",
    "collect_env",
    "int",
    "cudart",
}


@pytest.mark.skipif(not Path(PAGE).is_file(), reason="no documents beside the tests")
def test_the_page_and_the_names_agree() -> None:
    """What the page translates is answered where it is typed."""
    known = {name.rstrip("=") for names in OURS.values() for name in names}
    unanswered = []
    for row in ROW.finditer(PAGE.read_text()):
        for code in re.findall(r"`([^`]+)`", row["theirs"]):
            called = re.sub(r"\(.*", "", code.split(" of ")[0])
            name = called.rpartition(".")[2]
            here = any(hasattr(thing, name) for thing in things().values())
            if name.isidentifier() and not (name in known or here or name in ELSEWHERE):
                unanswered.append(code)
    assert unanswered == []


# ---- what NumPy and Python would do with an array ------------------------------------------------

HINT = r"computes nothing: use .* of its to_numpy\(\)"


def test_functions_of_numpy_refuse() -> None:
    there, host = cu.device_zeros(3), np.zeros(3)
    for function in (np.array_equal, np.allclose, np.concatenate, np.copyto, np.array_equiv):
        arguments = ([there, there],) if function is np.concatenate else (host, there)
        with pytest.raises(TypeError, match=rf"np\.{function.__name__}\(\) of its to_numpy"):
            function(*arguments)  # type: ignore[operator]
    assert (np.shape(there), np.ndim(there), np.size(there)) == ((3,), 1, 3)  # type: ignore[arg-type]


def test_operators_refuse() -> None:
    there, host = cu.device_zeros(3), np.zeros(3)
    for call in (lambda: there + 1, lambda: 1 - there, lambda: there * there, lambda: there / 2.0,
                 lambda: there @ host, lambda: there + np.float32(2)):  # fmt: skip
        with pytest.raises(TypeError, match=HINT):
            call()
    with pytest.raises(TypeError, match="to_numpy"):
        host + there
    with pytest.raises(TypeError, match=r"to_numpy\(\)\.item\(\)"):
        int(there)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"no format '\.2f'"):
        f"{there:.2f}"
    assert f"{there}" == repr(there)


def test_an_operand_that_knows_device_arrays_is_asked() -> None:
    class Theirs:
        def __radd__(self, other: Any) -> str:
            return f"added to {type(other).__name__}"

    assert cu.device_zeros(3) + Theirs() == "added to DeviceArray"  # type: ignore[operator]


def test_copy_has_no_stream() -> None:
    there = cu.device_zeros(3)
    with pytest.raises(TypeError, match=r"copy_async\(dst, src, stream\)"):
        cu.copy(there, np.zeros(3), stream=cu.Stream())  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("dst", "src", "hint"),
    [
        ((48, "u1"), ((3, 4), "f4"), "allocate|both have 48 bytes; .*view"),
        ((100, "u1"), ((3, 4), "f4"), r"the other's shape and dtype, or view\(\) it as float32"),
        (((3, 4), "f4"), (48, "u1"), "both have 48 bytes"),
        ((13, "f4"), (12, "f4"), r"\(nothing was copied\)$"),
    ],
)  # fmt: skip
def test_bytes_for_floats_get_a_hint(dst: Any, src: Any, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        cu.copy(cu.device_empty(*dst), np.zeros(*src))


@pytest.mark.parametrize("choice", ["simulated", "cuda", "real", "nvidia"])
def test_a_driver_of_no_such_name(choice: str) -> None:
    with pytest.raises(ValueError, match=f"use_driver\\('{choice}'\\): expected 'sim'"):
        cu.use_driver(choice)


# ---- records -------------------------------------------------------------------------------------


def test_a_field_of_records_is_a_view() -> None:
    records = np.zeros((4, 3), [("xyz", "<f4", 3), ("label", "<u2")])
    records["xyz"] = np.arange(36, dtype="f4").reshape(4, 3, 3)
    records["label"] = np.arange(12).reshape(4, 3)
    there = cu.to_device(records)
    assert np.array_equal(there["xyz"].to_numpy(), records["xyz"])
    assert np.array_equal(there["label"][1:, ::2].to_numpy(), records["label"][1:, ::2])
    assert there["label"].pointer == there.pointer + 12
    there["label"] = 7
    there["xyz"][0] = np.ones((3, 3), "f4")
    records["label"] = 7
    records["xyz"][0] = 1
    assert np.array_equal(there.to_numpy(), records)
    assert there[2, 1]["label"].to_numpy() == 7


@pytest.mark.parametrize("key", [["xyz"], ["xyz", "label"], ("label", 0), ("xyz", "label")])
def test_other_ways_to_fields_are_refused(key: Any) -> None:
    there = cu.device_zeros(3, [("xyz", "<f4", 3), ("label", "<u2")])
    with pytest.raises(IndexError, match="the name of one field"):
        there[key]
    with pytest.raises(ValueError, match="no field of name other"):
        there["other"]


# ---- values --------------------------------------------------------------------------------------


def test_a_device_is_a_value(two_devices: Any) -> None:
    for device in two_devices:
        config = {"device": device, "again": [device]}
        for made in (copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
            assert made["device"] == device
            assert made["again"] == [device]
    assert b"GPU-" in pickle.dumps(two_devices[1]), "an ordinal is another device elsewhere"


def test_a_device_without_a_uuid_is_its_ordinal(sim: Any) -> None:
    sim.fail("cuDeviceGetUuid_v2:1:1,cuDeviceGetUuid:1:1")
    assert pickle.loads(pickle.dumps(cu.Device(0))) == cu.Device(0)


def test_a_transfer_has_weak_references() -> None:
    transfer = cu.copy_async(cu.device_empty(3), np.zeros(3), cu.Stream())
    watched = weakref.ref(transfer)
    transfer.wait()
    assert watched() is transfer
    del transfer
    assert watched() is None


# ---- a stream that is being captured -------------------------------------------------------------


def test_what_cannot_be_captured_is_what_was_written(driver: Any) -> None:
    stream, there, host = cu.Stream(), cu.device_zeros(8), cu.pinned_zeros(8)
    calls = {
        "a copy": lambda: cu.copy_async(there, host, stream),
        "fill()": lambda: there.fill(1, stream=stream),
        "to_numpy()": lambda: there.to_numpy(stream=stream),
        "to_device()": lambda: cu.to_device(host, stream=stream),
        "device_zeros()": lambda: cu.device_zeros(8, stream=stream),
        "synchronize()": stream.synchronize,
    }
    with Capture(driver, stream) as graph:
        for call, make in calls.items():
            with pytest.raises(cu.CudaError) as caught:
                make()
            assert str(caught.value).startswith(f"{call} cannot be captured: stream 0x"), call
        with stream, pytest.raises(cu.CudaError, match=r"^array\[key\] = value cannot be captured"):
            there[2:5] = host[2:5]
        assert graph.status() == ACTIVE
    graph.close()
