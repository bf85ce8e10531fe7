"""What the driver itself says: NVML, and cuInit where there is doubt, asked in a child process.

The child is probe_child.py. No library of an inspected environment is loaded in it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence

from cudriver.stack.facts import Evidence, Problem
from cudriver.stack.loader.search import Search
from cudriver.stack.machine.child import Child
from cudriver.stack.machine.driver import RELEASE
from cudriver.stack.machine_facts import Device, Driver
from cudriver.stack.record import put
from cudriver.stack.tables import driver_cuda
from cudriver.stack.versions import from_code

NVML = "libnvidia-ml.so.1"
TIME_LIMIT = 3.0  # seconds for NVML; a driver that wakes its GPUs can take two
CUDA_TIME_LIMIT = 10.0
# State and status of a GPU's fabric: 0 is "none here", 3 "done", without an error.
FABRIC_FINE = re.compile("0(?: .*)?|3(?: 0?)?")

SYSTEM = ("/", "/usr", "/usr/local")  # environments too, and where the driver is


class Inspected:
    """The environments that are looked at: no driver library in them is loaded, for that would run
    their code.
    """

    def __init__(self, prefixes: Sequence[str]) -> None:
        real = {os.path.realpath(prefix) for prefix in prefixes}
        self.stems: tuple[str, ...] = tuple(f"{prefix}/" for prefix in real.difference(SYSTEM))

    def holds(self, path: str) -> bool:
        """Whether the file or folder, links followed, lies in one of them."""
        return f"{os.path.realpath(path)}/".startswith(self.stems)

    def outside(self, found: Search) -> str | None:
        """The first of what the loader finds that does not; None: there is none."""
        paths = [found.path, *(other.path for other in found.shadowed)]
        return next((path for path in paths if path is not None and not self.holds(path)), None)

    def without(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The variables for a process that is to load nothing from them."""
        kept = dict(variables)
        for name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT") if self.stems else ():
            words = [word for word in re.split(r"[:; \t]", kept.get(name, "")) if word]
            if any("$" in word or self.holds(word) for word in words):
                kept[name] = ":".join(w for w in words if "$" not in w and not self.holds(w))
        return kept


def not_asked(path: str) -> Problem:
    """What the report says of a driver library in an inspected environment."""
    text = "lies in the inspected environment: programs there load it as the driver's, and the "
    return Problem(path, text + "check, which runs nothing of that environment, did not ask it")


class Probe:
    """The child that asks NVML, started early and joined late."""

    def __init__(
        self, environ: Mapping[str, str], cuda: str | None = None, nvml: str | None = None
    ) -> None:
        """cuda: a libcuda to initialise, in place of NVML. nvml: its file, if it is known.

        Never raises; `error` says what went wrong.
        """
        self.values: dict[str, list[str]] = {}
        self.error: str | None = None
        self._child: Child | None = None
        if not sys.executable:
            self.error = "this process has no Python interpreter of its own to ask the driver with"
            return
        # A module is compiled already. Its folder comes last, so that it hides no other module.
        folder = os.path.dirname(os.path.abspath(__file__))
        program = f"import sys; sys.path.append({folder!a}); import probe_child"
        jobs = [f"nvml={nvml or NVML}"] if cuda is None else [f"cuda={cuda}"]
        limit = TIME_LIMIT if cuda is None else CUDA_TIME_LIMIT
        try:
            self._child = Child(
                [sys.executable, "-I", "-S", "-B", "-c", program, *jobs], environ, limit
            )
        except OSError as error:
            self.error = f"could not be started: {error.strerror}"

    def join(self) -> dict[str, list[str]]:
        """Every name it printed, with its values in order."""
        if self._child is not None:
            output, self.error = self._child.join()
            self._child = None
            for line in output.decode("utf-8", "replace").splitlines():
                name, sign, value = line.partition("=")
                if sign:
                    self.values.setdefault(name, []).append(value)
        return self.values

    def first(self, name: str) -> str | None:
        values = self.values.get(name)
        return values[0] if values else None

    def number(self, name: str) -> int | None:
        """The same, where it is a number: a driver may answer anything."""
        text = self.first(name) or ""
        return int(text) if text.lstrip("-").isdigit() else None


def doubtful(driver: Driver, probe: Probe) -> bool:
    """Whether cuInit should be asked too. It takes a tenth of a second and more, so not always."""
    if driver.path is None or driver.kind == "simulated":
        return False
    if driver.kind in ("stub", "compat", "wsl", "tegra"):
        return True
    if not probe.first("nvml.done"):
        return True
    told = (values for name, values in probe.values.items() if name.endswith(".fabric"))
    if not all(FABRIC_FINE.fullmatch(value) for values in told for value in values):
        return True
    return _was_suspended()


def _was_suspended() -> bool:
    try:
        with open("/sys/power/suspend_stats/success", encoding="ascii") as file:
            return int(file.read(32)) > 0
    except (OSError, ValueError):
        return False


def complete(
    driver: Driver, probe: Probe, inspected: Inspected, environ: Mapping[str, str]
) -> list[Problem]:
    """Adds what NVML said, and cuInit where there is doubt. Returns who was not asked."""
    probe.join()
    put(driver, probe_error=probe.error, nvml_error=probe.first("nvml.error"))
    _from_nvml(driver, probe)
    if driver.path and inspected.holds(driver.path):
        return [not_asked(driver.path)]
    if driver.path and doubtful(driver, probe):
        second = Probe(inspected.without(environ), cuda=driver.path)
        second.join()
        put(driver, init_code=second.number("cuda.init"))
        if (version := second.number("cuda.version") or 0) > 0:
            put(driver, cuda=from_code(version))
        failed = f"cuInit {second.error}" if second.error else second.first("cuda.error")
        put(driver, probe_error=failed or driver.probe_error)
        put(driver, devices=driver.devices or _devices(second))
    return []


def _from_nvml(driver: Driver, probe: Probe) -> None:
    release = probe.first("nvml.driver")
    if release and re.match(RELEASE, release):
        evidence = Evidence("libnvidia-ml.so.1", None, release)
        if driver.kernel_release is None:
            put(driver, kernel_release=release, kernel_evidence=evidence)
        if driver.release is None and driver.kind in ("native", "wsl", "tegra") and driver.path:
            put(driver, release=release, release_evidence=evidence)
    code = probe.number("nvml.cuda")
    if code is not None and driver.kind not in ("compat", "stub"):
        put(driver, cuda=from_code(code))
    elif driver.cuda is None:
        put(driver, cuda=driver_cuda(driver.release))
    put(driver, devices=driver.devices + _devices(probe))


def _devices(probe: Probe) -> list[Device]:
    return [_device(probe, n) for n in range(min(probe.number("count") or 0, 256))]


def _device(probe: Probe, index: int) -> Device:
    stem = f"device.{index}."
    return Device(
        index,
        name=probe.first(stem + "name") or None,
        uuid=probe.first(stem + "uuid") or None,
        pci_bus_id=probe.first(stem + "pci"),
        compute_capability=probe.first(stem + "capability"),
        memory=probe.number(stem + "memory"),
        mig=probe.first(stem + "mig") == "1",
        instances=probe.values.get(stem + "instance", []),
    )
