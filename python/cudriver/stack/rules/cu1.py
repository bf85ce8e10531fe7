"""CU1: the driver: whether it is there and starts, and whether it is new enough."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from cudriver.stack.facts import ERROR, NOTE, WARNING, Evidence, Facts, Finding
from cudriver.stack.fixes import fix
from cudriver.stack.fixes.pairs import release_for
from cudriver.stack.machine_facts import Driver
from cudriver.stack.rules.finding import finding
from cudriver.stack.tables import driver_floor, table
from cudriver.stack.text import quote
from cudriver.stack.versions import compare, cut, major, minor

STUB, NO_DEVICE, MISMATCHED_SYSTEM, COMPAT_UNSUPPORTED = 34, 100, 803, 804  # CUresult
EPERM, EACCES = 1, 13


def _hardware(driver: Driver) -> bool:
    """A sign that this machine should have a working driver."""
    return bool(driver.pci_devices or driver.nodes or driver.kernel_release)


def _start(container: str) -> str:
    """How to start a container with the driver."""
    known: dict[str, str] = table("driver")["containers"]
    return known.get(container, known["other"])


def _gpus(driver: Driver) -> list[Evidence]:
    return [Evidence(f"/sys/bus/pci/devices/{d}/vendor", 1, "0x10de") for d in driver.pci_devices]


def _fix(of: str) -> str:
    return str(table("driver")["fixes"][of])


def _wrong_file(
    facts: Facts, code: int, title: str, evidence: Iterable[Evidence | None]
) -> Finding:
    """A libcuda that is not the driver's, be it by its path or by what cuInit returns."""
    known = table("driver")["codes"][str(code)]
    returned = Evidence("cuInit", None, str(code)) if facts.driver.init_code == code else None
    fixes = _folder_fix(facts, known["folder"])
    return finding(ERROR, title, [*evidence, returned], known["predicts"], fixes)


def _folder_fix(facts: Facts, what: str) -> list[str]:
    """Takes the folder of a wrong libcuda off the loader's path."""
    folder = (facts.driver.path or "").rpartition("/")[0]
    variable = facts.environment.variables.get("LD_LIBRARY_PATH", "")
    entries = [p.rstrip("/") for p in variable.split(":")]
    unwanted = [p for p in entries if p and (p == folder or p.endswith(f"/{what}"))]
    if unwanted:
        return [fix.without("LD_LIBRARY_PATH", variable, unwanted)]
    found = f"grep -rl {quote(what)} /etc/ld.so.conf.d  # remove the line it finds, then: "
    return [found + "sudo ldconfig"]


def cu101(facts: Facts) -> Iterator[Finding]:
    """No driver."""
    driver, kind = facts.driver, facts.driver.container
    if driver.path is not None or driver.assumed or (driver.wsl and driver.wsl_library):
        return
    if any(device.assumed for device in driver.devices):
        return
    torch = facts.framework("torch")
    needed = torch is not None and torch.variant == "cuda"
    predicts = "Found no NVIDIA driver on your system" if needed else None
    evidence = [
        Evidence("libcuda.so.1", None, "not found by the loader"),
        driver.kernel_evidence,
        *_gpus(driver),
        *(Evidence(node.path) for node in driver.nodes[:2]),
    ]
    if not _hardware(driver):
        where = f"in this {kind} container" if kind else "here, and no sign of an NVIDIA GPU"
        yield finding(NOTE, f"no NVIDIA driver {where}", evidence, predicts)
    elif kind:
        title = f"this {kind} container was started without the NVIDIA driver's libraries"
        yield finding(ERROR, title, evidence, predicts, [_start(kind)])
    else:
        title = "an NVIDIA GPU is here, but no driver library (libcuda.so.1)"
        yield finding(ERROR, title, evidence, predicts, [fix.driver_package(facts)])


def cu102(facts: Facts) -> Iterator[Finding]:
    """The toolkit's link-time stub in place of the driver."""
    driver = facts.driver
    if driver.kind == "stub" or driver.init_code == STUB:
        evidence = [Evidence(driver.path or "", None, f"found by {driver.found_by}")]
        title = "libcuda.so.1 is the toolkit's stub, not the driver"
        yield _wrong_file(facts, STUB, title, evidence)


