"""What is told of one lookup by the loader, and of one object that it maps."""

from __future__ import annotations

from cudriver.stack.record import Record, fresh

TYPE_CHECKING = False
if TYPE_CHECKING:
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


class Place:
    """One folder (or the cache) that was looked into. There are thousands: not a Record."""

    __slots__ = ("entry", "folder", "outcome", "owner", "rule", "whole")

    def __init__(
        self, rule: str, folder: str, entry: str = "", owner: str = "", outcome: str = "absent"
    ) -> None:
        self.whole: bool = False  # the folder that the path names, not one below it for some CPUs
        self.rule: str = rule
        self.folder: str = folder
        self.entry: str = entry  # the text it came from: "$ORIGIN/../lib"
        self.owner: str = owner  # the object whose RPATH or RUNPATH it is
        self.outcome: str = outcome  # absent, no folder, found, or why the file was passed over


class Hit:
    """A file that a rule gives."""

    __slots__ = ("entry", "owner", "path", "real_path", "rule")

    def __init__(
        self, path: str, real_path: str, rule: str, entry: str = "", owner: str = ""
    ) -> None:
        self.path: str = path  # as the loader names the object: not normalised
        self.real_path: str = real_path  # links followed
        self.rule: str = rule
        self.entry: str = entry
        self.owner: str = owner


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
