"""CU1: the driver."""

from __future__ import annotations

from collections.abc import Iterator

from cudriver.stack.model import ERROR, NOTE, WARNING, Driver, Evidence, Facts, Finding, Framework
from cudriver.stack.rules import fix
from cudriver.stack.tables import driver_floor
from cudriver.stack.text import quote
from cudriver.stack.versions import compare, cut, major, minor

EPERM, EACCES = 1, 13
MISMATCHED_SYSTEM, COMPAT_UNSUPPORTED, STUB, NO_DEVICE = 803, 804, 34, 100
CODES = {
    3: ("CUDA_ERROR_NOT_INITIALIZED", "sudo modprobe nvidia_uvm"),
    46: (
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "nvidia-smi -q -d COMPUTE  # look for Exclusive or Prohibited, and for other users",
    ),
    100: ("CUDA_ERROR_NO_DEVICE", "nvidia-smi -L  # lists the GPUs that the driver sees"),
    101: ("CUDA_ERROR_INVALID_DEVICE", "nvidia-smi -L  # lists the GPUs that the driver sees"),
    304: ("CUDA_ERROR_OPERATING_SYSTEM", "sudo modprobe nvidia_uvm && ls -l /dev/nvidia-uvm"),
    802: ("CUDA_ERROR_SYSTEM_NOT_READY", "sudo systemctl restart nvidia-fabricmanager"),
    999: ("CUDA_ERROR_UNKNOWN", "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm"),
}
# Brands without forward compatibility. A name that is in neither list decides nothing.
CONSUMER = ("geforce", "titan", "nvidia mx")


def _using(facts: Facts) -> list[Framework]:
    return [f for f in facts.frameworks if f.variant == "cuda" and f.cuda]


def _hardware(driver: Driver) -> bool:
    """A sign that this machine should have a working driver."""
    return bool(driver.pci_devices or driver.nodes or driver.kernel_release)


def _kernel(driver: Driver) -> Evidence:
    return driver.kernel_evidence or Evidence(
        "/proc/driver/nvidia/version", None, driver.kernel_release or ""
    )


def _user(driver: Driver) -> Evidence:
    return driver.release_evidence or Evidence(
        driver.path or "libcuda.so.1", None, driver.release or ""
    )


def cu101(facts: Facts) -> Iterator[Finding]:
    """No driver."""
    driver = facts.driver
    if driver.path is not None or driver.assumed or (driver.wsl and driver.wsl_library):
        return
    if any(device.assumed for device in driver.devices):
        return
    predicts = None
    torch = facts.framework("torch")
    if torch and torch.variant == "cuda":
        predicts = "Found no NVIDIA driver on your system"
    evidence = [Evidence("libcuda.so.1", None, "not found by the loader")]
    if driver.kernel_release:
        evidence.append(_kernel(driver))
    evidence += [
        Evidence(f"/sys/bus/pci/devices/{d}/vendor", 1, "0x10de") for d in driver.pci_devices
    ]
    evidence += [Evidence(node.path) for node in driver.nodes[:2]]
    if not _hardware(driver):
        title = "no NVIDIA driver here, and no sign of an NVIDIA GPU"
        if driver.container:
            title = f"no NVIDIA driver in this {driver.container} container"
        yield Finding("CU101", NOTE, title, evidence, predicts, [])
        return
    if driver.container:
        title = (
            f"this {driver.container} container was started without the NVIDIA driver's libraries"
        )
        yield Finding(
            "CU101", ERROR, title, evidence, predicts, [_container_start(driver.container)]
        )
        return
    title = "an NVIDIA GPU is here, but no driver library (libcuda.so.1)"
    mend = fix.driver_package(max((f.cuda or "" for f in _using(facts)), default=None))
    yield Finding("CU101", ERROR, title, evidence, predicts, [mend])


