"""Single cases of the loader's rules, each run by the machine's own ld.so and by the model."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from synth import loader_for
from test_dlopen_cases import compare

import elfkit
from cudriver import _elf
from cudriver.stack.loader import glibc
from cudriver.stack.loader.process import Process
from cudriver.stack.loader.search import Loader
from elfkit import DT_NEEDED, DT_RPATH, DT_SONAME, Patch, clean_environment, compile_c

KEEP = "-Wl,--no-as-needed"
OLD_PATH = "-Wl,--disable-new-dtags"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("host")
    return compile_c(folder / "host", elfkit.HOST_SOURCE, "-ldl", shared=False)


def library(path: Path, source: str = "int made;", *flags: str, bare: bool = True) -> Path:
    """A small library with its file's name as its SONAME."""
    more = ["-nostdlib"] if bare else []
    return compile_c(path, source, *more, f"-Wl,-soname,{path.name}", *flags)


def same(host: Path, dlopens: list[str], cwd: Path, **variables: str) -> list[str | None]:
    """Every dlopen's error, after the model has had the same errors and the same files mapped."""
    return [load.error for load in compare(host, dlopens, str(cwd), **variables)]


def version() -> tuple[int, int]:
    """This machine's glibc."""
    stated = os.confstr("CS_GNU_LIBC_VERSION") or ""
    major, minor = stated.split()[1].split(".")[:2]
    return int(major), int(minor)


# ---- folders ----


@pytest.mark.parametrize("kind", ["-no-pie", "-pie"])
def test_a_program_is_no_library(host: Path, tmp_path: Path, kind: str) -> None:
    file = compile_c(tmp_path / "libx.so.1", "int main(void) { return 0; }", kind, shared=False)
    for name in (file, file.name):
        (error,) = same(host, [f"NL:{name}"], tmp_path, LD_LIBRARY_PATH=str(tmp_path))
    assert "cannot dynamically load" in (error or "")
    (fault,) = Process(Loader(), str(host)).dlopen(str(file)).faults
    assert fault.kind == "rejected"


def test_a_folder_in_a_librarys_place_is_not_shadowed(tmp_path: Path) -> None:
    library(tmp_path / "one/libx.so.1")
    (tmp_path / "two/libx.so.1").mkdir(parents=True)
    (tmp_path / "three").mkdir()
    (tmp_path / "three/libx.so.1").write_bytes(b"\x7fELF\2\1")
    library(tmp_path / "four/libx.so.1")
    for name, target in (("five", "four"), ("six", "one")):  # the same files once more
        (tmp_path / name).symlink_to(target)
    folders = [str(tmp_path / name) for name in ("one", "two", "three", "four", "five", "six")]
    search = Loader(environ={"LD_LIBRARY_PATH": ":".join(folders)}).search("libx.so.1")
    assert [hit.path for hit in search.shadowed] == [f"{folders[3]}/libx.so.1"]


def test_origin_in_the_variable_is_each_programs(host: Path, tmp_path: Path) -> None:
    loader = Loader(environ={"LD_LIBRARY_PATH": "$ORIGIN"})
    for name in ("one", "two"):
        made = library(tmp_path / name / "libx.so.1")
        shutil.copy(host, tmp_path / name / "host")
        load = Process(loader, str(tmp_path / name / "host")).dlopen("libx.so.1")
        assert load.search.path == str(made)


def test_what_a_mapped_object_needs_is_asked_for_once(host: Path, tmp_path: Path) -> None:
    low = library(tmp_path / "liblow.so.1")
    top = library(tmp_path / "libtop.so.1", "int made;", KEEP, str(low), "-Wl,-rpath,$ORIGIN")
    process = Process(Loader(), str(host))
    assert [search.name for search in process.dlopen(str(top)).searches] == [str(top), low.name]
    again = process.dlopen(str(top))
    mapped = process.find(str(top))
    assert mapped is not None
    assert [name for name, _ in mapped.needed] == [low.name]
    assert (again.searches, again.objects) == ([], [])


