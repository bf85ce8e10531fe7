"""The commands of a plan, step by step, each with how to see that it worked."""

from __future__ import annotations

from cudriver.stack.model import Environment
from cudriver.stack.plan.candidates import Candidate, branch_for
from cudriver.stack.plan.question import Line, Question
from cudriver.stack.record import Record, fresh
from cudriver.stack.rules import fix
from cudriver.stack.tables import table
from cudriver.stack.text import quote
from cudriver.stack.versions import compare

FAMILIES = ("debian", "ubuntu", "rhel")
OPEN_FROM = "7.5"  # older GPUs need the proprietary kernel modules, the newest only take the others
FILE = "constraints.txt"


class Step(Record):
    """What to do, and commands that show that it worked."""

    title: Line
    commands: list[str]
    see: list[str] = fresh(list)


def environment(candidate: Candidate, question: Question, folder: str = "env") -> list[Step]:
    """Makes an environment with these packages, from nothing."""
    python, tool = question.python or candidate.pythons[-1], question.installer
    made = [command.format(python=python, folder=folder) for command in table("plan")["make"][tool]]
    prefix = f"{folder}/.pixi/envs/default" if tool == "pixi" else folder
    interpreter = f"{prefix}/bin/python"
    see = [f"{interpreter} --version  # Python {python}"]
    steps = [Step(Line("make the environment"), made, see)]
    words = list(candidate.packages)
    if candidate.dates:
        words = ["--constraint", FILE, *words]
        listed = f"cudriver plan --constraints {candidate.name} --python {python} > {FILE}"
        see = [f"wc -l {FILE}  # {len(candidate.installed[python])}"]
        steps.append(Step(Line("write down every version"), [listed], see))
    env = Environment(prefix, "venv", executable=interpreter)
    by = "uv" if tool == "uv" else "pip"
    install = fix.install(env, *words, by=by, index=candidate.index)
    uses = table("plan")["uses"]
    tried = [f"{interpreter} -c {quote(uses[name])}" for name in candidate.builds]
    steps.append(Step(Line("install the packages"), [install]))
    check = f"cudriver check --strict {quote(prefix)}"
    return [*steps, Step(Line("check it, and compute on the GPU"), [check], tried)]


def addition(candidate: Candidate, env: Environment) -> list[Step]:
    """Adds these packages to an environment that is there; what it has keeps its version."""
    python = quote(env.executable or f"{env.prefix}/bin/python")
    uv = env.installer == "uv"
    asking = f"uv pip list --python {python}" if uv else f"{python} -m pip list"
    words = ["--constraint", FILE, *candidate.packages]
    install = fix.install(env, *words, by="uv" if uv else "pip", index=candidate.index)
    listed = [f"{asking} --format freeze > {FILE}"]
    check = f"cudriver check --strict {quote(env.prefix)}"
    return [
        Step(Line("write down what is there, so that it stays"), listed),
        Step(Line("install the packages"), [install], [check]),
    ]


def server(question: Question, floor: str, family: str, containers: bool) -> list[Step]:
    """A new server, up to where the environment is made."""
    known, branch = table("plan"), branch_for(question.gpus, floor)
    old = any(compare(capability, OPEN_FROM) < 0 for capability in question.gpus)
    wanted = (family, "proprietary" if old else "open")
    (row,) = (r for r in known["drivers"] if (r["family"], r["modules"]) == wanted)
    made = [command.replace("{branch}", str(branch)) for command in row["commands"]]
    title = Line("install the driver, branch R{branch}, and restart", branch=branch)
    steps = [Step(title, made, [f"nvidia-smi  # {branch}"])] if branch else []
    if containers:
        (row,) = (r for r in known["containers"] if r["family"] == family)
        see = ["docker run --rm --gpus all ubuntu nvidia-smi"]
        title = Line("install the container toolkit, for Docker")
        steps.append(Step(title, row["commands"], see))
    title = Line("install {tool}", tool=question.installer)
    tools = known["tools"][question.installer]
    tools = [
        command.replace("{manager}", "dnf" if family == "rhel" else "apt-get") for command in tools
    ]
    return [*steps, Step(title, tools, [f"{question.installer} --version"])]
