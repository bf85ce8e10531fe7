"""What the ELF reader holds in memory, of small files that ask for a lot."""

from __future__ import annotations

import errno
import json
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from synth import Prefix

from cudriver import _elf
from cudriver.stack import inspect
from elfkit import compile_c

BLOOM_WORDS = 1 << 24  # of 8 bytes: each lookup reads one of 8,192 blocks of 16 KiB
MACHINE = _elf.ElfFile(sys.executable).machine


def library(path: Path, dynamic: list[tuple[int, int]], parts: dict[int, bytes], size: int) -> str:
    """A sparse library of `size` bytes with these dynamic entries, and these bytes at offsets."""
    table = b"".join(struct.pack("<qQ", *entry) for entry in (*dynamic, (0, 0)))
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", 3, MACHINE, 1, 0, 64, 0, 0, 64, 56, 3, 0, 0, 0)
    header += struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, size, size, 4096)
    header += struct.pack("<IIQQQQQQ", 2, 4, 4096, 4096, 4096, len(table), len(table), 8)
    header += struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)  # no executable stack
    with open(path, "wb") as file:
        file.truncate(size)
        for offset, data in {0: header, 4096: table, **parts}.items():
            file.seek(offset)
            file.write(data)
    return str(path)


def wide(path: Path) -> str:
    """A library with nothing but a filter of 128 MiB of zeros; a few KB on disk."""
    dynamic = [(14, 1), (5, 0x3000), (10, 256), (6, 0x5000), (11, 24), (0x6FFFFEF5, 0x10000)]
    names = b"\0" + path.name.encode() + b"\0"
    parts = {0x3000: names, 0x10000: struct.pack("<IIII", 1, 1, BLOOM_WORDS, 6)}
    return library(path, dynamic, parts, 0x10000 + 8 * BLOOM_WORDS + (1 << 20))


def versioned(path: Path) -> str:
    """A library that needs 8,000 times one version with a name of 4,000 bytes."""
    dynamic = [(5, 0x3000), (10, 8192), (6, 0x5000), (11, 24), (0x6FFFFFFE, 0x10000)]
    dynamic.append((0x6FFFFFFF, 1))
    last = 7_999
    needs = struct.pack("<HHIII", 1, last + 1, 1, 16, 0)
    for i in range(last + 1):
        needs += struct.pack("<IHHII", 1, 0, 2 + i, 1, 0 if i == last else 16)
    return library(path, dynamic, {0x3000: b"\0" + b"n" * 4000, 0x10000: needs}, 1 << 20)


def user(path: Path, *options: str) -> str:
    """A library that wants 30,000 symbols that nobody has."""
    pick = random.Random(1)  # names far apart, as their hashes then are
    names = [f"n{pick.randrange(1 << 60)}" for _ in range(30_000)]
    uses = ", ".join(f"&{name}" for name in names)
    source = f"extern char {', '.join(names)}; void *all[] = {{ {uses} }};"
    return str(compile_c(path, source, *options))


def test_what_the_tables_of_all_libraries_hold_is_bounded(tmp_path: Path) -> None:
    wide_ones = [wide(tmp_path / f"libwide{i}.so") for i in range(8)]
    program = rf"""
import json, re
from cudriver import _elf
files = [_elf.ElfFile(path) for path in {wide_ones!r}]
user = _elf.ElfFile({user(tmp_path / "libuser.so")!r})
(bad,) = _elf.missing([(user, files)])
(good,) = _elf.missing([(user, [user])])  # what is held by then leaves room for others
peak = int(re.search(r"VmHWM:\s*(\d+)", open("/proc/self/status").read())[1])
print(json.dumps([getattr(bad, "errno", None), str(bad)[-200:], len(good), peak]))
"""
    command = [sys.executable, "-c", program]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    number, text, found, peak = json.loads(out.stdout)
    assert number == errno.EFBIG, text
    assert "the tables of all libraries take more than 512 MiB" in text
    assert found >= 30_000
    assert peak < 800 << 10  # KiB


def test_what_the_names_of_all_libraries_hold_is_bounded(tmp_path: Path) -> None:
    paths = [versioned(tmp_path / f"libversions{i}.so") for i in range(6)]
    held: list[_elf.ElfFile] = []
    with pytest.raises(_elf.ElfError, match="more than 512 MiB") as caught:
        held.extend(map(_elf.ElfFile, paths))
    assert caught.value.errno == errno.EFBIG
    assert held
    held.clear()
    assert _elf.ElfFile(paths[-1]).version_needs  # all was given back


@pytest.mark.parametrize("what", [wide, versioned])
def test_a_check_of_libraries_that_hold_too_much_could_not_tell(
    tmp_path: Path, what: Callable[[Path], str]
) -> None:
    prefix = Prefix(tmp_path / "env").venv()
    prefix.torch(libraries=True)
    folder = prefix.site / "torch" / "lib"
    paths = [folder / f"libmade{i}.so" for i in range(5)]
    for path in paths:
        compile_c(path, "int made;")  # what the linker reads
    links = [f"-L{folder}", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN"]
    user(folder / "libtorch_python.so", *links, *(f"-l{path.stem[3:]}" for path in paths))
    for path in paths:
        path.unlink()
        what(path)
    report = inspect(str(prefix.path))
    assert report.verdict == "unknown"
    assert any("take more than 512 MiB" in text for text in report.facts.unsure)
    assert "damaged" not in {fault.kind for fault in report.facts.load_faults}
