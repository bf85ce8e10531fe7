"""`cudriver plan`: what to install so that it fits a driver, GPUs and a Python."""

from __future__ import annotations

import sys

from cudriver.cli import USAGE_ERROR, terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from cudriver.stack.plan.report import Plan

DESCRIPTION = """\
What to install so that it fits this machine, or another: sets of packages that were
installed and imported, else what follows from the tables, else what is needed first.
Nothing is run."""

EPILOG = """\
exit status: 0 there is a plan, 1 nothing fits, 2 usage, 3 could not tell

  cudriver plan torch                      for this machine
  cudriver plan torch jax --driver 535.104.05 --gpu H100
                                           both in one environment, over there
  cudriver plan cupy --at ~/envs/train     what may be added to an environment
  cudriver plan torch --server ubuntu --gpu 9.0
                                           a new server, from the driver on
"""


def parser() -> ArgumentParser:
    """The command's options."""
    result = terminal.parser("cudriver plan", description=DESCRIPTION, epilog=EPILOG, raw=True)
    add = result.add_argument
    add(
        "package",
        metavar="PACKAGE",
        nargs="*",
        help="torch, jax, tensorflow, cupy, onnxruntime-gpu, vllm (none: asked for)",
    )
    add("--driver", metavar="VERSION", help="the driver's release (default: this machine's)")
    add(
        "--gpu",
        metavar="GPU",
        action="append",
        default=[],
        help="a compute capability, 9.0, or a name, H100 (repeatable; default: this machine's)",
    )
    add("--python", metavar="VERSION", help="3.12 (default: the newest that a set has)")
    add("--installer", default="uv", help="uv, pip, conda or pixi (default: uv)")
    add("--at", metavar="PREFIX", help="add to this environment")
    add("--server", metavar="FAMILY", help="a new server: debian, ubuntu or rhel")
    add("--containers", action="store_true", help="with --server: it runs containers too")
    add("--constraints", metavar="SET", help="print every version of a proven set, and no more")
    add("--json", action="store_true", help="the plan as JSON")
    add("--html", metavar="FILE", help="write it as one HTML file too ('-': to stdout)")
    add("--lang", choices=["en", "zh"], help="the language (default: the locale's)")
    return result


def run(arguments: Namespace) -> int:
    """Plans, prints, and returns the exit code."""
    try:
        if arguments.constraints:
            return _constraints(arguments.constraints, arguments.python)
        plan = _made(arguments)
        if arguments.html:
            terminal.write_file(plan.to_html(), arguments.html)
    except ValueError as error:
        terminal.complain(str(error))
        return USAGE_ERROR
    except OSError as error:
        terminal.complain_of_file(error)
        return USAGE_ERROR
    if arguments.json:
        print(plan.to_json())
    elif arguments.html != "-":
        terminal.write(plan.render(terminal.style(sys.stdout)))
    return plan.exit_code


def _made(arguments: Namespace) -> Plan:
    from cudriver.cli.explain import language
    from cudriver.stack.plan import make

    if arguments.containers and not arguments.server:
        raise ValueError("--containers says what a new server runs: add --server FAMILY")
    packages = arguments.package or _asked()
    return make(
        *packages,
        driver=arguments.driver,
        gpus=arguments.gpu,
        python=arguments.python,
        installer=arguments.installer,
        at=arguments.at,
        server=arguments.server,
        containers=arguments.containers,
        lang=arguments.lang or language(),
    )


def _asked() -> list[str]:
    """The packages, from one line of standard input."""
    if sys.stdin.isatty():
        print(
            "packages (torch jax tensorflow cupy onnxruntime-gpu vllm): ", end="", file=sys.stderr
        )
        sys.stderr.flush()
    return sys.stdin.readline().replace(",", " ").split()


def _constraints(name: str, python: str | None) -> int:
    """Prints the versions of a set, for an installer."""
    from cudriver.stack.plan.candidates import proven

    found = next((each for each in proven() if each.name == name), None)
    if found is None or (python and python not in found.installed):
        known = f"; known are {', '.join(found.pythons)}" if found else ""
        raise ValueError(f"no set {name!r} is proven for Python {python or 'any'}{known}")
    installed = found.installed[python or found.pythons[-1]]
    print("\n".join(f"{package}=={version}" for package, version in installed.items()))
    return 0
