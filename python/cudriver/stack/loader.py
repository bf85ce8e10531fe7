"""Where the dynamic loader (glibc's ld.so) finds a library, told from outside the process.

`Loader` knows one root, one set of environment variables and one machine. `Loader.search` is one
lookup by ld.so's rules; `process.Process` strings lookups together as a running program does.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property

from cudriver.stack import glibc
from cudriver.stack.loader_files import LoaderFiles, this_machine
from cudriver.stack.record import Record, fresh
from cudriver.stack.rootfs import Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudriver._elf import ElfError, ElfFile

__all__ = ["Hit", "LoadedObject", "Loader", "Place", "Search", "this_machine"]

DF_1_NODEFLIB = 0x800

_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?!\w))", re.ASCII)
CANNOT_OPEN = "cannot open shared object file"

# The rules, as model.Resolution.rule has them.
LOADED = "loaded"  # an object of this name, SONAME or inode is mapped already
RPATH = "rpath"
ENVIRONMENT = "LD_LIBRARY_PATH"
RUNPATH = "runpath"
CACHE = "cache"  # /etc/ld.so.cache
CONFIGURATION = "configuration"  # /etc/ld.so.conf, in another root that has no cache yet
DEFAULT = "default"  # the loader's own folders
ABSOLUTE = "absolute"  # the name has a slash
NONE = "none"


class Place:
    """One folder (or the cache) that was looked into. There are thousands: not a Record."""

    __slots__ = ("folder", "outcome", "owner", "rule", "whole")

    def __init__(self, rule: str, folder: str, owner: str = "", outcome: str = "absent") -> None:
        self.whole: bool = False  # the folder that the path names, not one below it for some CPUs
        self.rule: str = rule
        self.folder: str = folder
        self.owner: str = owner  # the object whose RPATH or RUNPATH it is
        self.outcome: str = outcome  # absent, no folder, found, or why the file was passed over


class Hit(Record):
    """A file that a rule gives."""

    path: str  # as the loader names the object: not normalised
    real_path: str  # links followed
    rule: str
    entry: str = ""
    owner: str = ""


class Search(Record):
    """One lookup."""

    name: str
    requested_by: str | None  # path of the asking object
    path: str | None = None  # None: not found, see `error`
    real_path: str | None = None
    rule: str = NONE
    entry: str = ""  # what matched: "$ORIGIN/../../nvidia/nccl/lib", a folder, "/etc/ld.so.cache"
    owner: str = ""  # whose RPATH or RUNPATH that was
    shadowed: list[Hit] = fresh(list)  # what later rules would have given, other files only
    searched: list[Place] = fresh(list)
    error: str | None = None  # exactly as dlerror() has it
    damage: ElfError | None = None


class LoadedObject:
    """One mapped object: ld.so's link_map."""

    def __init__(
        self,
        path: str,
        real_path: str,
        elf: ElfFile,
        *,
        origin: str,
        loader: LoadedObject | None = None,
        search: Search | None = None,
    ) -> None:
        self.path: str = path  # l_name
        self.real_path: str = real_path
        self.elf: ElfFile = elf
        self.loader: LoadedObject | None = (
            loader  # whose DT_NEEDED first mapped it; None after a dlopen
        )
        self.origin: str = origin  # what $ORIGIN stands for
        self.search: Search | None = search
        self.names: set[str] = {path}  # names that find it again
        if elf.soname is not None:
            self.names.add(elf.soname)
        self.needed: list[tuple[str, LoadedObject | None]] = []  # in order; None: not found
        self.linked: bool = False  # whether `needed` is filled
        self.paths: dict[str, list[tuple[str, str]]] = {}  # expanded RPATH and RUNPATH

    def __repr__(self) -> str:
        return f"<LoadedObject {self.path}>"


