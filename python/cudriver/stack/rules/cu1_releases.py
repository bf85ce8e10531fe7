"""CU1: releases. A driver too old for what is to run on it, or made of two that do not fit."""

from __future__ import annotations

from collections.abc import Iterator

from cudriver.stack.model import ERROR, NOTE, WARNING, Driver, Evidence, Facts, Finding, Framework
from cudriver.stack.rules import fix
from cudriver.stack.rules.anew import planned
from cudriver.stack.rules.limits import too_old
from cudriver.stack.tables import driver_floor
from cudriver.stack.text import quote
from cudriver.stack.versions import compare, cut, major, minor

MISMATCHED_SYSTEM, COMPAT_UNSUPPORTED = 803, 804
# Brands without forward compatibility. A name that is in neither list decides nothing.
CONSUMER = ("geforce", "titan", "nvidia mx")


def using(facts: Facts) -> list[Framework]:
    return [f for f in facts.frameworks if f.variant == "cuda"]


def kernel_evidence(driver: Driver) -> Evidence:
    return driver.kernel_evidence or Evidence(
        "/proc/driver/nvidia/version", None, driver.kernel_release or ""
    )


def user_evidence(driver: Driver) -> Evidence:
    return driver.release_evidence or Evidence(
        driver.path or "libcuda.so.1", None, driver.release or ""
    )


def folder_fix(facts: Facts, path: str, what: str) -> list[str]:
    """Takes the folder of a wrong libcuda off the loader's path."""
    folder = path.rpartition("/")[0]
    variable = facts.environment.variables.get("LD_LIBRARY_PATH", "")
    entries = [p.rstrip("/") for p in variable.split(":")]
    unwanted = [p for p in entries if p and (p == folder or p.endswith(f"/{what}"))]
    if unwanted:
        return [fix.without("LD_LIBRARY_PATH", variable, unwanted)]
    return [
        f"grep -rl {quote(what)} /etc/ld.so.conf.d  # remove the line it finds, then: "
        "sudo ldconfig",
    ]


def cu103(facts: Facts) -> Iterator[Finding]:
    """A driver below the floor of the CUDA major in use."""
    driver = facts.driver
    if driver.kind == "stub" or (driver.release is None and driver.cuda is None):
        return
    for framework in using(facts):
        floor = driver_floor(framework.cuda)
        if floor is None or not too_old(driver, framework.cuda or "", floor):
            continue
        version = f"{framework.name} {framework.version}"
        title = (
            f"driver {driver.release or driver.cuda} is too old for {version}: "
            f"CUDA {major(framework.cuda)} needs {floor} or newer"
        )
        predicts = None
        offered = minor(driver.cuda)
        if framework.name != "torch":
            predicts = "CUDA driver version is insufficient for CUDA runtime version"
        elif offered is not None:
            code = offered[0] * 1000 + offered[1] * 10
            predicts = f"The NVIDIA driver on your system is too old (found version {code})."
        evidence = [user_evidence(driver)]
        if framework.cuda_evidence:
            evidence.append(framework.cuda_evidence)
        fixes = []
        other = fix.torch_for_driver(facts) if framework.name == "torch" else None
        if other:
            fixes.append(fix.torch_from(facts, other))
        own = [] if fix.branch_for(driver, floor) else planned(facts, framework.name)
        fixes += own or [fix.driver_package(driver, floor)]
        yield Finding("CU103", ERROR, title, evidence, predicts, fixes)


def cu104(facts: Facts) -> Iterator[Finding]:
    """The kernel's half and the libraries are of two releases."""
    driver = facts.driver
    if driver.assumed or driver.wsl or driver.kind in ("tegra", "stub", "simulated"):
        return
    libraries, kernel = driver.paired_release, driver.kernel_release
    said = "mismatch" in (driver.nvml_error or "").lower()
    if not said and (libraries is None or kernel is None or libraries == kernel):
        return
    evidence = [kernel_evidence(driver), user_evidence(driver)]
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
            "sudo reboot  # without a reboot, if nothing uses the GPU: sudo rmmod nvidia_uvm "
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
    evidence = [user_evidence(driver), kernel_evidence(driver)]
    if driver.init_code == MISMATCHED_SYSTEM:
        evidence.append(Evidence("cuInit", None, "803"))
    yield Finding(
        "CU105",
        ERROR,
        f"cuda-compat {release} is in use, older than the kernel driver {kernel}",
        evidence,
        "system has unsupported display driver / cuda driver combination (803)",
        folder_fix(facts, driver.path or "", "compat"),
    )


def cu106(facts: Facts) -> Iterator[Finding]:
    """cuda-compat on a GPU that it does not support."""
    driver = facts.driver
    if driver.kind != "compat":
        return
    consumer = [d for d in driver.devices if any(c in (d.name or "").lower() for c in CONSUMER)]
    if not consumer and driver.init_code != COMPAT_UNSUPPORTED:
        return
    evidence = [user_evidence(driver)]
    evidence += [Evidence(f"GPU {d.index}", None, d.name or "") for d in consumer]
    if driver.init_code == COMPAT_UNSUPPORTED:
        evidence.append(Evidence("cuInit", None, "804"))
    yield Finding(
        "CU106",
        ERROR,
        "cuda-compat is in use on a GPU that is not a data-centre part",
        evidence,
        "forward compatibility was attempted on non supported HW (804)",
        folder_fix(facts, driver.path or "", "compat"),
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
            [library.version_evidence or Evidence(library.path), user_evidence(facts.driver)],
            "the provided PTX was compiled with an unsupported toolchain.",
            [fix.driver_package(facts.driver, fix.driver_branch(cut(library.version, 2)))],
        )
        return


def _makes_ptx(facts: Facts) -> bool:
    """Numba hands PTX to the driver. PyTorch and CuPy compile for the GPU itself, which works."""
    return any(f.distribution == "numba-cuda" for f in facts.frameworks)
