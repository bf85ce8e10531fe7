"""CU2: toolkits and compilers. They matter to whoever compiles, not to what only runs."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cudriver.stack.model import ERROR, NOTE, WARNING, Evidence, Facts, Finding, Toolkit
from cudriver.stack.rules import fix
from cudriver.stack.text import quote
from cudriver.stack.versions import cut, major

LEVELS = {"major": 1, "minor": 2, "exact": 3}
# Packages that compile CUDA code when they run.
COMPILES_LATER = ("deepspeed", "flashinfer-python", "tilelang", "pycuda")


def system_toolkit(facts: Facts) -> Toolkit | None:
    """The system's toolkit: the one that is plainly chosen, else the only one, else the newest."""
    toolkits = [t for t in facts.toolkits if t.origin == "system" and t.version]
    for name in ("CUDA_HOME", "CUDA_PATH", "PATH", "/usr/local/cuda"):
        for toolkit in toolkits:
            if name in toolkit.chosen_by:
                return toolkit
    return max(toolkits, key=_order) if toolkits else None


def _order(toolkit: Toolkit) -> tuple[int, ...]:
    return tuple(int(n) for n in (cut(toolkit.version, 3) or "0").split("."))


def system_cuda(facts: Facts) -> tuple[str, Evidence] | None:
    """The CUDA version of the system's toolkit."""
    toolkit = system_toolkit(facts)
    if toolkit is None or toolkit.version is None:
        return None
    return toolkit.version, toolkit.evidence or Evidence(toolkit.path, None, toolkit.version)


def environment_cuda(facts: Facts) -> tuple[str, Evidence] | None:
    """The environment's CUDA: of its toolkit packages, else what PyTorch was built with."""
    torch = next((f for f in facts.frameworks if f.variant == "cuda" and f.cuda), None)
    toolkits = [t for t in facts.toolkits if t.origin == "environment" and t.version]
    if torch and torch.cuda:
        same = [t for t in toolkits if major(t.version) == major(torch.cuda)]
        if not same:
            return torch.cuda, torch.cuda_evidence or Evidence(torch.path, None, torch.cuda)
        toolkits = same
    if toolkits:
        chosen = toolkits[0]
        return chosen.version or "", chosen.evidence or Evidence(
            chosen.path, None, chosen.version or ""
        )
    return None


def cu201(facts: Facts) -> Iterator[Finding]:
    """The environment's toolkit is not the system's."""
    mine, theirs = environment_cuda(facts), system_cuda(facts)
    if mine is None or theirs is None:
        if facts.match and (mine or theirs):
            side = "environment" if mine is None else "system"
            known = mine or theirs
            title = f"nothing to match: no CUDA toolkit is found in the {side}"
            yield Finding("CU201", NOTE, title, [known[1]] if known else [])
        return
    parts = LEVELS[facts.match_level] if facts.match else 2
    a, b = cut(mine[0], parts) or "", cut(theirs[0], parts) or ""
    shared = min(a.count("."), b.count(".")) + 1  # a header tells two numbers, a package three
    if cut(a, shared) == cut(b, shared):
        if facts.match and shared < parts:
            title = f"{a} and {b} agree as far as they are known, which does not settle the rest"
            yield Finding("CU201", NOTE, title, [mine[1], theirs[1]])
        return
    title = f"the environment has CUDA {a}, the system's toolkit is {b}"
    if not facts.match:
        title += "; harmless unless something is compiled"
    fixes = _match_system(facts, mine[0], theirs[0]) if facts.match else []
    severity = ERROR if facts.match else NOTE
    yield Finding("CU201", severity, title, [mine[1], theirs[1]], None, fixes)


def settled(facts: Facts) -> bool:
    """Whether --match could be answered: both sides are there, and told as far as was asked."""
    mine, theirs = environment_cuda(facts), system_cuda(facts)
    if mine is None or theirs is None:
        return False
    parts = LEVELS[facts.match_level]
    return all((cut(side[0], parts) or "").count(".") == parts - 1 for side in (mine, theirs))


