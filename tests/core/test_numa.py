"""NUMA nodes: memory and threads near the device.

`machine` is one with two nodes and a device on each. Its nodes are those of the system where that
has two (tests/numa makes one); else they are in files alone, and the kernel refuses node 1: then
memory lies where it lies, but the pool keeps nodes apart all the same.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_fork import in_child

from conftest import DRIVER
from program import output

SYSTEM = "sys/devices/system/node"
SIZE = 8 << 20
REAL = len(list(Path("/", SYSTEM).glob("node[0-9]*"))) > 1
OTHERS = pytest.mark.skipif(not REAL, reason="needs a machine with two NUMA nodes: make numa")


def make_root(root: Path, devices: list[Any], lists: list[str] | None = None) -> Path:
    """A folder for numa.ROOT: the system's nodes, if it has two; else `lists`, processors."""
    folder = root / SYSTEM
    folder.mkdir(parents=True)
    if lists is None and REAL:
        shutil.copy(Path("/", SYSTEM, "has_memory"), folder)
        lists = [
            (path / "cpulist").read_text() for path in sorted(Path("/", SYSTEM).glob("node[0-9]*"))
        ]
    processors = sorted(os.sched_getaffinity(0))
    lists = lists or [str(processors[0]), ",".join(map(str, processors[1:])) or "1000"]
    (folder / "has_memory").write_text(f"0-{len(lists) - 1}\n")
    for node, processors_of in enumerate(lists):
        (folder / f"node{node}").mkdir()
        (folder / f"node{node}" / "cpulist").write_text(processors_of)
    for place, device in enumerate(devices):
        path = root / "sys/bus/pci/devices" / device.pci_bus_id.lower()
        path.mkdir(parents=True)
        (path / "numa_node").write_text(f"{place % 2}\n")
    return root


@pytest.fixture
def machine(cu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SimpleNamespace]:
    from cudriver.memory import numa

    devices = list(cu.devices())
    monkeypatch.setattr(numa, "ROOT", str(make_root(tmp_path, devices)))
    cu.set_host_memory_policy(numa="device")
    yield SimpleNamespace(devices=devices, numa=numa, root=tmp_path)
    cu.set_host_memory_policy(numa=None)
    copy_some(cu)  # the threads may run anywhere again
    monkeypatch.setattr(numa, "_policy", "device")
    gc.collect()
    cu.trim_host_memory()


def copy_some(cu) -> None:
    array = np.ones(SIZE, np.uint8)
    there = cu.to_device(array)
    array[...] = 0
    cu.copy(array, there)
    assert array.all()


def lies(array: np.ndarray) -> set[int]:
    """The nodes of an array's memory, as the system tells: /proc/self/numa_maps. Memory of several
    mappings has a line for each."""
    begin = array.__array_interface__["data"][0]
    maps = [line.split() for line in Path("/proc/self/numa_maps").read_text().splitlines()]
    starts = [int(words[0], 16) for words in maps]
    first = max(place for place, start in enumerate(starts) if start <= begin)
    last = max(place for place, start in enumerate(starts) if start < begin + array.nbytes)
    words = [word for line in maps[first : last + 1] for word in line]
    return {int(word[1:].partition("=")[0]) for word in words if re.match(r"N\d+=", word)}


def policy(array: np.ndarray) -> str:
    begin = array.__array_interface__["data"][0]
    maps = [line.split() for line in Path("/proc/self/numa_maps").read_text().splitlines()]
    return [words for words in maps if int(words[0], 16) <= begin][-1][1]


