"""What the packages that have to do with CUDA require, and what that requires."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cudriver.stack.environment.markers import markers_of, versions_of
from cudriver.stack.environment.records import Owners
from cudriver.stack.facts import Distribution, Evidence, Facts, Framework, Requirement
from cudriver.stack.roots.rootfs import Root
from cudriver.stack.tables import matters, table
from cudriver.stack.versions import satisfies


def required(
    facts: Facts, owners: Owners, frameworks: Iterable[Framework]
) -> dict[str, Distribution]:
    """By name: frameworks, packages of CUDA's, those with shared libraries, and all that they
    require.
    """
    installed = {dist.name: dist for dist in reversed(facts.distributions)}
    known = {framework.distribution for framework in frameworks}
    known.update(row["package"] for row in table("pairs")["compared"])
    every = installed.values()
    left = [d for d in every if matters(d.name) or owners.of.get(d.path) or d.name in known]
    if left and "numpy" in installed:  # torch and others take it where it is there
        left.append(installed["numpy"])
    found = {dist.name: dist for dist in left}
    for dist in left:
        for name, _, marker in dist.asks:
            if "extra" not in marker and name in installed and name not in found:
                found[name] = installed[name]
                left.append(installed[name])
    return {name: dist for name, dist in found.items() if not matters(name, "tools")}


def unmet(root: Root, facts: Facts, wanting: dict[str, Distribution]) -> Iterator[Requirement]:
    """What one of these requires, for no extra, and nobody brought, or in another version."""
    env = facts.environment
    markers = markers_of(env.python, env.platform)
    installed = {dist.name: dist for dist in reversed(facts.distributions)}
    # conda's solver sees to it; or what lies elsewhere is not known
    apart = env.kind == "conda" or "*" in env.by_code or bool(env.zip_files)
    names = (name for folder in env.site_packages for name in root.names(folder))
    builds: list[list[str]] = table("packages")["instead"]["groups"]
    # A module of its name may be there, be it of another distribution.
    modules = {name.partition(".")[0] for name in names}.union(env.by_code)
    for dist in wanting.values():
        if dist.kind != "wheel" or dist.installer == "conda":
            continue
        for name, specifier, marker in dist.asks:
            here = installed.get(name)
            wanted = "" if "@" in specifier else versions_of(specifier)
            if here is not None:
                unmeant = here.installer == "conda" or satisfies(here.version, wanted) is not False
            else:  # its extras come with it
                wanted = specifier[: specifier.find("]") + 1].strip() + wanted
                reported = name == "triton" or matters(name, "parts")  # by the loader, or by a rule
                others = (group for group in builds if name in group)  # of the same modules
                stands_in = any(not installed.keys().isdisjoint(group) for group in others)
                unmeant = apart or reported or stands_in or name.replace("-", "_") in modules
            if unmeant or "extra" in marker or (marker.strip() and not markers.holds(marker)):
                continue
            evidence = Evidence(f"{dist.path}/METADATA", None, f"{name}{specifier.strip()}")
            yield Requirement(name, wanted, evidence, by=dist.name)