def test_a_folder_that_may_not_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in it is opened all the same (mode 0711); root, who may run this, lists any."""
    library(tmp_path / "libx.so.1")

    def refuse(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "listdir", refuse)
    for folder, found in ((str(tmp_path), f"{tmp_path}/libx.so.1"), (f"{tmp_path}/absent", None)):
        loader = Loader(environ={"LD_LIBRARY_PATH": folder})
        assert loader.search("libx.so.1").path == found


def test_a_library_that_may_not_be_read_is_passed_over(host: Path) -> None:
    """The same path goes on behind it. Root may read any file, so nobody looks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        program = Path(shutil.copy(host, folder / "host"))
        for part in "ab":
            library(folder / part / "libx.so.1")
            (folder / part).chmod(0o755)
        (folder / "a/libx.so.1").chmod(0)
        environ = {"LD_LIBRARY_PATH": f"{folder}/a:{folder}/b"}
        loader = Loader(environ=environ)
        loader.search("libc.so.6")  # imports what it needs
        root = os.geteuid() == 0
        said = subprocess.run(
            [str(program), "NL:libx.so.1"], capture_output=True, text=True, check=True,
            env=clean_environment(**environ), user=65534 if root else None,
        ).stdout  # fmt: skip
        try:
            if root:
                os.seteuid(65534)
            found = loader.search("libx.so.1")
        finally:
            if root:
                os.seteuid(0)
        assert f"{folder}/b/libx.so.1" in said.split()
        assert found.path == f"{folder}/b/libx.so.1"


def test_an_entry_below_an_unknown_program_is_passed_over(tmp_path: Path) -> None:
    library(tmp_path / "libx.so.1")
    loader = Loader(environ={"LD_LIBRARY_PATH": f"$ORIGIN/../lib:{tmp_path}"})
    assert loader.search("libx.so.1").path == f"{tmp_path}/libx.so.1"


def program_of(root: Path, stated: str | None) -> None:
    """/ld.so of a root: no more of a loader than the model reads in it."""
    text = f"release version {stated}." if stated is not None else "of no known origin"
    (root / "ld.so").write_bytes(b"\0glibc-hwcaps\0" + text.encode() + b"\0")


# ---- paths of objects ----


def test_rpath_beside_runpath_counts_for_nobody(host: Path, tmp_path: Path) -> None:
    """Neither for the object itself nor, down the chain, for what it needs."""
    low = library(tmp_path / "low/liblow.so.1")
    middle = library(tmp_path / "middle/libmiddle.so.1", "int made;", KEEP, str(low))
    flags = [KEEP, str(middle), "-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN/../middle"]
    made = compile_c(
        tmp_path / "top/libtop.so", "int made;", "-nostdlib", "-Wl,-soname,$ORIGIN/../low", *flags
    )
    (error,) = same(host, [f"NL:{made}"], tmp_path)
    assert error == "liblow.so.1: cannot open shared object file: No such file or directory"
    patch = Patch(made.read_bytes())
    ((where, _),) = patch.find(DT_SONAME)
    patch.retag(where, DT_RPATH)  # now with both
    made.write_bytes(patch.data)
    elf = _elf.ElfFile(str(made))
    assert (elf.rpath, elf.runpath) == ("$ORIGIN/../low", "$ORIGIN/../middle")
    (error,) = same(host, [f"NL:{made}"], tmp_path)
    assert error == "liblow.so.1: cannot open shared object file: No such file or directory"
    process = Process(Loader(environ={}), str(host))
    assert process.dlopen(str(made)).error == error


def test_the_program_s_rpath_serves_everything(tmp_path: Path) -> None:
    """What is opened later has no chain to the program, and its DT_RPATH counts all the same."""
    low = library(tmp_path / "low/liblow.so.1")
    top = library(tmp_path / "top/libtop.so.1", "int made;", KEEP, str(low))
    path = [OLD_PATH, f"-Wl,-rpath,{tmp_path}/low:{tmp_path}/absent"]
    own = compile_c(tmp_path / "own", elfkit.HOST_SOURCE, "-ldl", *path, shared=False)
    assert same(own, [f"NL:{top}"], tmp_path) == [None]
    process = Process(Loader(environ={}), str(own))
    for asking in (process.main, None):
        search = process.loader.search("libno.so", asking, process.main)
        assert search.searched[:2] == [f"{tmp_path}/low/", f"{tmp_path}/absent/"]
        assert str(tmp_path) not in "".join(search.searched[2:]), "each once"
    assert process.loader.search("liblow.so.1", None, None).path is None


