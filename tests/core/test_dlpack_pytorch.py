"""DLPack with PyTorch: its exchange table, its method, its lazy tensors, its types."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import cudriver as cu
import dlpackkit as kit

torch = pytest.importorskip("torch", reason="PyTorch is not installed in this environment")

pytestmark = pytest.mark.usefixtures("no_leaks")
NAMES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip
ML_NAMES = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


class ByMethod:
    """A tensor without its type's table."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, **asked: Any) -> Any:
        return self.tensor.__dlpack__(**asked)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("way", [lambda tensor: tensor, ByMethod], ids=["table", "method"])
@pytest.mark.parametrize("name", NAMES)
def test_tensors_of_the_host(way: Any, name: str) -> None:
    whole = torch.arange(24).to(getattr(torch, name)).reshape(4, 6)
    views = whole[1:, ::2], whole.T, whole[1, 2], whole[:, :0], whole.expand(2, 4, 6)
    for tensor in (whole, *views):
        array = cu.from_dlpack(way(tensor))
        assert type(array) is np.ndarray
        assert array.dtype.name == name
        assert array.shape == tuple(tensor.shape)
        assert tensor.numel() == 0 or array.ctypes.data == tensor.data_ptr()
        assert np.array_equal(array, tensor.numpy())


@pytest.mark.parametrize("name", ML_NAMES)
def test_types_of_ml_dtypes(name: str) -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    tensor = torch.tensor([1.0, -2.0, 0.5]).to(getattr(torch, name))
    array = cu.from_dlpack(tensor)
    assert array.dtype.name == name
    assert array.astype("f4").tolist() == [1.0, -2.0, 0.5]
    there = cu.device_empty(3, array.dtype)
    cu.copy(there, tensor)
    back = torch.zeros(3).to(getattr(torch, name))
    cu.copy(back, there)
    assert back.float().tolist() == [1.0, -2.0, 0.5]


def test_the_array_keeps_the_tensors_memory() -> None:
    tensor = torch.arange(1000)
    array = cu.from_dlpack(tensor)
    array[0] = 7
    assert tensor[0] == 7
    del tensor
    gc.collect()
    assert array[0] == 7
    assert array.sum() == 7 + 999 * 500


def test_the_tables_version_is_known() -> None:
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip(f"torch {torch.__version__} has no exchange table")
    assert kit.table_of(torch.Tensor).major == 1


def test_a_device_array_on_the_host() -> None:
    array = cu.to_device(np.arange(6.0))

    class Host(ByMethod):
        def __dlpack__(self, **asked: Any) -> Any:
            return self.tensor.__dlpack__(**asked, dl_device=(kit.CPU, 0))

        def __dlpack_device__(self) -> tuple[int, int]:
            return kit.CPU, 0

    assert torch.from_dlpack(Host(array)).tolist() == [0, 1, 2, 3, 4, 5]


def test_copies() -> None:
    there = cu.device_empty((4, 6), "f4")
    tensor = torch.arange(24.0).reshape(4, 6)
    cu.copy(there, tensor)
    assert (there.to_numpy() == tensor.numpy()).all()
    out = torch.zeros(6, 4).T
    cu.copy_async(out, there, cu.Stream()).wait()
    assert torch.equal(out, tensor)
    cu.copy(there, torch.full((4, 6), 2.0, requires_grad=True))
    assert (there.to_numpy() == 2).all()
    assert (cu.to_device(tensor.T).to_numpy() == tensor.T.numpy()).all()
    with pytest.raises(ValueError, match="requires grad: pass its detach"):
        cu.copy(torch.zeros(4, 6, requires_grad=True), there)
    cu.copy(torch.zeros(4, 6, requires_grad=True).detach(), there)


def test_tensors_that_are_more_than_their_memory() -> None:
    for tensor in (
        torch.ones(3, requires_grad=True),
        torch.ones(3, dtype=torch.complex64).conj(),
        torch.ones(3, dtype=torch.complex64).conj().imag,
        torch.ones(3, 3).to_sparse(),
        torch.ones(3, device="meta"),
    ):
        with pytest.raises((BufferError, RuntimeError, ValueError)):
            cu.from_dlpack(tensor)
    resolved = torch.full((3,), 1 + 2j).conj().imag.resolve_neg()
    assert cu.from_dlpack(resolved).tolist() == [-2, -2, -2]


def test_a_cpu_tensor_can_be_pinned() -> None:
    tensor = torch.zeros(5000)
    assert not cu.is_pinned(tensor)
    with cu.pin(tensor) as pinned:
        assert cu.is_pinned(tensor)
        assert pinned.array.ctypes.data == tensor.data_ptr()
    assert not cu.is_pinned(tensor)
    there = cu.to_device(np.arange(5000, dtype="f4"))
    assert there.to_numpy(out=tensor) is tensor
    assert torch.equal(tensor, torch.arange(5000.0))