def packing_threads() -> list[set[int]]:
    """The processors that each packing thread may run on."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == "cudriver-pack":
            found.append(os.sched_getaffinity(int(task.name)))
    return found


# ---- a machine with one node -------------------------------------------------------------------


@pytest.mark.skipif(REAL, reason="needs a machine with one node")
def test_nothing_changes_on_a_machine_with_one_node() -> None:
    said = output("""
        import cudriver as cu, numpy as np, os
        from cudriver import _core
        table = []
        set_nodes = _core._set_nodes
        _core._set_nodes = table.append
        before = os.sched_getaffinity(0)
        array = cu.pinned_zeros(8 << 20, np.uint8)
        cu.copy(np.ones(8 << 20, np.uint8), cu.to_device(array))
        cu.set_host_memory_policy(numa=0)
        again = cu.pinned_empty(8 << 20, np.uint8, numa=0)
        begin = array.__array_interface__["data"][0]
        lines = [line.split() for line in open("/proc/self/numa_maps")] if os.path.exists(
            "/proc/self/numa_maps") else [["0", "default"]]
        print(table, _core._node(), [w for w in lines if int(w[0], 16) <= begin][-1][1])
        stats = cu.host_memory_stats()
        print(stats.nodes == {0: stats.registered_bytes})
    """)
    assert said == "[] -1 default\nTrue\n"


@pytest.mark.skipif(REAL, reason="needs a machine with one node")
def test_memory_of_the_only_node_is_memory(cu) -> None:
    first = cu.pinned_empty(SIZE, np.uint8, numa=0)
    address = first.__array_interface__["data"][0]
    del first
    for numa in ("policy", "device", 0, None):
        assert cu.pinned_empty(SIZE, np.uint8, numa=numa).__array_interface__["data"][0] == address


@pytest.mark.skipif(REAL, reason="needs a machine with one node")
def test_a_kernel_without_nodes(cu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from cudriver.memory import numa

    monkeypatch.setattr(numa, "ROOT", str(tmp_path))
    assert numa.nodes() == ()
    numa.prepare()
    assert cu.pinned_zeros(10, numa=0).sum() == 0
    stats = cu.host_memory_stats()
    assert stats.nodes == {0: stats.registered_bytes + stats.pinned_bytes}


# ---- which node --------------------------------------------------------------------------------


def test_a_device_has_the_node_that_sysfs_names(cu, machine, two_devices) -> None:
    numa = machine.numa
    assert [numa.near(device) for device in two_devices] == [0, 1]
    for device, node in zip(two_devices, (0, 1), strict=True):
        with device.primary_context():
            assert numa._core._node() == node
            assert numa.node_of("device") == node


@pytest.mark.parametrize("text", ["-1\n", "", "7\n", "words\n"])
def test_where_sysfs_names_no_node_memory_lies_anywhere(cu, machine, text: str) -> None:
    device = machine.devices[0]
    path = machine.root / "sys/bus/pci/devices" / device.pci_bus_id.lower() / "numa_node"
    path.write_text(text)
    assert machine.numa.near(device) == -1
    path.unlink()
    assert machine.numa.near(device) == -1


def test_a_process_that_may_use_one_node(cu, monkeypatch, tmp_path: Path) -> None:
    """As under a cpuset of a container."""
    from cudriver.memory import numa

    root = make_root(tmp_path, list(cu.devices()), ["0", "1"])
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/status").write_text("Name:\tpython\nMems_allowed_list:\t1\n")
    monkeypatch.setattr(numa, "ROOT", str(root))
    assert numa.nodes() == (1,)
    with pytest.raises(ValueError, match=r"numa=0: there is no such NUMA node .* only one is 1"):
        cu.pinned_empty(10, numa=0)


@pytest.mark.parametrize(
    ("line", "numbers"),
    [("0\n", [0]), ("0-3,8\n", [0, 1, 2, 3, 8]), ("", []), ("\n", []), ("1,3-4", [1, 3, 4])],
)
def test_lists_of_the_system(cu, line: str, numbers: list[int]) -> None:
    from cudriver.memory import numa

    assert numa.listed(line) == numbers


# ---- bad input ---------------------------------------------------------------------------------

MAKERS = {
    "pinned_empty": lambda cu, numa: cu.pinned_empty(100, numa=numa),
    "pinned_zeros": lambda cu, numa: cu.pinned_zeros(100, numa=numa),
    "pinned_full": lambda cu, numa: cu.pinned_full(100, 1, numa=numa),
    "pinned_empty_like": lambda cu, numa: cu.pinned_empty_like(np.ones(3), numa=numa),
    "pinned_zeros_like": lambda cu, numa: cu.pinned_zeros_like(np.ones(3), numa=numa),
    "pinned_array": lambda cu, numa: cu.pinned_array([1, 2], numa=numa),
    "pinned_empty_async": lambda cu, numa: cu.pinned_empty_async(100, numa=numa).wait(),
    "SharedMemory": lambda cu, numa: cu.SharedMemory(
        "cu_test_numa_bad", create=True, size=100, numa=numa
    ),
    "anonymous": lambda cu, numa: cu.SharedMemory.anonymous(100, numa=numa),
    "policy": lambda cu, numa: cu.set_host_memory_policy(numa=numa),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_a_node_that_does_not_exist(cu, machine, maker: str) -> None:
    before = cu.host_memory_stats()
    for node in (-1, 9, 64, 1 << 70):
        with pytest.raises(ValueError, match=rf"numa={node}: there is no such NUMA node .* 0, 1$"):
            MAKERS[maker](cu, node)
    for wrong in ("near", "", True, 1.0, "0", b"device"):
        with pytest.raises((ValueError, TypeError), match=f"not {re.escape(repr(wrong))}$"):
            MAKERS[maker](cu, wrong)
    assert cu.host_memory_stats() == before
    assert not os.path.exists("/dev/shm/cu_test_numa_bad")


def test_the_policy_is_no_policy(cu, machine) -> None:
    with pytest.raises(ValueError, match="not 'policy'"):
        cu.set_host_memory_policy(numa="policy")


def test_an_existing_region_keeps_its_node(cu, machine) -> None:
    with cu.SharedMemory(create=True, size=100, numa=1) as memory:
        with pytest.raises(ValueError, match="an existing one lies where it lies"):
            cu.SharedMemory(memory.name, numa=0)
        memory.unlink()


def test_a_container_that_forbids_it(cu, machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node by number is refused; what is only a wish is not."""
    monkeypatch.setattr(machine.numa._core, "_place", lambda *arguments: errno.EPERM)
    with pytest.raises(PermissionError, match=r"numa=1: .*mbind: Operation not .*SYS_NICE"):
        cu.pinned_empty(100, numa=1)
    assert cu.pinned_zeros(100).sum() == cu.pinned_zeros(100, numa="device").sum() == 0


