"""`cudriver fleet`: do all nodes carry the same CUDA stack, and which differences matter."""

from __future__ import annotations

import sys

from cudriver.cli import USAGE_ERROR, terminal
from cudriver.cli.outcome import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator
    from typing import Any

    from cudriver.fleet.read import Broken, Other, Told
    from cudriver.fleet.report import Fleet

DESCRIPTION = """\
Compare the reports of many nodes: which agree, what differs, and what that means.
Reports are lines of `cudriver check --json --compact`, labelled or not, in any order."""

EPILOG = """\
exit status: 0 nothing that matters differs, 1 it does, 2 usage, 3 could not tell

  srun --label cudriver check --json --compact |
  cudriver fleet                        every node of a job
  cudriver fleet reports/ --nodes 'd[0-3,7]'
                                        a folder of reports, and who is missing
  cudriver fleet today.jsonl --baseline golden.json
                                        what has changed since it was saved
  cudriver fleet reports/ --allow driver,python
                                        what may differ between the nodes
  cudriver fleet --roots /mnt/image-a /mnt/image-b
                                        images that are mounted
"""
WIDEST = 200


def parser() -> ArgumentParser:
    """The command's options."""
    result = terminal.parser(
        "cudriver fleet",
        description=DESCRIPTION,
        epilog=EPILOG,
        raw=True,
        verbose="every group, difference and name",
    )
    add = result.add_argument
    add("file", metavar="FILE", nargs="*", help="files and folders ('-' or none: standard input)")
    add("--baseline", metavar="FILE", help="compare with this report or saved baseline")
    add("--save-baseline", metavar="FILE", help="write the largest group's stack as a baseline")
    add("--expect", metavar="N", type=_count, help="how many reports there should be")
    add("--nodes", metavar="LIST", help="the nodes that should answer: d[0-3,7]")
    add("--roots", metavar="DIR", nargs="+", help="check these mounted images and compare them")
    add("--prefix", metavar="PREFIX", help="the environment inside each of --roots")
    add("--json", action="store_true", help="the comparison as JSON")
    add("--html", metavar="FILE", help="write it as one HTML file too ('-': to stdout)")
    add(
        "--allow",
        metavar="WHAT",
        type=_allowed,
        action="extend",
        default=[],
        help="what may differ between groups: driver, cuda, framework, python",
    )
    add("--strict", action="store_true", help="warnings are mismatches too")
    return result


def run(arguments: Namespace) -> int:
    """Compares, prints, and returns the exit code."""
    if arguments.roots and arguments.file:
        terminal.complain("--roots and FILE exclude each other")
        return USAGE_ERROR
    if arguments.prefix and not arguments.roots:
        terminal.complain("--prefix says where to look in images: add --roots DIR")
        return USAGE_ERROR
    if not arguments.roots and not arguments.file and sys.stdin.isatty():
        terminal.complain("no FILE, and nothing on standard input; cudriver fleet --help")
        return USAGE_ERROR
    return show(lambda: _compared(arguments), lambda fleet: _text(fleet, arguments), arguments)


def _text(fleet: Fleet, arguments: Namespace) -> str:
    from cudriver.fleet.report_text import render

    style = terminal.style(sys.stdout)
    style.width = min(terminal.columns(sys.stdout) or terminal.WIDE, WIDEST)
    style.width = max(style.width, terminal.NARROW)
    return render(fleet, style, verbose=arguments.verbose)


def _compared(arguments: Namespace) -> Fleet:
    from cudriver.fleet import compare

    fleet = compare(
        _images(arguments) if arguments.roots else _read(arguments.file or ["-"]),
        baseline=_baseline(arguments.baseline) if arguments.baseline else None,
        expect=arguments.expect,
        nodes=arguments.nodes,
        strict=arguments.strict,
        allow=arguments.allow,
    )
    if arguments.save_baseline:
        _save_baseline(fleet, arguments.save_baseline)
    return fleet


def _read(names: list[str]) -> Iterator[Told | Broken | Other]:
    from cudriver.fleet import read

    for name in names:
        if name == "-":
            yield from read.lines(sys.stdin.buffer, "standard input")
        else:
            yield from read.named(name)


def _images(arguments: Namespace) -> Iterator[dict[str, Any] | Broken]:
    """The report of each image, as `cudriver check --root` makes it, one process a CPU."""
    from cudriver import stack
    from cudriver.cli.side_by_side import side_by_side
    from cudriver.fleet.node import node
    from cudriver.fleet.read import Broken

    here, roots = node({}), arguments.roots

    def check(root: str) -> dict[str, Any] | Broken:
        try:
            told = stack.inspect(arguments.prefix, root=root, probe_driver=False).to_dict()
        except NotADirectoryError:  # what --roots or --prefix says is not there
            raise
        except Exception as error:
            terminal.complain_of_failure(error, f"{root}: ", trace=arguments.verbose)
            return Broken(root, f"the check failed: {terminal.failure(error)}")
        return {**told, "node": here}

    def died(root: str) -> dict[str, Any] | Broken:
        return Broken(root, "the process that checked it died")

    reports = side_by_side(check, roots, died) if len(roots) > 1 else map(check, roots)
    yield from terminal.progress(reports, len(roots), "checking")


def _baseline(path: str) -> Any:
    import json

    with open(path, encoding="utf-8") as file:
        try:
            return json.load(file)
        except OSError as error:
            error.filename = path  # that of a read names none
            raise
        except (ValueError, RecursionError):
            raise ValueError(
                f"{path} is not JSON: --baseline takes a report, or what --save-baseline wrote"
            ) from None


def _save_baseline(fleet: Fleet, path: str) -> None:
    import json

    from cudriver.fleet.comparison import to_baseline

    if fleet.golden is None:
        raise ValueError("no report to save as a baseline")
    terminal.write_file(json.dumps(to_baseline(fleet.golden), indent=1) + "\n", path)


def _allowed(text: str) -> list[str]:
    """What may differ; what is none of it is a usage error."""
    from argparse import ArgumentTypeError

    from cudriver.fleet.result import MAY_DIFFER

    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in MAY_DIFFER:
            raise ArgumentTypeError(f"{name!r} is none of {', '.join(MAY_DIFFER)}")
    return names


def _count(text: str) -> int:
    """How many; what is not a number is a usage error."""
    from argparse import ArgumentTypeError

    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ArgumentTypeError(f"{text!r} is not a number of reports")
    return int(text)
