"""Collects the facts of a machine (once) and of an environment on it (each)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from cudriver.stack.environment.debian import DebianOwners
from cudriver.stack.facts import HIDDEN, Environment, Facts, FileFault, Problem
from cudriver.stack.loader.search import Loader
from cudriver.stack.machine import driver
from cudriver.stack.machine_facts import Driver, Toolkit
from cudriver.stack.record import Any, but, put
from cudriver.stack.roots.asked import Asked, from_here, inspected, working_folder
from cudriver.stack.roots.rootfs import Budget, Root, TooMuch
from cudriver.stack.tables import matters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cudriver.stack.environment.records import Owners
    from cudriver.stack.facts import Framework
    from cudriver.stack.machine.probe import Inspected, Probe


class Machine:
    """What the environments of one machine (or one root) share."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.problems: list[Problem] = []
        self.debian = DebianOwners(asked.root)
        self.toolkits: list[Toolkit] = []
        self.probe: tuple[Probe, Inspected] | None = None
        self._driver: Driver | None = asked.assumed if asked.assumes else None
        self.verify: Callable[[Facts, Loader], list[FileFault]] | None = None  # reads files whole
        self.too_much: TooMuch | None = None  # what it needs was more than a check may read

    @cached_property
    def loader(self) -> Loader:
        """ld.so of this root and these variables, with its cache of parsed files."""
        root = self.asked.root
        made = Loader(root, self.asked.variables, cwd=working_folder(root))
        made.driver_assumed = self.asked.assumes
        return made

    def driver(self) -> Driver:
        """The driver, with NVML's answers in: joins the child that was started first."""
        if self._driver is None:
            self._driver = driver.describe(self.asked, self.loader)
            if self.probe is not None:
                from cudriver.stack.machine import probe

                self.problems += probe.complete(self._driver, *self.probe, self.asked.variables)
            driver.complete(self._driver, self.asked.assumed)
        return self._driver


def ask(
    prefix: str | None = None,
    *,
    root: str = "/",
    environ: Mapping[str, str] | None = None,
    **wishes: Any,
) -> Asked:
    """What is asked for, parsed; wishes: other fields of it. Raises NotADirectoryError."""
    if not os.path.isdir(root):
        raise NotADirectoryError(f"{root} is not a folder")
    tree = Root(root)
    if environ is None:
        environ = os.environ if tree.host else {}
    variables = from_here(dict(environ), working_folder(tree))
    wishes.setdefault("started", working_folder(tree) if tree.host else "")
    return Asked(tree, inspected(tree, prefix), variables, **wishes)


def collect_machine(asked: Asked, prefixes: Sequence[str] = ()) -> Machine:
    """The machine's half of the facts, for environments at `prefixes`: no driver library in them is
    asked.
    """
    machine = Machine(asked)
    asked.root.budget = Budget()
    asked.root.problems = machine.problems
    try:
        _look_around(machine, prefixes)
    except TooMuch as error:
        machine.too_much = error
    asked.root.budget = None
    return machine


def _look_around(machine: Machine, prefixes: Sequence[str]) -> None:
    """Starts the child that asks the driver, and looks for toolkits."""
    asked = machine.asked
    if asked.probe and not asked.assumes and driver.worth_asking(asked):
        from cudriver.stack.machine import probe

        apart = probe.Inspected(prefixes)
        found = machine.loader.search(probe.NVML)
        nvml = apart.outside(found)
        if nvml != found.path:
            machine.problems.append(probe.not_asked(found.path or probe.NVML))
        if nvml is not None or found.path is None:
            machine.probe = probe.Probe(apart.without(asked.variables), nvml=nvml), apart
    from cudriver.stack.machine import toolkits

    machine.toolkits = toolkits.system(asked)


def collect(asked: Asked, machine: Machine | None = None) -> Facts:
    """The facts of the environment that is asked for. machine: its half, where that is known."""
    machine = machine or collect_machine(asked, [asked.prefix])
    if machine.too_much is not None:
        facts = _stopped(asked, machine.too_much)
    else:
        facts = _bounded(asked, machine, _Check.all)
    put(facts, driver=machine.driver())
    return facts


