"""Limits of memory and of threads that a container sets, as cgroups of either version."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import DRIVER, SANITIZER
from cudriver.memory.loading import processors
from cudriver.memory.room import host_room, left

MIB, NONE = 1 << 20, 0x7FFFFFFFFFFFF000  # what version 1 says where there is no limit
MACHINE = 8000 * MIB

# ---- the system's files, made up ----


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def system(root: Path, cgroup: str, mounts: str) -> None:
    """The files below /proc; `mounts`: a line "TOP POINT TYPE OPTIONS" each."""
    put(root / "proc/meminfo", f"MemTotal: 1 kB\nMemAvailable:   {MACHINE >> 10} kB\n")
    put(root / "proc/self/cgroup", cgroup)
    lines = [
        f"{i} 1 0:{i} {top} {point} rw,relatime shared:{i} - {kind} cgroup {options}\n"
        for i, (top, point, kind, options) in enumerate(map(str.split, mounts.splitlines()))
    ]
    # Lines of a length that is not foreseen, and such as are not cgroups.
    other = f"90 1 0:90 / /{'x' * 9000} rw - overlay overlay lowerdir={'/y' * 9000},memory\n"
    other += "91 1 0:91 / / rw - ext4 /dev/sda rw\n"
    put(root / "proc/self/mountinfo", other + "".join(lines))


def group_v1(folder: Path, limit: int, used: int, cached: int = 0) -> None:
    stat = f"cache 1\nactive_file 2\ninactive_file 3\nhierarchical_memory_limit {limit}\n"
    stat += f"hierarchical_memsw_limit {NONE}\ntotal_cache {cached}\n"
    stat += f"total_inactive_file {cached - cached // 4}\ntotal_active_file {cached // 4}\n"
    put(folder / "memory.stat", stat)
    put(folder / "memory.usage_in_bytes", f"{used}\n")


def group_v2(folder: Path, limit: int | None, used: int, cached: int = 0) -> None:
    put(folder / "memory.max", "max\n" if limit is None else f"{limit}\n")
    put(folder / "memory.current", f"{used}\n")
    stat = f"anon 5\nfile 7\ninactive_file {cached // 2}\nactive_file {cached // 4}\n"
    put(folder / "memory.stat", stat + f"slab_reclaimable {cached - cached // 2 - cached // 4}\n")


#: What the system's files below /sys/fs/cgroup say, and the processors that they allow.
QUOTAS = {
    "of version 2": ({"cpu.max": "150000 100000\n"}, 2),
    "of less than one": ({"cpu.max": "20000 100000\n"}, 1),
    "of version 2, none": ({"cpu.max": "max 100000\n"}, 0),
    "of version 1": ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
    "of version 1, none": ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "1\n"}, 0),
    "without a file": ({}, 0),
}


@pytest.mark.parametrize("quota", QUOTAS)
def test_a_quota_of_processors(tmp_path: Path, quota: str) -> None:
    files, allowed = QUOTAS[quota]
    for name, text in files.items():
        put(tmp_path / "sys/fs/cgroup" / name, text)
    assert processors(str(tmp_path)) == allowed


V1 = "/ /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu\n/ /sys/fs/cgroup/memory cgroup rw,memory"
V2 = "/ /sys/fs/cgroup cgroup2 rw,nsdelegate"


def test_version_1(tmp_path: Path) -> None:
    system(tmp_path, "9:cpu,cpuacct:/other\n8:memory:/a/b\n0::/a/b\n", V1)
    assert left(str(tmp_path)) == MACHINE, "without a group's files"
    folder = tmp_path / "sys/fs/cgroup/memory"
    group_v1(folder, NONE, 3 * MACHINE)
    group_v1(folder / "a", NONE, 2 * MACHINE)
    group_v1(folder / "a/b", NONE, MACHINE)
    assert left(str(tmp_path)) == MACHINE, "without a limit"
    group_v1(folder / "a/b", 1000 * MIB, 400 * MIB, cached=100 * MIB)
    assert left(str(tmp_path)) == 700 * MIB, "what is cached can be dropped"
    group_v1(folder / "a", 2000 * MIB, 1500 * MIB)
    assert left(str(tmp_path)) == 500 * MIB, "the parent's other groups use more"
    group_v1(folder / "a", 2000 * MIB, 2001 * MIB)
    assert left(str(tmp_path)) == 0
    system(tmp_path, "9:cpu,cpuacct:/a/b\n8:memory:/\n0::/a/b\n", V1)
    assert left(str(tmp_path)) == MACHINE, "another group"


def test_version_2(tmp_path: Path) -> None:
    system(tmp_path, "0::/a/b\n", V2)
    folder = tmp_path / "sys/fs/cgroup"
    group_v2(folder / "a", None, 5000 * MIB)
    group_v2(folder / "a/b", None, 5000 * MIB)
    assert left(str(tmp_path)) == MACHINE, "without a limit"
    group_v2(folder / "a/b", 1000 * MIB, 400 * MIB, cached=100 * MIB)
    assert left(str(tmp_path)) == 700 * MIB, "what is cached can be dropped"
    group_v2(folder / "a", 5300 * MIB, 5000 * MIB)
    assert left(str(tmp_path)) == 300 * MIB, "the parent has less"
    group_v2(folder, 200 * MIB, 0)
    assert left(str(tmp_path)) == 200 * MIB, "a namespace's root has a limit"


def test_a_group_is_found_behind_many_long_ones(tmp_path: Path) -> None:
    others = "".join(f"{i}:other{i}:/{'x' * 600}\n" for i in range(13, 1, -1))
    system(tmp_path, f"{others}1:memory:/a\n0::/b\n", V1 + "\n" + V2)
    folder = tmp_path / "sys/fs/cgroup"
    group_v1(folder / "memory/a", 900 * MIB, 100 * MIB)
    assert left(str(tmp_path)) == 800 * MIB
    group_v2(folder / "b", 800 * MIB, 100 * MIB)
    assert left(str(tmp_path)) == 700 * MIB


def test_an_unknown_system_leaves_everything(tmp_path: Path) -> None:
    assert left(str(tmp_path)) >= sys.maxsize
    system(tmp_path, "rubbish\n::\n4\n\n", V1 + "\n" + V2)
    assert left(str(tmp_path)) == MACHINE


def test_the_room_is_what_the_machine_has_at_most() -> None:
    assert 0 < host_room() < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


# ---- groups of the system's own ----

WAYS = {  # from a controller: the mount of either version, the limit's file
    "memory": ("memory.limit_in_bytes", "memory.max"),
    "pids": ("pids.max", "pids.max"),
}


def make_group(controller: str, name: str) -> Path:
    """A new group below this process's; skips where none may be made."""
    own = dict[str, str]()
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)
    old = Path("/sys/fs/cgroup") / controller
    base = old if old.is_dir() else Path("/sys/fs/cgroup")
    folder = base / own.get(controller, own.get("", "/")).lstrip("/") / name
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    limit = WAYS[controller][not old.is_dir()]
    if not (folder / limit).exists():
        folder.rmdir()
        pytest.skip(f"this process's cgroup hands {controller} on to no other")
    return folder


