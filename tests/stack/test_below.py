"""Paths below a folder that its owner changes meanwhile, and what is looked at but not opened."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cudriver as cu
from cudriver import _elf, _regular
from cudriver.stack import find_environments, inspect
from cudriver.stack.loader.search import Loader
from cudriver.stack.roots.below import Below
from cudriver.stack.roots.rootfs import Root
from elfkit import compile_c

SECRET = "of the host"


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A root beside a folder of the host, both with a folder `d`."""
    (tmp_path / "root/d/sub").mkdir(parents=True)
    (tmp_path / "host/sub").mkdir(parents=True)
    (tmp_path / "host/only").mkdir()
    (tmp_path / "root/d/file").write_text("of the root")
    (tmp_path / "host/file").write_text(SECRET)
    (tmp_path / "host/link").symlink_to("x")
    return tmp_path


def swap(top: Path) -> None:
    """What the owner of the root does: its folder `d` becomes a link to one of the host."""
    os.rename(top / "root/d", top / "root/was")
    os.symlink(top / "host", top / "root/d")


LOOKS: list[Callable[[Root], object]] = [
    lambda root: root.text("/d/file"),
    lambda root: root.regular("/d/file")[0],
    lambda root: root.is_file("/d/file"),
    lambda root: root.is_dir("/d/only"),
    lambda root: root.exists("/d/file"),
    lambda root: root.names("/d"),
    lambda root: root.readlink("/d/link"),
    lambda root: root.names("/d/../d/./sub/.."),
]


@pytest.mark.parametrize("look", range(len(LOOKS)))
def test_what_was_looked_up_opens_nothing_later(top: Path, look: int) -> None:
    root = Root(str(top / "root"))
    assert root.is_file("/d/file")
    assert root.resolve("/d/sub") == "/d/sub"
    swap(top)
    assert not LOOKS[look](root)


def test_a_folder_that_becomes_a_link_is_not_listed(top: Path) -> None:
    root = Root(str(top / "root"))
    assert root.folders("/d") == ["sub"]
    swap(top)
    for function in (root.folders, root.listing, root.stat, root.open):
        with pytest.raises(FileNotFoundError):
            function("/d")


