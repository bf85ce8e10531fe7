"""CU4: packages: for which CUDA they are, for which Python, and whether it sees them. What they
require of each other is in cu4_pins, their files in cu4_files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from cudriver.stack.facts import (
    ELSEWHERE,
    ENDS,
    ERROR,
    FOREIGN,
    MOVES,
    NOEXEC,
    NOTE,
    STARTED,
    WARNING,
    Astray,
    Distribution,
    Evidence,
    Facts,
    Finding,
    Framework,
)
from cudriver.stack.fixes import fix
from cudriver.stack.fixes.faults import other_build, other_major
from cudriver.stack.fixes.library_fixes import leak_of
from cudriver.stack.fixes.pairs import release_for
from cudriver.stack.names import majors_of
from cudriver.stack.rules.cu3 import not_found
from cudriver.stack.rules.cu4_pins import SHOWN
from cudriver.stack.rules.finding import finding
from cudriver.stack.tables import matters, table
from cudriver.stack.text import quote
from cudriver.stack.versions import cut, major, satisfies


def cu401(facts: Facts) -> Iterator[Finding]:
    """A build without CUDA where there is a GPU, or where it is to use one."""
    driver = facts.driver
    gpu = bool(driver.devices or driver.kernel_release or driver.pci_devices)
    for framework in facts.frameworks:
        name, torch = framework.name, framework.name == "torch"
        needed = facts.needed(framework) is not None
        known = framework.variant == "cpu" and (torch or name in table("packages")["with_cuda"])
        if not (framework.without_cuda if needed else known):
            continue
        dist = facts.distribution(framework.package)
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
    known = table("packages")["with_cuda"].get(framework.name)
    if known is None:
        return [f"install a build of {framework.name} for CUDA."]
    wanted = fix.bare(known)
    # Another package of the same folder goes first: onnxruntime before onnxruntime-gpu.
    removed = [fix.uninstall(env, dist)] if dist and not facts.distribution(wanted) else []
    return [*removed, with_cuda(facts, framework.name, dist)]


def with_cuda(facts: Facts, name: str, dist: Distribution | None = None) -> str:
    """The command that brings the build for CUDA; it is not known here what that requires."""
    most, here = min(major(facts.driver.cuda) or 12, 13), facts.distribution(name)
    extras = {each.extra for each in here.requires} if here else set()
    known = (int(e[4:]) for e in extras if re.fullmatch("cuda[0-9]{2}", e) and int(e[4:]) <= most)
    packages = table("packages")["with_cuda"]
    wanted = packages.get(name, name).format(cuda=max(known, default=most))
    by_pip = name in packages and fix.installer(facts.environment, dist) in fix.CONDA
    return str(fix.install(facts.environment, wanted, of=dist, by="pip" if by_pip else None))


def cu403(facts: Facts) -> Iterator[Finding]:
    """Two CUDA majors in what one framework loads or requires, or in those that may meet."""
    found = (*_other_runtime(facts), *_two_runtimes(facts), *_majors_apart(facts))
    yield from found[:1]


def _other_runtime(facts: Facts) -> Iterator[Finding]:
    """What does not find the libraries of another CUDA major than that of PyTorch."""
    torch = facts.framework("torch")
    for fault in facts.load_faults:
        known = fault.severity == NOTE or other_build(facts, fault.framework)
        if torch and fault.kind == "not found" and not known and other_major(facts, fault):
            made = not_found(facts, [fault], _one_major(facts, fault.framework or "", fault.name))
            made.title = f"{fault.framework} needs {fault.name}, PyTorch here is built for CUDA "
            made.title += str(torch.cuda)
            made.evidence += [torch.cuda_evidence] if torch.cuda_evidence else []
            yield made


def _two_runtimes(facts: Facts) -> Iterator[Finding]:
    """CUDA runtimes of two majors in a process. One that PyTorch preloads for nobody is no harm."""
    for framework in facts.frameworks:
        loaded = (x for x in facts.libraries if x.path in framework.loads and x.needed_by)
        runtimes = {x.soname: x for x in loaded if x.soname.startswith("libcudart.so")}
        if len(runtimes) > 1 and framework.modelled:
            title = f"{framework.name} loads {' and '.join(sorted(runtimes))} into one process"
            used = ((x, ", ".join(x.needed_by[:2])) for x in runtimes.values())
            evidence = [Evidence(x.path, None, f"{x.version}, for {by}") for x, by in used]
            fixes = _one_major(facts, framework.name, "")
            yield finding(WARNING, title, evidence, None, fixes, framework.name)


def _majors_apart(facts: Facts) -> Iterator[Finding]:
    """Frameworks for two CUDA majors: each works alone, in one process they meet."""
    alone = (f for f in facts.frameworks if matters(f.name, "alone"))
    built = [framework for framework in alone if framework.variant == "cuda" and framework.cuda]
    if len({major(f.cuda) for f in built}) > 1:
        title = "frameworks for two CUDA majors: "
        title += ", ".join(f"{f.name} for CUDA {f.cuda}" for f in built)
        last, kept = built[-1], major(built[0].cuda)
        dist = facts.distribution(last.package)
        pin = release_for(facts, dist, kept) if dist and kept != major(last.cuda) else None
        fixes = [fix.install(facts.environment, pin, of=dist)] if pin else []
        fixes.append(fix.apart(facts, last.package))
        yield finding(WARNING, title, [f.cuda_evidence for f in built], None, fixes, last.name)


def _one_major(facts: Facts, name: str, soname: str) -> list[str]:
    """The builds for PyTorch's CUDA, or the PyTorch for that of a library."""
    framework, torch = facts.framework(name), facts.framework("torch")
    dist = facts.distribution(framework.package if framework else name)
    fixes = []
    if dist and torch and torch.cuda:
        release = release_for(facts, dist, major(torch.cuda))
        built = f"install a release of {dist.name} that is built for CUDA {major(torch.cuda)}."
        fixes = [fix.install(facts.environment, release, of=dist) if release else built]
        fixes = [fix.kin(facts, dist.name)] if dist.name in fix.KIN else fixes
    if torch:
        fitting = [v for v in fix.variants(torch.version) if cut(v, 1) in majors_of(soname)]
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
        yield finding(severity, title, evidence, predicts, [fix.kin(facts, name)], name)


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


