"""A line for each component of a report: driver, toolkits, each framework, libraries."""

from __future__ import annotations

from cudriver.stack.model import ERROR, NOTE, UNKNOWN, WARNING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from cudriver.stack.model import Facts, Framework
    from cudriver.stack.outcome import Outcome

RANK = {ERROR: 0, WARNING: 1, NOTE: 2}
OK, ABSENT = "ok", "absent"  # a component without a finding; one that is not there
DRIVER = ("libcuda.so", "libnvidia-ml.so")  # the driver's line tells of them


def components(report: Outcome) -> list[tuple[str, str, str]]:
    """(name, worst severity, one line) for the driver, toolkits, each framework, the libraries."""
    facts = report.facts
    driver = facts.driver
    no_driver = driver.release is None and driver.path is None
    lines = [
        ("driver", _worst(report, no_driver, "CU1", "CU5"), driver_line(facts)),
        ("toolkit", _worst(report, not facts.toolkits, "CU2"), toolkit_line(facts)),
    ]
    packages = _worst(report, not facts.frameworks, "CU4")
    for framework in facts.frameworks:
        about = _about(report, framework)
        lines.append((framework.name, about, framework_line(facts, framework.name)))
    if not facts.frameworks:
        lines.append(("frameworks", packages, "none that uses CUDA"))
    lines.append(("libraries", _worst(report, not facts.libraries, "CU3"), libraries_line(facts)))
    return lines


def driver_line(facts: Facts) -> str:
    """Release, CUDA version and devices."""
    driver = facts.driver
    if driver.release is None and driver.path is None and driver.cuda is None:
        text = driver.error or "none"
    else:
        text = driver.release or "release unknown"
        if driver.cuda:
            text += f", up to CUDA {driver.cuda}"
        if driver.kind not in ("native", "wsl", "tegra"):
            text += f" ({driver.kind} library)"
        if driver.kernel_release and driver.kernel_release != driver.release:
            text += f", kernel module {driver.kernel_release}"
        if driver.error:
            text += f"; {driver.error}"
    if driver.assumed:
        text += " (assumed)"
    names: dict[str, int] = {}
    for device in driver.devices:
        capability = f" ({device.compute_capability})" if device.compute_capability else ""
        name = f"{device.name or 'GPU'}{capability}{'' if device.visible else ', hidden'}"
        names[name] = names.get(name, 0) + 1
    if names:
        gpus = "; ".join(f"{n} x {name}" if n > 1 else name for name, n in names.items())
        text += f"; {gpus}"
    return text


def toolkit_line(facts: Facts) -> str:
    """The environment's toolkit, then the system's."""
    inside = [t for t in facts.toolkits if t.origin == "environment"]
    system = [t for t in facts.toolkits if t.origin == "system"]
    parts = []
    if inside:
        of = ", ".join(f"{t.version or 'unknown version'} ({t.kind})" for t in inside)
        parts.append(f"environment {of}")
    else:
        parts.append("none in the environment")
    if system:
        of = ", ".join(f"{t.version or 'unknown version'} at {t.path}" for t in system)
        parts.append(f"system {of}")
    else:
        parts.append("none on the system")
    return "; ".join(parts)


def framework_line(facts: Facts, name: str) -> str:
    """Version, and what of CUDA it has."""
    framework = next(f for f in facts.frameworks if f.name == name)
    if framework.variant == "cpu":
        return f"{framework.version}, CPU only"
    if framework.variant == "rocm":
        return f"{framework.version}, for ROCm"
    parts = [
        f"{label} {value}"
        for label, value in (
            ("CUDA", framework.cuda),
            ("cuDNN", framework.cudnn),
            ("NCCL", framework.nccl),
        )
        if value
    ]
    text = framework.version
    if parts:
        text += ": " + ", ".join(parts)
    if framework.blocked:
        text += f"; its import needs {framework.blocked}"
    return text if framework.modelled else f"{text}; not modelled: facts only"


def libraries_line(facts: Facts) -> str:
    """How many CUDA libraries, where they come from, and what of the system stays unused."""
    libraries = [library for library in facts.libraries if library.family != "driver"]
    if not libraries:
        return "no CUDA libraries"
    outside = [library for library in libraries if library.origin == "system"]
    missing = {
        r.soname
        for r in facts.resolutions
        if r.path is None and not r.optional and not r.soname.startswith(DRIVER)
    }
    every = "all " if len(libraries) > 1 else ""
    if not outside:
        text = f"{len(libraries)}, {every}from the environment"
    elif len(outside) == len(libraries):
        text = f"{len(libraries)}, {every}from the system"
    else:
        text = f"{len(libraries)}, of them from the system: {_some(lib.soname for lib in outside)}"
    if missing:
        text += f"; not found: {_some(sorted(missing))}"
    unused = []
    for library in libraries:
        for other in library.shadowed:
            if library.origin != "system" and not _inside(facts, other.path):
                unused.append(f"{library.soname} {other.version or ''}".rstrip())
                break
    if unused:
        text += f"; unused on the system: {_some(unused)}"
    return text


def _worst(report: Outcome, absent: bool, *families: str) -> str:
    """The worst severity among these families; OK or ABSENT where there is no more than a note."""
    ranks = [RANK[f.severity] for f in report.findings if f.rule.startswith(families)]
    return {0: ERROR, 1: WARNING}.get(min(ranks, default=2), ABSENT if absent else OK)


def _about(report: Outcome, framework: Framework) -> str:
    """The worst severity among the findings about this framework, ERROR where its import ends with
    another's; UNKNOWN where it is well as far as is known, and its loading is not.
    """
    cause = report.facts.framework(framework.blocked) if framework.blocked else None
    if cause is not None and cause.fails:
        return ERROR
    names = (framework.name, framework.distribution)
    ranks = [RANK[f.severity] for f in report.findings if f.subject and f.subject in names]
    good = OK if framework.modelled else UNKNOWN
    return {0: ERROR, 1: WARNING}.get(min(ranks, default=2), good)


def _inside(facts: Facts, path: str) -> bool:
    return path.startswith(facts.environment.prefix.rstrip("/") + "/")


def _some(names: Iterable[str], limit: int = 3) -> str:
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
