"""What a loader never asks of an ELF file, by `_elf`, which is the only reader of such files."""

from __future__ import annotations

from cudriver._elf import ElfError, ElfFile
from cudriver.stack.roots.rootfs import Root


def opened(root: Root, path: str) -> ElfFile | None:
    """The file, links followed inside the root; None where it cannot be read as ELF."""
    try:
        return ElfFile(path if root.host else root.resolve(path), path, root.below)
    except (ElfError, OSError, ValueError):
        return None


def section(root: Root, path: str, name: str, limit: int) -> bytes:
    """At most `limit` bytes of a file's section; b"" where there is none."""
    file = opened(root, path)
    try:
        return (file.section(name, limit) if file else None) or b""
    except ElfError:
        return b""


def symbol(file: ElfFile, name: str, limit: int) -> bytes | None:
    """The bytes of an exported object or function, as many as it has, at most `limit`."""
    try:
        found = next(iter(file.find(name)), None)
        return file.memory(found.address, min(found.size, limit)) if found else None
    except ElfError:
        return None


def local_symbol(file: ElfFile, name: str, limit: int) -> tuple[bytes, int] | None:
    """The bytes and the address of a symbol that .symtab has, exported or not."""
    try:
        found = file.local(name)
        data = file.memory(found[0], min(found[1], limit)) if found else None
    except ElfError:
        return None
    return (data, found[0]) if found and data is not None else None


def is_whole(root: Root, path: str) -> bool:
    """Whether a file is an ELF file that is all there."""
    file = opened(root, path)
    try:
        return file is not None and file.whole()
    except ElfError:
        return False
