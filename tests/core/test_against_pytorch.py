"""Against PyTorch: both see one driver, one primary context and the same memory.

Without a GPU what PyTorch can say there is compared still; the rest is skipped with the reason.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import cudriver as cu

torch = pytest.importorskip("torch", reason="PyTorch is not installed in this environment")


@pytest.fixture
def cuda() -> Any:
    """torch.cuda, where PyTorch and cudriver use the same GPU."""
    if cu.driver_is_simulated():
        pytest.skip("PyTorch does not see the simulated driver")
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} shows no GPU")
    torch.cuda.init()
    return torch.cuda


def system_answer(code: str) -> Any:
    """What a new process prints that uses the system's own driver."""
    environment = {k: v for k, v in os.environ.items() if k != "CUDRIVER_LIBRARY"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_both_find_a_gpu_or_neither() -> None:
    if torch.version.cuda is None:
        pytest.skip(f"torch {torch.__version__} is built without CUDA")
    theirs = system_answer("import torch, json; print(json.dumps(torch.cuda.is_available()))")
    ours = system_answer("import cudriver as cu, json; print(json.dumps(cu.is_available()))")
    assert ours == theirs


def test_arrays_are_shared_with_cpu_tensors() -> None:
    array = cu.pinned_empty((30, 40), np.float32)
    tensor = torch.from_numpy(array)
    tensor.fill_(3)
    assert (array == 3).all()
    assert tensor.data_ptr() == array.ctypes.data
    assert cu.is_pinned(tensor.numpy())
    del array
    tensor += 1
    there = cu.to_device(tensor)
    assert (there.to_numpy() == 4).all()
    plain = torch.arange(24).reshape(4, 6).T
    assert np.array_equal(cu.to_device(plain).to_numpy(), plain.numpy())
    assert not cu.is_pinned(plain.numpy())


def test_memory_of_the_simulated_driver_is_not_pinned_for_pytorch() -> None:
    if not cu.driver_is_simulated():
        pytest.skip("about the simulated driver")
    assert torch.from_numpy(cu.pinned_zeros(1000)).is_pinned() is False


def their_driver_version() -> int:
    """What the CUDA runtime says that PyTorch has loaded; older releases ask it themselves."""
    if hasattr(torch._C, "_cuda_getDriverVersion"):
        return int(torch._C._cuda_getDriverVersion())
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "/libcudart.so" in line}
    (path,) = paths
    version = ctypes.c_int()
    assert ctypes.CDLL(path).cudaDriverGetVersion(ctypes.byref(version)) == 0
    return version.value


def test_driver_and_devices(cuda: Any) -> None:
    version = cu.driver_version()
    assert version.major * 1000 + version.minor * 10 == their_driver_version()
    assert cu.device_count() == cuda.device_count()
    for ordinal, device in enumerate(cu.devices()):
        theirs = cuda.get_device_properties(ordinal)
        assert device.name == theirs.name
        assert device.total_memory == theirs.total_memory
        assert device.multiprocessor_count == theirs.multi_processor_count
        assert device.compute_capability == cuda.get_device_capability(ordinal)
        if hasattr(theirs, "uuid"):
            assert device.uuid.removeprefix("GPU-") == str(theirs.uuid).removeprefix("GPU-")


def test_memory_info(cuda: Any) -> None:
    kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    cu.device_zeros(10)
    free, total = cuda.mem_get_info(0)
    with cu.Device(0).primary_context() as context:
        ours = context.memory_info()
    assert ours.total == total
    assert abs(ours.free - free) <= 64 << 20
    del kept


def test_one_primary_context(cuda: Any) -> None:
    torch.zeros(1, device="cuda")
    context = cu.current_context()
    assert context is not None
    assert context.is_primary
    assert context.handle == cu.Device(0).primary_context().handle
    assert cu.device_zeros(10).context.handle == context.handle
    assert cu.Device(0).primary_context().exists