def _container_start(kind: str) -> str:
    return {
        "docker": "docker run --gpus all ...  # needs nvidia-container-toolkit on the host",
        "podman": (
            "podman run --device nvidia.com/gpu=all ...  # needs a CDI specification: "
            "nvidia-ctk cdi generate"
        ),
        "apptainer": "apptainer exec --nv ...",
        "kubernetes": 'request the GPU in the pod: resources.limits: {"nvidia.com/gpu": 1}',
    }.get(kind, "start the container with access to the GPU and the driver's libraries")


def _folder_mend(facts: Facts, path: str, what: str) -> list[str]:
    """Takes the folder of a wrong libcuda off the loader's path."""
    folder = path.rpartition("/")[0]
    variable = facts.environment.variables.get("LD_LIBRARY_PATH", "")
    entries = [p.rstrip("/") for p in variable.split(":")]
    unwanted = [p for p in entries if p and (p == folder or p.endswith(f"/{what}"))]
    if unwanted:
        return [fix.without("LD_LIBRARY_PATH", variable, unwanted)]
    return [
        f"grep -rl {quote(what)} /etc/ld.so.conf.d  # remove that line, then: sudo ldconfig",
    ]


def cu102(facts: Facts) -> Iterator[Finding]:
    """The toolkit's link-time stub in place of the driver."""
    driver = facts.driver
    if driver.kind != "stub" and driver.init_code != STUB:
        return
    path = driver.path or ""
    evidence = [Evidence(path, None, f"found by {driver.found_by}")]
    if driver.init_code == STUB:
        evidence.append(Evidence("cuInit", None, "34"))
    yield Finding(
        "CU102",
        ERROR,
        "libcuda.so.1 is the toolkit's stub, not the driver",
        evidence,
        "CUDA driver is a stub library",
        _folder_mend(facts, path, "stubs"),
    )


def cu103(facts: Facts) -> Iterator[Finding]:
    """A driver below the floor of the CUDA major in use."""
    driver = facts.driver
    if driver.kind == "stub" or (driver.release is None and driver.cuda is None):
        return
    for framework in _using(facts):
        floor = driver_floor(framework.cuda)
        if floor is None or not _too_old(driver, framework.cuda or "", floor):
            continue
        version = f"{framework.name} {framework.version}"
        title = (
            f"driver {driver.release or driver.cuda} is too old for {version}: "
            f"CUDA {major(framework.cuda)} needs {floor} or newer"
        )
        predicts = None
        if framework.name == "torch" and driver.cuda:
            numbers = minor(driver.cuda) or (0, 0)
            code = numbers[0] * 1000 + numbers[1] * 10
            predicts = f"The NVIDIA driver on your system is too old (found version {code})."
        elif framework.name != "torch":
            predicts = "CUDA driver version is insufficient for CUDA runtime version"
        evidence = [_user(driver)]
        if framework.cuda_evidence:
            evidence.append(framework.cuda_evidence)
        mend = []
        other = fix.torch_for_driver(facts) if framework.name == "torch" else None
        if other:
            mend.append(fix.torch_from(facts, other))
        mend.append(fix.driver_package(framework.cuda))
        yield Finding("CU103", ERROR, title, evidence, predicts, mend)


def _too_old(driver: Driver, cuda: str, floor: str) -> bool:
    """By release where that is a Linux driver's; by CUDA major for WSL, Tegra and compat."""
    if driver.kind == "native" and driver.release and not driver.wsl:
        return compare(driver.release, floor) < 0
    offered, wanted = major(driver.cuda), major(cuda)
    return offered is not None and wanted is not None and offered < wanted


def cu104(facts: Facts) -> Iterator[Finding]:
    """The kernel's half and the libraries are of two releases."""
    driver = facts.driver
    if driver.assumed or driver.wsl or driver.kind in ("tegra", "stub", "simulated"):
        return
    libraries, kernel = driver.paired_release, driver.kernel_release
    said = "mismatch" in (driver.nvml_error or "").lower()
    if not said and (libraries is None or kernel is None or libraries == kernel):
        return
    evidence = [_kernel(driver), _user(driver)]
    if said:
        evidence.append(Evidence("libnvidia-ml.so.1", None, driver.nvml_error or ""))
    yield Finding(
        "CU104",
        ERROR,
        f"kernel driver {kernel or 'of another release'} and driver libraries "
        f"{libraries or driver.release} do not match",
        evidence,
        "Failed to initialize NVML: Driver/library version mismatch",
        [
            "sudo reboot  # or, with nothing using the GPU: sudo rmmod nvidia_uvm "
            "nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia"
        ],
    )