def cu103(facts: Facts) -> Iterator[Finding]:
    """A driver below the floor of the CUDA major in use."""
    driver = facts.driver
    if driver.kind == "stub" or (driver.release is None and driver.cuda is None):
        return
    for framework in (f for f in facts.frameworks if f.variant == "cuda"):
        floor = driver_floor(framework.cuda)
        if floor is None or not fix.too_old(driver, framework.cuda or "", floor):
            continue
        title = f"driver {driver.release or driver.cuda} is too old for {framework.name} "
        title += f"{framework.version}: CUDA {major(framework.cuda)} needs {floor} or newer"
        predicts, offered = None, minor(driver.cuda)
        if framework.name == "tensorrt":
            predicts = "CUDA initialization failure with error: 35"
        elif framework.name != "torch":
            predicts = "CUDA driver version is insufficient for CUDA runtime version"
        elif offered is not None:
            code = offered[0] * 1000 + offered[1] * 10
            predicts = f"The NVIDIA driver on your system is too old (found version {code})."
        other = fix.torch_for_driver(facts) if framework.name == "torch" else None
        dist, runs = facts.distribution(framework.package), major(driver.cuda)
        pin = release_for(facts, dist, runs) if dist and not other else None
        fixes = [fix.torch_from(facts, other)] if other else []
        fixes += [fix.install(facts.environment, pin, of=dist)] if pin else []
        if framework.name == "tensorrt" and offered and offered[0] > 10:  # none is for CUDA 10
            fixes = _tensorrt(facts, offered[0])  # as a whole, so that it can be tried
        else:
            fixes.append(fix.driver_package(facts, floor))
        evidence = [driver.release_evidence, framework.cuda_evidence]
        yield finding(ERROR, title, evidence, predicts, fixes, framework.name)


def _tensorrt(facts: Facts, cuda: int) -> list[str]:
    """TensorRT for a CUDA major in place of all of it that is here: both write one folder."""
    env, parts = facts.environment, r"tensorrt(-cu\d+)?(-bindings|-libs)?"
    here = [dist for dist in facts.distributions if re.fullmatch(parts, dist.name)]
    removed = [fix.uninstall(env, dist) for dist in here]
    return [*removed, fix.install(env, f"tensorrt-cu{cuda}", of=next(iter(here), None))]


def cu104(facts: Facts) -> Iterator[Finding]:
    """The kernel's half and the libraries are of two releases."""
    driver = facts.driver
    if driver.assumed or driver.wsl or driver.kind in ("tegra", "stub", "simulated"):
        return
    libraries, kernel = driver.paired_release, driver.kernel_release
    error = driver.nvml_error if "mismatch" in (driver.nvml_error or "").lower() else None
    if error or (libraries and kernel and libraries != kernel):
        title = f"kernel driver {kernel or 'of another release'} and driver libraries "
        title += f"{libraries or driver.release} do not match"
        evidence = [driver.kernel_evidence, driver.release_evidence]
        evidence += [Evidence("libnvidia-ml.so.1", None, error)] if error else []
        predicts = "Failed to initialize NVML: Driver/library version mismatch"
        yield finding(ERROR, title, evidence, predicts, [_fix("mismatch")])


def cu105(facts: Facts) -> Iterator[Finding]:
    """cuda-compat that is older than the kernel driver."""
    driver, refused = facts.driver, facts.driver.init_code == MISMATCHED_SYSTEM
    release, kernel = driver.release, driver.kernel_release
    older = release and kernel and compare(release, kernel) < 0
    if driver.kind == "compat" and (refused or older):
        title = f"cuda-compat {release} is in use, older than the kernel driver {kernel}"
        evidence = [driver.release_evidence, driver.kernel_evidence]
        yield _wrong_file(facts, MISMATCHED_SYSTEM, title, evidence)


def cu106(facts: Facts) -> Iterator[Finding]:
    """cuda-compat on a GPU that it does not support."""
    driver, refused = facts.driver, facts.driver.init_code == COMPAT_UNSUPPORTED
    brands = table("driver")["consumer"]  # a name that has none of them decides nothing
    consumer = [d for d in driver.devices if any(b in (d.name or "").lower() for b in brands)]
    if driver.kind == "compat" and (consumer or refused):
        title = "cuda-compat is in use on a GPU that is not a data-centre part"
        evidence = [driver.release_evidence, *(device.evidence for device in consumer)]
        yield _wrong_file(facts, COMPAT_UNSUPPORTED, title, evidence)


