"""CU5: the GPU, and what the environment variables leave of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cudriver.stack.model import (
    ERROR,
    NOTE,
    WARNING,
    Device,
    Evidence,
    Facts,
    Finding,
    Framework,
)
from cudriver.stack.rules import fix
from cudriver.stack.rules.anew import has_wheels, planned
from cudriver.stack.rules.limits import out_of_range
from cudriver.stack.tables import table
from cudriver.stack.text import quote
from cudriver.stack.versions import cut, major, minor
from cudriver.stack.visible import VARIABLE, select


def fits(capability: str, archs: list[str]) -> str | None:
    """How a list of architectures serves a device: "cubin", "ptx", or None.

    A cubin runs on its own minor version and later ones of one major; sm_90a on 9.0 alone;
    sm_100f in its family; PTX (compute_NN) on anything newer, by the driver's compiler.
    """
    wanted = minor(capability)
    if wanted is None:
        return None
    ptx = False
    for arch in archs:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch.strip())
        if match is None:
            continue
        have = (int(match[2]), int(match[3]))
        if match[4] == "a":
            if match[1] == "sm" and have == wanted:
                return "cubin"
            continue
        if match[1] == "sm" and have[0] == wanted[0] and have[1] <= wanted[1]:
            return "cubin"
        if match[1] == "compute" and (
            have <= wanted if match[4] == "" else have[0] == wanted[0] and have <= wanted
        ):
            ptx = True
    return "ptx" if ptx else None


def _device(device: Device) -> Evidence:
    name = device.name or ("assumed" if device.assumed else "unknown")
    return Evidence(
        f"GPU {device.index}", None, f"{name}, compute capability {device.compute_capability}"
    )


def cu501(facts: Facts) -> Iterator[Finding]:
    """A GPU that the framework has no code for."""
    for framework in facts.frameworks:
        if framework.variant != "cuda" or not framework.archs:
            continue
        archs = with_ptx(framework, facts.environment.platform)
        done = set()
        for device in facts.driver.devices:
            capability = device.compute_capability
            if capability is None or capability in done or not device.visible:
                continue
            done.add(capability)
            how = fits(capability, archs)
            if how == "cubin":
                continue
            evidence = [_device(device)]
            if framework.archs_evidence:
                evidence.append(framework.archs_evidence)
            if how == "ptx":
                title = (
                    f"{framework.name} {framework.version} has no code for compute "
                    f"capability {capability}: the driver compiles its PTX at first use"
                )
                yield Finding("CU501", NOTE, title, evidence)
                continue
            yield Finding(
                "CU501",
                ERROR,
                f"{framework.name} {framework.version} has no code for compute capability "
                f"{capability}",
                evidence,
                "no kernel image is available for execution on the device",
                _other_build(facts, framework, capability),
            )
    yield from _unknown(facts)


def with_ptx(framework: Framework, platform: str) -> list[str]:
    """The arch list that PyTorch prints leaves out PTX that its build added; the table has it."""
    if framework.name != "torch" or any(a.startswith("compute_") for a in framework.archs):
        return framework.archs
    for row in _rows(framework.version, platform):
        if row["cuda"] == cut(framework.cuda, 2) and "+PTX" in row["archs"]:
            return [*framework.archs, f"compute_{_newest(row['archs'])}"]
    return framework.archs


def _rows(version: str, platform: str) -> list[dict[str, str]]:
    wanted = cut(version, 2)
    return [r for r in _builds(platform) if r["torch"] == wanted]


def _builds(platform: str) -> list[dict[str, str]]:
    """PyTorch's builds for Linux on a machine ("x86_64", "aarch64"), oldest first."""
    return [r for r in table("architectures")["torch"] if f"linux {platform}" in r["platform"]]


def archs_of(row: dict[str, str]) -> list[str]:
    """The list of one of PyTorch's builds, as its binary would tell it."""
    archs = [f"sm_{a.replace('.', '')}" for a in row["archs"].replace("+PTX", "").split(";")]
    return [*archs, f"compute_{_newest(row['archs'])}"] if "+PTX" in row["archs"] else archs


def torch_archs(version: str, cuda: str | None, platform: str) -> list[str]:
    """What a build of PyTorch has code for, as its table tells; [] where that is not known."""
    return next((archs_of(r) for r in _rows(version, platform) if r["cuda"] == cuda), [])


def _newest(archs: str) -> str:
    return archs.replace("+PTX", "").split(";")[-1].replace(".", "")


