"""The facts as they will be after a command: what it installs, removes or sets, on a copy.

Of a release is known here what it requires while it is the one that is installed, the libraries of
NVIDIA's wheels, PyTorch's builds and the pairs of the table. An installer is taken at its word: it
brings a distribution's files whole, and releases that fit each other where they state it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from fnmatch import fnmatch

from cudriver.stack.command import Command
from cudriver.stack.facts import (
    HIDDEN,
    IMPORT,
    MISSING,
    OWNERS,
    SHARED,
    Distribution,
    Facts,
    FileFault,
    LoadFault,
    Requirement,
)
from cudriver.stack.fixes import fix
from cudriver.stack.fixes.faults import EXEC_STACK, caused_by, should_have
from cudriver.stack.fixes.library_fixes import (
    leak_of,
    looks_into_wheels,
    owner_of,
    toolkit_wheels,
    wheel_brings,
)
from cudriver.stack.fixes.pairs import asked_of, built_for, goes_with
from cudriver.stack.load.recipes import listed
from cudriver.stack.names import library_of
from cudriver.stack.record import Any, but, put
from cudriver.stack.versions import cut, newer, satisfies

Recollect = Callable[[dict[str, str | None]], Facts]

_SPECIFIER = re.compile(r"([A-Za-z0-9._-]+)(?:\[([^]]*)\])?\s*(.*)\Z")


def after(facts: Facts, lines: list[Command], recollect: Recollect | None) -> Facts | None:
    """The facts after these commands; None where one does what is not known here."""
    trial = _Copy(facts)
    for line in lines:
        if line.sets and recollect is None:
            return None
        if line.sets and recollect is not None:
            trial = _Copy(recollect(dict([line.sets])))
        elif line.removes:
            trial.remove(line.removes)
        elif line.installs:
            trial.install(line)
        else:
            return None
    return trial.facts


def downloads(facts: Facts, command: Command) -> int | None:
    """About how many bytes a command fetches: the libraries of what it brings anew, as they are
    now. None where it brings what is not there, or is none of an installer.
    """
    trial = _Copy(facts)
    trial.install(command)
    known = [size for size in trial.brought if size is not None]
    asked = command.installs or command.removes or command.sets
    return sum(known) if asked and len(known) == len(trial.brought) else None


def _of(text: str) -> str:
    """The distribution in "nvidia-cudnn-cu12 9.10.2.21"."""
    return text.partition(" ")[0]


class _Copy:
    """A copy of the facts that commands change."""

    def __init__(self, facts: Facts) -> None:
        changed = ("distributions", "frameworks", "libraries", "load_faults", "file_faults")
        self.facts = but(facts, **{name: [*getattr(facts, name)] for name in changed})
        self.brought: list[int | None] = []  # the sizes of what is fetched

    def _drop(self, cured: Callable[[LoadFault], bool]) -> None:
        put(self.facts, load_faults=[f for f in self.facts.load_faults if not cured(f)])

    def install(self, command: Command) -> None:
        """What is asked for, and what that requires. A bare name that is there stays as it is,
        unless its own requirements are not met: then its release is one that fits.
        """
        stated = filter(None, map(_SPECIFIER.match, command.installs))
        asked = [(fix.known_as(m[1]), (m[2] or "").split(","), m[3]) for m in stated]
        done = {name for name, *_ in asked}
        for name, extras, wanted in asked:
            old = self.facts.distribution(name)
            asks = old.active(()) if old else []
            unmet = not all(self._met(each.name, each.specifier) for each in asks)
            fits = unmet and (not wanted or wanted.endswith(".*")) and not command.alone
            self._put(name, wanted, command, fits)
            if not command.alone:
                self._required(name, extras, command, done)

    def _met(self, name: str, specifier: str) -> bool:
        here = self.facts.distribution(name)
        return here is not None and satisfies(here.version, specifier) is not False

    def _required(self, name: str, extras: list[str], command: Command, done: set[str]) -> None:
        dist = self.facts.distribution(name)
        for needed in dist.active(extras) if dist else ():
            there = self._met(needed.name, needed.specifier)
            if needed.name in done or (there and not needed.extras and not command.again):
                continue
            done.add(needed.name)
            self._put(needed.name, needed.specifier, command, False)
            if needed.name == "cuda-toolkit":
                for wheel in toolkit_wheels(needed):
                    self._put(wheel, "", command, False)
            self._required(needed.name, needed.extras, command, done)

    def _put(self, name: str, wanted: str, command: Command, fits: bool) -> None:
        """One distribution in a release that is wanted. fits: one that goes with the others."""
        facts = self.facts
        old = facts.distribution(name)
        where = [command.folder] if command.folder else facts.environment.sites[:1]
        if old and old.kind == "wheel" and old.location not in where:  # it stays
            self._drop(lambda fault: self._found(fault, old, None))
            if fix.outside(facts.environment, old):
                return  # an import finds the old one first, the loader does not
        version = "" if fits else _release(wanted, old)
        tag = re.search(r"/cu(\d+)(\d)\Z", command.source or "")
        cuda = f"{tag[1]}.{tag[2]}" if tag and name in fix.HOSTED else None
        kind = next((f for f in facts.frameworks if f.distribution == name), None)
        hosted = command.source is not None and name in fix.HOSTED
        rebuilt = hosted and kind is not None and kind.cuda != cuda
        local = command.again and not command.source and old is not None and "+" in old.version
        changed = old is None or cut(version, 4) != cut(old.version, 4) or rebuilt or local
        changed = changed or (old is not None and satisfies(old.version, wanted) is False)
        if not changed and not command.again:
            return
        self.brought.append(old.size if old else None)
        new = but(old, version=version, requires=[], asks=[]) if old and changed else old
        site = next(iter(facts.environment.site_packages), "")
        new = new or Distribution(name, version, "wheel", "", site)
        put(facts, distributions=[d for d in facts.distributions if d.name != name] + [new])
        self._meet(new)
        fits = fits or (changed and goes_with(facts, name, version))
        healed = self._restore(name)
        better = changed and (old is None or newer(version, old.version) or self._pinned(new))
        brings = {os.path.basename(f.file) for f in healed} if old and not changed else None
        self._drop(
            lambda fault: (
                any(_follows(fault, file) for file in healed)
                or self._cured(fault, new, old, fits)
                or self._found(fault, new, brings)
                or ((better or bool(healed)) and self._through(fault, name))
            )
        )
        put(facts, missing=[x for x in facts.missing if not self._holds(name, x.needed_by)])
        if changed and fits and name in fix.KIN:
            put(facts, libraries=[x for x in facts.libraries if x.owner != name])
        if changed:
            if cuda is None and not rebuilt and kind is not None:
                cuda = self._usual(new, fits) or kind.cuda
            self._renew(name, version, cuda)

    def _meet(self, new: Distribution) -> None:
        """Says anew who is not content with what is installed of a distribution."""
        kept = [
            u for u in self.facts.unmet if u.name != new.name and (u.by != new.name or new.asks)
        ]
        for dist in self.facts.distributions:
            for specifier in asked_of(dist, new.name):
                if satisfies(new.version, specifier) is False:
                    kept.append(Requirement(new.name, specifier, dist.evidence, by=dist.name))
        put(self.facts, unmet=kept)

    def _usual(self, new: Distribution, fits: bool) -> str | None:
        """The CUDA of PyPI's own build of PyTorch, of its kin that goes with the one here, or of
        a release that is known; None for others, and for conda's.
        """
        torch = self.facts.distribution("torch")
        if torch is None or new.kind == "conda":
            return None
        mine = new.name == "torch" or (new.name in fix.KIN and fits)
        return fix.usual_variant(torch.version) if mine else built_for(new.name, new.version)

    def _holds(self, name: str, file: str | None) -> bool:
        """Whether a file is of that distribution, which brings the file's parts, too."""
        holder = owner_of(self.facts, file)
        return holder is not None and holder.name == name

    def _restore(self, name: str) -> list[FileFault]:
        """Puts a distribution's own files in place, and with them those that it shares."""
        healed: list[FileFault] = []
        kept: list[FileFault] = []
        for fault in self.facts.file_faults:  # there may be thousands
            own = fault.distribution == name and fault.what not in (SHARED, HIDDEN)
            (healed if own else kept).append(fault)
        for fault in healed:
            others = [_of(o) for o in fault.owners if _of(o) != name]
            if fault.what == OWNERS and others:
                kept.append(but(fault, distribution=others[0]))
        put(self.facts, file_faults=kept)
        return healed

    def _cured(
        self, fault: LoadFault, new: Distribution, old: Distribution | None, fits: bool
    ) -> bool:
        """Whether a fault goes with that release in place."""
        facts, name, changed = self.facts, new.name, new is not old
        framework, owner = facts.framework(fault.framework), owner_of(facts, fault.library)
        mine = name in (owner and owner.name, framework and framework.distribution)
        if fault.kind in ("rejected", "damaged"):
            owned = name == fault.owner if fault.owner else self._holds(name, fault.file)
            return owned and EXEC_STACK not in fault.message
        if fault.provider and leak_of(facts, os.path.normpath(fault.provider)):
            return False  # a variable brings that file in, whatever is installed
        if mine and changed:
            return fits or name == "torch"
        provider = owner_of(facts, os.path.normpath(fault.provider or ""))
        brought = wheel_brings(name, new.version, library_of(fault.name) or "")
        brought = provider.name == name if provider else brought
        if fault.kind == "not found" or not (old and changed and brought):
            return False
        return self._pinned(new) or newer(new.version, old.version)

    def _found(self, fault: LoadFault, new: Distribution, brings: set[str] | None) -> bool:
        """Whether a library is found that was not, since the release brings it. brings: the files
        that were not there; None: any.
        """
        sought = self.facts.environment.kind == "conda" or looks_into_wheels(self.facts, fault)
        names = {*_found_in_wheels(fault), *([fault.name] if sought else [])}
        names = names if brings is None else names & brings
        found = any(wheel_brings(new.name, new.version, each) for each in names)
        return fault.kind == "not found" and found

    def _through(self, fault: LoadFault, name: str) -> bool:
        """Whether a library is there and was not loaded for want of one of that distribution's."""
        every = self.facts.distributions if fault.kind == "not found" else []
        brought = (dist for dist in every if wheel_brings(dist.name, dist.version, fault.name))
        return any(needed.name == name for dist in brought for needed in dist.active(()))

    def _pinned(self, dist: Distribution) -> bool:
        """Whether a requirement says exactly that release."""
        every = (r for d in self.facts.distributions for r in d.requires if r.name == dist.name)
        return any("=" in r.specifier and satisfies(dist.version, r.specifier) for r in every)

    def _renew(self, name: str, version: str, cuda: str | None) -> None:
        """The libraries and the framework of a distribution that is of another release now."""
        facts, renewed = self.facts, {}
        for at, library in enumerate(facts.libraries):
            if library.owner == name and library.version:
                own = cut(version, library.version.count(".") + 1)
                changes = {"version": own, "provided_by": f"{name} {version}", "cuda": None}
                facts.libraries[at] = renewed[library.path] = but(library, **changes)
        for at, framework in enumerate(facts.frameworks):
            used = {
                x.family: cut(x.version, 3) for x in renewed.values() if x.path in framework.loads
            }
            made: dict[str, Any] = {key: used[key] for key in ("cudnn", "nccl") if key in used}
            if framework.distribution == name:
                made.update(version=version, cuda=cuda)
                if name == "torch":  # with the libraries that it pins
                    archs = fix.torch_archs(version, cuda, facts.environment.platform)
                    made.update(archs=archs, variant="cuda" if cuda else "cpu", loads=[])
                    made.update(fails=False, cudnn=None, cudnn_built=None, nccl=None)
            facts.frameworks[at] = but(framework, **made)

    def remove(self, name: str) -> None:
        """Takes a distribution away. What another loads of it, that one finds elsewhere or not."""
        facts = self.facts
        gone = {f.name for f in facts.frameworks if f.distribution == name}
        put(facts, distributions=[d for d in facts.distributions if d.name != name])
        put(facts, frameworks=[f for f in facts.frameworks if f.name not in gone])
        self._drop(lambda fault: fault.framework in gone or fault.owner == name)
        files = [f for f in facts.file_faults if name in map(_of, [f.distribution, *f.owners])]
        put(facts, file_faults=[f for f in facts.file_faults if f not in files])
        for fault in files:
            for other in {_of(o) for o in [fault.distribution, *fault.owners]} - {name}:
                facts.file_faults.append(but(fault, distribution=other, what=MISSING, owners=[]))
        lost = [x for x in facts.libraries if x.owner == name]
        put(facts, libraries=[x for x in facts.libraries if x not in lost])
        for library in lost:
            for user in facts.frameworks if library.needed_by and not library.shadowed else ():
                if library.path in user.loads:
                    message = f"{library.soname}: cannot open shared object file"
                    missing = LoadFault("not found", user.path, message, library.soname)
                    facts.load_faults.append(but(missing, framework=user.name, means=IMPORT))