# ---- the pool ----------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [1000, SIZE])
def test_a_block_serves_its_node_alone(cu, machine, nbytes: int) -> None:
    places: list[Any] = [0, 1, None]
    addresses = []
    arrays = [cu.pinned_empty(nbytes, np.uint8, numa=numa) for numa in places]
    for numa, array in zip(places, arrays, strict=True):
        array[...] = 0 if numa is None else 1 + numa
        addresses.append(array.__array_interface__["data"][0])
    assert [int(array[-1]) for array in arrays] == [1, 2, 0]
    del array
    arrays.clear()
    for turn in (places, places[::-1]):
        again = {numa: cu.pinned_empty(nbytes, np.uint8, numa=numa) for numa in turn}
        found = [again[numa].__array_interface__["data"][0] for numa in places]
        assert found == addresses
        again.clear()


def test_the_policy_decides_what_is_not_said(cu, machine) -> None:
    def address(**numa: Any) -> int:
        return cu.pinned_empty(SIZE, np.uint8, **numa).__array_interface__["data"][0]

    places = {numa: cu.pinned_empty(SIZE, np.uint8, numa=numa) for numa in (0, 1, None)}
    there = {numa: array.__array_interface__["data"][0] for numa, array in places.items()}
    places.clear()
    with machine.devices[0].primary_context():
        assert address() == address(numa="policy") == address(numa="device") == there[0]
        for numa, where in there.items():
            cu.set_host_memory_policy(numa=numa)
            assert (address(), address(numa="device")) == (where, there[0])
    cu.set_host_memory_policy(numa="device")


def test_each_device_has_its_own(cu, machine, two_devices) -> None:
    addresses = []
    for device in (*two_devices, *two_devices):
        with device.primary_context():
            addresses.append(cu.pinned_empty(SIZE, np.uint8).__array_interface__["data"][0])
    assert addresses[:2] == addresses[2:]
    assert addresses[0] != addresses[1]


def test_memory_of_every_node_goes_back(cu, machine) -> None:
    cu.trim_host_memory()
    before = cu.host_memory_stats().registered_bytes
    for numa in (0, 1, None):
        cu.pinned_empty(SIZE, np.uint8, numa=numa)
        cu.pinned_empty(100, np.uint8, numa=numa)
    assert cu.trim_host_memory() > 3 * SIZE
    assert cu.host_memory_stats().registered_bytes == before


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("named", [True, False])
def test_a_forked_child_makes_shared_memory_without_the_driver(
    cu, machine, two_devices, named: bool
) -> None:
    name = f"cudriver-test-{uuid.uuid4().hex}"
    cu.memory_info()

    def make() -> None:
        if named:
            memory = cu.SharedMemory(name, create=True, size=4096, pin=False)
            memory.unlink()
        else:
            memory = cu.SharedMemory.anonymous(4096, pin=False)
        memory.array(4096, np.uint8)[:] = 1

    assert in_child(make) == ""