def _other_build(facts: Facts, framework: Framework, capability: str) -> list[str]:
    """The same PyTorch for another CUDA that has code for this GPU, else another release. Other
    frameworks: an environment of their own with a build that has.
    """
    if framework.name != "torch":
        return planned(facts, framework.name)
    env, offered = facts.environment, facts.driver.cuda
    tool = fix.installer(env, facts.distribution("torch"))
    builds = [row for row in _builds(env.platform) if fits(capability, archs_of(row))]
    runs = [
        r for r in builds if offered is None or (major(r["cuda"]) or 0) <= (major(offered) or 0)
    ]
    builds = runs or builds  # where none does, CU103 speaks of the driver
    if builds and tool not in fix.CONDA:
        builds = [row for row in builds if has_wheels(facts, row["torch"])]
        if not builds:
            python = cut(env.python, 2)
            return [f"no PyTorch with code for this GPU has wheels for Python {python}."]
    if not builds:
        return [
            "no PyTorch that is known here has code for this GPU; one built from source has, with "
            f"TORCH_CUDA_ARCH_LIST={capability}."
        ]
    release = cut(framework.version, 2)
    mine = [row for row in builds if row["torch"] == release]
    if mine:
        return [fix.torch_from(facts, max(mine, key=lambda r: minor(r["cuda"]) or (0, 0))["cuda"])]
    # Of the newest release the build that asks least of the driver.
    newest = max(minor(row["torch"]) or (0, 0) for row in builds)
    best = min(
        (row for row in builds if minor(row["torch"]) == newest),
        key=lambda r: minor(r["cuda"]) or (0, 0),
    )
    if tool in fix.CONDA:
        return [fix.torch_from(facts, best["cuda"])]
    index = f"{fix.INDEX}/{fix.tag(best['cuda'])}"
    return [fix.install(env, f"torch=={best['torch']}.*", by=tool, index=index, again=True)]


def _unknown(facts: Facts) -> Iterator[Finding]:
    """A GPU that the driver's branch does not know yet, or no more. Seen where one is stated."""
    names = {row["capability"]: row["name"] for row in table("driver")["architectures"]}
    for device in facts.driver.devices:
        wrong = out_of_range(facts.driver, device)
        if wrong is None:
            continue
        wanted, which = wrong
        said = f"R{wanted} {'was' if which == 'last' else 'is'} the {which}"
        capability = device.compute_capability or ""
        yield Finding(
            "CU501",
            ERROR,
            f"driver {facts.driver.release} does not support compute capability "
            f"{capability} ({names[capability]}); {said}",
            [_device(device), *([e] if (e := facts.driver.release_evidence) else [])],
            None,
            [fix.driver_package(facts.driver)],
        )


def cu502(facts: Facts) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES that hides more than it says."""
    value = facts.environment.variables.get(VARIABLE)
    devices = [d for d in facts.driver.devices if not d.assumed]
    if value is None or not devices:
        return
    chosen = select(value, devices)
    evidence = [Evidence(f"${VARIABLE}", None, value), *(_uuid(d) for d in devices)]
    if chosen.stopped_at is not None and not (
        chosen.stopped_at.startswith("-") and not chosen.ordinals
    ):
        hidden = f"; {', '.join(chosen.unread)} after it not read" if chosen.unread else ""
        left = ",".join(str(i) for i in chosen.meant)
        title = (
            f"{VARIABLE}={value}: {chosen.stopped_at!r} {chosen.reason}{hidden}, "
            f"{len(chosen.ordinals)} of {_gpus(devices)} visible"
        )
        severity = WARNING if chosen.ordinals else ERROR
        fixes = [f"export {VARIABLE}={quote(left)}" if left else f"unset {VARIABLE}"]
        yield Finding(
            "CU502",
            severity,
            title,
            evidence,
            None if chosen.ordinals else "No CUDA GPUs are available",
            fixes,
        )
    elif not chosen.ordinals:
        title = f"{VARIABLE}={value!r} hides every GPU"
        yield Finding(
            "CU502", WARNING, title, evidence, "No CUDA GPUs are available", [f"unset {VARIABLE}"]
        )
    elif len(chosen.ordinals) < len(devices):
        title = f"{VARIABLE}={value} leaves {len(chosen.ordinals)} of {_gpus(devices)}"
        yield Finding("CU502", NOTE, title, evidence)


def cu503(facts: Facts) -> Iterator[Finding]:
    """A venv whose Python is gone: nothing in it runs."""
    env = facts.environment
    if env.gone is None:
        return
    short = cut(env.python, 2) or "3"
    prefix = quote(env.prefix)
    fixes = f"rm {prefix}/bin/python* && python{short} -m venv {prefix}"
    if env.kind == "uv":
        fixes = f"uv venv --allow-existing --python {short} {prefix}"
    yield Finding(
        "CU503",
        ERROR,
        f"the Python that {env.prefix} was made with is gone: nothing in it runs",
        [env.gone],
        "No such file or directory",
        [fixes],
    )


def _gpus(devices: list[Device]) -> str:
    return f"{len(devices)} GPU{'' if len(devices) == 1 else 's'}"


def _uuid(device: Device) -> Evidence:
    return Evidence(
        f"GPU {device.index}", None, f"{device.name or 'unknown'} {device.uuid or ''}".strip()
    )


RULES = {"CU501": cu501, "CU502": cu502, "CU503": cu503}
