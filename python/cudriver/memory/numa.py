"""NUMA nodes: which of the machine's memories and processors are near a device. Linux."""

from __future__ import annotations

import array
import operator
import os
import platform
import sys
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, SupportsIndex

from cudriver import _core
from cudriver.errors import CudaError
from cudriver.memory.live import page_locked
from cudriver.memory.room import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cudriver.memory.devices import Device
    from cudriver.typing import NumaLike

ROOT = ""  # where the system's files are; tests name a folder

ANY, POLICY = -1, -2  # as the core has them
MOST, DEVICES, PROCESSORS = 64, 64, 1024  # nodes, devices and processors in the core's table
PAGES = 512  # of a piece of memory, to ask where they lie
ORDINARY_PAGE = 4096
MOVE_PAGES = 239 if platform.machine() == "aarch64" else 279  # the system call's number

_policy: NumaLike = "device"
_prepared = False


def prefer(numa: Literal["device"] | SupportsIndex | None) -> None:
    """Take new memory from a node: that of the current context's device, one by number, or any."""
    global _policy
    node = ANY if numa == "device" else node_of(numa)
    if node == POLICY:
        raise ValueError("numa is 'device', the number of a node or None, not 'policy'")
    _policy = numa
    if numa != "device":
        _tell([node] * DEVICES)
    elif _prepared:
        prepare()


def prepare() -> None:
    """For the core, when the driver has been initialised."""
    global _prepared
    _prepared = True
    if _policy == "device" and len(nodes()) > 1:
        from cudriver.memory.devices import devices

        found = [ANY] * DEVICES
        try:
            for device in devices():
                if 0 <= device._handle < DEVICES:
                    found[device._handle] = near(device)
        except CudaError:
            return  # whoever uses the device will be told
        _tell(found)


def _tell(of_device: list[int]) -> None:
    """Give the core its table: the node of each device, then the processors of each node."""
    if len(nodes()) < 2:
        return
    allowed = os.sched_getaffinity(0)
    sets = [allowed]
    for node in range(MOST):
        # no file: no such node
        processors = allowed & set(
            listed(text(f"{ROOT}/sys/devices/system/node/node{node}/cpulist"))
        )
        sets.append(processors or allowed)
    _core._set_nodes(array.array("b", of_device).tobytes() + b"".join(map(_bits, sets)))


def _bits(processors: Iterable[int]) -> bytes:
    number = sum(1 << processor for processor in processors if processor < PROCESSORS)
    words = (number >> 64 * word & (1 << 64) - 1 for word in range(PROCESSORS // 64))
    return b"".join(word.to_bytes(8, sys.byteorder) for word in words)


def listed(line: str) -> list[int]:
    """The numbers of a list such as "0-3,8"."""
    found: list[int] = []
    for part in line.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found += range(int(first), int(last or first) + 1)
    return found


def nodes() -> tuple[int, ...]:
    """The nodes with memory that this process may use; none where the system knows no nodes."""
    return _nodes(ROOT)


@lru_cache(maxsize=4)
def _nodes(root: str) -> tuple[int, ...]:
    there = [
        node for node in listed(text(f"{root}/sys/devices/system/node/has_memory")) if node < MOST
    ]
    if len(there) > 1:
        allowed = {*_allowed(root)}
        there = [node for node in there if node in allowed]
    return tuple(there)


def _allowed(root: str) -> list[int]:
    for line in text(f"{root}/proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name == "Mems_allowed_list":
            return listed(value)
    return list(range(MOST))


def near(device: Device) -> int:
    """The node nearest a device, or ANY if the system does not tell, or this process may not."""
    path = f"{ROOT}/sys/bus/pci/devices/{device.pci_bus_id.lower()}/numa_node"
    number = text(path).strip()
    return int(number) if number.isdigit() and int(number) in nodes() else ANY


def node_of(numa: NumaLike) -> int:
    """The core's number for an argument; ValueError and PermissionError before anything is done."""
    if numa is None:
        return ANY
    if isinstance(numa, str):
        if numa == "policy":
            return POLICY
        if numa != "device":
            raise ValueError(f"numa is 'device', the number of a node or None, not {numa!r}")
        from cudriver.memory.devices import Device

        return near(Device("cuda"))
    try:
        node = operator.index(numa)
        if isinstance(numa, bool):
            raise TypeError
    except TypeError:
        raise TypeError(f"numa is 'device', the number of a node or None, not {numa!r}") from None
    there = nodes() or (0,)
    if node not in there:
        names = ", ".join(map(str, there))
        raise ValueError(
            f"numa={node}: there is no such NUMA node that this process may use; "
            f"{'these are' if len(there) > 1 else 'the only one is'} {names}"
        )
    if len(there) < 2:
        return ANY
    refused = _core._place(0, 0, node)
    if refused:
        raise OSError(
            refused,
            f"numa={node}: the system does not let this process choose a node (mbind: "
            f"{os.strerror(refused)}; in a container, --cap-add SYS_NICE lets it)",
        )
    return node


def now(node: int) -> int:
    """The node of memory that is placed now: the policy's for POLICY. Initialises no driver."""
    if node == POLICY:
        node = _core._node()
    if node == POLICY:  # no context is current, and devices differ
        from cudriver.memory.devices import Device

        node = near(Device(0))
    return node


def lie(total: int) -> dict[int | None, int]:
    """How much page-locked memory lies on which node; `total`: bytes, where there is one node.

    None: what the system does not tell. Of each piece of memory, some pages are asked for.
    """
    if len(nodes()) < 2:
        return {next(iter(nodes()), 0): total}
    found: Counter[int | None] = Counter()
    for begin, nbytes in page_locked():
        if nbytes == 0:  # page-locking begins or ends
            continue
        pages = range(begin - begin % ORDINARY_PAGE, begin + nbytes, _step(nbytes))
        try:
            told = _nodes_of(pages)
        except OSError:  # a container's rules
            found[None] += nbytes
            continue
        counts = Counter(node if node >= 0 else None for node in told)
        shares = {node: nbytes * count // len(pages) for node, count in counts.items()}
        shares[next(iter(shares))] += nbytes - sum(shares.values())  # what rounding left
        found.update(shares)
    return dict(sorted(found.items(), key=lambda item: (item[0] is None, item[0] or 0)))


def _nodes_of(pages: Sequence[int]) -> list[int]:
    """The node of each page, or a negative errno. OSError: the system does not tell."""
    import ctypes

    addresses, told = (ctypes.c_size_t * len(pages))(*pages), (ctypes.c_int * len(pages))()
    count, libc = ctypes.c_size_t(len(pages)), ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(MOVE_PAGES), 0, count, addresses, None, told, 0):
        raise OSError(ctypes.get_errno(), "move_pages")
    return list(told)


def _step(nbytes: int) -> int:
    return max(ORDINARY_PAGE, -(-nbytes // PAGES) // ORDINARY_PAGE * ORDINARY_PAGE)
