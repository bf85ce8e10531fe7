"""CU402, CU407: what packages require of each other: it is not there, it is of another version, or
it cannot be met.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cudriver.stack.facts import (
    ERROR,
    NOTE,
    WARNING,
    Distribution,
    Evidence,
    Facts,
    Finding,
    Requirement,
    Unmet,
)
from cudriver.stack.fixes import fix
from cudriver.stack.fixes.library_fixes import leak_of
from cudriver.stack.fixes.pairs import broken, refused, release_for, together
from cudriver.stack.record import Record, but
from cudriver.stack.rules.finding import finding
from cudriver.stack.tables import matters, table
from cudriver.stack.text import some
from cudriver.stack.versions import major, minor, satisfies

# Newer ones of the same major stand in for older ones.
FORWARD = r"nvidia-(?:nvjitlink|cudnn|nccl|cuda-nvrtc)(?:-cu\d+)?"
SHOWN = 5  # pieces of evidence of one kind
# So many pins on one package are compared with all others on it. A real environment has a dozen.
EXACT = 20
CLASHES = 200  # pairs of packages, each a finding
EXACT_VERSION = re.compile(r"==\s*([0-9.]+?)(?:\.\*)?")


class Pin(Record):
    """A requirement that applies, and who makes it."""

    by: Distribution
    requirement: Requirement
    top: str  # the distribution that a user asked for: torch, where cuda-toolkit pins
    sure: bool = True  # False: of an extra that seems to have been asked for


def pins(facts: Facts) -> list[Pin]:
    """Every requirement on a CUDA package, through the extras of cuda-toolkit and the like too."""
    asked: dict[str, set[str]] = {}
    sure: dict[str, set[str]] = {}
    top: dict[str, str] = {}
    installed = {dist.name: dist for dist in reversed(facts.distributions)}
    stating = [dist for dist in facts.distributions if dist.requires]  # few of hundreds
    always = {r.name for dist in stating for r in dist.active(())}
    for dist in stating:
        extras = _evident_extras(installed, dist, always)
        asked.setdefault(dist.name, set()).update(extras)
        for requirement in dist.active(extras):
            if requirement.extras:
                asked.setdefault(requirement.name, set()).update(requirement.extras)
                top.setdefault(requirement.name, dist.name)
                if not requirement.extra:
                    sure.setdefault(requirement.name, set()).update(requirement.extras)
    found: dict[tuple[str, str, str], Pin] = {}
    for dist in stating:
        known = sure.get(dist.name, set())
        for requirement in dist.active(asked.get(dist.name, set())):
            plain = not requirement.extra or requirement.extra in known
            whole = requirement.name in table("packages")["pinned"]["names"]
            if matters(requirement.name, "pinned") and (plain or not whole):
                # Several extras may ask for the same.
                key = (dist.name, requirement.name, requirement.specifier)
                pin = Pin(dist, requirement, top.get(dist.name, dist.name), plain)
                found.setdefault(key, pin)
    return list(found.values())


def _evident_extras(
    installed: dict[str, Distribution], dist: Distribution, always: set[str]
) -> set[str]:
    """The extras that somebody must have asked for. Nothing records it; but where most of their
    packages are there, and one of them that nothing else requires, that tells: jax[cuda12] by
    jax-cuda12-plugin.
    """
    if dist.name == "cuda-toolkit":
        return set()  # whoever asks for its extras says so
    wanted = [r for r in dist.requires if r.extra and matters(r.name, "pinned")]
    met = {r.name for r in wanted if _meets(installed, r)}
    # Of two extras that require one package in two versions the one counts that is met.
    telling = (r for r in wanted if r.name not in met or _meets(installed, r))
    told = {r.extra for r in telling if r.name in installed.keys() - always}
    names = {extra: {r.name for r in wanted if r.extra == extra} for extra in told}
    return {extra for extra in told if 2 * len(names[extra] & installed.keys()) > len(names[extra])}


def _meets(installed: dict[str, Distribution], requirement: Requirement) -> bool:
    here = installed.get(requirement.name)
    return here is not None and satisfies(here.version, requirement.specifier) is not False


def cu402(facts: Facts) -> Iterator[Finding]:
    """Installed versions that are not those that METADATA asks for."""
    every = Pins(facts)
    stated = {(pin.by.name, pin.requirement.name) for pin in every.pins}
    known, unstated = {}, []
    for dist, requirement, row in broken(facts):
        known[dist.name, requirement.name] = row
        if (dist.name, requirement.name) not in stated:
            unstated.append(Pin(dist, requirement, dist.name))
    groups: dict[str, list[tuple[Pin, str, str | None]]] = {}
    for pin in [*every.pins, *unstated]:
        requirement = pin.requirement
        if pin.by.kind == "conda":
            continue  # conda's solver has its own grammar, and keeps to it
        installed = every.installed.get(requirement.name)
        if installed is None:
            # Of an extra the loader tells: CU305.
            missing = matters(requirement.name, "parts") and pin.sure
            missing = missing or (pin.by.name, requirement.name) in known
            if missing and not every.elsewhere(requirement.name):
                groups.setdefault(pin.top, []).append((pin, WARNING, None))
            continue
        if satisfies(installed.version, requirement.specifier) is not False:
            continue
        if (pin.by.name, requirement.name) not in known and every.contested(pin, installed):
            continue  # CU407
        groups.setdefault(pin.top, []).append((pin, _gravity(pin, installed), installed.version))
    for top, unmet in groups.items():
        worst = WARNING if any(s != NOTE for _, s, _ in unmet) else NOTE
        rows = (known.get((pin.by.name, pin.requirement.name)) for pin, _, _ in unmet)
        yield _unmet(facts, top, unmet, worst, every.installed, next(filter(None, rows), None))
    stated.update(known)
    by: dict[tuple[str, bool], list[Unmet]] = {}
    for each in facts.unmet:
        pinned = each.have is not None and (each.by, each.name) in stated
        if not pinned:
            proven = refused(every.installed.get(each.by), each) is not None
            by.setdefault((each.by, proven), []).append(each)
    for (name, _), lacking in by.items():
        yield _lacking(facts, name, lacking)


def _lacking(facts: Facts, by: str, lacking: list[Unmet]) -> Finding:
    """Packages that another requires and that are not there, or in other versions. Whether its
    import needs them, or only a part of it, METADATA does not say.
    """
    dist, first = facts.distribution(by), lacking[0]
    parts = [f"{u.name}{u.specifier} (installed: {u.have or 'none'})" for u in lacking]
    names = [each.name + together(facts, each.name, each.specifier) for each in lacking]
    fixes = [fix.install(facts.environment, *dict.fromkeys(names), of=dist)]
    evidence = [each.evidence for each in lacking[:SHOWN]]
    predicts = refused(dist, first)
    severity = ERROR if predicts else WARNING
    evidence += [Evidence(by, None, f"import {by} fails")] if predicts else []
    title = f"{by} requires {some(parts)}"
    made = finding(severity, title, evidence, predicts, fixes, by, first.name)
    gone = [each.name for each in lacking if each.have is None]
    if gone:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        made.doubt = f"whether {by} works without {gone[0]}{more}, which it requires, is not known"
    return made


class Pins:
    """All pins, and what is asked of them again and again."""

    def __init__(self, facts: Facts) -> None:
        self.pins: list[Pin] = pins(facts)
        self.installed: dict[str, Distribution] = {
            dist.name: dist for dist in reversed(facts.distributions)
        }
        self.by_name: dict[str, list[Pin]] = {}
        for pin in self.pins:
            self.by_name.setdefault(pin.requirement.name, []).append(pin)
        self.conda: set[str] = set()
        if facts.environment.kind == "conda":
            self.conda = {dist.name for dist in facts.distributions if dist.kind == "conda"}

    def elsewhere(self, name: str) -> bool:
        """A conda environment has the library under conda's name, so that pip's is not missed."""
        stem = re.sub(r"^nvidia-|-cu\d+\Z", "", name)
        return not self.conda.isdisjoint((stem, f"lib{stem}", f"cuda-{stem}"))

    def met(self, pin: Pin) -> bool:
        """Whether what is installed is of a release that was asked for."""
        here = self.installed.get(pin.requirement.name)
        wanted = pin.requirement.specifier
        return bool(here and wanted and satisfies(here.version, wanted))

    def contested(self, pin: Pin, installed: Distribution) -> bool:
        """Another framework's pin on the same package is the one that is met. What pins PyTorch has
        a release for the one that is there, and contests nothing.
        """
        if installed.name == "torch":
            return False
        return any(
            other.top != pin.top
            and self.met(other)
            and not compatible(other.requirement.specifier, pin.requirement.specifier)
            for other in self.by_name.get(installed.name, ())[:EXACT]
        )


def compatible(a: str, b: str) -> bool:
    """Whether an exact version in one specifier meets the other."""
    for one, other in ((a, b), (b, a)):
        match = EXACT_VERSION.fullmatch(one.strip())
        if match and satisfies(match[1], other) is not True:
            return False
    return True


def _gravity(pin: Pin, installed: Distribution) -> str:
    """How bad an unmet pin is: patch levels and newer forward-compatible libraries are harmless.

    That a package requires another release does not prove that its import fails: the loader tells
    (CU303, CU305). JAX passes over the kernels of a plugin whose release is not its own to the last
    number, with a warning of its own.
    """
    clauses = pin.requirement.specifier.split(",")
    unmet = next((c for c in clauses if satisfies(installed.version, c) is False), clauses[0])
    match = re.match(r"\s*[=~<>!]*\s*([0-9][0-9.]*)", unmet)
    wanted = match[1].rstrip(".") if match else None
    name = pin.requirement.name
    have, want = minor(installed.version), minor(wanted)
    if have is None or want is None or name == "torch" or name.startswith("jax-cuda"):
        return WARNING
    if have == want:
        return NOTE
    if re.fullmatch(FORWARD, name) and have > want:
        return NOTE
    return WARNING


def _unmet(
    facts: Facts,
    top: str,
    unmet: list[tuple[Pin, str, str | None]],
    severity: str,
    distributions: dict[str, Distribution],
    pair: dict[str, str] | None,
) -> Finding:
    dist = distributions.get(top)
    evidence, specifiers, parts = [], [], []
    replaced = {pin.requirement.name for pin, _, _ in unmet}
    for pin, _, have in unmet:
        name, wanted = pin.requirement.name, pin.requirement.specifier
        installed = distributions.get(name)
        evidence += [pin.requirement.evidence, installed.evidence if installed else None]
        parts.append(f"{name}{wanted} (installed: {have or 'none'})")
        if pin.by.name not in replaced:  # what that one requires goes with it
            specifiers.append(f"{name}{wanted}".replace(" ", ""))
    # From outside, by a variable, its requirements are not this environment's.
    mine = [d.path for d in (dist, *(distributions.get(name) for name in replaced)) if d]
    fixes = leak_of(facts, *mine)
    if dist and not fixes:
        if pair and "take" in pair:
            fixes = [fix.install(facts.environment, f"{dist.name}=={pair['take']}", of=dist)]
        elif "torch" in replaced:
            fixes = [fix.kin(facts, top)]
    tool = fix.installer(facts.environment, dist)
    if not fixes and tool in ("pip", "uv", "pipx"):
        every = (distributions[name] for name in sorted(replaced & distributions.keys()))
        away = next((d for d in every if fix.outside(facts.environment, d)), dist)
        fixes = [fix.install(facts.environment, *specifiers, of=away)]
    elif not fixes and dist:
        fixes = [fix.reinstall(facts, dist)]
    stated = ((p.by, p.requirement, have) for p, _, have in unmet)
    told = (refused(by, Unmet(r.name, r.specifier, top, None, have)) for by, r, have in stated)
    severity, predicts = (ERROR, pair["says"]) if pair else (severity, None)
    predicts = predicts or next(filter(None, told), None)  # some imports warn and go on
    return finding(severity, f"{top} requires {some(parts)}", evidence, predicts, fixes, top)


def cu407(facts: Facts) -> Iterator[Finding]:
    """Frameworks whose pins cannot be met together."""
    every = Pins(facts)
    # Of an extra that seems to have been asked for pip would have met one requirement at least.
    asked = {(p.by.name, p.requirement.extra) for p in every.pins if every.met(p)}
    clashes: dict[tuple[str, str], list[tuple[Pin, Pin]]] = {}
    for name, of in every.by_name.items():
        stated = [
            p
            for p in of
            if p.requirement.specifier
            and p.by.kind != "conda"
            and (p.sure or (p.by.name, p.requirement.extra) in asked)
        ]
        specifiers = [pin.requirement.specifier for pin in stated]
        exact = [at for at, text in enumerate(specifiers) if EXACT_VERSION.fullmatch(text.strip())]
        if len(exact) > EXACT:
            title = f"CU407 could not be checked: {len(exact)} packages pin {name} exactly, and "
            title += f"only the first {EXACT} were compared with the others"
            yield but(finding(WARNING, title, subject=name), crashed=True)
        both = {(min(i, j), max(i, j)) for i in exact[:EXACT] for j in range(len(stated)) if i != j}
        for i, j in sorted(both):
            one, other = stated[i], stated[j]
            if one.top == other.top or compatible(specifiers[i], specifiers[j]):
                continue
            # Of PyTorch CU402 tells the one that is not met.
            if name != "torch" or every.met(one) == every.met(other):
                clashes.setdefault((one.top, other.top), []).append((one, other))
    if len(clashes) > CLASHES:
        left = len(clashes) - CLASHES
        yield finding(WARNING, f"{left} more pairs of pins cannot be met together")
    for (first, second), pairs in [*clashes.items()][:CLASHES]:
        one, other = pairs[0]
        name = one.requirement.name
        installed = every.installed.get(name)
        evidence = [p.requirement.evidence for pair in pairs[:SHOWN] for p in pair]
        evidence += [installed.evidence] if installed else []
        title = f"{first} wants {name}{one.requirement.specifier}, {second} "
        title += other.requirement.specifier
        title += f" and {len(pairs) - 1} more" if len(pairs) > 1 else ""
        fixes = [fix.kin(facts, second)] if second in fix.KIN else [fix.apart(facts, second)]
        yield finding(WARNING, title, evidence, None, fixes, second)
    yield from _majors_apart(facts)


def _majors_apart(facts: Facts) -> Iterator[Finding]:
    """Frameworks for two CUDA majors: each works alone, in one process they meet."""
    names = ("torch", "jax", "tensorflow", "cupy", "onnxruntime")
    built = [f for f in facts.frameworks if f.variant == "cuda" and f.cuda and f.name in names]
    if len({major(f.cuda) for f in built}) > 1:
        title = "frameworks for two CUDA majors: "
        title += ", ".join(f"{f.name} for CUDA {f.cuda}" for f in built)
        last, kept = built[-1], major(built[0].cuda)
        dist = facts.distribution(last.distribution or last.name)
        pin = release_for(facts, dist, kept) if dist and kept != major(last.cuda) else None
        fixes = [fix.install(facts.environment, pin, of=dist)] if pin else []
        fixes.append(fix.apart(facts, last.distribution or last.name))
        yield finding(WARNING, title, [f.cuda_evidence for f in built], None, fixes, last.name)
