"""`cudriver simulate`: runs a command with the simulated driver as its libcuda."""

from __future__ import annotations

import os
import shutil
import signal
import sys

from cudriver.cli import terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

# As env(1) and the shells have them: our own failure, a file that cannot be run, no such command.
FAILED, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127

NAMES = ("libcuda.so.1", "libcuda.so")


def parser() -> ArgumentParser:
    """The command's options."""
    from argparse import REMAINDER

    result = terminal.parser(
        "cudriver simulate",
        description="Runs a command with cudriver's simulated driver as its libcuda, for machines "
        "without a GPU. Devices, contexts, memory, copies, streams, events and pools work as on a "
        "GPU, for every library that finds libcuda.so.1 by its name; kernels do not run. The "
        "variables CUDRIVER_SIM_DEVICES, CUDRIVER_SIM_MEMORY and CUDRIVER_SIM_DRIVER_VERSION set "
        "how many devices there are, how large, and how new the driver is.",
        epilog="exit status: the command's; 125 cudriver failed, 126 the command cannot be run, "
        "127 it was not found, 2 usage",
    )
    result.usage = "cudriver simulate [-h] [-v] [--] COMMAND [ARG ...]"
    result.add_argument(
        "command", metavar="COMMAND", nargs=REMAINDER, help="the command to run, and its arguments"
    )
    return result


def run(arguments: Namespace) -> int:
    """Becomes the command; returns only if that fails."""
    command: list[str] = arguments.command
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        terminal.complain("say which command to run: cudriver simulate -- pytest tests/")
        return 2
    named = os.path.dirname(command[0]) and os.path.exists(command[0])  # not by PATH
    if shutil.which(command[0]) is None and not named:
        terminal.complain(f"command not found: {command[0]}")
        return NOT_FOUND
    try:
        environment = simulated(os.environ)
    except (OSError, ImportError) as error:
        terminal.complain(str(error))
        return FAILED
    terminal.complain("no GPU is used: libcuda is the simulated driver, which runs no kernels")
    return become(command, environment)


def simulated(environment: os._Environ[str]) -> dict[str, str]:
    """The same environment, with a folder first on the loader's path that has our libcuda."""
    path = environment.get("LD_LIBRARY_PATH")
    return {**environment, "LD_LIBRARY_PATH": ":".join(filter(None, (folder(), path)))}


def folder() -> str:
    """A folder whose libcuda.so.1 is the simulated driver.

    The user's cache has it, once for each installation: the package's own folder may be read-only,
    and a wheel can carry no link. A copy would be a second driver in a process that also opens the
    first. Where another user could put a library into it, the user's temporary folder has it
    instead, and where that is not to be had, a new one. That one stays: the command takes this
    process's place, and nobody is left to remove it.
    """
    from contextlib import suppress
    from tempfile import gettempdir, mkdtemp

    from cudriver.errors import simulated_driver_path

    library = os.path.realpath(simulated_driver_path())
    temporary = gettempdir()
    check_characters(temporary)
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for cache in (user, os.path.join(temporary, f"cudriver-{os.geteuid()}")):
        if os.path.isabs(cache):
            with suppress(OSError):
                return cached(os.path.realpath(cache), library)
    return linked(mkdtemp(prefix="cudriver-simulate-"), library)


def cached(cache: str, library: str) -> str:
    """The library's folder in a cache. OSError where there is none that is the user's alone."""
    from hashlib import sha256

    check_characters(cache)
    os.makedirs(cache, mode=0o700, exist_ok=True)
    above = cache
    while True:
        check_owner(above, above=True)
        if above == "/":
            break
        above = os.path.dirname(above)
    place, new = cache, False
    for name in ("cudriver", "simulate", sha256(os.fsencode(library)).hexdigest()[:16]):
        place = os.path.join(place, name)
        new = not os.path.lexists(place)
        if new:
            os.makedirs(place, mode=0o700, exist_ok=True)  # another process may be as far
        check_owner(place)
    if new:
        clear(os.path.dirname(place))
    linked(place, library)
    for name in os.listdir(place):
        if os.readlink(os.path.join(place, name)) != library:  # OSError where it is not a link
            raise OSError(f"{place} has {name}, which is not cudriver's")
    return place


def check_characters(path: str) -> None:
    """Raise OSError for what LD_LIBRARY_PATH takes apart (: ;) or replaces ($ORIGIN, $LIB)."""
    if set(path) & set(":;$"):
        raise OSError(f"{path} cannot stand on LD_LIBRARY_PATH: it has a character of : ; $")


def check_owner(path: str, *, above: bool = False) -> None:
    """Raise OSError unless the user alone can change a folder.

    Of those above it the system's are as good, and so is one in which others may make their own
    files, but cannot rename or remove the user's (/tmp).
    """
    import stat

    found = os.lstat(path)
    writable = stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    if above and found.st_mode & stat.S_ISVTX:
        writable = 0
    owners = (os.geteuid(), 0) if above else (os.geteuid(),)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners or writable:
        raise OSError(f"{path} is not a folder that this user alone can change")


def clear(folder: str) -> None:
    """Removes the folders of packages that are gone: all they have is links that lead nowhere."""
    from contextlib import suppress

    for entry in os.scandir(folder):
        with suppress(OSError):
            if entry.is_symlink():
                continue
            links = [os.path.join(entry.path, name) for name in os.listdir(entry.path)]
            if links and all(os.path.islink(p) and not os.path.exists(p) for p in links):
                for path in links:
                    os.unlink(path)
                os.rmdir(entry.path)


def linked(place: str, library: str) -> str:
    """Puts the links into a folder, if they are not there, and returns it."""
    for name in NAMES:
        link = os.path.join(place, name)
        if os.path.islink(link) and os.readlink(link) == library:
            continue
        new = f"{link}.{os.getpid()}"
        os.symlink(library, new)
        os.replace(new, link)
    return place


def become(command: list[str], environment: dict[str, str]) -> int:
    """Replaces this process by the command, so that signals and its status are the command's."""
    sys.stdout.flush()
    sys.stderr.flush()
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and what it starts would too
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except (OSError, ValueError) as error:
        terminal.complain(f"cannot run {command[0]}: {getattr(error, 'strerror', None) or error}")
        return NOT_EXECUTABLE
