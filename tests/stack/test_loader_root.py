"""Other roots, ld.so.cache and ld.so.conf: the model against ldconfig and a real chroot."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from synth import loader_for

import elfkit
from cudriver import _elf
from cudriver.stack.loader import glibc
from cudriver.stack.loader.process import Process
from cudriver.stack.loader.search import Loader
from cudriver.stack.roots.rootfs import Root
from elfkit import Step, clean_environment, compile_c

LDCONFIG = shutil.which("ldconfig") or "/sbin/ldconfig"


def copy_with_needs(program: Path, root: Path) -> None:
    """The program at /program in the root, with the interpreter and libc that it needs."""
    (root / "program").write_bytes(program.read_bytes())
    (root / "program").chmod(0o755)
    listed = subprocess.run(
        ["ldd", str(program)], capture_output=True, text=True, check=True
    ).stdout
    for path in re.findall(r"(/\S+) \(0x", listed):
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(path), target)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small root: a program, libraries behind absolute links, ld.so.conf with includes."""
    folder = tmp_path_factory.mktemp("build")
    root = tmp_path_factory.mktemp("image")
    program = compile_c(folder / "host", elfkit.HOST_SOURCE, "-ldl", shared=False)
    copy_with_needs(program, root)

    def library(where: str, soname: str, *flags: str) -> None:
        made = compile_c(folder / soname, "int made;", "-nostdlib", f"-Wl,-soname,{soname}", *flags)
        target = root / where
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(made, target)

    library("opt/one/libone.so.1.0", "libone.so.1")
    library("opt/two/libone.so.1.9", "libone.so.1")
    library("opt/two/libtwo.so.2", "libtwo.so.2")
    library("opt/two/libtwo.so.10", "libtwo.so.10")
    library("opt/three/real/libthree.so.3", "libthree.so.3")
    library("usr/lib/libdefault.so.1", "libdefault.so.1")
    library("usr/lib/libtwo.so.2", "libtwo.so.2")
    one, three = (str(folder / f"lib{n}.so.{v}") for n, v in (("one", 1), ("three", 3)))
    needs = ["-Wl,--no-as-needed", one, three, "-Wl,-rpath,$ORIGIN/../three"]
    library("opt/lone/libneeds.so", "libneeds.so", *needs, "-Wl,--enable-new-dtags")
    # Links that leave the root if they are followed outside of it.
    (root / "opt/three/libthree.so.3").symlink_to("/opt/three/real/libthree.so.3")
    (root / "opt/linked").symlink_to("/opt/lone")
    (root / "opt/up").symlink_to("../../../../../../../../opt/lone")
    (root / "opt/loop").symlink_to("/opt/loop")
    (root / "opt/outside.so").symlink_to(os.path.realpath("/lib64/ld-linux-x86-64.so.2") + ".no")
    (root / "etc/ld.so.conf.d").mkdir(parents=True)
    (root / "etc/ld.so.conf").write_text(
        "# comment\ninclude ld.so.conf.d/*.conf\n/opt/one # here\n"
    )
    (root / "etc/ld.so.conf.d/b.conf").write_text("/opt/two/\n\n/opt/absent\n")
    (root / "etc/ld.so.conf.d/ignored.txt").write_text("/opt/three\n")
    (root / "etc/ld.so.conf.d/a.conf").write_text("include /etc/more.conf\n")
    (root / "etc/more.conf").write_text("  /opt/three\t\n")
    return root


