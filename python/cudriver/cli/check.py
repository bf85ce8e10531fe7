"""`cudriver check`: does the CUDA of an environment fit together, and what fixes it."""

from __future__ import annotations

import sys

from cudriver.cli import USAGE_ERROR, outcome, target, terminal
from cudriver.stack.report.formats import FORMATS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeVar

    from cudriver.stack.collect import Machine
    from cudriver.stack.report import Report
    from cudriver.stack.report.formats import Format
    from cudriver.stack.report.text import How

    T = TypeVar("T")

DESCRIPTION = """\
What CUDA an environment really uses, whether it fits together, what fixes it.
It changes nothing there, and runs nothing from there except with --observe."""

EPILOG = """\
exit status: 0 all that is here for CUDA can use it, 1 something cannot,
             2 usage, 3 could not tell

  cudriver check                           the active environment, or its own
  cudriver check train                     by a name that conda or Jupyter knows
  cudriver check ~/envs/train /opt/conda   others, from outside
  cudriver check --all                     the environments of this machine
  cudriver check --needs torch,jax         both are here and can use CUDA
  cudriver check --match system            is its toolkit the system's
  cudriver check --assume-driver 535.104.05 --assume-gpu 9.0
                                           would it run over there
"""

MANY = 8  # environments from which on several processes or threads pay


def parser() -> ArgumentParser:
    """The command's options."""
    result = terminal.parser(
        "cudriver check",
        description=DESCRIPTION,
        epilog=EPILOG,
        raw=True,
        verbose="every library, every note in full",
    )
    add = result.add_argument
    add(
        "prefix",
        metavar="PREFIX",
        nargs="*",
        help="an environment's folder, or its name in conda or Jupyter",
    )
    add(
        "--all",
        action="store_true",
        help="this environment, those that conda, Jupyter and variables name, and where tools "
        "and people put theirs: a line each",
    )
    for row in (row for row in FORMATS if row.help):
        if row.file:
            add(f"--{row.name}", metavar="FILE", help=row.help)
        else:
            add(f"--{row.name}", action="store_true", help=row.help)
    add("--compact", action="store_true", help="--json as one line, with host, time, job and rank")
    add("--redact", action="store_true", help="home, user and host replaced, as in --markdown")
    add(
        "--needs",
        metavar="NAMES",
        type=_names,
        action="extend",
        default=[],
        help="must be here and use CUDA: torch,jax; a build without CUDA is an error",
    )
    add(
        "--expect",
        metavar="REQUIREMENT",
        type=_requirement,
        action="append",
        default=[],
        help="must be met to the letter: torch==2.8.0+cu128 (repeatable)",
    )
    add("--strict", action="store_true", help="warnings are mismatches too")
    for option, text in (("--select", "only these: CU303,CU4"), ("--ignore", "not these")):
        add(option, metavar="RULES", type=_rules, action="extend", default=[], help=text)
    add("--match", choices=["system"], help="the environment's toolkit must equal the system's")
    add(
        "--match-level",
        choices=["major", "minor", "exact"],
        help="how far, with --match (default: minor, that is major.minor)",
    )
    add(
        "--observe",
        action="store_true",
        help="import the framework with the environment's own Python and compare",
    )
    add("--verify", action="store_true", help="read every file and compare it with RECORD's hash")
    add("--timeout", metavar="SECONDS", type=_seconds, default=120.0, help="of --observe (120)")
    target.add_options(result)
    return result


def without_options(words: list[str]) -> Namespace:
    """What `parser` makes of words without an option. The usual call does without argparse, which
    takes as long to import and to set up as a tenth of the check.
    """
    from types import SimpleNamespace

    given = SimpleNamespace(prefix=words, timeout=120.0, root="/")
    for name in ("select", "ignore", "needs", "expect"):
        setattr(given, name, [])
    flags = ("all", "compact", "redact", "verbose")
    for name in (*flags, "strict", "observe", "verify", "no_probe"):
        setattr(given, name, False)
    for name in ("match", "match_level", "assume_driver", "assume_gpu", "lang"):
        setattr(given, name, None)
    for row in (row for row in FORMATS if row.help):
        setattr(given, row.name, None if row.file else False)
    return given  # type: ignore[return-value]


