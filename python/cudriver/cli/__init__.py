"""The `cudriver` command: one file a subcommand, imported only when it is the one wanted.

A subcommand's module offers `parser() -> ArgumentParser` and `run(arguments) -> int`. Exit codes:
0 consistent, 1 mismatch, 2 usage, 3 could not tell: whatever fails inside cudriver ends with 3.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence
    from typing import Protocol

    class Command(Protocol):
        """What a module in COMMANDS has."""

        def parser(self) -> ArgumentParser: ...
        def run(self, arguments: Namespace) -> int: ...


COMMANDS: dict[str, tuple[str, str]] = {
    "check": ("cudriver.cli.check", "does this environment's CUDA fit together, and what fixes it"),
    "fleet": ("cudriver.cli.fleet", "do all nodes carry the same stack, and what differs"),
    "explain": ("cudriver.cli.explain", "what a rule means, or which rule an error belongs to"),
    "plan": ("cudriver.cli.plan", "what to install so that it fits this machine, or that one"),
    "which": ("cudriver.cli.which", "the file each CUDA library resolves to, and why"),
    "devices": ("cudriver.cli.devices", "the GPUs that the driver shows"),
    "demo": ("cudriver.cli.demo", "the memory round trip, verified byte for byte"),
    "simulate": ("cudriver.cli.simulate", "run a command with the simulated driver as its libcuda"),
    "bench": ("cudriver.cli.bench", "the memory ladder, measured: pageable memory to shared"),
    "completion": ("cudriver.cli.completion", "a script with which a shell completes all this"),
}

USAGE_ERROR = 2
COULD_NOT_TELL = 3
INTERRUPTED = 130
BROKEN_PIPE = 141

RARELY = 100_000  # objects between two looks for garbage


def program() -> int:
    """Runs this process's command line and ends the process, or returns the exit code where more is
    to be done: to free module after module takes a fiftieth of a check.
    """
    status = main()
    if not _awaited():
        import os

        os._exit(status)  # `main` has written all there is
    return status


def _awaited() -> bool:
    """Whether somebody waits for the interpreter's end: an exit handler, the driver's half of the
    package, a debugger or profiler, the prompt of `python -i`.
    """
    import atexit

    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    return bool(
        atexit._ncallbacks()
        or "cudriver._core" in sys.modules
        or sys.gettrace()
        or sys.getprofile()
        or (monitoring and any(monitoring.get_tool(number) for number in range(6)))
        or sys.flags.interactive
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (default: this process's own) and returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        _begin()
    try:
        status = _run(words)
        sys.stdout.flush()  # what cannot be written shows here, not when the interpreter ends
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return BROKEN_PIPE
    except Exception as error:
        from cudriver.cli.terminal import complain_of_failure

        complain_of_failure(error, trace=bool({"-v", "--verbose"}.intersection(words)))
        return COULD_NOT_TELL
    finally:
        if argv is None:
            _end()


def _run(words: list[str]) -> int:
    name = words[0] if words else "help"
    if "cudriver.stack.say" in sys.modules:  # what an earlier command has chosen
        sys.modules["cudriver.stack.say"].choose(None)
    if name in ("help", "-h", "--help"):
        return _help(words[1:])
    if name in ("-V", "--version"):
        return _version()
    command = _load(name)
    if command is None:
        return _unknown(name)
    from cudriver.cli.terminal import plain_warnings

    try:
        with plain_warnings():
            options = any(word.startswith("-") for word in words[1:])
            if hasattr(command, "without_options") and not options:
                arguments = command.without_options(words[1:])
            else:
                arguments = command.parser().parse_args(words[1:])
            arguments.words = words
            return command.run(arguments)
    except SystemExit as stop:  # argparse: 0 for --help, 2 for bad usage
        return stop.code if isinstance(stop.code, int) else USAGE_ERROR


def _load(name: str) -> Command | None:
    """The subcommand's module; None for a name that is not a command of this build."""
    if name not in COMMANDS:
        return None
    from importlib import import_module

    target = COMMANDS[name][0]
    try:
        module: Command = import_module(target)
    except ModuleNotFoundError as error:
        if error.name != target:
            raise
        return None
    return module


def _available() -> dict[str, str]:
    """Commands whose module is there, with their one line of help."""
    from importlib.util import find_spec

    return {name: text for name, (target, text) in COMMANDS.items() if find_spec(target)}


def _help(topic: list[str]) -> int:
    if topic and topic[0] in COMMANDS:
        return _run([topic[0], "--help"])
    from cudriver.cli import terminal
    from cudriver.stack.say import say
    from cudriver.stack.text import wrap

    commands = _available()
    width = max(map(len, commands), default=0)
    print(say("usage: ") + "cudriver COMMAND [OPTIONS]\n")
    for name, text in commands.items():
        lines = wrap(say(text), terminal.width(sys.stdout) - width - 4)
        print(f"  {name:<{width}}  " + f"\n{' ' * (width + 4)}".join(lines))
    print("\n" + say("cudriver COMMAND --help lists a command's options."))
    print(say("cudriver --version prints the version."))
    return 0


def _version() -> int:
    from cudriver import __version__

    print(f"cudriver {__version__}")
    return 0


def _unknown(name: str) -> int:
    from difflib import get_close_matches

    commands = _available()
    near = get_close_matches(name, commands, n=1)
    from cudriver.cli.terminal import complain

    hint = f"did you mean {near[0]!r}?" if near else "cudriver --help lists them"
    complain(f"no command {name!r}; {hint}")
    return USAGE_ERROR


def _begin() -> None:
    """Makes the process ready for a command, which makes little garbage and ends soon."""
    import gc

    gc.set_threshold(RARELY)
    _open_streams()
    _own_modules_first()


def _own_modules_first() -> None:
    """Moves what PYTHONPATH and the working folder add to sys.path to its end: a packaging.py there
    is for the programs that are looked at, and would end this one.
    """
    import os

    try:
        here = os.getcwd()
    except OSError:  # it was removed
        here = ""
    folders = ["", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    added = {"", *(os.path.normpath(os.path.join(here, folder)) for folder in folders)}
    sys.path.sort(key=lambda path: path in added)


def _open_streams() -> None:
    """Gives a closed standard stream a file, else the next one opened would have its number.

    To a closed standard output nothing can be written, as to any other that fails; what goes to a
    closed standard error is lost.
    """
    import os

    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        flags = os.O_WRONLY if name == "stderr" else os.O_RDONLY
        descriptor = os.open(os.devnull, flags)
        if descriptor != number:
            os.dup2(descriptor, number)
            os.close(descriptor)
        mode = "r" if name == "stdin" else "w"
        setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # no name is lost, none stops the report


def _end() -> None:
    """Leaves the interpreter nothing to fail at, nor to do, when it ends."""
    import gc
    import os

    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    gc.freeze()  # its last look for garbage need not see what a check has made
