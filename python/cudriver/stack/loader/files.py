"""The files of one root as its loader opens them: links, folders, what is refused and how."""

from __future__ import annotations

import errno
import os
from functools import cached_property

from cudriver._elf import ElfError, ElfFile, ForeignElfError
from cudriver.stack.loader import glibc
from cudriver.stack.roots.rootfs import Root

DF_1_PIE = 0x8000000
ET_EXEC = 2

_BEFORE_MACHINE = "ELF file version does not match current one"


class LoaderFiles:
    """One root, one machine: opens files, each once, and lists folders, each once."""

    def __init__(self, root: Root | str, cwd: str) -> None:
        self.root: Root = root if isinstance(root, Root) else Root(root)
        self.cwd = cwd
        self.machine: int = machine_of(self.root)  # e_machine of the programs in question
        self._program: tuple[str | None, int] | None = None
        self._folders: dict[str, frozenset[str] | None] = {}
        self._elves: dict[str, ElfFile | ElfError] = {}
        self._files: dict[tuple[int, ...], ElfFile] = {}  # the same by `_identity`

    # ---- the machine ----

    def use_program(self, interpreter: str | None, machine: int) -> None:
        """Take the settings of the loader that a program names."""
        if self._program == (interpreter, machine):
            return
        self._program = interpreter, machine
        self.machine = machine
        self.settings = glibc.read_glibc(self.root, interpreter, machine)

    @cached_property
    def settings(self) -> glibc.Glibc:
        """The built-in settings of this root's loader."""
        return glibc.read_glibc(self.root, None, self.machine)

    # ---- files ----

    def absolute(self, path: str) -> str:
        """`path` seen from the working directory; not normalised."""
        return path if path.startswith("/") else f"{self.cwd.rstrip('/')}/{path}"

    def real_path(self, path: str) -> str:
        """`path` with every link followed, as a path inside the root."""
        try:
            return self.root.resolve(path)
        except OSError:
            return path

    def open(self, path: str) -> ElfFile:
        """The file at `path` (inside the root), read once however that is written: "$ORIGIN/../../
        cublas/lib" stands for one folder in the RPATHs of many, and uv and conda make hard links of
        what several environments have. Raises ElfError.
        """
        path = self.absolute(path)
        known = self._elves.get(path)
        if known is None:
            identity = self._identity(path)
            try:
                where = path
                if not self.root.host:  # no link is followed below another root; "" is not there
                    where = self.real_path(path) if identity else ""
                known = self._files.get(identity) or ElfFile(where, path, self.root.below)
                if identity:
                    self._files[identity] = known
            except ElfError as error:
                known = error
            self._elves[path] = known
        if isinstance(known, ElfError):
            raise known
        return known

    def _identity(self, path: str) -> tuple[int, ...]:
        """A file and its content; () where nothing is there. A file that replaces a removed one may
        get its inode.
        """
        try:
            about = self.root.stat(path)
        except (OSError, ValueError):
            return ()
        return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns

    def folder(self, name: str) -> frozenset[str] | None:
        """The names in a folder (its own ends in a slash; "" is the working directory). None: each
        file is to be asked for; ld.so asks of an absolute name alone whether it is a folder.
        """
        if name not in self._folders:
            try:
                self._folders[name] = self.root.listing(self.absolute(name or "."))
            except PermissionError:
                self._folders[name] = None
            except (OSError, ValueError):
                self._folders[name] = frozenset() if name[:1] == "/" else None
        return self._folders[name]

    def would_pass(self, path: str) -> bool:
        """Whether the loader would map the file, by its header alone."""
        return machine_at(self.root, self.absolute(path)) == self.machine

    def outcome(self, path: str, name: str | None = None) -> tuple[str, str | None]:
        """What the loader makes of an existing file: "found", or why not and its fatal words.

        `name` is what was asked for, by which the loader calls a file once it has opened it.
        """
        called = name or path
        try:
            elf = self.open(path)
        except ElfError as error:
            if error.errno == errno.EFBIG:  # our limit, not the loader's
                raise
            if error.errno is not None:
                return "unreadable", None
            machine = error.machine
            if isinstance(error, ForeignElfError):
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
            return "rejected", f"{called}: cannot dynamically load executable"
        if elf.flags_1 & DF_1_PIE:
            return "rejected", f"{called}: cannot dynamically load position-independent executable"
        if not elf.dynamic:
            return "rejected", f"{called}: object file has no dynamic section"
        return "found", None

    def damage(self, path: str) -> ElfError | None:
        known = self._elves.get(self.absolute(path))
        return known if isinstance(known, ElfError) else None

    def open_errno(self, path: str) -> int:
        """Why a file cannot be opened."""
        try:
            self.root.stat(self.absolute(path))
        except OSError as error:
            return error.errno or errno.ENOENT
        known = self.damage(path)
        return known.errno if known is not None and known.errno else errno.ENOENT


def machine_at(root: Root, path: str) -> int | None:
    """e_machine of a 64-bit little-endian ELF file, 0 for any other; None for what is none."""
    head = root.raw(path, 20)
    if head[:4] != b"\x7fELF" or len(head) < 20:
        return None
    return int.from_bytes(head[18:], "little") if head[4:6] == b"\x02\x01" else 0


def machine_of(root: Root) -> int:
    """e_machine of a root's programs: of its shell, else of the only loader that it has."""
    if root.host:
        return this_machine()
    machines = (machine_at(root, path) for path in ("/bin/sh", "/usr/bin/env", "/sbin/ldconfig"))
    machine = next(filter(None, machines), None)
    if machine:
        return machine
    there = [m for m, path in glibc.INTERPRETERS.items() if root.is_file(path)]
    return there[0] if len(there) == 1 else this_machine()


def this_machine() -> int:
    """e_machine of this process."""
    return glibc.AARCH64 if os.uname().machine in ("aarch64", "arm64") else glibc.X86_64
