"""`cudriver check`: does the CUDA of an environment fit together, and what fixes it."""

from __future__ import annotations

import sys

from cudriver.cli import USAGE_ERROR, target, terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeVar

    from cudriver.stack.collect import Machine
    from cudriver.stack.report import Report

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
    add("--json", action="store_true", help="the report as JSON, schema version 1")
    add("--compact", action="store_true", help="--json as one line, with host, time, job and rank")
    add("--html", metavar="FILE", help="write the report as one HTML file too ('-': to stdout)")
    add("--markdown", metavar="FILE", help="as Markdown too, for an issue ('-': to stdout)")
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


def plain(words: list[str]) -> Namespace:
    """What `parser` makes of words without an option. The usual call does without argparse, which
    takes as long to import and to set up as a tenth of the check.
    """
    from types import SimpleNamespace

    given = SimpleNamespace(prefix=words, timeout=120.0, root="/")
    for name in ("select", "ignore", "needs", "expect"):
        setattr(given, name, [])
    for name in ("all", "json", "compact", "verbose", "strict", "observe", "verify", "no_probe"):
        setattr(given, name, False)
    for name in ("html", "markdown", "match", "match_level", "assume_driver", "assume_gpu", "lang"):
        setattr(given, name, None)
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
    try:
        reports = _reports(arguments)
    except target.BadOption as error:
        terminal.complain(str(error))
        return USAGE_ERROR
    if not _write_files(reports, arguments):
        return USAGE_ERROR
    if arguments.compact:
        _print_lines(reports, arguments)
    elif arguments.json:
        _print_json(reports, arguments)
    elif "-" not in (arguments.html, arguments.markdown):
        _print_text(reports, arguments)
    return exit_code(reports)


def exit_code(reports: list[Report]) -> int:
    """The worst: a mismatch, then what could not be told, then 0."""
    codes = {report.exit_code for report in reports}
    return next((code for code in (1, 3) if code in codes), 0)


def _reports(arguments: Namespace) -> list[Report]:
    from cudriver.stack.collect import collect_machine
    from cudriver.stack.record import but

    first, *others = target.asked(["/"] if arguments.all else arguments.prefix or [None], arguments)
    prefixes = [first.prefix, *(other.prefix for other in others)]
    stated = {"match": arguments.match, "match_level": arguments.match_level or "minor"}
    asked = but(first, needs=arguments.needs, expects=arguments.expect, **stated)
    if arguments.all:
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
    """Many environments, one process or thread a CPU; the machine's half is read before."""
    from cudriver.cli.side_by_side import in_threads, side_by_side

    def died(prefix: str) -> Report:
        return _failed(prefix, ChildProcessError("the process that checked it died"), arguments)

    machine.driver()  # asked once, here
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        return side_by_side(lambda prefix: _report(prefix, machine, arguments), prefixes, died)

    import threading

    own = threading.local()

    def start() -> None:
        own.machine = machine.apart()

    return in_threads(lambda prefix: _report(prefix, own.machine, arguments), prefixes, start)


def _report(prefix: str, machine: Machine, arguments: Namespace) -> Report:
    """One environment's report. What fails in it fails alone."""
    try:
        return _checked(prefix, machine, arguments)
    except Exception as error:
        return _failed(prefix, error, arguments)


def _checked(prefix: str, machine: Machine, arguments: Namespace) -> Report:
    from cudriver.stack.collect import collect, recollect
    from cudriver.stack.report import Report
    from cudriver.stack.rules import judge

    facts = collect(machine.asked.at(prefix), machine)
    findings = judge(facts, None, lambda changes: recollect(facts, machine, changes))
    report = Report(facts, findings, strict=arguments.strict)
    if arguments.observe:
        from cudriver.stack.load.observe import observe

        with terminal.busy(f"importing in {report.prefix}"):
            report.observation = observe(facts, timeout=arguments.timeout)
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


def _each(reports: list[Report], form: Callable[[Report], T], arguments: Namespace) -> Iterator[T]:
    """A form of every report. One that cannot be had gives way to what failed, in `reports` too."""
    for at, report in enumerate(reports):
        try:
            shown = form(report)
        except Exception as error:
            reports[at] = _failed(report.prefix, error, arguments)
            shown = form(reports[at])
        yield shown


def _print_json(reports: list[Report], arguments: Namespace) -> None:
    if len(reports) == 1 and not arguments.all:
        print(*_each(reports, lambda report: report.to_json(), arguments))
        return
    import json

    data = list(_each(reports, lambda report: report.to_dict(), arguments))

    codes = {0: "consistent", 1: "mismatch", 3: "unknown"}
    several = {
        "schema": 1,
        "verdict": codes[exit_code(reports)],
        "reports": data,
    }
    print(json.dumps(several, indent=2))


def _print_lines(reports: list[Report], arguments: Namespace) -> None:
    """Each report in a line of its own, for `cudriver fleet`."""
    import json

    from cudriver.fleet.node import node

    # Another root's programs do not run with these variables.
    here = node() if arguments.root == "/" else node({})
    for data in _each(reports, lambda report: report.to_dict(), arguments):
        print(json.dumps({**data, "node": here}, separators=(",", ":")))


def _print_text(reports: list[Report], arguments: Namespace) -> None:
    from cudriver.stack.report.components import judged_for
    from cudriver.stack.report.text import one_line, render, standing
    from cudriver.stack.text import wrap

    style = terminal.style(sys.stdout)
    if arguments.all:
        # For a pipe, and on a wide terminal, the lines are whole.
        style.width = max(terminal.columns(sys.stdout) or sys.maxsize, terminal.NARROW)
        judged = next(filter(None, (judged_for(report.facts) for report in reports)), "")
        terminal.write(f"{judged}\n" * bool(judged))
        for line in _each(reports, lambda report: one_line(report, style), arguments):
            terminal.write(line + "\n")
        text = summary([standing(report) for report in reports])
        terminal.write("\n".join(wrap(text, style.width)) + "\n")
        return
    verbose = arguments.verbose
    texts = _each(reports, lambda report: render(report, style, verbose=verbose), arguments)
    terminal.write("\n".join(texts))


def summary(standings: list[str]) -> str:
    """The last line of --all: how many environments, and how many of them are not well."""
    from cudriver.stack.say import say

    counts = {kind: standings.count(kind) for kind in ("error", "warning", "unknown")}
    n = len(standings)
    text = say("1 environment" if n == 1 else "{n} environments", n=n) + say(", ")
    text += say("{n} with a mismatch", n=counts["error"] or say("none"))
    if counts["warning"]:
        text += say(", ") + say("{n} with warnings", n=counts["warning"])
    if counts["unknown"]:
        text += say(", ") + say("{n} unknown", n=counts["unknown"])
    return text


def _write_files(reports: list[Report], arguments: Namespace) -> bool:
    try:
        if arguments.html:
            from cudriver.stack.report import html

            page = terminal.signed(html.page(reports), arguments.words)
            terminal.write_file(page, arguments.html)
        if arguments.markdown:
            from cudriver.stack.report import markdown

            terminal.write_file(markdown.page(reports), arguments.markdown)
    except OSError as error:
        terminal.complain_of_file(error)
        return False
    return True


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

    from cudriver.stack.explain import check_rules

    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    try:
        check_rules(names)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return names
