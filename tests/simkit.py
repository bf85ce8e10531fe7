"""The simulated driver by itself: builds it, and calls it by ctypes, without the extension."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import Any

from native_build import CEXT, TESTS

PROGRAMS = TESTS / "sim"


def environment(**knobs: object) -> dict[str, str]:
    """The environment without the suite's own knobs, and with `knobs`: LATENCY_US=5."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("CUDRIVER_SIM_")}
    return kept | {f"CUDRIVER_SIM_{name}": str(value) for name, value in knobs.items()}


def listed(path: str, macro: str) -> dict[str, str]:
    """The functions of one of the lists in cext/, with their parameters (absent.h has none)."""
    text = (CEXT / path).read_text().split(f"#define {macro}(X)", 1)[1]
    text = text.replace("\\\n", " ").split("\n", 1)[0]
    return dict(re.findall(r"X\((cu\w+), (?:\(([^)]*)\), )?\d+\)", text))


def used() -> dict[str, str]:
    """Those that cudriver itself calls."""
    called, asked = (listed("driver/cuda_abi.h", f"CUDRIVER_{n}") for n in ("CALLED", "ASKED"))
    return called | asked


def functions() -> dict[str, str]:
    """Those that work, with their parameters; not the variants for per-thread default streams."""
    return used() | listed("sim/functions.h", "SIM_OTHERS")


def function_names() -> list[str]:
    return list(functions())


def per_thread() -> dict[str, str]:
    return listed("sim/functions.h", "SIM_PER_THREAD")


def absent() -> list[str]:
    """Those that only say that the simulator lacks them."""
    return list(listed("sim/others/absent.h", "SIM_ABSENT"))


def parameter_count(function: str) -> int:
    parameters = functions()[function]
    return 0 if parameters == "void" else parameters.count(",") + 1


class Driver:
    """The library's functions by name; results as numbers. Integers are passed as 64-bit words."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self.library.cudriver_sim_live.restype = ctypes.c_longlong
        self.library.cudriver_sim_call_count.restype = ctypes.c_longlong

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.library, name)

        def call(*arguments: object) -> int:
            return int(function(*[self._word(a) for a in arguments]))

        return call

    @staticmethod
    def _word(value: object) -> object:
        if isinstance(value, int):
            return ctypes.c_uint64(value & (1 << 64) - 1)
        return value.encode() if isinstance(value, str) else value

    def live(self, what: str) -> int:
        return int(self.library.cudriver_sim_live(what.encode()))

    def make(self, function: str, *arguments: object) -> int:
        """Calls a function whose first parameter receives a handle or an address; gives that."""
        value = ctypes.c_uint64(0)
        result = getattr(self, function)(ctypes.byref(value), *arguments)
        assert result == 0, f"{function} answered {result}"
        return value.value

    def context(self, flags: int = 0, device: int = 0) -> int:
        assert self.cuInit(0) == 0
        return self.make("cuCtxCreate_v2", flags, device)

    def host(self, data: bytes) -> int:
        """Page-locked memory with `data` in it."""
        address = self.make("cuMemHostAlloc", len(data), 0)
        ctypes.memmove(address, data, len(data))
        return address

    def read(self, address: int, size: int) -> bytes:
        """Device memory, by a blocking copy."""
        buffer = ctypes.create_string_buffer(size)
        result = self.cuMemcpyDtoH_v2(buffer, address, size)
        assert result == 0, f"cuMemcpyDtoH answered {result}"
        return buffer.raw

    def pool(self, device: int = 0, max_size: int = 0) -> int:
        properties = (ctypes.c_uint64 * 11)()
        properties[0] = 1  # pinned; no handles
        properties[1] = 1 | device << 32  # a device's
        properties[3] = max_size
        return self.make("cuMemPoolCreate", properties)