def test_another_machine_s_file_is_shadowed_by_nobody(tmp_path: Path) -> None:
    made = library(tmp_path / "one/libx.so.1")
    data = bytearray(made.read_bytes())
    (tmp_path / "two").mkdir()
    (tmp_path / "three").mkdir()
    (tmp_path / "three/libx.so.1").write_bytes(data)
    data[18] ^= 1
    (tmp_path / "two/libx.so.1").write_bytes(data)
    (tmp_path / "text").mkdir()
    (tmp_path / "text/libx.so.1").write_bytes(b"#" * 18 + made.read_bytes()[18:20])
    path = ":".join(f"{tmp_path}/{name}" for name in ("one", "two", "text", "three"))
    search = Loader(environ={"LD_LIBRARY_PATH": path}).search("libx.so.1")
    assert search.path == str(made)
    assert [hit.path for hit in search.shadowed] == [f"{tmp_path}/three/libx.so.1"]


@pytest.mark.parametrize("machine", [b"\0\x15", b"\0\x3e", b"\x3e\0"])
def test_a_big_endian_file(host: Path, tmp_path: Path, machine: bytes) -> None:
    """ld.so reads its machine as if the byte order were its own, and minds that order after."""
    made = library(tmp_path / "one/libx.so.1")
    library(tmp_path / "two/libx.so.1")
    data = bytearray(made.read_bytes())
    data[5], data[18:20] = 2, machine
    made.write_bytes(data)
    path = f"{tmp_path}/one:{tmp_path}/two"
    same(host, ["NL:libx.so.1"], tmp_path, LD_LIBRARY_PATH=path)
    same(host, [f"NL:{made}"], tmp_path)


def test_places_after_the_file_were_not_searched(tmp_path: Path) -> None:
    for name in ("one", "three"):
        (tmp_path / name).mkdir()
    made = library(tmp_path / "two/libx.so.1")
    path = ":".join(f"{tmp_path}/{name}" for name in ("one", "absent", "two", "three"))
    search = Loader(environ={"LD_LIBRARY_PATH": path}).search("libx.so.1")
    assert search.path == str(made)
    assert search.searched == [f"{tmp_path}/{name}/" for name in ("one", "absent", "two")]


def test_what_is_mapped_already_shadows_all_others(host: Path, tmp_path: Path) -> None:
    made = library(tmp_path / "two/libx.so.1")
    for name in ("one", "three"):
        (tmp_path / name).mkdir()
        shutil.copy(made, tmp_path / name / "libx.so.1")
    path = ":".join(f"{tmp_path}/{name}" for name in ("one", "two", "three"))
    assert same(host, [f"NL:{made}", "NL:libx.so.1"], tmp_path, LD_LIBRARY_PATH=path) == [None] * 2
    process = Process(Loader(environ={"LD_LIBRARY_PATH": path}), str(host))
    process.dlopen(str(made))
    load = process.dlopen("libx.so.1")
    assert (load.searches, load.search.path) == ([], str(made))
    for obj in process.objects:  # what an object needs is looked for once
        assert [name for name, _ in obj.needed] == list(obj.elf.needed)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$ORIGIN", "/here"),
        ("$ORIGIN/../lib", "/here/../lib"),
        ("${ORIGIN}lib", "/herelib"),
        ("a$ORIGIN:b", "a/here:b"),
        ("$ORIGINAL/x", "$ORIGINAL/x"),
        ("$ORIGIN_x", "$ORIGIN_x"),
        ("$ORIGIN9", "$ORIGIN9"),
        ("$ORIGIN.libs", "/here.libs"),
        ("$ORIGIN-x/$ORIGIN é", "/here-x//here é"),
        ("${ORIGIN", "${ORIGIN"),
        ("$", "$"),
        ("$$ORIGIN", "$/here"),
        ("/$LIB/$LIBX", "/lib/odd/$LIBX"),
        ("/$PLATFORM/${PLATFORM}", "/x86_64/x86_64"),
        ("plain", "plain"),
    ],
)
def test_tokens(host: Path, tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "ld.so").write_bytes(b"\0/lib/odd/\0/usr/lib/odd/\0")
    loader = loader_for(str(tmp_path), machine=glibc.X86_64)
    loader.use_program("/ld.so", glibc.X86_64)
    owner = Process(Loader(environ={}), str(host)).main
    owner.origin = "/here"
    assert loader.expand(text, owner) == expected
    assert loader.expand("$ORIGIN/x", None) is None


