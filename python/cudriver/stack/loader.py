"""Where the dynamic loader (glibc's ld.so) finds a library, told from outside the process.

`Loader` knows one root, one set of environment variables and one machine. `Loader.search` is one
lookup by ld.so's rules; `process.Process` strings lookups together as a running program does.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence

from cudriver.stack import glibc, loaded
from cudriver.stack.loaded import Hit, LoadedObject, Place, Search
from cudriver.stack.loader_files import LoaderFiles, this_machine
from cudriver.stack.rootfs import Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Hit", "LoadedObject", "Loader", "Place", "Search", "this_machine"]

DF_1_NODEFLIB = 0x800

_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?!\w))", re.ASCII)
CANNOT_OPEN = "cannot open shared object file"


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
        self._cache: glibc.Cache | None = None
        self._cache_read = False
        self._cached: dict[tuple[int, str], list[str]] = {}  # by machine and name
        self._environment: list[tuple[str, str]] | None = None
        self._defaults: list[tuple[str, str]] | None = None
        self._configured: list[tuple[str, str]] | None = None

    def use_program(self, interpreter: str | None, machine: int) -> None:
        """Take the settings of the loader that a program names."""
        super().use_program(interpreter, machine)
        # $ORIGIN in LD_LIBRARY_PATH is the program's.
        self._environment = self._defaults = None

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
            text = owner.elf.runpath if rule == loaded.RUNPATH else owner.elf.rpath
            if rule == loaded.RPATH and owner.elf.runpath is not None:
                text = None  # where both are given, DT_RPATH is ignored
            known = self._split(text, ":", owner) if text else []
            owner.paths[rule] = known
        return known

    def _library_path(self, main: LoadedObject | None) -> list[tuple[str, str]]:
        if self._environment is None:
            text = self.environ.get("LD_LIBRARY_PATH", "")
            self._environment = self._split(text, ":;", main) if text else []
        return self._environment

    def _default_path(self) -> list[tuple[str, str]]:
        if self._defaults is None:
            self._defaults = [(f, f.rstrip("/") or "/") for f in self.settings.folders]
        return self._defaults

    @property
    def cache(self) -> glibc.Cache | None:
        """/etc/ld.so.cache; None where there is none or it is unusable (see `problems`)."""
        if not self._cache_read:
            self._cache_read = True
            path = self.settings.cache_path
            try:
                self._cache = glibc.read_cache(self.root, path)
            except glibc.CacheError as error:
                self.problems.append((path, str(error)))
        return self._cache

    def _places(
        self, asking: LoadedObject | None, main: LoadedObject | None
    ) -> Iterator[tuple[str, str, Sequence[tuple[str, str]]]]:
        """(rule, owner, folders) in the loader's order; the cache has no folders."""
        if asking is None or asking.elf.runpath is None:
            chain = asking
            met_main = False
            while chain is not None:
                if chain.elf.rpath is not None:
                    yield loaded.RPATH, chain.path, self._own_path(chain, loaded.RPATH)
                met_main = met_main or chain is main
                chain = chain.loader
            if main is not None and not met_main:
                yield loaded.RPATH, main.path, self._own_path(main, loaded.RPATH)
        yield loaded.ENVIRONMENT, "", self._library_path(main)
        if asking is not None and asking.elf.runpath is not None:
            yield loaded.RUNPATH, asking.path, self._own_path(asking, loaded.RUNPATH)
        yield loaded.CACHE, "", ()
        if self.cache is None and not self.root.host:
            if self._configured is None:
                self._configured = [
                    (folder.rstrip("/") + "/", origin)
                    for folder, origin in glibc.configured_folders(self.root)
                ]
            yield loaded.CONFIGURATION, "", self._configured
        if not self._lone(asking, main):
            yield loaded.DEFAULT, "", self._default_path()

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
                if any(place.rule != loaded.CACHE for place in searched) or not self._lone(
                    asking, main
                ):
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
        result.rule, result.entry = loaded.ABSOLUTE, path
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
            if rule == loaded.CACHE:
                yield from self._in_cache(name, asking if asking is not None else main)
                continue
            for folder_name, entry in folders:
                folder = self.folder(folder_name)
                if folder is None:
                    # Only of an absolute name ld.so asks first whether it is a folder.
                    ends = folder_name[:1] != "/" and self._severe(folder_name + name)
                    what = "ends the path" if ends else "no folder"
                    yield None, Place(rule, folder_name, entry, owner, what)
                    continue
                found = False
                for prefix, names in folder:
                    path = prefix + name
                    whole = self.absolute(path)
                    if name in names if names is not None else self.root.exists(whole):
                        found = True
                        real = self.real_path(whole)
                        place = Place(rule, prefix, entry, owner)
                        place.whole = prefix == folder_name
                        yield Hit(path, real, rule, entry, owner), place
                if not found and result.path is None:
                    yield None, Place(rule, folder_name, entry, owner)

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
                self._cache = None
                return
            self._cached[self.machine, name] = known
        paths = known
        if paths and self._lone(asking, None):
            paths = [p for p in paths if not p.startswith(tuple(self.settings.folders))]
        if not paths:
            yield None, Place(loaded.CACHE, source, source)
        # The loader tries the first entry only; the others are shadowed, or never found.
        if paths:
            real = self.real_path(paths[0])
            yield Hit(paths[0], real, loaded.CACHE, source), Place(loaded.CACHE, source, source)

    def _note_shadow(self, result: Search, hit: Hit) -> None:
        known = [result.real_path, *(other.real_path for other in result.shadowed)]
        if hit.real_path not in known and self.would_pass(hit.path):
            result.shadowed.append(hit)
