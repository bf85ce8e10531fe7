"""CU2: toolkits and compilers. They matter to whoever compiles, not to what only runs."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from cudriver.stack.facts import ERROR, NOTE, WARNING, Evidence, Facts, Finding
from cudriver.stack.fixes import fix
from cudriver.stack.machine.compiling import users
from cudriver.stack.machine_facts import Device, Lacking, Toolkit
from cudriver.stack.rules.finding import finding
from cudriver.stack.tables import table
from cudriver.stack.text import quote
from cudriver.stack.versions import cut, major, numbers, satisfies

REPOSITORY = "from NVIDIA's repository"
LEVELS = {"major": 1, "minor": 2, "exact": 3}


def system_cuda(facts: Facts) -> tuple[str, Evidence | None] | None:
    """The CUDA version of the system's toolkit: the one that is plainly chosen, else the only one,
    else the newest.
    """
    found = [(t.version, t) for t in facts.toolkits if t.origin == "system" and t.version]
    ways = ("CUDA_HOME", "CUDA_PATH", "PATH", "/usr/local/cuda")
    chosen = ((v, t.evidence) for name in ways for v, t in found if name in t.chosen_by)
    newest = max(found, key=lambda each: numbers(cut(each[0], 3) or "0") or (), default=None)
    return next(chosen, (newest[0], newest[1].evidence) if newest else None)


def environment_cuda(facts: Facts) -> tuple[str, Evidence | None] | None:
    """The environment's CUDA: of its toolkit packages, else what PyTorch was built with."""
    built = ((f.cuda, f.cuda_evidence) for f in facts.frameworks if f.variant == "cuda")
    torch = next(((cuda, evidence) for cuda, evidence in built if cuda), None)
    inside = (t for t in facts.toolkits if t.origin == "environment")
    toolkits = [(t.version, t.evidence) for t in inside if t.version]
    same = (each for each in toolkits if torch is None or major(each[0]) == major(torch[0]))
    return next(same, torch)


def cu201(facts: Facts) -> Iterator[Finding]:
    """The environment's toolkit is not the system's. What --match asks may stay open."""
    mine, theirs = environment_cuda(facts), system_cuda(facts)
    doubt = "there are no two toolkit versions to compare, as --match asks"
    if mine is None or theirs is None:
        if facts.match:
            known = mine or theirs
            where = "" if known is None else " in the " + ("system" if mine else "environment")
            title = f"nothing to match: no CUDA toolkit is found{where}"
            asked = known[1] if known else Evidence("--match", None, facts.match)
            yield finding(NOTE, title, [asked], doubt=doubt)
        return
    parts = LEVELS[facts.match_level] if facts.match else 2
    a, b = cut(mine[0], parts) or "", cut(theirs[0], parts) or ""
    shared = min(a.count("."), b.count(".")) + 1  # a header tells two numbers, a package three
    evidence = [mine[1], theirs[1]]
    title = f"the environment has CUDA {a}, the system's toolkit is {b}"
    if cut(a, shared) == cut(b, shared):
        title = f"{a} and {b} agree as far as they are known, which does not settle the rest"
        if facts.match and shared < parts:
            yield finding(NOTE, title, evidence, doubt=doubt)
    elif facts.match:
        yield finding(ERROR, title, evidence, None, _match_system(facts, mine[0], theirs[0]))
    else:
        yield finding(NOTE, f"{title}; harmless unless something is compiled", evidence)


def _match_system(facts: Facts, mine: str, theirs: str) -> list[str]:
    env = facts.environment
    wanted = cut(theirs, 2) or theirs
    torch = facts.framework("torch")
    fixes = []
    if env.installer in fix.CONDA:
        fixes.append(fix.install(env, f"cuda-version={wanted}"))
    elif torch and wanted in fix.variants(torch.version):
        fixes.append(fix.torch_from(facts, wanted))
    return [*fixes, f"{_apt(cut(mine, 2) or mine)}  # the system's side instead, {REPOSITORY}"]


def _apt(cuda: str) -> str:
    return f"sudo apt-get install {quote('cuda-toolkit-' + cuda.replace('.', '-'))}"


def _built(facts: Facts) -> str | None:
    """The release of PyTorch's CUDA."""
    torch = facts.framework("torch")
    return cut(torch.cuda, 2) if torch else None


def _serves(facts: Facts, version: str | None) -> bool:
    """Whether nvcc of that release compiles for this PyTorch and these GPUs."""
    gpus = (d.compute_capability for d in facts.driver.devices if d.visible)
    same = major(_built(facts)) in (None, major(version))
    return same and all(_knows(version, gpu) for gpu in gpus if gpu)


