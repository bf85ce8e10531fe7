"""cuda-core on the simulated driver: what its public classes do with memory and streams."""

from __future__ import annotations

import numpy as np
import pytest
from cuda.core import Device, DeviceMemoryResource, EventOptions, LegacyPinnedMemoryResource


@pytest.fixture
def device():
    device = Device(0)
    device.set_current()  # not device.sync(): that is a call of the CUDA runtime
    return device


def bytes_of(buffer):
    return np.from_dlpack(buffer).view(np.uint8)


def test_the_device(device):
    assert "simulated" in device.name
    assert tuple(device.compute_capability) == (9, 0)
    assert device.properties.warp_size == 32
    assert device.uuid != Device(1).uuid


@pytest.mark.parametrize("size", [1, 4096, (3 << 20) + 1])
def test_a_round_trip_through_page_locked_memory(device, size):
    stream = device.create_stream()
    pinned = LegacyPinnedMemoryResource()
    there, back = pinned.allocate(size), pinned.allocate(size)
    assert there.is_host_accessible
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    bytes_of(there)[:] = data
    buffer = device.allocate(size, stream=stream)
    assert (buffer.is_device_accessible, buffer.is_host_accessible) == (True, False)
    there.copy_to(buffer, stream=stream)
    buffer.copy_to(back, stream=stream)
    stream.sync()
    assert (bytes_of(back) == data).all()
    buffer.fill(7, stream=stream)
    buffer.copy_to(back, stream=stream)
    stream.sync()
    assert (bytes_of(back) == 7).all()
    buffer.close(stream)
    there.close()
    back.close()


def test_streams_and_events(device):
    one, other = device.create_stream(), device.create_stream()
    assert one != other
    assert one.is_nonblocking
    event = one.record()
    other.wait(event)
    other.sync()
    event.sync()
    assert event.is_done
    timed = [one.record(options=EventOptions(timing_enabled=True)) for _ in range(2)]
    one.sync()
    assert timed[1] - timed[0] >= 0


def test_a_pool(device):
    stream = device.create_stream()
    pool = DeviceMemoryResource(device)
    first = pool.allocate(1 << 20, stream=stream)
    assert pool.attributes.used_mem_current >= 1 << 20
    first.close(stream)
    stream.sync()