def _match_system(facts: Facts, mine: str, theirs: str) -> list[str]:
    env = facts.environment
    wanted = cut(theirs, 2) or theirs
    torch = facts.framework("torch")
    fixes = []
    if env.installer in fix.CONDA:
        fixes.append(fix.install(env, f"cuda-version={wanted}"))
    elif torch and wanted in fix.variants(torch.version):
        fixes.append(fix.torch_from(facts, wanted))
    own = quote("cuda-toolkit-" + (cut(mine, 2) or mine).replace(".", "-"))
    fixes.append(
        f"sudo apt-get install {own}  # the system's side instead, from NVIDIA's repository"
    )
    return fixes


def _nvcc_evidence(facts: Facts) -> list[Evidence]:
    chosen = facts.nvcc
    evidence = [chosen.evidence or Evidence(chosen.nvcc or "nvcc", None, chosen.version or "")]
    torch = facts.framework("torch")
    if torch and torch.cuda_evidence:
        evidence.append(torch.cuda_evidence)
    return evidence


def _build_pair(facts: Facts) -> tuple[str, str] | None:
    """nvcc's and PyTorch's CUDA, as major.minor."""
    torch = facts.framework("torch")
    nvcc, built = cut(facts.nvcc.version, 2), cut(torch.cuda, 2) if torch else None
    if not facts.nvcc.exists or nvcc is None or built is None:
        return None
    return nvcc, built


def _nvcc_fix(facts: Facts, built: str) -> list[str]:
    env = facts.environment
    for toolkit in facts.toolkits:
        if toolkit.nvcc and cut(toolkit.nvcc_version or toolkit.version, 2) == built:
            home = os.path.dirname(os.path.dirname(toolkit.nvcc))
            return [f"export CUDA_HOME={quote(home)}"]
    if env.installer in fix.CONDA:
        nvcc = fix.install(env, f"cuda-nvcc={built}.*")
        if (major(built) or 12) < 12 and env.installer != "pixi":
            nvcc += " -c nvidia"  # conda-forge has it from 12.0 on
        return [
            nvcc,
            f"export CUDA_HOME={quote(env.prefix)}",
        ]
    package = quote(f"cuda-toolkit-{built.replace('.', '-')}")
    return [
        f"sudo apt-get install {package}  # from NVIDIA's repository",
        f"export CUDA_HOME={quote(f'/usr/local/cuda-{built}')}",
    ]


def _means_to_compile(facts: Facts) -> bool:
    """A sign that somebody compiles here: the variable is set, nvcc is in the environment, or a
    package needs it. A toolkit in /usr/local alone is none: many machines have one.
    """
    if facts.nvcc.chosen_by in ("CUDA_HOME", "CUDA_PATH"):
        return True
    inside = (facts.nvcc.nvcc or "").startswith(facts.environment.prefix + "/")
    return inside or any(d.name in COMPILES_LATER for d in facts.distributions)


def cu202(facts: Facts) -> Iterator[Finding]:
    """nvcc of another major than PyTorch's CUDA."""
    pair = _build_pair(facts)
    if pair is None or major(pair[0]) == major(pair[1]):
        return
    nvcc, built = pair
    yield Finding(
        "CU202",
        WARNING if _means_to_compile(facts) else NOTE,
        f"extensions of PyTorch cannot be compiled here: nvcc is CUDA {nvcc}, PyTorch {built}",
        _nvcc_evidence(facts),
        f"The detected CUDA version ({nvcc}) mismatches the version that was used to "
        f"compile PyTorch ({built}).",
        _nvcc_fix(facts, built),
    )


