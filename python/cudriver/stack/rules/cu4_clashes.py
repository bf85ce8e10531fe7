"""CU407: what packages require of each other that cannot be met together."""

from __future__ import annotations

from cudriver.stack.model import WARNING, Facts, Finding
from cudriver.stack.rules import fix
from cudriver.stack.rules.anew import anew
from cudriver.stack.rules.cu4_pins import EXACT_VERSION, SHOWN, Pin, Pins, compatible
from cudriver.stack.versions import major

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# So many packages that pin one other exactly are compared with all that require it. A real
# environment has a dozen.
EXACT = 64
CLASHES = 200  # pairs of packages, each a finding


def cu407(facts: Facts) -> Iterator[Finding]:
    """Frameworks whose pins cannot be met together."""
    every = Pins(facts)
    # Of an extra that seems to have been asked for pip would have met one requirement at least.
    asked = {(p.by.name, p.requirement.extra) for p in every.pins if every.met(p)}
    clashes: dict[tuple[str, str], list[tuple[Pin, Pin]]] = {}
    left = 0
    for name, of in every.by_name.items():
        stated = [
            p
            for p in of
            if p.requirement.specifier
            and p.by.kind != "conda"
            and (p.sure or (p.by.name, p.requirement.extra) in asked)
        ]
        exact = [p for p in stated if EXACT_VERSION.fullmatch(p.requirement.specifier.strip())]
        if len(exact) > EXACT:
            title = f"CU407 could not be checked: {len(exact)} packages pin {name} exactly, and "
            title += f"only the first {EXACT} were compared with the others"
            yield Finding("CU407", WARNING, title, subject=name, crashed=True)
        for one, other in _pairs(stated, exact[:EXACT]):
            if one.top == other.top or compatible(
                one.requirement.specifier, other.requirement.specifier
            ):
                continue
            key = one.top, other.top
            if key in clashes or len(clashes) < CLASHES:
                clashes.setdefault(key, []).append((one, other))
            else:
                left += 1
    if left:
        yield Finding("CU407", WARNING, f"{left} more pairs of pins cannot be met together")
    for (first, second), pairs in clashes.items():
        one, other = pairs[0]
        name = one.requirement.name
        installed = every.installed.get(name)
        more = f" and {len(pairs) - 1} more" if len(pairs) > 1 else ""
        evidence = [p.requirement.evidence for pair in pairs[:SHOWN] for p in pair]
        if installed:
            evidence.append(installed.evidence)
        yield Finding(
            "CU407",
            WARNING,
            f"{first} wants {name}{one.requirement.specifier}, {second} "
            f"{other.requirement.specifier}{more}",
            evidence,
            None,
            [fix.kin(facts, second)] if second in fix.KIN else _separate(facts, second),
            second,
        )
    yield from _majors_apart(facts)


def _pairs(stated: list[Pin], exact: list[Pin]) -> Iterator[tuple[Pin, Pin]]:
    """Every two pins of which one is among `exact`, in their order."""
    at = 0
    for index, one in enumerate(stated):
        if at < len(exact) and one is exact[at]:
            at += 1
            rest = stated[index + 1 :]
        else:
            rest = exact[at:]
        for other in rest:
            yield one, other


def _majors_apart(facts: Facts) -> Iterator[Finding]:
    """Frameworks for two CUDA majors: each works alone, in one process they meet."""
    built = [
        f
        for f in facts.frameworks
        if f.variant == "cuda"
        and f.cuda
        and f.name in ("torch", "jax", "tensorflow", "cupy", "onnxruntime")
    ]
    if len({major(f.cuda) for f in built}) < 2:
        return
    text = ", ".join(f"{f.name} for CUDA {f.cuda}" for f in built)
    evidence = [f.cuda_evidence for f in built if f.cuda_evidence]
    yield Finding(
        "CU407",
        WARNING,
        f"frameworks for two CUDA majors: {text}",
        evidence,
        None,
        _separate(facts, built[-1].distribution or built[-1].name),
        built[-1].name,
    )


def _separate(facts: Facts, name: str) -> list[str]:
    """An environment for one package, which leaves this one."""
    dist = facts.distribution(name)
    return [
        anew(facts, name),
        *([fix.uninstall(facts.environment, dist)] if dist else []),
    ]
