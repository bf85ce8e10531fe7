"""A process as the loader sees it: a program, what is mapped, and dlopen after dlopen."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence

from cudriver import _elf
from cudriver.stack.facts import LoadFault
from cudriver.stack.loader.search import LoadedObject, Loader, Search
from cudriver.stack.loader.symbols import check_symbols, check_versions, relocation_order
from cudriver.stack.names import DRIVER_CALL
from cudriver.stack.record import Record, fresh
from cudriver.stack.tables import table

PRELOAD_FILE = "/etc/ld.so.preload"
PYTHON_SYMBOL = r"_?Py[A-Z_]"
DRIVER_SYMBOL = rf"{DRIVER_CALL}|nvml[A-Z]|cuvid[A-Z]|NvEncode"
EXEC_STACK = "cannot enable executable stack as shared object requires"


class Load(Record):
    """One dlopen, or the program's start."""

    name: str
    search: Search
    objects: list[LoadedObject] = fresh(list)  # newly mapped, in ld.so's order, also on failure
    searches: list[Search] = fresh(list)  # every lookup it made
    faults: list[LoadFault] = fresh(list)  # in ld.so's order: the first one is what the user sees
    later: list[LoadFault] = fresh(list)  # lazy bindings that will fail when called

    @property
    def error(self) -> str | None:
        """What dlerror() says; None: it loads."""
        return self.faults[0].message if self.faults else None


