"""`cudriver plan`: what to install so that it fits a driver, GPUs and a Python."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from cudriver.cli import USAGE_ERROR, terminal
from cudriver.cli.outcome import show

DESCRIPTION = """\
What to install so that it fits this machine, or another: what the driver runs, the newest
releases that fit, and which of them were installed and imported; else what is needed first.
Nothing is installed."""

EPILOG = """\
exit status: 0 there is a plan, 1 nothing fits, 2 usage, 3 could not tell

  cudriver plan torch                      for this machine
  cudriver plan torch jax --driver 535.104.05 --gpu H100
                                           both in one environment, over there
  cudriver plan cupy --at ~/envs/train     what may be added to an environment
"""
NAMES = "torch, jax, tensorflow, cupy, onnxruntime-gpu, vllm, sglang, numba-cuda, xformers, ..."


def parser() -> ArgumentParser:
    """The command's options."""
    result = terminal.parser("cudriver plan", description=DESCRIPTION, epilog=EPILOG, raw=True)
    add = result.add_argument
    add("package", metavar="PACKAGE", nargs="*", help=f"{NAMES} (none: asked for)")
    add("--driver", metavar="VERSION", help="the driver's release (default: this machine's)")
    add("--gpu", metavar="GPU", dest="gpus", action="append", default=[], help="9.0 or H100")
    add("--python", metavar="VERSION", help="3.12 (default: the newest that a set has)")
    add("--installer", default="uv", help="uv, pip, conda or pixi (default: uv)")
    add("--at", metavar="PREFIX", help="add to this environment")
    add("--constraints", metavar="SET", help="print every version of a proven set, and no more")
    add("--json", action="store_true", help="the plan as JSON")
    add("--html", metavar="FILE", help="write it as one HTML file too ('-': to stdout)")
    return result


def run(arguments: Namespace) -> int:
    """Plans, prints, and returns the exit code."""
    from cudriver.stack.planning import constraints, plan

    if arguments.constraints:
        try:
            terminal.write(constraints(arguments.constraints, arguments.python))
        except ValueError as error:
            terminal.complain(str(error))
            return USAGE_ERROR
        return 0
    words = ("driver", "gpus", "python", "installer", "at")
    given = {name: getattr(arguments, name) for name in words}
    style = terminal.style(sys.stdout)
    return show(
        lambda: plan(*(arguments.package or _asked()), **given),
        lambda made: made.to_text(width=style.width, colour=style.colour),
        arguments,
    )


def _asked() -> list[str]:
    """The packages, from one line of standard input."""
    if sys.stdin.isatty():
        print(f"packages ({NAMES}): ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().replace(",", " ").split()