def collect_libraries(asked: Asked) -> Facts:
    """Of these facts those about the libraries of the frameworks, and no others."""
    return _bounded(asked, Machine(asked), _Check.libraries)


def _bounded(asked: Asked, machine: Machine, phases: Callable[[_Check], None]) -> Facts:
    """What phases collect, unless they would read more than a check may."""
    root = asked.root
    root.budget, root.problems = Budget(), list(machine.problems)
    try:
        check = _Check(asked, machine)
        phases(check)
        return check.facts
    except TooMuch as error:
        return _stopped(asked, error)
    finally:
        root.budget = None


def _stopped(asked: Asked, why: TooMuch) -> Facts:
    facts = _begun(asked, Environment(asked.prefix, "unknown"))
    facts.problems.append(Problem(asked.prefix, str(why)))
    facts.unsure.append(f"{asked.prefix}: {why}")
    return facts


def _begun(asked: Asked, env: Environment) -> Facts:
    """Facts with what is known before anything is looked for."""
    stated = {n: getattr(asked, n) for n in ("match", "match_level", "needs", "expects")}
    return Facts(env, root=asked.root.path, **stated)


def recollect(facts: Facts, machine: Machine, changes: dict[str, str | None]) -> Facts:
    """The same environment's facts with other variables (None: unset). The driver is not asked
    again.
    """
    values = {**machine.asked.variables, **changes}
    variables = {name: value for name, value in values.items() if value is not None}
    prefix = facts.environment.prefix
    asked = but(machine.asked, prefix=prefix, variables=variables, probe=False)
    other = collect_machine(asked)
    other.too_much = machine.too_much or other.too_much
    if machine.verify is not None:  # files are the same, whatever the variables
        known = [fault for fault in facts.file_faults if fault.what != HIDDEN]
        other.verify = lambda now, _: [
            fault for fault in known if fault.file not in {each.file for each in now.file_faults}
        ]
    old, new = machine.driver(), other.driver()
    if new is not old:
        driver.take_over(new, old)
    return collect(asked, other)