class Group:
    def __init__(self, controller: str, limit: int) -> None:
        self.folder = make_group(controller, f"cudriver-test-{os.getpid()}")
        for name in WAYS[controller]:
            if (self.folder / name).exists():
                (self.folder / name).write_text(str(limit))

    def run(
        self, source: str, *arguments: str, child: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program in the group, or in one of its children."""
        folder = self.folder / "child" if child else self.folder
        folder.mkdir(exist_ok=True)
        enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        program = [sys.executable, "-c", textwrap.dedent(source), str(self.folder), *arguments]
        return subprocess.run(
            ["sh", "-c", enter, str(folder), *program],
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def remove(self) -> None:
        for folder in (self.folder / "child", self.folder):
            if folder.exists():
                folder.rmdir()


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    made = Group(*request.param)
    yield made
    made.remove()


FILL = """
    import numpy as np

    import cudriver as cu

    try:
        cu.pinned_empty(300 << 20, "u1")
    except cu.OutOfMemoryError as error:
        assert "314572800 bytes" in str(error) and "cgroups leave" in str(error), error
    kept = []
    for size in (100 << 20, 5 << 20, 1 << 20):
        try:
            while len(kept) < 1000:
                kept.append(cu.pinned_empty(size, "u1"))
        except cu.OutOfMemoryError:
            print(size, "refused")
    # The copies' own slots cannot be had any more.
    plain = np.arange(2 << 20, dtype="u1").reshape(2, -1)
    assert (cu.to_device(plain.T).to_numpy() == plain.T).all()
    kept.clear()
    cu.trim_host_memory()
    cu.pinned_empty(100 << 20, "u1")
    print("the end")
"""


@pytest.mark.skipif(
    DRIVER == "real" or bool(SANITIZER), reason="what it needs of its own is more than the limit"
)
@pytest.mark.parametrize("child", [False, True], ids=["group", "parent"])
@pytest.mark.parametrize("group", [("memory", 256 << 20)], ids=["256 MiB"], indirect=True)
def test_a_group_without_memory_gets_an_error(group: Group, child: bool) -> None:
    """An exception each time; the system's answer would be to kill the process."""
    done = group.run(FILL, child=child)
    expected = "104857600 refused\n5242880 refused\n1048576 refused\nthe end\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


COPY = """
    import os, sys
    import numpy as np

    import cudriver as cu

    source = np.random.default_rng(0).integers(0, 255, 16 << 20, np.uint8)
    views = source, source.reshape(4096, 4096).T, source[::3]
    stream = cu.Stream()
    if sys.argv[2] == "late":  # when the driver has all the threads that it wants
        cu.device_zeros(1000)
        cu.to_device(np.zeros(1000), stream=stream)
        threads = len(os.listdir("/proc/self/task"))
    else:
        threads = 1
    with open(sys.argv[1] + "/pids.max", "w") as file:
        file.write(str(threads))
    try:
        for view in views:
            assert (cu.to_device(view).to_numpy() == view).all()
            there, back = cu.to_device(view, stream=stream), np.zeros_like(view)
            cu.copy_async(back, there, stream).wait()
            assert (back == view).all()
    except cu.CudaError as error:
        print(error.name)
    else:
        assert len(os.listdir("/proc/self/task")) == threads
        print("right")
"""


@pytest.mark.skipif(bool(SANITIZER), reason="a sanitizer starts threads of its own")
@pytest.mark.skipif(DRIVER == "real", reason="how many threads a real driver starts is not ours")
@pytest.mark.parametrize("group", [("pids", 100)], ids=["pids"], indirect=True)
@pytest.mark.parametrize(
    ("when", "end"), [("late", "right"), ("early", "CUDA_ERROR_OPERATING_SYSTEM")]
)
def test_a_group_without_threads(group: Group, when: str, end: str) -> None:
    """Copies do without threads for packing; the simulated driver's streams do not."""
    done = group.run(COPY, when)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{end}\n", "")
