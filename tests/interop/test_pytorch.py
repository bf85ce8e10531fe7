"""PyTorch beside us: models whose weights we load, workers that load data, graphs, gradients, its
types; one driver and one primary context. What it shares with other libraries: test_interop.py.

Without a GPU what PyTorch can say there is compared still.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudriver as cu
import dlpackkit as kit
from graphkit import eventually

torch = pytest.importorskip("torch", reason="PyTorch is not installed in this environment")

SIZE = 1 << 16
MODES = ("global", "thread_local", "relaxed")
KINDS = ("float32", "float16", "bfloat16")
TYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip
ML_TYPES = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def build(kind: str) -> Any:
    """A model with weights in rows and in one piece, shared weights, and a count in a buffer."""
    nn = torch.nn
    model = nn.Sequential(
        nn.Embedding(50, 16), nn.Linear(16, 32), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(32, 50)
    )
    return model.to(getattr(torch, kind)).eval()


def saved(folder: Path, kind: str) -> tuple[Any, Any, Path]:
    """(a model, tokens for it, its file)"""
    save_file = pytest.importorskip("safetensors.torch", reason="safetensors is missing").save_file
    torch.manual_seed(3)
    model, path = build(kind), folder / "model.safetensors"
    save_file(model.state_dict(), path)
    return model, torch.randint(50, (4, 8)), path


def loaded(kind: str, state: dict[str, Any]) -> Any:
    """The model without weights, and then with these."""
    with torch.device("meta"):
        model = build(kind)
    model.load_state_dict(state, assign=True)
    return model


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_over_weights_that_we_loaded(tmp_path: Path, kind: str) -> None:
    model, tokens, path = saved(tmp_path, kind)
    arrays = cu.load_safetensors(path)
    state = {name: torch.from_dlpack(array) for name, array in arrays.items()}
    made = loaded(kind, state)
    for name, tensor in made.state_dict().items():
        assert tensor.data_ptr() == arrays[name].pointer
        assert tensor.dtype == model.state_dict()[name].dtype
    del arrays, state
    gc.collect()
    with torch.no_grad():
        assert torch.equal(made(tokens.cuda()), model.cuda()(tokens.cuda()))


@pytest.mark.gpu
@pytest.mark.parametrize("names", [False, True])
def test_tensors_of_pytorchs_have_its_own_memory(tmp_path: Path, names: bool) -> None:
    model, _, path = saved(tmp_path, KINDS[0])
    wanted = model.state_dict()
    gc.collect()
    torch.cuda.empty_cache()  # also counts what was in use on other streams
    before = torch.cuda.memory_allocated()
    state = cu.load_safetensors(path, framework="torch", names=[*wanted] if names else None)
    assert torch.cuda.memory_allocated() > before
    assert {*state} == {*wanted}
    for name, tensor in state.items():
        assert (tensor.dtype, tensor.shape) == (wanted[name].dtype, wanted[name].shape)
        assert torch.equal(tensor.cpu(), wanted[name])
        assert tensor.data_ptr() % 256 == 0
    first, *others = state.values()
    first += 1  # what autograd saved of the others has not changed
    assert [tensor._version for tensor in others] == [0] * len(others)
    landed = dict(cu.iter_safetensors(path, framework="torch"))
    assert all(torch.equal(landed[name].cpu(), wanted[name]) for name in wanted)
    with torch.cuda.stream(torch.cuda.Stream()) as stream:
        later = cu.load_safetensors(path, framework="torch", stream=torch.cuda.current_stream())
        assert all(torch.equal(later[name], landed[name]) for name in wanted)
    del state, first, others, landed, later, tensor, stream
    gc.collect()
    cu.Device(0).primary_context().synchronize()  # and lets go what completed copies kept
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_the_host_with_weights_that_we_loaded(tmp_path: Path, kind: str) -> None:
    """As far as a PyTorch without CUDA goes: the weights are copied into its tensors."""
    model, tokens, path = saved(tmp_path, kind)
    with torch.device("meta"):
        made = build(kind)
    made.to_empty(device="cpu")
    arrays, state = cu.load_safetensors(path), made.state_dict()
    assert {*arrays} == {*state}
    for name, array in arrays.items():
        cu.copy(state[name], array)
    with torch.no_grad():
        assert torch.equal(made(tokens), model(tokens))


@pytest.mark.gpu
def test_page_locked_memory_is_so_for_both() -> None:
    theirs = torch.zeros(SIZE).pin_memory()
    assert cu.is_pinned(theirs)
    there = cu.device_zeros(SIZE, "f4")
    assert cu.explain_copy(there, theirs).path == "direct"
    assert torch.from_numpy(cu.pinned_zeros(SIZE)).is_pinned()
    array = np.zeros(SIZE)
    assert not torch.from_numpy(array).is_pinned()
    with cu.pin(array):
        assert torch.from_numpy(array).is_pinned()
    with cu.pinned_numpy():
        assert torch.from_numpy(np.zeros(SIZE)).is_pinned()


def test_tensors_that_require_grad_are_read() -> None:
    tensor, out = torch.full((5,), 2.0, requires_grad=True), np.zeros(5, "f4")
    there = cu.to_device(tensor)
    cu.copy(out, there)
    assert (out == 2).all()
    with pytest.raises(ValueError, match="detach"):
        cu.copy(tensor, there)


LOADER = """
import sys
import numpy as np
import torch
import cudriver as cu

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return np.full(1000, index, "f4")

