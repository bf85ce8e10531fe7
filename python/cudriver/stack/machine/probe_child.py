"""Run in a child process: asks NVML, and libcuda where told to, and prints lines of name=value.

Not imported by the package. It may hang or crash with the driver; its parent sets the time limit.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from ctypes import byref, c_char_p, c_int, c_uint, c_void_p

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SUCCESS = 0


# What NVML writes, as its header lays it out.
PCI = "16s5I32s"  # nvmlPciInfo_t: legacy bus id, domain, bus, device, its id, subsystem's, bus id
MEMORY = "3Q"  # nvmlMemory_t: total, free, used
FABRIC = "16s2IB3x"  # nvmlGpuFabricInfo_t: cluster, status, clique, state


def say(name: str, value: object) -> None:
    text = str(value).replace("\n", " ")
    os.write(1, f"{name}={text}\n".encode("utf-8", "replace"))


def text_of(call: Callable[..., int], *arguments: object) -> str:
    """What a call writes into a buffer, its last two parameters; "" where it fails."""
    buffer = ctypes.create_string_buffer(96)
    if call(*arguments, buffer, c_uint(96)) != SUCCESS:
        return ""
    return buffer.value.decode("utf-8", "replace")


def answer(library: ctypes.CDLL, name: str, layout: str, *arguments: object) -> tuple[Any, ...]:
    """What a call writes, by its last parameter; () where it fails or the library is too old."""
    buffer = ctypes.create_string_buffer(struct.calcsize(layout))
    there = hasattr(library, name) and getattr(library, name)(*arguments, buffer) == SUCCESS
    return struct.unpack(layout, buffer.raw) if there else ()


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
    for function in ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"):
        if version := answer(nvml, function, "i"):
            say("nvml.cuda", *version)
            break
    for count in answer(nvml, "nvmlDeviceGetCount_v2", "I"):
        say("count", count)
        for index in range(min(count, 256)):
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
    if memory := answer(nvml, "nvmlDeviceGetMemoryInfo", MEMORY, handle):
        say(f"device.{index}.memory", memory[0])
    if pci := answer(nvml, "nvmlDeviceGetPciInfo_v3", PCI, handle):
        say(f"device.{index}.pci", pci[-1].partition(b"\0")[0].decode("ascii", "replace"))
    if fabric := answer(nvml, "nvmlDeviceGetGpuFabricInfo", FABRIC, handle):
        say(f"device.{index}.fabric", f"{fabric[3]} {fabric[1]}")
    current = c_uint()  # the mode after the next reset comes with it
    if answer(nvml, "nvmlDeviceGetMigMode", "I", handle, byref(current)):
        say(f"device.{index}.mig", current.value)
        if current.value:
            ask_instances(nvml, index, handle)


def ask_instances(nvml: ctypes.CDLL, index: int, handle: c_void_p) -> None:
    for slot in range(8):
        instance = c_void_p()
        found = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, c_uint(slot), byref(instance))
        if found == SUCCESS:
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
