"""Exceptions: their classes, what they carry, how they read, and every code by its name."""

from __future__ import annotations

import copy
import ctypes
import pickle
import re

import pytest

from cudriver import errors
from native_build import CEXT
from program import run

CLASSES = {
    2: "OutOfMemoryError",
    3: "NotInitializedError",
    4: "NotInitializedError",
    34: "UnsupportedDriverError",
    201: "InvalidContextError",
    709: "InvalidContextError",
}


def codes_in_header() -> dict[int, str]:
    header = CEXT / "sim" / "cuda_errors.h"
    if not header.exists():
        pytest.skip("no C sources beside the tests")
    return {int(c): n for c, n in re.findall(r"X\((\d+), (\w+),", header.read_text())}


CLASS_NAMES = [name for name in errors.__all__ if name[0].isupper()]


def test_hierarchy(cu) -> None:
    assert issubclass(cu.CudaError, RuntimeError)
    assert issubclass(cu.OutOfMemoryError, (cu.CudaError, MemoryError))
    assert issubclass(cu.OutOfMemoryError, MemoryError)
    assert issubclass(cu.DriverNotFoundError, ImportError)
    assert issubclass(cu.ForkedProcessError, cu.NotInitializedError)
    for name in CLASS_NAMES:
        error = getattr(cu, name)
        assert issubclass(error, cu.CudaError)
        assert error.__module__ == "cudriver.errors"
        assert error.__doc__


def test_all_codes_by_name(cu) -> None:
    names = cu.errors.error_names()
    assert names == codes_in_header()
    assert names[0] == "CUDA_SUCCESS"
    assert names[712] == "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
    names.clear()
    assert cu.errors.error_names(), "each call gives a dict of its own"


def test_codes_agree_with_the_driver(cu) -> None:
    """The driver names fewer where it is older, but never differently."""
    library = ctypes.CDLL(cu.driver_path())
    text = ctypes.c_char_p()
    known = 0
    for code, name in cu.errors.error_names().items():
        if library.cuGetErrorName(code, ctypes.byref(text)) == 0 and text.value:
            assert text.value.decode() == name
            known += 1
    assert known > 50


def test_every_code_has_its_class_and_message(cu, sim) -> None:
    for code, name in cu.errors.error_names().items():
        if code == 0:
            continue
        sim.fail_next("cuDeviceTotalMem_v2", code)
        with pytest.raises(cu.CudaError) as caught:
            cu.Device(0).total_memory
        error = caught.value
        assert type(error).__name__ == CLASSES.get(code, "CudaError"), code
        assert (error.code, error.name, error.function) == (code, name, "cuDeviceTotalMem_v2")
        assert error.description
        start = f"cuDeviceTotalMem_v2(device 0): {name} ({code}): {error.description}"
        assert str(error) == start or str(error).startswith(start + ". Hint: ")
        sim.clear_faults()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling(cu, protocol: int) -> None:
    for name in CLASS_NAMES:
        error = getattr(cu, name)("a message", 712, "CUDA_ERROR_X", "described", "cuFunction")
        for again in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
            assert type(again) is type(error)
            assert str(again) == "a message"
            assert (again.code, again.name) == (712, "CUDA_ERROR_X")
            assert (again.description, again.function) == ("described", "cuFunction")


def test_made_without_arguments(cu) -> None:
    error = cu.CudaError()
    assert (str(error), error.code, error.name, error.description, error.function) == (
        "",
        0,
        "",
        "",
        "",
    )
    assert pickle.loads(pickle.dumps(error)).code == 0


def test_a_call_that_was_never_made_has_code_0(cu) -> None:
    context = cu.Context()
    context.close()
    with pytest.raises(cu.InvalidContextError) as caught:
        context.push()
    assert (caught.value.code, caught.value.name) == (0, "")
    assert repr(context) in str(caught.value)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda cu: cu.Context(flags="x"), TypeError),
        (lambda cu: cu.Context(flags=-1), ValueError),
        (lambda cu: cu.Context(flags=1 << 70), ValueError),
        (lambda cu: cu.Context(flags=0x100), ValueError),
        (lambda cu: cu.Event(device="x"), ValueError),
        (lambda cu: cu.copy(1, 2), TypeError),
        (lambda cu: cu.copy(1), TypeError),
        (lambda cu: cu.copy_async(1), TypeError),
        (lambda cu: cu.explain_copy(1), TypeError),
        (lambda cu: cu.mapped_pointer(3), TypeError),
        (lambda cu: cu.mapped_pointer(b"abc"), ValueError),
        (lambda cu: cu.set_host_memory_policy(copy_threads=1 << 80), ValueError),
        (lambda cu: cu.trace_allocations(1, 2), TypeError),
    ],
)
def test_bad_arguments_are_told_before_the_driver_is(cu, simulator, call, error) -> None:
    cu.memory_info()
    failed = "cuMemAlloc_v2", "cuMemAllocFromPoolAsync", "cuMemHostRegister_v2", "cuCtxCreate_v4"
    before = [simulator.call_count(name) for name in failed] if simulator else None
    with pytest.raises(error) as caught:
        call(cu)
    assert not isinstance(caught.value, cu.CudaError)
    assert str(caught.value)
    if simulator:
        assert [simulator.call_count(name) for name in failed] == before


def test_a_context_that_is_refused_names_the_function_called(cu, sim) -> None:
    for version, function in (13000, "cuCtxCreate_v4"), (11000, "cuCtxCreate_v2"):
        done = run(
            """
            import cudriver as cu
            try:
                cu.Context()
            except cu.CudaError as error:
                print(error.function, str(error).split("(")[0], error.code)
            """,
            CUDRIVER_SIM_DRIVER_VERSION=str(version),
            CUDRIVER_SIM_FAIL=f"{function}:1:2",
        )
        assert done.stdout == f"{function} {function} 2\n", done.stderr


def test_failed_free_in_a_destructor_is_reported_not_raised(cu, sim, monkeypatch) -> None:
    import sys

    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    stream, event = cu.Stream(), cu.Event()
    sim.fail_next("cuStreamDestroy_v2", 400)
    sim.fail_next("cuEventDestroy_v2", 1)
    try:
        raise KeyError("pending")
    except KeyError:
        del stream, event
    assert [(e.exc_value.code, e.exc_value.function) for e in said] == [
        (400, "cuStreamDestroy_v2"),
        (1, "cuEventDestroy_v2"),
    ]


def test_driver_that_is_gone_at_a_free_is_silent(cu, sim, monkeypatch) -> None:
    import sys

    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    stream = cu.Stream()
    sim.fail_next("cuStreamDestroy_v2", 4)
    del stream
    assert said == []


def test_failed_free_of_a_device_array_names_the_call(cu, sim, monkeypatch) -> None:
    import sys

    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    array = cu.device_empty(100)
    sim.fail("cuMemFreeAsync:1:1,cuMemFree_v2:1:1")
    del array
    assert [e.exc_value.code for e in said] == [1]
    assert said[0].exc_value.function in ("cuMemFreeAsync", "cuMemFree_v2")
