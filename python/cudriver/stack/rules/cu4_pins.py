"""CU402, CU407: what packages require of each other: it is not there, it is of another version, or
it cannot be met.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cudriver.stack.facts import (
    ERROR,
    NOTE,
    RANK,
    WARNING,
    Distribution,
    Evidence,
    Facts,
    Finding,
    Requirement,
)
from cudriver.stack.fixes import fix
from cudriver.stack.fixes.library_fixes import leak_of
from cudriver.stack.fixes.pairs import broken, refused, together
from cudriver.stack.names import unsuffixed
from cudriver.stack.record import Record
from cudriver.stack.rules.finding import finding
from cudriver.stack.tables import matters, table
from cudriver.stack.text import some
from cudriver.stack.versions import cut, minor, satisfies

SHOWN = 5  # pieces of evidence of one kind
COMPARED = 5  # pins of one package, with what is met
EXACT = re.compile(r"\s*==[0-9. ]+(\.\*)?\s*")


class Pin(Record):
    """A requirement that applies, who makes it, and what is installed of what it asks for."""

    by: Distribution
    requirement: Requirement
    top: str  # the distribution that a user asked for: torch, where cuda-toolkit pins
    here: Distribution | None
    sure: bool = True  # False: of an extra that seems to have been asked for

    @property
    def met(self) -> bool | None:
        """Whether what is installed will do; None where nothing is, or where that is not known."""
        return satisfies(self.here.version, self.requirement.specifier) if self.here else None


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
                by, here = top.get(dist.name, dist.name), installed.get(requirement.name)
                found.setdefault(key, Pin(dist, requirement, by, here, plain))
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
    extras = {r.extra for r in telling if r.name in installed.keys() - always}
    names = {extra: {r.name for r in wanted if r.extra == extra} for extra in extras}
    return {each for each in extras if 2 * len(names[each] & installed.keys()) > len(names[each])}


def _meets(installed: dict[str, Distribution], requirement: Requirement) -> bool:
    here = installed.get(requirement.name)
    return here is not None and satisfies(here.version, requirement.specifier) is not False


class Unkept(Record):
    """A requirement that is not met."""

    pin: Pin
    severity: str
    says: str | None = None  # what is read of it
    take: str = ""  # the release of what requires it that goes with what is here
    compared: bool = False  # the import compares the versions, and ends there


def cu402(facts: Facts) -> Iterator[Finding]:
    """What a package requires is of another version, or is not installed."""
    groups: dict[tuple[str, bool, bool], list[Unkept]] = {}
    for each in _unkept(facts):
        # So that a CUDA pin that cannot be met does not cost the others their fix.
        cuda = matters(each.pin.requirement.name, "pinned")
        groups.setdefault((each.pin.top, each.severity == ERROR, cuda), []).append(each)
    for (top, *_), unkept in groups.items():
        yield _not_met(facts, top, unkept)


def _unkept(facts: Facts) -> Iterator[Unkept]:
    """The requirements that are not met: pins on CUDA's packages, what integrity found of others,
    and pairs that are known to fail, whether METADATA says so or not.
    """
    every, installed = pins(facts), {dist.name: dist for dist in reversed(facts.distributions)}
    lacking, failing, rows = [], [], {}
    for unmet in facts.unmet:
        if unmet.by in installed:
            lacking.append(Pin(installed[unmet.by], unmet, unmet.by, installed.get(unmet.name)))
    for dist, asked, row in broken(facts):
        failing.append(Pin(dist, asked, dist.name, installed.get(asked.name)))
        rows[dist.name, asked.name] = row
    stated = {(pin.by.name, pin.requirement.name) for pin in lacking} | rows.keys()
    both = [pair for a, b in _clashes(every) for pair in ((a, b), (b, a))]
    contested = {id(one) for one, other in both if other.met and one.requirement.name != "torch"}
    conda = {dist.name for dist in facts.distributions if dist.kind == "conda"}
    seen = set()
    for pin in [*every, *lacking, *failing]:
        name, key = pin.requirement.name, (pin.by.name, pin.requirement.name)
        # conda's solver has its own grammar, and keeps to it
        if key in seen or pin.by.kind == "conda" or (pin.here and pin.met is not False):
            continue
        if pin.here is None:
            # Of an extra the loader tells (CU305). Conda has a library under a name of its own.
            stem = re.sub(r"^nvidia-|-cu\d+\Z", "", name)
            there = not conda.isdisjoint((stem, f"lib{stem}", f"cuda-{stem}"))
            counts = key in stated or (matters(name, "parts") and pin.sure)
            if there or not counts:
                continue
        seen.add(key)
        if key in rows:
            yield Unkept(pin, ERROR, rows[key]["says"], rows[key].get("take", ""))
        elif id(pin) not in contested:  # else CU407
            severity, says = refused(pin.by, pin.requirement, pin.here) or (_gravity(pin), None)
            yield Unkept(pin, severity, says, "", severity == ERROR)


def _gravity(pin: Pin) -> str:
    """How bad a pin is that is not met: a patch level of a CUDA library is harmless, and so is a
    newer one of those that serve older callers.

    That a package requires another release does not prove that its import fails: the loader tells
    (CU303, CU305).
    """
    name, clauses = pin.requirement.name, pin.requirement.specifier.split(",")
    if pin.here is None or not matters(name, "parts"):
        return WARNING
    unmet = next((c for c in clauses if satisfies(pin.here.version, c) is False), clauses[0])
    have, want = minor(pin.here.version), minor(unmet.lstrip("=~<>! "))
    if have is None or want is None:
        return WARNING
    return (
        NOTE if have == want or (have > want and matters(unsuffixed(name), "forward")) else WARNING
    )


def _far(pin: Pin) -> bool:
    """Whether the installed version is older than the least that is asked for by a minor release,
    or nothing of its major release is asked for. Of CUDA's own libraries the loader tells.
    """
    have, asked = pin.here.version if pin.here else "", pin.requirement.specifier
    least = re.search(r"(?:>=?|[=~]=)\s*([0-9][0-9.]*)", asked)
    here, wanted = minor(have), minor(least[1].rstrip(".")) if least else None
    if here is None or matters(pin.requirement.name, "parts"):
        return False
    major, named = str(here[0]), re.findall(r"\d[\d.]*\d|\d", asked)
    tries = (f"{major}.0", f"{major}.99999", *(each for each in named if cut(each, 1) == major))
    return bool(wanted and here < wanted) or all(satisfies(each, asked) is False for each in tries)


def _not_met(facts: Facts, top: str, unkept: list[Unkept]) -> Finding:
    env, dist, first = facts.environment, facts.distribution(top), unkept[0]
    evidence, names, parts = [], [], []
    replaced = {each.pin.requirement.name: each.pin.here for each in unkept}
    for each in unkept:
        asked, here = each.pin.requirement, each.pin.here
        evidence += [asked.evidence, here.evidence if here else None]
        have = here.version if here else "none"
        parts.append(f"{asked.name}{asked.specifier} (installed: {have})")
        if each.pin.by.name not in replaced:  # what that one requires goes with it
            names.append(asked.name + together(facts, asked.name, asked.specifier))
    evidence = evidence[: 2 * SHOWN]
    evidence += [Evidence(top, None, f"import {top} fails")] * first.compared
    there = [d for d in replaced.values() if d]
    # From outside, by a variable, its requirements are not this environment's.
    fixes = leak_of(facts, *(d.path for d in (dist, *there) if d))
    if fixes:
        pass
    elif first.take:
        fixes = [fix.install(env, f"{top}=={first.take}", of=dist)]
    elif dist and "torch" in replaced:
        fixes = [fix.kin(facts, top)]
    elif dist and fix.installer(env, dist) in fix.CONDA:
        fixes = [fix.reinstall(facts, dist)]
    else:
        away = next((d for d in there if fix.outside(env, d)), dist)
        fixes = [fix.install(env, *dict.fromkeys(names), of=away)]
    severity = min((each.severity for each in unkept), key=RANK.__getitem__)
    says = next((each.says for each in unkept if each.says), None)
    because = first.pin.requirement.name
    title = f"{top} requires {some(parts)}"
    gone, doubt = [n for n, here in replaced.items() if not here and not matters(n, "parts")], ""
    apart = next((d for each in unkept if (d := each.pin.here) and _far(each.pin)), None)
    if gone:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        doubt = f"whether {top} works without {gone[0]}{more}, which it requires, is not known"
    elif apart and severity == WARNING:
        doubt = f"whether {top} works with {apart.name} {apart.version} is not known"
    return finding(severity, title, evidence, says, fixes, top, because, doubt=doubt)


def _clashes(every: list[Pin]) -> Iterator[tuple[Pin, Pin]]:
    """Pins of two frameworks on one package that no release meets. All of a package are compared
    with one that names a release: the one that is met, where there is one. Where there is none, the
    others that name a release are compared with what is met. A pin that is met comes first.
    """
    # Of an extra that was asked for, pip would have met one requirement at least.
    asked = {(p.by.name, p.requirement.extra) for p in every if p.met and p.requirement.specifier}
    by_name: dict[str, list[Pin]] = {}
    for pin in every:
        if pin.by.kind != "conda" and (pin.sure or (pin.by.name, pin.requirement.extra) in asked):
            by_name.setdefault(pin.requirement.name, []).append(pin)
    for stated in by_name.values():
        exact = [p for p in stated if EXACT.fullmatch(p.requirement.specifier)]
        exact = sorted(exact, key=_narrow, reverse=True)[:COMPARED]
        others = stated
        for one in exact[:1] if exact and exact[0].met else exact:
            for other in others:
                wanted = one.requirement.specifier, other.requirement.specifier
                if one.top != other.top and not compatible(*wanted):
                    yield (other, one) if other.met and not one.met else (one, other)
            others = [pin for pin in stated if pin.met]


def _narrow(pin: Pin) -> tuple[bool, bool, int]:
    """What is greater for a pin that more of the others contradict."""
    text = pin.requirement.specifier
    return "*" not in text, pin.met is True, len(text)


def compatible(exact: str, other: str) -> bool:
    """Whether some release meets both specifiers; the first names one, or a series ("==12.*")."""
    release = exact.strip("=* ").rstrip(".")
    if satisfies(release, other) is not False:
        return True
    if EXACT.fullmatch(other):
        return satisfies(other.strip("=* ").rstrip("."), exact) is not False
    return "*" in exact  # which releases a series has is not known


def cu407(facts: Facts) -> Iterator[Finding]:
    """Frameworks whose pins cannot be met together."""
    found: dict[frozenset[str], list[tuple[Pin, Pin]]] = {}
    for one, other in _clashes(pins(facts)):
        # CU402 tells which pin of PyTorch is not met.
        if one.requirement.name != "torch" or not one.met:
            found.setdefault(frozenset((one.top, other.top)), []).append((one, other))
    for pairs in found.values():
        one, other = pairs[0]
        evidence = [p.requirement.evidence for pair in pairs[:SHOWN] for p in pair]
        evidence += [one.here.evidence] if one.here else []
        title = f"{one.top} wants {one.requirement.name}{one.requirement.specifier}, {other.top} "
        title += other.requirement.specifier
        title += f" and {len(pairs) - 1} more" if len(pairs) > 1 else ""
        kin = other.top in fix.KIN
        fixes = [fix.kin(facts, other.top) if kin else fix.apart(facts, other.top)]
        yield finding(WARNING, title, evidence, None, fixes, other.top)
