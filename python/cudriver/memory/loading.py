"""What the core asks when it is loaded: environment variables, processors, huge pages."""

from __future__ import annotations

import atexit
import mmap
import os
import re
import sys
import warnings
from typing import Any

from cudriver.memory.room import text

_VARIABLE = "CUDRIVER_COPY_THREADS"


def asked(most: int) -> int | None:
    """What CUDRIVER_COPY_THREADS says: 0 if nothing, None if no number from 1 to `most`."""
    value = os.environ.get(_VARIABLE, "")
    if not value:
        return 0
    number = int(value) if re.fullmatch(r"\s*\+?[0-9]{1,9}", value) else 0
    return number if 1 <= number <= most else None


def set_threads(core: Any) -> None:
    """Sets how many copy threads there are. RuntimeWarning: the variable is not a number."""
    usual, most = core._copy_threads()
    number = asked(most)
    if number is None:
        value, threads = ascii(os.environ[_VARIABLE])[:60], "threads" if usual > 1 else "thread"
        warnings.warn(
            f"{_VARIABLE}={value} is not a number from 1 to {most} and is ignored: copies of "
            f"pageable memory use at most {usual} {threads} here",
            RuntimeWarning,
            stacklevel=1,
        )
    core._set_copy_threads(number or 0)


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "0") not in ("", "0")


def processors(root: str = "") -> int:
    """How many processors the cgroup's quota of time is worth; 0: no limit. `root`: for tests."""
    words = text(f"{root}/sys/fs/cgroup/cpu.max").split()
    if not words:  # version 1
        quota, period = (f"{root}/sys/fs/cgroup/cpu/cpu.cfs_{n}_us" for n in ("quota", "period"))
        words = [text(quota).strip(), text(period).strip()]
    if len(words) < 2 or not all(word.isdigit() and int(word) for word in words[:2]):
        return 0
    return max(int(int(words[0]) / int(words[1]) + 0.5), 1)


def usable() -> int:
    """How many processors this process may use, by affinity and cgroup."""
    try:
        count = len(os.sched_getaffinity(0))
    except OSError:
        count = os.cpu_count() or 1
    return min(count, processors() or count)


def huge_pages() -> int:
    """What to tell the system of new memory: mmap.MADV_HUGEPAGE, MADV_NOHUGEPAGE, or 0: nothing."""
    wish = os.environ.get("CUDRIVER_HUGEPAGES", "")
    if wish in ("0", "1"):
        return mmap.MADV_HUGEPAGE if wish == "1" else mmap.MADV_NOHUGEPAGE
    modes = text("/sys/kernel/mm/transparent_hugepage/enabled")
    return mmap.MADV_HUGEPAGE if "[madvise]" in modes else 0


def begin(core: Any) -> tuple[int, int, bool, bool]:
    """How many processors there are; the advice on huge pages; whether to leave pageable memory to
    devices that read the host's pages; whether to report at the exit.
    """
    # Without the GIL, CPython 3.13 lacks what the core's lock is made of. It switches the GIL on,
    # unless its user forbids that.
    if sys.version_info < (3, 14) and not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ImportError(
            "cudriver._core needs the GIL before CPython 3.14, and PYTHON_GIL=0 or -X gil=0 forces "
            "it off. Without them, importing it switches the GIL on"
        )
    atexit.register(core._shutdown)
    reporting = _is_set("CUDRIVER_REPORT_LEAKS")
    coherent = os.environ.get("CUDRIVER_COHERENT") != "0"
    core._trace(reporting or _is_set("CUDRIVER_TRACE"))
    return usable(), huge_pages(), coherent, reporting
