"""Collects the facts of a machine (once) and of an environment on it (each)."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from cudriver.stack.environment.debian import DebianOwners
from cudriver.stack.facts import (
    HIDDEN,
    SHARED,
    Driver,
    Environment,
    Facts,
    FileFault,
    Problem,
    Toolkit,
)
from cudriver.stack.loader.search import Loader
from cudriver.stack.machine import driver
from cudriver.stack.names import is_cuda_library
from cudriver.stack.record import Any
from cudriver.stack.roots.rootfs import Budget, Root, TooMuch
from cudriver.stack.roots.where import from_here, place, working_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cudriver.stack.environment.records import Owners
    from cudriver.stack.machine.probe import Inspected, Probe


class Machine:
    """What the environments of one machine (or one root) share."""

    def __init__(self, root: Root, variables: dict[str, str]) -> None:
        self.root = root
        self.variables = variables
        self.problems: list[Problem] = []
        self.inspected: Inspected | None = None
        self.toolkits: list[Toolkit] = []
        self.assumed: Driver | None = None
        self.gpus: Driver | None = None
        self.probe: Probe | None = None
        self._driver: Driver | None = None
        self.verify: Callable[[Facts, Loader], list[FileFault]] | None = None  # reads files whole
        self.too_much: TooMuch | None = None  # what it needs was more than a check may read

    @cached_property
    def loader(self) -> Loader:
        """ld.so of this root and these variables, with its cache of parsed files."""
        return Loader(self.root, self.variables, cwd=working_folder(self.root))

    @cached_property
    def debian(self) -> DebianOwners:
        return DebianOwners(self.root)

    def driver(self) -> Driver:
        """The driver, with NVML's answers in: joins the child that was started first."""
        if self._driver is None:
            if self.assumed is not None:
                self._driver = self.assumed
            else:
                self._driver = driver.collect(self.root, self.variables, self.loader)
                if self.probe is not None and self.inspected is not None:
                    from cudriver.stack.machine import probe

                    self.problems += probe.complete(
                        self._driver, self.probe, self.variables, self.inspected
                    )
                self._driver.error = driver.trouble(self._driver)
                if self.gpus is not None:
                    self._driver.devices = self.gpus.devices
        return self._driver

    def apart(self) -> Machine:
        """The same for another thread, which shares nothing that a check changes."""
        other = copy.copy(self)
        other.root = Root(self.root.path)
        for name in ("loader", "debian"):
            other.__dict__.pop(name, None)
        other.problems, other.toolkits, other._driver = copy.deepcopy(
            (self.problems, self.toolkits, self.driver())
        )
        return other


def check_arguments(
    root: str, assume_driver: str | None = None, assume_gpus: Sequence[str] | None = None
) -> None:
    """Raises NotADirectoryError, ValueError as `inspect` does."""
    if not os.path.isdir(root):
        raise NotADirectoryError(f"{root} is not a folder")
    driver.assumed(assume_driver, assume_gpus)


def collect_machine(
    root: str = "/",
    environ: Mapping[str, str] | None = None,
    probe_driver: bool = True,
    assume_driver: str | None = None,
    assume_gpus: Sequence[str] | None = None,
    prefixes: Sequence[str] = (),
) -> Machine:
    """The machine's half of the facts, for environments at `prefixes`: no driver library in them is
    asked. Raises NotADirectoryError, ValueError as `inspect` does.
    """
    check_arguments(root, assume_driver, assume_gpus)
    tree = Root(root)
    if environ is None:
        environ = os.environ if tree.host else {}
    machine = Machine(tree, from_here(dict(environ), working_folder(tree)))
    if assume_driver is not None:
        machine.assumed = driver.assumed(assume_driver, assume_gpus)
    elif assume_gpus:
        machine.gpus = driver.assumed(None, assume_gpus)
    tree.budget = Budget()
    try:
        _look_around(machine, probe_driver, prefixes)
    except TooMuch as error:
        machine.too_much = error
    tree.budget = None
    return machine


