"""Devices: their properties, every attribute, and the ways to name one."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import pytest

from conftest import named
from cudriver.memory.attributes import NUMBERS


@pytest.fixture
def device(cu):
    return cu.Device(0)


def test_list_and_count(cu) -> None:
    devices = cu.devices()
    assert len(devices) == cu.device_count() > 0
    assert [d.ordinal for d in devices] == list(range(len(devices)))


def test_identity_and_hash(cu, device) -> None:
    assert device == cu.Device() == cu.Device(None) == cu.devices()[0]
    assert hash(device) == hash(cu.Device(0))
    assert device != 0
    assert len({*cu.devices(), *cu.devices()}) == cu.device_count()
    with pytest.raises(TypeError):
        device < device  # noqa: B015


def test_properties_have_the_form_of_their_kind(cu, device) -> None:
    assert device.name
    assert device.name in repr(device)
    assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", device.uuid)
    assert re.fullmatch(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]", device.pci_bus_id)
    major, minor = device.compute_capability
    assert major >= 3
    assert minor >= 0
    assert device.total_memory > 1 << 20
    assert device.multiprocessor_count > 0
    free, total = device.primary_context().memory_info()
    assert 0 < free <= total <= device.total_memory


def test_properties_agree_with_attributes(device) -> None:
    attributes = device.attributes
    assert attributes["multiprocessor_count"] == device.multiprocessor_count
    assert device.compute_capability == (
        attributes["compute_capability_major"],
        attributes["compute_capability_minor"],
    )
    assert int(device.pci_bus_id.split(":")[1], 16) == attributes["pci_bus_id"]


def test_every_attribute_by_name(cu, device) -> None:
    """The oracle is the driver, asked through ctypes by the attribute's number."""
    library = ctypes.CDLL(cu.driver_path())
    attributes = device.attributes
    assert isinstance(attributes, Mapping)
    expected = {}
    assert len(NUMBERS) > 100
    for name, number in NUMBERS.items():
        value = ctypes.c_int()
        result = library.cuDeviceGetAttribute(ctypes.byref(value), number, device.ordinal)
        assert result in (0, 1)
        expected[name] = value.value if result == 0 else None
    assert dict(attributes) == expected
    with pytest.raises(TypeError):
        attributes["warp_size"] = 1


def test_old_driver_does_not_know_new_attributes(cu, sim, device) -> None:
    sim.set_driver_version(11000)
    attributes = device.attributes
    assert attributes["warp_size"] == 32
    assert None in attributes.values()


# ---- naming one ----------------------------------------------------------------------------------


def test_lookup_by_uuid_prefix_and_bus_id(cu) -> None:
    for device in cu.devices():
        assert cu.Device(device.uuid) == device
        assert cu.Device(device.uuid.removeprefix("GPU-")) == device
        assert cu.Device(device.pci_bus_id) == device
        assert cu.Device(device.pci_bus_id.upper()) == device
        assert cu.Device(device) == device
        unique = [d for d in cu.devices() if d.uuid.startswith(device.uuid[:12])]
        if len(unique) == 1:
            assert cu.Device(device.uuid[:12]) == device


class Indexed:
    def __index__(self) -> int:
        return 0


def test_anything_with_an_index_is_an_ordinal(cu, device) -> None:
    assert cu.Device(Indexed()) == device


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "cuda:0x",
        "GPU-",
        "GPU-12",
        "GPU-ffffffff-ffff-ffff-ffff-ffffffffffff",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "ffff:ff:1f.7",
        "zz:zz:zz.z",
        ":",
        "\u00e4" * 36,
        "GPU-\ud800abcdefgh",
        "0000:00:00.0\0",
        "x" * 100_000,
    ],
)
def test_text_that_names_no_device(cu, text: str) -> None:
    with pytest.raises(ValueError):
        cu.Device(text)


class TorchDevice:
    def __init__(self, kind: object, index: object) -> None:
        self.type, self.index = kind, index

    def __repr__(self) -> str:
        return f"device(type={self.type!r}, index={self.index})"


class CoreDevice:
    def __init__(self, ordinal: object) -> None:
        self.device_id = ordinal

    def __int__(self) -> int:
        return 0


