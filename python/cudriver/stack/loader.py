"""Where the dynamic loader (glibc's ld.so) finds a library, told from outside the process.

`Loader` knows one root, one set of environment variables and one machine. `Loader.search` is one
lookup by ld.so's rules; `process.Process` strings lookups together as a running program does.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence

from cudriver import _elf
from cudriver.stack import glibc
from cudriver.stack.record import Record, fresh
from cudriver.stack.rootfs import Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudriver._elf import ElfError, ElfFile

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

DF_1_NODEFLIB = 0x800
DF_1_PIE = 0x8000000
ET_EXEC = 2

_BEFORE_MACHINE = "ELF file version does not match current one"
CANNOT_OPEN = "cannot open shared object file"


class Place:
    """One folder (or the cache) that was looked into. There are thousands: not a Record."""

    __slots__ = ("entry", "folder", "outcome", "owner", "rule")

    def __init__(
        self, rule: str, folder: str, entry: str = "", owner: str = "", outcome: str = "absent"
    ) -> None:
        self.rule = rule
        self.folder = folder
        self.entry = entry  # the text it came from: "$ORIGIN/../lib"
        self.owner = owner  # the object whose RPATH or RUNPATH it is
        self.outcome = outcome  # absent, no folder, found, or why the file was passed over


class Hit:
    """A file that a rule gives."""

    __slots__ = ("entry", "owner", "path", "real_path", "rule")

    def __init__(
        self, path: str, real_path: str, rule: str, entry: str = "", owner: str = ""
    ) -> None:
        self.path = path  # as the loader names the object: not normalised
        self.real_path = real_path  # links followed
        self.rule = rule
        self.entry = entry
        self.owner = owner


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

    __slots__ = (
        "elf", "linked", "loader", "names", "needed", "origin", "path", "paths", "real_path",
        "search",
    )  # fmt: skip

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
        self.path = path  # l_name
        self.real_path = real_path
        self.elf = elf
        self.loader = loader  # whose DT_NEEDED first mapped it; None after a dlopen
        self.origin = origin  # what $ORIGIN stands for
        self.search = search
        self.names = {path}  # names that find it again
        if elf.soname is not None:
            self.names.add(elf.soname)
        self.needed: list[tuple[str, LoadedObject | None]] = []  # in order; None: not found
        self.linked = False  # whether `needed` is filled
        self.paths: dict[str, list[tuple[str, str]]] = {}  # expanded RPATH and RUNPATH

    def __repr__(self) -> str:
        return f"<LoadedObject {self.path}>"


class _Folder:
    """A folder of a search path with its hwcaps subfolders, best first, itself last."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        # (name with a slash at the end, real path, names in it or None where it cannot be listed)
        self.parts: list[tuple[str, str, set[str] | None]] = []