def _look_around(machine: Machine, probe_driver: bool, prefixes: Sequence[str]) -> None:
    """Starts the child that asks the driver, and looks for toolkits."""
    tree = machine.root
    if machine.assumed is None and probe_driver and driver.worth_asking(tree, machine.variables):
        from cudriver.stack.machine import probe

        machine.inspected = probe.Inspected(prefixes)
        found = machine.loader.search(probe.NVML)
        nvml = machine.inspected.outside(found)
        if nvml != found.path:
            machine.problems.append(probe.not_asked(found.path or probe.NVML))
        if nvml is not None or found.path is None:
            machine.probe = probe.Probe(machine.inspected.without(machine.variables), nvml=nvml)
    from cudriver.stack.machine import toolkits

    machine.toolkits = toolkits.system(tree, machine.variables, machine.problems)


def machine_for(prefix: str | None, root: str = "/", **stated: Any) -> Machine:
    """`collect_machine` for one environment, which is looked for first."""
    check_arguments(root)
    return collect_machine(root, prefixes=[place(Root(root), prefix)], **stated)


def collect(prefix: str | None = None, *, machine: Machine | None = None, **stated: Any) -> Facts:
    """The facts of the environment at `prefix`. What else is stated is `machine_for`'s, unless a
    `machine` is given.
    """
    machine = machine or machine_for(prefix, **stated)
    where = place(machine.root, prefix)
    machine.root.budget = Budget()
    try:
        if machine.too_much is not None:
            raise machine.too_much
        return _collect(machine, where)
    except TooMuch as error:
        machine.root.budget = None
        facts = Facts(Environment(where, "unknown"), root=machine.root.path)
        facts.problems.append(Problem(where, str(error)))
        facts.unsure.append(f"{where}: {error}")
        facts.driver = machine.driver()
        return facts
    finally:
        machine.root.budget = None


def recollect(facts: Facts, machine: Machine, changes: dict[str, str | None]) -> Facts:
    """The same environment's facts with other variables (None: unset). The driver is not asked
    again.
    """
    variables = {name: v for name, v in {**machine.variables, **changes}.items() if v is not None}
    other = Machine(machine.root, variables)
    other.assumed, other.gpus, other.too_much = machine.assumed, machine.gpus, machine.too_much
    if machine.verify is not None:  # files are the same, whatever the variables
        seen = [fault for fault in facts.file_faults if fault.what != HIDDEN]
        other.verify = lambda now, _: _beside(seen, now.file_faults)
    _look_around(other, False, [])
    known, new = machine.driver(), other.driver()
    if machine.assumed is None:
        new.devices = [copy.copy(device) for device in known.devices]
        new.cuda = new.cuda or known.cuda
        for name in ("init_code", "nvml_error", "probe_error", "error"):
            setattr(new, name, getattr(new, name) or getattr(known, name))
    made = collect(facts.environment.prefix, machine=other)
    made.match, made.match_level = facts.match, facts.match_level
    return made


def _collect(machine: Machine, where: str) -> Facts:
    """The facts of the environment at a folder. Raises TooMuch."""
    tree = machine.root
    known = len(machine.problems)
    problems: list[Problem] = list(machine.problems)

    from cudriver.stack.environment import distributions, interpreter
    from cudriver.stack.integrity.whole import Whole
    from cudriver.stack.load.frameworks import Finder
    from cudriver.stack.load.libraries import Resolver
    from cudriver.stack.machine import compilers, toolkits, visible

    env = interpreter.describe(tree, where, machine.variables, problems)
    facts = Facts(environment=env, root=tree.path, problems=problems)
    facts.distributions = distributions.collect(tree, env, problems)
    if env.python is None and not facts.distributions:
        from cudriver.stack.environment.discover import near

        env.near = near(tree, env.prefix)
    owners = _owners(tree, facts, problems)
    facts.toolkits = machine.toolkits + toolkits.environment(tree, env, facts.distributions)
    facts.nvcc = toolkits.choice(tree, machine.variables, env, facts.toolkits)
    facts.compiler = compilers.host_compiler(tree, machine.variables, env)
    finder = Finder(tree, facts.distributions, owners, env.site_packages, problems)
    resolver = Resolver(tree, machine.loader, env, owners, problems)
    frameworks = finder.all()
    whole = Whole(tree, facts, owners, frameworks, machine.verify is not None)
    facts.frameworks = resolver.run(frameworks, finder.recipes, machine.debian)
    facts.libraries = list(resolver.catalogue.libraries.values())
    facts.missing = list(resolver.catalogue.missing.values())
    facts.load_faults = resolver.faults
    facts.file_faults = owners.faults()
    facts.file_faults += _shared(owners, {fault.file for fault in facts.file_faults})
    facts.file_faults += whole.faults(resolver)
    if machine.verify is not None:
        facts.verified = True
        budget, tree.budget = tree.budget, None
        facts.file_faults += machine.verify(facts, machine.loader)
        tree.budget = budget
    facts.unsure = resolver.unsure + _unread(tree, facts, problems)
    facts.driver = machine.driver()
    problems += machine.problems[known:]
    visible.mark(facts.driver.devices, machine.variables.get(visible.VARIABLE))
    return facts


