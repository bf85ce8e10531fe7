"""The rungs: what each is called, what it teaches, which ways it goes, which clock times it."""

from __future__ import annotations

from dataclasses import dataclass

#: Where the rates of `Rung.recorded` were measured: docs/course/02-memory.md has all of them.
RECORDED = "an NVIDIA H200 on 22 November 2026 (PCIe 5 x16, arrays of 256 MiB or more)"

#: By the second column of the table: the way back.
BACK = frozenset({"from_device", "write"})

COPIES = ("to_device", "from_device")
KERNELS = ("read", "write")


@dataclass(frozen=True)
class Rung:
    """One rung of the ladder.

    Attributes:
        name: the key in JSON.
        title: in the table; at most 22 characters.
        short: in plots and as a column's head; at most 8 characters a word.
        teaches: what the rung shows, in a sentence.
        directions: the ways that are measured, the way to the device (or the read) first.
        clock: "host" (the caller's clock around calls that wait) or "events" (the device's).
        sized: whether the size of the arrays matters to it.
        recorded: GB/s to the device, or read, of the run that RECORDED names.
    """

    name: str
    title: str
    short: str
    teaches: str
    directions: tuple[str, ...]
    clock: str
    sized: bool = True
    recorded: float | None = None


RUNGS = (
    Rung(
        "pageable",
        "pageable, driver alone",
        "pageable",
        "An ordinary array. The GPU cannot reach memory that the system may move, so one thread "
        "of the driver copies it through a small page-locked buffer.",
        COPIES,
        "host",
        recorded=8.82,
    ),
    Rung(
        "staged",
        "pageable, cu.copy",
        "staged",
        "The same array. Several threads fill page-locked slots while the bus empties others: "
        "most of the bus's rate, with nothing asked of the caller.",
        COPIES,
        "host",
        recorded=46.1,
    ),
    Rung(
        "page_locked",
        "page-locked",
        "locked",
        "Memory that stays where it is. The GPU's copy engine fetches it by itself: this is the "
        "bus's own rate, and what the others are compared with.",
        COPIES,
        "host",
        recorded=55.4,
    ),
    Rung(
        "mapped",
        "page-locked, mapped",
        "mapped",
        "No copy at all: a kernel reads and writes the host's memory over the bus. Good for what "
        "is touched once; every second touch crosses the bus again.",
        KERNELS,
        "events",
        recorded=51.3,
    ),
    Rung(
        "peer",
        "peer",
        "peer",
        "From one GPU's memory to another's: by NVLink or over the bus, without the host where "
        "the two can reach each other.",
        ("copy",),
        "events",
    ),
    Rung(
        "device",
        "device to device",
        "device",
        "Within one GPU's memory. Bytes copied are counted; each is read and written, so the "
        "memory moves twice as much.",
        ("copy",),
        "events",
        recorded=2067,
    ),
    Rung(
        "global",
        "global, in a kernel",
        "global",
        "The same memory, read or written by all threads of a kernel, neighbours beside "
        "neighbours: what a kernel can have that touches everything once.",
        KERNELS,
        "events",
        recorded=4310,
    ),
    Rung(
        "shared",
        "shared, in a kernel",
        "shared",
        "On the chip, one piece per multiprocessor; the rate is the sum over all of them. What is "
        "used again belongs here: it crosses nothing.",
        KERNELS,
        "events",
        sized=False,
        recorded=33014,
    ),
)

BY_NAME = {rung.name: rung for rung in RUNGS}
