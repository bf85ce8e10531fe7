"""CU4: packages. What they require of each other is in cu4_pins, their files in cu4_files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from cudriver.stack.facts import (
    ERROR,
    GPU,
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
from cudriver.stack.fixes import fix
from cudriver.stack.fixes.anew import release_for
from cudriver.stack.fixes.faults import other_build, other_major, proof
from cudriver.stack.names import row_of
from cudriver.stack.rules.cu4_pins import pins
from cudriver.stack.rules.finding import finding
from cudriver.stack.tables import table
from cudriver.stack.text import quote
from cudriver.stack.versions import cut, major, newer, satisfies

_WITH_CUDA = {
    "tensorflow": "tensorflow[and-cuda]",
    "jax": "jax[cuda{cuda}]",
    "onnxruntime": "onnxruntime-gpu",
}


def cu401(facts: Facts) -> Iterator[Finding]:
    """A build without CUDA where there is a GPU, or where it is to use one."""
    driver = facts.driver
    gpu = bool(driver.devices or driver.kernel_release or driver.pci_devices)
    for framework in facts.frameworks:
        name, torch = framework.name, framework.name == "torch"
        needed = facts.needed(framework) is not None
        known = framework.variant == "cpu" and (torch or name in _WITH_CUDA)
        if not (framework.without_cuda if needed else known):
            continue
        dist = facts.distribution(framework.distribution or name)
        evidence = [framework.cuda_evidence]
        evidence += [Evidence("--needs", None, name)] * needed
        if dist:
            build = f" {dist.build}" if dist.build else ""
            made = f"{dist.name} {dist.version}{build}"
            installed = Evidence(dist.evidence.file, dist.line, made)
            evidence += [installed] * (installed not in evidence)
        title = f"{name} {framework.version} is built without CUDA"
        usable = framework.variant == "rocm"  # by torch.cuda, on AMD's GPUs
        predicts = "torch.cuda.is_available() is False" if torch and not usable else None
        fixes = _cuda_build(facts, framework, dist)
        severity = ERROR if needed or (torch and gpu) else NOTE
        yield finding(severity, title, evidence, predicts, fixes, name, cpu=severity == ERROR)


def _cuda_build(facts: Facts, framework: Framework, dist: Distribution | None) -> list[str]:
    env = facts.environment
    tool = fix.installer(env, dist)
    if framework.name == "torch":
        if tool in fix.CONDA:
            return [fix.install(env, "pytorch-gpu", of=dist)]
        cuda = fix.torch_for_driver(facts) or fix.usual_variant(framework.version)
        return [fix.torch_from(facts, cuda)] if cuda else []
    if framework.name not in _WITH_CUDA:
        return [f"install a build of {framework.name} for CUDA."]
    wanted = _WITH_CUDA[framework.name].partition("[")[0]
    # Another package of the same folder goes first: onnxruntime before onnxruntime-gpu.
    removed = [fix.uninstall(env, dist)] if dist and not facts.distribution(wanted) else []
    return [*removed, with_cuda(facts, framework.name, dist)]


def with_cuda(facts: Facts, name: str, dist: Distribution | None = None) -> str:
    """The command that brings the build for CUDA; it is not known here what that requires."""
    most, here = min(major(facts.driver.cuda) or 12, 13), facts.distribution(name)
    extras = {each.extra for each in here.requires} if here else set()
    known = (int(e[4:]) for e in extras if re.fullmatch("cuda[0-9]{2}", e) and int(e[4:]) <= most)
    wanted = _WITH_CUDA.get(name, name).format(cuda=max(known, default=most))
    by_pip = name in _WITH_CUDA and fix.installer(facts.environment, dist) in fix.CONDA
    return str(fix.install(facts.environment, wanted, of=dist, by="pip" if by_pip else None))


def cu403(facts: Facts) -> Iterator[Finding]:
    """Two CUDA majors in what one framework loads or requires."""
    told = next(_other_runtime(facts), None) or next(_two_runtimes(facts), None)
    if told:
        yield told
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
            title = f"{dist.name} requires packages of CUDA {' and '.join(sorted(majors))}"
            evidence, fixes = [r.evidence for r in majors.values()], [fix.reinstall(facts, dist)]
            yield finding(WARNING, title, evidence, None, fixes, dist.name)
            return


def _other_runtime(facts: Facts) -> Iterator[Finding]:
    """What does not find the libraries of another CUDA major than that of PyTorch."""
    torch = facts.framework("torch")
    for fault in facts.load_faults:
        known = fault.severity == NOTE or other_build(facts, fault.framework)
        if torch and fault.kind == "not found" and not known and other_major(facts, fault):
            title = f"{fault.framework} needs {fault.name}, PyTorch here is built for CUDA "
            runtimes = (d for d in facts.distributions if d.name.startswith("nvidia-cuda-runtime"))
            evidence = [
                Evidence(fault.library, None, f"needs {fault.name}"),
                *(dist.evidence for dist in runtimes),
                torch.cuda_evidence,
                *proof(facts, fault),
            ]
            fixes = _one_major(facts, fault.framework or "", fault.name)
            subject = fault.framework or fault.library
            title, cpu = f"{title}{torch.cuda}", fault.means == GPU
            yield finding(fault.severity, title, evidence, fault.text, fixes, subject, cpu=cpu)


def _two_runtimes(facts: Facts) -> Iterator[Finding]:
    """CUDA runtimes of two majors in a process. One that PyTorch preloads for nobody is no harm."""
    for framework in facts.frameworks:
        used = (x for x in facts.libraries if x.path in framework.loads and x.needed_by)
        runtimes = {x.soname: x for x in used if x.soname.startswith("libcudart.so")}
        if len(runtimes) > 1 and framework.modelled:
            title = f"{framework.name} loads {' and '.join(sorted(runtimes))} into one process"
            evidence = [
                Evidence(x.path, None, f"{x.version}, for {', '.join(x.needed_by[:2])}")
                for x in runtimes.values()
            ]
            fixes = _one_major(facts, framework.distribution or framework.name, "")
            yield finding(WARNING, title, evidence, None, fixes, framework.name)


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
            name = library.owner
            if theirs in (None, mine) or not name or name in required:
                continue
            toolkit = "component" in row_of(library.soname)
            if toolkit and library.path in framework.loads:
                wheels.setdefault(name, []).append(library)
        dists = [dist for name in wheels if name not in told and (dist := facts.distribution(name))]
        told.update(wheels)
        if dists:
            used = [library for dist in dists for library in wheels[dist.name]]
            names = ", ".join(x.soname for x in used)
            title = f"{framework.name} is for CUDA {framework.cuda} and gets {names} of CUDA "
            title += f"{used[0].cuda}, from wheels that nothing requires"
            evidence = [Evidence(x.path, None, f"{x.provided_by}, by {x.found_by}") for x in used]
            fixes = [fix.uninstall(facts.environment, dist) for dist in dists]
            yield finding(
                WARNING, title, evidence, None, fixes, framework.name, because=used[0].path
            )


def _one_major(facts: Facts, name: str, soname: str) -> list[str]:
    framework = facts.framework(name)
    dist = facts.distribution(framework.distribution or name if framework else name)
    wanted, torch = re.search(r"\.so\.(\d+)", soname), facts.framework("torch")
    fixes = []
    if dist and torch and torch.cuda:
        release = release_for(facts, dist, major(torch.cuda))
        built = f"install a release of {dist.name} that is built for CUDA {major(torch.cuda)}."
        fixes = [fix.install(facts.environment, release, of=dist) if release else built]
        fixes = [fix.kin(facts, dist.name)] if dist.name in fix.KIN else fixes
    if wanted and torch:
        fitting = [v for v in fix.variants(torch.version) if str(major(v)) == wanted[1]]
        fixes += [fix.torch_from(facts, variant) for variant in fitting[-1:]]
    return fixes


def cu405(facts: Facts) -> Iterator[Finding]:
    """torchvision and torchaudio for another CUDA than PyTorch."""
    torch = facts.framework("torch")
    for name in fix.KIN:
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
        title = f"torch is built for {_built(mine)}, {name} for {_built(theirs)}"
        evidence = [torch.cuda_evidence, kin.cuda_evidence]
        yield finding(severity, title, evidence, predicts, [_same_index(facts, name, torch)], name)


def _refusal(kin: Framework, mine: str | None, theirs: str | None) -> str | None:
    """What the import ends with where it compares PyTorch's CUDA with its own; None where it goes
    on. A build for the CPU compares nothing.
    """
    for row in table("pairs")["refusals"] if mine and theirs else ():
        if row["package"] == kin.name and satisfies(kin.version, row["versions"]) is not False:
            majors = row["compares"] == "major" and major(mine) == major(theirs)
            return None if majors else str(row["says"]).format(torch=mine, kin=theirs)
    return None


def _built(cuda: str | None) -> str:
    return f"CUDA {cuda}" if cuda else "the CPU"


def _same_index(facts: Facts, name: str, torch: Framework) -> str:
    env, dist = facts.environment, facts.distribution(name)
    kin = facts.framework(name)
    version = cut(kin.version, 3) if kin else None
    other = fix.series_for(name, torch.version) != cut(version, 2)
    if other or fix.installer(env, dist) in fix.CONDA:
        return fix.kin(facts, name)
    wanted, index = f"{name}=={version}", fix.index_of(facts)
    return fix.install(env, wanted, of=dist, index=index, again=True, alone=True)


def cu406(facts: Facts) -> Iterator[Finding]:
    """TensorRT for another CUDA major: an error where the driver is too old for it. Beside a
    framework for another major it works, each with libraries of its own.
    """
    trt = facts.framework("tensorrt")
    built = major(trt.cuda) if trt else None
    if trt is None or built is None:
        return
    others = [
        f for f in facts.frameworks if f.name in ("torch", "onnxruntime") and f.variant == "cuda"
    ]
    offered = major(facts.driver.cuda)
    name = f"TensorRT {trt.version} is for CUDA {built}"
    if offered is not None and offered < built:
        agreed = any(major(other.cuda) == offered for other in others)
        swap = agreed or _release(trt.version, offered) == trt.version
        title = f"{name}, the driver offers {facts.driver.cuda}"
        stated = Evidence(facts.driver.path or "driver", None, facts.driver.release or "")
        predicts = "CUDA initialization failure with error: 35"
        fixes = _swap(facts, trt, offered) if swap else []
        fixes = fixes or [fix.driver_package(facts)]
        yield finding(ERROR, title, [trt.cuda_evidence, stated], predicts, fixes, "tensorrt")
        return
    for other in others:
        wanted = major(other.cuda)
        if wanted is not None and wanted != built:
            title = f"{name}, {other.name} for CUDA {wanted}"
            fixes = _swap(facts, trt, wanted)
            if not fixes:  # no TensorRT is for that major
                named = other.distribution or other.name
                dist = facts.distribution(named)
                fixes = [fix.install(facts.environment, named, of=dist, upgrade=True)]
            evidence = [trt.cuda_evidence, other.cuda_evidence]
            yield finding(NOTE, title, evidence, None, fixes, "tensorrt")
            return


def _release(version: str, cuda: int) -> str | None:
    """The release nearest to this one that is for that CUDA major; None where there is none."""
    known: dict[str, list[str | None]] = table("packages")["tensorrt"]
    first, last = known.get(str(cuda), (None, None))
    if first is None or newer(first, version):
        return first
    return last if last and newer(version, last) else version


def _swap(facts: Facts, trt: Framework, cuda: int) -> list[str]:
    """Removes what is installed of TensorRT, since both majors write one folder, and installs the
    release for another CUDA major. Nothing where there is none.
    """
    release = _release(trt.version, cuda)
    if release is None:
        return []
    env = facts.environment
    name = trt.distribution or "tensorrt"
    stem = name.removesuffix("-bindings")
    parts = {"tensorrt", name, stem, f"{stem}-bindings", f"{stem}-libs"}
    fixes = [fix.uninstall(env, dist) for dist in facts.distributions if dist.name in parts]
    other = f"tensorrt-cu{cuda}=={release}"
    return [*fixes, fix.install(env, other, of=facts.distribution(name))]


def cu408(facts: Facts) -> Iterator[Finding]:
    """PyTorch in one site-packages, its NVIDIA wheels in another."""
    torch = facts.framework("torch")
    dist = facts.distribution("torch")
    if torch is None or dist is None or dist.kind != "wheel" or dist.installer == "conda":
        return
    home = dist.location
    required = [p.requirement.name for p in pins(facts) if p.top == "torch"]
    wheels = [facts.distribution(name) for name in required if name.startswith("nvidia-")]
    away = [w for w in wheels if w and w.kind == "wheel" and w.location != home]
    if not away:
        return
    faults = (f for f in facts.load_faults if f.framework == "torch" and f.means == IMPORT)
    missing = next((f for f in faults if f.kind == "not found"), None)
    severity, predicts = (missing.severity, missing.message) if missing else (WARNING, None)
    title = f"torch is in {home}, its NVIDIA libraries are in {away[0].location}"
    evidence = [dist.evidence, away[0].evidence]
    yield finding(severity, title, evidence, predicts, [_whole(facts)], "torch")


def _whole(facts: Facts) -> str:
    """A virtual environment of its own: there lib64 is a link to lib, so that nothing is split."""
    torch, wanted = facts.framework("torch"), quote(fix.same_torch(facts) or "torch")
    index = f" --index-url {fix.INDEX}/{fix.tag(torch.cuda)}" if torch and torch.cuda else ""
    return f"python3 -m venv torch-env && torch-env/bin/python -m pip install {wanted}{index}"