def cu409(facts: Facts) -> Iterator[Finding]:
    """Wheels whose tags fit another Python or another machine."""
    env = facts.environment
    here = f"{env.prefix} has Python {cut(env.python, 2)}{'t' * env.abi.endswith('t')}"
    for fault in facts.file_faults:
        dist = facts.distribution(fault.distribution)
        if fault.what == FOREIGN and dist is not None:
            title = f"{dist.name} {dist.version} is a wheel for {fault.why}, "
            title += f"{here} on {env.platform}"
            evidence = [fault.evidence, Evidence(fault.file, None, "cannot be loaded here")]
            fixes = [fix.reinstall(facts, dist)]
            fails = _fails_without(facts, dist)
            module = facts.module_of(dist) or (dist.name if dist.name.isidentifier() else "")
            if fails and module:
                evidence.append(Evidence(dist.path, None, f"import {module} fails"))
            severity = ERROR if fails else WARNING
            name = os.path.basename(fault.file)
            doubt = "" if fails else f"whether {dist.name} works without {name} is not known"
            fields = evidence, fault.says or None, fixes, dist.name, fault.file
            yield finding(severity, title, *fields, doubt=doubt)


def _fails_without(facts: Facts, dist: Distribution) -> bool:
    """Whether a package is known to need its extension modules; many have Python in their place."""
    return (
        matters(dist.name)
        or matters(dist.name, "native")
        or any(framework.distribution == dist.name for framework in facts.frameworks)
        or any(library.owner == dist.name for library in facts.libraries)
    )


def cu410(facts: Facts) -> Iterator[Finding]:
    """What keeps Python from the packages, or from the one of several that was meant."""
    for fault in facts.astray:
        inside = any(f.path.startswith(f"{fault.file}/") for f in facts.frameworks)
        if fault.what != STARTED and (fault.what != NOEXEC or inside):
            yield _astray(facts, fault)
    found = [fault for fault in facts.astray if fault.what == STARTED]
    if found and facts.frameworks:
        folder = os.path.dirname(found[0].file)
        names = ", ".join(os.path.basename(fault.file) for fault in found[:SHOWN])
        names += f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        title = f"scripts in {folder}, and `python -c` there, import {names} from there"
        what = "them other names" if len(found) > 1 else "it another name"
        fixes = [f"give {what}, or start programs with PYTHONSAFEPATH=1."]
        evidence = [fault.evidence for fault in found[:SHOWN]]
        yield finding(WARNING, title, evidence, None, fixes, "", folder)
    for dist in facts.distributions:
        if dist.hides and matters(dist.name):
            yield from _in_front(facts, dist)


