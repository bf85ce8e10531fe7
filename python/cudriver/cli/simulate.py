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
    if shutil.which(command[0]) is None and not os.path.exists(command[0]):
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
    first. Without a cache it is a new temporary folder.
    """
    from contextlib import suppress
    from hashlib import sha256
    from tempfile import mkdtemp

    from cudriver.errors import simulated_driver_path

    library = os.path.realpath(simulated_driver_path())
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    place = os.path.join(cache, "cudriver", "simulate", sha256(library.encode()).hexdigest()[:16])
    if os.path.isabs(place) and ":" not in place and ";" not in place:
        with suppress(OSError):
            os.makedirs(place, exist_ok=True)
            return linked(place, library)
    return linked(mkdtemp(prefix="cudriver-simulate-"), library)


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