def cu105(facts: Facts) -> Iterator[Finding]:
    """cuda-compat that is older than the kernel driver."""
    driver = facts.driver
    if driver.kind != "compat":
        return
    release, kernel = driver.release, driver.kernel_release
    older = release is not None and kernel is not None and compare(release, kernel) < 0
    if not older and driver.init_code != MISMATCHED_SYSTEM:
        return
    evidence = [_user(driver), _kernel(driver)]
    if driver.init_code == MISMATCHED_SYSTEM:
        evidence.append(Evidence("cuInit", None, "803"))
    yield Finding(
        "CU105",
        ERROR,
        f"cuda-compat {release} is in use, older than the kernel driver {kernel}",
        evidence,
        "system has unsupported display driver / cuda driver combination (803)",
        _folder_mend(facts, driver.path or "", "compat"),
    )


def cu106(facts: Facts) -> Iterator[Finding]:
    """cuda-compat on a GPU that it does not support."""
    driver = facts.driver
    if driver.kind != "compat":
        return
    consumer = [d for d in driver.devices if any(c in (d.name or "").lower() for c in CONSUMER)]
    if not consumer and driver.init_code != COMPAT_UNSUPPORTED:
        return
    evidence = [_user(driver)]
    evidence += [Evidence(f"GPU {d.index}", None, d.name or "") for d in consumer]
    if driver.init_code == COMPAT_UNSUPPORTED:
        evidence.append(Evidence("cuInit", None, "804"))
    yield Finding(
        "CU106",
        ERROR,
        "cuda-compat is in use on a GPU that is no data-centre part",
        evidence,
        "forward compatibility was attempted on non supported HW (804)",
        _folder_mend(facts, driver.path or "", "compat"),
    )


def cu107(facts: Facts) -> Iterator[Finding]:
    """Device nodes that cannot be opened."""
    driver = facts.driver
    if not driver.kernel_release or driver.assumed:
        return
    closed = [n for n in driver.nodes if n.errno in (EPERM, EACCES)]
    absent = bool(driver.container and driver.path and not driver.nodes and not driver.wsl)
    if driver.devices and not closed:
        return
    if not closed and not absent:
        return
    evidence = [
        Evidence(
            n.path, None, "operation not permitted" if n.errno == EPERM else "permission denied"
        )
        for n in closed
    ]
    if absent:
        evidence = [Evidence("/dev/nvidiactl", None, "absent")]
    if driver.container:
        mend = [
            _container_start(driver.container),
            "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml  # on the host: "
            "CDI survives systemd's daemon-reload",
        ]
    else:
        mend = [
            "sudo usermod -aG video,render $USER  # or the group of /dev/nvidiactl, then "
            "log in again"
        ]
    yield Finding(
        "CU107",
        ERROR,
        "the driver is loaded, but its device nodes cannot be opened",
        evidence,
        "Failed to initialize NVML: Unknown Error",
        mend,
    )


def cu108(facts: Facts) -> Iterator[Finding]:
    """WSL's libcuda is not what the loader finds."""
    driver = facts.driver
    if not driver.wsl or driver.wsl_library is None:
        return
    if driver.path is None:
        yield Finding(
            "CU108",
            ERROR,
            "WSL's libcuda.so.1 is there, but the loader does not look in its folder",
            [Evidence(driver.wsl_library, None, "not in the loader's cache")],
            "libcuda.so.1: cannot open shared object file: No such file or directory",
            ["echo /usr/lib/wsl/lib | sudo tee /etc/ld.so.conf.d/ld.wsl.conf && sudo ldconfig"],
        )
    elif driver.kind == "native":
        yield Finding(
            "CU108",
            ERROR,
            "a Linux driver's libcuda.so.1 is found before WSL's own",
            [
                Evidence(driver.path, None, f"found by {driver.found_by}"),
                Evidence(driver.wsl_library),
            ],
            None,
            [
                "sudo apt-get remove --purge 'libnvidia-compute-*' 'nvidia-driver-*'  # "
                "WSL's driver is the one of Windows"
            ],
        )


