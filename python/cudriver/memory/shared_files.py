"""The files behind shared memory: where they lie, how they are made, what room there is. Linux."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from cudriver.errors import CudaError
from cudriver.memory.failures import OUT_OF_MEMORY, failure
from cudriver.memory.mapping import mapped
from cudriver.memory.refusals import room_left
from cudriver.memory.room import host_room, numbers, text

SHM = "/dev/shm"  # where shm_open() and multiprocessing.shared_memory look
HUGE_PAGES = "/sys/kernel/mm/hugepages"
PIECE = 64 << 20  # bytes to reserve between two looks at Ctrl-C


def path_of(name: str) -> str:
    """The file of an existing name: in /dev/shm, or in huge pages."""
    paths = [os.path.join(folder, name) for folder in (SHM, *huge_folders())]
    return next((path for path in paths if os.path.lexists(path)), paths[0])


def check_name(name: str) -> str:
    """The name without the slash that shm_open() wants in front."""
    if not isinstance(name, str):
        raise TypeError(f"the name of shared memory is a string, not {name!r}")
    bare = name.removeprefix("/")
    if bare in ("", ".", "..") or "/" in bare or "\0" in bare or len(os.fsencode(bare)) > 255:
        raise ValueError(
            f"the name of shared memory is a file name of 1 to 255 bytes, not {name!r}"
        )
    return bare


def attach(name: str, read_only: bool) -> int:
    """Open what somebody else made."""
    path = path_of(name)
    access = os.O_RDONLY if read_only else os.O_RDWR
    file = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode) or about.st_size == 0:
        os.close(file)
        why = "it is empty" if stat.S_ISREG(about.st_mode) else "it is not a file"
        raise ValueError(f"{path} cannot be mapped: {why}")
    return file


def make(size: int, named: bool, huge: bool, node: int) -> int:
    """A file without a name, whose memory is reserved: it cannot run out later. `node`: the NUMA
    node of the memory, as the core has it."""
    size, folder = (rounded(size, named), huge_folder(named)) if huge else (size, SHM)
    check_room(size, None if huge or not named else folder)
    file = new_file(folder, named, huge)
    try:
        os.ftruncate(file, size)
        if node >= 0:
            mapped(size, file, node)
        # A mapping reserves huge pages. Others: H200, 11 GB/s, and touching by threads follows at
        # 27; without, 14 threads that touch them reach 5.
        for begin in range(0, 0 if huge else size, PIECE):
            os.posix_fallocate(file, begin, min(PIECE, size - begin))
    except OSError as error:
        os.close(file)
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise
        raise refusal(f"{size} bytes; {os.strerror(error.errno)}") from None
    except BaseException:
        os.close(file)
        raise
    return file


def new_file(folder: str, named: bool, huge: bool) -> int:
    if not named:
        with contextlib.suppress(AttributeError):  # Python built with glibc before 2.27
            flags = os.MFD_CLOEXEC | (os.MFD_HUGETLB if huge else 0)
            return os.memfd_create("cudriver", flags)
    return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)


def give_name(file: int, name: str | None, huge: bool, given: list[str]) -> str:
    """Give a file its name, once it is ready: whoever opens it finds all of it.

    given: gets the path before the file has it, so that `take_names` can undo this at any time.
    """
    folder = huge_folder(True) if huge else SHM
    while True:
        chosen = name or f"cu_{secrets.token_hex(6)}"
        try:
            # src_dir_fd makes Python call linkat(), which follows the link to the nameless file.
            source, target = f"/proc/self/fd/{file}", os.path.join(folder, chosen)
            given.append(target)
            os.link(source, target, src_dir_fd=file, follow_symlinks=True)
            return chosen
        except FileNotFoundError:
            if os.path.exists(source):
                raise
            why = "a region gets its name by /proc, which is not mounted here"
            raise OSError(errno.ENOSYS, why, source) from None
        except FileExistsError:
            if name is not None:
                raise exists(target) from None


def take_names(file: int, given: list[str]) -> None:
    """Undo `give_name`, which was interrupted: what is still the file's."""
    about = os.fstat(file)
    for path in given:
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path, follow_symlinks=False), about):
                os.unlink(path)


def exists(path: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, "shared memory of this name exists", path)


# ---- room ----------------------------------------------------------------------------------------


def refusal(arguments: str) -> CudaError:
    return failure(OUT_OF_MEMORY, "cudriver.SharedMemory", arguments)


def check_filled(name: str) -> None:
    """OutOfMemoryError where an existing region has holes, which page-locking fills, and too little
    memory is left for them. What multiprocessing makes is empty until it is touched.
    """
    path = path_of(name)
    try:
        about = os.stat(path)
    except FileNotFoundError:  # it was unlinked
        return
    holes = about.st_size - about.st_blocks * 512
    if holes > 0 and os.path.dirname(path) == SHM:
        check_room(holes, SHM)


def check_room(size: int, folder: str | None) -> None:
    """OutOfMemoryError where the machine, a cgroup or the file system has too little."""
    room = host_room()
    if size > room:
        raise refusal(f"{size} bytes{room_left(room)}")
    if folder is not None:
        about = os.statvfs(folder)
        free = about.f_bavail * about.f_frsize
        if size > free and about.f_blocks > 0:  # 0: without a limit
            raise refusal(
                f"{size} bytes; {folder} has {free} bytes left (in a container its size is an "
                "option, such as --shm-size; SharedMemory.anonymous() does not need it)"
            )


# ---- huge pages ----------------------------------------------------------------------------------


def huge_folders() -> list[str]:
    """Where file systems of huge pages are mounted."""
    lines = (line.split() for line in text("/proc/self/mounts").splitlines())
    return [words[1] for words in lines if len(words) > 2 and words[2] == "hugetlbfs"]


def huge_folder(named: bool) -> str:
    folders = [folder for folder in huge_folders() if os.access(folder, os.W_OK)]
    if not folders and named:
        raise refusal(
            "huge=True, with a name; no file system of huge pages is mounted where this user may "
            "write. `mount -t hugetlbfs -o uid=USER none /dev/hugepages` makes one; "
            "SharedMemory.anonymous(size, huge=True) needs none"
        )
    return folders[0] if folders else ""


def huge_page(named: bool) -> int:
    """Bytes of a huge page: of the file system, or the system's default."""
    if named:
        return os.statvfs(huge_folder(True)).f_bsize
    return numbers("/proc/meminfo").get("Hugepagesize:", 0) << 10


def rounded(size: int, named: bool) -> int:
    """The size in whole huge pages; OutOfMemoryError where fewer are free."""
    page = huge_page(named)
    if page == 0:
        raise refusal(f"{size} bytes, huge=True; this system has no huge pages")
    needed = -(-size // page)
    folder = Path(HUGE_PAGES, f"hugepages-{page >> 10}kB")
    total, free, promised = (
        int(text(f"{folder}/{name}_hugepages") or 0) for name in ("nr", "free", "resv")
    )
    if needed > free - promised:
        more = total + needed - (free - promised)
        raise refusal(
            f"{size} bytes, huge=True; {needed} huge pages of {page >> 10} KiB are needed, "
            f"{free - promised} are free. `echo {more} | sudo tee {folder}/nr_hugepages` reserves "
            "them while memory is not yet fragmented"
        )
    return needed * page
