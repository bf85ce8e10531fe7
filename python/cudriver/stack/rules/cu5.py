"""CU5: the GPU, and what the environment variables leave of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cudriver.stack.facts import ERROR, NOTE, WARNING, Evidence, Facts, Finding, Framework
from cudriver.stack.fixes import fix
from cudriver.stack.fixes.pairs import has_wheels
from cudriver.stack.machine.visible import VARIABLE, hides_all, select
from cudriver.stack.machine_facts import Device
from cudriver.stack.rules.finding import finding
from cudriver.stack.tables import table
from cudriver.stack.text import quote
from cudriver.stack.versions import cut, major, minor


def runs(capability: str, archs: list[str]) -> str | None:
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
        kind, have, only = match[1], (int(match[2]), int(match[3])), match[4]
        family = have[0] == wanted[0]
        if kind == "sm" and (have == wanted if only == "a" else family and have <= wanted):
            return "cubin"
        ptx = ptx or (kind == "compute" and only != "a" and have <= wanted and (family or not only))
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
            how = runs(capability, archs)
            title = f"{framework.name} {framework.version} has no code for compute capability "
            evidence = [_device(device), framework.archs_evidence]
            if how == "ptx":
                title += f"{capability}: the driver compiles its PTX at first use"
                yield finding(NOTE, title, evidence)
            elif how is None:
                predicts = "no kernel image is available for execution on the device"
                fixes = _other_build(facts, framework, capability)
                yield finding(ERROR, title + capability, evidence, predicts, fixes, framework.name)
    yield from _unknown(facts)


def with_ptx(framework: Framework, platform: str) -> list[str]:
    """The arch list that PyTorch prints leaves out PTX that its build added; the table has it."""
    if framework.name != "torch" or any(a.startswith("compute_") for a in framework.archs):
        return framework.archs
    built = fix.torch_archs(framework.version, cut(framework.cuda, 2), platform)
    return framework.archs + [arch for arch in built if arch.startswith("compute_")]


def _other_build(facts: Facts, framework: Framework, capability: str) -> list[str]:
    """The same PyTorch for another CUDA that has code for this GPU, else another release. Other
    frameworks: an environment of their own with a build that has.
    """
    if framework.name != "torch":
        return [fix.apart(facts, framework.name)]
    env, offered = facts.environment, facts.driver.cuda
    tool = fix.installer(env, facts.distribution("torch"))
    builds = [row for row in fix.builds_for(env.platform) if runs(capability, fix.archs_of(row))]
    most = major(offered) or 0 if offered else 1000
    # Where the driver runs none, CU103 speaks of it.
    builds = [row for row in builds if (major(row["cuda"]) or 0) <= most] or builds
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
    # Of this release the build for the newest CUDA; of the newest the one for the oldest.
    release = cut(framework.version, 2)
    builds.sort(key=lambda row: (minor(row["torch"]) or (0, 0), minor(row["cuda"]) or (0, 0)))
    mine = [row for row in builds if row["torch"] == release]
    best = mine[-1] if mine else next(r for r in builds if r["torch"] == builds[-1]["torch"])
    if mine or tool in fix.CONDA:
        return [fix.torch_from(facts, best["cuda"])]
    index, wanted = f"{fix.INDEX}/{fix.tag(best['cuda'])}", f"torch=={best['torch']}.*"
    return [fix.install(env, wanted, by=tool, index=index, again=True)]


def _unknown(facts: Facts) -> Iterator[Finding]:
    """A GPU that the driver's branch does not know yet, or no more. Seen where one is stated."""
    names = {row["capability"]: row["name"] for row in table("driver")["architectures"]}
    for device in facts.driver.devices:
        wrong = fix.out_of_range(facts.driver, device)
        if wrong is None:
            continue
        wanted, which = wrong
        said = f"R{wanted} {'was' if which == 'last' else 'is'} the {which}"
        capability = device.compute_capability or ""
        title = f"driver {facts.driver.release} does not support compute capability {capability} "
        title += f"({names[capability]}); {said}"
        evidence = [_device(device), facts.driver.release_evidence]
        yield finding(ERROR, title, evidence, None, [fix.driver_package(facts)])


def cu502(facts: Facts) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES that hides more than it says."""
    value = facts.environment.variables.get(VARIABLE)
    devices = facts.driver.devices
    assumed = any(device.assumed for device in devices)
    if value is None or not devices or (assumed and not hides_all(value)):
        return
    chosen, predicts = select(value, devices), "No CUDA GPUs are available"
    evidence = [Evidence(f"${VARIABLE}", None, value)]
    for device in devices:
        told = f"{device.name or 'unknown'} {device.uuid or ''}".strip()
        evidence.append(Evidence(f"GPU {device.index}", None, told))
    count, stopped = f"{len(devices)} GPU{'' if len(devices) == 1 else 's'}", chosen.stopped_at
    less = stopped is not None and stopped.startswith("-") and not chosen.ordinals
    if stopped is not None and not less and not assumed:
        hidden = f"; {', '.join(chosen.unread)} after it not read" if chosen.unread else ""
        left = ",".join(str(i) for i in chosen.meant)
        title = f"{VARIABLE}={value}: {stopped!r} {chosen.reason}{hidden}, "
        title += f"{len(chosen.ordinals)} of {count} visible"
        fixes = [f"export {VARIABLE}={quote(left)}" if left else f"unset {VARIABLE}"]
        if chosen.ordinals:
            yield finding(WARNING, title, evidence, None, fixes)
        else:
            yield finding(ERROR, title, evidence, predicts, fixes)
    elif not chosen.ordinals:
        title = f"{VARIABLE}={value!r} hides every GPU"
        yield finding(WARNING, title, evidence, predicts, [f"unset {VARIABLE}"])
    elif len(chosen.ordinals) < len(devices):
        title = f"{VARIABLE}={value} leaves {len(chosen.ordinals)} of {count}"
        yield finding(NOTE, title, evidence)


def cu503(facts: Facts) -> Iterator[Finding]:
    """A venv whose Python is gone: nothing in it runs."""
    env = facts.environment
    if env.gone is None:
        return
    short, prefix = cut(env.python, 2) or "3", quote(env.prefix)
    line = f"rm {prefix}/bin/python* && python{short} -m venv {prefix}"
    if env.kind == "uv":
        line = f"uv venv --allow-existing --python {short} {prefix}"
    title = f"the Python that {env.prefix} was made with is gone: nothing in it runs"
    yield finding(ERROR, title, [env.gone], "No such file or directory", [line])