def _nvcc_fix(facts: Facts, name: str = "CUDA_HOME") -> list[str]:
    """Sets a variable to a toolkit that serves, or brings one: PyTorch's where that does."""
    env, built = facts.environment, _built(facts)
    there = [(t.compiles, t.nvcc) for t in facts.toolkits if t.nvcc]
    there = [(version, nvcc) for version, nvcc in there if _serves(facts, version)]
    if there:
        best = max(there, key=lambda each: cut(each[0], 2) == built)[1]
        return [f"export {name}={quote(os.path.dirname(os.path.dirname(best)))}"]
    known = [row["toolkit"] for row in table("architectures")["toolkits"]]
    fitting = (r for r in filter(None, [built, *known]) if _serves(facts, r))
    release = next(fitting, built or known[-1])
    if env.installer in fix.CONDA:
        nvcc = fix.install(env, f"cuda-nvcc={release}.*")
        if (major(release) or 12) < 12 and env.installer != "pixi":
            nvcc += " -c nvidia"  # conda-forge has it from 12.0 on
        return [nvcc, f"export {name}={quote(env.prefix)}"]
    home = quote(f"/usr/local/cuda-{release}")
    return [f"{_apt(release)}  # {REPOSITORY}", f"export {name}={home}"]


def _means_to_compile(facts: Facts) -> bool:
    """A sign that somebody compiles here: the variable is set, nvcc is in the environment, or a
    package needs it. A toolkit in /usr/local alone is none: many machines have one.
    """
    if facts.nvcc.chosen_by in ("CUDA_HOME", "CUDA_PATH"):
        return True
    inside = (facts.nvcc.nvcc or "").startswith(facts.environment.prefix + "/")
    return inside or bool(users(facts.distributions, facts.nvcc, "nvcc"))


def _other_major(facts: Facts) -> bool:
    """Whether the nvcc that is used is of another CUDA major than PyTorch."""
    used, built = major(facts.nvcc.version), major(_built(facts))
    return facts.nvcc.exists and None not in (used, built) and used != built


def cu202(facts: Facts) -> Iterator[Finding]:
    """nvcc of another release than PyTorch's CUDA: of another minor it works, with a warning."""
    torch, chosen = facts.framework("torch"), facts.nvcc
    nvcc, built = cut(chosen.version, 2), _built(facts)
    if torch is None or not chosen.exists or nvcc is None or built is None:
        return
    evidence = [chosen.evidence, torch.cuda_evidence]
    predicts = f"The detected CUDA version ({nvcc}) "
    if _other_major(facts):
        title = f"extensions of PyTorch cannot be compiled here: nvcc is CUDA {nvcc}, PyTorch "
        predicts += f"mismatches the version that was used to compile PyTorch ({built})."
        severity = WARNING if _means_to_compile(facts) else NOTE
        yield finding(severity, title + built, evidence, predicts, _nvcc_fix(facts))
    elif nvcc != built:
        title = f"nvcc is CUDA {nvcc}, PyTorch {built}: extensions compile, with a warning"
        predicts += "has a minor version mismatch with the version that was used to compile "
        yield finding(NOTE, title, evidence, f"{predicts}PyTorch ({built}).")


def cu204(facts: Facts) -> Iterator[Finding]:
    """No nvcc, though something here compiles CUDA code."""
    torch = facts.framework("torch")
    wanting = users(facts.distributions, facts.nvcc, "nvcc")
    if wanting and torch and torch.variant == "cuda" and facts.nvcc.home is None:
        title = f"{_compile([d.name for d in wanting])} CUDA code, and there is no nvcc"
        predicts = "CUDA_HOME environment variable is not set. Please set it to your CUDA install "
        evidence = [d.evidence for d in wanting]
        yield finding(WARNING, title, evidence, f"{predicts}root.", _nvcc_fix(facts))


def cu205(facts: Facts) -> Iterator[Finding]:
    """CUDA_HOME that is not a toolkit, or not the nvcc of PATH."""
    chosen = facts.nvcc
    for name in ("CUDA_HOME", "CUDA_PATH"):
        value = facts.environment.variables.get(name)
        if not value:
            continue  # an empty one is unset, for everybody who reads it
        known = [t for t in facts.toolkits if name in t.chosen_by]
        if ":" in value or not value.startswith("/") or value != value.strip():
            what = "is a list of folders" if ":" in value else "is not an absolute path"
        elif chosen.chosen_by != name or chosen.exists:
            yield from _other_nvcc(facts, name, known)
            continue
        elif known and not any(t.nvcc for t in facts.toolkits):
            continue  # libraries and headers only, and no nvcc anywhere: a choice, not a slip
        else:
            what = "has no bin/nvcc" if known else "does not exist or holds no toolkit"
        title, evidence = f"{name} {what}: {value}", [Evidence(f"${name}", None, value)]
        predicts = f"nvcc not found at '{os.path.join(value, 'bin', 'nvcc')}'"
        others = any(t.nvcc for t in facts.toolkits)
        fixes = _nvcc_fix(facts, name) if others else [f"unset {name}"]
        yield finding(WARNING, title, evidence, predicts, fixes)


