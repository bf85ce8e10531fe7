"""Damaged files in great number: an answer or an ElfError, never a crash and never for long.

The long search for such files is tests/fuzz; these are the same few thousand in every run.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import SANITIZER
from cudriver import _elf
from elfkit import DT_STRTAB, Patch, compile_c
from native_build import TESTS

# Run in a process of its own, so that a crash is a failure with a number and not the end of pytest.
READER = r"""
import os, random, sys
from cudriver import _elf

folder, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
seeds = [open(os.path.join(folder, n), "rb").read() for n in sorted(os.listdir(folder))]
path = os.path.join(folder + ".work")
outcomes = {"read": 0, "refused": 0}
for number in range(first, first + count):
    chance = random.Random(number)
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        at = chance.randrange(len(data))
        kind = chance.randrange(5)
        if kind == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[at : at + 4] = chance.choice((b"\0" * 4, b"\xff" * 4, b"\xff\xff\xff\x7f"))
        elif kind == 2:
            data[at : at + 8] = chance.randrange(1 << 64).to_bytes(8, "little")
        elif kind == 3:
            other = chance.randrange(len(data))
            data[at : at + 16] = data[other : other + 16]
        elif chance.randrange(8) == 0:
            del data[at:]
            break
    with open(path, "wb") as file:
        file.write(data)
    print(number, flush=False)
    try:
        elf = _elf.ElfFile(path)
        elf.whole(), elf.section(".dynstr", 64), elf.local("one"), elf.memory(4096, 64)
        elf.references()
        elf.exports()
        elf.find("one")
        (answer,) = _elf.missing([(elf, [elf])])
        outcomes["refused" if isinstance(answer, _elf.ElfError) else "read"] += 1
    except _elf.ElfError as error:
        assert error.filename == path and error.reason, error
        outcomes["refused"] += 1
print(outcomes["read"], outcomes["refused"])
"""


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler (gcc)")
    folder = tmp_path_factory.mktemp("seeds") / "seeds"
    script = TESTS / "fuzz/make_seeds.py"
    subprocess.run([sys.executable, script, folder], check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("first", [0, 1000, 2000, 3000])
def test_thousands_of_damaged_files(seeds: Path, first: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READER, str(seeds), str(first), "1000"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"mutation {lines[-1] if lines else '?'}: {done.stderr}"
    read, refused = map(int, lines[-1].split())
    assert read + refused == 1000
    assert read > 100, "most mutations end before the symbols: the test shows little"
    assert refused > 100


def tables(path: Path) -> tuple[Patch, dict[int, int]]:
    """The file to edit, and the file offsets of its tables by tag."""
    patch = Patch(path.read_bytes())
    offsets = {}
    for _, tag, value in patch.entries:
        for address, offset, size in patch.segments:
            if (
                tag in (DT_STRTAB, 6, 0x6FFFFEF5, 0x6FFFFFF0, 7)
                and address <= value < address + size
            ):
                offsets[tag] = offset + value - address
    return patch, offsets


GNU_HASH, VERSYM, RELA, SYMTAB = 0x6FFFFEF5, 0x6FFFFFF0, 7, 6


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return compile_c(
        tmp_path / "libmade.so",
        "int puts(const char *); void *keep = (void *)puts; int f(void) { return 1; }",
        versions="V1 { f; keep; };",
    )


def read_all(path: Path) -> None:
    elf = _elf.ElfFile(str(path))
    elf.exports()
    elf.references()


def refusal(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(_elf.ElfError) as caught:
        read_all(path)
    assert caught.value.filename == str(path)
    return caught.value.reason


def test_each_lie_is_named(library: Path) -> None:
    patch, offsets = tables(library)
    sound = bytes(patch.data)

    def edited(where: int, form: str, *values: int) -> str:
        data = bytearray(sound)
        struct.pack_into(form, data, where, *values)
        return refusal(library, bytes(data))

    gnu = offsets[GNU_HASH]
    assert edited(gnu, "<I", 1 << 30) == "the GNU hash table is larger than its segment"
    assert edited(gnu + 8, "<I", 3) == "a bad filter in the GNU hash table"
    assert edited(gnu + 8, "<I", 0) == "a bad filter in the GNU hash table"
    assert edited(gnu + 12, "<I", 64) == "a bad filter in the GNU hash table"
    assert "chain of the GNU hash table" in edited(gnu + 4, "<I", 0xFFFFFFFF)
    named = next(
        i for i in range(1, 64) if struct.unpack_from("<I", sound, offsets[SYMTAB] + 24 * i)[0]
    )
    where = offsets[SYMTAB] + 24 * named  # those before it are sections', on some machines
    assert edited(where, "<I", 1 << 31) == "a name lies outside the string table"
    assert "version number 4660" in edited(offsets[VERSYM] + 2 * named, "<4H", *[0x1234] * 4)
    ((where, _),) = patch.find(RELA)
    assert edited(where + 8, "<Q", 1 << 40) == "the relocation table is in no segment"
    ((where, _),) = patch.find(8)
    assert edited(where + 8, "<Q", 1 << 40) == "the relocation table is larger than its segment"
    ((where, _),) = patch.find(10)
    assert edited(where + 8, "<Q", 1) == "a name lies outside the string table"
    info = [i for i in range(0, 24 * 64, 24)
            if struct.unpack_from("<Q", sound, offsets[RELA] + i + 8)[0] >> 32]  # fmt: skip
    where = offsets[RELA] + info[0] + 8
    assert edited(where, "<Q", 0xFFFFFFF << 32 | 6) == "a relocation names symbol 268435455"


@pytest.mark.skipif(bool(SANITIZER), reason="2**28 steps, sanitized, take half a minute: make test")
def test_hash_chains_that_no_linker_makes_do_not_take_for_ever(tmp_path: Path) -> None:
    """One bucket, a full filter, equal hashes: each lookup would walk the whole chain."""
    count = 20000
    # The assembler alone: a compiler takes long over so many functions.
    names = "".join(f".globl n{i:05}\\nn{i:05}:\\n" for i in range(count))
    provider = compile_c(tmp_path / "libslow.so", f'asm(".text\\n{names}nop");', "-nostdlib")
    patch, offsets = tables(provider)
    at = offsets[GNU_HASH]
    buckets, first, words, _ = struct.unpack_from("<4I", patch.data, at)
    struct.pack_into(f"<{words}Q", patch.data, at + 16, *[2**64 - 1] * words)
    chains = at + 16 + 8 * words + 4 * buckets
    struct.pack_into(f"<{buckets}I", patch.data, at + 16 + 8 * words, *[first] * buckets)
    for i in range(count - 1):
        patch.data[chains + 4 * i] &= 0xFE  # no end of chain before the last
    provider.write_bytes(patch.data)
    words = "".join(f".quad m{i:05}\\n" for i in range(count))
    user = compile_c(tmp_path / "libuser.so", f'asm(".data\\n{words}.text");', "-nostdlib")
    files = [_elf.ElfFile(str(user)), _elf.ElfFile(str(provider))]
    (answer,) = _elf.missing([(files[0], files)])
    assert isinstance(answer, _elf.ElfError), "the bound on the work is reached"
    assert answer.reason == "its hash chains take too long to follow"
    assert answer.filename == str(provider)