def run(arguments: Namespace) -> int:
    """Checks, prints, and returns the exit code."""
    if arguments.all and arguments.prefix:
        terminal.complain("--all and PREFIX exclude each other")
        return USAGE_ERROR
    if arguments.observe and arguments.root != "/":
        terminal.complain("--observe runs programs of the environment; not with --root")
        return USAGE_ERROR
    if arguments.compact and not arguments.json:
        terminal.complain("--compact says how --json prints: add --json")
        return USAGE_ERROR
    if arguments.match_level and not arguments.match:
        terminal.complain("--match-level says how far --match goes: add --match system")
        return USAGE_ERROR
    if outcome.crowded(arguments):
        return USAGE_ERROR
    try:
        reports = _reports(arguments)
    except target.BadOption as error:
        terminal.complain(str(error))
        return USAGE_ERROR
    if arguments.redact:
        reports = [report.redacted() for report in reports]
    from cudriver.stack.report.outcome import exit_code

    how = _how(arguments)
    try:
        for row in FORMATS:
            path = getattr(arguments, row.name, None)
            if row.file and path:
                terminal.write_file(_written(row, reports, how, arguments), path)
    except OSError as error:
        terminal.complain_of_file(error)
        return USAGE_ERROR
    printed = _printed(arguments)
    if printed is not None:
        terminal.write(_written(printed, reports, how, arguments))
    return exit_code(reports)


def _reports(arguments: Namespace) -> list[Report]:
    from cudriver.stack.collect import collect_machine
    from cudriver.stack.record import but

    first, *others = target.asked(["/"] if arguments.all else arguments.prefix or [None], arguments)
    prefixes = [first.prefix, *(other.prefix for other in others)]
    stated = {"match": arguments.match, "match_level": arguments.match_level or "minor"}
    asked = but(first, needs=arguments.needs, expects=arguments.expect, **stated)
    if arguments.all:
        asked = but(asked, started="")
        from cudriver.stack.environment.discover import find_environments

        prefixes = [found.prefix for found in find_environments(arguments.root)]
    machine = collect_machine(asked, prefixes)
    if arguments.verify:
        from cudriver.stack.integrity.verify import verify

        def track(done: Iterable[T], total: int) -> Iterable[T]:
            return terminal.progress(done, total, "comparing hashes")

        machine.verify = lambda facts, loader: verify(asked.root, facts, loader, track)
    if len(prefixes) < MANY or arguments.observe or arguments.verify:
        one = (_report(prefix, machine, arguments) for prefix in prefixes)
        return list(terminal.progress(one, len(prefixes), "checking"))
    reports = _side_by_side(prefixes, machine, arguments)
    return list(terminal.progress(reports, len(prefixes), "checking"))


def _side_by_side(prefixes: list[str], machine: Machine, arguments: Namespace) -> Iterator[Report]:
    """Many environments, one process a CPU; the machine's half is read before."""
    from cudriver.cli.side_by_side import side_by_side

    def died(prefix: str) -> Report:
        return _failed(prefix, ChildProcessError("the process that checked it died"), arguments)

    machine.driver()  # asked once, here
    return side_by_side(lambda prefix: _report(prefix, machine, arguments), prefixes, died)


def _report(prefix: str, machine: Machine, arguments: Namespace) -> Report:
    """One environment's report. What fails in it fails alone."""
    try:
        return _checked(prefix, machine, arguments)
    except Exception as error:
        return _failed(prefix, error, arguments)


