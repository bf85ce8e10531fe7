"""Which file each CUDA library resolves to when the frameworks are imported, and what goes wrong.

One simulated process a framework, in which what its import imports first is imported already: as a
user's programs would load them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cached_property, partial

from cudriver._elf import ElfError
from cudriver.stack.environment.debian import DebianOwners
from cudriver.stack.environment.records import Owners
from cudriver.stack.facts import (
    ERROR,
    FEATURE,
    GPU,
    IMPORT,
    NOTHING,
    SPARE,
    UNMODELLED,
    USE,
    Environment,
    Evidence,
    Framework,
    LoadFault,
)
from cudriver.stack.load.catalogue import Catalogue
from cudriver.stack.load.file_version import own_version
from cudriver.stack.load.imports import Event, Importer
from cudriver.stack.load.recipes import Recipe, Rescue, Step
from cudriver.stack.load.runtime_versions import fill_runtime_versions
from cudriver.stack.loader.process import Process
from cudriver.stack.loader.search import LoadedObject, Loader
from cudriver.stack.names import is_cuda_library
from cudriver.stack.record import but, put
from cudriver.stack.roots.rootfs import Root, TooMuch
from cudriver.stack.tables import table
from cudriver.stack.versions import cut, satisfies

MAX_ENTRIES = 60  # extension modules of one framework that are loaded
STAND_INS = ("/usr/bin/python3", "/bin/sh")  # where an environment's Python cannot be read


class Resolver:
    """Collects libraries and faults over the frameworks of one environment."""

    def __init__(
        self, loader: Loader, env: Environment, owners: Owners, debian: DebianOwners
    ) -> None:
        self.root: Root = loader.root
        self.loader = loader
        self.env = env
        self.owners = owners
        self.catalogue: Catalogue = Catalogue(self.root, env, owners, debian)
        self.faults: list[LoadFault] = []
        self.unsure: list[str] = []
        self.frameworks: dict[str, Framework] = {}
        self.recipes: dict[str, Recipe] = {}
        # By id (and kept, so that no other gets it): what was mapped by loads which need not work.
        self._idle: dict[int, LoadedObject] = {}
        # By framework, a file that is there: the library that it does not find.
        self._lacking: dict[tuple[str, str], str] = {}
        # By framework, a file of that name that is there, and what the loader says of it.
        self._refused: dict[tuple[str, str], LoadFault] = {}
        self._doubt: Evidence | None = None  # where the environment's Python could not be read
        self._processes: dict[str, Process | None] = {}  # by the framework that is imported

    def run(self, frameworks: list[Framework], recipes: dict[str, Recipe]) -> list[Framework]:
        """Resolves all; returns the frameworks without those that turn out to use no CUDA."""
        self.frameworks = {framework.name: framework for framework in frameworks}
        self.recipes = recipes
        torch = self.frameworks.get("torch")
        self.importer: Importer = Importer(self.loader, self.env, torch.cuda if torch else None)
        kept: list[Framework] = []
        beside = {name for name, recipe in recipes.items() if recipe.shown == "beside"}
        for framework in sorted(frameworks, key=lambda each: each.name in beside):
            recipe = recipes.get(framework.name)
            if framework.name in beside and not kept:
                del self.frameworks[framework.name]
                continue
            if recipe is not None:
                if framework.variant != "cpu":
                    self._guarded(framework, partial(self._use, framework, recipe))
                always = recipe.shown == "always" or framework.variant != "unknown"
                faulty = any(fault.framework == recipe.name for fault in self.faults)
                if always or framework.loads or faulty:
                    kept.append(framework)
            else:
                entries = [path for path in framework.libraries if self._uses_cuda(path)]
                if entries:
                    self._guarded(framework, partial(self._unmodelled, framework, entries))
                if entries or framework.variant != "unknown":
                    kept.append(framework)
        for framework in kept:
            fill_runtime_versions(self.root, framework, self.catalogue.libraries)
        return [framework for framework in frameworks if framework in kept]

    def _imported(self, name: str) -> Process | None:
        """A process in which a framework has been imported, and no more done; None where it is
        not installed or its import fails.
        """
        if name not in self._processes:
            framework, recipe = self.frameworks.get(name), self.recipes.get(name)
            self._processes[name] = None
            if framework is not None and recipe is not None:
                self._processes[name] = self._import(framework, recipe)
        return self._processes[name]

    def _import(self, framework: Framework, recipe: Recipe) -> Process | None:
        process = self._with(recipe.after, framework)
        if process is None:
            return None
        self._inherit(framework, process)
        for event in self.importer.follow(recipe.steps, framework, process, IMPORT):
            self._take(event, framework)
            if event.fails and event.means == IMPORT:
                put(framework, fails=True)
        return None if framework.fails else process

    def _with(self, names: list[str], framework: Framework | None = None) -> Process | None:
        """A process of its own in which these have been imported; None where such an import fails,
        so that the framework, which needs it, is blocked.
        """
        process = self._started.copy()
        for name in names:
            imported = self._imported(name)
            if imported is None:
                if framework is not None:
                    put(framework, blocked=name)
                return None
            process = imported.copy()
        return process

    def _inherit(self, framework: Framework, process: Process) -> None:
        """What is mapped before the framework does anything: LD_PRELOAD's, and what its import
        imports first.
        """
        for mapped in process.start.objects:
            self.catalogue.enter(mapped, framework, "LD_PRELOAD")
        paths = (os.path.normpath(each.path) for each in process.objects)
        put(framework, loads=[path for path in paths if path in self.catalogue.libraries])

    def _use(self, framework: Framework, recipe: Recipe) -> None:
        """Imports a framework and uses it; where that fails, as a program can that knows how."""
        process = self._imported(framework.name)
        if process is None:
            return
        process = process.copy()
        events = list(self.importer.follow(recipe.steps, framework, process, USE))
        if any(event.fails for event in events):
            for rescue in recipe.rescues:
                better = self._rescue(rescue, framework, recipe)
                if better is None:
                    continue
                alone, (process, events) = events, better
                if not any(event.fails for event in events):
                    for event in alone:
                        if event.fails:
                            self._fault(event.load.faults[0], framework, event, rescue.say)
                    break
        parts = [event for event in events if event.means in (FEATURE, GPU)]
        if recipe.cpu and parts and all(event.fails for event in parts):
            for event in parts:
                event.means = SPARE
        for event in events:
            self._take(event, framework)
        self._dlopened(process, framework)

    def tried(self, distribution: str, path: str) -> LoadFault | None:
        """What the loader says of a library of a distribution, loaded by itself once its framework
        is imported, or what that imports first, as far as these imports work; None where it loads.
        """
        owner = next((f for f in self.frameworks.values() if f.distribution == distribution), None)
        try:
            process = self._imported(owner.name) if owner and owner.name in self.recipes else None
            if process is None and owner is not None:
                process = self._with([name for name in owner.after if name in self.frameworks])
            load = (process or self._started).copy().dlopen(path)
        except (ElfError, OSError, ValueError):
            return None
        return load.faults[0] if load.faults else None

    def _rescue(
        self, rescue: Rescue, framework: Framework, recipe: Recipe
    ) -> tuple[Process, list[Event]] | None:
        """The process and what it loads after a rescue that works, on a machine with a driver: what
        fails then, fails for another reason.
        """
        if rescue.versions and satisfies(framework.version, rescue.versions) is False:
            return None
        process = self._with(rescue.after)
        if process is None:
            return None
        events: list[Event] = []
        for steps, when in ((rescue.steps, IMPORT), (recipe.steps, IMPORT), (recipe.steps, USE)):
            for event in self.importer.follow(steps, framework, process, when):
                if event.fails and steps is rescue.steps:
                    return None
                events.append(event)
        return process, events

    def _guarded(self, framework: Framework, step: Callable[[], None]) -> None:
        """A step that fails on something unforeseen is a problem, not the report's end."""
        try:
            step()
        except TooMuch:
            raise
        except Exception as error:
            why = f"its libraries could not be resolved: {type(error).__name__}: {error}"
            self.root.note(framework.path, why)
            self.unsure.append(f"{framework.name}: {why}")

    @cached_property
    def _started(self) -> Process:
        """A process of the environment's Python that has just started. Where that cannot be read (a
        venv whose base is gone, a script), of another program: what Python itself links and where
        it makes the loader look may differ, and so may the variables that a script sets.
        """
        failure: Exception | None = None
        for program in filter(None, (self.env.executable, *STAND_INS)):
            own = program == self.env.executable
            try:
                process = Process(self.loader, program)
                objects = process.start.objects
                python = any(each.elf.find("_Py_NoneStruct") for each in objects)
                process.stand_in = not own or not python
                if process.stand_in and own:
                    why = process.start.error
                    why = f"does not start here: {why}" if why else "is not Python itself"
                    self._doubt = Evidence(program, None, why)
                return process
            except (ElfError, OSError, ValueError) as error:
                failure = failure or error
                if own:
                    why = f"cannot be read as a program: {error}"
                    if (self.root.text(program, 2) or "") == "#!":
                        why = "is a script: what it sets, and which program it starts, is not known"
                    self._doubt = Evidence(program, None, why)
                    self.root.note(program, why)
        raise failure or OSError("no program of this root can be read")

    def _unmodelled(self, framework: Framework, entries: list[str]) -> None:
        """Facts about a framework without a recipe: what its libraries would load, one and all."""
        needed = [name for entry in entries for name in self.importer.needed(entry)]
        if any(name.startswith(("libtorch", "libc10")) for name in needed):
            put(framework, after=["torch"])
        process = self._with([n for n in framework.after if n in self.frameworks], framework)
        if process is None:
            return
        self._inherit(framework, process)
        step = Step(load=["*"], pathfinder=framework.finds_wheels, fails=UNMODELLED)
        for entry in entries[:MAX_ENTRIES]:
            for event in self.importer.load_file(entry, step, process):
                self._take(event, framework)
        self._dlopened(process, framework)

    def _dlopened(self, process: Process, framework: Framework) -> None:
        """Loads what cuDNN and nvrtc open by SONAME when they are first used, and bind when it is
        called.
        """
        needed = USE if framework.modelled else UNMODELLED
        for name, caller, optional, purpose in self._opened(process):
            load = process.dlopen(name, caller, now=False)
            means = NOTHING if optional else needed
            self._take(Event(load, "dlopen", means, purpose=purpose), framework)

    def _opened(self, process: Process) -> Iterator[tuple[str, LoadedObject | None, bool, str]]:
        """Each name, who opens it, whether it may be absent, and what for."""
        parts = table("libraries")
        for number, names in parts["cudnn_parts"].items():
            main = process.find(f"libcudnn.so.{number}")
            for name in names if main is not None else ():
                yield name, main, name in parts["cudnn_parts_optional"], "use cuDNN"
        for mapped in list(process.objects):
            if (mapped.elf.soname or "").startswith("libnvrtc.so."):
                name = self._builtins(mapped)
                if name:  # of an nvrtc that is loaded for whoever may want it, nothing is asked
                    yield name, mapped, id(mapped) in self._idle, "compile with NVRTC"

    def _builtins(self, nvrtc: LoadedObject) -> str | None:
        """nvrtc opens libnvrtc-builtins of its own minor version."""
        real = self.root.resolve(nvrtc.path)
        owner = self.owners.owner(os.path.normpath(nvrtc.path)) or self.owners.owner(real)
        version, _ = own_version(self.root, nvrtc.path, nvrtc.elf.soname or "", owner)
        short = cut(version, 2)
        if short and nvrtc.elf.soname == "libnvrtc.so.11.2":
            short = None if short == "11.2" and version == short else short
        return f"libnvrtc-builtins.so.{short}" if short and "." in short else None

    def _uses_cuda(self, path: str) -> bool:
        """Whether a file needs a CUDA library, or PyTorch's CUDA half."""
        torch = ("libtorch_cuda.so", "libc10_cuda.so")
        return any(is_cuda_library(n) or n in torch for n in self.importer.needed(path))

    def _take(self, event: Event, framework: Framework) -> None:
        """What one dlopen teaches."""
        load, how = event.load, event.how
        for search in (load.search, *load.searches) if event.means != NOTHING else ():
            self.catalogue.lack(search)
        for mapped in load.objects if load.error is None or event.means != NOTHING else ():
            self.catalogue.enter(mapped, framework, how)
            path = os.path.normpath(mapped.path)
            if path in self.catalogue.libraries and path not in framework.loads:
                framework.loads.append(path)
        if event.means == NOTHING or event.idle:
            self._idle.update((id(mapped), mapped) for mapped in load.objects)
        if event.means == NOTHING:
            for fault in load.faults[:1]:
                key = framework.name, os.path.basename(load.name)
                if "/" in load.name and fault.kind == "not found":
                    self._lacking[key] = fault.name
                elif "/" in load.name:
                    self._refused[key] = fault
            return
        if load.faults:
            self._fault(load.faults[0], framework, event)
        for fault in load.later:
            self._fault(fault, framework, event)

    def _fault(
        self, fault: LoadFault, framework: Framework, event: Event, rescue: str | None = None
    ) -> None:
        cause: str | None = None
        if fault.kind == "not found":
            cause = self._lacking.get((framework.name, fault.name))
            fault = self._refused.get((framework.name, fault.name), fault)
        same = (cause, framework.name, event.means)
        if any((f.name, f.framework, f.means) == same for f in self.faults):
            return  # told already: what would have brought it in lacks that library itself
        provider = fault.provider
        if provider and "/" in provider:  # a SONAME stays as it is
            provider = os.path.normpath(provider)
        found = but(fault, library=os.path.normpath(fault.library), provider=provider)
        put(found, framework=framework.name, means=event.means, rescue=rescue)
        put(found, says=event.says, purpose=event.purpose)
        if found.severity == ERROR:
            put(found, doubt=self._doubt)
        if fault.kind in ("rejected", "damaged"):
            owner = self.owners.owner(found.file)
            put(found, owner=owner.name if owner else None)
        known = {(f.message, f.library, f.framework) for f in self.faults}
        if (found.message, found.library, found.framework) not in known:
            self.faults.append(found)
