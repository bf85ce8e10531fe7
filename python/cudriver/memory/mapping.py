"""Mappings of this process: new memory, or a file's; in huge pages, on a node, as it is asked."""

from __future__ import annotations

import contextlib
import mmap
from typing import TYPE_CHECKING

import numpy as np

from cudriver import _core
from cudriver.memory.numa import ANY

if TYPE_CHECKING:
    from numpy.typing import NDArray

HUGE_PAGE = 2 << 20


def mapped(
    nbytes: int, file: int = -1, node: int = ANY, read_only: bool = False
) -> NDArray[np.uint8]:
    """Map a file, or new memory: zero, untouched, on a border of huge pages, which the core asks
    for when it page-locks it. The last array over it unmaps it. OSError where the system refuses.

    node : the NUMA node, as the core has it, that the memory is to come from; a file keeps that,
        whoever touches it.
    """
    if file < 0:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = np.frombuffer(mmap.mmap(-1, nbytes + HUGE_PAGE, flags=flags), np.uint8)
        skip = -memory.__array_interface__["data"][0] % HUGE_PAGE
        memory = memory[skip : skip + nbytes]
    else:
        access = mmap.PROT_READ | (0 if read_only else mmap.PROT_WRITE)
        mapping = mmap.mmap(file, nbytes, prot=access)
        with contextlib.suppress(AttributeError, OSError):  # a kernel without huge pages
            mapping.madvise(mmap.MADV_HUGEPAGE)
        memory = np.frombuffer(mapping, np.uint8)
    _core._place(memory.__array_interface__["data"][0], nbytes, node)
    return memory