@pytest.mark.parametrize(
    "other",
    ["cuda:1", "cuda:01", TorchDevice("cuda", 1), CoreDevice(1), np.array(1), np.uint8(1)],
    ids=named,
)
def test_other_libraries_names(cu, two_devices, other: object) -> None:
    second = two_devices[1]
    assert cu.Device(other) == second
    assert two_devices[0].can_access_peer(other) is two_devices[0].can_access_peer(1)
    for made in (cu.device_empty(3, device=other), cu.Stream(device=other), cu.Event(device=other)):
        assert made.context.device == second
        made.close()
    with cu.Context(other) as context:
        assert context.device == second
    context.close()


@pytest.mark.parametrize("other", ["cuda", TorchDevice("cuda", None)], ids=named)
def test_cuda_is_the_current_device(cu, two_devices, other: object) -> None:
    assert cu.Device(other) == cu.Device(0)
    with two_devices[1].primary_context() as context:
        assert cu.Device(other) == two_devices[1]
        array = cu.device_empty(3, device=other)
        assert array.context is context
        array.close()
    assert cu.Device(other) == cu.Device(0)


@pytest.mark.parametrize("kind", ["cpu", "mps", "meta", ""])
def test_other_kinds_of_pytorchs_devices(cu, kind: str) -> None:
    with pytest.raises(ValueError, match=rf"device\(type='{kind}', index=0\) is not a CUDA device"):
        cu.Device(TorchDevice(kind, 0))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("cuda:99", "device cuda:99 does not exist: there (is|are)"),
        (f"cuda:{1 << 80}", "does not exist: there (is|are)"),
        (1 << 40, rf"device {1 << 40} does not exist: there (is|are) \d+"),
        (-(1 << 80), rf"device -{1 << 80} does not exist: there (is|are) \d+"),
        (TorchDevice("cuda", 99), "device cuda:99 does not exist"),
        (TorchDevice("cuda", -1), "'cuda:-1' is not a CUDA device"),
        (CoreDevice(99), "device 99 does not exist"),
        (CoreDevice(-1), "device -1 does not exist"),
        ("cuda:", "'cuda:' is not a CUDA device: expected cuda or cuda:ORDINAL"),
        ("cuda:+1", "is not a CUDA device"),
        ("cuda: 1", "is not a CUDA device"),
        ("cuda:0\0", "is not a CUDA device"),
        ("cuda:0,1", "is not a CUDA device"),
        ("cpu", "'cpu' is not a CUDA device: expected an ordinal, cuda:ORDINAL, a uuid"),
    ],
)
def test_other_libraries_names_of_no_device(cu, other: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        cu.Device(other)


def test_what_another_librarys_device_raises_is_passed_on(cu) -> None:
    class Broken:
        @property
        def type(self) -> str:
            raise ZeroDivisionError("theirs")

    with pytest.raises(ZeroDivisionError, match="theirs"):
        cu.Device(Broken())


@pytest.mark.parametrize(
    "other",
    [
        1.5, True, b"0", [], object(), np.arange(2), np.dtype("f4"), TorchDevice(3, 0),
        CoreDevice("x"), CoreDevice(None), SimpleNamespace(type="cuda"), SimpleNamespace(),
    ],
    ids=named,
)  # fmt: skip
def test_what_is_no_name_at_all(cu, other: object) -> None:
    with pytest.raises(TypeError) as caught:
        cu.Device(other)
    assert str(caught.value) == (
        'a device is an ordinal, a Device, a uuid or a PCI bus id, "cuda:0", a torch.device or a '
        f"cuda.core.Device, not {type(other).__name__}"
    )


def test_more_than_one_argument(cu) -> None:
    with pytest.raises(TypeError):
        cu.Device(0, 1)


# ---- peers ---------------------------------------------------------------------------------------


def test_peer_access_agrees_with_the_driver(cu, two_devices) -> None:
    library = ctypes.CDLL(cu.driver_path())
    for first in cu.devices():
        for second in cu.devices():
            can = ctypes.c_int()
            code = library.cuDeviceCanAccessPeer(ctypes.byref(can), first.ordinal, second.ordinal)
            expected = bool(can.value) if code == 0 and first != second else False
            assert first.can_access_peer(second) is expected
            assert first.can_access_peer(second.ordinal) is expected
            assert first.can_access_peer(second.uuid) is expected


def test_no_peer_of_itself_and_bad_peers(device) -> None:
    assert device.can_access_peer(device) is False
    with pytest.raises(ValueError):
        device.can_access_peer(99)
    with pytest.raises(TypeError):
        device.can_access_peer(1.5)
