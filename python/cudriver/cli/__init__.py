"""The `cudriver` command: one file a subcommand, imported only when it is the one wanted.

A subcommand's module offers `parser() -> ArgumentParser` and `run(arguments) -> int`. Exit codes:
0 consistent, 1 mismatch, 2 usage, 3 could not tell.
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
    "check": ("cudriver.cli.check", "does this environment's CUDA fit together, and what mends it"),
    "explain": ("cudriver.cli.explain", "what a rule means, or which rule an error belongs to"),
    "which": ("cudriver.cli.which", "the file each CUDA library resolves to, and why"),
    "devices": ("cudriver.cli.devices", "the GPUs that the driver shows"),
    "demo": ("cudriver.cli.demo", "the memory round trip, verified byte for byte"),
    "bench": ("cudriver.cli.bench", "the memory ladder, measured: pageable memory to shared"),
}

USAGE_ERROR = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (default: this process's own) and returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words[0] if words else "help"
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
            if len(words) == 1 and hasattr(command, "plain"):
                return command.run(command.plain())
            return command.run(command.parser().parse_args(words[1:]))
    except SystemExit as stop:  # argparse: 0 for --help, 2 for bad usage
        return stop.code if isinstance(stop.code, int) else USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _close_output()
        return BROKEN_PIPE
    finally:
        if argv is None:
            # The process ends here: its last look for garbage need not see what a check has made.
            import gc

            gc.freeze()


def _load(name: str) -> Command | None:
    """The subcommand's module; None for a name that is no command of this build."""
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
        return main([topic[0], "--help"])
    commands = _available()
    width = max(map(len, commands), default=0)
    print("usage: cudriver COMMAND [OPTIONS]\n")
    for name, text in commands.items():
        print(f"  {name:<{width}}  {text}")
    print("\ncudriver COMMAND --help lists a command's options.")
    print("cudriver --version prints the version.")
    return 0


def _version() -> int:
    from cudriver import __version__

    print(f"cudriver {__version__}")
    return 0


def _unknown(name: str) -> int:
    from difflib import get_close_matches

    commands = _available()
    near = get_close_matches(name, commands, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "cudriver --help lists them"
    print(f"cudriver: no command {name!r}; {hint}", file=sys.stderr)
    return USAGE_ERROR


def _close_output() -> None:
    """Points standard output at nothing, so that the interpreter's last flush stays quiet."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
