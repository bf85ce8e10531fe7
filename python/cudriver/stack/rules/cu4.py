"""CU4: packages. What they require of each other is in cu4_pins and cu4_clashes, their files in
cu4_files, TensorRT in cu4_tensorrt."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from cudriver.stack.model import (
    ERROR,
    IMPORT,
    NOTE,
    WARNING,
    Distribution,
    Evidence,
    Facts,
    Finding,
    Framework,
    Library,
    Requirement,
)
from cudriver.stack.names import describe, split
from cudriver.stack.rules import fix
from cudriver.stack.rules.cu4_clashes import cu407
from cudriver.stack.rules.cu4_files import cu404
from cudriver.stack.rules.cu4_pins import cu402, pins
from cudriver.stack.rules.cu4_tensorrt import cu406
from cudriver.stack.rules.faults import KIN, other_build, other_major, proof
from cudriver.stack.text import quote
from cudriver.stack.versions import at_least, cut, major


def _gpu(facts: Facts) -> bool:
    return bool(facts.driver.devices or facts.driver.kernel_release or facts.driver.pci_devices)


def cu401(facts: Facts) -> Iterator[Finding]:
    """A build without CUDA where there is a GPU."""
    for framework in facts.frameworks:
        if framework.variant != "cpu" or framework.name not in (
            "torch",
            "tensorflow",
            "jax",
            "onnxruntime",
        ):
            continue
        dist = facts.distribution(framework.distribution or framework.name)
        evidence = [framework.cuda_evidence] if framework.cuda_evidence else []
        if dist:
            build = f" {dist.build}" if dist.build else ""
            evidence.append(
                Evidence(dist.evidence.file, dist.line, f"{dist.name} {dist.version}{build}")
            )
        severity = NOTE
        if framework.name == "torch" and _gpu(facts):
            severity = ERROR
        title = f"{framework.name} {framework.version} is built without CUDA"
        predicts = "torch.cuda.is_available() is False" if framework.name == "torch" else None
        yield Finding(
            "CU401",
            severity,
            title,
            evidence,
            predicts,
            _cuda_build(facts, framework, dist),
            framework.name,
        )


def _cuda_build(facts: Facts, framework: Framework, dist: Distribution | None) -> list[str]:
    env = facts.environment
    tool = fix.installer(env, dist)
    if framework.name == "torch":
        if tool in fix.CONDA:
            return [fix.install(env, "pytorch-gpu", by=tool)]
        cuda = fix.torch_for_driver(facts) or fix.usual_variant(framework.version)
        return [fix.torch_from(facts, cuda)] if cuda else []
    cuda = str(min(major(facts.driver.cuda) or 12, 13))
    wanted = {
        "tensorflow": "tensorflow[and-cuda]",
        "jax": f"jax[cuda{cuda}]",
        "onnxruntime": "onnxruntime-gpu",
    }
    return [fix.install(env, wanted[framework.name], by="pip" if tool in fix.CONDA else tool)]


def cu403(facts: Facts) -> Iterator[Finding]:
    """Two CUDA majors in what one framework loads or requires."""
    for fault in facts.load_faults:
        known = fault.severity == NOTE or other_build(facts, fault.framework)
        if fault.kind == "not found" and not known and other_major(facts, fault):
            torch = facts.framework("torch")
            present = [
                d.evidence for d in facts.distributions if re.match(r"nvidia-cuda-runtime", d.name)
            ]
            evidence = [Evidence(fault.library, None, f"needs {fault.name}"), *present]
            if torch and torch.cuda_evidence:
                evidence.append(torch.cuda_evidence)
            yield Finding(
                "CU403",
                fault.severity,
                f"{fault.framework} needs {fault.name}, PyTorch here is built for CUDA "
                f"{torch.cuda if torch else ''}",
                evidence + proof(facts, fault),
                fault.text,
                _one_major(facts, fault.framework or "", fault.name),
                fault.framework or fault.library,
            )
            return
    for framework in facts.frameworks:
        # A runtime that PyTorch preloads for nobody does no harm.
        used = [x for x in facts.libraries if x.path in framework.loads and x.needed_by]
        runtimes = {x.soname: x for x in used if x.soname.startswith("libcudart.so")}
        if len(runtimes) > 1 and framework.modelled:
            yield Finding(
                "CU403",
                WARNING,
                f"{framework.name} loads {' and '.join(sorted(runtimes))} into one process",
                [
                    Evidence(x.path, None, f"{x.version}, for {', '.join(x.needed_by[:2])}")
                    for x in runtimes.values()
                ],
                None,
                _one_major(facts, framework.distribution or framework.name, ""),
                framework.name,
            )
            return
    yield from _left_over(facts)
    for dist in facts.distributions:
        if dist.kind == "conda":
            continue
        majors: dict[str, Requirement] = {}
        for requirement in dist.active([]):
            stem, _, number = requirement.name.rpartition("-cu")
            if stem.startswith("nvidia-") and number.isdigit():
                majors.setdefault(number, requirement)
        if len(majors) > 1:
            yield Finding(
                "CU403",
                WARNING,
                f"{dist.name} requires packages of CUDA {' and '.join(sorted(majors))}",
                [r.evidence for r in majors.values()],
                None,
                [fix.reinstall(facts, dist)],
                dist.name,
            )
            return


def _left_over(facts: Facts) -> Iterator[Finding]:
    """A wheel of another CUDA major that a framework does not require and gets its library from,
    since the SONAME is the same in both (libcusparse.so.12, libcurand.so.10).
    """
    required = {pin.requirement.name for pin in pins(facts)}
    told: set[str] = set()
    for framework in facts.frameworks:
        mine = major(framework.cuda)
        if not framework.modelled or mine is None:
            continue
        wheels: dict[str, list[Library]] = {}
        for library in facts.libraries:
            theirs = major(library.cuda)
            name = (library.provided_by or "").split(" ")[0]
            if theirs in (None, mine) or not name or name in required:
                continue
            toolkit = "component" in describe(split(library.soname)[0])
            if toolkit and library.path in framework.loads:
                wheels.setdefault(name, []).append(library)
        dists = [dist for name in wheels if name not in told and (dist := facts.distribution(name))]
        told.update(wheels)
        if dists:
            used = [library for dist in dists for library in wheels[dist.name]]
            yield Finding(
                "CU403",
                WARNING,
                f"{framework.name} is for CUDA {framework.cuda} and gets "
                f"{', '.join(x.soname for x in used)} of CUDA {used[0].cuda}, from wheels that "
                "nothing requires",
                [Evidence(x.path, None, f"{x.provided_by}, by {x.found_by}") for x in used],
                None,
                [fix.uninstall(facts.environment, dist) for dist in dists],
                framework.name,
                used[0].path,
            )


def _one_major(facts: Facts, name: str, soname: str) -> list[str]:
    env = facts.environment
    framework = facts.framework(name)
    dist = facts.distribution(framework.distribution or name if framework else name)
    wanted = re.search(r"\.so\.(\d+)", soname)
    torch = facts.framework("torch")
    fixes = []
    if wanted and torch:
        for variant in reversed(fix.variants(torch.version)):
            if str(major(variant)) == wanted[1]:
                fixes.append(fix.torch_from(facts, variant))
                break
    if dist and torch and torch.cuda:
        tool = fix.installer(env, dist)
        fixes.append(
            fix.install(env, dist.name, by=tool, again=True)
            + f"  # a build for CUDA {major(torch.cuda)}"
        )
    return fixes


def cu405(facts: Facts) -> Iterator[Finding]:
    """torchvision and torchaudio for another CUDA than PyTorch."""
    torch = facts.framework("torch")
    for name in KIN:
        kin = facts.framework(name)
        if torch is None or kin is None or not other_build(facts, name):
            continue
        mine, theirs = cut(torch.cuda, 2), cut(kin.cuda, 2)
        faults = [f for f in facts.load_faults if f.framework == name]
        # Where its operators do not load, torchvision has no version to compare, and goes on.
        idle = next((f for f in faults if os.path.basename(f.library).startswith("_C")), None)
        predicts = idle.text if idle else _refusal(kin, mine, theirs)
        severity = ERROR if predicts else NOTE
        if idle or mine is None or theirs is None:
            severity = WARNING
        if name == "torchvision" and theirs is None:
            predicts = "Could not run 'torchvision::nms' with arguments from the 'CUDA' backend"
        yield Finding(
            "CU405",
            severity,
            f"torch is built for {_built(mine)}, {name} for {_built(theirs)}",
            [e for e in (torch.cuda_evidence, kin.cuda_evidence) if e],
            predicts,
            [_same_index(facts, name, torch)],
            name,
        )


def _refusal(kin: Framework, mine: str | None, theirs: str | None) -> str | None:
    """What the import ends with where it compares PyTorch's CUDA with its own; None where it goes
    on. A build for the CPU compares nothing.
    """
    if mine is None or theirs is None:
        return None
    if kin.name == "torchaudio":
        if at_least(kin.version, "0.13") is False:
            return None  # which compares nothing
        return "Detected that PyTorch and TorchAudio were compiled with different CUDA versions."
    whole = at_least(kin.version, "0.16") is False  # later ones compare the majors alone
    if not whole and major(mine) == major(theirs):
        return None
    return (
        "Detected that PyTorch and torchvision were compiled with different CUDA "
        f"{'' if whole else 'major '}versions. "
        f"PyTorch has CUDA Version={mine} and torchvision has CUDA Version={theirs}."
    )


def _built(cuda: str | None) -> str:
    return f"CUDA {cuda}" if cuda else "the CPU"


def _same_index(facts: Facts, name: str, torch: Framework) -> str:
    env = facts.environment
    dist = facts.distribution(name)
    tool = fix.installer(env, dist)
    if tool in fix.CONDA:
        return fix.install(env, name, by=tool, again=True)
    kin = facts.framework(name)
    version = cut(kin.version, 3) if kin else None
    if fix.series_for(name, torch.version) != cut(version, 2):
        return fix.kin(facts, name)
    wanted = f"{name}=={version}"
    return fix.install(env, wanted, by=tool, index=fix.index_of(facts), again=True, alone=True)


def cu408(facts: Facts) -> Iterator[Finding]:
    """PyTorch in one site-packages, its NVIDIA wheels in another."""
    torch = facts.framework("torch")
    dist = facts.distribution("torch")
    if torch is None or dist is None or dist.kind != "wheel" or dist.installer == "conda":
        return
    home = dist.location
    away = []
    for pin in pins(facts):
        wheel = facts.distribution(pin.requirement.name)
        if (
            wheel
            and wheel.kind == "wheel"
            and pin.top == "torch"
            and wheel.name.startswith("nvidia-")
            and wheel.location != home
        ):
            away.append(wheel)
    if not away:
        return
    missing = [
        f
        for f in facts.load_faults
        if f.kind == "not found" and f.framework == "torch" and f.means == IMPORT
    ]
    yield Finding(
        "CU408",
        missing[0].severity if missing else WARNING,
        f"torch is in {home}, its NVIDIA libraries are in {away[0].location}",
        [dist.evidence, away[0].evidence],
        missing[0].message if missing else None,
        [_whole(facts)],
        "torch",
    )


def _whole(facts: Facts) -> str:
    """A virtual environment of its own: there lib64 is a link to lib, so that nothing is split."""
    torch = facts.framework("torch")
    release = cut(torch.version, 3) if torch else None
    wanted = quote(f"torch=={release}") if release else "torch"
    index = f" --index-url {fix.INDEX}/{fix.tag(torch.cuda)}" if torch and torch.cuda else ""
    return f"python3 -m venv torch-env && torch-env/bin/python -m pip install {wanted}{index}"


RULES = {
    "CU401": cu401,
    "CU402": cu402,
    "CU403": cu403,
    "CU404": cu404,
    "CU405": cu405,
    "CU406": cu406,
    "CU407": cu407,
    "CU408": cu408,
}
