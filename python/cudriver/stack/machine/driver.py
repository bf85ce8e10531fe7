"""The driver as files show it: the kernel's half, libcuda as the loader finds it, device nodes.

libcuda is never loaded here. What the driver itself says is asked by probe.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from cudriver.stack.facts import Evidence
from cudriver.stack.loader.search import Loader
from cudriver.stack.machine_facts import Device, DeviceNode, Driver
from cudriver.stack.record import but, put
from cudriver.stack.roots.asked import Asked
from cudriver.stack.roots.rootfs import Root
from cudriver.stack.tables import driver_cuda, table

PROC_VERSION = "/proc/driver/nvidia/version"
SYS_VERSION = "/sys/module/nvidia/version"
NODE = re.compile(r"nvidia(?:ctl|-uvm|[0-9]+)")  # in /dev, of those that a CUDA program opens
WSL_LIBRARY = "/usr/lib/wsl/lib/libcuda.so.1"

RELEASE = r"\d{3}\.\d+(?:\.\d+)?"
_IN_NAME = r"\.so\.(\d{3}\.\d+(?:\.\d+)?)\Z"


def assumed(release: str | None, gpus: Sequence[str] | None) -> Driver:
    """A driver that is stated, not found. Raises ValueError for nonsense."""
    driver = Driver(assumed=True)
    if release is not None:
        if not re.fullmatch(r"\d{3,4}(\.\d+){0,2}", release, re.ASCII):
            raise ValueError(f"{release!r} is not a driver release; one looks like 535.104.05")
        branch = release.partition(".")[0]
        if not 300 <= int(branch) < 2000:
            raise ValueError(f"NVIDIA has no driver branch {branch}; one looks like 580")
        put(driver, release=release, kernel_release=release, paired_release=release)
        stated = Evidence("--assume-driver", None, release)
        put(driver, cuda=driver_cuda(release), release_evidence=stated, kernel_evidence=stated)
    for index, text in enumerate(gpus or ()):
        driver.devices.append(Device(index, compute_capability=capability(text), assumed=True))
    return driver


def capability(text: str) -> str:
    """ "9.0" from "9.0", "90" or "sm_90". Raises ValueError, also for one that no GPU has."""
    match = re.fullmatch(r"(?:sm_)?(\d{1,2})\.?(\d)[af]?", text.strip(), re.ASCII)
    if match is None:
        raise ValueError(f"{text!r} is not a compute capability; one looks like 9.0")
    wanted = f"{int(match[1])}.{match[2]}"
    known = [row["capability"] for row in table("driver")["architectures"]]
    if wanted not in known:
        wrong = f"no GPU that is known here has compute capability {wanted}"
        raise ValueError(f"{wrong}; known are {', '.join(known)}")
    return wanted


def worth_asking(asked: Asked) -> bool:
    """Whether there is a sign of a driver. A child for nothing would cost its start."""
    if not asked.root.host:
        return False
    if any(map(os.path.exists, table("driver")["signs"])):
        return True
    folders = [f for f in asked.variables.get("LD_LIBRARY_PATH", "").split(":") if f]
    return any(os.path.exists(f"{f}/libnvidia-ml.so.1") for f in folders)


def describe(asked: Asked, loader: Loader) -> Driver:
    """What files say. What the driver says is added by `probe.complete`."""
    root, driver = asked.root, Driver()
    _kernel(root, driver)
    _surroundings(asked, driver)
    found = loader.search("libcuda.so.1")
    if found.path is None and not root.host:
        found.rule = "default"
        found.path = next(filter(root.exists, table("driver")["usual"]), None)
    if found.path is not None:
        path = root.resolve(found.path)
        put(driver, path=path, kind=_kind(path, found.path), found_by=found.rule)
        put(driver, copies=[s.path for s in found.shadowed])
        put(driver, release_evidence=Evidence(found.path, None, os.path.basename(path)))
        # From the file's name; on WSL and Tegra that says nothing.
        if match := re.search(_IN_NAME, path):
            put(driver, release=match[1], cuda=driver_cuda(match[1]))
    _paired(root, driver)
    names = filter(NODE.fullmatch, root.names("/dev"))
    put(driver, nodes=[_node(name, root.host) for name in names])
    if driver.kernel_release is None:
        put(driver, pci_devices=_pci(root))
    return driver


def _kernel(root: Root, driver: Driver) -> None:
    text = root.text(PROC_VERSION, 4096)
    if text:
        match = re.search(r"Kernel Module\b.*?\s(\d{3}\.\d+(?:\.\d+)?)", text)
        if match:
            evidence = Evidence(PROC_VERSION, 1, text.splitlines()[0].strip())
            put(driver, kernel_release=match[1], kernel_evidence=evidence)
            put(driver, kernel_open="Open Kernel Module" in text)
            return
    text = root.text(SYS_VERSION, 256)
    if text and re.match(RELEASE, text.strip()):
        release = text.strip()
        put(driver, kernel_release=release, kernel_evidence=Evidence(SYS_VERSION, 1, release))


def _surroundings(asked: Asked, driver: Driver) -> None:
    root = asked.root
    kernel = root.text("/proc/sys/kernel/osrelease", 256) or ""
    put(driver, wsl="microsoft" in kernel.lower() or root.exists("/dev/dxg"))
    if root.exists(WSL_LIBRARY):
        put(driver, wsl_library=WSL_LIBRARY, wsl=driver.wsl or not kernel)
    groups = root.text("/proc/1/cgroup", 65536) or ""
    for mark, kind in table("driver")["container_marks"].items():
        there = root.exists(mark) if mark.startswith("/") else mark in groups
        put(driver, container=driver.container or (kind if there else None))
    inside = asked.variables.get("KUBERNETES_SERVICE_HOST")
    if inside or root.exists("/var/run/secrets/kubernetes.io"):
        put(driver, container="kubernetes")


def _kind(path: str, named: str) -> str:
    known = table("driver")["kinds"].items()
    kinds = (kind for text in (named, path) for how, kind in known if re.search(how, text))
    return next(kinds, "native")


def _paired(root: Root, driver: Driver) -> None:
    """The release of the libcuda that belongs to the kernel driver, where another one is used."""
    if driver.kind == "native":
        put(driver, paired_release=driver.release)
        return
    for path in (*driver.copies, *table("driver")["usual"]):
        match = re.search(_IN_NAME, root.resolve(path)) if root.exists(path) else None
        if match and _kind(root.resolve(path), path) == "native":
            put(driver, paired_release=match[1])
            return


def _node(name: str, here: bool) -> DeviceNode:
    """/dev/nvidiaN is not opened: without persistence that wakes the GPU, which takes seconds."""
    node = DeviceNode(f"/dev/{name}")
    try:
        if here and name in ("nvidiactl", "nvidia-uvm"):
            os.close(os.open(node.path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
        elif here and not os.access(node.path, os.R_OK | os.W_OK):
            put(node, errno=13)
    except OSError as error:
        put(node, errno=error.errno or 5)
    return node


def _pci(root: Root) -> list[str]:
    """Display and 3D controllers of vendor 0x10de, but for those lent to a virtual machine."""
    found = []
    for name in root.names("/sys/bus/pci/devices"):
        folder = f"/sys/bus/pci/devices/{name}"
        vendor, kind = (root.text(f"{folder}/{file}", 16) or "" for file in ("vendor", "class"))
        lent = (root.readlink(f"{folder}/driver") or "").endswith("/vfio-pci")
        if vendor.strip() == "0x10de" and kind.startswith("0x03") and not lent:
            found.append(name)
    return found


def complete(driver: Driver, assumed: Driver | None) -> None:
    """Why it is of no use, and the GPUs that are assumed: the last of it."""
    put(driver, error=trouble(driver))
    if assumed is not None and assumed.devices:
        put(driver, devices=assumed.devices)


def take_over(driver: Driver, asked: Driver) -> None:
    """What the same driver has answered before, under other variables."""
    put(driver, devices=[but(device) for device in asked.devices], cuda=driver.cuda or asked.cuda)
    for name in ("init_code", "nvml_error", "probe_error", "error"):
        put(driver, **{name: getattr(driver, name) or getattr(asked, name)})


def trouble(driver: Driver) -> str | None:
    """What is wrong with it, in words."""
    if driver.assumed:
        return None
    if driver.path is None:
        return "libcuda.so.1 is not found"
    if driver.kind == "stub":
        return f"{driver.path} is a stub library"
    if driver.init_code:
        return f"cuInit returns {driver.init_code}"
    if driver.nvml_error and not driver.devices:
        return f"NVML: {driver.nvml_error}"
    return driver.probe_error
