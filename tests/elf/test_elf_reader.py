"""The ELF reader against pyelftools and readelf, on the machine's own libraries."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cudriver import _elf
from cudriver.stack.loader.search import Loader
from elfkit import DT_STRTAB, Patch, compile_c
from parallel import together

elftools = pytest.importorskip("elftools.elf.elffile")


def system_libraries(count: int) -> list[str]:
    """Shared libraries of this machine, evenly picked, links followed, each once; without those
    whose symbols alone take readelf half a minute.
    """
    folders = [f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64", "/lib64"]
    found = set()
    for folder in folders:
        if os.path.isdir(folder):
            for name in os.listdir(folder):
                path = os.path.realpath(os.path.join(folder, name))
                if ".so" in name and os.path.isfile(path) and os.path.getsize(path) < 32 << 20:
                    with open(path, "rb") as file:
                        if file.read(4) == b"\x7fELF":
                            found.add(path)
    ordered = sorted(found)
    assert len(ordered) > 20
    return ordered[:: max(1, len(ordered) // count)]


LIBRARIES = [*system_libraries(40), os.path.realpath(sys.executable)]


@pytest.mark.parametrize("path", LIBRARIES)
def test_dynamic_section_as_pyelftools_has_it(path: str) -> None:
    ours = _elf.ElfFile(path)
    with open(path, "rb") as stream:
        theirs = elftools.ELFFile(stream)
        dynamic = theirs.get_section_by_name(".dynamic")
        tags: dict[str, list[object]] = {}
        for tag in dynamic.iter_tags():
            value = {
                "DT_NEEDED": "needed",
                "DT_SONAME": "soname",
                "DT_RPATH": "rpath",
                "DT_RUNPATH": "runpath",
            }.get(tag.entry.d_tag)
            tags.setdefault(tag.entry.d_tag, []).append(
                getattr(tag, value) if value else tag.entry.d_val
            )
        assert list(ours.needed) == tags.get("DT_NEEDED", [])
        assert [ours.soname] == tags.get("DT_SONAME", [None])
        assert [ours.rpath] == tags.get("DT_RPATH", [None])
        assert [ours.runpath] == tags.get("DT_RUNPATH", [None])
        assert [ours.flags] == tags.get("DT_FLAGS", [0])
        assert [ours.flags_1] == tags.get("DT_FLAGS_1", [0])
        assert ours.machine == {"EM_X86_64": 62, "EM_AARCH64": 183}[theirs["e_machine"]]
        assert ours.type == {"ET_EXEC": 2, "ET_DYN": 3}[theirs["e_type"]]
        interpreters = [
            s.get_interp_name() for s in theirs.iter_segments() if s["p_type"] == "PT_INTERP"
        ]
        assert [ours.interpreter] == (interpreters or [None])
        notes = [
            note["n_desc"]
            for segment in theirs.iter_segments()
            if segment["p_type"] == "PT_NOTE"
            for note in segment.iter_notes()
            if note["n_type"] == "NT_GNU_BUILD_ID"
        ]
        assert [ours.build_id] == (notes[:1] or [None])

        defined, base = [], None
        section = theirs.get_section_by_name(".gnu.version_d")
        for version, names in section.iter_versions() if section else ():
            name = next(iter(names)).name
            if version["vd_flags"] & 1:
                base = name
            else:
                defined.append(name)
        assert list(ours.versions) == defined
        assert ours.base_version == base
        assert ours.has_versions == (section is not None)

        section = theirs.get_section_by_name(".gnu.version_r")
        needs = [
            (version.name, aux.name, bool(aux["vna_flags"] & 2))
            for version, auxiliaries in (section.iter_versions() if section else ())
            for aux in auxiliaries
        ]
        assert [tuple(need) for need in ours.version_needs] == needs
    status = os.stat(path)
    assert (ours.device, ours.inode, ours.size) == (status.st_dev, status.st_ino, status.st_size)


@pytest.mark.parametrize("path", LIBRARIES[::3])
def test_symbols_as_readelf_has_them(path: str) -> None:
    text = subprocess.run(
        ["readelf", "-W", "--dyn-syms", path], capture_output=True, text=True, check=True
    ).stdout
    exported, undefined = set(), set()
    for line in text.splitlines():
        match = re.match(
            r"\s*\d+: ([0-9a-f]+)\s+\S+ (\S+)\s+(GLOBAL|WEAK|UNIQUE)\s+(\S+)\s.*?(\S+)\s+"
            r"([^\s@]+)(?:(@@?)(\S+))?( \(\d+\))?$",
            line,
        )
        if not match:
            continue
        value, kind, binding, visibility, section, name, at, version, needed = match.groups()
        if visibility in ("HIDDEN", "INTERNAL"):
            continue
        if section == "UND":
            undefined.add((name, version, binding == "WEAK"))
        elif (int(value, 16) or section == "ABS" or kind == "TLS") and kind in (
            "NOTYPE", "OBJECT", "FUNC", "COMMON", "TLS", "IFUNC",
        ):  # fmt: skip
            # readelf writes a definition of the base version without one, and so do we.
            # A copy of another library's object has that one's version, here with its number.
            exported.add((name, version, at == "@@" or bool(needed), binding == "WEAK"))
    ours = _elf.ElfFile(path)
    # Symbols that stand for a version itself: readelf prints no version beside them.
    own = {*ours.versions, ours.base_version}
    exported = {export for export in exported if export[0] not in own}
    assert {tuple(export) for export in ours.exports() if export.name not in own} == exported
    # Relocations bind fewer symbols than the table lists: some are there for their version only.
    bound = {(r.name, r.version, r.weak) for r in ours.references()}
    assert bound <= undefined
    for name in {export[0] for export in exported if ord(export[0][-1]) % 5 == 0}:
        assert {tuple(e) for e in ours.find(name)} == {e for e in exported if e[0] == name}
    assert ours.find("no_such_symbol_anywhere") == []


def undefined_symbols(path: str) -> set[str]:
    """NAME or NAME@VERSION of what a file's table lists without a definition, as readelf has it."""
    text = subprocess.run(
        ["readelf", "-W", "--dyn-syms", path], capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(r"(?:GLOBAL|WEAK)\s+(?:DEFAULT|PROTECTED)\s.*?UND (\S+)", text)
    return {name.replace("@@", "@") for name in found}


def check_references(path: str) -> None:
    """Symbols of value 0 are not all undefined: the first thread-local one is at 0 too."""
    text = subprocess.run(
        ["readelf", "-W", "-r", path], capture_output=True, text=True, check=True
    ).stdout
    undefined = undefined_symbols(path)
    wanted: list[str] = []
    lazy_only: set[str] = set()
    in_plt = False
    for line in text.splitlines():
        if line.startswith("Relocation section"):
            in_plt = ".plt" in line
            continue
        match = re.match(r"[0-9a-f]+\s+[0-9a-f]+ R_\S+\s+0{16} (\S+)", line)
        if match and match[1] in undefined and match[1] not in wanted:
            wanted.append(match[1])
            if in_plt:
                lazy_only.add(match[1])
    ours = _elf.ElfFile(path).references()
    assert [f"{r.name}@{r.version}" if r.version else r.name for r in ours] == wanted
    assert {r.name for r in ours if r.lazy} == {w.partition("@")[0] for w in lazy_only}


def test_references_are_those_of_the_relocations() -> None:
    for path in LIBRARIES[::5]:
        check_references(path)


def test_a_thread_local_symbol_at_0_is_defined(tmp_path: Path) -> None:
    source = (
        "__thread int first = 1; extern __thread int other; int puts(const char *);"
        "int use(void) { return puts(0) + first + other; }"
    )
    path = compile_c(tmp_path / "libthread.so", source)
    named = {r.name for r in _elf.ElfFile(str(path)).references()}
    assert {"puts", "other"} <= named
    assert "first" not in named
    check_references(str(path))


@pytest.mark.parametrize("align", [4, 8])
def test_the_build_id_of_a_note_by_its_alignment(tmp_path: Path, align: int) -> None:
    """In a segment that is aligned to 8 the parts of a note are too, counted from its start."""
    path = compile_c(tmp_path / "libnote.so", "int made;", "-nostdlib", "-Wl,--build-id=none")
    data = bytearray(path.read_bytes())
    value = bytes(range(1, 21))

    def note(owner: bytes, kind: int, held: bytes) -> bytes:
        text = struct.pack("<3I", len(owner), len(held), kind) + owner
        text += bytes(-len(text) % align) + held
        return text + bytes(-len(text) % align)

    notes = note(b"Other\0", 7, b"12345") + note(b"GNU\0", 3, value)
    start = len(data) + -len(data) % 8
    data += bytes(start - len(data)) + notes
    # PT_GNU_STACK, which nobody misses here, becomes the PT_NOTE.
    at = data.find(struct.pack("<I", 0x6474E551))
    struct.pack_into(
        "<IIQQQQQQ", data, at, 4, 4, start, start, start, len(notes), len(notes), align
    )
    # Without a section table readelf, too, goes by the segments.
    struct.pack_into("<Q", data, 40, 0)
    struct.pack_into("<3H", data, 58, 0, 0, 0)
    path.write_bytes(data)
    told = subprocess.run(
        ["readelf", "-nW", str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert f"Build ID: {value.hex()}" in told
    assert _elf.ElfFile(str(path)).build_id == value.hex()


@pytest.mark.parametrize("weak", [False, True])
def test_a_version_that_is_needed_weakly(tmp_path: Path, weak: bool) -> None:
    """The loader does without it, so the check says nothing where it is missing."""
    source = "int puts(const char *); int f(void) { return puts(0); }"
    path = compile_c(tmp_path / "libweak.so", source)
    patch = Patch(path.read_bytes())
    ((_, address),) = patch.find(0x6FFFFFFE)  # DT_VERNEED
    offset = next(o + address - a for a, o, s in patch.segments if a <= address < a + s)
    at = offset + struct.unpack_from("<I", patch.data, offset + 8)[0]
    flags = struct.unpack_from("<H", patch.data, at + 4)[0]
    struct.pack_into("<H", patch.data, at + 4, flags | 2 if weak else flags & ~2)
    path.write_bytes(patch.data)
    told = subprocess.run(
        ["readelf", "-VW", str(path)], capture_output=True, text=True, check=True
    ).stdout
    first = re.search(r"Name: (\S+)\s+Flags: (\S+)", told)
    assert first is not None
    assert first[2] == ("WEAK" if weak else "none")
    need = _elf.ElfFile(str(path)).version_needs[0]
    assert (need.library, need.version, need.weak) == ("libc.so.6", first[1], weak)


def test_an_address_where_one_segment_ends_and_the_next_begins(tmp_path: Path) -> None:
    """It is in the next, whose bytes may lie anywhere in the file."""
    source = "int puts(const char *); int f(void) { return puts(0); }"
    path = compile_c(tmp_path / "libseam.so", source, "-Wl,-soname,libseam.so.1")
    patch = Patch(path.read_bytes())
    data = patch.data
    ((_, seam),) = patch.find(DT_STRTAB)
    address, offset, size = next(s for s in patch.segments if s[0] <= seam < s[0] + s[2])
    assert (address, offset) == (0, 0)
    moved = len(data) + (seam - len(data)) % 4096
    data += bytes(moved - len(data)) + data[seam:size]
    data[seam : seam + 16] = b"\xff" * 16  # nothing must be read where it was
    start, count = struct.unpack_from("<Q", data, 32)[0], struct.unpack_from("<H", data, 56)[0]
    for at in range(start, start + 56 * count, 56):
        kind, _, at_offset = struct.unpack_from("<IIQ", data, at)
        if (kind, at_offset) == (1, 0):
            struct.pack_into("<QQ", data, at + 32, seam, seam)
        elif kind == 0x6474E551:  # PT_GNU_STACK, which nobody misses here
            rest = size - seam
            struct.pack_into("<IIQQQQQQ", data, at, 1, 4, moved, seam, seam, rest, rest, 4096)
    struct.pack_into("<Q", data, 40, 0)  # without section headers readelf goes by segments, too
    struct.pack_into("<HHH", data, 58, 0, 0, 0)
    path.write_bytes(data)
    told = subprocess.run(["readelf", "-dW", str(path)], capture_output=True, text=True, check=True)
    assert "soname: [libseam.so.1]" in told.stdout
    ours = _elf.ElfFile(str(path))
    assert (ours.soname, ours.needed) == ("libseam.so.1", ("libc.so.6",))


def test_sysv_hash_gives_what_the_gnu_hash_gives(tmp_path: Path) -> None:
    source = "".join(f"int made_{i}(void) {{ return {i}; }}\n" for i in range(300))
    versions = "V1 { global: made_1*; }; V2 { global: made_2*; } V1; V3 { global: *; };"
    both = []
    for style in ("gnu", "sysv"):
        path = compile_c(tmp_path / f"lib{style}.so", source, f"-Wl,--hash-style={style}",
                         versions=versions)  # fmt: skip
        elf = _elf.ElfFile(str(path))
        both.append({tuple(e) for e in elf.exports()})
        assert elf.find("made_17") == [("made_17", "V1", True, False)]
        assert elf.find("made_300") == []
    assert both[0] == both[1]
    assert len([e for e in both[0] if e[0].startswith("made_")]) == 300


def test_a_table_of_long_names_across_blocks(tmp_path: Path) -> None:
    names = [f"f{'y' * (997 + i)}_{i}" for i in range(60)]  # the string table spans blocks of 4 KiB
    provider = compile_c(
        tmp_path / "liblong.so", "".join(f"int {n}(void) {{ return 1; }}\n" for n in names)
    )
    calls = "".join(f"int {n}(void);\n" for n in names)
    body = " + ".join(f"{n}()" for n in names)
    user = compile_c(tmp_path / "libuser.so", f"{calls} int use(void) {{ return {body}; }}")
    long, short = _elf.ElfFile(str(provider)), _elf.ElfFile(str(user))
    ours = [n for n in names if long.find(n)]
    assert ours == names
    libc = _elf.ElfFile(os.path.realpath("/lib64/ld-linux-x86-64.so.2"))
    (missing,) = _elf.missing([(short, [short, libc])])
    assert sorted(m.name for m in missing if m.name.startswith("fy")) == sorted(names)  # type: ignore[union-attr]
    (missing,) = _elf.missing([(short, [short, long])])
    assert [m.name for m in missing if m.name.startswith("fy")] == []  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A sound library's bytes."""
    path = tmp_path_factory.mktemp("small") / "libsmall.so"
    return compile_c(path, "int made;", "-nostdlib").read_bytes()


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ({0: 0x23}, "invalid ELF header"),
        ({4: 1}, "wrong ELF class: ELFCLASS32"),
        ({4: 3}, "wrong ELF class: ELFCLASS32"),
        ({5: 2}, "ELF file data encoding not little-endian"),
        ({6: 7}, "ELF file version ident does not match current one"),
        ({7: 9}, "ELF file OS ABI invalid"),
        ({7: 3, 8: 200}, "ELF file ABI version invalid"),
        ({8: 1}, "ELF file ABI version invalid"),
        ({12: 1}, "nonzero padding in e_ident"),
        ({16: 1}, "only ET_DYN and ET_EXEC can be loaded"),
        ({18: 1}, "cannot open shared object file: No such file or directory"),
        ({18: 1, 7: 9}, "cannot open shared object file: No such file or directory"),
        ({18: 1, 5: 2}, "cannot open shared object file: No such file or directory"),
        (
            {18: 0, 19: 62, 5: 2, 20: 0, 23: 1},
            "cannot open shared object file: No such file or directory",
        ),
        ({7: 9, 20: 9}, "ELF file OS ABI invalid"),
        ({18: 1, 20: 9}, "ELF file version does not match current one"),
        ({18: 1, 16: 1}, "cannot open shared object file: No such file or directory"),
        ({20: 9}, "ELF file version does not match current one"),
        ({54: 40}, "ELF file's phentsize not the expected size"),
        ({56: 0}, "object file has no loadable segments"),
        ({80: 8}, "ELF load command address/offset not page-aligned"),
        ({"cut": 0}, "file too short"),
        ({"cut": 63}, "file too short"),
    ],
)
def test_a_header_is_refused_in_the_loader_s_words(
    tmp_path: Path, small: bytes, edits: dict[int | str, int], words: str
) -> None:
    data = bytearray(small)
    for where, value in edits.items():
        if isinstance(where, str):
            del data[value:]
        else:
            data[where] = value
    path = tmp_path / "libedited.so"
    path.write_bytes(data)
    real = subprocess.run(
        [sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(path)!r})"],
        capture_output=True,
        text=True,
    )
    assert real.stderr.splitlines()[-1] == f"OSError: {path}: {words}"
    assert Loader().search(str(path)).error == f"{path}: {words}"
    (tmp_path / "image").mkdir()
    path.rename(tmp_path / "image/libedited.so")
    search = Loader(str(tmp_path / "image")).search("/libedited.so")
    assert search.error == f"/libedited.so: {words}"


