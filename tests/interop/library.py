"""What the tests ask of a library that shares arrays with us. libraries.py has how each does it.

A library's `lacks` says, word by word, what it has no way to do, and why. What a machine does not
have (a package, a GPU) is found out by `open`, and is a skip.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

import cudriver as cu


class NotHere(Exception):
    """What this machine does not have."""


def shares_our_driver() -> bool:
    """Whether libcuda.so.1, which libraries open, is the driver that is in use here."""
    try:
        theirs, ours = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(cu.driver_path())
    except OSError:
        return False
    places = [ctypes.cast(driver.cuInit, ctypes.c_void_p).value for driver in (theirs, ours)]
    return places[0] == places[1]


def delay(handle: int, seconds: float = 0.1) -> None:
    """Queues a sleep on a stream: what follows it there happens later, for all who do not wait."""
    driver, sleep = ctypes.CDLL(cu.driver_path()), ctypes.CDLL(None).usleep
    microseconds = ctypes.c_void_p(int(seconds * 1e6))
    function = ctypes.cast(sleep, ctypes.c_void_p)
    with cu.Device(0).primary_context():
        assert driver.cuLaunchHostFunc(ctypes.c_void_p(handle), function, microseconds) == 0


class Library:
    """One column of the table. Arrays are float32; `stream` is one of its streams, or None."""

    name = ""
    modules: tuple[str, ...] = ()
    lacks: dict[str, str] = {}  # noqa: RUF012 (read only)

    def __repr__(self) -> str:
        return self.name

    def installed(self) -> bool:
        """Whether it is there, as far as can be told without importing it."""
        return all(importlib.util.find_spec(name.partition(".")[0]) for name in self.modules)

    def open(self) -> None:
        """Imports it. Raises NotHere."""
        for name in self.modules:
            try:
                module = importlib.import_module(name)
            except Exception as error:
                first = str(error).partition("\n")[0]
                raise NotHere(f"{name} cannot be imported: {first}") from error
            setattr(self, name.rpartition(".")[2], module)

    def open_device(self) -> None:
        """Raises NotHere where it sees no device, or another driver's."""
        if not shares_our_driver():
            raise NotHere(f"{self.name} does not open the driver that is in use here")

    # ---- arrays ------------------------------------------------------------------------------

    def host_array(self, model: np.ndarray) -> Any:
        raise NotImplementedError

    def device_array(self, model: np.ndarray, stream: Any = None) -> Any:
        raise NotImplementedError

    def pointer(self, array: Any) -> int:
        raise NotImplementedError

    def numpy(self, array: Any, stream: Any = None) -> np.ndarray:
        """What an array holds. Of a device array: in the order of `stream`, or, without one, when
        all of the library's work is done."""
        raise NotImplementedError

    def take(self, lender: Any, stream: Any = None) -> Any:
        """A device array over another library's, by DLPack, for use on `stream`."""
        raise NotImplementedError

    def take_interface(self, lender: Any) -> Any:
        """The same by `__cuda_array_interface__`."""
        raise NotImplementedError

    def fill(self, array: Any, value: float, stream: Any = None) -> None:
        """Queues work that makes each item `value`."""
        raise NotImplementedError

    def increase(self, lender: Any) -> None:
        """Runs a kernel that adds one to each item of a DeviceArray, and waits for it."""
        raise NotImplementedError

    def used(self) -> int | None:
        """Bytes that its allocator has given out on the device, where it tells."""
        return None

    def pending(self, model: np.ndarray, value: float, stream: Any) -> Any:
        """A device array like `model` whose items will be `value`: the work for it is queued on
        `stream`, behind a delay."""
        array = self.device_array(model, stream)
        delay(self.handle(stream))
        self.fill(array, value, stream)
        return array

    def device_object(self) -> Any:
        """Its own name of device 0."""
        raise NotImplementedError

    # ---- streams -----------------------------------------------------------------------------

    def stream(self) -> Any:
        raise NotImplementedError

    def handle(self, stream: Any) -> int:
        raise NotImplementedError

    def wrap(self, stream: cu.Stream) -> Any:
        """A stream of its own over one of ours."""
        raise NotImplementedError

    def on(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """Its current stream, where it has such."""
        return contextlib.nullcontext()

    def record(self, stream: Any) -> Any:
        """An event after the work on a stream."""
        raise NotImplementedError

    def capture(self, work: Callable[[Any], object]) -> Callable[[], None]:
        """What launches, and waits for, the graph of what `work(stream)` queues."""
        raise NotImplementedError
