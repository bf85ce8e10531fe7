"""ld.so.cache, ld.so.conf and the CPU's folders: against ldconfig where it can be the judge."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from synth import loader_for

from cudriver.stack.loader import glibc
from cudriver.stack.loader.search import Loader
from cudriver.stack.roots.rootfs import Root
from elfkit import compile_c

LDCONFIG = shutil.which("ldconfig") or "/sbin/ldconfig"
FLAGS = glibc.CACHE_FLAGS[Loader().machine]


def ldconfig(root: Path, *options: str) -> None:
    subprocess.run([LDCONFIG, *options, "-r", str(root)], check=True, capture_output=True)


def listed(root: Path) -> list[tuple[str, str]]:
    """(name, path) of every entry, as ldconfig prints them."""
    done = subprocess.run(
        [LDCONFIG, "-p", "-r", str(root)], check=True, capture_output=True, env={"LC_ALL": "C"}
    )
    text = os.fsdecode(done.stdout)
    return re.findall(r"^\t(\S+) \([^)]*\) => (\S+)$", text, re.MULTILINE)


def libraries(root: Path, names: list[str]) -> None:
    """Libraries of these SONAMEs in /lib of the root, and ld.so.conf that names it."""
    folder = root / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    made = compile_c(root / "made.so", "int made;", "-nostdlib", "-Wl,-soname,lib" + "x" * 40)
    data = made.read_bytes()
    for name in names:
        raw = os.fsencode(name)
        assert len(raw) <= 43
        (folder / name).write_bytes(data.replace(b"lib" + b"x" * 40, raw.ljust(43, b"\0")))
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/ld.so.conf").write_text("/lib\n")


def cache_of(root: Path) -> glibc.Cache:
    return glibc.Cache(Root(str(root)).read("/etc/ld.so.cache", glibc.CACHE_LIMIT))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("form", ["compat", "new", "old"])
def test_both_formats_of_a_cache(tmp_path: Path, form: str, count: int) -> None:
    """In the compatible format a new table follows an old one, aligned to 8 bytes."""
    names = [f"libmade{i}.so.{i}" for i in range(count)]
    libraries(tmp_path, names)
    ldconfig(tmp_path, "-c", form)
    raw = (tmp_path / "etc/ld.so.cache").read_bytes()
    assert raw.startswith(glibc.Cache.NEW if form == "new" else glibc.Cache.OLD)
    if form == "old":
        with pytest.raises(ValueError, match="no whole cache"):
            glibc.Cache(raw)
        return
    cache = cache_of(tmp_path)
    for name in names:
        assert cache.lookup(name, FLAGS) == [f"/lib/{name}"]


@pytest.mark.parametrize("flags", [1, FLAGS[1]])  # 1: of any libc, as older ldconfigs say
def test_an_old_table_of_an_odd_count_is_padded(flags: int) -> None:
    """By hand, since a newer ldconfig no longer writes the old table."""
    import struct

    strings = b"libx.so.1\0/lib/libx.so.1\0"
    for count in range(5):
        old = glibc.Cache.OLD + struct.pack("<I", count) + bytes(12 * count)
        old += bytes(-len(old) % 8)
        entry = struct.pack("<iIIIQ", flags, 72, 82, 0, 0)
        new = glibc.Cache.NEW + struct.pack("<IIB3xI12x", 1, len(strings), 2, 0)
        assert len(new) == 48
        cache = glibc.Cache(old + new + entry + strings)
        assert cache.lookup("libx.so.1", FLAGS) == ["/lib/libx.so.1"], count


@pytest.mark.parametrize(
    ("machine", "flags"),
    [(glibc.X86_64, 0x0303), (glibc.AARCH64, 0x0A03)],
)
def test_the_entries_of_each_machine(machine: int, flags: int) -> None:
    """FLAG_ELF_LIBC6 with FLAG_X8664_LIB64 and its kin, of glibc's ldconfig.h."""
    import struct

    strings = b"libx.so.1\0/one\0/two\0"
    entries = [struct.pack("<iIIIQ", flags + step, 96, 106 + 5 * step, 0, 0) for step in (0, 1)]
    header = glibc.Cache.NEW + struct.pack("<IIB3xI12x", 2, len(strings), 2, 0)
    cache = glibc.Cache(header + b"".join(entries) + strings)
    assert cache.lookup("libx.so.1", glibc.CACHE_FLAGS[machine]) == ["/one"]


def test_an_empty_cache_is_one(tmp_path: Path) -> None:
    libraries(tmp_path, [])
    ldconfig(tmp_path, "-c", "new")
    header = (tmp_path / "etc/ld.so.cache").read_bytes()[:48]
    assert glibc.Cache(header[:20] + bytes(8) + header[28:32] + bytes(16)).lookup("x", FLAGS) == []
    with pytest.raises(ValueError, match="no whole cache"):
        glibc.Cache(header[:47])


def test_names_beyond_ascii_are_found_in_the_cache_s_order(tmp_path: Path) -> None:
    """ld.so compares bytes as signed numbers: what is not ASCII comes before all that is."""
    names = [
        "libz.so.1", "libé.so.1", "libe.so.1", "lib.so.1", "lib9.so.1", "lib10.so.1", "lib-.so.1",
        "libü.so.2", "lib\udcff.so.1", "lib~.so.1", "liba.so.9", "liba.so.10", "libЖ.so.1",
    ]  # fmt: skip
    libraries(tmp_path, names)
    ldconfig(tmp_path)
    told = listed(tmp_path)
    assert sorted(name for name, _ in told) == sorted(names)
    cache = cache_of(tmp_path)
    for name, path in told:
        assert cache.lookup(name, FLAGS) == [path], name
    assert cache.lookup("libö.so.1", FLAGS) == []