def _release(wanted: str, old: Distribution | None) -> str:
    """The release that an installer takes; where nothing tells, the one that is there."""
    have = old.version if old else ""
    pattern = r"(?:==?|>=|~=)\s*([0-9][0-9.]*?(?:\+\w+)?)(\.\*)?(?:\.?dev0)?(?:[,=]|\Z)"
    stated = [found[1] + ".0" * bool(found[2]) for found in re.finditer(pattern, wanted)]
    if not stated or (old is not None and satisfies(have, wanted)):
        return have
    return next((release for release in stated if satisfies(release, wanted)), stated[0])


def _found_in_wheels(fault: LoadFault) -> set[str]:
    """The names, any of which will do, that a framework's recipe finds in NVIDIA's wheels."""
    steps = [s for r in listed() if r["name"] == fault.framework for s in r["steps"]]
    if any(fnmatch(each, f"nvidia/*/{fault.name}") for s in steps for each in s.get("load", ())):
        return {fault.name}
    mine = [s for s in steps if fault.name in s.get("find", ())]
    wheels = [s for s in mine if any(p.startswith("nvidia/") for p in s.get("places", ()))]
    return {name for step in wheels for name in step["find"]}


def _follows(fault: LoadFault, file: FileFault) -> bool:
    """Whether a load works again once that file is as its package brought it."""
    refused = fault.kind in ("rejected", "damaged") and EXEC_STACK not in fault.message
    same = refused and fault.file == file.file
    return same or caused_by(fault, file) or should_have(file, fault)
