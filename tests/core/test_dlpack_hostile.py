"""What a library may get wrong in DLPack: each is an error that says so, and nothing is touched."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cudriver as cu
import dlpackkit as kit

HOST = np.arange(24, dtype="f4")
BIG = 1 << 62

pytestmark = pytest.mark.usefixtures("no_leaks", "all_forgotten")


@pytest.fixture
def all_forgotten() -> Iterator[None]:
    """Here a tensor that was not taken stays with its lender."""
    yield
    gc.collect()
    kit.alive.clear()


def host(shape: Any = (4, 6), strides: Any = None, **how: Any) -> kit.Lender:
    how.setdefault("device", (kit.CPU, 0))
    return kit.Lender(how.pop("data", HOST.ctypes.data), shape, strides, **how)


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a negative length": ({"shape": (3, -1)}, ValueError, "the length of axis 1 is -1"),
    "too large for any memory": ({"shape": (BIG, 8)}, ValueError, "larger than|too large"),
    "lengths whose product wraps around": (
        {"shape": (1 << 33, 1 << 33)}, ValueError, "larger than|too large",
    ),
    "dense strides that overflow": (
        {"shape": (4, 1 << 31, 1 << 31)}, ValueError, "larger than|too large",
    ),
    "dense strides that overflow on a device": (
        {"shape": (4, 1 << 31, 1 << 31), "device": (kit.CUDA, 0)}, ValueError,
        "larger than|too large",
    ),
    "strides that overflow on a device": (
        {"shape": (3, 2), "strides": (BIG + 2, 1), "device": (kit.CUDA, 0)}, ValueError,
        "is not memory that the driver knows",
    ),
    "a stride that overflows": (
        {"shape": (2, 2), "strides": (BIG, 1)}, ValueError, "the stride of axis 0",
    ),
    "strides that leave the address space": (
        {"shape": (3, 2), "strides": (BIG // 2, 1)}, ValueError, "address space",
    ),
    "strides that go below 0": (
        {"shape": (2, 2), "strides": (-(1 << 60), 1)}, ValueError, "address space",
    ),
    "an offset that wraps around": ({"byte_offset": 2**64 - 1}, ValueError, "byte_offset"),
    "items at address 0": ({"data": None}, ValueError, "not empty, and lies at address"),
    "dimensions without a shape": ({"shape": None, "ndim": 2}, ValueError, "without a shape"),
    "a negative number of dimensions": ({"ndim": -1}, ValueError, "a tensor of -1 dimensions"),
    "too many dimensions": (
        {"shape": (1,) * 65}, ValueError, "a tensor of 65 dimensions",
    ),
    "items of lanes": ({"dtype": (kit.FLOAT, 32, 4)}, BufferError, "of 4 lanes"),
    "items of no lanes": ({"dtype": (kit.FLOAT, 32, 0)}, BufferError, "of 0 lanes"),
    "an unknown data type": ({"dtype": (99, 32, 1)}, BufferError, "code 99 and 32 bits"),
    "an odd number of bits": ({"dtype": (kit.INT, 24, 1)}, BufferError, "code 0 and 24 bits"),
    "a float of 128 bits": ({"dtype": (kit.FLOAT, 128, 1)}, BufferError, "code 2 and 128 bits"),
    "packed int4": ({"dtype": (kit.INT, 4, 1)}, BufferError, "int4 is packed"),
    "memory of another maker": ({"device": (kit.ROCM, 0)}, BufferError, "device type 10"),
    "memory of an unknown kind": ({"device": (77, 0)}, BufferError, "device type 77"),
    "a newer major version": ({"version": (2, 0)}, BufferError, "a tensor of DLPack 2.0"),
    "a draft's version": ({"version": (0, 9)}, BufferError, "a tensor of DLPack 0.9"),
}  # fmt: skip


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_tensor(case: str, old: bool) -> None:
    how, error, says = WRONG[case]
    if old and "version" in how:
        pytest.skip("the older kind has no version")
    lender = host(**how, old=old)
    with pytest.raises(error, match=says):
        cu.from_dlpack(lender)
    # Taken, and given back; but a version that is not known leaves the tensor in its capsule.
    assert lender.given_back == (0 if "version" in how else 1)


@pytest.mark.parametrize("case", sorted(set(WRONG) - {"a negative length"}))
def test_a_wrong_end_of_a_copy(case: str) -> None:
    how, error, says = WRONG[case]
    there = cu.device_zeros((4, 6), "f4")
    with pytest.raises(error, match=says):
        cu.copy(there, host(**how))
    with pytest.raises(error, match=says):
        cu.copy(host(**how), there)
    there.close()


def test_device_memory_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"DLPack: 0x.* is not memory that the driver knows"):
        cu.from_dlpack(host(device=(kit.CUDA, 0)))
    array = cu.device_zeros(100, "u1")
    lender = kit.Lender(array.pointer, (101,), dtype=(kit.UINT, 8, 1))
    with pytest.raises(ValueError, match=r"DLPack: the array takes 101 bytes from .* ends at"):
        cu.from_dlpack(lender)
    assert lender.given_back == 1
    array.close()


@pytest.mark.parametrize("name", [b"dltensor_other", b"DLTENSOR", b"dlpack_exchange_api"])
def test_a_capsule_of_another_name(name: bytes) -> None:
    lender = host(name=name)
    with pytest.raises(ValueError, match=f"a capsule named '{name.decode()}', not 'dltensor'"):
        cu.from_dlpack(lender)
    assert lender.given_back == 0


class Odd:
    """An object whose two methods return or raise what a test wants."""

    def __init__(self, capsule: Any, device: Any = (kit.CPU, 0)) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **_: Any) -> Any:
        if isinstance(self.capsule, Exception):
            raise self.capsule
        return self.capsule

    def __dlpack_device__(self) -> Any:
        if isinstance(self.device, Exception):
            raise self.device
        return self.device


@pytest.mark.parametrize(
    ("capsule", "device", "error", "says"),
    [
        (None, (1, 0), TypeError, r"__dlpack__\(\) returned NoneType, which is not a capsule"),
        (KeyError("mine"), (1, 0), KeyError, "mine"),
        (TypeError("mine"), (1, 0), TypeError, "mine"),
        (None, None, TypeError, r"Odd.__dlpack_device__\(\) returned None, not a pair"),
        (None, (1,), TypeError, "not a pair of integers"),
        (None, ("cpu", 0), TypeError, "int"),
        (None, (1, "0"), TypeError, "int"),
        (None, (2**70, 0), OverflowError, "too large"),
        (None, ZeroDivisionError("mine"), ZeroDivisionError, "mine"),
    ],
)
def test_methods_that_go_wrong(capsule: Any, device: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        cu.from_dlpack(Odd(capsule, device))


@pytest.mark.parametrize("error", [BufferError, ValueError, RuntimeError])
def test_a_lender_that_refuses_is_not_asked_in_another_way(error: Any) -> None:
    """Without copy=False it might lend a copy. TypeError alone says that it knows less."""

    class Refusing(kit.Lender):
        def __dlpack__(self, **asked: Any) -> Any:
            if "copy" in asked:
                self.asked.append(asked)
                raise error("only a copy")
            return super().__dlpack__(**asked)

    model = np.arange(6, dtype="f4")
    lender = Refusing(model.ctypes.data, model.shape, device=(kit.CPU, 0), owner=model)
    with pytest.raises(error, match="only a copy"):
        cu.from_dlpack(lender, copy=False)
    assert len(lender.asked) == 1
    assert (cu.from_dlpack(lender) == model).all()


@pytest.mark.parametrize("thing", [None, 3, [1.0], "text", object(), np.float64(1)])
def test_what_lends_nothing(thing: Any) -> None:
    with pytest.raises(TypeError, match="has no __dlpack__, by which it would lend memory"):
        cu.from_dlpack(thing)


def test_a_type_is_no_array() -> None:
    with pytest.raises(TypeError):
        cu.from_dlpack(np.ndarray)
    with pytest.raises(TypeError):
        cu.from_dlpack(cu.DeviceArray)


def test_without_ml_dtypes() -> None:
    program = """
        import sys
        sys.path.insert(0, sys.argv[1])
        sys.modules["ml_dtypes"] = None
        import dlpackkit as kit, cudriver as cu
        import numpy as np
        memory = np.zeros(8, "u2")
        lender = kit.Lender(memory.ctypes.data, (8,), device=(1, 0), dtype=(4, 16, 1))
        try:
            cu.from_dlpack(lender)
        except ImportError as error:
            print(error)
        print(lender.given_back)
    """
    from native_build import TESTS
    from program import output

    assert output(program, str(TESTS)) == (
        "NumPy has no bfloat16 of its own: install ml_dtypes (pip install ml_dtypes)\n1\n"
    )


def test_an_import_of_numpy_alone_costs_no_ml_dtypes() -> None:
    program = """
        import sys, numpy as np, cudriver as cu
        cu.from_dlpack(np.zeros(3))
        try:
            cu.device_zeros(3, ">f4").__dlpack__()
        except BufferError:
            print("ml_dtypes" in sys.modules)
    """
    from program import output

    assert output(program) == "False\n"