def _other_nvcc(facts: Facts, name: str, known: list[Toolkit]) -> Iterator[Finding]:
    on_path = [t for t in facts.toolkits if "PATH" in t.chosen_by]
    if not known or not on_path or on_path[0] is known[0]:
        return
    here, there = cut(known[0].version, 2), cut(on_path[0].version, 2)
    if here is None or there is None or here == there:
        return
    title = f"{name} is CUDA {here}, the nvcc on PATH is CUDA {there}"
    evidence = [Evidence(f"${name}", None, facts.environment.variables[name])]
    evidence.append(Evidence(on_path[0].nvcc or on_path[0].path, None, there))
    fixes = [f"export PATH={quote(known[0].path + '/bin')}:$PATH"]
    yield finding(WARNING if major(here) != major(there) else NOTE, title, evidence, None, fixes)


def cu207(facts: Facts) -> Iterator[Finding]:
    """A host compiler that nvcc refuses."""
    compiler, chosen = facts.compiler, facts.nvcc
    if compiler is None or not chosen.exists:
        return
    # The chosen nvcc may be reached through /usr/local/cuda, PATH or a wrapper.
    names = (chosen.nvcc, chosen.evidence and chosen.evidence.file)
    toolkit = next((t for t in facts.toolkits if t.nvcc and t.nvcc in names), None)
    version, clang = major(compiler.version), compiler.kind == "clang"
    if toolkit is None or version is None:
        return
    limit = toolkit.clang_limit if clang else toolkit.host_compiler_limit
    if limit is None or version <= limit:
        return
    name = f"{compiler.kind} {compiler.version}"
    title = f"nvcc of CUDA {cut(toolkit.version, 2)} refuses {name}; {limit} is the newest it takes"
    limits = None if clang else toolkit.host_compiler_evidence
    evidence = [Evidence(compiler.path, None, f"{name}, by {compiler.chosen_by}"), limits]
    predicts = f"unsupported GNU version! gcc versions later than {limit} are not supported!"
    packages, program = f"gcc-{limit} g++-{limit}", f"/usr/bin/g++-{limit}"
    if clang:
        predicts = "unsupported clang version!"
        packages, program = f"clang-{limit}", f"clang++-{limit}"
    fixes = [f"sudo apt-get install {packages}", f"export NVCC_CCBIN={program}"]
    if facts.environment.kind == "conda":
        fixes = [fix.install(facts.environment, f"gxx_linux-64={limit}.*")]
    severity = WARNING if _means_to_compile(facts) else NOTE
    yield finding(severity, title, evidence, predicts, fixes)


def cu208(facts: Facts) -> Iterator[Finding]:
    """What is compiled when a program starts cannot be: tools are missing, or do not know the GPU.
    Those that one command brings are one finding.
    """
    groups: dict[str, list[Lacking]] = {}
    for each in facts.lacking:
        if way := _way(facts, each)[0]:
            groups.setdefault(way, []).append(each)
    for way, lacking in groups.items():
        yield _lacking(facts, way, lacking)
    seen = {d.compute_capability: d for d in facts.driver.devices if d.visible}
    for capability, device in seen.items():
        if capability is not None:
            yield from _unknown_gpu(facts, capability, device)