def test_a_walk_that_is_overtaken_stays_inside(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The swap comes between any two calls of a walk."""
    seen = set()
    for late in range(8):
        work = top / str(late)
        for name in ("root", "host"):
            shutil.copytree(top / name, work / name, symlinks=True)
        seen.add(overtaken(work, late, monkeypatch))
    assert seen == {None, "of the root"}


def overtaken(top: Path, late: int, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The text of a file, if the swap comes after so many calls."""
    usual, calls = os.open, iter(range(100))

    def swapping(path: str, *words: object, **named: object) -> int:
        if next(calls) == late:
            swap(top)
        return usual(path, *words, **named)  # type: ignore[arg-type]

    root = Root(str(top / "root"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", swapping)
        return root.text("/d/file")


def test_a_library_is_not_opened_again_through_a_link(tmp_path: Path) -> None:
    """Its blocks are dropped between two looks; the link leads to the very same file."""
    (tmp_path / "root/d").mkdir(parents=True)
    (tmp_path / "host").mkdir()
    made = compile_c(
        tmp_path / "root/d/libmade.so", "extern int f(void); int g(void) {return f();}"
    )
    os.link(made, tmp_path / "host/libmade.so")
    elf = Loader(str(tmp_path / "root")).open("/d/libmade.so")
    assert elf.references()
    twin = Loader(str(tmp_path / "root")).open("/d/libmade.so")
    swap(tmp_path)
    with pytest.raises(_elf.ElfError) as caught:
        twin.references()
    assert caught.value.errno == errno.ENOTDIR


@pytest.mark.parametrize(
    "path", ["d/../../file", "d/link", "d/link/file", "d/up/file", "..", "", "d"]
)
def test_the_reader_of_libraries_follows_nothing_below_a_root(tmp_path: Path, path: str) -> None:
    (tmp_path / "root/d").mkdir(parents=True)
    made = compile_c(tmp_path / "file", "int made;")
    (tmp_path / "root/d/link").symlink_to(made)
    (tmp_path / "root/d/up").symlink_to("../..")
    with pytest.raises(_elf.ElfError):
        _elf.ElfFile(f"/{path}", root=Below(str(tmp_path / "root")))
    inside = Below(str(tmp_path))
    assert _elf.ElfFile("//file", root=inside).size == made.stat().st_size
    with pytest.raises(ValueError, match="descriptor"):
        _elf.ElfFile("/file", root=-1)


def test_a_library_keeps_its_root_open(tmp_path: Path) -> None:
    compile_c(tmp_path / "libmade.so", "extern int f(void); int g(void) {return f();}")
    elf = Loader(str(tmp_path)).open("/libmade.so")
    assert [r.name for r in elf.references() if not r.weak] == ["f"]


# ---- the steps against the kernel ----


def tree(folder: Path, draw: random.Random) -> None:
    """Folders, files and links: relative, absolute, upwards, in circles, to nothing."""
    places = [""]
    for _ in range(12):
        place = draw.choice(places)
        name = f"{place}/{draw.choice('abc')}"
        path = folder / name[1:]
        if os.path.lexists(path):
            continue
        kind = draw.choice(["folder", "folder", "file", "link", "link", "link"])
        if kind == "folder":
            path.mkdir()
            places.append(name)
        elif kind == "file":
            path.write_text(name)
        else:
            path.symlink_to(words(draw))


def words(draw: random.Random) -> str:
    parts = [draw.choice(["a", "b", "c", "..", ".", ""]) for _ in range(draw.randrange(1, 5))]
    return draw.choice(["", "/"]) + ("/".join(parts) or ".")


class Kernel:
    """openat2(2) with RESOLVE_IN_ROOT: the kernel's own walk."""

    def __init__(self, folder: Path) -> None:
        self.folder = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        self.call = ctypes.CDLL(None, use_errno=True).syscall

    def open(self, path: str, flags: int) -> int:
        how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, 0x10)  # struct open_how
        found: int = self.call(437, self.folder, os.fsencode(path), how, len(how))
        if found < 0:
            raise OSError(ctypes.get_errno(), path)
        return found


@pytest.mark.parametrize("seed", range(30))
def test_steps_as_the_kernel_walks(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    (tmp_path / "root").mkdir()
    tree(tmp_path / "root", draw)
    kernel, steps = Kernel(tmp_path / "root"), Below(str(tmp_path / "root"))
    if outcome(kernel, "/", os.O_PATH) == errno.ENOSYS:
        pytest.skip("this kernel has no openat2 to compare with")
    read, folder = os.O_RDONLY, os.O_RDONLY | os.O_DIRECTORY
    found = 0
    for _ in range(200):
        path = "/" + words(draw)
        for flags in (os.O_PATH, os.O_PATH | os.O_NOFOLLOW, read, folder):
            answers = [outcome(each, path, flags) for each in (kernel, steps)]
            assert answers[0] == answers[1], (path, flags)
            found += not isinstance(answers[0], int)
        if not isinstance(outcome(kernel, path, os.O_PATH), int):
            resolved = steps.resolve(path)
            assert outcome(kernel, resolved, os.O_PATH | os.O_NOFOLLOW) == outcome(
                kernel, path, os.O_PATH
            )
            assert not {"", ".", ".."} & set(resolved.split("/")[1:] if resolved != "/" else [])
    assert found > 20
    os.close(kernel.folder)


def outcome(root: Below | Kernel, path: str, flags: int) -> int | tuple[int, int]:
    """What was opened, or the errno."""
    try:
        descriptor = root.open(path, flags)
    except OSError as error:
        assert error.errno is not None
        return error.errno
    about = os.fstat(descriptor)
    os.close(descriptor)
    return about.st_dev, about.st_ino


@pytest.mark.parametrize("count", [40, 41])
def test_as_many_links_as_the_kernel_follows(tmp_path: Path, count: int) -> None:
    (tmp_path / "0").write_text("text")
    for number in range(count):
        (tmp_path / str(number + 1)).symlink_to(str(number))
    told = Root(str(tmp_path)).text(f"/{count}")
    try:
        assert told == (tmp_path / str(count)).read_text()
    except OSError as error:
        assert (told, error.errno) == (None, errno.ELOOP)


def test_no_descriptor_stays_open(top: Path) -> None:
    (top / "root/circle").symlink_to("circle")
    root = Root(str(top / "root"))
    before = os.listdir("/proc/self/fd")
    for path in ("/d/file", "/d", "/d/none/x", "/circle", "/d/sub/../file", "/d/file/x"):
        for function in (root.text, root.names, root.exists, root.readlink, root.regular):
            function(path)
        try:
            root.resolve(path)
        except OSError as error:
            assert error.errno == errno.ELOOP
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("name", ["nul\0", "x" * 300, "d/" * 3000])
def test_names_that_no_file_can_have(top: Path, name: str) -> None:
    root = Root(str(top / "root"))
    assert root.text(f"/{name}") is None
    assert root.names(f"/{name}") == []
    assert not root.exists(f"/{name}")


# ---- looked at, not opened ----


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], int]]:
    """A FIFO at `odd`, and how often it was opened: the kernel counts it when it happens."""
    libc = ctypes.CDLL(None, use_errno=True)
    odd = tmp_path / "odd"
    os.mkfifo(odd)
    notes = libc.inotify_init1(os.O_NONBLOCK)
    assert notes >= 0
    assert libc.inotify_add_watch(notes, os.fsencode(odd), 0x20) >= 0  # IN_OPEN

    def count() -> int:
        try:
            return len(os.read(notes, 1 << 16)) // 16
        except BlockingIOError:
            return 0

    os.close(os.open(odd, os.O_RDONLY | os.O_NONBLOCK))
    assert count() == 1
    yield count
    os.close(notes)


