"""The options by which `check` and `which` say what to look at."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping, Sequence

    from cudriver.stack.roots.asked import Asked


def add_options(parser: ArgumentParser) -> None:
    """--root, --assume-driver, --assume-gpu, --no-probe."""
    group = parser.add_argument_group("another machine")
    group.add_argument(
        "--root",
        metavar="DIR",
        default="/",
        help="look at the file system below DIR (an image); PREFIX is a path inside it",
    )
    group.add_argument(
        "--assume-driver", metavar="VERSION", help="stand-in for the driver's release: 535.104.05"
    )
    group.add_argument(
        "--assume-gpu",
        metavar="CAPABILITY",
        action="append",
        help="stand-in for a GPU of this compute capability: 9.0 (repeatable)",
    )
    group.add_argument(
        "--no-probe", action="store_true", help="read files only, ask no child process for NVML"
    )


_OF_TOOLS = ("uv-receipt.toml", "pipx_metadata.json")  # in an environment of one program


class BadOption(Exception):
    """What an option or a PREFIX says is not there or no such thing: a usage error."""


def _meant(prefix: str | None, root: str) -> str | None:
    """A folder, or a name that conda or Jupyter knows. Raises BadOption for one of several, and for
    one of none.
    """
    if not prefix or "/" in prefix or os.path.exists(prefix) or not os.path.isdir(root):
        return prefix
    from cudriver.stack.environment.discover import named

    known = named(root)
    found = known.get(prefix, [])
    if len(found) > 1:
        raise BadOption(f"{prefix} is the name of {len(found)} environments: {', '.join(found)}")
    if not found and root == "/":
        from difflib import get_close_matches

        near = get_close_matches(prefix, known, 1)
        hint = f"; the nearest name is {near[0]}" if near else ""
        raise BadOption(
            f"{prefix} is not a folder, and conda and Jupyter have no environment of that name"
            f"{hint}"
        )
    return found[0] if found else prefix


def asked(
    prefixes: Sequence[str | None], arguments: Namespace, environ: Mapping[str, str] | None = None
) -> list[Asked]:
    """What is asked of these environments, each named by its folder or its interpreter. Raises
    BadOption.
    """
    from cudriver.stack.collect import ask
    from cudriver.stack.machine.driver import assumed

    try:
        first, *others = [_meant(prefix, arguments.root) for prefix in prefixes]
        by = ""
        if first is None and arguments.root == "/":
            first, by = _active(os.environ)
        made = ask(
            first,
            root=arguments.root,
            environ=environ,
            probe=not arguments.no_probe,
            assumed=assumed(arguments.assume_driver, arguments.assume_gpu),
            by=by,
        )
        return [made, *map(made.at, others)]
    except OSError as error:
        named = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise BadOption(named) from None
    except ValueError as error:
        raise BadOption(str(error)) from None


def _active(environ: Mapping[str, str]) -> tuple[str | None, str]:
    """The environment that a shell has activated, or None, and what to say of that: the variable
    that names it, or the one whose folder is gone. Conda's base, in which every shell may begin,
    counts where cudriver lies in an environment of a tool's own; so it is with uv.
    """
    gone = ""
    base = environ.get("CONDA_DEFAULT_ENV") in ("base", "root")
    tool = any(map(os.path.exists, (f"{sys.prefix}/{name}" for name in _OF_TOOLS)))
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = environ.get(variable, "")
        if variable == "CONDA_PREFIX" and base and not tool:
            continue
        if prefix.startswith("/") and os.path.isdir(prefix):
            return prefix, gone or ("" if prefix == sys.prefix else f"by {variable}")
        if prefix.startswith("/"):
            gone = gone or f"the folder of {variable} is gone"
    return None, gone