def run_inside(root: Path, dlopens: list[str], **variables: str) -> list[Step]:
    """The program run in the root for real. Skips where this user may not chroot."""
    command = [shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin:/bin") or "chroot", str(root)]
    if os.geteuid() != 0:
        command = ["/usr/bin/unshare", "--map-root-user", *command]
    # LD_ variables are for the program, not for chroot.
    command += ["/program"]
    probe = subprocess.run(command, capture_output=True, text=True, env={})
    if probe.returncode != 0:
        assert "ermitted" in probe.stderr, probe.stderr
        pytest.skip("needs the right to chroot: root, or user namespaces")
    done = subprocess.run([*command, *dlopens], capture_output=True, text=True, env=variables)
    if done.returncode != 0:
        assert done.returncode == 127, done.stderr
        return [Step(done.stderr.strip())]
    return elfkit.steps(done.stdout)


NAMES = [
    "libone.so.1", "libtwo.so.2", "libtwo.so.10", "libthree.so.3", "libdefault.so.1", "libno.so",
    "/opt/linked/libneeds.so", "/opt/up/libneeds.so",
    "/opt/loop/libone.so.1", "/opt/absent/../one/libone.so.1.0", "/opt/outside.so",
]  # fmt: skip


@pytest.mark.parametrize("cache", ["new", "compat", ""])
@pytest.mark.parametrize(
    "variables",
    [{}, {"LD_LIBRARY_PATH": "/opt/two:/opt/three"}, {"LD_PRELOAD": "/opt/linked/libneeds.so"}],
)
def test_a_root_as_a_chroot_shows_it(
    image: Path, tmp_path: Path, cache: str, variables: dict[str, str]
) -> None:
    root = tmp_path / "root"
    shutil.copytree(image, root, symlinks=True)
    if cache:
        command = [LDCONFIG, "-X", "-c", cache, "-r", str(root)]
        subprocess.run(command, check=True, capture_output=True)
        assert (root / "etc/ld.so.cache").stat().st_size > 0
    else:
        shutil.rmtree(root / "etc")  # else the model would look at ld.so.conf, which ld.so does not
    inside = {path.stat().st_ino for path in root.rglob("*") if not path.is_symlink()}
    for name in NAMES:
        steps = run_inside(root, [f"NL:{name}"], **variables)
        process = Process(loader_for(str(root), variables), "/program")
        if process.start.error is not None:
            assert steps[0].error is not None
            assert steps[0].error.endswith(f"shared libraries: {process.start.error}")
            continue
        load = process.dlopen(name)
        assert load.error == steps[1].error
        mapped = [o.path if o is not process.main else "" for o in process.objects]
        assert mapped == steps[1].mapped, name
        for obj in process.objects:
            assert obj.elf.inode in inside, "nothing outside the root is read"


def test_what_ld_so_preload_names_comes_first(image: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(image, root, symlinks=True)
    text = "/opt/two/libtwo.so.2:/opt/three/libthree.so.3 # /opt/one/libone.so.1.0\n/opt/no.so\n"
    (root / "etc/ld.so.preload").write_text(text)
    steps = run_inside(root, [])
    process = Process(Loader(str(root)), "/program")
    mapped = [o.path if o is not process.main else "" for o in process.objects]
    assert mapped == steps[0].mapped
    assert mapped[1:3] == ["/opt/two/libtwo.so.2", "/opt/three/libthree.so.3"]


def test_ld_so_preload_ends_at_a_nul(image: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(image, root, symlinks=True)
    text = "/opt/two/libtwo.so.2\n/opt/three/libthree\0.so.3\n/opt/one/libone.so.1.0\n"
    (root / "etc/ld.so.preload").write_text(text)
    steps = run_inside(root, [])
    process = Process(Loader(str(root)), "/program")
    mapped = [o.path if o is not process.main else "" for o in process.objects]
    assert mapped == steps[0].mapped
    assert mapped[1] == "/opt/two/libtwo.so.2"


def test_without_a_cache_the_configuration_stands_in(image: Path) -> None:
    loader = Loader(str(image))
    search = loader.search("libone.so.1")
    assert (search.rule, search.path) == ("configuration", "/opt/two/libone.so.1.9") or (
        search.path is None
    )
    # ldconfig makes links by SONAME; without them only what has its SONAME as its name is found.
    search = loader.search("libtwo.so.10")
    assert (search.rule, search.path) == ("configuration", "/opt/two/libtwo.so.10")
    assert search.entry == "/etc/ld.so.conf.d/b.conf"
    assert loader.search("libthree.so.3").real_path == "/opt/three/real/libthree.so.3"
    assert [f for f, _ in glibc.configured_folders(Root(str(image)))] == [
        "/opt/three", "/opt/two", "/opt/absent", "/opt/one",
    ]  # fmt: skip


def test_folders_as_ldconfig_names_them(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "etc/ld.so.conf").write_text("/a//\nb\nhwcap 1 x\n/\n# /c\n//\n")
    for name in "abc":
        (tmp_path / name).mkdir()
    told = [folder for folder, _ in glibc.configured_folders(Root(str(tmp_path)))]
    assert told == configured_by_ldconfig(tmp_path) == ["/a"]


def test_a_star_takes_no_hidden_file(tmp_path: Path) -> None:
    (tmp_path / "etc/d").mkdir(parents=True)
    (tmp_path / "etc/.d").mkdir()
    (tmp_path / "etc/ld.so.conf").write_text("include d/*\ninclude */x\ninclude d/.[b-h]*\n")
    for name, folder in (("d/x", "a"), ("d/.a", "b"), ("d/.hid", "c"), (".d/x", "d")):
        (tmp_path / folder).mkdir()
        (tmp_path / "etc" / name).write_text(f"/{folder}\n")
    told = [folder for folder, _ in glibc.configured_folders(Root(str(tmp_path)))]
    assert told == configured_by_ldconfig(tmp_path) == ["/a", "/c"]


def test_includes_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.conf").write_text("/a\ninclude *.conf\n/b\n")
    assert [f for f, _ in glibc.configured_folders(Root(str(tmp_path)))] == ["/a", "/b"]


def configured_by_ldconfig(root: Path) -> list[str]:
    """The folders of ld.so.conf in ldconfig's order, from what it says with -v."""
    said = subprocess.run(
        [LDCONFIG, "-v", "-N", "-X", "-r", str(root)],
        capture_output=True, text=True, check=True, timeout=60, env={**os.environ, "LC_ALL": "C"},
    ).stdout  # fmt: skip
    return re.findall(r"^(/[^:]*): \(from /", said, re.MULTILINE)


@pytest.mark.parametrize("seed", range(40))
def test_includes_are_read_as_ldconfig_reads_them(tmp_path: Path, seed: int) -> None:
    """Globs in every part, relative names, comments, files that several others include."""
    draw = random.Random(seed)
    (tmp_path / "etc/sub/.hid").mkdir(parents=True)
    (tmp_path / "etc/sib").mkdir()
    (tmp_path / "etc/link").symlink_to("sub")
    for letter in "abcdefgh":
        (tmp_path / letter).mkdir()
    names = ["ld.so.conf", "sub/1.conf", "sub/2.conf", "sib/2.conf", "sub/.3.conf", "sib/z"]
    patterns = [
        "s*/2.conf",
        "su*/../sib/*",
        "s?b/z",
        "s[iu]b/*",
        "sub/*",
        "/etc/s*/.3*",
        "link/1.conf",
        "nowhere",
    ]
    for at, name in enumerate(names):
        lines = []
        for _ in range(draw.randrange(1, 5)):
            folder = draw.choice("abcdefgh")
            # Only files that come later, so that ldconfig ends.
            later = [f"/etc/{n}" for n in names[at + 1 :]] + (patterns if at == 0 else ["nowhere"])
            lines.append(
                draw.choice(
                    [f"/{folder}", f"  /{folder}/ # comment", f"include {draw.choice(later)}",
                     f"\tinclude  {draw.choice(later)}\t{draw.choice(later)}", "", "include"]
                )
            )  # fmt: skip
        (tmp_path / "etc" / name).write_text("\n".join(lines))
    told = [folder for folder, _ in glibc.configured_folders(Root(str(tmp_path)))]
    assert told == configured_by_ldconfig(tmp_path)


def test_only_so_many_files_are_included(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etc").mkdir()
    for number in range(9):
        (tmp_path / f"etc/{number}").write_text(f"/folder{number}\ninclude *\n")
    (tmp_path / "etc/ld.so.conf").write_text("include 0\n")
    monkeypatch.setattr(glibc, "CONF_FILES", 4)
    folders = [folder for folder, _ in glibc.configured_folders(Root(str(tmp_path)))]
    assert folders == [f"/folder{number}" for number in range(3)]


def test_shadowed_files_are_named_with_their_rules(image: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(image, root, symlinks=True)
    subprocess.run([LDCONFIG, "-X", "-r", str(root)], check=True, capture_output=True)
    (root / "opt/other").mkdir()
    shutil.copy(root / "opt/two/libtwo.so.2", root / "opt/other/libtwo.so.2")
    (root / "opt/text").mkdir()
    (root / "opt/text/libtwo.so.2").write_text("a linker script or other text")
    environ = {"LD_LIBRARY_PATH": "/opt/other:/opt/text"}
    search = loader_for(str(root), environ).search("libtwo.so.2")
    assert (search.rule, search.path) == ("LD_LIBRARY_PATH", "/opt/other/libtwo.so.2")
    # The text file would stop nobody who never looks at it, and is not a library.
    assert [(hit.rule, hit.path) for hit in search.shadowed] == [
        ("cache", "/opt/two/libtwo.so.2"), ("default", "/usr/lib/libtwo.so.2"),
    ]  # fmt: skip
    search = loader_for(str(root), {}).search("libtwo.so.2")
    assert search.searched == ["/etc/ld.so.cache"]
    search = loader_for(str(root), {}).search("libno.so")
    assert search.error == "libno.so: cannot open shared object file: No such file or directory"
    assert search.searched[0] == "/etc/ld.so.cache"
    assert search.searched[1:] == Loader(str(root)).settings.folders


def test_a_file_is_read_once_however_its_path_is_written(tmp_path: Path) -> None:
    file = compile_c(tmp_path / "libmade.so", "int made;")
    (tmp_path / "beside").mkdir()
    (tmp_path / "link").symlink_to("beside")
    loader = Loader()
    first = loader.open(str(file))
    for way in ("beside/..", "link/..", "."):
        assert loader.open(f"{tmp_path}/{way}/libmade.so") is first
    # The kernel decides what a path leads to, not its text.
    lost = f"{tmp_path}/gone/../libmade.so"
    with pytest.raises(FileNotFoundError):
        os.stat(lost)
    with pytest.raises(_elf.ElfError) as caught:
        loader.open(lost)
    assert caught.value.errno == errno.ENOENT


def test_a_cache_of_this_machine_as_ldconfig_prints_it(tmp_path: Path) -> None:
    made = str(tmp_path / "cache")
    subprocess.run([LDCONFIG, "-X", "-C", made], capture_output=True, check=True)
    printed = subprocess.run(
        [LDCONFIG, "-C", made, "-p"], capture_output=True, text=True, check=True
    ).stdout
    wanted = re.findall(r"^\t(\S+) \(([^)]*)\) => (\S+)$", printed, re.MULTILINE)
    assert wanted
    cache = glibc.Cache(Root("/").read(made, glibc.CACHE_LIMIT))
    flags = glibc.CACHE_FLAGS[Loader().machine]
    first: dict[str, str] = {}
    for name, kind, path in wanted:
        if ("x86-64" in kind or "AArch64" in kind) and "hwcap" not in kind:
            first.setdefault(name, path)
    assert first
    for name, path in first.items():
        assert cache.lookup(name, flags)[0] == path
    assert cache.lookup("libno-such-thing.so.1", flags) == []


NEW = b"glibc-ld.so.cache1.1"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"ld.so-1.7.0\0",
        b"ld.so-1.7.0\0" + struct.pack("<I", 1 << 31),
        NEW,
        NEW + struct.pack("<IIB3xI12x", 0, 0, 2, 0)[:27],
        b"x" * 100,
        NEW + struct.pack("<IIB3xI12x", 1 << 30, 10, 2, 0),
        NEW + struct.pack("<IIB3xI12xiIIIQ", 1, 0, 2, 0, 1, 1 << 31, 1 << 31, 0, 0),
        NEW + struct.pack("<IIB3xI12x", 0, 0, 3, 0),
    ],
)
def test_a_damaged_cache_is_a_problem_not_a_crash(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(data)
    loader = Loader(str(tmp_path))
    search = loader.search("libx.so")
    assert search.error == "libx.so: cannot open shared object file: No such file or directory"
    assert loader.cache is None


def test_a_cache_cut_anywhere(image: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(image, root, symlinks=True)
    subprocess.run([LDCONFIG, "-X", "-r", str(root)], check=True, capture_output=True)
    path = root / "etc/ld.so.cache"
    whole = path.read_bytes()
    used = whole.rindex(b"libtwo.so.2\0")  # what follows the strings nobody needs
    for length in [*range(0, len(whole), 7), len(whole)]:
        path.write_bytes(whole[:length])
        loader = loader_for(str(root))
        search = loader.search("libtwo.so.10")
        assert (loader.cache is not None) >= (length == len(whole))
        assert (loader.cache is None) >= (length < used)
        if loader.cache is None:
            assert search.rule == "configuration", "what ld.so.conf names stands in"
        else:
            assert (search.rule, search.path) == ("cache", "/opt/two/libtwo.so.10"), length


def test_a_cache_with_random_damage(image: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(image, root, symlinks=True)
    subprocess.run([LDCONFIG, "-X", "-r", str(root)], check=True, capture_output=True)
    whole = (root / "etc/ld.so.cache").read_bytes()
    flags = glibc.CACHE_FLAGS[glibc.X86_64]
    sound = 0
    for number in range(3000):
        chance = random.Random(number)
        data = bytearray(whole)
        for _ in range(chance.choice((1, 2, 8))):
            at = chance.randrange(len(data))
            data[at : at + 4] = chance.choice(
                (bytes([chance.randrange(256)]) + data[at + 1 : at + 4], b"\xff" * 4, b"9" * 4)
            )
        try:
            cache = glibc.Cache(bytes(data))
            cache.lookup("libtwo.so.2", flags)
            sound += 1
        except ValueError:
            pass
    assert 300 < sound < 2990


def test_loader_settings_of_this_machine() -> None:
    interpreter = Process(Loader(environ={}), sys.executable).main.elf.interpreter
    assert interpreter is not None
    told = subprocess.run([interpreter, "--help"], capture_output=True, text=True).stdout
    settings = glibc.read_glibc(Root("/"), interpreter, Loader().machine)
    folders = re.findall(r"^  (/\S+) \(system search path\)", told, re.MULTILINE)
    if not folders:
        pytest.skip("a loader before glibc 2.33 does not tell its folders")
    assert [folder.rstrip("/") for folder in settings.folders] == folders
    version = subprocess.run([interpreter, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"version (\d+)\.(\d+)", version)
    assert found is not None
    assert settings.version == (int(found[1]), int(found[2]))


def test_a_root_s_machine_is_its_own(tmp_path: Path) -> None:
    other = glibc.AARCH64 if Loader().machine != glibc.AARCH64 else glibc.X86_64
    interpreter = tmp_path / glibc.INTERPRETERS[other].lstrip("/")
    interpreter.parent.mkdir()
    interpreter.write_bytes(b"not looked into")
    assert Loader(str(tmp_path)).machine == other
    made = compile_c(tmp_path / "usr/lib/libmade.so", "int made;", "-nostdlib")
    data = bytearray(made.read_bytes())
    assert Loader(str(tmp_path)).search("libmade.so").path is None, "of this machine, not of that"
    data[18] = other
    made.write_bytes(data)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sh").write_bytes(data)
    assert Loader(str(tmp_path)).machine == other
    found = Loader(str(tmp_path)).search("/usr/lib/libmade.so")
    assert found.path == "/usr/lib/libmade.so"


def test_the_process_environment_stays_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = compile_c(tmp_path / "libmine.so", "int made;", "-nostdlib")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert Loader().search("libmine.so").path is None
    found = Loader(environ={"LD_LIBRARY_PATH": str(tmp_path)}).search("libmine.so")
    assert found.path == str(made)
    assert found.entry == str(tmp_path)


def test_clean_environment_is_clean() -> None:
    assert not any(name.startswith("LD_") for name in clean_environment())