def test_statistics_count_each_byte_once(cu, machine) -> None:
    arrays = [cu.pinned_zeros(SIZE + 5000, np.uint8, numa=numa) for numa in (0, 1, None)]
    with cu.pin(np.ones(300_001, np.uint8)):
        stats = cu.host_memory_stats()
        assert sum(stats.nodes.values()) == stats.registered_bytes + stats.pinned_bytes
    assert set(stats.nodes) <= {0, 1}
    del arrays


def test_statistics_while_page_locking_begins(cu, sim, machine) -> None:
    """Of the memory nothing is page-locked yet: it has no page to ask for."""
    register = "cuMemHostRegister_v2"
    cu.pinned_empty(1)
    before, calls = cu.host_memory_stats(), sim.call_count(register)
    sim.hold_call(register, 1)
    pinning = cu.pinned_empty_async(SIZE, np.uint8)
    while sim.call_count(register) == calls:
        time.sleep(0.001)
    try:
        assert cu.host_memory_stats() == before
        other = cu.pinned_empty_async(10, np.uint8)
    finally:
        sim.clear_faults()
    pinning.wait()
    other.wait()
    stats = cu.host_memory_stats()
    assert sum(stats.nodes.values()) == stats.registered_bytes + stats.pinned_bytes


def test_statistics_where_the_system_does_not_tell(cu, machine, monkeypatch) -> None:
    def refused(pages: object) -> object:
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(machine.numa, "_nodes_of", refused)
    array = cu.pinned_zeros(SIZE, np.uint8)
    stats = cu.host_memory_stats()
    assert stats.nodes == {None: stats.registered_bytes + stats.pinned_bytes}
    del array


def test_numpy_s_own_arrays_follow_the_policy(cu, machine) -> None:
    with machine.devices[0].primary_context():
        mine = cu.pinned_empty(SIZE, np.uint8, numa=0)
        address = mine.__array_interface__["data"][0]
        del mine
        with cu.pinned_numpy(min_bytes=SIZE):
            assert np.empty(SIZE, np.uint8).__array_interface__["data"][0] == address


# ---- the threads -------------------------------------------------------------------------------


def test_threads_run_on_the_node_of_the_device(cu, machine, two_devices) -> None:
    allowed = os.sched_getaffinity(0)
    nodes = []
    for node in (0, 1):
        processors = machine.numa.listed(
            (machine.root / SYSTEM / f"node{node}/cpulist").read_text()
        )
        nodes.append(allowed & set(processors) or allowed)
    for device, processors in zip((*two_devices, *two_devices), (*nodes, *nodes), strict=True):
        with device.primary_context(), cu.Stream() as stream:
            array = np.ones(4 * SIZE, np.uint8)
            there = cu.device_zeros(array.shape, np.uint8)
            for _ in range(3):
                cu.copy_async(there, array, stream).wait()
            assert (there.to_numpy() == 1).all()
        assert packing_threads()
        assert any(threads == processors for threads in packing_threads())
    assert os.sched_getaffinity(0) == allowed  # the caller's own thread stays


def test_two_devices_at_once(cu, machine, two_devices) -> None:
    work = []
    for place, device in enumerate(two_devices):
        with device.primary_context():
            array = np.full(4 * SIZE, 1 + place, np.uint8)
            there = cu.device_zeros(array.shape, np.uint8)
            work.append((device, cu.Stream(), array, there))
    for _ in range(4):
        transfers = []
        for device, stream, array, there in work:
            with device.primary_context():
                transfers.append(cu.copy_async(there, array, stream))
        for transfer in transfers:
            transfer.wait()
    for place, (_, _, _, there) in enumerate(work):
        assert (there.to_numpy() == 1 + place).all()


# ---- the command ------------------------------------------------------------------------------


def test_the_bench_measures_each_node(cu, machine, capsys: pytest.CaptureFixture[str]) -> None:
    from cudriver import cli

    assert cli.main(["bench", "--numa", "--rounds", "2"]) == 0
    said = capsys.readouterr().out
    rows = [line.split() for line in said.splitlines() if re.match(r"  +\d", line)]
    assert [row[0] for row in rows] == ["0", "1"]
    assert [row[3:] for row in rows] == [["nearest"], []]
    assert ("simulated" in said) == (DRIVER == "sim")
    assert "never run on a machine with two sockets" in said
    assert cli.main(["bench", "--numa", "--rounds", "1", "--json"]) == 0
    nodes = json.loads(capsys.readouterr().out)["nodes"]
    assert [node["verified"] for node in nodes] == [True, True]
    assert [node["to_device"] is None for node in nodes] == [DRIVER == "sim"] * 2