class Process:
    """A running program. `objects` is ld.so's list, the program first.

    A failed dlopen leaves nothing mapped, as in ld.so; its Load still tells what it had found.
    """

    def __init__(self, loader: Loader, executable: str) -> None:
        """executable: the program's file. Raises ElfError where it cannot be read."""
        self.loader = loader
        self.stand_in = False  # for a Python: nothing is said of Python's own symbols
        self.driver_stands_in = False  # nor of the driver's, where none is here or one is assumed
        self.objects: list[LoadedObject] = []
        self.scope: list[LoadedObject] = []  # global
        self._names: dict[str, LoadedObject] = {}
        self._inodes: dict[tuple[int, int], LoadedObject] = {}
        executable = loader.absolute(executable)
        real = loader.real_path(executable)
        elf = loader.open(real)
        loader.use_program(elf.interpreter, elf.machine)
        self.main: LoadedObject = LoadedObject(executable, real, elf, origin=_folder_of(real))
        self.main.names.add("")  # what ld.so calls the program
        self._stack_fixed = False  # from the end of the start on, if this loader fixes it
        self.start: Load = self._start(elf.interpreter)

    def copy(self) -> Process:
        """The same program at the same point: what one of the two loads, the other does not see."""
        twin: Process = object.__new__(Process)
        twin.__dict__.update(self.__dict__)
        twin.objects, twin.scope = list(self.objects), list(self.scope)
        twin._names, twin._inodes = dict(self._names), dict(self._inodes)
        return twin

    # ---- what is mapped ----

    def find(self, name: str) -> LoadedObject | None:
        """The mapped object that a request for `name` (a SONAME, mostly) would get."""
        return self._names.get(name)

    def _enter(self, obj: LoadedObject) -> None:
        self.objects.append(obj)
        self._inodes.setdefault(_identity(obj.elf), obj)
        for name in (obj.path, obj.elf.soname or obj.path, *obj.names):
            self._names.setdefault(name, obj)

    # ---- mapping ----

    def _map(
        self, name: str, asking: LoadedObject, load: Load, loader: LoadedObject | None
    ) -> LoadedObject | None:
        """Find `name` among the mapped objects, else by the rules. None: a fault is noted, or it is
        the driver's, and judged as if it were there.
        """
        known = self._names.get(name)
        if known is not None:
            return known
        search = self.loader.search(name, asking, self.main)
        load.searches.append(search)
        absent = search.path is None and search.damage is None
        if name in table("libraries")["driver"] and (absent or self.loader.driver_assumed):
            self.driver_stands_in = True  # whether it is here, the rules of the driver tell
            return None
        if search.path is None or search.real_path is None:
            load.faults.append(_search_fault(search, asking))
            return None
        elf = self.loader.open(search.path)
        known = self._inodes.get(_identity(elf))
        if known is not None:
            self._names.setdefault(name, known)
            return known
        if elf.exec_stack and self._stack_fixed:
            message = f"{name}: {EXEC_STACK}: {os.strerror(errno.EINVAL)}"
            load.faults.append(LoadFault("rejected", search.path, message, search.path))
            return None
        origin = _folder_of(self.loader.absolute(search.path))
        obj = LoadedObject(search.path, search.real_path, elf, origin, loader, search)
        obj.names.add(name)
        load.objects.append(obj)
        self._enter(obj)
        return obj

    def _map_needed(self, roots: Sequence[LoadedObject], load: Load) -> list[LoadedObject]:
        """Map what the roots need, breadth first. Returns the search list, roots first."""
        found = list(roots)
        seen = {id(obj) for obj in found}
        for obj in found:  # grows
            if not obj.linked:
                obj.linked = True
                obj.needed += [(name, self._map(name, obj, load, obj)) for name in obj.elf.needed]
            for _, child in obj.needed:
                if child is not None and id(child) not in seen:
                    seen.add(id(child))
                    found.append(child)
        return found

    # ---- the program ----

    def _start(self, interpreter: str | None) -> Load:
        main = self.main
        load = Load(main.path, Search(main.path, None, main.path, main.real_path))
        self._enter(main)
        preloaded: list[LoadedObject] = []
        if interpreter is not None:  # ld.so itself comes first, and answers to its SONAME
            try:
                elf, real = self.loader.open(interpreter), self.loader.real_path(interpreter)
                self._enter(LoadedObject(interpreter, real, elf, origin=_folder_of(interpreter)))
            except _elf.ElfError as error:
                load.faults.append(LoadFault("not found", main.path, str(error), interpreter))
        before = len(load.faults)
        text = self.loader.root.text(PRELOAD_FILE) or ""
        lines = text.partition("\0")[0].splitlines()
        wanted = self.loader.environ.get("LD_PRELOAD", "").replace(":", " ").split(" ")
        wanted += [each for x in lines for each in re.split(r"[\s:]", x.partition("#")[0])]
        for name in filter(None, wanted):
            obj = self._map(name, main, load, main)
            if obj is not None and obj not in preloaded:
                preloaded.append(obj)
        del load.faults[before:]  # ld.so does without what it cannot preload
        self.scope = self._map_needed([main, *preloaded], load)
        # ld.so moves itself to where it is first needed.
        self.objects = list(self.scope)
        load.objects = list(self.objects)
        if not load.faults or load.faults[0].kind not in ("not found", "rejected"):
            self._check(load, self.objects[::-1], self.scope, False)
        tunables = self.loader.environ.get("GLIBC_TUNABLES", "").split(":")
        executable = any(obj.elf.exec_stack for obj in self.objects)
        forced = "glibc.rtld.execstack=2" in tunables
        self._stack_fixed = self.loader.settings.refuses_exec_stack and not (executable or forced)
        return load

    # ---- dlopen ----

    def dlopen(
        self,
        name: str,
        caller: LoadedObject | None = None,
        *,
        now: bool = True,
        everywhere: bool = False,
    ) -> Load:
        """dlopen(name, RTLD_NOW or RTLD_LAZY | RTLD_GLOBAL where `everywhere`) from `caller`.

        Python's import and ctypes.CDLL use RTLD_NOW; the caller is the interpreter (None), or
        ctypes' own extension. What is found loads its needs as its own: a caller's DT_RPATH helps
        to find `name`, not what `name` needs.
        """
        asking = caller or self.main
        load = Load(name, Search(name, asking.path))
        root = self._map(name, asking, load, None)
        if load.searches:
            load.search = load.searches[0]
        if root is None:
            return load
        load.search.path = load.search.path or root.path  # it may be mapped already
        searchlist = self._map_needed([root], load)
        known = {id(obj) for obj in self.scope}
        scope = self.scope + [obj for obj in searchlist if id(obj) not in known]
        if not load.faults:
            new = {id(obj) for obj in load.objects}
            order = relocation_order(searchlist) if len(new) > 1 else load.objects
            self._check(load, [obj for obj in order if id(obj) in new], scope, now)
        if load.faults:
            gone = {id(obj) for obj in load.objects}
            self.objects = [obj for obj in self.objects if id(obj) not in gone]
            self._names = {n: obj for n, obj in self._names.items() if id(obj) not in gone}
            self._inodes = {n: obj for n, obj in self._inodes.items() if id(obj) not in gone}
            return load
        if everywhere:
            self.scope = scope
        return load

    def _check(
        self, load: Load, order: list[LoadedObject], scope: list[LoadedObject], now: bool
    ) -> None:
        """Versions, then symbols of what was mapped, in the order in which ld.so relocates it."""
        load.faults += check_versions(load.objects, self.find)
        if not order:
            return
        now = now or bool(self.loader.environ.get("LD_BIND_NOW"))
        faults, load.later = check_symbols(order, scope, self.find, now=now)
        absent = ((self.stand_in, PYTHON_SYMBOL), (self.driver_stands_in, DRIVER_SYMBOL))
        for stands_in, own in absent:
            if stands_in:
                faults = [fault for fault in faults if not re.match(own, fault.name)]
                load.later = [fault for fault in load.later if not re.match(own, fault.name)]
        load.faults += faults


def _search_fault(search: Search, asking: LoadedObject) -> LoadFault:
    kind = "not found"
    if search.damage is not None and search.damage.errno is None:
        kind = "rejected" if search.damage.loader_text is not None else "damaged"
    elif search.rule != "none" and search.damage is None:
        kind = "rejected"
    return LoadFault(kind, asking.path, search.error or "", search.name)


def _identity(elf: _elf.ElfFile) -> tuple[int, int]:
    """What makes two names the same object for the loader."""
    return elf.device, elf.inode


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"
