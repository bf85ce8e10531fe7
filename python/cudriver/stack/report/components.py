"""A line for each component of a report: driver, toolkits, each framework, libraries."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from cudriver.stack.facts import (
    CPU_ONLY,
    ERROR,
    FAILS,
    NOT_KNOWN,
    UNKNOWN,
    WARNING,
    WORKS,
    Facts,
    Finding,
    Framework,
    every,
)
from cudriver.stack.report.outcome import Outcome
from cudriver.stack.rules.verdict import concerns
from cudriver.stack.say import language, say, translate

OK, ABSENT, UNJUDGED = "ok", "absent", "unjudged"  # what works; what is not there; the rest
STATES = {WORKS: OK, CPU_ONLY: ERROR, FAILS: ERROR, NOT_KNOWN: UNKNOWN, None: ABSENT}
# Of a framework's variant.
OTHERS = {"cpu": ", built without CUDA", "rocm": ", for ROCm", "xpu": ", for Intel's GPUs"}
FEW = 3  # names of many that a line tells
DRIVER = ("libcuda.so", "libnvidia-ml.so")  # the driver's line tells of them


def components(report: Outcome, *, verbose: bool = False) -> list[tuple[str, str, str]]:
    """(name, what its mark says, one line) for the driver, toolkits, each framework, the libraries.

    A framework has its state's mark, and what speaks against it; another row only the latter.
    Of many names the first few are told, or (verbose) all.
    """
    most = sys.maxsize if verbose else FEW
    facts = report.facts
    driver = facts.driver
    no_driver = driver.release is None and driver.path is None
    lines = [
        _row(report, say("driver"), driver_line(facts), no_driver, "CU1", "CU5"),
        _row(report, say("toolkit"), toolkit_line(facts, most), not facts.toolkits, "CU2"),
    ]
    for framework in report.frameworks:
        about = [f for f in every(report.findings) if f.subject and concerns(f, framework, facts)]
        severity, found = _worst(about)
        mark = STATES[framework.state]
        if severity == WARNING and mark in (OK, ABSENT):
            mark = WARNING
        lines.append((framework.name, mark, framework_line(framework) + _wrong(found)))
    if not facts.frameworks:
        lines.append(_row(report, say("frameworks"), say("none that uses CUDA"), True, "CU4"))
    libraries = say("libraries"), libraries_line(facts, most), not facts.libraries
    lines.append(_row(report, *libraries, "CU3"))
    return lines


def _row(
    report: Outcome, label: str, text: str, absent: bool, *families: str
) -> tuple[str, str, str]:
    """A component with the worst of the findings of these families."""
    own = (f for f in every(report.findings) if f.rule.startswith(families))
    # What keeps one framework from the GPU stands beside it.
    severity, found = _worst([f for f in own if not (f.cpu and f.rule == "CU502")])
    return label, severity or (ABSENT if absent else UNJUDGED), text + _wrong(found)


def _wrong(findings: list[Finding]) -> str:
    """What is wrong with a component, by the titles of the rules."""
    if not findings:
        return ""
    from cudriver.stack import rulebook

    text, known = "", rulebook.rule_names()
    for rule in dict.fromkeys(f.rule for f in findings):
        title = rulebook.title(rule, language()) if rule in known else ""
        text += say("; ") + f"{title} ({rule})".lstrip()
    return text


def driver_line(facts: Facts) -> str:
    """Release, CUDA version and devices."""
    driver = facts.driver
    if driver.release is None and driver.path is None and driver.cuda is None:
        text = translate(driver.error, "driver") if driver.error else say("none")
    else:
        text = driver.release or say("release unknown")
        if driver.cuda:
            text += say(", up to CUDA {cuda}", cuda=driver.cuda)
        if driver.kind not in ("native", "wsl", "tegra"):
            text += say(" ({kind} library)", kind=driver.kind)
        if driver.kernel_release and driver.kernel_release != driver.release:
            text += say(", kernel module {release}", release=driver.kernel_release)
        if driver.error:
            text += say("; ") + translate(driver.error, "driver")
    if driver.assumed:
        text += say(" (assumed)")
    names: dict[str, int] = {}
    for device in driver.devices:
        capability = f" ({device.compute_capability})" if device.compute_capability else ""
        name = f"{device.name or 'GPU'}{capability}{'' if device.visible else say(', hidden')}"
        names[name] = names.get(name, 0) + 1
    for name, n in names.items():
        text += say("; ") + (f"{n} x {name}" if n > 1 else name)
    if facts.environment.kind == "conda":
        text += say("; ") + say(
            "__cuda of conda and pixi: {cuda}", cuda=facts.conda_cuda or say("none")
        )
        if "CONDA_OVERRIDE_CUDA" in facts.environment.variables:
            text += say(" (by CONDA_OVERRIDE_CUDA)")
    return text


def toolkit_line(facts: Facts, most: int = FEW) -> str:
    """The environment's toolkit, then the system's."""
    inside = [t for t in facts.toolkits if t.origin == "environment"]
    system = [t for t in facts.toolkits if t.origin == "system"]
    if inside:
        kinds = ((t.version or say("unknown version"), say(t.kind)) for t in inside)
        of = ", ".join(f"{version} ({kind})" for version, kind in kinds)
        text = say("environment {versions}", versions=of)
    else:
        text = say("none in the environment")
    if system:
        places = ((t.version or say("unknown version"), t.path) for t in system)
        of = ", ".join(say("{version} at {path}", version=v, path=path) for v, path in places)
        return text + say("; ") + say("system {versions}", versions=of)
    return text + say("; ") + say("none on the system")


def framework_line(framework: Framework) -> str:
    """Its state, its version, and what of CUDA it has."""
    state = say(framework.state) + say(", ") if framework.state else ""
    if framework.without_cuda:
        return state + framework.version + say(OTHERS[framework.variant])
    known = {"CUDA": framework.cuda, "cuDNN": framework.cudnn, "NCCL": framework.nccl}
    parts = [f"{label} {value}" for label, value in known.items() if value]
    text = state + (framework.version or say("unknown version"))
    if parts:
        text += ": " + ", ".join(parts)
    if framework.blocked:
        text += say("; its import needs {name}", name=framework.blocked)
    return text if framework.modelled else text + say("; not modelled: facts only")


def using_cuda(report: Outcome) -> bool:
    """Whether anything is here for CUDA."""
    return any(framework.state is not None for framework in report.frameworks)


def judged_for(facts: Facts) -> str:
    """For which driver all is judged, where that is not the one that is here."""
    driver = facts.driver
    if driver.assumed:
        return say("judged for driver {release}", release=driver.release or "?")
    none = driver.path is None and driver.release is None and driver.cuda is None
    asked = any(not framework.without_cuda for framework in facts.frameworks)
    return say("no driver: judged as if one were here") if none and asked else ""


def libraries_line(facts: Facts, most: int = FEW) -> str:
    """How many CUDA libraries, where they come from, and what of the system stays unused."""
    libraries = [library for library in facts.libraries if library.family != "driver"]
    if not libraries:
        return say("no CUDA libraries")
    outside = [library for library in libraries if library.origin == "system"]
    missing = {x.soname for x in facts.missing if not x.soname.startswith(DRIVER)}
    n = len(libraries)
    if not outside:
        text = say("{n}, all from the environment" if n > 1 else "1, from the environment", n=n)
    elif len(outside) == n:
        text = say("{n}, all from the system" if n > 1 else "1, from the system", n=n)
    else:
        names = _some((library.soname for library in outside), most)
        text = say("{n}, of them from the system: {names}", n=n, names=names)
    if missing:
        text += say("; not found: {names}", names=_some(sorted(missing), most))
    inside = facts.environment.prefix.rstrip("/") + "/"
    unused = [
        f"{library.soname} {other.version or ''}".rstrip()
        for library in libraries
        for other in [x for x in library.shadowed if not x.path.startswith(inside)][:1]
        if library.origin != "system"
    ]
    if unused:
        text += say("; unused on the system: {names}", names=_some(unused, most))
    return text


def _worst(findings: list[Finding]) -> tuple[str | None, list[Finding]]:
    """The worst severity, and the findings of it; None where there is no more than a note."""
    for severity in (ERROR, WARNING):
        found = [f for f in findings if f.severity == severity]
        if found:
            return severity, found
    return None, []


def _some(names: Iterable[str], most: int = FEW) -> str:
    names = list(dict.fromkeys(names))
    more = say(" and {n} more", n=len(names) - most) if len(names) > most else ""
    return ", ".join(names[:most]) + more