def test_a_fifo_in_an_image_is_not_opened(tmp_path: Path, opened: Callable[[], int]) -> None:
    for root, path in ((Root(str(tmp_path)), "/odd"), (Root("/"), str(tmp_path / "odd"))):
        assert root.text(path) is None
        assert root.names(path) == []
        assert root.regular(path)[0] is None
        with pytest.raises(OSError, match="not a regular file") as caught:
            root.open(path)
        assert caught.value.filename == path
        loader = Loader(root)
        assert loader.search(path).path is None
        assert not loader.would_pass(path)
    assert opened() == 0


def test_a_fifo_among_libraries_or_weights_is_not_opened(
    tmp_path: Path, opened: Callable[[], int]
) -> None:
    for root in (None, Below(str(tmp_path))):
        with pytest.raises(_elf.ElfError, match="not a regular file"):
            _elf.ElfFile("/odd" if root else str(tmp_path / "odd"), root=root)
    for load in (cu.load_npy, cu.load_npz, cu.load_safetensors):
        with pytest.raises(ValueError, match="odd is not a regular file"):
            load(tmp_path / "odd")
    assert opened() == 0


def test_a_fifo_in_an_environment_is_not_opened(tmp_path: Path, opened: Callable[[], int]) -> None:
    packages = tmp_path / "env/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "env/bin").mkdir()
    (tmp_path / "env/bin/python").write_text("x")
    (tmp_path / "env/pyvenv.cfg").write_text(
        "home = /usr/bin\nversion = 3.11.7\ninclude-system-site-packages = false\n"
    )
    info = packages / "torch-2.4.0.dist-info"
    info.mkdir()
    for name in ("METADATA", "RECORD", "INSTALLER"):
        os.link(tmp_path / "odd", info / name)
    for name in ("a.pth", "libcuda.so.1", "torch.py"):
        os.link(tmp_path / "odd", packages / name)
    for prefix, root in (("/env", str(tmp_path)), (str(tmp_path / "env"), "/")):
        variables = {"LD_LIBRARY_PATH": prefix + "/lib/python3.11/site-packages"}
        report = inspect(prefix, root=root, environ=variables, probe_driver=False)
        assert {p.text for p in report.facts.problems} >= {"cannot be read: not a regular file"}
    assert find_environments(str(tmp_path), home="/") != []
    assert opened() == 0


def test_sockets_and_folders_are_no_files(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "s"))
    for name in ("s", "."):
        with pytest.raises(OSError, match="not a regular file"):
            Root(str(tmp_path)).open(f"/{name}")


def test_without_proc_the_file_is_opened_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "other").write_text("other")
    usual = os.open

    def bare(path: str, *words: object, **named: object) -> int:
        if str(path).startswith("/proc/"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return usual(path, *words, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", bare)
    assert Root(str(tmp_path)).text("/file") == "text"
    assert Root("/").text(str(tmp_path / "file")) == "text"
    descriptor, about = _regular.open_regular(str(tmp_path / "file"))
    assert (os.read(descriptor, 9), about.st_size) == (b"text", 4)
    os.close(descriptor)
    with pytest.raises(OSError, match="replaced while it was opened") as caught:
        _regular.open_regular(
            "a name",
            lambda flags: usual(tmp_path / ("file" if flags & os.O_PATH else "other"), flags),
        )
    assert caught.value.filename == "a name"