def test_the_empty_name_is_the_program(host: Path, tmp_path: Path) -> None:
    low = library(tmp_path / "liblow.so")
    made = library(tmp_path / "libx.so", "int made;", KEEP, str(low))
    patch = Patch(made.read_bytes())
    ((where, _),) = patch.find(DT_NEEDED)
    patch.data[where + 8 : where + 16] = bytes(8)  # the string table begins with an empty one
    made.write_bytes(patch.data)
    assert _elf.ElfFile(str(made)).needed == ("",)
    assert same(host, [f"NL:{made}", "NL:"], tmp_path) == [None, None]


# ---- symbols ----


def test_a_version_that_is_needed_weakly_may_be_missing(host: Path, tmp_path: Path) -> None:
    source = "int f(void) { return 1; }"
    old = compile_c(tmp_path / "old/libp.so", source, "-Wl,-soname,libp.so", versions="V1 { f; };")
    compile_c(tmp_path / "new/libp.so", source, "-Wl,-soname,libp.so", versions="V2 { f; };")
    weak = "int f(void) __attribute__((weak)); int use(void) { return f ? f() : 0; }"
    made = library(tmp_path / "libu.so", weak, KEEP, str(old), bare=False)
    path = f"{tmp_path}/new"
    data = bytearray(made.read_bytes())
    elftools = pytest.importorskip("elftools.elf.elffile")
    with open(made, "rb") as stream:
        section = elftools.ELFFile(stream).get_section_by_name(".gnu.version_r")
        start, needs = section["sh_offset"], section.num_versions()
    # vn_file's entries one after the other; of V1's the flags are at 4.
    at, places = start, []
    for _ in range(needs):
        first = int.from_bytes(data[at + 8 : at + 12], "little")
        for index in range(int.from_bytes(data[at + 2 : at + 4], "little")):
            places.append(at + first + 16 * index)
        at += int.from_bytes(data[at + 12 : at + 16], "little")
    for flags, fails in ((0, True), (2, False)):
        for place in places:
            data[place + 4] = flags
        made.write_bytes(data)
        assert {need.weak for need in _elf.ElfFile(str(made)).version_needs} == {flags == 2}
        (error,) = same(host, [f"NL:{made}"], tmp_path, LD_LIBRARY_PATH=path)
        assert (error is not None) is fails
        if error is not None:
            assert error.endswith(f"version `V1' not found (required by {made})")


# ---- the stack ----


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stacks")
    wants = library(folder / "libwants.so", "int made;", "-Wl,-z,execstack", bare=False)
    library(folder / "libneeds.so", "int made;", KEEP, str(wants), f"-Wl,-rpath,{folder}")
    compile_c(folder / "host", elfkit.HOST_SOURCE, "-ldl", "-Wl,-z,execstack", shared=False)
    return folder


def test_what_asks_for_an_executable_stack_is_seen(stacks: Path, host: Path) -> None:
    """As readelf tells: GNU_STACK with E among its flags."""
    import subprocess

    for path in (stacks / "libwants.so", stacks / "libneeds.so", stacks / "host", host):
        text = subprocess.run(
            ["readelf", "-lW", str(path)], capture_output=True, text=True, check=True
        ).stdout
        (line,) = [line for line in text.splitlines() if "GNU_STACK" in line]
        assert _elf.ElfFile(str(path)).exec_stack is ("RWE" in line.split())
    assert _elf.ElfFile(str(stacks / "libwants.so")).exec_stack


def test_without_a_word_the_machine_s_default_holds(stacks: Path, tmp_path: Path) -> None:
    data = bytearray((stacks / "libneeds.so").read_bytes())
    at = data.find((0x6474E551).to_bytes(4, "little"))
    data[at : at + 4] = bytes(4)  # PT_NULL
    path = tmp_path / "libsilent.so"
    path.write_bytes(data)
    assert _elf.ElfFile(str(path)).exec_stack is (data[18] == glibc.X86_64)