def _checked(prefix: str, machine: Machine, arguments: Namespace) -> Report:
    from cudriver.stack.collect import collect, recollect
    from cudriver.stack.record import but
    from cudriver.stack.report import Report
    from cudriver.stack.rules import judge

    facts = collect(machine.asked.at(prefix), machine)
    observation = None
    if arguments.observe:
        from cudriver.stack.load.observe import observe

        with terminal.busy(f"importing in {facts.environment.prefix}"):
            observation = observe(facts, timeout=arguments.timeout)
        facts = but(facts, imports=observation.imports)
    findings = judge(facts, None, lambda changes: recollect(facts, machine, changes))
    report = Report(facts, findings, strict=arguments.strict, observation=observation)
    if arguments.select or arguments.ignore:
        report = report.restricted(arguments.select, arguments.ignore)
    return report


def _failed(prefix: str, error: Exception, arguments: Namespace) -> Report:
    """The report of an environment whose check failed: it could not be told, and why."""
    from cudriver.stack.facts import Environment, Facts, Problem
    from cudriver.stack.report import Report

    terminal.complain_of_failure(error, f"{prefix}: ", trace=arguments.verbose)
    why = f"the check failed: {terminal.failure(error)}"
    facts = Facts(Environment(prefix, "unknown"), root=arguments.root)
    facts.problems.append(Problem(prefix, why))
    facts.unsure.append(f"{prefix}: {why}")
    return Report(facts, [], strict=arguments.strict)


def _how(arguments: Namespace) -> How:
    """What the formats may heed."""
    from cudriver.stack.report.text import How

    style = terminal.style(sys.stdout)
    if arguments.all:  # for a pipe, and on a wide terminal, the lines are whole
        style.width = max(terminal.columns(sys.stdout) or sys.maxsize, terminal.NARROW)
    here = None
    if arguments.compact:
        from cudriver.fleet.node import node

        # Another root's programs do not run with these variables.
        here = node() if arguments.root == "/" else node({})
        if arguments.redact:
            from cudriver.stack.report.redaction import redacted

            here = redacted(here) | {"host": "host", "boot_id": None}
            named = [name for name in here["scheduler"] if name.endswith("NAME")]  # of the node
            here["scheduler"] |= dict.fromkeys(named, "host")
    words, redact = arguments.words, arguments.redact
    return How(style, arguments.verbose, arguments.all, here, words, redact)


def _printed(arguments: Namespace) -> Format | None:
    """The format that is printed; None where a file went to standard output."""
    given = [row for row in FORMATS if getattr(arguments, row.name, None)]
    if any(not row.file for row in given):
        return next(row for row in given if not row.file)
    if any(getattr(arguments, row.name) == "-" for row in given):
        return None
    name = "list" if arguments.all else "text"
    return next(row for row in FORMATS if row.name == name)


def _written(row: Format, reports: list[Report], how: How, arguments: Namespace) -> str:
    """The reports in a format. One that cannot be written is replaced, in `reports` too."""
    try:
        return row.write(reports, how)
    except Exception:
        for at, report in enumerate(reports):
            try:
                row.write([report], how)
            except Exception as error:
                reports[at] = _failed(report.prefix, error, arguments)
    return row.write(reports, how)


def _seconds(text: str) -> float:
    """A time limit; what is none, or has no end, is a usage error."""
    from argparse import ArgumentTypeError

    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def _names(text: str) -> list[str]:
    """ "torch,jax" as a list; what is no package's name is a usage error."""
    from cudriver.stack.rules.cu6 import needed

    return [_understood(needed, name) for name in text.split(",")]


def _requirement(text: str) -> str:
    """A requirement; what is none is a usage error."""
    from cudriver.stack.rules.cu6 import expected

    return _understood(expected, text)


def _understood(parse: Callable[[str], str], text: str) -> str:
    from argparse import ArgumentTypeError

    try:
        return parse(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def _rules(text: str) -> list[str]:
    """ "CU303,CU4" as a list; what is not a rule or the start of one is a usage error."""
    from argparse import ArgumentTypeError

    from cudriver.stack.rulebook import check_rules

    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    try:
        check_rules(names)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return names