class Loader(LoaderFiles):
    """ld.so of one root.

    environ: LD_LIBRARY_PATH, LD_PRELOAD, LD_BIND_NOW, ... of the process; nothing is taken from
    this process's own. cwd: what relative paths mean. hwcaps: the glibc-hwcaps folders this CPU
    takes, best first; None: those of the root's own /proc/cpuinfo, none where it has none.
    machine: e_machine of the programs in question; None: this machine's.
    """

    def __init__(
        self,
        root: Root | str = "/",
        environ: Mapping[str, str] | None = None,
        *,
        cwd: str = "/",
        hwcaps: Sequence[str] | None = None,
        machine: int | None = None,
    ) -> None:
        super().__init__(root, cwd, hwcaps, machine)
        self.environ: dict[str, str] = dict(environ or {})
        self.problems: list[tuple[str, str]] = []  # (file, what is wrong with it)
        self._cached: dict[tuple[int, str], list[str]] = {}  # by machine and name
        self._environment: list[tuple[str, str]] | None = None

    def use_program(self, interpreter: str | None, machine: int) -> None:
        """Take the settings of the loader that a program names."""
        super().use_program(interpreter, machine)
        # $ORIGIN in LD_LIBRARY_PATH is the program's.
        self._environment = None

    # ---- search paths ----

    def expand(self, text: str, owner: LoadedObject | None) -> str | None:
        """`text` with $ORIGIN, $LIB and $PLATFORM replaced; None where $ORIGIN is not known."""
        if "$" not in text:
            return text
        names = [braced or bare for braced, bare in _TOKEN.findall(text)]
        if owner is None and "ORIGIN" in names:
            return None
        values = {name: self._value(name, owner) for name in names}
        return _TOKEN.sub(lambda found: values[found[1] or found[2]], text)

    def _value(self, token: str, owner: LoadedObject | None) -> str:
        if token == "ORIGIN":
            return owner.origin if owner else ""
        return self.settings.lib if token == "LIB" else self.platform

    def _split(
        self, text: str, separators: str, owner: LoadedObject | None
    ) -> list[tuple[str, str]]:
        """(folder with a slash at the end, entry) of a search path; each folder once."""
        for other in separators[1:]:
            text = text.replace(other, separators[0])
        found: dict[str, str] = {}
        for entry in text.split(separators[0]):
            folder = entry
            if entry:
                expanded = self.expand(entry, owner)
                if not expanded:
                    continue
                folder = (expanded.rstrip("/") or "") + "/"
            found.setdefault(folder, entry)
        return list(found.items())

    def _own_path(self, owner: LoadedObject, rule: str) -> list[tuple[str, str]]:
        known = owner.paths.get(rule)
        if known is None:
            text = owner.elf.runpath if rule == RUNPATH else owner.elf.rpath
            if rule == RPATH and owner.elf.runpath is not None:
                text = None  # where both are given, DT_RPATH is ignored
            known = self._split(text, ":", owner) if text else []
            owner.paths[rule] = known
        return known

    def _library_path(self, main: LoadedObject | None) -> list[tuple[str, str]]:
        if self._environment is None:
            text = self.environ.get("LD_LIBRARY_PATH", "")
            self._environment = self._split(text, ":;", main) if text else []
        return self._environment

    @cached_property
    def cache(self) -> glibc.Cache | None:
        """/etc/ld.so.cache; None where there is none or it is unusable (see `problems`)."""
        path = self.settings.cache_path
        try:
            return glibc.read_cache(self.root, path)
        except glibc.CacheError as error:
            self.problems.append((path, str(error)))
            return None

    @cached_property
    def _configured(self) -> list[tuple[str, str]]:
        folders = glibc.configured_folders(self.root)
        return [(folder.rstrip("/") + "/", origin) for folder, origin in folders]

    def _places(
        self, asking: LoadedObject | None, main: LoadedObject | None
    ) -> Iterator[tuple[str, str, Sequence[tuple[str, str]]]]:
        """(rule, owner, folders) in the loader's order; the cache has no folders."""
        if asking is None or asking.elf.runpath is None:
            chain = asking
            met_main = False
            while chain is not None:
                if chain.elf.rpath is not None:
                    yield RPATH, chain.path, self._own_path(chain, RPATH)
                met_main = met_main or chain is main
                chain = chain.loader
            if main is not None and not met_main:
                yield RPATH, main.path, self._own_path(main, RPATH)
        yield ENVIRONMENT, "", self._library_path(main)
        if asking is not None and asking.elf.runpath is not None:
            yield RUNPATH, asking.path, self._own_path(asking, RUNPATH)
        yield CACHE, "", ()
        if self.cache is None and not self.root.host:
            yield CONFIGURATION, "", self._configured
        if not self._lone(asking, main):
            yield DEFAULT, "", [(f, f.rstrip("/") or "/") for f in self.settings.folders]

    def _lone(self, asking: LoadedObject | None, main: LoadedObject | None) -> bool:
        """Whether the asking object wants no default folders (linked with -z nodefaultlib)."""
        lone = asking if asking is not None else main
        return lone is not None and lone.elf.flags_1 & DF_1_NODEFLIB != 0

    # ---- lookup ----

    def search(
        self, name: str, asking: LoadedObject | None = None, main: LoadedObject | None = None
    ) -> Search:
        """Find `name` for `asking` (its chain of loaders counts) in a program `main`.

        What is mapped already does not count here; process.Process knows that.
        """
        result = Search(name, asking.path if asking is not None else None)
        if "/" in name:
            self._search_file(result, asking)
            return result
        other_class: int | None = None
        searched = result.searched
        given_up: tuple[str, str] | None = None
        for hit, place in self._candidates(result, asking, main):
            if given_up == (place.rule, place.owner):
                continue
            if hit is None:
                if result.path is None and result.error is None:
                    searched.append(place)
                    if place.outcome == "ends the path":
                        given_up = place.rule, place.owner
                continue
            if result.path is not None or result.error is not None:
                self._note_shadow(result, hit)
                continue
            outcome, error = self.outcome(hit.path, result.name)
            place.outcome = outcome
            searched.append(place)
            if outcome == "other class":
                other_class = 32
            if outcome == "found":
                result.path, result.real_path = hit.path, hit.real_path
            elif error is not None:
                result.error, result.damage = error, self.damage(hit.path)
            else:
                # Of what cannot be opened only the absent and the forbidden are passed over;
                # anything else ends the look at this path. The folder itself decides, which comes
                # after its subfolders for CPUs.
                if outcome == "unreadable" and place.whole and self._severe(hit.path):
                    given_up = place.rule, place.owner
                continue
            result.rule, result.entry, result.owner = hit.rule, hit.entry, hit.owner
        if result.path is None and result.error is None:
            if other_class is not None:
                result.error = f"{name}: wrong ELF class: ELFCLASS{other_class}"
            else:
                result.error = f"{name}: {CANNOT_OPEN}"
                # Where DF_1_NODEFLIB leaves nothing to try, no errno is there to be told.
                if any(place.rule != CACHE for place in searched) or not self._lone(asking, main):
                    result.error += ": No such file or directory"
        return result

    def _severe(self, path: str) -> bool:
        """Whether a file that cannot be opened ends the look at the path that gave it."""
        mild = [errno.ENOENT, errno.EACCES]
        if not self.settings.stops_at_files:
            mild.append(errno.ENOTDIR)
        self.outcome(path)  # opens it
        return self.open_errno(path) not in mild

    def _search_file(self, result: Search, asking: LoadedObject | None) -> None:
        """A name with a slash: one file, no rules."""
        path = self.expand(result.name, asking) if asking is not None else result.name
        if not path:
            result.error = f"{result.name}: empty dynamic string token substitution"
            return
        result.rule, result.entry = ABSOLUTE, path
        outcome, error = self.outcome(path)
        if outcome == "found":
            result.path, result.real_path = path, self.real_path(self.absolute(path))
            return
        if outcome == "other class":
            error = f"{path}: wrong ELF class: ELFCLASS32"
        elif outcome == "other machine":
            error = f"{path}: {CANNOT_OPEN}: No such file or directory"
        elif error is None:
            error = f"{path}: {CANNOT_OPEN}: {os.strerror(self.open_errno(path))}"
        result.error, result.damage = error, self.damage(path)

    def _candidates(
        self, result: Search, asking: LoadedObject | None, main: LoadedObject | None
    ) -> Iterator[tuple[Hit | None, Place]]:
        """Every existing file that a rule gives, and the places that have none, as long as there is
        no result.
        """
        name = result.name
        for rule, owner, folders in self._places(asking, main):
            if rule == CACHE:
                yield from self._in_cache(name, asking if asking is not None else main)
                continue
            for folder_name, entry in folders:
                folder = self.folder(folder_name)
                if folder is None:
                    # Only of an absolute name ld.so asks first whether it is a folder.
                    ends = folder_name[:1] != "/" and self._severe(folder_name + name)
                    what = "ends the path" if ends else "no folder"
                    yield None, Place(rule, folder_name, owner, what)
                    continue
                found = False
                for prefix, names in folder:
                    path = prefix + name
                    whole = self.absolute(path)
                    if name in names if names is not None else self.root.exists(whole):
                        found = True
                        real = self.real_path(whole)
                        place = Place(rule, prefix, owner)
                        place.whole = prefix == folder_name
                        yield Hit(path, real, rule, entry, owner), place
                if not found and result.path is None:
                    yield None, Place(rule, folder_name, owner)

    def _in_cache(
        self, name: str, asking: LoadedObject | None
    ) -> Iterator[tuple[Hit | None, Place]]:
        cache, source = self.cache, self.settings.cache_path
        if cache is None:
            return
        known = self._cached.get((self.machine, name))
        if known is None:
            flags = glibc.CACHE_FLAGS.get(self.machine, (1,))
            try:
                known = cache.lookup(name, flags, self.hwcaps)
            except glibc.CacheError as error:
                self.problems.append((source, str(error)))
                self.cache = None
                return
            self._cached[self.machine, name] = known
        paths = known
        if paths and self._lone(asking, None):
            paths = [p for p in paths if not p.startswith(tuple(self.settings.folders))]
        if not paths:
            yield None, Place(CACHE, source)
        # The loader tries the first entry only; the others are shadowed, or never found.
        if paths:
            real = self.real_path(paths[0])
            yield Hit(paths[0], real, CACHE, source), Place(CACHE, source)

    def _note_shadow(self, result: Search, hit: Hit) -> None:
        known = [result.real_path, *(other.real_path for other in result.shadowed)]
        if hit.real_path not in known and self.would_pass(hit.path):
            result.shadowed.append(hit)
