"""Another library that makes contexts in this process."""

from __future__ import annotations

import ctypes
from typing import Any

from conftest import DRIVER

#: Contexts in a loop: on a GPU one takes 0.2 s.
FEW = 20 if DRIVER == "sim" else 3


class Driver:
    """Another library of this process, on the same libcuda."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)

    def call(self, name: str, *arguments: Any) -> int:
        return getattr(self.library, name)(*arguments)

    def current(self) -> int | None:
        handle = ctypes.c_void_p()
        assert self.call("cuCtxGetCurrent", ctypes.byref(handle)) == 0
        return handle.value

    def create(self, device: int = 0) -> int:
        """A context on top of this thread's stack."""
        handle = ctypes.c_void_p()
        assert self.call("cuCtxCreate_v2", ctypes.byref(handle), 0, device) == 0
        assert handle.value
        return handle.value

    def pop(self) -> int | None:
        handle = ctypes.c_void_p()
        assert self.call("cuCtxPopCurrent_v2", ctypes.byref(handle)) == 0
        return handle.value

    def push(self, handle: int) -> None:
        assert self.call("cuCtxPushCurrent_v2", ctypes.c_void_p(handle)) == 0

    def destroy(self, handle: int) -> None:
        assert self.call("cuCtxDestroy_v2", ctypes.c_void_p(handle)) == 0

    def primary_state(self, device: int) -> tuple[int, bool]:
        flags, active = ctypes.c_uint(), ctypes.c_int()
        code = self.call(
            "cuDevicePrimaryCtxGetState", device, ctypes.byref(flags), ctypes.byref(active)
        )
        assert code == 0
        return flags.value, bool(active.value)
