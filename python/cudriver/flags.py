"""Flags of contexts, with the driver's values."""

from __future__ import annotations

import enum

__all__ = ["ContextFlags"]


class ContextFlags(enum.IntFlag):
    """How a context waits for the device and treats memory (``CUctx_flags`` of ``cuda.h``)."""

    SCHED_AUTO = 0x00
    SCHED_SPIN = 0x01
    SCHED_YIELD = 0x02
    SCHED_BLOCKING_SYNC = 0x04
    MAP_HOST = 0x08
    LMEM_RESIZE_TO_MAX = 0x10
    COREDUMP_ENABLE = 0x20
    USER_COREDUMP_ENABLE = 0x40
    SYNC_MEMOPS = 0x80
