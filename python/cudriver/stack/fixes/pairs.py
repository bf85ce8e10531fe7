"""Releases that go together: by the table of pairs, and by what `cudriver plan` knows of each."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cudriver.stack.environment.markers import versions_of
from cudriver.stack.facts import ERROR, Distribution, Facts, Requirement
from cudriver.stack.fixes import fix
from cudriver.stack.machine_facts import Device, Driver
from cudriver.stack.record import but
from cudriver.stack.tables import table
from cudriver.stack.versions import cut, major, minor, newer, satisfies

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cudriver.stack.planning.candidates import Candidate


def broken(facts: Facts) -> Iterator[tuple[Distribution, Requirement, dict[str, str]]]:
    """The pairs that are known to fail here: the package, what it should have, the table's row."""
    for row in table("pairs")["pairs"]:
        dist, other = facts.distribution(row["package"]), facts.distribution(row["with"])
        if dist is None or not satisfies(dist.version, row["versions"]):
            continue
        wants, fails = row["wants"].replace("{version}", dist.version), row["fails"]
        if other is None if fails == "absent" else other and satisfies(other.version, fails):
            yield dist, Requirement(row["with"], wants, dist.evidence), row


def refused(
    by: Distribution, asked: Requirement, here: Distribution | None
) -> tuple[str, str] | None:
    """What an import says that compares this version with what METADATA asks for, and how bad that
    is; None where nobody is known to compare.
    """
    if here is None:
        return None
    least = re.search(r"(?:>=?|[=~]=)\s*([0-9][0-9.]*[0-9]|[0-9])", asked.specifier)
    for row in table("pairs")["compared"]:
        have = (row.get("numbers") and cut(here.version, 9)) or here.version
        way = "older" if least and newer(least[1], have) else "newer"
        of = row["package"] == by.name and satisfies(by.version, row["versions"])
        if of and asked.name in row["with"] and way in row and not satisfies(have, asked.specifier):
            # METADATA sorts the clauses; who writes them begins with the least release.
            clauses = [clause.strip() for clause in asked.specifier.split(",")]
            known = {"name": asked.name, "have": here.version, "least": least[1] if least else ""}
            written = ",".join(sorted(clauses, key=lambda c: "!<".find(c[:1] or ">")))
            message = str(row[way]).format(by=by.version, asked=asked.name + written, **known)
            return row.get("severity", ERROR), message
    return None


def asked_of(by: Distribution, name: str) -> Iterator[str]:
    """What a distribution asks of another, always: for no extra, and under no condition."""
    for required, specifier, marker in by.asks:
        if required == name and not marker and "@" not in specifier:
            yield versions_of(specifier)


def together(facts: Facts, name: str, specifier: str) -> str:
    """A specifier that serves all that require a distribution: of several least and most releases
    those that count. The extras of the one that is given stay.
    """
    others = (each for dist in facts.distributions for each in asked_of(dist, name))
    stated = [versions_of(specifier), *others]
    clauses = dict.fromkeys(c.replace(" ", "") for s in stated for c in s.split(",") if c.strip())
    counts: dict[str, str] = {}
    for clause in clauses:
        sign = next((sign for sign in (">=", "<") if clause.startswith(sign)), "")
        key = sign if sign and not clause.startswith("<=") else clause
        known = counts.get(key, clause)
        one, other = clause[len(sign) :], known[len(sign) :]
        counts[key] = clause if newer(*((one, other) if sign == ">=" else (other, one))) else known
    return specifier[: specifier.find("]") + 1] + ",".join(counts.values())


def goes_with(facts: Facts, name: str, version: str) -> bool:
    """Whether a release is known to be built for what is installed beside it."""
    torch = facts.distribution("torch")
    if name in fix.KIN:
        return torch is not None and fix.series_for(name, torch.version) == cut(version, 2)
    rows = [r for r in table("pairs")["pairs"] if r["package"] == name and r["wants"]]
    beside = [(r, facts.distribution(r["with"])) for r in rows if satisfies(version, r["versions"])]
    built, framework = built_for(name, version), facts.framework("torch")
    if built and framework and not rows:
        return major(built) == major(framework.cuda)
    return any(d is not None and satisfies(d.version, r["wants"]) for r, d in beside)


def release_for(facts: Facts, dist: Distribution, cuda: int | None) -> str | None:
    """The newest release of a distribution that is known to be built for a CUDA major, as it is
    asked for: "vllm==0.19.1".
    """
    from cudriver.stack.planning.candidates import known

    python = cut(facts.environment.python, 2)
    name = next((f.name for f in facts.frameworks if f.distribution == dist.name), dist.name)
    usable = [c for c in known([name]) if c.index is None and python in (None, *c.pythons)]
    named = [(c, p) for c in usable for p in c.packages if fix.bare(p) == dist.name]
    fitting = [(c.newness([name]), p) for c, p in named if major(c.cuda) == cuda]
    return max(fitting, default=(None, None))[1]


def built_for(name: str, version: str) -> str | None:
    """The CUDA that a known release of PyPI's is built for."""
    from cudriver.stack.planning.candidates import known

    named = (c for c in known([name]) if c.frameworks[name]["version"] == version)
    return next((c.cuda for c in named if c.index is None), None)


def runs(capability: str, archs: list[str]) -> str | None:
    """How a list of architectures serves a device: "cubin", "ptx", or None.

    A cubin runs on its own minor version and later ones of one major; sm_90a on 9.0 alone;
    sm_100f in its family; PTX (compute_NN) on anything newer, by the driver's compiler.
    """
    wanted = minor(capability)
    if wanted is None:
        return None
    ptx = False
    for arch in archs:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch.strip())
        if match is None:
            continue
        kind, have, only = match[1], (int(match[2]), int(match[3])), match[4]
        family = have[0] == wanted[0]
        if kind == "sm" and (have == wanted if only == "a" else family and have <= wanted):
            return "cubin"
        ptx = ptx or (kind == "compute" and only != "a" and have <= wanted and (family or not only))
    return "ptx" if ptx else None


def torch_for_gpus(facts: Facts, devices: list[Device]) -> Candidate | None:
    """PyTorch for these GPUs and this Python: of this release the build for the newest CUDA, else
    the newest; for this driver, where it runs one, else for any.
    """
    from cudriver.stack.planning.candidates import best, known, number
    from cudriver.stack.planning.question import Question

    env, torch = facts.environment, facts.framework("torch")
    version, arm = torch and cut(torch.version, 2), env.platform != "x86_64"

    def has_code(each: Candidate) -> bool:
        """By the table: builds for Arm have other code than those that candidates tell of."""
        archs = fix.torch_archs(each.frameworks["torch"]["version"], each.cuda, env.platform)
        return all(runs(device.compute_capability or "", archs) for device in devices)

    usable = [each for each in known(["torch"], arm) if not arm or has_code(each)]
    passing = {"gpu"} if arm else set()
    for driver in (facts.driver, Driver()):  # CU103 tells of a driver that runs none
        question = Question(["torch"], but(driver, devices=devices), cut(env.python, 2))
        fitting = [each for each in usable if each.obstacles(question) <= passing]
        same = [c for c in fitting if cut(c.frameworks["torch"]["version"], 2) == version]
        found = max(same, key=lambda each: number(each.cuda), default=None)
        if found := found or best(question, among=fitting):
            return found
    return None
