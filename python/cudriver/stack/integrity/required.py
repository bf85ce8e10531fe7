"""What the packages that have to do with CUDA require, and what that requires."""

from __future__ import annotations

from collections.abc import Iterator

from cudriver.stack.environment.markers import Markers, environment, normal
from cudriver.stack.environment.records import Owners
from cudriver.stack.facts import Absent, Distribution, Evidence, Facts, Framework
from cudriver.stack.roots.rootfs import Root
from cudriver.stack.tables import matters


def required(facts: Facts, owners: Owners, frameworks: list[Framework]) -> dict[str, Distribution]:
    """By name: frameworks, packages of CUDA's, those with shared libraries, and all that they
    require.
    """
    installed = {dist.name: dist for dist in reversed(facts.distributions)}
    known = {framework.distribution for framework in frameworks}
    left = [
        dist
        for dist in installed.values()
        if matters(dist.name) or owners.of.get(dist.path) or dist.name in known
    ]
    if left and "numpy" in installed:  # torch and others take it where it is there
        left.append(installed["numpy"])
    found = {dist.name: dist for dist in left}
    for dist in left:
        for name, _, marker in _asks(dist):
            if "extra" not in marker and name in installed and name not in found:
                found[name] = installed[name]
                left.append(installed[name])
    return {name: dist for name, dist in found.items() if not matters(name, "tools")}


def absent(root: Root, facts: Facts, wanting: dict[str, Distribution]) -> Iterator[Absent]:
    """What one of these requires, for no extra, and nobody brought."""
    env = facts.environment
    markers = Markers(environment(env.python or "3.12", env.platform))
    installed = {dist.name for dist in facts.distributions}
    if env.kind == "conda" or "*" in env.by_code or env.zip_files:
        return  # conda's solver sees to it; or what lies elsewhere is not known
    names = (name for folder in env.site_packages for name in root.names(folder))
    # A module of its name may be there, be it of another distribution.
    modules = {name.partition(".")[0] for name in names}.union(env.by_code)
    for dist in wanting.values():
        for name, specifier, marker in _asks(dist) if dist.kind == "wheel" else ():
            if name in installed or name == "triton" or matters(name, "parts") or "extra" in marker:
                continue
            holds = not marker.strip() or markers.holds(marker)
            there = name.replace("-", "_") in modules
            if holds and not there and dist.installer != "conda":
                specifier = specifier.strip().removeprefix("(").removesuffix(")")
                evidence = Evidence(f"{dist.path}/METADATA", None, f"{name}{specifier}")
                yield Absent(name, specifier if "@" not in specifier else "", dist.name, evidence)


def _asks(dist: Distribution) -> Iterator[tuple[str, str, str]]:
    """The name, the specifier and the marker of each requirement."""
    for text, rest in dist.asks:
        specifier, _, marker = rest.partition(";")
        yield normal(text), specifier, marker
