"""A bounded reader of ELF files: what a dynamic loader would read of them, and no more."""

from collections.abc import Sequence
from typing import Final, Literal, final

from _typeshed import FileDescriptorLike, ReadableBuffer, structseq

class ElfError(Exception):
    """A file that cannot be read as ELF: missing, damaged, hostile.

    `loader_text` is what ld.so says where it refuses the file for the same reason ("file too
    short", "invalid ELF header"); None where ld.so would not notice.
    """

    filename: str
    reason: str
    loader_text: str | None
    errno: int | None  # of a failed system call; None for damage
    machine: int | None  # e_machine; None: no ELF header

class ForeignElfError(ElfError):
    """A sound ELF header of a class or byte order that this reader leaves alone."""

    elf_class: int  # 32 or 64
    byte_order: Literal["little", "big"]
    machine: int

@final
class VersionNeed(structseq[str | bool], tuple[str, str, bool]):
    """One entry of DT_VERNEED."""

    __match_args__: Final = ("library", "version", "weak")
    @property
    def library(self) -> str:
        """The DT_NEEDED name that should have it."""
    @property
    def version(self) -> str:
        """The version's name."""
    @property
    def weak(self) -> bool:
        """Its absence is not an error."""

@final
class Reference(structseq[str | None | bool], tuple[str, str | None, str | None, bool, bool]):
    """An undefined symbol that a relocation binds."""

    __match_args__: Final = ("name", "version", "library", "weak", "lazy")
    @property
    def name(self) -> str:
        """The symbol."""
    @property
    def version(self) -> str | None:
        """The version asked for."""
    @property
    def library(self) -> str | None:
        """That of the DT_VERNEED entry."""
    @property
    def weak(self) -> bool:
        """It may stay undefined."""
    @property
    def lazy(self) -> bool:
        """Every relocation of it is in DT_JMPREL."""

@final
class Export(structseq[str | None | bool], tuple[str, str | None, bool, bool]):
    """A definition that the hash table offers."""

    __match_args__: Final = ("name", "version", "default", "weak")
    @property
    def name(self) -> str:
        """The symbol."""
    @property
    def version(self) -> str | None:
        """Its version; None: the base version, or a file without versions."""
    @property
    def default(self) -> bool:
        """NAME@@VERSION; False: NAME@VERSION, or no version."""
    @property
    def weak(self) -> bool:
        """Weak binding."""
    @property
    def address(self) -> int:
        """Where it lies once mapped, from where the file begins. (Not part of the tuple.)"""
    @property
    def size(self) -> int:
        """Bytes. (Not part of the tuple.)"""

@final
class ElfFile:
    """The dynamic section of a 64-bit little-endian file. Raises ElfError.

    shown: the name to put in errors (a path inside another root). root: what has the descriptor of
    the folder that stands for "/"; `path` must then be one without links.
    """

    def __new__(
        cls, path: str, /, shown: str | None = None, root: FileDescriptorLike | None = None
    ) -> ElfFile: ...
    path: str  # as given
    shown: str  # what errors call it
    device: int
    inode: int
    size: int  # bytes
    machine: int  # EM_X86_64 is 62, EM_AARCH64 183
    type: int  # ET_EXEC 2, ET_DYN 3
    soname: str | None
    needed: tuple[str, ...]
    rpath: str | None  # DT_RPATH, also where DT_RUNPATH makes the loader ignore it
    runpath: str | None
    flags: int  # DT_FLAGS
    flags_1: int  # DT_FLAGS_1
    bind_now: bool  # by DT_BIND_NOW, DF_BIND_NOW or DF_1_NOW
    dynamic: bool  # has a dynamic section
    exec_stack: bool  # asks for an executable stack: PT_GNU_STACK, or on x86-64 none of it
    interpreter: str | None  # PT_INTERP
    build_id: str | None  # hexadecimal
    versions: tuple[str, ...]  # DT_VERDEF without its base entry
    base_version: str | None  # the name in that base entry
    has_versions: bool  # has a DT_VERDEF at all
    has_symbol_versions: bool  # has a DT_VERSYM
    version_needs: tuple[VersionNeed, ...]  # DT_VERNEED in file order
    def find(self, name: str, /) -> list[Export]:
        """Every definition of one name, through the hash table."""
    def exports(self) -> list[Export]:
        """Every definition, in hash order. Slow on a large library; for tests and tools."""
    def references(self) -> list[Reference]:
        """Undefined symbols in the order in which the loader meets them, each once."""
    def memory(self, address: int, size: int, /) -> bytes | None:
        """At most `size` bytes that the file puts at an address; None where it puts nothing."""
    def section(self, name: str, limit: int, /) -> bytes | None:
        """At most `limit` bytes of the first section of a name; None where there is none."""
    def local(self, name: str, /) -> tuple[int, int] | None:
        """Address and size of a symbol of .symtab, be it exported or not; None: there is none."""
    def whole(self) -> bool:
        """Whether all of the file is there, as far as the table of its sections."""

def missing(
    jobs: Sequence[tuple[ElfFile, Sequence[ElfFile]]], /
) -> list[list[Reference] | ElfError]:
    """For each (file, scope): the references of `file`, weak ones aside, that no file of `scope`
    defines, by the loader's rules for versions, in the loader's order.

    A file that turns out damaged gives its ElfError in the place of its answer; a damaged file in
    the scope does so for every job that had to look into it.
    """

def absent(
    wheels: Sequence[tuple[bytes, str | None] | tuple[bytes, str | None, int]], /
) -> list[list[tuple[int, str]]]:
    """For each (RECORD, folder, time) the lines, by number and text, of files with a hash that
    RECORD lists and that `folder` lacks or has otherwise: of another size, or changed after that
    time (in ns; default: never). Nothing is opened. Left out is what no import opens: tests,
    documents, headers, static libraries, type stubs. folder: None: all that RECORD lists.
    """

def cut_short(data: ReadableBuffer, /) -> str | None:
    """What Python says of byte code (without its header) that ends too early; None where it does
    not, as far as Python 3.11 to 3.15 writes it. Nothing is made of it.
    """