@pytest.mark.parametrize("name", ["libwants.so", "libneeds.so"])
@pytest.mark.parametrize("tunables", ["", "glibc.rtld.execstack=2"])
def test_an_executable_stack_is_had_at_the_start_or_not_at_all(
    host: Path, stacks: Path, name: str, tunables: str
) -> None:
    """glibc 2.41 and later refuse it to a dlopen; the program itself and LD_PRELOAD may ask."""
    wanted = [f"NL:{stacks}/{name}"]
    extra = {"GLIBC_TUNABLES": tunables} if tunables else {}
    (error,) = same(host, wanted, stacks, **extra)
    if version() >= (2, 41) and not tunables:
        asked = f"{stacks}/{name}" if name == "libwants.so" else "libwants.so"
        words = "cannot enable executable stack as shared object requires: Invalid argument"
        assert error == f"{asked}: {words}"
    else:
        assert error is None
    assert same(stacks / "host", wanted, stacks, **extra) == [None]
    assert same(host, wanted, stacks, LD_PRELOAD=f"{stacks}/libwants.so", **extra) == [None]


@pytest.mark.parametrize(("stated", "refused"), [("2.40", False), ("2.41", True)])
def test_the_stack_by_the_root_s_own_glibc(
    stacks: Path, host: Path, tmp_path: Path, stated: str, refused: bool
) -> None:
    process = Process(loader_of(tmp_path, stated), str(host))
    assert process.loader.settings.version == tuple(map(int, stated.split(".")))
    load = process.dlopen(str(stacks / "libwants.so"))
    assert (load.error is not None) is refused
    assert [fault.kind for fault in load.faults] == (["rejected"] if refused else [])


def loader_of(folder: Path, stated: str) -> Loader:
    """This machine's loader, as if it were of that release."""

    class Stated(Loader):
        def use_program(self, interpreter: str | None, machine: int) -> None:
            super().use_program(interpreter, machine)
            settings = glibc.read_glibc(self.root, interpreter, machine)
            mine = ".".join(map(str, settings.version or ()))
            data = self.root.read(interpreter or "", 4 << 20)
            mark = b"release version "
            said = data.replace(mark + mine.encode(), mark + stated.encode())
            self.settings = glibc.Glibc(said, machine)

    return Stated(environ={})


# ---- one file in several environments ----


def test_a_file_of_two_environments_is_read_once_and_named_as_each_has_it(
    host: Path, tmp_path: Path
) -> None:
    """uv and conda make hard links. What is wrong with the file is said of the one in question."""
    first = library(tmp_path / "one" / "libshared.so", "int puts(const char *);"
                    "int f(void) { return puts(0); }", bare=False)  # fmt: skip
    second = tmp_path / "two" / "libshared.so"
    second.parent.mkdir()
    os.link(first, second)
    loader = Loader()
    assert loader.open(str(first)) is loader.open(str(second))
    assert Process(loader, str(host)).dlopen(str(second)).error is None
    loader = Loader()
    assert loader.open(str(second)) is loader.open(str(first))
    assert loader.open(str(first)).shown == str(second)
    os.truncate(first, 4096)
    for path in (second, first):
        (fault,) = Process(loader, str(host)).dlopen(str(path)).faults
        assert (fault.kind, fault.library) == ("damaged", str(path))
        assert fault.message.startswith(f"{path}: the file changed")


def test_a_file_that_gets_the_inode_of_a_removed_one_is_another_file(tmp_path: Path) -> None:
    """As pip replaces files while `--all` goes on. Here the inode gets other content."""
    old, new = tmp_path / "libold.so", tmp_path / "libnew.so"
    other = library(tmp_path / "libother.so")
    library(old)
    loader = Loader()
    assert loader.open(str(old)).soname == "libold.so"
    inode = old.stat().st_ino
    old.rename(new)
    new.write_bytes(other.read_bytes())
    assert new.stat().st_ino == inode
    assert loader.open(str(new)).soname == "libother.so"
