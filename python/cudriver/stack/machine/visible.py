"""CUDA_VISIBLE_DEVICES, as the driver reads it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cudriver.stack.machine_facts import Device
from cudriver.stack.record import Record, fresh, put

VARIABLE = "CUDA_VISIBLE_DEVICES"


class Selection(Record):
    """What a value selects. `stopped_at` is the entry that ends the list, and why."""

    ordinals: list[int] = fresh(list)  # of the machine's devices, in the program's order
    stopped_at: str | None = None
    reason: str | None = None
    unread: list[str] = fresh(list)  # entries after that one
    meant: list[int] = fresh(list)  # the valid entries up to there, without repetition


def select(value: str, devices: Sequence[Device]) -> Selection:
    """Entries count up to the first that is invalid: the driver drops it and all after it.

    An entry is an index, a UUID or the beginning of one (GPU-..., MIG-...); the first one's kind is
    the list's. An empty value, and one that starts with an invalid entry such as -1 or "none",
    selects nothing, and so does one that names a device twice. (torch.cuda, which reads the
    variable without the driver, has the same rules.)
    """
    chosen = Selection()
    entries = value.split(",")
    if not value.strip():
        return chosen
    kind = _kind(entries[0].strip())
    for position, text in enumerate(entries):
        entry = text.strip()
        ordinal, reason = _find(entry, devices)
        if reason is None and _kind(entry) != kind:
            reason = f"is not {kind}, as the first entry is"
        twice = reason is None and ordinal in chosen.ordinals and kind != "a MIG UUID"
        twice = twice or (kind == "a MIG UUID" and entry in map(str.strip, entries[:position]))
        if reason is None and twice:
            chosen.meant, chosen.ordinals = chosen.ordinals, []
            reason = "names a device twice, which hides all"
        if reason is not None:
            chosen.stopped_at, chosen.reason = entry, reason
            chosen.unread = [] if twice else [e.strip() for e in entries[position + 1 :]]
            break
        if ordinal is not None and ordinal not in chosen.ordinals:
            chosen.ordinals.append(ordinal)
    chosen.meant = chosen.meant or chosen.ordinals
    return chosen


def _kind(entry: str) -> str:
    return {"GPU-": "a UUID", "MIG-": "a MIG UUID"}.get(entry[:4], "an index")


def _find(entry: str, devices: Sequence[Device]) -> tuple[int | None, str | None]:
    """The index of the device that an entry names, or why it names none."""
    number = re.match(r"[+-]?\d+", entry)
    if number:
        # The driver reads as strtol does: what follows the digits is left alone, and -0 is 0.
        index = int(number[0]) if len(number[0]) < 9 else 1 << 30
        if index < 0:
            return None, "is negative"
        if any(d.index == index for d in devices):
            return index, None
        return None, "is not the index of a device"
    if entry.startswith("GPU-"):
        hits = [d for d in devices if (d.uuid or "").startswith(entry)]
    elif entry.startswith("MIG-"):
        named = [d for d in devices if d.mig and entry.startswith(f"MIG-{d.uuid}/")]
        fitting = (d for d in devices if any(i.startswith(entry) for i in d.instances))
        hits = [*named, *fitting][:1]
    else:
        return None, "is neither an index nor a UUID" if entry else "is empty"
    if len(hits) == 1:
        return hits[0].index, None
    return None, "fits no device's UUID" if not hits else "fits more than one device's UUID"


def hides_all(value: str) -> bool:
    """Whether a value shows no GPU of any machine: it is empty, or begins with what is none."""
    first, every = value.split(",")[0].strip(), [Device(number) for number in range(256)]
    return _kind(first) == "an index" and not select(first, every).ordinals


def mark(devices: Sequence[Device], value: str | None) -> None:
    """Sets `visible` of each device. The variable is this machine's: it hides no assumed device."""
    devices = [device for device in devices if not device.assumed]
    if value is None:
        return
    chosen = select(value, devices)
    for device in devices:
        put(device, visible=device.index in chosen.ordinals)
