"""`cudriver demo --stack`: a small environment with a fault, checked, and checked again mended.

Nothing is downloaded, and nothing outside a temporary folder is touched. Its libraries are empty,
but whole: the real loader opens them, so that `import torch` fails and succeeds there by itself.
"""

from __future__ import annotations

import os
import shlex
import struct
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from cudriver.cli import check, terminal
from cudriver.stack.say import say

TORCH, RELEASE = "2.8.0+cu128", "0.7.1"
WHEEL, LIBRARY = "nvidia-cusparselt-cu12", "libcusparseLt.so.0"  # no distribution has it
DRIVER = ["--assume-driver", "580.159.04", "--assume-gpu", "9.0"]
SOURCE = """\
from ctypes import CDLL
from os.path import dirname, join

from .version import __version__, cuda

CDLL(join(dirname(__file__), "lib", "libtorch_cuda.so"))
"""
FOREIGN = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "PYTHONPATH")  # they lead elsewhere
VERSION = f"""\
from typing import Optional

__version__ = '{TORCH}'
debug = False
cuda: Optional[str] = '12.8'
"""
STRTAB, SYMTAB, STRSZ, SYMENT, NEEDED, SONAME, RUNPATH = 5, 6, 10, 11, 1, 14, 29  # of elf.h
HEAD = 64 + 3 * 56  # the ELF header, and three headers of segments


def library(name: str, needs: tuple[str, ...] = (), path: str = "") -> bytes:
    """A shared library without symbols, for this machine, which needs others."""
    machine = struct.unpack_from("<18xH", Path(sys.executable).read_bytes()[:20])[0]
    names = b"\0"
    tags = []
    for tag, text in [*[(NEEDED, need) for need in needs], (SONAME, name), (RUNPATH, path)]:
        tags.append((tag, len(names)))
        names += text.encode() + b"\0"
    names += bytes(-len(names) % 8)
    symbols = HEAD + len(names)
    dynamic = symbols + 24
    tags += [(STRTAB, HEAD), (STRSZ, len(names)), (SYMTAB, symbols), (SYMENT, 24), (0, 0)]
    end = dynamic + 16 * len(tags)
    ident = b"\x7fELF\2\1\1".ljust(16, b"\0")
    head = ident + struct.pack("<2HI3QI6H", 3, machine, 1, 0, 64, 0, 0, 64, 56, 3, 64, 0, 0)
    for kind, at, size, align in ((1, 0, end, 4096), (2, dynamic, end - dynamic, 8)):
        head += struct.pack("<2I6Q", kind, 6, at, at, at, size, size, align)
    head += struct.pack("<2I6Q", 0x6474E551, 6, *[0] * 5, 16)  # PT_GNU_STACK: not executable
    return head + names + bytes(24) + b"".join(struct.pack("<2Q", *tag) for tag in tags)


def install(site: Path, name: str, version: str, needs: list[str], files: dict[str, bytes]) -> None:
    """What pip would have put there of a wheel."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    requires = "".join(f"Requires-Dist: {need}\n" for need in needs)
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}".encode()
    )
    files[f"{info}/INSTALLER"] = b"pip\n"
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in files).encode()
    for file, content in files.items():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_bytes(content)


def broken(prefix: Path) -> Path:
    """Makes a virtual environment with PyTorch, without its cuSPARSELt. Its site-packages."""
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(prefix)}))
    (prefix / "bin").mkdir(parents=True)
    python = os.path.realpath(sys.executable)
    (prefix / "bin/python").symlink_to(python)
    release = ".".join(map(str, sys.version_info[:3]))
    home = os.path.dirname(python)
    (prefix / "pyvenv.cfg").write_text(
        f"home = {home}\ninclude-system-site-packages = false\nversion = {release}\n"
    )
    path = "$ORIGIN/../../nvidia/cusparselt/lib"
    files = {
        "torch/__init__.py": SOURCE.encode(),
        "torch/version.py": VERSION.encode(),
        "torch/lib/libtorch_cuda.so": library("libtorch_cuda.so", (LIBRARY,), path),
    }
    install(site, "torch", TORCH, [f"{WHEEL} (=={RELEASE})"], files)
    return site


def run(language: str | None) -> int:
    """Shows the check of it, the import, the mend, and both again."""
    asked = [*DRIVER, *(["--lang", language] if language else [])]
    kept = {name: os.environ.pop(name) for name in FOREIGN if name in os.environ}
    try:
        with tempfile.TemporaryDirectory(prefix="cudriver-") as folder:
            prefix = Path(folder) / "env"
            site = broken(prefix)
            lacks = say("A small environment, made for this: its PyTorch lacks cuSPARSELt.")
            terminal.write(lacks + "\n")
            before = shown(prefix, asked)
            terminal.write("\n" + say("Now cuSPARSELt is put there, as the fix would do.") + "\n")
            files = {f"nvidia/cusparselt/lib/{LIBRARY}": library(LIBRARY)}
            install(site, WHEEL, RELEASE, [], files)
            return 0 if (before, shown(prefix, asked)) == ((1, 1), (0, 0)) else 1
    finally:
        os.environ.update(kept)


def shown(prefix: Path, asked: list[str]) -> tuple[int, int]:
    """Checks the environment and imports PyTorch in it. The exit status of each."""
    words = [str(prefix), *asked]
    terminal.write(f"\n$ {shlex.join(['cudriver', 'check', *words])}\n")
    arguments = check.parser().parse_args(words)
    arguments.words = ["check", *words]
    status = check.run(arguments)
    words = [str(prefix / "bin/python"), "-I", "-c", "import torch"]
    terminal.write(f"\n$ {shlex.join(words)}\n")
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, check=False)
    last = done.stderr.strip().rpartition("\n")[2]
    terminal.write((last or say("(imported)")) + "\n")
    return status, done.returncode
