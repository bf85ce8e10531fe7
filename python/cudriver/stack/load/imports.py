"""Follows a framework's recipe in a simulated process: its import, then its first use of CUDA."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from cudriver._elf import ElfError
from cudriver.stack.facts import FEATURE, IMPORT, NOTHING, Environment, Framework, LoadFault
from cudriver.stack.load.recipes import FIRST, LOADS, NEAREST, Step
from cudriver.stack.loader.process import Load, Process
from cudriver.stack.loader.search import LoadedObject, Loader, Search
from cudriver.stack.names import describe, is_cuda_library, matches, split
from cudriver.stack.record import Record
from cudriver.stack.roots.rootfs import Root
from cudriver.stack.versions import cut, major, minor, satisfies


class Event(Record):
    """One dlopen that a framework makes, and what its failure puts an end to."""

    load: Load
    how: str  # "needed", "preload", "dlopen"
    means: str
    says: str = ""
    purpose: str = ""
    idle: bool = False

    @property
    def fails(self) -> bool:
        """Whether it puts an end to anything."""
        return bool(self.load.faults) and self.means != NOTHING


class Importer:
    """Follows recipes in one environment."""

    def __init__(self, loader: Loader, env: Environment, torch_cuda: str | None) -> None:
        self.loader = loader
        self.root: Root = loader.root
        self.env = env
        self.torch_cuda = torch_cuda

    def follow(
        self, steps: list[Step], framework: Framework, process: Process, when: str
    ) -> Iterator[Event]:
        """What the steps of that time load, up to the fault that ends an import."""
        for step in steps:
            if step.when != when or not applies(step, framework):
                continue
            if step.within and not self._first(step.within):
                continue
            if step.without and self._first(step.without):
                continue
            for event in self._step(step, framework, process):
                event.purpose, event.idle = step.purpose, step.idle
                if step.alone and framework.required and event.fails:
                    event.means = FEATURE
                if when == IMPORT and any(f.kind == "damaged" for f in event.load.faults):
                    event.means = IMPORT  # no caller survives a signal
                yield event
                if event.fails and event.means == IMPORT:
                    return

    def _step(self, step: Step, framework: Framework, process: Process) -> Iterator[Event]:
        if step.builtin:
            yield from self._torch(framework, process)
        elif step.load:
            yield from self._load(step, framework, process)
        elif step.open:
            caller = mapped(process, step.by) if step.by else None
            if step.by and caller is None:
                return  # the library that would open it is not there itself
            names = self.named(step.open, framework)
            loads = (process.dlopen(name, caller, everywhere=step.spread) for name in names)
            for load in _until_one_loads(loads) if step.choose == FIRST else loads:
                yield Event(load, "dlopen", step.fails, step.says)
        else:
            yield from self._find(step, framework, process)

    def _torch(self, framework: Framework, process: Process) -> Iterator[Event]:
        from cudriver.stack.loader.preload import import_torch

        cuda = major(framework.cuda)
        loads = import_torch(process, framework.path, cuda, self.env.site_packages)
        loaded = {load.name for load in loads if load.error is None}
        for load in loads:
            if load.error is not None and load.name in loaded:
                continue  # torch went on with its preloads and then tried again
            # The first failure is the cause; what its rescue ends in is what is raised.
            says = loads[-1].error or "" if load.error is not None else ""
            yield Event(load, "preload", IMPORT, says)

    # ---- files by path ----

    def _load(self, step: Step, framework: Framework, process: Process) -> Iterator[Event]:
        files = self.files(step, framework)
        if not files and step.absent != NOTHING:
            own = step.load[0].replace("{so}", self.env.extensions[0])
            gone = _absent(own, framework.path)
            yield Event(gone, "needed", step.absent, step.says)
        if step.choose == LOADS:
            tries = (process.dlopen(path, everywhere=step.spread) for path in reversed(files))
            for load in _until_one_loads(tries):
                yield Event(load, "needed", step.fails, step.says)
            return
        for path in files:
            yield from self.load_file(path, step, process)

    def load_file(self, path: str, step: Step, process: Process) -> Iterator[Event]:
        """One file of a step."""
        if step.pathfinder:
            yield from self._by_pathfinder(path, process)
        how = "preload" if is_cuda_library(os.path.basename(path)) else "needed"
        load = process.dlopen(path, everywhere=step.spread)
        yield Event(load, how, step.fails, step.says)

    def named(self, names: list[str], framework: Framework) -> list[str]:
        """The names with the majors of the framework's CUDA and cuDNN put in; those that ask for
        one which is not known are left out.
        """
        known = {"{major}": cut(framework.cuda, 1), "{cudnn}": cut(framework.cudnn_built, 1)}
        for sign, value in known.items():
            names = [name.replace(sign, value or sign) for name in names]
        return [name for name in names if not any(sign in name for sign in known)]

    def files(self, step: Step, framework: Framework) -> list[str]:
        """The files that a step's patterns name, of the first site-packages that has one."""
        found: list[str] = []
        for pattern in self.named(step.load, framework):
            found += self._first(pattern)
        if step.choose == FIRST:
            return found[:1]
        if step.choose == NEAREST:
            return _nearest(found, self.torch_cuda)
        return found

    def _first(self, pattern: str, folders: list[str] | None = None) -> list[str]:
        """What a pattern names in the first of these folders, or site-packages, that has it. Of an
        extension module ("_C{so}") that is the file which this Python takes.
        """
        endings = self.env.extensions if "{so}" in pattern else ("",)
        whole = [pattern.replace("{so}", ending) for ending in endings]
        for site in self.env.site_packages if folders is None else folders:
            for one in whole:
                these = self.root.glob(site, one)
                if these:
                    return these
        return []

    # ---- cuda.pathfinder ----

    def _find(self, step: Step, framework: Framework, process: Process) -> Iterator[Event]:
        """One library: mapped already, in a wheel, in conda's prefix, by the loader, in a toolkit.
        Any file that is not a library counts as found where it lies.
        """
        for name in step.find:
            if process.find(name) is not None:
                return
        env, given = self.env, self.env.variables.get
        conda = env.prefix if env.kind == "conda" else given("CONDA_PREFIX")
        wheels = ((site, place) for place in step.places for site in env.sites)
        named = ((site, f"{place}/{name}") for site, place in wheels for name in step.find)
        inside = (path for site, pattern in named for path in self.root.glob(site, pattern))
        path = next(inside, None) or self._below(conda, step)
        if path is None:
            for load in _until_one_loads(map(process.dlopen, filter(_is_so, step.find))):
                if load.error is None:
                    yield Event(load, "dlopen", step.fails, step.says)
                    return
            path = self._below(given("CUDA_HOME") or given("CUDA_PATH"), step)
        if path is None:
            names = " or ".join(step.find)
            # Of its names in several CUDA releases that of the framework's own.
            sonames = describe(split(step.find[0])[0]).get("sonames") or {}
            own = sonames.get(cut(framework.cuda, 1))
            gone = _absent(own if own in step.find else step.find[0], framework.path)
            yield Event(gone, "dlopen", step.fails, step.says or f'Failure finding "{names}"')
        elif _is_so(path):
            load = process.dlopen(path)
            event = Event(load, "preload", step.fails, step.says)
            if step.when == IMPORT and any(f.kind == "rejected" for f in load.faults):
                event.means, event.says = IMPORT, "Failed to dlopen"  # no DynamicLibNotFoundError
            yield event
            if os.path.basename(path).startswith("libnvrtc.so"):
                yield from self._builtins(path, process)

    def _below(self, prefix: str | None, step: Step) -> str | None:
        for folder in step.anchors or ("lib64", "lib"):
            for name in step.find:
                if prefix and self.root.is_file(f"{prefix}/{folder}/{name}"):
                    return f"{prefix}/{folder}/{name}"
        return None

    def _by_pathfinder(self, entry: str, process: Process) -> Iterator[Event]:
        """What cuda.pathfinder loads for an extension module: the wheels' libraries, first."""
        for name in self.needed(entry):
            if not is_cuda_library(name) or process.find(name) is not None:
                continue
            sites = self.env.sites
            found = self._first(f"nvidia/*/lib/{name}", sites)
            found = found or self._first(f"cutensor/lib/{name}", sites)
            for own in found[:1]:
                yield from self._by_pathfinder(own, process)
                yield Event(process.dlopen(own), "preload", NOTHING)
                if name.startswith("libnvrtc.so"):
                    yield from self._builtins(own, process)

    def _builtins(self, nvrtc: str, process: Process) -> Iterator[Event]:
        """nvrtc's builtins, from beside it: CUDA 13's wheels have no RUNPATH."""
        for beside in self.root.glob(os.path.dirname(nvrtc), "libnvrtc-builtins.so.*"):
            yield Event(process.dlopen(beside), "preload", NOTHING)

    def needed(self, path: str) -> tuple[str, ...]:
        """The libraries that a file needs; () where it cannot be read."""
        try:
            return self.loader.open(path).needed
        except ElfError:
            return ()


