"""The facts about a machine: driver, GPUs, toolkits, compilers. See facts.py."""

from __future__ import annotations

from cudriver.stack.evidence import Evidence
from cudriver.stack.record import Record, fresh


class Device(Record, frozen=True):
    """A GPU. `visible` is False where CUDA_VISIBLE_DEVICES hides it."""

    index: int
    name: str | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    compute_capability: str | None = None  # "9.0"
    memory: int | None = None  # bytes
    mig: bool = False
    visible: bool = True
    assumed: bool = False
    instances: list[str] = fresh(list)  # UUIDs of its MIG instances

    @property
    def evidence(self) -> Evidence:
        """The GPU by its number, and what it is."""
        name = self.name or ("assumed" if self.assumed else "unknown")
        known = self.compute_capability
        name += f", compute capability {known}" if known else ""
        return Evidence(f"GPU {self.index}", None, name)


class DeviceNode(Record, frozen=True):
    """A /dev entry of the driver, and whether this user can open it (errno, 0: yes)."""

    path: str
    errno: int = 0


class Driver(Record, frozen=True):
    """Both halves of the driver: the kernel module, and libcuda as the loader finds it."""

    release: str | None = None  # the user-mode driver's, from libcuda's file name or NVML
    kernel_release: str | None = None
    cuda: str | None = None  # newest CUDA that the user-mode driver in use offers, "13.0"
    path: str | None = None  # libcuda.so.1 as resolved, links followed
    found_by: str | None = None  # the loader's rule for it
    error: str | None = None  # why there is no usable driver, in one line
    devices: list[Device] = fresh(list)
    kind: str = "native"  # "native", "compat", "stub", "wsl", "tegra", "simulated"
    paired_release: str | None = None  # of the libcuda that came with the kernel driver
    release_evidence: Evidence | None = None
    kernel_evidence: Evidence | None = None
    kernel_open: bool = False  # the open kernel modules
    nodes: list[DeviceNode] = fresh(list)
    pci_devices: list[str] = fresh(list)  # NVIDIA display devices under /sys/bus/pci
    copies: list[str] = fresh(list)  # other libcuda.so.1 files
    container: str | None = None  # "docker", "podman", "kubernetes", ...
    wsl: bool = False
    wsl_library: str | None = None  # /usr/lib/wsl/lib/libcuda.so.1 where it exists
    nvml_error: str | None = None
    init_code: int | None = None  # what cuInit returned; None: not asked
    probe_error: str | None = None  # the child hung, crashed or said nothing
    assumed: bool = False


class Toolkit(Record, frozen=True):
    """A CUDA toolkit, or the part of one that is there."""

    origin: str  # "system", "environment"
    kind: str  # "directory", "conda", "wheels"
    version: str | None  # "13.0.2", "13.0" where no more is known
    path: str
    evidence: Evidence | None = None
    nvcc: str | None = None
    nvcc_version: str | None = None
    headers: str | None = None  # the folder with cuda.h
    host_compiler_limit: int | None = None  # newest GCC major that host_config.h takes
    host_compiler_evidence: Evidence | None = None
    clang_limit: int | None = None
    chosen_by: list[str] = fresh(list)  # "CUDA_HOME", "CUDA_PATH", "PATH", "/usr/local/cuda", ...

    @property
    def compiles(self) -> str | None:
        """The release of its compiler, as far as that is known."""
        return self.nvcc_version or self.version


class HostCompiler(Record, frozen=True):
    """The C++ compiler that nvcc would run."""

    path: str
    version: str | None
    kind: str = "gcc"  # "gcc", "clang"
    chosen_by: str = "PATH"  # "NVCC_CCBIN", "CC", "PATH"


class NvccChoice(Record, frozen=True):
    """How torch.utils.cpp_extension would look for CUDA: CUDA_HOME, CUDA_PATH, nvcc, default."""

    home: str | None = None
    chosen_by: str | None = None
    nvcc: str | None = None  # where the nvcc of that home should be
    exists: bool = False
    version: str | None = None
    evidence: Evidence | None = None


class Lacking(Record, frozen=True):
    """A tool that packages compile with when they start, and that is not there."""

    tool: str  # of data/compiling.json
    by: list[str]
    looked: list[str]  # the folders
    elsewhere: str | None = None  # a folder that has it, in which nobody looks
