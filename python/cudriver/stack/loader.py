"""Where the dynamic loader (glibc's ld.so) finds a library, told from outside the process.

`Loader` knows one root, one set of environment variables and one machine. `Loader.search` is one
lookup by ld.so's rules; `process.Process` strings lookups together as a running program does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cudriver.stack.record import Record, fresh
from cudriver.stack.rootfs import Root

if TYPE_CHECKING:
    from cudriver._elf import ElfError, ElfFile

# The rules, as model.Resolution.rule has them.
LOADED = "loaded"  # an object of this name, SONAME or inode is mapped already
RPATH = "rpath"
ENVIRONMENT = "LD_LIBRARY_PATH"
RUNPATH = "runpath"
CACHE = "cache"  # /etc/ld.so.cache
CONFIGURATION = "configuration"  # /etc/ld.so.conf where there is no cache to read
DEFAULT = "default"  # the loader's own folders
ABSOLUTE = "absolute"  # the name has a slash
NONE = "none"


class Place(Record):
    """One folder (or file, for the cache) that was looked into."""

    rule: str
    folder: str  # as the loader would print it
    entry: str = ""  # the text it came from: "$ORIGIN/../lib"
    owner: str = ""  # the object whose RPATH or RUNPATH it is
    outcome: str = "absent"  # absent, found, no folder, other class, other machine, unreadable


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

    __slots__ = ("elf", "loader", "names", "needed", "origin", "path", "real_path", "search")

    path: str  # l_name
    real_path: str
    elf: ElfFile
    loader: LoadedObject | None  # whose request first mapped it
    origin: str  # what $ORIGIN stands for
    names: set[str]  # names that find it again
    search: Search | None
    needed: list[tuple[str, LoadedObject | None]]  # DT_NEEDED in order; None: not found


class Loader:
    """ld.so of one root.

    environ: LD_LIBRARY_PATH, LD_PRELOAD, LD_BIND_NOW, ... of the process; nothing is taken from
    this process's own. cwd: what relative paths mean. hwcaps: the glibc-hwcaps folders this CPU
    takes, best first; None: those of the root's own /proc/cpuinfo, none where it has none.
    """

    def __init__(
        self,
        root: Root | str = "/",
        environ: Mapping[str, str] | None = None,
        *,
        cwd: str = "/",
        hwcaps: Sequence[str] | None = None,
        machine: int | None = None,
    ) -> None: ...

    def search(
        self, name: str, asking: LoadedObject | None = None, main: LoadedObject | None = None
    ) -> Search:
        """Find `name` for `asking` (its chain of loaders counts) in a program `main`."""
        raise NotImplementedError
