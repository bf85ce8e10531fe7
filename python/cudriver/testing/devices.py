"""The marker `cuda`: what the driver shows, asked once in a child process.

A child, because cuInit in this process would break tests that fork.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys

import pytest

from cudriver.stack.machine.child import ourselves

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

TIME_LIMIT = 120.0  # seconds; the first cuInit on a machine with many GPUs takes long
MIB, GIB = 1 << 20, 1 << 30
UNITS = {"": 1, "k": 1 << 10, "m": MIB, "g": GIB, "t": 1 << 40}


def require(item: pytest.Item) -> None:
    """Skip the test unless the driver shows what its markers ask for."""
    wishes = [_wish(item, marker.args, marker.kwargs) for marker in item.iter_markers("cuda")]
    memories, reason = shown()
    for devices, memory in wishes:
        large = [size for size in memories if size >= memory]
        if len(large) < devices:
            pytest.skip(f"needs {_needed(devices, memory)}; {reason}")


def _wish(
    item: pytest.Item, args: tuple[object, ...], kwargs: Mapping[str, Any]
) -> tuple[int, int]:
    """The marker's (devices, memory), memory in bytes."""
    usage = f"{item.nodeid}: @pytest.mark.cuda"
    unknown = sorted(set(kwargs) - {"devices", "memory"})
    if args or unknown:
        what = f"argument {args[0]!r}" if args else f"keyword {unknown[0]!r}"
        pytest.fail(f"{usage} takes devices= and memory= only, not {what}", pytrace=False)
    devices, memory = kwargs.get("devices", 1), kwargs.get("memory")
    if type(devices) is not int or devices < 1:
        pytest.fail(f"{usage}: devices is a number from 1 on, not {devices!r}", pytrace=False)
    return devices, 0 if memory is None else _bytes(memory, usage)


def _bytes(memory: object, usage: str) -> int:
    if type(memory) is int and memory >= 0:
        return memory
    text = memory.lower() if isinstance(memory, str) else ""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text)
    if match is None:
        pytest.fail(f"{usage}: memory is bytes, or text as '16 GiB', not {memory!r}", pytrace=False)
    return int(float(match[1]) * UNITS[match[2]])


def _needed(devices: int, memory: int) -> str:
    text = "a CUDA device" if devices == 1 else f"{devices} CUDA devices"
    return text + (f" with {_size(memory)} of memory" if memory else "")


def _size(count: int) -> str:
    number, unit = (count / GIB, "GiB") if count >= GIB else (count / MIB, "MiB")
    return f"{number:,.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"


@functools.cache
def shown() -> tuple[list[int], str]:
    """The memory of each device that the driver shows, and that in words."""
    try:
        done = subprocess.run(
            ourselves("devices", "--json"),
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
            check=False,
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return [], f"the driver gave no answer within {TIME_LIMIT:g} s"
    except (OSError, ValueError) as error:
        return [], f"`{sys.executable} -m cudriver devices --json` gave no answer: {error}"
    if answer.get("error"):
        return [], answer["error"]
    memories = [device["total_memory"] for device in answer["devices"]]
    sizes = ", ".join(map(_size, memories)) or "none"
    return memories, f"{answer['driver']['path']} shows {len(memories)} ({sizes})"
