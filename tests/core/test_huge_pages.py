"""New memory where the system is slow to make huge pages. The C library's madvise() imitates it."""

from __future__ import annotations

from pathlib import Path

import pytest

import native_build
from conftest import DRIVER
from program import output

MIB = 1 << 20

pytestmark = [
    *native_build.marks,
    pytest.mark.skipif(DRIVER == "real", reason="imitates touching, which the driver relies on"),
]

# Touching takes no time at all, or in huge pages as long as it is told. Nothing is touched.
MADVISE = r"""
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile uintptr_t low, high; /* in huge pages */

int madvise(void *address, size_t bytes, int advice)
{
    uintptr_t begin = (uintptr_t)address;

    if (advice == MADV_HUGEPAGE) {
        low = begin;
        high = begin + bytes;
    } else if (advice == MADV_NOHUGEPAGE && begin >= low && begin < high) {
        high = begin;
    } else if (advice == 23 /* MADV_POPULATE_WRITE */) {
        if (begin >= low && begin < high) {
            usleep((useconds_t)atoi(getenv("TOUCH_US")));
        }
        return 0;
    }
    return (int)syscall(SYS_madvise, address, bytes, advice);
}
"""

PROGRAM = """
    import os, sys
    os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:int(sys.argv[1])])
    import numpy as np
    import cudriver as cu
    make = {"empty": cu.pinned_empty, "later": lambda n, t: cu.pinned_empty_async(n, t),
            "pieces": lambda n, t: cu.pinned_empty(n, t, pieces=True)}[sys.argv[2]]
    made = make(160 << 20, "u1")
    if sys.argv[2] == "later":
        made.wait()
    print(cu.host_memory_stats().huge_given_up_bytes)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("madvise")
    (folder / "madvise.c").write_text(MADVISE)
    return native_build.shared(folder / "madvise.so", [folder / "madvise.c"])


def given_up(library: Path, touch: int, kind: str, processors: int = 1, wish: str = "1") -> int:
    said = output(PROGRAM, str(processors), kind, LD_PRELOAD=str(library), TOUCH_US=str(touch),
                  CUDRIVER_HUGEPAGES=wish)  # fmt: skip
    return int(said)


@pytest.mark.parametrize("kind", ["empty", "later", "pieces"])
def test_they_are_given_up_after_64_mib_below_a_gigabyte_a_second(library, kind: str) -> None:
    """8 MiB in 20 ms, in the one thread that there is for one processor."""
    assert given_up(library, 20_000, kind) == 96 * MIB


@pytest.mark.parametrize("kind", ["empty", "later", "pieces"])
def test_they_stay_where_touching_is_fast(library, kind: str) -> None:
    assert given_up(library, 0, kind) == 0


def test_several_threads_are_judged_together(library) -> None:
    assert given_up(library, 200_000, "pieces", processors=64) > 0


@pytest.mark.parametrize("wish", ["0", "1"])
def test_ordinary_pages_cannot_be_given_up(library, wish: str) -> None:
    assert (given_up(library, 20_000, "empty", wish=wish) > 0) == (wish == "1")