@pytest.mark.skipif(REAL, reason="needs a machine with one node")
def test_the_bench_of_one_node(cu, capsys: pytest.CaptureFixture[str]) -> None:
    from cudriver import cli

    assert cli.main(["bench", "--numa", "--rounds", "1"]) == 0
    assert "one NUMA node: there is nothing to choose" in capsys.readouterr().out
    assert cli.main(["bench", "--numa", "--size", "1M", "--rounds", "1"]) == 0
    assert "1 MiB" in capsys.readouterr().out
    assert cli.main(["bench", "--numa", "--sizes", "1M"]) == 2


# ---- what the kernel says ----------------------------------------------------------------------


@OTHERS
@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("nbytes", [1000, SIZE, 100 << 20])
def test_memory_lies_on_its_node(cu, machine, node: int, nbytes: int) -> None:
    arrays = [
        cu.pinned_zeros(nbytes, np.uint8, numa=node),
        cu.pinned_full(nbytes, 1, np.uint8, numa=node),
        cu.pinned_array(np.ones(nbytes, np.uint8), numa=node),
    ]
    with cu.pinned_empty_async(nbytes, np.uint8, numa=node) as pinning:
        pinning.wait()
        for array in (*arrays, pinning.array):
            array[...] = 3
            assert (lies(array), policy(array)) == ({node}, f"prefer:{node}")


@OTHERS
@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("pin", [True, False])
def test_shared_memory_lies_on_its_node(cu, machine, node: int, pin: bool) -> None:
    """Whoever touches it."""
    with cu.SharedMemory(create=True, size=SIZE, pin=pin, numa=node) as memory:
        said = output(
            """
            import sys, numpy as np, cudriver as cu
            sys.path.insert(0, sys.argv[2])
            with cu.SharedMemory(sys.argv[1], pin=False) as memory:
                array = memory.array(memory.size, np.uint8)
                array[...] = 1
                from core.test_numa import lies
                print(lies(array))
                del array
            """,
            memory.name,
            str(Path(__file__).parents[1]),
        )
        memory.unlink()
        assert said == f"{{{node}}}\n"
    with cu.SharedMemory.anonymous(SIZE, pin=pin, numa=node) as memory:
        array = memory.array(SIZE, np.uint8)
        array[...] = 1
        assert lies(array) == {node}
        del array


@OTHERS
@pytest.mark.parametrize("node", [0, 1])
def test_statistics_say_where(cu, machine, node: int) -> None:
    cu.trim_host_memory()
    before = cu.host_memory_stats().nodes.get(node, 0)
    array = cu.pinned_zeros(SIZE, np.uint8, numa=node)
    assert cu.host_memory_stats().nodes[node] - before == SIZE
    del array


@OTHERS
def test_the_blocks_of_copies_lie_near_the_device(cu, machine, two_devices) -> None:
    cu.trim_host_memory()
    for node, device in enumerate(two_devices):
        before = cu.host_memory_stats().nodes.get(node, 0)
        with device.primary_context():
            copy_some(cu)
        assert cu.host_memory_stats().nodes[node] > before


@OTHERS
def test_a_full_node_gives_way(cu, machine) -> None:
    """Preferred, not bound: more than a node has comes, from both."""
    text = Path("/", SYSTEM, "node1/meminfo").read_text()
    total = int(re.search(r"MemTotal:\s+(\d+) kB", text)[1]) << 10
    array = cu.pinned_full(total + (64 << 20), 1, np.uint8, numa=1)
    assert lies(array) == {0, 1}
    del array
    cu.trim_host_memory()


@pytest.mark.skipif(DRIVER == "real", reason="needs the simulated driver's devices")
def test_the_first_use_asks_sysfs(cu, machine) -> None:
    """A process finds the nodes by itself, at its first call of the driver."""
    said = output(
        """
        import sys
        from cudriver.memory import numa
        numa.ROOT = sys.argv[1]
        import cudriver as cu
        cu.init()
        for device in cu.devices():
            with device.primary_context():
                print(numa._core._node())
        """,
        str(machine.root),
    )
    assert said.split() == ["0", "1"]