def cu203(facts: Facts) -> Iterator[Finding]:
    """nvcc of another minor than PyTorch's CUDA: it works, with a warning."""
    pair = _build_pair(facts)
    if pair is None or major(pair[0]) != major(pair[1]) or pair[0] == pair[1]:
        return
    nvcc, built = pair
    yield Finding(
        "CU203",
        NOTE,
        f"nvcc is CUDA {nvcc}, PyTorch {built}: extensions compile, with a warning",
        _nvcc_evidence(facts),
        f"The detected CUDA version ({nvcc}) has a minor version mismatch with the version "
        f"that was used to compile PyTorch ({built}).",
    )


def cu204(facts: Facts) -> Iterator[Finding]:
    """No nvcc, though something here compiles CUDA code."""
    chosen = facts.nvcc
    if chosen.home is not None:
        return
    torch = facts.framework("torch")
    if torch is None or torch.variant != "cuda":
        return
    wanting = [d for d in facts.distributions if d.name in COMPILES_LATER]
    if not wanting:
        return
    built = cut(torch.cuda, 2) or ""
    yield Finding(
        "CU204",
        WARNING,
        f"{', '.join(d.name for d in wanting)} compiles CUDA code, and there is no nvcc",
        [d.evidence for d in wanting],
        "CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
        _nvcc_fix(facts, built),
    )


def cu205(facts: Facts) -> Iterator[Finding]:
    """CUDA_HOME that is not a toolkit, or not the nvcc of PATH."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        value = facts.environment.variables.get(name)
        if value is None:
            continue
        if not value:
            continue  # unset, for everybody who reads it
        chosen = facts.nvcc
        known = [t for t in facts.toolkits if name in t.chosen_by]
        if ":" in value or not value.startswith("/") or value != value.strip():
            what = "is a list of folders" if ":" in value else "is not an absolute path"
        elif chosen.chosen_by == name and not chosen.exists and not known:
            what = "does not exist or holds no toolkit"
        elif chosen.chosen_by == name and not chosen.exists:
            if any(t.nvcc for t in facts.toolkits):
                what = "has no bin/nvcc"
            else:
                continue  # libraries and headers only, and no nvcc anywhere: a choice, not a slip
        else:
            yield from _other_nvcc(facts, name, known)
            continue
        fixes = _good_home(facts, name)
        yield Finding(
            "CU205",
            WARNING,
            f"{name} {what}: {value}",
            [Evidence(f"${name}", None, value)],
            f"nvcc not found at '{os.path.join(value, 'bin', 'nvcc')}'",
            fixes,
        )


def _good_home(facts: Facts, name: str) -> list[str]:
    """The toolkit of PyTorch's CUDA, else of its major; without PyTorch any that is whole."""
    torch = facts.framework("torch")
    built = cut(torch.cuda, 2) if torch else None
    usable = [t for t in facts.toolkits if t.nvcc]
    for parts in (2, 1) if built else ():
        same = [t for t in usable if cut(t.nvcc_version or t.version, parts) == cut(built, parts)]
        if same:
            usable = same
            break
    else:
        if built and usable:  # compiling with another major fails (CU202)
            return [f"unset {name}", *_nvcc_fix(facts, built)]
    if not usable:
        return [f"unset {name}"]
    home = os.path.dirname(os.path.dirname(usable[0].nvcc or ""))
    return [f"export {name}={quote(home)}"]


def _other_nvcc(facts: Facts, name: str, known: list[Toolkit]) -> Iterator[Finding]:
    on_path = [t for t in facts.toolkits if "PATH" in t.chosen_by]
    if not known or not on_path or on_path[0] is known[0]:
        return
    here, there = cut(known[0].version, 2), cut(on_path[0].version, 2)
    if here is None or there is None or here == there:
        return
    yield Finding(
        "CU205",
        WARNING if major(here) != major(there) else NOTE,
        f"{name} is CUDA {here}, the nvcc on PATH is CUDA {there}",
        [
            Evidence(f"${name}", None, facts.environment.variables[name]),
            Evidence(on_path[0].nvcc or on_path[0].path, None, there),
        ],
        None,
        [f"export PATH={quote(known[0].path + '/bin')}:$PATH"],
    )


