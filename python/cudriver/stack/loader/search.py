"""Where the dynamic loader (glibc's ld.so) finds a library, told from outside the process.

`Loader` knows one root, one set of environment variables and one machine. `Loader.search` is one
lookup by ld.so's rules; `process.Process` strings lookups together as a running program does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from cudriver._elf import ElfError, ElfFile
from cudriver.stack.loader import glibc
from cudriver.stack.loader.files import LoaderFiles
from cudriver.stack.record import Record, fresh
from cudriver.stack.roots.rootfs import Root

_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?!\w))", re.ASCII)
CANNOT_OPEN = "cannot open shared object file"

# The rules.
RPATH = "rpath"
ENVIRONMENT = "LD_LIBRARY_PATH"
RUNPATH = "runpath"
CACHE = "cache"  # /etc/ld.so.cache
CONFIGURATION = "configuration"  # /etc/ld.so.conf, in another root that has no cache yet
DEFAULT = "default"  # the loader's own folders
ABSOLUTE = "absolute"  # the name has a slash
NONE = "none"


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
    searched: list[str] = fresh(list)  # folders, and the cache
    error: str | None = None  # exactly as dlerror() has it
    damage: ElfError | None = None

    @property
    def settled(self) -> bool:
        """Whether it is known what the loader takes, or refuses."""
        return self.path is not None or self.error is not None


class LoadedObject(Record):
    """One mapped object: ld.so's link_map. It is told from others by identity."""

    path: str  # l_name
    real_path: str
    elf: ElfFile
    origin: str  # what $ORIGIN stands for
    loader: LoadedObject | None = None  # whose DT_NEEDED first mapped it; None after a dlopen
    search: Search | None = None
    names: set[str] = fresh(set)  # that find it again, beside its path and its SONAME
    needed: list[tuple[str, LoadedObject | None]] = fresh(list)  # in order; None: not found
    linked: bool = False  # whether `needed` is filled
    paths: dict[str, list[tuple[str, str]]] = fresh(dict)  # expanded RPATH and RUNPATH

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"<LoadedObject {self.path}>"


class Loader(LoaderFiles):
    """ld.so of one root.

    environ: LD_LIBRARY_PATH, LD_PRELOAD, LD_BIND_NOW, ... of the process; nothing is taken from
    this process's own. cwd: what relative paths mean.
    """

    def __init__(
        self, root: Root | str = "/", environ: Mapping[str, str] | None = None, *, cwd: str = "/"
    ) -> None:
        super().__init__(root, cwd)
        self.environ: dict[str, str] = dict(environ or {})
        self.driver_assumed = False  # its libraries count as there, whatever is found

    # ---- search paths ----

    def expand(self, text: str, owner: LoadedObject | None) -> str | None:
        """`text` with $ORIGIN, $LIB and $PLATFORM replaced; None where $ORIGIN is not known."""
        if "$" not in text:
            return text
        names = [braced or bare for braced, bare in _TOKEN.findall(text)]
        if owner is None and "ORIGIN" in names:
            return None
        values = {"ORIGIN": owner.origin if owner else "", "LIB": self.settings.lib}
        values["PLATFORM"] = glibc.PLATFORMS.get(self.machine, "")
        return _TOKEN.sub(lambda found: values[found[1] or found[2]], text)

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
            # Where both are given, DT_RPATH is ignored.
            rpath = owner.elf.rpath if owner.elf.runpath is None else None
            text = owner.elf.runpath if rule == RUNPATH else rpath
            known = owner.paths[rule] = self._split(text, ":", owner) if text else []
        return known

    @cached_property
    def cache(self) -> glibc.Cache | None:
        """/etc/ld.so.cache; None where there is none or it is unusable."""
        try:
            return glibc.Cache(self.root.raw(self.settings.cache_path, glibc.CACHE_LIMIT))
        except ValueError:
            return None

    @cached_property
    def _configured(self) -> list[tuple[str, str]]:
        return [(f"{folder}/", origin) for folder, origin in glibc.configured_folders(self.root)]

    def _places(
        self, asking: LoadedObject | None, main: LoadedObject | None
    ) -> Iterator[tuple[str, str, Sequence[tuple[str, str]]]]:
        """(rule, owner, folders) in the loader's order; the cache stands for a folder."""
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
        text = self.environ.get("LD_LIBRARY_PATH", "")  # $ORIGIN there is the program's
        yield ENVIRONMENT, "", self._split(text, ":;", main) if text else []
        if asking is not None and asking.elf.runpath is not None:
            yield RUNPATH, asking.path, self._own_path(asking, RUNPATH)
        if self.cache is not None:
            yield CACHE, "", [(self.settings.cache_path, self.settings.cache_path)]
        if self.cache is None and not self.root.host:
            yield CONFIGURATION, "", self._configured
        yield DEFAULT, "", [(f, f.rstrip("/") or "/") for f in self.settings.folders]

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
        passed: list[str] = []  # why files were passed over
        for rule, owner, folders in self._places(asking, main):
            for folder, entry in folders:
                if not result.settled:
                    result.searched.append(folder)
                for path in self._named(rule, folder, name):
                    hit = Hit(path, self.real_path(self.absolute(path)), rule, entry, owner)
                    if not result.settled:
                        self._try(result, hit, passed)
                        continue
                    known = (result.real_path, *(other.real_path for other in result.shadowed))
                    if hit.real_path not in known and self.would_pass(hit.path):
                        result.shadowed.append(hit)
        if not result.settled and "other class" in passed:
            result.error = f"{name}: wrong ELF class: ELFCLASS32"
        elif not result.settled:
            result.error = f"{name}: {CANNOT_OPEN}: No such file or directory"
        return result

    def _try(self, result: Search, hit: Hit, passed: list[str]) -> None:
        """What the loader makes of a file: the result, or why it is passed over."""
        outcome, error = self.outcome(hit.path, result.name)
        if outcome == "found":
            result.path, result.real_path = hit.path, hit.real_path
        elif error is not None:
            result.error, result.damage = error, self.damage(hit.path)
        else:
            passed.append(outcome)
            return
        result.rule, result.entry, result.owner = hit.rule, hit.entry, hit.owner

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

    def _named(self, rule: str, folder: str, name: str) -> list[str]:
        """The file of that name which a folder has, or the one that the cache gives: the loader
        tries its first entry only; the others are shadowed, or never found.
        """
        if rule == CACHE:
            flags = glibc.CACHE_FLAGS.get(self.machine, (1,))
            return self.cache.lookup(name, flags)[:1] if self.cache is not None else []
        names, path = self.folder(folder), folder + name
        if names is None:
            return [path] if folder[:1] != "/" or self.root.exists(path) else []
        return [path] if name in names else []
