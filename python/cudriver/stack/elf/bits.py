"""What a loader never asks of an ELF file: a section's bytes, those of a symbol, and whether it is
all there.

For reading a library's own version and a framework's list of architectures, and for telling damage.
64-bit little-endian only; every read is bounded, and a file that lies gives None.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from struct import error as StructError
from struct import unpack_from

from cudriver.stack.roots.rootfs import Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")

PT_LOAD, PT_DYNAMIC = 1, 2
DT_STRTAB, DT_SYMTAB, DT_GNU_HASH = 5, 6, 0x6FFFFEF5
SHT_STRTAB = b"\x03\0\0\0"
MAX_CHAIN = 4096
MAX_SECTIONS = 1024
MAX_HEADERS = 256
TABLE_LIMIT = 64 << 20  # bytes of a table


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
        if table == 0:  # whoever stripped it took the sections' headers, too
            self._mapped()
            return all(offset + length <= size for _, offset, length in self._loads or ())
        if table > size - entry * count:
            return False
        return names == 0 or self._at(table + entry * names + 4, 4) == SHT_STRTAB

    @_if_told
    def _mapped(self) -> bool:
        return self._dynamic()

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
                kind, _, offset, address, _, size = unpack_from("<IIQQQQ", headers, index * entry)
                if kind == PT_LOAD:
                    self._loads.append((address, offset, size))
                elif kind == PT_DYNAMIC:
                    dynamic = self._at(offset, min(size, 1 << 16))
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