def applies(step: Step, framework: Framework) -> bool:
    """Whether this release of the framework, and this build of it, makes the step."""
    if step.versions and satisfies(framework.version, step.versions) is False:
        return False
    return not (step.cuda and framework.cuda and satisfies(framework.cuda, step.cuda) is False)


def mapped(process: Process, name: str) -> LoadedObject | None:
    """The mapped object of that SONAME or file name."""
    named = (each for each in process.objects if matches(os.path.basename(each.path), name))
    return process.find(name) or next(named, None)


def _is_so(path: str) -> bool:
    return ".so" in os.path.basename(path)


def _until_one_loads(loads: Iterable[Load]) -> list[Load]:
    """The first load that works; where none does, the first of all."""
    failed: list[Load] = []
    for load in loads:
        if load.error is None:
            return [load]
        failed.append(load)
    return failed[:1]


def _absent(name: str, asking: str) -> Load:
    """A load that finds no file."""
    message = f"{name}: cannot open shared object file: No such file or directory"
    fault = LoadFault("not found", asking, message, os.path.basename(name))
    return Load(name, Search(name, asking, error=message), faults=[fault])


def _nearest(files: list[str], cuda: str | None) -> list[str]:
    """Of builds for several CUDA releases ("..._cuda128.so") the one for this release, else the
    newest older one of its major, else the oldest newer one.
    """
    wanted = minor(cut(cuda, 2))
    if wanted is None:
        return []
    builds = {}
    for path in files:
        digits = re.search(r"(\d+)(\d)\D*\Z", os.path.basename(path))
        if digits and int(digits[1]) == wanted[0]:
            builds[int(digits[1]), int(digits[2])] = path
    older = [build for build in builds if build <= wanted]
    return [builds[max(older) if older else min(builds)]] if builds else []