def cu109(facts: Facts) -> Iterator[Finding]:
    """Compilers of PTX that are newer than the driver."""
    offered = minor(facts.driver.cuda)
    if offered is None:
        return
    for library in facts.libraries:
        if library.family not in ("nvrtc", "nvjitlink") or "builtins" in library.soname:
            continue
        own = minor(library.version)
        if own is None or own <= offered or own[0] != offered[0]:
            continue
        severity = WARNING if _makes_ptx(facts) else NOTE
        yield Finding(
            "CU109",
            severity,
            f"{library.soname} {library.version} makes PTX that a driver of CUDA "
            f"{facts.driver.cuda} cannot compile",
            [library.version_evidence or Evidence(library.path), _user(facts.driver)],
            "the provided PTX was compiled with an unsupported toolchain.",
            [fix.driver_package(None, fix.driver_branch(cut(library.version, 2)))],
        )
        return


def _makes_ptx(facts: Facts) -> bool:
    """Numba hands PTX to the driver. PyTorch and CuPy compile for the GPU itself, which works."""
    return any(f.distribution == "numba-cuda" for f in facts.frameworks)


def cu110(facts: Facts) -> Iterator[Finding]:
    """The driver is there and does not start."""
    driver = facts.driver
    code = driver.init_code
    if code == NO_DEVICE and facts.environment.variables.get("CUDA_VISIBLE_DEVICES") is not None:
        return  # CU502
    if code and code not in (STUB, MISMATCHED_SYSTEM, COMPAT_UNSUPPORTED):
        if code == NO_DEVICE and not _hardware(driver):
            return
        name, mend = CODES.get(
            code, (f"CUDA error {code}", "nvidia-smi  # what does the driver itself say?")
        )
        yield Finding(
            "CU110",
            ERROR,
            f"the driver does not initialise: {name} ({code})",
            [Evidence("cuInit", None, str(code)), _user(driver)],
            f"{name} ({code})",
            [mend],
        )
    elif driver.probe_error and not driver.devices:
        yield Finding(
            "CU110",
            ERROR if _hardware(driver) else WARNING,
            f"asking the driver failed: the child process {driver.probe_error}",
            [Evidence(driver.path or "libnvidia-ml.so.1", None, driver.probe_error)],
            None,
            ["sudo dmesg | grep -i nvrm  # the driver's own messages; a reboot often helps"],
        )
    elif driver.kind == "native" and _module_missing(driver):
        # Without an answer of NVML's it may still be loaded by the first program that asks for it.
        said = driver.nvml_error
        yield Finding(
            "CU110",
            ERROR if said else WARNING,
            "an NVIDIA GPU is here, but the kernel driver is not loaded",
            [Evidence("libnvidia-ml.so.1", None, said or "")] * bool(said)
            + [Evidence("/proc/driver/nvidia/version", None, "absent")]
            + [
                Evidence(f"/sys/bus/pci/devices/{d}/vendor", 1, "0x10de")
                for d in driver.pci_devices
            ],
            None,
            ["sudo modprobe nvidia"],
        )


def _module_missing(driver: Driver) -> bool:
    """A GPU and the driver's libraries, and no kernel's half. Not so under WSL and on Tegra."""
    there = driver.path is not None and bool(driver.pci_devices)
    return there and driver.kernel_release is None and not driver.wsl and not driver.devices


RULES = {
    "CU101": cu101,
    "CU102": cu102,
    "CU103": cu103,
    "CU104": cu104,
    "CU105": cu105,
    "CU106": cu106,
    "CU107": cu107,
    "CU108": cu108,
    "CU109": cu109,
    "CU110": cu110,
}
