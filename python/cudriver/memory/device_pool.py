"""The driver's pool that a device's memory comes from. The core asks for it at its first use.

It belongs to the device, not to a context, and survives both resets and contexts.
"""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING

from cudriver import _core
from cudriver.errors import CudaError
from cudriver.memory.asking import ask
from cudriver.memory.devices import Device, devices

if TYPE_CHECKING:
    from cudriver._core import Context

# Of CUmemAllocationType, CUmemLocationType, CUmemAccess_flags and CUmemPool_attribute.
PINNED, ON_DEVICE, READ_WRITE = 1, 1, 3
REUSE_BEHIND_OTHER_STREAMS, RELEASE_THRESHOLD = 3, 4

_made: dict[int, int] = {}  # by the device's ordinal


def pool_of(context: Context) -> int:
    """The handle of the pool of a context's device; 0: it has none."""
    device = context.device
    if device.ordinal not in _made:
        pool = _make(context, device)
        if pool != _made.setdefault(device.ordinal, pool) and pool:  # another thread was first
            _destroy(context, pool)
    return _made[device.ordinal]


def _make(context: Context, device: Device) -> int:
    shown = f"device {device.ordinal}"
    try:
        if not device._attribute("memory_pools_supported"):
            return 0
        properties = struct.pack("4i72x", PINNED, 0, ON_DEVICE, device._handle)
        pool: int = ask(context, "cuMemPoolCreate", shown, "Q", properties)
    except CudaError:
        return 0
    # Keep freed memory. Never hand out memory that another stream still uses, so that an allocation
    # can be used on any stream at once.
    for attribute, value in (RELEASE_THRESHOLD, (1 << 64) - 1), (REUSE_BEHIND_OTHER_STREAMS, 0):
        try:
            given = pool, attribute, struct.pack("Q", value)
            _core._call(context, "cuMemPoolSetAttribute", shown, given)
        except CudaError:
            _destroy(context, pool)
            return 0
    _share(context, pool, device)
    return pool


def _share(context: Context, pool: int, device: Device) -> None:
    """Let every device that can access this one read and write the pool. Best effort."""
    with contextlib.suppress(CudaError):
        for peer in devices():
            if peer.can_access_peer(device):
                access = struct.pack("3i", ON_DEVICE, peer._handle, READ_WRITE)
                with contextlib.suppress(CudaError):
                    _core._call(context, "cuMemPoolSetAccess", f"{peer!r}", (pool, access, 1))


def _destroy(context: Context, pool: int) -> None:
    with contextlib.suppress(CudaError):
        _core._call(context, "cuMemPoolDestroy", "", (pool,))