def _unread(tree: Root, facts: Facts, problems: list[Problem]) -> list[str]:
    """What could not be read of that which decides: where the packages lie, what those of CUDA say
    of themselves. The rules' silence about it means nothing.
    """
    from cudriver.stack.environment.distributions import conda_matters, matters

    env = facts.environment
    around = (f"{env.prefix}/conda-meta", f"{env.prefix}/lib")
    inside = tuple(f"{folder}/" for folder in env.site_packages)
    for folder, why in tree.unlisted.items():
        if folder in around or f"{folder}/".startswith(inside):
            problems.append(Problem(folder, f"cannot be read: {why}"))
    for framework in facts.frameworks:
        # conda's packages need none. That a folder cannot be listed was told above.
        apart = env.kind == "conda" or os.path.dirname(framework.path) in tree.unlisted
        if framework.variant == "cuda" and framework.distribution is None and not apart:
            why = (
                "has no .dist-info: what it requires, and whether its files are whole, is not known"
            )
            problems.append(Problem(framework.path, why))
        # Its package was not found on the path: only code of the environment knows where it is.
        url = f"{framework.path}/direct_url.json"
        if framework.path.endswith(".dist-info") and '"editable": true' in (tree.text(url) or ""):
            why = "an editable install: which folder it is in, only Python can tell"
            problems.append(Problem(framework.path, why))
    decisive = [f.path for f in facts.frameworks]
    for dist in facts.distributions:
        if conda_matters(dist.name) if dist.kind == "conda" else matters(dist.name):
            decisive.append(dist.path)
    found = []
    for problem in problems:
        whole = problem.line is None and problem.file.startswith("/")
        decides = any(f"{problem.file}/".startswith(f"{path}/") for path in decisive)
        if whole and (decides or problem.file in tree.unlisted):
            found.append(f"{problem.file}: {problem.text}")
    if env.python is not None and not env.site_packages and env.kind != "unknown":
        found.append(f"{env.prefix}: it has no site-packages that can be read")
    return found


def _beside(seen: list[FileFault], known: list[FileFault]) -> list[FileFault]:
    """Those of which nothing is known yet."""
    files = {fault.file for fault in known}
    return [fault for fault in seen if fault.file not in files]


def _shared(owners: Owners, told: set[str]) -> list[FileFault]:
    """CUDA libraries that two distributions brought, and that both agree about."""
    found = []
    for path, claims in owners.by_path.items():
        names = {claim.distribution.name for claim in claims}
        if len(names) > 1 and path not in told and is_cuda_library(os.path.basename(path)):
            whole = [f"{c.distribution.name} {c.distribution.version}" for c in claims]
            first = claims[0]
            found.append(FileFault(first.distribution.name, path, SHARED, first.evidence, whole))
    return found


def _owners(tree: Root, facts: Facts, problems: list[Problem]) -> Owners:
    from cudriver.stack.environment import distributions, records
    from cudriver.stack.load.frameworks import matters_here

    owners = records.Owners(tree)
    for dist in facts.distributions:
        if dist.kind == "conda":
            if distributions.conda_matters(dist.name):
                owners.add_conda(dist)
        elif dist.name.startswith("nvidia-") or matters_here(dist):
            owners.add(dist, problems)
    return owners
