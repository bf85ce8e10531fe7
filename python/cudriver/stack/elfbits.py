"""What a loader never asks of an ELF file: a section's bytes, those of a symbol, and zeros.

For reading a library's own version and a framework's list of architectures, and for telling damage.
64-bit little-endian only; every read is bounded, and a file that lies gives None.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from struct import error as StructError
from struct import iter_unpack, pack, unpack_from

from cudriver.stack.rootfs import Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")

PT_LOAD, PT_DYNAMIC, PT_GNU_EH_FRAME = 1, 2, 0x6474E550
DT_STRTAB, DT_SYMTAB, DT_GNU_HASH = 5, 6, 0x6FFFFEF5
DT_PLTRELSZ, DT_RELA, DT_RELASZ, DT_STRSZ, DT_JMPREL = 2, 7, 8, 10, 23
DT_INIT, DT_FINI = 12, 13  # run as it is loaded, and at the process's end
DT_ARRAYS = ((25, 27), (26, 28))  # DT_INIT_ARRAY, DT_FINI_ARRAY, and their sizes
DT_RELACOUNT, DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFF9, 0x6FFFFFFE, 0x6FFFFFFF
RELA = 24  # bytes of a relocation, and of a symbol
GLOBAL = 1  # the binding of a symbol that somebody must have
SHT_STRTAB = b"\x03\0\0\0"
MAX_CHAIN = 4096
MAX_SECTIONS = 1024
MAX_HEADERS = 256
TAIL = 64  # bytes at the end of a segment
TABLE_LIMIT = 64 << 20  # bytes of a table
CONSTRUCTORS = 256  # of one library, and what runs at its end
CRASH, CUT = "Segmentation fault", "Bus error"  # as a shell says it
SHIFTED = "ELF load command address/offset not page-aligned"  # as the loader does
PAGE = 4096
CODE = 4  # bytes: no function of these machines begins with so many zeros
HOLE = bytes(64)  # nor has one so many inside
FRAMES = b"\1\x1b\3\x3b"  # how linkers encode the sorted table of functions
LONG = 4096  # bytes of a function
CALL = re.compile(rb"\xe8(?=(.{4}))", re.DOTALL)  # x86-64's, of a function this far away
# Py_mod_create and Py_mod_exec, in what is built for CPython before 3.15, and for 3.15.
SLOTS = [pack("<QQ", *numbers) for numbers in ((1, 2), (84, 85))]


def _if_told(read: Callable[P, T | None]) -> Callable[P, T | None]:
    """A read that gives None where the file lies."""

    def bounded(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return read(*args, **kwargs)
        except (StructError, OverflowError, ZeroDivisionError):
            return None

    return bounded


class ElfBits:
    """A file, open in a `with` statement. One that cannot be opened is as one that is no ELF."""

    def __init__(self, root: Root, path: str) -> None:
        try:
            self.descriptor = root.open(path)
        except (OSError, ValueError):
            self.descriptor = -1
        self._head = self._at(0, 64)
        self._loads: list[tuple[int, int, int]] | None = None  # address, offset, size in the file
        self._tables: dict[int, int] = {}
        self._frames = (0, 0)  # address and size of the table of functions
        self._shifted = False  # a segment cannot be mapped: `strip` moved it, after patchelf
        self._first_use = self._dynamic_end = 0  # bytes that the loader reads, or writes, first

    def __enter__(self) -> ElfBits:
        return self

    def __exit__(self, *_: object) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    @property
    def sound(self) -> bool:
        """A 64-bit little-endian ELF header."""
        return len(self._head) == 64 and self._head[:6] == b"\x7fELF\x02\x01"

    @property
    def whole(self) -> bool:
        """Whether the file goes as far as the table of its sections, which linkers put last, and
        that table has the names' section.
        """
        if not self.sound:
            return False
        (table,) = unpack_from("<Q", self._head, 40)
        entry, count, names = unpack_from("<HHH", self._head, 58)
        try:
            size = os.fstat(self.descriptor).st_size
        except OSError:  # an NFS server may lose an open file
            return False
        if not 0 < table <= size - entry * count:
            return False
        return names == 0 or self._at(table + entry * names + 4, 4) == SHT_STRTAB

    def _severed(self) -> str:
        """How a process ends where the last of what a loader maps is not there, or zeros stand
        there and everywhere behind it, the table of the sections included; "" where neither is so.
        Many segments end in zeros, and patchelf puts that table before them.
        """
        try:
            self._dynamic()
        except StructError:
            return CRASH
        ends = [offset + size for _, offset, size in self._loads or () if size]
        end, size = max(ends, default=0), os.fstat(self.descriptor).st_size
        if size < end:
            # Zeros follow in the file's last page, and behind that nothing can be read.
            page = -(-size // PAGE) * PAGE
            if self._dynamic_end > size and self._first_use < page:
                return CRASH
            return CUT if page < end else ""
        at = max(end - TAIL, 0)
        if len(self._head) < 64 or unpack_from("<Q", self._head, 40)[0] < at:
            return ""
        while data := self._at(at, 1 << 20):
            if any(data):
                return ""
            at += len(data)
        return CRASH

    def ending(self, entry: str) -> str | None:
        """How a process ends that loads the file, where zeros stand where the loader needs
        something else: symbols, the relocations that it applies unseen, or the code that it runs at
        once, or last. "": by words that depend on what is gone. entry: a function that the caller
        calls.
        """
        try:
            severed = self._severed()
            return severed or (SHIFTED if self._shifted else self._ending(entry))
        except (OSError, StructError, OverflowError):
            return ""

    def _ending(self, entry: str) -> str | None:
        if not {DT_STRTAB, DT_SYMTAB} <= self._tables.keys():
            return CRASH
        size = min(self._tables.get(DT_STRSZ, 0), TABLE_LIMIT)
        strings = (self.memory(self._tables[DT_STRTAB], size) or b"").ljust(size, b"\0")
        refused = self._versions(strings)
        if refused:
            return refused
        count = min(self._tables.get(DT_RELACOUNT, 0) * RELA, TABLE_LIMIT)
        relative = self.memory(self._tables.get(DT_RELA, 0), count) or b""
        if bytes(2 * RELA) in relative:
            return "Inconsistency detected by ld.so"
        asked = self._asked()
        if asked.count((0, 0, 0)) > 1:
            return ""
        symbols = self.section(".dynsym", TABLE_LIMIT) or b""
        every = (each for each in iter_unpack("<IBxH16x", symbols) if each[0] and each[2])
        nameless = [strings[name : name + 1] == b"\0" for name, _, _ in every]
        if nameless and all(nameless):
            return "undefined symbol:"  # who needs any of them finds none
        binds = {info >> 4 for name, info, _ in asked if name and strings[name : name + 1] == b"\0"}
        if binds:
            return "undefined symbol:" if GLOBAL in binds else ""
        begins = [self._tables[tag] for tag in (DT_INIT, DT_FINI) if tag in self._tables]
        for table, length in DT_ARRAYS:
            array, at = self._tables.get(table, 0), 0
            for number in range(min(self._tables.get(length, 0) // 8, CONSTRUCTORS)):
                place = (array + 8 * number).to_bytes(8, "little")
                at = relative.find(place, at)  # they are sorted
                if at < 0 or at % RELA:
                    break
                begins += unpack_from("<Q", relative, at + 16)
        called = self.symbol(entry, CODE)
        codes = [called, *(self.memory(address, CODE) for address in begins)]
        filling = self._filling(relative) if called is not None else ()
        return CRASH if bytes(CODE) in codes or any(HOLE in each for each in filling) else None

    def _asked(self) -> list[tuple[int, int, int]]:
        """The name, the binding and the section of each symbol that a relocation asks for."""
        numbers: set[int] = set()
        for table, size in ((DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)):
            length = min(self._tables.get(size, 0), TABLE_LIMIT)
            data = self.memory(self._tables.get(table, 0), length) or b""
            found = iter_unpack("<12xI8x", data[: len(data) // RELA * RELA])
            numbers.update(number for (number,) in found if number)
        length = min((max(numbers, default=0) + 1) * RELA, TABLE_LIMIT)
        symbols = self.memory(self._tables[DT_SYMTAB], length) or b""
        ends = (number * RELA for number in numbers if (number + 1) * RELA <= len(symbols))
        return [unpack_from("<IBxH", symbols, at) for at in ends]

    def _versions(self, strings: bytes) -> str:
        """What the loader says of the versions that the file needs, which it looks for before
        symbols: a table of zeros, or names of nothing.
        """
        at = self._tables.get(DT_VERNEED, 0)
        for _ in range(min(self._tables.get(DT_VERNEEDNUM, 0), MAX_HEADERS)):
            version, count, file, first, after = unpack_from("<HHIII", self.memory(at, 16) or b"")
            if version != 1:
                return f"unsupported version {version} of Verneed record"
            one = at + first
            # What has no name is the program, which has no versions.
            for _ in range(count if strings[file : file + 1] != b"\0" else 0):
                name, skip = unpack_from("<8xII", self.memory(one, 16) or b"")
                if strings[name : name + 1] == b"\0":
                    return "version `' not found"
                one += skip
            at += after
        return ""

    def _filling(self, relative: bytes) -> Iterator[bytes]:
        """The code of the functions that fill modules, by the slots that Cython gives Python, and
        of the long ones that they call. An import that works goes through them from end to end:
        those for errors are short.
        """
        begins = self._functions()
        ends = dict(pairwise(begins))
        places = {at for at, _, _ in iter_unpack("<QQQ", relative)}
        for at, _, begin in iter_unpack("<QQQ", relative):
            slots = self.memory(at - 24, 24) if at - 16 in places else None
            if slots is None or slots[:8] + slots[16:] not in SLOTS:
                continue
            code = self.memory(begin, ends.get(begin, begin) - begin) or b""
            yield code
            for call in CALL.finditer(code):
                called = begin + call.end() + 4 + int.from_bytes(call[1], "little", signed=True)
                size = ends.get(called, called) - called
                if size >= LONG:
                    yield self.memory(called, size) or b""

    def _functions(self) -> list[int]:
        """Where functions begin, by the table for unwinding; [] where there is none."""
        at, size = self._frames
        table = self.memory(at, min(size, TABLE_LIMIT)) or b""
        if table[:4] != FRAMES:
            return []
        pairs = iter_unpack("<ii", table[12 : 12 + (len(table) - 12) // 8 * 8])
        return [at + begin for begin, _ in pairs]

    @property
    def machine(self) -> int:
        """EM_X86_64 is 62, EM_AARCH64 183."""
        return int(unpack_from("<H", self._head, 18)[0]) if self.sound else 0

    def _at(self, offset: int, size: int) -> bytes:
        if offset < 0 or offset >= 1 << 63:
            return b""
        try:
            return os.pread(self.descriptor, size, offset)
        except OSError:
            return b""

    @_if_told
    def section(self, name: str, limit: int) -> bytes | None:
        """At most `limit` bytes of the first section of this name."""
        wanted = name.encode() + b"\0"
        if not self.sound:
            return None
        (table,) = unpack_from("<Q", self._head, 40)
        entry, count, names = unpack_from("<HHH", self._head, 58)
        if entry < 64 or not 0 < count <= MAX_SECTIONS or names >= count:
            return None
        headers = self._at(table, entry * count)
        strings, size = unpack_from("<QQ", headers, names * entry + 24)
        text = self._at(strings, min(size, 1 << 16))
        for index in range(count):
            (where,) = unpack_from("<I", headers, index * entry)
            if text[where : where + len(wanted)] == wanted:
                offset, size = unpack_from("<QQ", headers, index * entry + 24)
                return self._at(offset, min(size, limit))
        return None

    @_if_told
    def local_symbol(self, name: str, limit: int) -> tuple[bytes, int] | None:
        """The bytes and the address of a symbol that .symtab has, exported or not."""
        strings = self.section(".strtab", TABLE_LIMIT)
        symbols = self.section(".symtab", TABLE_LIMIT)
        where = strings.find(b"\0" + name.encode() + b"\0") + 1 if strings else 0
        if not symbols or not where:
            return None
        wanted = where.to_bytes(4, "little")
        at = symbols.find(wanted)
        while at >= 0 and at % 24:
            at = symbols.find(wanted, at + 1)
        if at < 0:
            return None
        address, size = unpack_from("<QQ", symbols, at + 8)
        data = self.memory(address, min(size, limit))
        return None if data is None else (data, address)

    @_if_told
    def memory(self, address: int, size: int) -> bytes | None:
        """What the file puts at an address; None where it puts nothing there."""
        offset = self._file(address) if self._dynamic() else None
        return None if offset is None else self._at(offset, size)

    @_if_told
    def symbol(self, name: str, limit: int) -> bytes | None:
        """The bytes of an exported object or function, as many as it has, at most `limit`."""
        if not self.sound or not self._dynamic():
            return None
        table = self._file(self._tables[DT_GNU_HASH])
        symbols = self._file(self._tables[DT_SYMTAB])
        strings = self._file(self._tables[DT_STRTAB])
        if table is None or symbols is None or strings is None:
            return None
        buckets, first, bloom, _ = unpack_from("<4I", self._at(table, 16))
        stem, wanted = name.encode(), 5381
        for byte in stem:
            wanted = (wanted * 33 + byte) & 0xFFFFFFFF
        bucket_at = table + 16 + 8 * bloom
        (index,) = unpack_from("<I", self._at(bucket_at + 4 * (wanted % buckets), 4))
        if index < first:
            return None
        chain = bucket_at + 4 * buckets
        for step in range(index, index + MAX_CHAIN):
            (value,) = unpack_from("<I", self._at(chain + 4 * (step - first), 4))
            if value | 1 == wanted | 1:
                where, _, _, section, address, size = unpack_from(
                    "<IBBHQQ", self._at(symbols + 24 * step, 24)
                )
                same = self._at(strings + where, len(stem) + 1) == stem + b"\0"
                if same and section:
                    offset = self._file(address)
                    return None if offset is None else self._at(offset, min(size, limit))
            if value & 1:
                return None
        return None

    def _dynamic(self) -> bool:
        """Reads the program headers once; True where symbols can be looked up."""
        if self._loads is None:
            self._loads = []
            (table,) = unpack_from("<Q", self._head, 32)
            entry, count = unpack_from("<HH", self._head, 54)
            if entry < 56 or count > MAX_HEADERS:
                return False
            headers = self._at(table, entry * count)
            dynamic = b""
            for index in range(count):
                kind, _, offset, address, _, size, memory = unpack_from(
                    "<IIQQQQQ", headers, index * entry
                )
                if kind == PT_LOAD:
                    self._loads.append((address, offset, size))
                    self._shifted |= (address - offset) % PAGE != 0
                    if memory > size > 0:  # the rest of its last page is filled with zeros
                        self._first_use = max(self._first_use, offset + size)
                elif kind == PT_GNU_EH_FRAME:
                    self._frames = address, size
                elif kind == PT_DYNAMIC:
                    dynamic = self._at(offset, min(size, 1 << 16))
                    self._dynamic_end = offset + size
                    self._first_use = max(self._first_use, offset)
            for at in range(0, len(dynamic) - 15, 16):
                tag, value = unpack_from("<QQ", dynamic, at)
                if tag == 0:
                    break
                self._tables.setdefault(tag, value)
        return all(tag in self._tables for tag in (DT_STRTAB, DT_SYMTAB, DT_GNU_HASH))

    def _file(self, address: int) -> int | None:
        for start, offset, size in self._loads or ():
            if start <= address < start + size:
                return int(address - start + offset)
        return None
