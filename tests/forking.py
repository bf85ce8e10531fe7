"""Forks of this process that AddressSanitizer survives."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

#: Its runtime in gcc 12 takes none of its own locks at fork(); LLVM's does from version 18 on.
ASAN = os.environ.get("CUDRIVER_TEST_SANITIZER") == "asan"


def other_threads() -> dict[str, list[str]]:
    """Of every thread but this one: its state, and how often it has been switched."""
    seen = {}
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) == threading.get_native_id():
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            lines = (task / "status").read_text().splitlines()
            seen[task.name] = [line for line in lines if line.startswith("State") or "ctxt" in line]
    return seen


def let_threads_rest() -> None:
    """Under AddressSanitizer, waits until every other thread sleeps; otherwise does nothing.

    A thread that starts, ends or allocates may hold the lock of the sanitizer's allocator. Forked
    then, the child waits for it for ever at its next malloc(), whoever calls that. While all
    threads sleep, nobody holds it.
    """
    if not ASAN:
        return
    before: dict[str, list[str]] = {}
    deadline = time.monotonic() + 100
    while True:
        now = other_threads()
        # Alike twice: at a moment in between, all of them slept. While copies are in flight one
        # packing thread looks at the words of their streams now and then; it allocates nothing.
        woken = [name for name, lines in now.items() if lines != before.get(name)]
        asleep = all("sleeping" in lines[0] for lines in now.values())
        if asleep and now.keys() == before.keys() and len(woken) <= 1:
            return
        assert time.monotonic() < deadline, f"threads that do not come to rest: {now}"
        before = now
        time.sleep(0.001)