def _astray(facts: Facts, fault: Astray) -> Finding:
    env, name = facts.environment, os.path.basename(fault.file)
    if fault.what == ELSEWHERE:
        packages = (f.imported for f in facts.frameworks)
        says = next((f"No module named '{name.partition('.')[0]}'" for name in packages), None)
        title = f"{env.prefix}/bin/python does not look into {fault.file}: {fault.why}"
        return finding(ERROR, title, [fault.evidence], says, [fix.venv_again(env)])
    if fault.what == ENDS:
        title, fixes = f"{fault.file} ends every start of Python", [f"remove it from {fault.file}."]
        says = None if fault.why.startswith("os.") else "Failed to import the site module"
        return finding(ERROR, title, [fault.evidence], says, fixes)
    if fault.what == NOEXEC:
        title = f"no library in {fault.file} can be loaded: it is mounted with noexec"
        mount = f'sudo mount -o remount,exec "$(findmnt -no TARGET --target {quote(fault.file)})"'
        says = "failed to map segment from shared object"
        return finding(ERROR, title, [fault.evidence], says, [mount])
    if fault.what == MOVES:
        title = f"{fault.file} changes sys.path; whether it hides what is installed is not known"
        fixes = [f"take that out of {fault.file} if nothing needs it."]
        return finding(WARNING, title, [fault.evidence], None, fixes, "", fault.file)
    module = name.partition(".")[0]
    title, severity, says = f"{fault.file} hides {module} of the standard library", WARNING, None
    doubt = ""
    if fault.why:
        title += f" and lacks {fault.why}"
        known = table("environments")
        wanted = (known["wanted"].get(f.name, {}) for f in facts.frameworks)
        says = next(filter(None, (row.get(f"{module}.{fault.why}") for row in wanted)), None)
        if says is None and module in known["needed"] and facts.frameworks:
            says = f"module '{module}' has no attribute"
        if says is not None:
            severity = ERROR
        elif module in known["imported"] and facts.frameworks:
            doubt = f"whether the frameworks here work with {fault.file} is not known"
    fixes = leak_of(facts, fault.file) or [f"give {fault.file} another name."]
    return finding(severity, title, [fault.evidence], says, fixes, "", fault.file, doubt=doubt)


def _in_front(facts: Facts, dist: Distribution) -> Iterator[Finding]:
    """A package that another copy hides, which a variable or the user's own folder brought in."""
    env = facts.environment
    # torch-2.8.0.dist-info, numba-0.56.4-py3.11.egg-info
    version = os.path.basename(dist.hides[0]).rpartition(".")[0].partition("-")[2].partition("-")[0]
    fixes = leak_of(facts, dist.path)
    if fixes:  # or of all that hide something: what comes in front then may be as old
        every = leak_of(facts, *(d.path for d in facts.distributions if d.hides))
        fixes += [line for line in every if line not in fixes]
    users = env.user_base and dist.location.startswith(f"{env.user_base}/lib/")
    users = users and dist.location in env.sites
    others = any(d.location == dist.location and not d.hides for d in facts.distributions)
    if not fixes and (dist.location in env.in_front or (users and others)):
        fixes = [f"take one of the two away: {dist.location} has other packages, too."]
    elif not fixes and users:
        fixes = [fix.setting("PYTHONNOUSERSITE", ["1"])]
    if fixes and version not in ("", dist.version) and dist.kind == "wheel":
        title = f"{dist.name} {dist.version} in {dist.location} hides {version} in "
        title += os.path.dirname(dist.hides[0])
        evidence = [dist.evidence, Evidence(dist.hides[0], None, f"{dist.name} {version}")]
        yield finding(WARNING, title, evidence, None, fixes, dist.name, dist.location)
