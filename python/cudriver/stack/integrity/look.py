"""What became of a file that is not as its package brought it: each is looked at once.

A library is parsed, a source is compiled and never run, of byte code the header is read. All of it
is linear in the file's size, and a check spends so much on it and no more: what is left is not
known.
"""

from __future__ import annotations

import json
import os
import sys
import warnings

from cudriver import _elf
from cudriver.stack.elf.parts import is_whole
from cudriver.stack.environment import records
from cudriver.stack.environment.records import Entry
from cudriver.stack.facts import CHANGED, DAMAGED, EDITED, MISSING, Environment, FileFault
from cudriver.stack.integrity.byte_code import HEADER, is_for
from cudriver.stack.loader.search import CANNOT_OPEN, Loader
from cudriver.stack.roots.rootfs import Root

SOURCES = 4 << 20  # bytes of sources that one check compiles: half a second
HASHED = 256 << 20  # bytes that it hashes without --verify: half a second
SOURCE = 1 << 20  # bytes of one source; a larger one is not compiled
HEAD = PAGE = 4096
PARSE_ONLY = 0x400  # ast.PyCF_ONLY_AST; to import ast takes 5 ms
BUS_ERROR = "Bus error"  # as a shell says it


class Looker:
    """Looks at files of one environment as long as its budget lasts."""

    def __init__(self, env: Environment, loader: Loader) -> None:
        self.root: Root = loader.root
        self.env = env
        self.loader = loader
        self.spent = False  # something was not looked at
        self._sources, self._hashed = SOURCES, HASHED

    def at(self, file: Entry) -> FileFault | None:
        """None: it is as it was, or may be."""
        if file.found is None:
            return file.fault(MISSING)
        if file.found == 0 and file.size and not file.path.endswith("/METADATA"):
            library = records.is_library(os.path.basename(file.path))
            return file.fault(DAMAGED, "is empty", "file too short" if library else "")
        if file.same_size:
            self._hashed -= file.found
            # Without time to hash it, it counts as unchanged: all files of a copy may be younger.
            if self._hashed < 0 or not records.differs(self.root, file.path, file.digest):
                return None
        return self.into(file)

    def into(self, file: Entry) -> FileFault:
        """A file that is there and has other content."""
        name = os.path.basename(file.path)
        if records.is_library(name):
            error = self._unusable(file)
            if error is not None or file.same_size:
                return error or file.fault(CHANGED)
            grown = (file.found or 0) > (file.size or 0) + PAGE  # strip makes none so
            return file.fault(EDITED, "is larger" if grown else "")
        if name.endswith(".pyc"):
            return self._byte_code(file)
        try:
            raw = self.root.read(file.path, SOURCE + 1)
        except (OSError, ValueError):
            return file.fault(CHANGED)
        if name.endswith(".py"):
            return self._source(file, raw)
        if name == "METADATA" and b"\nversion:" not in raw.partition(b"\n\n")[0].lower():
            return file.fault(CHANGED)  # who asks for its version fails
        if name.endswith(".json") and len(raw) <= SOURCE:
            try:
                json.loads(raw)
            except (ValueError, RecursionError) as error:
                return file.fault(DAMAGED, "is not JSON", str(error))
        return file.fault(CHANGED if b"\0" in raw[:HEAD] else EDITED)

    def _unusable(self, file: Entry) -> FileFault | None:
        """Why no process of this environment can load a library; None: nothing speaks against it.
        Of another machine or class it is damaged, too: its package brought one for this.
        """
        kind, words = self.loader.outcome(file.path)
        if kind in ("other machine", "other class"):
            skips = kind == "other machine" and self.env.libc == "gnu"  # glibc goes on to search
            says = f"{CANNOT_OPEN}: No such file or directory" if skips else ""
            return file.fault(DAMAGED, f"is for another machine than {self.env.platform}", says)
        if kind == "rejected":
            says = (words or "").removeprefix(f"{file.path}: ")
            cut = says.startswith("truncated: ")  # it is mapped, and read where nothing is
            why, says = ("ends too early", BUS_ERROR) if cut else (f"is no library: {says}", says)
            return file.fault(DAMAGED, why, says)
        cut = kind == "found" and not is_whole(self.root, file.path)
        return file.fault(DAMAGED, "ends too early") if cut else None

    def _source(self, file: Entry, raw: bytes) -> FileFault:
        """Whether a source compiles, by the Python that runs this check. What a newer one may take
        is not known here.
        """
        self._sources -= len(raw)
        if len(raw) > SOURCE or self._sources < 0:
            self.spent = True
            return file.fault(CHANGED)
        if b"\0" in raw:
            says = "source code string cannot contain null bytes"
            return file.fault(DAMAGED, "has null bytes", says)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # Parsed, which is linear; the rest of a compilation is not, of hostile constants.
                compile(raw, "source", "exec", PARSE_ONLY, dont_inherit=True)
        except SyntaxError as error:
            if (3, self.env.minor) > sys.version_info[:2]:
                return file.fault(CHANGED)
            why = f"does not compile: {error.msg}, line {error.lineno}"
            return file.fault(DAMAGED, why, error.msg)
        except (ValueError, RecursionError, MemoryError, OverflowError):
            return file.fault(CHANGED)
        return file.fault(EDITED)

    def _byte_code(self, file: Entry) -> FileFault:
        """Byte code that stands for a source which is not there. Other byte code is made anew."""
        if "/__pycache__/" in file.path:
            return file.fault(EDITED)
        data = self.root.raw(file.path, SOURCE)
        if len(data) < HEADER or data[2:4] != b"\r\n":
            return file.fault(DAMAGED, "is no byte code", "bad magic number")
        says = _elf.cut_short(data[HEADER:]) if is_for(self.env, data) else None
        if says is None or len(data) == SOURCE:
            return file.fault(EDITED)
        return file.fault(DAMAGED, "ends too early", says)