def test_pinned_is_pinned_for_both(cuda: Any) -> None:
    assert torch.from_numpy(cu.pinned_zeros(1000)).is_pinned()
    array = np.zeros(100000)
    assert not torch.from_numpy(array).is_pinned()
    with cu.pin(array):
        assert torch.from_numpy(array).is_pinned()
    with cu.pinned_numpy():
        assert torch.from_numpy(np.zeros(100000)).is_pinned()
    theirs = torch.zeros(1000).pin_memory()
    assert cu.is_pinned(theirs.numpy())
    assert not cu.is_pinned(torch.zeros(1000).numpy())


def test_data_written_by_one_is_read_by_the_other(cuda: Any) -> None:
    model = np.arange(24, dtype=np.float32).reshape(4, 6)
    ours = cu.to_device(model)
    theirs = torch.as_tensor(ours, device="cuda")
    assert theirs.data_ptr() == ours.pointer
    assert np.array_equal(theirs.cpu().numpy(), model)
    theirs *= 2
    cuda.synchronize()
    assert np.array_equal(ours.to_numpy(), model * 2)

    tensor = torch.arange(24, dtype=torch.float32, device="cuda").reshape(4, 6)
    out = np.zeros((4, 6), np.float32)
    cu.copy(out, tensor)
    assert np.array_equal(out, model)
    turned = np.zeros((6, 4), np.float32)
    cu.copy(turned, tensor.T)
    assert np.array_equal(turned, model.T)
    cu.copy(tensor, model + 1)
    assert np.array_equal(tensor.cpu().numpy(), model + 1)
    copy = cu.to_device(tensor)
    assert copy.pointer != tensor.data_ptr()
    assert np.array_equal(copy.to_numpy(), model + 1)


def test_their_stream_is_a_stream(cuda: Any) -> None:
    stream = cuda.Stream()
    source = cu.pinned_full(1 << 20, 3, np.uint8)
    there = cu.device_zeros(1 << 20, np.uint8)
    transfer = cu.copy_async(there, source, stream)
    with cuda.stream(stream):
        doubled = torch.as_tensor(there, device="cuda") * 2
    out = cu.pinned_zeros(1 << 20, np.uint8)
    cu.copy_async(out, doubled, stream).wait()
    transfer.wait()
    assert (out == 6).all()
    ours = cu.Stream()  # destroyed with its last owner, and theirs is none
    outside = cuda.ExternalStream(ours.handle)
    assert outside.query()


def test_a_copy_waits_for_the_tensors_stream(cuda: Any) -> None:
    side, ours = cuda.Stream(), cu.Stream()
    tensor, out = torch.zeros(1 << 20, device="cuda"), cu.pinned_zeros(1 << 20, np.float32)
    cuda.synchronize()
    for copy in (
        lambda: cu.copy(out, tensor),
        lambda: cu.copy_async(out, tensor, ours).wait(),
        lambda: cu.copy_async(out, tensor, side).wait(),
        lambda: cu.copy_async(out, tensor, None).wait(),
    ):
        out[:] = 0
        tensor.zero_()
        cuda.synchronize()
        with cuda.stream(side):
            cuda._sleep(50_000_000)  # tens of milliseconds
            tensor.add_(1)
            copy()
        assert (out == 1).all()


def test_a_tensor_that_requires_grad_is_read(cuda: Any) -> None:
    tensor = torch.ones(10, device="cuda", requires_grad=True)
    assert (cu.to_device(tensor).to_numpy() == 1).all()
    with pytest.raises(ValueError, match="requires grad: pass its detach"):
        cu.copy(tensor, np.zeros(10, np.float32))


def test_bfloat16_is_no_float16(cuda: Any) -> None:
    """As which PyTorch's interface shows it."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    tensor = torch.arange(10, device="cuda", dtype=torch.bfloat16)
    there = cu.to_device(tensor)
    assert there.dtype == ml_dtypes.bfloat16
    assert there.to_numpy().astype(int).tolist() == list(range(10))
