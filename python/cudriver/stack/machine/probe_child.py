"""Run in a child process: asks NVML, and libcuda where told to, and prints lines of name=value.

Not imported by the package. It may hang or crash with the driver; its parent sets the time limit.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SUCCESS = 0


class PciInfo(ctypes.Structure):
    _fields_ = [
        ("legacy", ctypes.c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("pci_device", c_uint),
        ("pci_subsystem", c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


class Memory(ctypes.Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class Fabric(ctypes.Structure):
    _fields_ = [
        ("cluster", ctypes.c_char * 16),
        ("status", c_uint),
        ("clique", c_uint),
        ("state", ctypes.c_ubyte),
        ("spare", ctypes.c_ubyte * 3),
    ]


def say(name: str, value: object) -> None:
    text = str(value).replace("\n", " ")
    os.write(1, f"{name}={text}\n".encode("utf-8", "replace"))


def text_of(call: Callable[..., int], *arguments: object) -> str:
    """What a call writes into a buffer, its last two parameters; "" where it fails."""
    buffer = ctypes.create_string_buffer(96)
    if call(*arguments, buffer, c_uint(96)) != SUCCESS:
        return ""
    return buffer.value.decode("utf-8", "replace")


def answers(library: ctypes.CDLL, name: str, *arguments: object) -> bool:
    """Calls a function that an older library may lack."""
    return hasattr(library, name) and getattr(library, name)(*arguments) == SUCCESS


def ask_nvml(name: str) -> None:
    try:
        nvml = ctypes.CDLL(name)
    except OSError as error:
        say("nvml.error", error)
        return
    code = nvml.nvmlInit_v2()
    if code != SUCCESS:
        nvml.nvmlErrorString.restype = c_char_p
        reason: bytes = nvml.nvmlErrorString(code) or b"?"
        say("nvml.error", reason.decode("utf-8", "replace"))
        return
    say("nvml.driver", text_of(nvml.nvmlSystemGetDriverVersion))
    version = c_int()
    for function in ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"):
        if hasattr(nvml, function) and getattr(nvml, function)(byref(version)) == SUCCESS:
            say("nvml.cuda", version.value)
            break
    count = c_uint()
    if nvml.nvmlDeviceGetCount_v2(byref(count)) == SUCCESS:
        say("count", count.value)
    for index in range(min(count.value, 256)):
        ask_device(nvml, index)
    say("nvml.done", 1)


def ask_device(nvml: ctypes.CDLL, index: int) -> None:
    handle = c_void_p()
    if nvml.nvmlDeviceGetHandleByIndex_v2(c_uint(index), byref(handle)) != SUCCESS:
        return
    say(f"device.{index}.name", text_of(nvml.nvmlDeviceGetName, handle))
    say(f"device.{index}.uuid", text_of(nvml.nvmlDeviceGetUUID, handle))
    major, minor = c_int(), c_int()
    if nvml.nvmlDeviceGetCudaComputeCapability(handle, byref(major), byref(minor)) == SUCCESS:
        say(f"device.{index}.capability", f"{major.value}.{minor.value}")
    memory = Memory()
    if nvml.nvmlDeviceGetMemoryInfo(handle, byref(memory)) == SUCCESS:
        say(f"device.{index}.memory", memory.total)
    pci = PciInfo()
    if answers(nvml, "nvmlDeviceGetPciInfo_v3", handle, byref(pci)):
        say(f"device.{index}.pci", pci.bus_id.decode("ascii", "replace"))
    fabric = Fabric()
    if answers(nvml, "nvmlDeviceGetGpuFabricInfo", handle, byref(fabric)):
        say(f"device.{index}.fabric", f"{fabric.state} {fabric.status}")
    current, pending = c_uint(), c_uint()
    if answers(nvml, "nvmlDeviceGetMigMode", handle, byref(current), byref(pending)):
        say(f"device.{index}.mig", current.value)
        if current.value:
            ask_instances(nvml, index, handle)


def ask_instances(nvml: ctypes.CDLL, index: int, handle: c_void_p) -> None:
    for slot in range(8):
        instance = c_void_p()
        if (
            nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, c_uint(slot), byref(instance))
            == SUCCESS
        ):
            say(f"device.{index}.instance", text_of(nvml.nvmlDeviceGetUUID, instance))


def ask_cuda(name: str) -> None:
    try:
        cuda = ctypes.CDLL(name)
    except OSError as error:
        say("cuda.error", error)
        return
    version, count = c_int(), c_int()
    code = cuda.cuInit(c_uint(0))
    say("cuda.init", code)
    if cuda.cuDriverGetVersion(byref(version)) == SUCCESS:
        say("cuda.version", version.value)
    if code == SUCCESS and cuda.cuDeviceGetCount(byref(count)) == SUCCESS:
        say("count", count.value)
        for index in range(min(count.value, 256)):
            device, major, minor = c_int(), c_int(), c_int()
            cuda.cuDeviceGet(byref(device), c_int(index))
            cuda.cuDeviceGetAttribute(byref(major), c_int(75), device)
            cuda.cuDeviceGetAttribute(byref(minor), c_int(76), device)
            name = text_of(lambda *into, of=device: cuda.cuDeviceGetName(*into, of))
            say(f"device.{index}.name", name)
            say(f"device.{index}.capability", f"{major.value}.{minor.value}")


def main() -> None:
    for job in sys.argv[1:]:
        what, _, name = job.partition("=")
        if what == "nvml":
            ask_nvml(name)
        elif what == "cuda":
            ask_cuda(name)
    os._exit(0)  # the driver's own exit handlers may hang too


main()