def cu107(facts: Facts) -> Iterator[Finding]:
    """Device nodes that cannot be opened."""
    driver = facts.driver
    if not driver.kernel_release or driver.assumed:
        return
    refused = {EPERM: "operation not permitted", EACCES: "permission denied"}
    closed = [Evidence(n.path, None, refused[n.errno]) for n in driver.nodes if n.errno in refused]
    absent = bool(driver.container and driver.path and not driver.nodes and not driver.wsl)
    if not closed and (driver.devices or not absent):
        return
    fixes = [_fix("nodes")]
    if driver.container:
        fixes = [_start(driver.container), _fix("nodes of a container")]
    title = "the driver is loaded, but its device nodes cannot be opened"
    evidence = [Evidence("/dev/nvidiactl", None, "absent")] if absent else closed
    yield finding(ERROR, title, evidence, "Failed to initialize NVML: Unknown Error", fixes)


def cu108(facts: Facts) -> Iterator[Finding]:
    """WSL's libcuda is not what the loader finds."""
    driver = facts.driver
    if not driver.wsl or driver.wsl_library is None:
        return
    if driver.path is None:
        title = "WSL's libcuda.so.1 is there, but the loader does not look in its folder"
        evidence = [Evidence(driver.wsl_library, None, "not in the loader's cache")]
        predicts = "libcuda.so.1: cannot open shared object file: No such file or directory"
        yield finding(ERROR, title, evidence, predicts, [_fix("wsl cache")])
    elif driver.kind == "native":
        title = "a Linux driver's libcuda.so.1 is found before WSL's own"
        evidence = [Evidence(driver.path, None, f"found by {driver.found_by}")]
        evidence.append(Evidence(driver.wsl_library))
        yield finding(ERROR, title, evidence, None, [_fix("linux driver in wsl")])


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
        # Numba hands PTX to the driver. PyTorch and CuPy compile for the GPU itself, which works.
        numba = any(f.distribution == "numba-cuda" for f in facts.frameworks)
        title = f"{library.soname} {library.version} makes PTX that a driver of CUDA "
        title += f"{facts.driver.cuda} cannot compile"
        evidence = [library.version_evidence, facts.driver.release_evidence]
        predicts = "the provided PTX was compiled with an unsupported toolchain."
        branch = fix.driver_branch(cut(library.version, 2))
        fixes = [fix.driver_package(facts, branch)]
        yield finding(WARNING if numba else NOTE, title, evidence, predicts, fixes)
        return


def cu110(facts: Facts) -> Iterator[Finding]:
    """The driver is there and does not start."""
    driver, code = facts.driver, facts.driver.init_code
    loaded = driver.kernel_release or driver.wsl or driver.devices  # the kernel's half
    if code == NO_DEVICE and facts.environment.variables.get("CUDA_VISIBLE_DEVICES") is not None:
        return  # CU502
    if code and code not in (STUB, MISMATCHED_SYSTEM, COMPAT_UNSUPPORTED):
        if code == NO_DEVICE and not _hardware(driver):
            return
        known = table("driver")["codes"].get(str(code), {})
        name = known.get("name", f"CUDA error {code}")
        line = known.get("fix", _fix("unknown code"))
        title = f"the driver does not initialise: {name} ({code})"
        evidence = [Evidence("cuInit", None, str(code)), driver.release_evidence]
        yield finding(ERROR, title, evidence, f"{name} ({code})", [line])
    elif driver.probe_error and not driver.devices:
        title = f"asking the driver failed: the child process {driver.probe_error}"
        evidence = [Evidence(driver.path or "libnvidia-ml.so.1", None, driver.probe_error)]
        severity = ERROR if _hardware(driver) else WARNING
        yield finding(severity, title, evidence, None, [_fix("no answer")])
    elif driver.kind == "native" and driver.path and driver.pci_devices and not loaded:
        # Without an answer of NVML's it may still be loaded by the first program that asks for it.
        error = driver.nvml_error
        title = "an NVIDIA GPU is here, but the kernel driver is not loaded"
        evidence = [Evidence("libnvidia-ml.so.1", None, error)] if error else []
        evidence += [Evidence("/proc/driver/nvidia/version", None, "absent"), *_gpus(driver)]
        yield finding(ERROR if error else WARNING, title, evidence, None, ["sudo modprobe nvidia"])
