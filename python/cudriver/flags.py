"""Flags of contexts, with the driver's values."""

from __future__ import annotations

import enum

__all__ = ["ContextFlags"]


class ContextFlags(enum.IntFlag):
    """How a context waits for the device and treats memory.

    Attributes
    ----------
    SCHED_AUTO
        Spin if there are at least as many CPUs as active contexts, else yield.
    SCHED_SPIN
        Spin while waiting: the fastest answer, a whole CPU.
    SCHED_YIELD
        Let other threads run while waiting.
    SCHED_BLOCKING_SYNC
        Sleep while waiting: the least CPU time, a later answer.
    MAP_HOST
        Allow mapped page-locked memory; the driver always does.
    LMEM_RESIZE_TO_MAX
        Keep local memory after a kernel that needed much of it.
    COREDUMP_ENABLE, USER_COREDUMP_ENABLE
        Write a core dump when the context fails, or when asked.
    SYNC_MEMOPS
        Make every synchronous memory operation really wait.

    Notes
    -----
    The values are those of ``CUctx_flags`` in ``cuda.h``.

    Examples
    --------
    >>> context = cu.Context(flags=cu.ContextFlags.SCHED_BLOCKING_SYNC)
    >>> cu.ContextFlags.SCHED_BLOCKING_SYNC in cu.ContextFlags(context.flags)
    True
    """

    SCHED_AUTO = 0x00
    SCHED_SPIN = 0x01
    SCHED_YIELD = 0x02
    SCHED_BLOCKING_SYNC = 0x04
    MAP_HOST = 0x08
    LMEM_RESIZE_TO_MAX = 0x10
    COREDUMP_ENABLE = 0x20
    USER_COREDUMP_ENABLE = 0x40
    SYNC_MEMOPS = 0x80
