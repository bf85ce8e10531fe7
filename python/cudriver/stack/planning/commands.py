"""The commands of a plan, step by step, each with how to see that it worked."""

from __future__ import annotations

from collections.abc import Iterator

from cudriver.stack.facts import Environment
from cudriver.stack.fixes import fix
from cudriver.stack.machine_facts import Driver
from cudriver.stack.planning.candidates import Candidate
from cudriver.stack.planning.question import Line, Question
from cudriver.stack.record import Record, but
from cudriver.stack.tables import table
from cudriver.stack.text import quote
from cudriver.stack.versions import satisfies

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LISTED = "constraints.txt"


class Instruction(Record):
    """What to do, and commands that show that it worked."""

    title: Line
    commands: list[str]
    see: list[str]
    ran: str | None = None  # when the commands were run, for this set and Python


def step(title: str, commands: list[str], see: list[str], **values: object) -> Instruction:
    """A step by the name of its title, with values in the commands."""
    return Instruction(Line(title, **values), [each.format(**values) for each in commands], see)


def new_environment(
    candidate: Candidate, question: Question, folder: str = "env"
) -> list[Instruction]:
    """Makes an environment with these packages, from nothing."""
    known, tool = table("plan"), question.installer
    python = question.python or candidate.newest
    prefix = known["prefixes"][tool].format(folder=folder)
    env = Environment(prefix, "venv", executable=f"{prefix}/bin/python", installer=tool)
    see = [f"{env.executable} --version  # Python {python}"]
    number, free = python.rstrip("t"), " python-freethreading" * python.endswith("t")
    values = {"python": python, "folder": folder, "conda": f"python={number}{free}"}
    steps = [step("make", known["make"][tool], see, **values)]
    if candidate.name:
        wanted = f"cudriver plan --constraints {candidate.name} --python {python} > {LISTED}"
        see = [f"wc -l {LISTED}  # {len(candidate.versions(python))}"]
        steps.append(Instruction(Line("versions"), [wanted], see))
    made, filled = candidate.ran(question)  # what conda or pixi made, pip fills
    first, *others = [*steps, *_install(env, candidate, candidate.name != "")]
    return [but(first, ran=made), *(but(each, ran=filled) for each in others)]


def addition(candidate: Candidate, env: Environment) -> list[Instruction]:
    """Adds these packages to an environment that is there; what it has keeps its version."""
    listed = f"{_pip(env, 'list')} --format freeze > {LISTED}"
    kept = Instruction(Line("keep"), [listed], [f"wc -l {LISTED}"])
    return [kept, *_install(env, candidate, True)]


def _install(env: Environment, candidate: Candidate, held: bool) -> list[Instruction]:
    python, uses = quote(env.executable or f"{env.prefix}/bin/python"), table("plan")["uses"]
    used = [f"{python} -c {quote(uses[name])}" for name in candidate.frameworks]
    listed, by = LISTED if held else None, "uv" if env.installer == "uv" else "pip"
    words = [*candidate.packages, *(() if candidate.name else _bounds(candidate.frameworks))]
    made = [str(fix.install(env, *words, by=by, index=candidate.index, held=listed))]
    if candidate.source:  # it is compiled against what was installed before
        made.append(
            f"{_pip(env, 'install')} --no-build-isolation {' '.join(map(quote, candidate.source))}"
        )
    return [
        Instruction(Line("install"), made, [_pip(env, "check")]),
        Instruction(Line("check"), [f"cudriver check --strict {quote(env.prefix)}"], used),
    ]


def _bounds(frameworks: dict[str, dict[str, Any]]) -> Iterator[str]:
    """What keeps an installer from newer releases of others, with which these are known to fail."""
    for row in table("pairs")["pairs"]:
        version = frameworks.get(row["package"], {}).get("version", "")
        if row["fails"].startswith(">=") and version and satisfies(version, row["versions"]):
            yield row["with"] + row["wants"]


def _pip(env: Environment, verb: str) -> str:
    python = quote(env.executable or f"{env.prefix}/bin/python")
    uv = env.installer == "uv"
    return f"uv pip {verb} --python {python}" if uv else f"{python} -m pip {verb}"


def new_driver(driver: Driver, floor: str) -> Instruction:
    """Installs a driver of at least that release for the same GPUs, as Ubuntu has it."""
    branch = fix.branch_for(driver, floor)
    old = fix.modules(driver) == "proprietary"
    values = {"branch": branch, "kind": "" if old else "-open"}
    return step("driver", table("plan")["driver"], [f"nvidia-smi  # {branch}"], **values)
