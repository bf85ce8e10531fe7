"""CU5: the GPU, and what the environment variables leave of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cudriver.stack.facts import ERROR, NOTE, WARNING, Evidence, Facts, Finding, Framework
from cudriver.stack.fixes import fix
from cudriver.stack.fixes.pairs import runs, torch_for_gpus
from cudriver.stack.machine.visible import VARIABLE, hides_all, select
from cudriver.stack.machine_facts import Device
from cudriver.stack.rules.finding import finding
from cudriver.stack.tables import table
from cudriver.stack.text import quote
from cudriver.stack.versions import cut


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
            evidence = [device.evidence, framework.archs_evidence]
            if how == "ptx":
                title += f"{capability}: the driver compiles its PTX at first use"
                yield finding(NOTE, title, evidence)
            elif how is None:
                predicts = "no kernel image is available for execution on the device"
                fixes = _other_build(facts, framework, device)
                name = framework.name
                title += capability
                yield finding(ERROR, title, evidence, predicts, fixes, name, capability)
    yield from _unknown(facts)


def with_ptx(framework: Framework, platform: str) -> list[str]:
    """The arch list that PyTorch prints leaves out PTX that its build added; the table has it."""
    if framework.name != "torch" or any(a.startswith("compute_") for a in framework.archs):
        return framework.archs
    built = fix.torch_archs(framework.version, cut(framework.cuda, 2), platform)
    return framework.archs + [arch for arch in built if arch.startswith("compute_")]


def _other_build(facts: Facts, framework: Framework, device: Device) -> list[str]:
    """A build of PyTorch that has code for the GPUs here: of this release, else of the newest.
    Other frameworks: an environment of their own.
    """
    env, tool = facts.environment, fix.installer(facts.environment, facts.distribution("torch"))
    if framework.name != "torch":
        return [fix.apart(facts, framework.name)]
    visible = [each for each in facts.driver.devices if each.visible]
    gpus = list(dict.fromkeys(filter(None, (each.compute_capability for each in visible))))
    build, wheels = torch_for_gpus(facts, visible), f"wheels for Python {cut(env.python, 2)}"
    if build is None and len(gpus) > 1:
        return [
            f"no PyTorch that is known here with {wheels} and one driver serve all GPUs here "
            f"({', '.join(gpus)}): hide one with {VARIABLE}, or build PyTorch from source with "
            f"TORCH_CUDA_ARCH_LIST={quote(';'.join(gpus))}, where one CUDA and one driver know all."
        ]
    if build is None and env.platform != "x86_64":
        return [fix.apart(facts, framework.name)]
    if build is None:
        return [
            f"no PyTorch that is known here has code for this GPU and {wheels}; one built from "
            f"source has, with TORCH_CUDA_ARCH_LIST={device.compute_capability}."
        ]
    same = cut(build.frameworks["torch"]["version"], 2) == cut(framework.version, 2)
    if same or tool in fix.CONDA:
        return [fix.torch_from(facts, build.cuda)]
    here = {"torch", *(dist.name for dist in facts.distributions)}
    names = [each for each in build.packages if fix.bare(each) in here]
    return [fix.install(env, *names, by=tool, index=build.index, again=True)]


def _unknown(facts: Facts) -> Iterator[Finding]:
    """A GPU that the driver's branch does not know yet, or no more. Seen where one is stated."""
    names = {row["capability"]: row["name"] for row in table("driver")["architectures"]}
    for device in facts.driver.devices:
        wrong = fix.out_of_range(facts.driver, device)
        if wrong is None:
            continue
        wanted, which = wrong
        branch = f"R{wanted} {'was' if which == 'last' else 'is'} the {which}"
        capability = device.compute_capability or ""
        title = f"driver {facts.driver.release} does not support compute capability {capability} "
        title += f"({names[capability]}); {branch}"
        evidence = [device.evidence, facts.driver.release_evidence]
        yield finding(ERROR, title, evidence, None, [fix.driver_package(facts)])


def cu502(facts: Facts) -> Iterator[Finding]:
    """Variables that keep one framework from the GPU, or hide GPUs from all."""
    for name, row in table("environments")["switches"].items():
        framework = next(filter(None, map(facts.framework, row["frameworks"])), None)
        value = facts.environment.variables.get(name, "")
        if framework and not framework.without_cuda and re.fullmatch(row["off"], value):
            title = f"{name}={value}: {framework.name} does not use the GPU"
            evidence, fixes = [Evidence(f"${name}", None, value)], [fix.setting(name, [])]
            says = row.get("says")
            yield finding(ERROR, title, evidence, says, fixes, framework.name, cpu=True)
    yield from _visible_devices(facts)


def _visible_devices(facts: Facts) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES that hides more than it says."""
    value = facts.environment.variables.get(VARIABLE)
    devices = facts.driver.devices
    assumed = any(device.assumed for device in devices)
    if value is None or not devices or (assumed and not hides_all(value)):
        return
    chosen, predicts = select(value, devices), "No CUDA GPUs are available"
    evidence = [Evidence(f"${VARIABLE}", None, value)]
    for device in devices:
        what = f"{device.name or 'unknown'} {device.uuid or ''}".strip()
        evidence.append(Evidence(f"GPU {device.index}", None, what))
    count, stopped = f"{len(devices)} GPU{'' if len(devices) == 1 else 's'}", chosen.stopped_at
    less = stopped is not None and stopped.startswith("-") and not chosen.ordinals
    if stopped is not None and not less and not assumed:
        hidden = f"; {', '.join(chosen.unread)} after it not read" if chosen.unread else ""
        left = ",".join(str(i) for i in chosen.meant)
        title = f"{VARIABLE}={value}: {stopped!r} {chosen.reason}{hidden}, "
        title += f"{len(chosen.ordinals)} of {count} visible"
        fixes = [f"export {VARIABLE}={quote(left)}" if left else f"unset {VARIABLE}"]
        severity, says = (WARNING, None) if chosen.ordinals else (ERROR, predicts)
        yield finding(severity, title, evidence, says, fixes)
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
    title = f"the Python of {env.prefix} is gone: nothing in it runs"
    yield finding(ERROR, title, [env.gone], "No such file or directory", [fix.venv_again(env)])