def cu206(facts: Facts) -> Iterator[Finding]:
    """System toolkits that disagree, and one that contradicts itself."""
    for toolkit in facts.toolkits:
        told = {cut(claim.value, 2) for claim in toolkit.claims}
        if toolkit.origin == "system" and len(told) > 1:
            yield Finding(
                "CU206",
                WARNING,
                f"{toolkit.path} holds parts of two toolkits: "
                f"{' and '.join(sorted(t or '' for t in told))}",
                list(toolkit.claims),
                None,
                [f"sudo rm -r {quote(toolkit.path)}  # then install one toolkit there again"],
            )
    default = [t for t in facts.toolkits if "/usr/local/cuda" in t.chosen_by]
    others = [t for t in facts.toolkits if {"PATH", "CUDA_HOME", "CUDA_PATH"} & set(t.chosen_by)]
    for other in others:
        if not default or other is default[0]:
            continue
        a, b = cut(default[0].version, 2), cut(other.version, 2)
        if a == b:
            continue
        why = " and ".join(n for n in other.chosen_by if n != "/usr/local/cuda")
        yield Finding(
            "CU206",
            NOTE,
            f"/usr/local/cuda is CUDA {a}, {why} leads to CUDA {b}",
            [e for t in (default[0], other) for e in ([t.evidence] if t.evidence else [])],
            None,
            [
                "sudo update-alternatives --config cuda  # or: sudo ln -sfn "
                f"{quote(other.path)} /usr/local/cuda"
            ],
        )
        return


def cu207(facts: Facts) -> Iterator[Finding]:
    """A host compiler that nvcc refuses."""
    compiler, chosen = facts.compiler, facts.nvcc
    if compiler is None or not chosen.exists:
        return
    toolkit = next(
        (t for t in facts.toolkits if t.nvcc and _same_nvcc(t, chosen.nvcc, chosen.evidence)), None
    )
    version = major(compiler.version)
    if toolkit is None or version is None:
        return
    limit = toolkit.clang_limit if compiler.kind == "clang" else toolkit.host_compiler_limit
    if limit is None or version <= limit:
        return
    evidence = [
        Evidence(
            compiler.path, None, f"{compiler.kind} {compiler.version}, by {compiler.chosen_by}"
        )
    ]
    if toolkit.host_compiler_evidence and compiler.kind == "gcc":
        evidence.append(toolkit.host_compiler_evidence)
    predicts = f"unsupported GNU version! gcc versions later than {limit} are not supported!"
    if compiler.kind == "clang":
        predicts = "unsupported clang version!"
    env = facts.environment
    if env.kind == "conda":
        fixes = [fix.install(env, f"gxx_linux-64={limit}.*")]
    elif compiler.kind == "clang":
        fixes = [f"sudo apt-get install clang-{limit}", f"export NVCC_CCBIN=clang++-{limit}"]
    else:
        fixes = [
            f"sudo apt-get install gcc-{limit} g++-{limit}",
            f"export NVCC_CCBIN=/usr/bin/g++-{limit}",
        ]
    yield Finding(
        "CU207",
        WARNING if _means_to_compile(facts) else NOTE,
        f"nvcc of CUDA {cut(toolkit.version, 2)} refuses {compiler.kind} "
        f"{compiler.version}; {limit} is the newest it takes",
        evidence,
        predicts,
        fixes,
    )


def _same_nvcc(toolkit: Toolkit, nvcc: str | None, evidence: Evidence | None) -> bool:
    """The chosen nvcc may be reached through /usr/local/cuda, PATH or a wrapper."""
    return toolkit.nvcc == nvcc or bool(evidence and evidence.file == toolkit.nvcc)


RULES = {
    "CU201": cu201,
    "CU202": cu202,
    "CU203": cu203,
    "CU204": cu204,
    "CU205": cu205,
    "CU206": cu206,
    "CU207": cu207,
}