class _Check:
    """One environment, phase by phase: each writes facts of its own. Raises TooMuch."""

    def __init__(self, asked: Asked, machine: Machine) -> None:
        from cudriver.stack.environment import interpreter
        from cudriver.stack.load.frameworks import Finder
        from cudriver.stack.load.libraries import Resolver

        self.asked, self.machine, self.root = asked, machine, asked.root
        self.env: Environment = interpreter.describe(asked)
        facts = self.facts = but(_begun(asked, self.env), problems=self.root.problems)
        self.owners: Owners = self._environment()
        self.finder = Finder(self.owners, facts.distributions, self.env.site_packages)
        self.frameworks: list[Framework] = self.finder.all()
        self.resolver = Resolver(machine.loader, self.env, self.owners, machine.debian)

    def _environment(self) -> Owners:
        """Its distributions, and who brought which library."""
        from cudriver.stack.environment import distributions, records
        from cudriver.stack.load.frameworks import matters_here

        facts, owners = self.facts, records.Owners(self.root)
        put(facts, distributions=distributions.installed(self.root, self.env))
        pips = (f"{folder}/pip/__main__.py" for folder in self.env.site_packages)
        put(self.env, lacks_pip=not any(map(self.root.is_file, pips)))
        if self.env.python is None and not facts.distributions:
            from cudriver.stack.environment.discover import near

            put(self.env, near=near(self.root, self.env.prefix))
        for dist in facts.distributions:
            group = "conda" if dist.kind == "conda" else "parts"
            if matters(dist.name, group) or matters_here(dist):
                owners.add(dist)
        return owners

    def libraries(self) -> None:
        """What the frameworks load, and nothing else."""
        self._load()
        put(self.facts, unsure=self.resolver.unsure + _unread(self.root, self.facts))

    def all(self) -> None:
        """Every phase."""
        from cudriver.stack.machine import visible

        facts, machine, known = self.facts, self.machine, len(self.machine.problems)
        self._toolkits()
        self._load()
        self._integrity()
        put(facts, unsure=self.resolver.unsure + _unread(self.root, facts), driver=machine.driver())
        facts.problems.extend(machine.problems[known:])
        visible.mark(facts.driver.devices, self.asked.variables.get(visible.VARIABLE))

    def _toolkits(self) -> None:
        from cudriver.stack.machine import compilers, compiling, toolkits

        facts, env = self.facts, self.env
        own = toolkits.inside(self.root, env, facts.distributions)
        put(facts, toolkits=self.machine.toolkits + own)
        put(facts, nvcc=toolkits.choice(self.asked, env, facts.toolkits))
        put(facts, compiler=compilers.host_compiler(self.asked, env))
        lacking = compiling.lacking(self.asked, env, facts.distributions, facts.nvcc)
        put(facts, lacking=[*lacking])
        put(facts, ptxas=compiling.ptxas(self.asked, facts.distributions, facts.nvcc))

    def _load(self) -> None:
        facts, resolver = self.facts, self.resolver
        put(facts, frameworks=resolver.run(self.frameworks, self.finder.recipes))
        found = resolver.catalogue
        put(facts, libraries=[*found.libraries.values()], missing=[*found.missing.values()])
        put(facts, load_faults=resolver.faults)

    def _integrity(self) -> None:
        from cudriver.stack.integrity.astray import astray
        from cudriver.stack.integrity.whole import Whole

        facts, root = self.facts, self.root
        whole = Whole(facts, self.resolver, self.machine.verify is not None)
        put(facts, astray=[*astray(self.asked, facts, whole.wheels)])
        faults = self.owners.faults()
        put(facts, file_faults=faults)
        faults += whole.faults()
        if self.machine.verify is not None:
            put(facts, verified=True)
            budget, root.budget = root.budget, None
            faults += self.machine.verify(facts, self.machine.loader)
            root.budget = budget


def _unread(root: Root, facts: Facts) -> list[str]:
    """What could not be read of that which decides: where the packages lie, what those of CUDA say
    of themselves. The rules' silence about it means nothing.
    """
    env = facts.environment
    around = (f"{env.prefix}/conda-meta", f"{env.prefix}/lib")
    inside = tuple(f"{folder}/" for folder in env.site_packages)
    for folder, why in root.unlisted.items():
        if folder in around or f"{folder}/".startswith(inside):
            root.note(folder, f"cannot be read: {why}")
    for framework in facts.frameworks:
        # conda's packages need none. That a folder cannot be listed was told above.
        apart = env.kind == "conda" or os.path.dirname(framework.path) in root.unlisted
        if framework.variant == "cuda" and framework.distribution is None and not apart:
            why = "has no .dist-info: what it requires, and whether its files are whole, "
            root.note(framework.path, f"{why}is not known")
        # Its package was not found on the path: only code of the environment knows where it is.
        url = f"{framework.path}/direct_url.json"
        if framework.path.endswith(".dist-info") and '"editable": true' in (root.text(url) or ""):
            why = "an editable install: which folder it is in, only Python can tell"
            root.note(framework.path, why)
    groups = ((dist, "conda" if dist.kind == "conda" else "cuda") for dist in facts.distributions)
    decisive = [framework.path for framework in facts.frameworks]
    decisive += [dist.path for dist, group in groups if matters(dist.name, group)]
    found = []
    for problem in root.problems:
        whole = problem.line is None and problem.file.startswith("/")
        decides = any(f"{problem.file}/".startswith(f"{path}/") for path in decisive)
        if whole and (decides or problem.file in root.unlisted):
            found.append(f"{problem.file}: {problem.text}")
    if env.python is not None and not env.site_packages and env.kind != "unknown":
        found.append(f"{env.prefix}: it has no site-packages that can be read")
    return found
