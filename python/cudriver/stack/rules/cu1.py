"""CU1: the driver: whether it is there and starts. What releases fit is in cu1_releases."""

from __future__ import annotations

from collections.abc import Iterator

from cudriver.stack.model import ERROR, NOTE, WARNING, Driver, Evidence, Facts, Finding
from cudriver.stack.rules import fix
from cudriver.stack.rules.cu1_releases import (
    COMPAT_UNSUPPORTED,
    MISMATCHED_SYSTEM,
    cu103,
    cu104,
    cu105,
    cu106,
    cu109,
    folder_fix,
    kernel_evidence,
    user_evidence,
    using,
)
from cudriver.stack.tables import driver_floor

EPERM, EACCES = 1, 13
STUB, NO_DEVICE = 34, 100
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


def _hardware(driver: Driver) -> bool:
    """A sign that this machine should have a working driver."""
    return bool(driver.pci_devices or driver.nodes or driver.kernel_release)


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
        evidence.append(kernel_evidence(driver))
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
    floor = driver_floor(max((f.cuda or "" for f in using(facts)), default=None))
    fixes = fix.driver_package(driver, floor)
    yield Finding("CU101", ERROR, title, evidence, predicts, [fixes])


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
        folder_fix(facts, path, "stubs"),
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
        fixes = [
            _container_start(driver.container),
            "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml  # on the host: "
            "CDI survives systemd's daemon-reload",
        ]
    else:
        fixes = [
            "sudo usermod -aG video,render $USER  # or the group of /dev/nvidiactl, then "
            "log in again"
        ]
    yield Finding(
        "CU107",
        ERROR,
        "the driver is loaded, but its device nodes cannot be opened",
        evidence,
        "Failed to initialize NVML: Unknown Error",
        fixes,
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


def cu110(facts: Facts) -> Iterator[Finding]:
    """The driver is there and does not start."""
    driver = facts.driver
    code = driver.init_code
    if code == NO_DEVICE and facts.environment.variables.get("CUDA_VISIBLE_DEVICES") is not None:
        return  # CU502
    if code and code not in (STUB, MISMATCHED_SYSTEM, COMPAT_UNSUPPORTED):
        if code == NO_DEVICE and not _hardware(driver):
            return
        name, fixes = CODES.get(
            code, (f"CUDA error {code}", "nvidia-smi  # what does the driver itself say?")
        )
        yield Finding(
            "CU110",
            ERROR,
            f"the driver does not initialise: {name} ({code})",
            [Evidence("cuInit", None, str(code)), user_evidence(driver)],
            f"{name} ({code})",
            [fixes],
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