class Loader:
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
        self.root = root if isinstance(root, Root) else Root(root)
        self.environ = dict(environ or {})
        self.cwd = cwd
        self.machine = machine if machine is not None else this_machine()
        self.problems: list[tuple[str, str]] = []  # (file, what is wrong with it)
        self._hwcaps = list(hwcaps) if hwcaps is not None else None
        self._settings: glibc.Glibc | None = None
        self._program: tuple[str | None, int] | None = None
        self._cache: glibc.Cache | None = None
        self._cache_read = False
        self._folders: dict[str, _Folder | None] = {}
        self._elves: dict[str, ElfFile | ElfError] = {}
        self._environment: list[tuple[str, str]] | None = None
        self._defaults: list[tuple[str, str]] | None = None
        self._configured: list[tuple[str, str]] | None = None
        self._real: dict[str, str] = {}
        self._unreachable: dict[str, int] = {}  # errno, where links run in a circle

    # ---- the machine ----

    def use_program(self, interpreter: str | None, machine: int) -> None:
        """Take the settings of the loader that a program names."""
        self._environment = None  # $ORIGIN in LD_LIBRARY_PATH is the program's
        if self._program == (interpreter, machine):
            return
        self._program = interpreter, machine
        self.machine = machine
        self._settings = glibc.read_glibc(self.root, interpreter, machine)
        self._folders.clear()
        self._defaults = None

    @property
    def settings(self) -> glibc.Glibc:
        """The built-in settings of this root's loader."""
        if self._settings is None:
            self._settings = glibc.read_glibc(self.root, None, self.machine)
        return self._settings

    @property
    def hwcaps(self) -> list[str]:
        """The glibc-hwcaps folders in use, best first."""
        if self._hwcaps is None:
            self._hwcaps = glibc.cpu_folders(self.root, self.machine)
        return self._hwcaps

    @property
    def platform(self) -> str:
        """What $PLATFORM stands for."""
        if self.machine == glibc.X86_64 and "x86-64-v3" in self.hwcaps:
            lines = self.root.text("/proc/cpuinfo", 512) or ""
            if "GenuineIntel" in lines:
                return "haswell"
        return glibc.PLATFORMS.get(self.machine, "")

    # ---- files ----

    def absolute(self, path: str) -> str:
        """`path` seen from the working directory; not normalised."""
        return path if path.startswith("/") else f"{self.cwd.rstrip('/')}/{path}"

    def real_path(self, path: str) -> str:
        """`path` with every link followed, as a path inside the root."""
        known = self._real.get(path)
        if known is None:
            try:
                known = self.root.resolve(path)
            except OSError:
                known = path
            self._real[path] = known
        return known

    def _host(self, path: str) -> str | None:
        """The path by which to open `path`; None where a folder on its way is missing."""
        path = self.absolute(path)
        if self.root.host:
            return path
        # The kernel wants every folder before a ".." to exist; resolving text does not.
        parts = path.split("/")
        for i, part in enumerate(parts):
            if part == ".." and not self.root.is_dir("/".join(parts[:i]) or "/"):
                return None
        try:
            return self.root.real(path)
        except OSError as error:
            self._unreachable[path] = error.errno or errno.ENOENT
            return None

    def open(self, path: str) -> ElfFile:
        """The file at `path` (inside the root), read once. Raises ElfError."""
        path = self.absolute(path)
        known = self._elves.get(path)
        if known is None:
            host = self._host(path)
            try:
                known = _elf.ElfFile(host if host is not None else "", shown=path)
            except _elf.ElfError as error:
                known = error
            self._elves[path] = known
        if isinstance(known, _elf.ElfError):
            raise known
        return known

    def _folder(self, name: str) -> _Folder | None:
        """The folder (its name ends in a slash; "" is the working directory), or None."""
        try:
            return self._folders[name]
        except KeyError:
            pass
        folder = self._read_folder(name)
        self._folders[name] = folder
        return folder

    def _read_folder(self, name: str) -> _Folder | None:
        listed = self._list(name)
        if listed is None:
            return None
        folder = _Folder()
        names = listed[2]
        if self.settings.hwcaps_folders and (names is None or "glibc-hwcaps" in names):
            for level in self.hwcaps:
                part = self._list(f"{name}glibc-hwcaps/{level}/")
                if part is not None:
                    folder.parts.append(part)
        if self.settings.legacy_folders and self.machine == glibc.X86_64:
            folder.parts.extend(self._legacy_parts(name, names))
        folder.parts.append(listed)
        return folder

    def _legacy_parts(
        self, name: str, names: set[str] | None
    ) -> Iterator[tuple[str, str, set[str] | None]]:
        """The subfolders that loaders before glibc 2.37 tried: tls, the platform, x86_64."""
        if names is not None and names.isdisjoint(("tls", "haswell", "x86_64")):
            return
        platform = self.platform
        for sub in (
            f"tls/{platform}/x86_64/", f"tls/{platform}/", "tls/x86_64/", "tls/",
            f"{platform}/x86_64/", f"{platform}/", "x86_64/",
        ):  # fmt: skip
            part = self._list(name + sub)
            if part is not None:
                yield part

    def _list(self, name: str) -> tuple[str, str, set[str] | None] | None:
        host = self._host(name or ".")
        if host is None:
            return None
        try:
            return name, host, set(os.listdir(host))
        except PermissionError:
            return (name, host, None) if os.path.isdir(host) else None
        except (OSError, ValueError):
            return None

    # ---- search paths ----

    def expand(self, text: str, owner: LoadedObject | None) -> str | None:
        """`text` with $ORIGIN, $LIB and $PLATFORM replaced; None where $ORIGIN is not known."""
        if "$" not in text:
            return text
        done: list[str] = []
        at = 0
        while (dollar := text.find("$", at)) >= 0:
            done.append(text[at:dollar])
            at = dollar + 1
            for token in ("ORIGIN", "LIB", "PLATFORM"):
                if text.startswith("{" + token + "}", at):
                    length = len(token) + 2
                elif text.startswith(token, at) and text[at + len(token) : at + len(token) + 1] in (
                    "", "/", ":",
                ):  # fmt: skip
                    length = len(token)
                else:
                    continue
                if token == "ORIGIN":
                    if owner is None:
                        return None
                    done.append(owner.origin)
                else:
                    done.append(self.settings.lib if token == "LIB" else self.platform)
                at += length
                break
            else:
                done.append("$")
        done.append(text[at:])
        return "".join(done)

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
            if self._configured is None:
                self._configured = [
                    (folder.rstrip("/") + "/", origin)
                    for folder, origin in glibc.configured_folders(self.root)
                ]
            yield CONFIGURATION, "", self._configured
        if not self._lone(asking, main):
            yield DEFAULT, "", self._default_path()

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
        if not name or "\0" in name:
            result.error = f"{name}: {CANNOT_OPEN}: No such file or directory"
            return result
        other_class: int | None = None
        searched = result.searched
        given_up: tuple[str, str] | None = None
        for hit, place in self._candidates(name, asking, main):
            if given_up == (place.rule, place.owner):
                continue
            if hit is None:
                if result.path is None and result.error is None:
                    searched.append(place)
                continue
            if result.path is not None or result.error is not None:
                self._note_shadow(result, hit)
                continue
            outcome, error = self._try(hit.path)
            place.outcome = outcome
            searched.append(place)
            if outcome == "other class":
                other_class = 32
            if outcome == "found":
                result.path, result.real_path = hit.path, hit.real_path
            elif error is not None:
                result.error, result.damage = error, self._damage(hit.path)
            else:
                # Of what cannot be opened only the absent and the forbidden are passed over;
                # anything else ends the look at this path.
                mild = self._open_errno(hit.path) in (errno.ENOENT, errno.EACCES)
                if outcome == "unreadable" and place.rule != CACHE and not mild:
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

    def _search_file(self, result: Search, asking: LoadedObject | None) -> None:
        """A name with a slash: one file, no rules."""
        path = self.expand(result.name, asking) if asking is not None else result.name
        if not path:
            result.error = f"{result.name}: empty dynamic string token substitution"
            return
        result.rule, result.entry = ABSOLUTE, path
        outcome, error = self._try(path)
        if outcome == "found":
            result.path, result.real_path = path, self.real_path(self.absolute(path))
            return
        if outcome == "other class":
            error = f"{path}: wrong ELF class: ELFCLASS32"
        elif outcome == "other machine":
            error = f"{path}: {CANNOT_OPEN}: No such file or directory"
        elif error is None:
            error = f"{path}: {CANNOT_OPEN}: {os.strerror(self._open_errno(path))}"
        result.error, result.damage = error, self._damage(path)

    def _candidates(
        self, name: str, asking: LoadedObject | None, main: LoadedObject | None
    ) -> Iterator[tuple[Hit | None, Place]]:
        """Every existing file that a rule gives, and the places that have none."""
        for rule, owner, folders in self._places(asking, main):
            if rule == CACHE:
                yield from self._in_cache(name, asking if asking is not None else main)
                continue
            for folder_name, entry in folders:
                folder = self._folder(folder_name)
                if folder is None:
                    yield None, Place(rule, folder_name, entry, owner, "no folder")
                    continue
                found = False
                for prefix, host, names in folder.parts:
                    if name in names if names is not None else os.path.exists(f"{host}/{name}"):
                        found = True
                        path = prefix + name
                        real = self.real_path(self.absolute(path))
                        yield (
                            Hit(path, real, rule, entry, owner),
                            Place(rule, prefix, entry, owner),
                        )
                if not found:
                    yield None, Place(rule, folder_name, entry, owner)

    def _in_cache(
        self, name: str, asking: LoadedObject | None
    ) -> Iterator[tuple[Hit | None, Place]]:
        cache, source = self.cache, self.settings.cache_path
        if cache is None:
            return
        flags = glibc.CACHE_FLAGS.get(self.machine, (1,))
        try:
            paths = cache.lookup(name, flags, self.hwcaps)
        except glibc.CacheError as error:
            self.problems.append((source, str(error)))
            self._cache = None
            return
        if paths and self._lone(asking, None):
            paths = [p for p in paths if not p.startswith(tuple(self.settings.folders))]
        if not paths:
            yield None, Place(CACHE, source, source)
        # The loader tries the first entry only; the others are shadowed, or never found.
        if paths and self._host(paths[0]) is not None:
            real = self.real_path(paths[0])
            yield Hit(paths[0], real, CACHE, source), Place(CACHE, source, source)

    def _note_shadow(self, result: Search, hit: Hit) -> None:
        if hit.real_path == result.real_path:
            return
        if any(hit.real_path == other.real_path for other in result.shadowed):
            return
        if self._would_pass(hit.path):
            result.shadowed.append(hit)

    def _would_pass(self, path: str) -> bool:
        """Whether the loader would map the file, by its header alone."""
        host = self._host(path)
        if host is None:
            return False
        try:
            descriptor = os.open(host, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError):
            return False
        try:
            head = os.read(descriptor, 20)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return head[:6] == b"\x7fELF\x02\x01" and int.from_bytes(head[18:20], "little") == (
            self.machine
        )

    def _try(self, path: str) -> tuple[str, str | None]:
        """What the loader makes of an existing file: "found", or why not and its fatal words."""
        try:
            elf = self.open(path)
        except _elf.ElfError as error:
            if error.errno is not None:
                return "unreadable", None
            machine = error.machine
            if isinstance(error, _elf.ForeignElfError):
                if error.elf_class == 32:
                    return "other class", None
                # ld.so reads the machine as if the byte order were its own.
                machine = int.from_bytes(error.machine.to_bytes(2, "big"), "little")
            early = machine is None or error.loader_text == _BEFORE_MACHINE
            if not early and machine != self.machine:
                return "other machine", None
            return "rejected", f"{path}: {error.loader_text or error.reason}"
        if elf.machine != self.machine:
            return "other machine", None
        if elf.type == ET_EXEC:
            return "rejected", f"{path}: cannot dynamically load executable"
        if elf.flags_1 & DF_1_PIE:
            return "rejected", f"{path}: cannot dynamically load position-independent executable"
        if not elf.dynamic:
            return "rejected", f"{path}: object file has no dynamic section"
        return "found", None

    def _damage(self, path: str) -> ElfError | None:
        known = self._elves.get(self.absolute(path))
        return known if isinstance(known, _elf.ElfError) else None

    def _open_errno(self, path: str) -> int:
        absolute = self.absolute(path)
        if absolute in self._unreachable:
            return self._unreachable[absolute]
        known = self._damage(path)
        return known.errno if known is not None and known.errno else errno.ENOENT

    def identity(self, elf: ElfFile) -> tuple[int, int]:
        """What makes two names the same object for the loader."""
        return elf.device, elf.inode

    def is_file(self, path: str) -> bool:
        """Whether a regular file is there, links followed inside the root."""
        host = self._host(path)
        try:
            return host is not None and stat.S_ISREG(os.stat(host).st_mode)
        except (OSError, ValueError):
            return False


def this_machine() -> int:
    """e_machine of this process."""
    names = {
        "x86_64": glibc.X86_64,
        "aarch64": glibc.AARCH64,
        "arm64": glibc.AARCH64,
        "ppc64le": glibc.PPC64,
    }
    return names.get(os.uname().machine, glibc.X86_64)
