"""A process as the loader sees it: a program, what is mapped, and dlopen after dlopen."""

from __future__ import annotations

from collections.abc import Sequence

from cudriver.stack.loader import LoadedObject, Loader, Search
from cudriver.stack.record import Record, fresh

NOT_FOUND, VERSION, SYMBOL, REJECTED, DAMAGED = (
    "not found",  # a needed library is nowhere
    "version",  # a library lacks a version that another needs
    "symbol",  # an undefined symbol
    "rejected",  # the loader refuses the file: text file, truncated, ...
    "damaged",  # the loader may not notice, but its tables are broken
)


class Fault(Record):
    """Why a load fails, or would fail had not an earlier fault ended it."""

    kind: str
    message: str  # as dlerror() has it, and so Python's ImportError or OSError
    library: str  # path of the object that wants it
    name: str = ""  # the library, version or symbol
    version: str | None = None
    provider: str | None = None  # path (or SONAME) of what should have had it
    lazy: bool = False  # met at the first call only


class Load(Record):
    """One dlopen, or the program's start."""

    name: str
    search: Search
    object: LoadedObject | None = None  # None: the load failed
    objects: list[LoadedObject] = fresh(list)  # newly mapped, in ld.so's order, also on failure
    searches: list[Search] = fresh(list)  # every lookup it made
    faults: list[Fault] = fresh(list)  # in ld.so's order: the first one is what the user sees
    later: list[Fault] = fresh(list)  # lazy bindings that will fail when called

    @property
    def error(self) -> str | None:
        """What dlerror() says; None: it loads."""
        return self.faults[0].message if self.faults else None


class Process:
    """A running program. `objects` is ld.so's list, the program first.

    A failed dlopen leaves nothing mapped, as in ld.so; its Load still tells what it had found.
    """

    objects: list[LoadedObject]
    start: Load

    def __init__(self, loader: Loader, executable: str, *, symbols: bool = True) -> None:
        """executable: the program's file, links followed or not. symbols=False skips symbols."""

    def dlopen(
        self,
        name: str,
        caller: LoadedObject | None = None,
        *,
        now: bool = True,
        everywhere: bool = False,
    ) -> Load:
        """dlopen(name, RTLD_NOW or RTLD_LAZY | RTLD_GLOBAL where `everywhere`) from `caller`.

        Python imports and ctypes.CDLL use RTLD_NOW; the caller is then the interpreter (None).
        """
        raise NotImplementedError

    def find(self, name: str) -> LoadedObject | None:
        """The mapped object that a request for `name` (a SONAME, mostly) would get."""
        raise NotImplementedError


def load_graph(
    loader: Loader, executable: str, entries: Sequence[str], *, symbols: bool = True
) -> tuple[Process, list[Load]]:
    """A process of `executable` that dlopens every entry in order, as `import` would."""
    process = Process(loader, executable, symbols=symbols)
    return process, [process.dlopen(entry) for entry in entries]