def test_other_classes_and_byte_orders_have_an_error_of_their_own(tmp_path: Path) -> None:
    data = bytearray(Path(LIBRARIES[0]).read_bytes())
    data[4] = 1
    path = tmp_path / "lib32.so"
    path.write_bytes(data)
    with pytest.raises(_elf.ForeignElfError) as caught:
        _elf.ElfFile(str(path))
    assert (caught.value.elf_class, caught.value.byte_order) == (32, "little")
    data[4], data[5], data[18], data[19] = 2, 2, 0, 21
    path.write_bytes(data)
    with pytest.raises(_elf.ForeignElfError) as caught:
        _elf.ElfFile(str(path))
    assert (caught.value.byte_order, caught.value.machine) == ("big", 21)


def test_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(_elf.ElfError) as caught:
        _elf.ElfFile(str(tmp_path / "absent"))
    assert caught.value.errno == 2
    with pytest.raises(_elf.ElfError, match="Is a directory"):
        _elf.ElfFile(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(_elf.ElfError, match="not a regular file"):
        _elf.ElfFile(str(tmp_path / "pipe"))
    with pytest.raises(_elf.ElfError, match="not a regular file"):
        _elf.ElfFile("/dev/zero")


def test_a_truncated_library_is_named_so(tmp_path: Path) -> None:
    data = Path(os.path.realpath("/lib64/ld-linux-x86-64.so.2")).read_bytes()
    path = tmp_path / "libcut.so"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(_elf.ElfError, match=r"truncated: a segment ends at byte \d+") as caught:
        _elf.ElfFile(str(path))
    assert caught.value.loader_text is None


def test_a_library_that_is_cut_in_its_last_page_is_mapped(tmp_path: Path) -> None:
    """What is beyond the end of the file, in the same page, reads as zeros."""
    source = "char data[9000] = {1}; int get(int i) { return data[i]; }"
    path = compile_c(tmp_path / "libcut.so", source)
    with path.open("rb") as file:
        loads = elftools.ELFFile(file).iter_segments("PT_LOAD")
        end = max(each["p_offset"] + each["p_filesz"] for each in loads)
    os.truncate(path, end - min(end % 4096, 500))
    assert ctypes.CDLL(str(path)).get(0) == 1
    assert _elf.ElfFile(str(path)).find("get")
    short = tmp_path / "libshort.so"
    short.write_bytes(path.read_bytes()[: (end - 1) // 4096 * 4096])
    with pytest.raises(_elf.ElfError, match="truncated"):
        _elf.ElfFile(str(short))


def test_a_file_that_shrinks_or_changes_is_an_error_not_a_signal(tmp_path: Path) -> None:
    source = "".join(f"int made_{i}(void) {{ return {i}; }}\n" for i in range(2000))
    path = compile_c(tmp_path / "libshrink.so", source)
    elf = _elf.ElfFile(str(path))
    os.truncate(path, 5000)
    with pytest.raises(_elf.ElfError, match="changed while it was read"):
        elf.exports()
    with pytest.raises(_elf.ElfError, match="changed while it was read"):
        elf.find("made_1")  # a fault stays
    path.unlink()
    other = compile_c(tmp_path / "libgone.so", "int made;")
    elf = _elf.ElfFile(str(other))
    other.unlink()
    with pytest.raises(_elf.ElfError, match="No such file"):
        elf.references()


def test_a_sparse_giant_is_cheap(tmp_path: Path) -> None:
    path = compile_c(tmp_path / "libgiant.so", "int made(void) { return 1; }")
    os.truncate(path, 1 << 36)  # 64 GiB, of which nothing is written
    elf = _elf.ElfFile(str(path))
    assert elf.size == 1 << 36
    assert elf.find("made") == [("made", None, False, False)]


def test_missing_gives_a_damaged_file_as_a_value(tmp_path: Path) -> None:
    path = compile_c(
        tmp_path / "libgood.so", "int puts(const char *); int f(void) { return puts(0); }"
    )
    good = _elf.ElfFile(str(path))
    bad_path = compile_c(tmp_path / "libbad.so", "int g;")
    bad = _elf.ElfFile(str(bad_path), shown="/shown/libbad.so")
    os.truncate(bad_path, 4096)
    answers = _elf.missing([(good, [bad]), (good, [good])])
    assert isinstance(answers[0], _elf.ElfError)
    assert answers[0].filename == "/shown/libbad.so"
    assert [m.name for m in answers[1]] == ["puts"]  # type: ignore[union-attr]


def test_missing_takes_only_what_it_says() -> None:
    elf = _elf.ElfFile(LIBRARIES[0])
    for wrong in (5, [5], [(elf,)], [(elf, [5])], [(5, [elf])], [(elf, 5)]):
        with pytest.raises((TypeError, ValueError)):
            _elf.missing(wrong)  # type: ignore[arg-type]
    assert _elf.missing([]) == []
    with pytest.raises(TypeError):
        elf.find(b"bytes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="null"):
        elf.find("a\0b")
    with pytest.raises(TypeError):
        _elf.ElfFile(LIBRARIES[0], shown=b"bytes")  # type: ignore[arg-type]


def test_names_that_are_not_utf8_survive(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"lib\xff.so")
    compile_c(tmp_path / "libplain.so", "int made;", "-Wl,-soname,libplainXsoname").rename(path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"libplainXsoname", b"libplain\xffsoname"))
    elf = _elf.ElfFile(str(path))
    assert os.fsencode(elf.soname or "") == b"libplain\xffsoname"
    assert os.fsencode(elf.path) == os.fsencode(path)


@pytest.mark.threads
def test_threads_share_files() -> None:
    files = [_elf.ElfFile(path) for path in LIBRARIES[:8]]

    def ask() -> list[object]:
        asked: list[object] = [_elf.missing([(f, files)])[0] for f in files]
        asked += [(f.soname, f.needed, f.find("malloc"), f.references()) for f in files]
        return [*asked, files[0].exports()]

    wanted = ask()
    assert together(*[lambda: [ask() for _ in range(3)]] * 4) == [[wanted] * 3] * 4


@pytest.mark.threads
def test_threads_are_told_of_the_same_fault(tmp_path: Path) -> None:
    source = "".join(f"int made_{i}(void) {{ return {i}; }}\n" for i in range(500))
    path = compile_c(tmp_path / "libshrink.so", source)

    def told(ask: Callable[[_elf.ElfFile], object]) -> tuple[str, int | None]:
        with pytest.raises(_elf.ElfError) as caught:
            ask(elf)
        return caught.value.reason, caught.value.errno

    def value(elf: _elf.ElfFile) -> None:
        (answer,) = _elf.missing([(elf, [elf])])
        assert isinstance(answer, _elf.ElfError)
        raise answer

    ways: list[Callable[[_elf.ElfFile], object]]
    ways = [_elf.ElfFile.exports, _elf.ElfFile.references, lambda elf: elf.find("made_1"), value]
    elf = _elf.ElfFile(str(path))
    os.truncate(path, 5000)
    assert set(together(*[lambda way=way: told(way) for way in ways])) == {
        ("the file changed while it was read", None)
    }


@pytest.mark.threads
def test_arguments_that_other_threads_change() -> None:
    """Which files are asked about is the callers' affair; nothing of them may be lost meanwhile."""
    jobs: list[tuple[_elf.ElfFile, list[_elf.ElfFile]]] = []

    def change() -> None:
        for path in LIBRARIES[:20]:
            scope: list[_elf.ElfFile] = []
            jobs.append((_elf.ElfFile(path), scope))
            scope.append(_elf.ElfFile(path))
            scope.clear()
            jobs.clear()

    def ask() -> None:
        for _ in range(20):
            assert all(isinstance(answer, list) for answer in _elf.missing(jobs))

    together(change, ask, change, ask)


def read_and_drop(times: int) -> None:
    for _ in range(times):
        files = [_elf.ElfFile(path) for path in LIBRARIES[:6]]
        files[0].exports()
        files[1].references()
        files[0].find("malloc")
        _elf.missing([(files[0], files), (files[1], files[:1])])
        assert [len(x) for x in _elf.absent([(b"gone.py,sha256=x,9\n" * 50, "/etc")])] == [50]
        for bad in ("/etc/passwd", "/nonexistent"):
            with pytest.raises(_elf.ElfError):
                _elf.ElfFile(bad)
    gc.collect()


def test_no_descriptor_stays_open() -> None:
    read_and_drop(1)
    before = len(os.listdir("/proc/self/fd"))
    read_and_drop(10)
    assert len(os.listdir("/proc/self/fd")) == before


def test_resident_memory_does_not_grow() -> None:
    if os.environ.get("CUDRIVER_TEST_SANITIZER"):
        pytest.skip("a sanitizer keeps freed memory on purpose: make test")

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1])

    read_and_drop(40)
    seen = [resident()]
    while len(seen) < 3 or (seen[-1] - seen[-3] >= 8 and len(seen) < 13):
        read_and_drop(40)
        seen.append(resident())
    # A leak grows all the time; a heap that settles does not.
    assert seen[-1] - seen[-3] < 8, f"pages after each 40 rounds: {seen}"
