"""CU409, CU410: what is installed is not for this Python, or this Python does not see it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cudriver.stack.command import Command
from cudriver.stack.facts import (
    ELSEWHERE,
    ENDS,
    ERROR,
    FOREIGN,
    NOEXEC,
    WARNING,
    Astray,
    Distribution,
    Evidence,
    Facts,
    Finding,
)
from cudriver.stack.fixes import fix
from cudriver.stack.fixes.library_fixes import leak_of
from cudriver.stack.rules.finding import finding
from cudriver.stack.tables import matters, table
from cudriver.stack.text import quote
from cudriver.stack.versions import cut


def cu409(facts: Facts) -> Iterator[Finding]:
    """Wheels whose tags fit another Python or another machine."""
    env = facts.environment
    here = f"{env.prefix} has Python {cut(env.python, 2)}{'t' * env.abi.endswith('t')}"
    for fault in facts.file_faults:
        dist = facts.distribution(fault.distribution)
        if fault.what == FOREIGN and dist is not None:
            title = (
                f"{dist.name} {dist.version} is a wheel for {fault.why}, {here} on {env.platform}"
            )
            evidence = [fault.evidence, Evidence(fault.file, None, "cannot be loaded here")]
            fixes = [fix.reinstall(facts, dist)]
            fails = _fails_without(facts, dist)
            named = (f.module or f.name for f in facts.frameworks if f.distribution == dist.name)
            module = next(named, dist.name if dist.name.isidentifier() else "")
            if fails and module:
                evidence.append(Evidence(dist.path, None, f"import {module} fails"))
            severity = ERROR if fails else WARNING
            made = finding(severity, title, evidence, None, fixes, dist.name, fault.file)
            if not fails:
                name = os.path.basename(fault.file)
                made.doubt = f"whether {dist.name} works without {name} is not known"
            yield made


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
        if fault.what != NOEXEC or inside:
            yield _astray(facts, fault)
    for dist in facts.distributions:
        if dist.hides and matters(dist.name):
            yield from _in_front(facts, dist)


def _astray(facts: Facts, fault: Astray) -> Finding:
    env, name = facts.environment, os.path.basename(fault.file)
    if fault.what == ELSEWHERE:
        packages = (f.module or f.name for f in facts.frameworks)
        says = next((f"No module named '{name.partition('.')[0]}'" for name in packages), None)
        title = f"{env.prefix}/bin/python does not look into {fault.file}: {fault.why}"
        python = f"python{cut(env.python, 2)}"
        old = f"{quote(env.prefix)}/bin/"
        again = f"rm -f {old}python {old}python3 {old}{python}"
        again += f" && {python} -m venv {quote(env.prefix)}"
        if env.installer == "uv":
            again = f"uv venv --allow-existing --python {cut(env.python, 2)} {quote(env.prefix)}"
        return finding(ERROR, title, [fault.evidence], says, [again])
    if fault.what == ENDS:
        title, fixes = f"{fault.file} ends every start of Python", [f"remove it from {fault.file}."]
        return finding(ERROR, title, [fault.evidence], None, fixes)
    if fault.what == NOEXEC:
        title = f"no library in {fault.file} can be loaded: it is mounted with noexec"
        mount = f'sudo mount -o remount,exec "$(findmnt -no TARGET --target {quote(fault.file)})"'
        says = "failed to map segment from shared object"
        return finding(ERROR, title, [fault.evidence], says, [mount])
    module = name.partition(".")[0]
    title, severity, says = f"{fault.file} hides {module} of the standard library", WARNING, None
    if fault.why:
        title += f" and lacks {fault.why}"
        if module in table("environments")["needed"] and facts.frameworks:
            severity, says = ERROR, f"module '{module}' has no attribute"
    fixes = leak_of(facts, fault.file) or [f"give {fault.file} another name."]
    return finding(severity, title, [fault.evidence], says, fixes, "", fault.file)


def _in_front(facts: Facts, dist: Distribution) -> Iterator[Finding]:
    """A package that another copy hides, which a variable or the user's own folder brought in."""
    env = facts.environment
    # torch-2.8.0.dist-info, numba-0.56.4-py3.11.egg-info
    version = os.path.basename(dist.hides[0]).rpartition(".")[0].partition("-")[2].partition("-")[0]
    fixes = leak_of(facts, dist.path)
    if not fixes and dist.location in env.pythonpath:
        fixes = [f"take one of the two away: {dist.location} has other packages, too."]
    users = env.user_base and dist.location.startswith(f"{env.user_base}/lib/")
    if not fixes and users and dist.location in env.sites:
        name = "PYTHONNOUSERSITE"
        fixes = [Command.of(f"export {name}=1", sets=(name, "1"))]
    if fixes and version not in ("", dist.version) and dist.kind == "wheel":
        title = f"{dist.name} {dist.version} in {dist.location} hides {version} in "
        title += os.path.dirname(dist.hides[0])
        evidence = [dist.evidence, Evidence(dist.hides[0], None, f"{dist.name} {version}")]
        yield finding(WARNING, title, evidence, None, fixes, dist.name, dist.location)