def _lacking(facts: Facts, way: str, lacking: list[Lacking]) -> Finding:
    tools, env = table("compiling")["tools"], facts.environment
    by = dict.fromkeys(name for each in lacking for name in each.by if facts.distribution(name))
    named = ", ".join(tools[each.tool].get("name", each.tool) for each in lacking)
    start = "it starts" if len(by) == 1 else "they start"
    title = f"{_compile(by)} code when {start}, and there is no {named}"
    row, looked = tools[lacking[0].tool], lacking[0].looked
    home = env.variables.get("HOME", "")
    usual = looked[0].startswith(home) and looked[-1] == row.get("folder", "").replace("~", home)
    says = row["says"].format(home=home) if usual or "folder" not in row else None
    alone = len(lacking) == 1
    evidence = [
        Evidence(folder, None, f"does not have {'it' if alone else each.tool}")
        for each in lacking
        for folder in each.looked[: 5 if alone else 1]
    ]
    names = [*dict.fromkeys(_way(facts, each)[1] for each in lacking)]
    if way == "install":
        get = fix.install(env, *names)
    elif way == "apt":
        get = f"sudo apt-get install {' '.join(names)}  # or what your distribution calls it"
    elif way == "CPATH":
        get = fix.setting("CPATH", [*filter(None, [*names, env.variables.get("CPATH")])])
    else:
        get = f'export {row["moved"][0]}="$(mktemp -d)"  # or another folder that you can write to'
    because = ", ".join(each.tool for each in lacking)
    dist = facts.distribution(next(iter(by)))
    imports = "import" in row and dist and satisfies(dist.version, row["import"]) and looked[1:]
    return finding(
        ERROR if imports else WARNING, title, evidence, says, [get], next(iter(by)), because
    )


def _compile(names: Collection[str]) -> str:
    return f"{', '.join(names)} compile{'s' * (len(names) == 1)}"


def _way(facts: Facts, each: Lacking) -> tuple[str, str]:
    """How a tool is brought here, and by what name; "" where it is there or would not help."""
    env, tools = facts.environment, table("compiling")["tools"]
    row = tools[each.tool]
    wheel, header = row.get("wheel", ""), each.tool.startswith("cu")
    if not any(map(facts.distribution, each.by)) or (header and _other_major(facts)):
        return "", ""  # CU202 replaces this nvcc, whose headers nobody needs then
    # In a toolkit of wheels, or on PATH, what a wheel brings is there once it is installed.
    system = any("wheel" not in tools[x.tool] and "apt" in tools[x.tool] for x in facts.lacking)
    inside = any(f"{site}/nvidia/" in (facts.nvcc.home or "") for site in env.site_packages)
    if wheel and (inside if header else not system):
        wheel += "-cu12" * (header and major(facts.nvcc.version) == 12)
        return ("" if facts.distribution(wheel) else "install"), wheel
    if each.elsewhere is not None:
        return "CPATH", each.elsewhere
    if env.installer in fix.CONDA and "conda" in row:
        return "install", row["conda"]
    cuda = (cut(facts.nvcc.version, 2) or "").replace(".", "-")
    packages = row.get("apt", "").format(python=cut(env.python, 2), cuda=cuda)
    return ("apt" if packages else each.tool), packages


def _knows(version: str | None, capability: str) -> bool:
    """Whether a release's compilers have code for a GPU; also where that is not known."""
    rows = table("architectures")["toolkits"]
    archs = next((row["archs"] for row in rows if row["toolkit"] == cut(version, 2)), None)
    return archs is None or int(capability.replace(".", "")) in archs


def _unknown_gpu(facts: Facts, capability: str, device: Device) -> Iterator[Finding]:
    """A GPU that Triton's own ptxas does not know, or the nvcc that is used at the start."""
    number = capability.replace(".", "")
    # The second is ptxas-blackwell, where it is there.
    ptxas = facts.ptxas[-1:] if (major(capability) or 0) >= 10 else facts.ptxas[:1]
    used = [("ptxas", each.file, each.value) for each in ptxas]
    if facts.nvcc.exists and not _other_major(facts):  # CU202 names a release that knows the GPU
        used.append(("nvcc", facts.nvcc.nvcc or "", facts.nvcc.version or ""))
    for tool, path, version in used:
        by = users(facts.distributions, facts.nvcc, tool)
        if not by or _knows(version, capability):
            continue
        title = f"{by[0].name} compiles code when it starts, and {os.path.basename(path)} of CUDA "
        title += f"{cut(version, 2)} has none for compute capability {capability}"
        if tool == "nvcc":
            says, fixes = f"Unsupported gpu architecture 'compute_{number}", _nvcc_fix(facts)
        else:
            says = f"Value 'sm_{number}{'a' * (int(number) >= 90)}' is not defined for option"
            variable = f"TRITON_{os.path.basename(path).upper().replace('-', '_')}_PATH"
            usable = ((t.compiles, f"{t.path}/bin/ptxas") for t in facts.toolkits if t.nvcc)
            other = next((path for version, path in usable if _knows(version, capability)), "")
            advice = "install a newer PyTorch, or a toolkit with a newer ptxas."
            fixes = [fix.setting(variable, [other]) if other else advice]
        evidence = [Evidence(path, None, version), device.evidence]
        yield finding(WARNING, title, evidence, says, fixes, by[0].name, tool)