def test_every_soname_of_a_large_cache_is_found(tmp_path: Path) -> None:
    names = [
        f"lib{a}{b}.so.{c}" for a in "abz" for b in ("", "0", "7", "70", "_x") for c in (1, 12)
    ]
    libraries(tmp_path, names)
    ldconfig(tmp_path)
    told = listed(tmp_path)
    cache = cache_of(tmp_path)
    assert len(told) == len(names)
    for name in names:
        assert cache.lookup(name, FLAGS) == [f"/lib/{name}"]
        assert cache.lookup(name + "9", FLAGS) == []
    assert cache.lookup(names[0], (0x1234,)) == [], "of another machine"


# ---- ld.so.conf ----


def test_an_include_is_relative_to_the_file_that_has_it(tmp_path: Path) -> None:
    """ldconfig is the judge: what it finds a library in, we list."""
    for folder in ("top", "one", "two", "wrong"):
        (tmp_path / folder).mkdir()
    libraries(tmp_path, [])
    made = (tmp_path / "made.so").read_bytes()
    for folder in ("top", "one", "two", "wrong"):
        name = f"lib{folder}.so".ljust(43, "y")
        data = made.replace(b"lib" + b"x" * 40, name.encode())
        (tmp_path / folder / name).write_bytes(data)
    below = tmp_path / "etc/below/further"
    below.mkdir(parents=True)
    (tmp_path / "etc/ld.so.conf").write_text("include below/first.conf\n/top\n")
    (tmp_path / "etc/below/first.conf").write_text("include further/*.conf\n/one\n")
    (tmp_path / "etc/below/further/second.conf").write_text("/two\n")
    (tmp_path / "etc/further").mkdir()
    (tmp_path / "etc/further/other.conf").write_text("/wrong\n")
    ldconfig(tmp_path)
    found = {path.split("/")[1] for _, path in listed(tmp_path)} & {"top", "one", "two", "wrong"}
    assert found == {"top", "one", "two"}
    folders = [folder for folder, _ in glibc.configured_folders(Root(str(tmp_path)))]
    assert folders == ["/two", "/one", "/top"]


# ---- the CPU ----


@pytest.mark.parametrize(
    ("machine", "platform"), [(glibc.X86_64, "x86_64"), (glibc.AARCH64, "aarch64"), (40, "")]
)
def test_the_platform_of_a_cpu(tmp_path: Path, machine: int, platform: str) -> None:
    loader = loader_for(str(tmp_path), machine=machine)
    assert loader.expand("$PLATFORM/x", None) == f"{platform}/x"


# ---- the loader's file ----


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (b"stable release version 2.36.\0", (2, 36)),
        (b"release version 2.39\0", (2, 39)),
        (b"release version \0 release version 3.0\0", (3, 0)),
        (b"release version 2.\0", None),
        (b"release version x.5\0", None),
        (b"", None),
    ],
)
def test_the_release_of_a_loader(text: bytes, version: tuple[int, int] | None) -> None:
    settings = glibc.Glibc(b"\0\1" + text, glibc.X86_64)
    assert settings.version == version
    assert settings.refuses_exec_stack is ((version or (0, 0)) >= (2, 41))


@pytest.mark.parametrize(
    ("machine", "data", "folders", "lib"),
    [
        (glibc.X86_64, b"", ["/lib64/", "/usr/lib64/"], "lib64"),
        (glibc.AARCH64, b"", ["/lib/", "/usr/lib/"], "lib"),
        (glibc.X86_64, b"\0/usr/lib/\0/lib/\0", ["/usr/lib/", "/lib/"], "lib"),
        (
            glibc.X86_64,
            b"\0/other/lib/\0x\0/lib/x86_64-linux-gnu/\0/usr/lib/x86_64-linux-gnu/\0/lib/\0\0",
            ["/lib/x86_64-linux-gnu/", "/usr/lib/x86_64-linux-gnu/", "/lib/"],
            "lib/x86_64-linux-gnu",
        ),
        (glibc.X86_64, b"\0/etc/\0/opt/\0", ["/lib64/", "/usr/lib64/"], "lib64"),
        # One that was built for a prefix of its own, as Nix and Spack do.
        (glibc.X86_64, b"\0/nix/store/a-2.40/lib/\0", ["/nix/store/a-2.40/lib/"], "lib"),
        (
            glibc.X86_64,
            b"\0/lib:/usr/local/lib:/usr/lib\0",  # musl
            ["/lib/", "/usr/local/lib/", "/usr/lib/"],
            "lib",
        ),
    ],
)
def test_default_folders_of_a_loader(
    machine: int, data: bytes, folders: list[str], lib: str
) -> None:
    settings = glibc.Glibc(data, machine)
    assert (settings.folders, settings.lib) == (folders, lib)


def test_the_cache_s_place_is_the_loader_s() -> None:
    own = glibc.Glibc(b"\0/opt/glibc/etc/ld.so.cache\0", 62)
    assert own.cache_path == "/opt/glibc/etc/ld.so.cache"
    assert glibc.Glibc(b"\0", 62).cache_path == "/etc/ld.so.cache"
