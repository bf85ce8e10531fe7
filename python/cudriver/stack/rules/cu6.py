"""CU6: what the caller asks of the environment: who is to use CUDA, and in which release."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cudriver.stack.facts import ERROR, WARNING, Evidence, Facts, Finding
from cudriver.stack.fixes import fix
from cudriver.stack.record import but
from cudriver.stack.rules.cu4 import with_cuda
from cudriver.stack.rules.finding import finding
from cudriver.stack.versions import satisfies

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"


def needed(text: str) -> str:
    """A package's name, normalised, pytorch as torch. Raises ValueError."""
    if not re.fullmatch(_NAME, text.strip()):
        raise ValueError(f"{text!r} is not the name of a package; one looks like torch")
    return fix.known_as(text.strip())


def expected(text: str) -> str:
    """A requirement without extras and markers: "torch==2.8.0+cu128". Raises ValueError."""
    name, specifier = _parts(text)
    if not specifier or satisfies("0", specifier) is None:
        raise ValueError(f"{text!r} is not a requirement; one looks like torch==2.8.0+cu128")
    return name + specifier


def _parts(requirement: str) -> tuple[str, str]:
    match = re.fullmatch(rf"\s*({_NAME})\s*([=<>!~].*?)\s*", requirement)
    return (fix.known_as(match[1]), match[2]) if match else ("", "")


def cu601(facts: Facts) -> Iterator[Finding]:
    """A package that is to use CUDA and is not here. Of a build without CUDA CU401 speaks."""
    for name in facts.needs:
        if not any(facts.needed(framework) == name for framework in facts.frameworks):
            dist = facts.distribution(name)
            title, line = f"{name} is needed, and is not installed", with_cuda(facts, name)
            if dist is not None:
                title = f"{name} is needed, and {dist.version} uses no CUDA, as far as is known"
                line = f"install a build of {name} for CUDA, or leave it out of --needs."
            evidence = [Evidence("--needs", None, name), dist.evidence if dist else None]
            yield finding(ERROR, title, evidence, None, [line], name)


def cu603(facts: Facts) -> Iterator[Finding]:
    """An import that was made, and failed."""
    for module, error in facts.imports.items():
        if error:
            named = (f.name for f in facts.frameworks if module in f.names)
            evidence = [Evidence("--observe", None, f"import {module} fails")]
            title = f"import {module} fails, when the environment's own Python makes it"
            advice = "paste the error into `cudriver explain`, which knows the usual ones."
            yield finding(ERROR, title, evidence, error, [advice], next(named, module), module)


def settled(findings: list[Finding], imports: dict[str, str | None]) -> Iterator[Finding]:
    """The findings, where imports were made: what one proves wrong is no error, and that one fails
    is told once.
    """
    good = [name for name, error in imports.items() if error is None]
    wrong = {f"import {name} fails{too}" for name in good for too in ("", ", too")}
    for each in findings:
        ended = _ended(each)
        others = (f for f in findings if f.severity == ERROR and f.rule != "CU603")
        message = each.predicts or ""
        told = (ended == _ended(f) or (f.predicts and f.predicts in message) for f in others)
        if each.rule == "CU603" and any(told):
            continue
        if each.severity == ERROR and ended and imports.get(ended, "") is None:
            worked = Evidence("--observe", None, f"import {ended} works")
            evidence = [worked, *(e for e in each.evidence if e.value not in wrong)]
            each = but(each, severity=WARNING, evidence=evidence, predicts=None)
        yield each


def _ended(finding: Finding) -> str | None:
    """The module whose import it says fails."""
    found = (re.match(r"import (\S+) (?:fails|runs it first)\Z", e.value) for e in finding.evidence)
    return next((match[1] for match in found if match), None)


def cu602(facts: Facts) -> Iterator[Finding]:
    """Another release than the one that is expected: an index that fell back."""
    for requirement in facts.expects:
        name, specifier = _parts(requirement)
        known = next((f for f in facts.frameworks if name in f.names), None)
        dist = facts.distribution(name) or facts.distribution(known.distribution if known else None)
        package = dist.name if dist else name
        # PyPI's builds tell the CUDA that they are for in the package alone.
        own = known.version if known and known.package == package else ""
        version = own or (dist.version if dist else "")
        if version and satisfies(version, specifier):
            continue
        title = f"{requirement} is expected, and {name} is "
        title += f"of version {version}" if version else "not installed"
        tag = re.search(r"\+((?:cu|cpu|rocm|xpu)[0-9.]*)\Z", specifier)
        index = f"{fix.INDEX}/{tag[1]}" if tag else None
        line = fix.install(facts.environment, package + specifier, of=dist, index=index)
        evidence = [Evidence("--expect", None, requirement), dist.evidence if dist else None]
        yield finding(ERROR, title, evidence, None, [line], name)