if __name__ == "__main__":
    there, stream = cu.device_zeros((4, 1000), "f4"), cu.Stream()
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=4, num_workers=2, multiprocessing_context=sys.argv[1],
        pin_memory=torch.cuda.is_available(),
    )
    transfer, seen = cu.copy_async(there, np.ones((4, 1000), "f4"), stream), []
    for batch in loader:
        transfer.wait()
        transfer = cu.copy_async(there, batch, stream)
        transfer.wait()
        seen += there.to_numpy()[:, 999].tolist()
    assert seen == list(range(32)), seen
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_data_loader_with_workers(tmp_path: Path, method: str) -> None:
    """Its workers start while copies of ours are in flight. In a process of its own: what else is
    loaded here may not stand a fork."""
    path = tmp_path / "loader.py"
    path.write_text(LOADER)
    done = subprocess.run(
        [sys.executable, path, method], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


# ---- copies beside a model that computes --------------------------------------------------------


@pytest.mark.gpu
def test_a_copy_into_an_array_over_a_tensor_does_not_wait_for_pytorch() -> None:
    """docs/tutorial/feed.md: PyTorch's current stream stands still, and the copy is over."""
    driver, flag = ctypes.CDLL(cu.driver_path()), cu.pinned_zeros(1, np.uint32)
    model, feed = cu.Stream(), cu.Stream()
    slot, batch = torch.zeros(1 << 22, device="cuda"), np.ones(1 << 22, np.float32)
    target = cu.from_dlpack(slot)
    cu.copy_async(target, batch, feed).wait()  # what is made at first use is made
    target.fill(0)
    torch.cuda.synchronize()
    stream, address = ctypes.c_void_p(model.handle), ctypes.c_uint64(cu.mapped_pointer(flag))
    with torch.cuda.stream(torch.cuda.ExternalStream(model.handle)):
        assert driver.cuStreamWaitValue32_v2(stream, address, 1, 0) == 0
        try:
            transfer = cu.copy_async(target, batch, feed)
            assert eventually(lambda: transfer.done)
            assert not model.done
        finally:
            flag[0] = 1
    torch.cuda.synchronize()
    assert (slot == 1).all().item()


# ---- graphs: PyTorch's captures, in each of the driver's modes ---------------------------------


def pinned(value: float) -> np.ndarray:
    return cu.pinned_full(SIZE, value, np.float32)


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(cu.CudaError):
        call()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
def test_pytorchs_own_copy_takes_our_arrays_into_its_graph(mode: str) -> None:
    """What a refused copy on a captured stream says to use instead."""
    source, back = pinned(1), pinned(0)
    ours, doubled = cu.device_zeros(SIZE, "f4"), torch.zeros(SIZE, device="cuda")
    there = torch.from_dlpack(ours)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        there.copy_(torch.from_numpy(source), non_blocking=True)
        torch.mul(there, 2, out=doubled)
        torch.from_numpy(back).copy_(doubled, non_blocking=True)
    for value in (3, 4):
        source[:] = value
        graph.replay()
        torch.cuda.synchronize()
        assert (back == 2 * value).all()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
def test_a_capture_outlives_what_is_refused_and_what_is_done_beside_it(mode: str) -> None:
    source, plain, side = pinned(5), np.zeros(SIZE, np.float32), cu.Stream()
    there, ours = torch.zeros(SIZE, device="cuda"), cu.device_zeros(SIZE, "f4")
    event = side.record()
    before = cu.copy_async(ours, plain, side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        stream = torch.cuda.current_stream()
        refused(lambda: cu.copy_async(there, source, stream))
        refused(lambda: cu.copy_async(there, plain, stream))
        refused(lambda: ours.fill(3, stream=stream))
        refused(lambda: cu.copy_async(plain, there, stream))
        refused(lambda: cu.copy_async(ours[1:], ours[:-1], stream))
        refused(lambda: cu.to_device(source, stream=stream))
        refused(lambda: event.wait(stream))
        before.wait()
        made = cu.to_device(np.arange(5000.0))
        made.fill(7)
        assert (made.to_numpy() == 7).all()
        del made
        with cu.pin(np.zeros(1 << 20, np.uint8)):
            cu.pinned_zeros(32 << 20, np.uint8)
        cu.copy_async(ours, plain, side).wait()
        side.record().synchronize()
        cu.trim_host_memory()
        gc.collect()
        there.fill_(5)
    graph.replay()
    torch.cuda.synchronize()
    assert (there == 5).all().item()
    assert not ours.to_numpy().any()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
def test_another_thread_works_while_pytorch_captures(mode: str) -> None:
    source, there = pinned(5), torch.zeros(SIZE, device="cuda")
    over, problems, turns = threading.Event(), [], []

    def work() -> None:
        try:
            while not over.is_set():
                plain = np.random.default_rng(len(turns)).random(1 << (12, 20, 22)[len(turns) % 3])
                stream, out = cu.Stream(), np.empty_like(plain)
                ours = cu.to_device(plain, stream=stream)
                cu.copy_async(out, ours, stream).wait()
                assert np.array_equal(out, plain)
                stream.record().synchronize()
                turns.append(1)
        except BaseException as error:
            problems.append(error)

    torch.cuda.synchronize()
    thread = threading.Thread(target=work)
    thread.start()
    while len(turns) < 20 and not problems:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode=mode):
            there.copy_(torch.from_numpy(source), non_blocking=True)
            for _ in range(50):
                there.add_(0)
    over.set()
    thread.join()
    assert problems == []
    source[:] = 6
    graph.replay()
    torch.cuda.synchronize()
    assert (there == 6).all().item()


# ---- types and tensors of the host, by DLPack ---------------------------------------------------


class ByMethod:
    """A tensor without its type's table."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, **asked: Any) -> Any:
        return self.tensor.__dlpack__(**asked)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("name", TYPES)
def test_tensors_of_the_host_by_the_method(name: str) -> None:
    """As test_round_trips.py takes them by the table."""
    whole = torch.arange(24).to(getattr(torch, name)).reshape(4, 6)
    views = whole[1:, ::2], whole.T, whole[1, 2], whole[:, :0], whole.expand(2, 4, 6)
    for tensor in (whole, *views):
        array = cu.from_dlpack(ByMethod(tensor))
        assert (array.dtype.name, array.shape) == (name, tuple(tensor.shape))
        assert tensor.numel() == 0 or array.ctypes.data == tensor.data_ptr()
        assert np.array_equal(array, tensor.numpy())


@pytest.mark.parametrize("name", ML_TYPES)
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


# ---- one driver, one primary context ------------------------------------------------------------


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


@pytest.mark.gpu
def test_driver_and_devices() -> None:
    cuda = torch.cuda
    cuda.init()
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


@pytest.mark.gpu
def test_one_primary_context() -> None:
    kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    context = cu.current_context()
    assert context is not None
    assert context.is_primary
    assert context.handle == cu.Device(0).primary_context().handle
    assert cu.device_zeros(10).context.handle == context.handle
    free, total = torch.cuda.mem_get_info(0)
    with cu.Device(0).primary_context() as primary:
        ours = primary.memory_info()
    assert ours.total == total
    assert abs(ours.free - free) <= kept.nbytes


@pytest.mark.gpu
def test_bfloat16_is_no_float16() -> None:
    """As which PyTorch's interface shows it."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    there = cu.to_device(torch.arange(10, device="cuda", dtype=torch.bfloat16))
    assert there.dtype == ml_dtypes.bfloat16
    assert there.to_numpy().astype(int).tolist() == list(range(10))
