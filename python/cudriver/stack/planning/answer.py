"""The answer to a question: what fits, the newest first; what was run of it; what is needed."""

from __future__ import annotations

import time
from calendar import timegm
from collections.abc import Iterable

from cudriver.stack.facts import ERROR, Environment, Facts, Finding, Framework
from cudriver.stack.fixes import fix
from cudriver.stack.machine_facts import Driver
from cudriver.stack.planning.candidates import Candidate, best, known, number
from cudriver.stack.planning.commands import Instruction, addition, new_driver, new_environment
from cudriver.stack.planning.question import Line, Question
from cudriver.stack.record import Record, but, fresh
from cudriver.stack.rules import registry
from cudriver.stack.tables import driver_cuda, driver_floor, table
from cudriver.stack.versions import major

OLD, VERY_OLD = 90, 365  # days
NOTHING, DERIVED, PROVEN, THERE = "nothing", "derived", "proven", "there"


class Answer(Record):
    """One environment, or what stands in the way of it."""

    packages: list[str]  # the frameworks that it is for
    status: str
    candidate: Candidate | None = None
    says: list[Line] = fresh(list)
    steps: list[Instruction] = fresh(list)


def answer(question: Question) -> list[Answer]:
    """One environment for all the packages, or one for each where they do not fit together."""
    names, whole = question.packages, _one(question)
    if whole.status != NOTHING or len(names) < 2:
        return [whole]
    parts = [_one(but(question, packages=[name]), folder=f"env-{name}") for name in names]
    tried = [row for row in table("proven")["failed"] if {*names} <= {*row["frameworks"]}]
    why = Line("apart", names=titles(names), **tried[0]) if tried else None
    parts[0].says.insert(0, why or Line("each", names=titles(names)))
    return parts


def _one(question: Question, env: Environment | None = None, folder: str = "env") -> Answer:
    """One environment, new or (env) there already."""
    names, driver = question.packages, question.driver
    if question.tegra:
        return Answer(names, NOTHING, None, [Line("jetson")])
    chosen, wanted = best(question), best(but(question, driver=Driver(devices=driver.devices)))
    if chosen is None:
        return _nothing(question, wanted, folder if env is None else None)
    says = _about(chosen, question)
    if _wrong(question) == "absent":
        says += _needs(question, chosen)
    elif wanted and wanted.newness(names)[:-1] > chosen.newness(names)[:-1]:  # CUDA is no reason
        says += _needs(question, wanted)
    steps = addition(chosen, env) if env else new_environment(chosen, question, folder)
    if question.arm:  # what was run was run on x86_64
        steps = [but(each, ran=None) for each in steps]
    status = PROVEN if all(step.ran for step in steps) else DERIVED
    return Answer(names, status, chosen, says, steps)


def titles(names: Iterable[str]) -> str:
    """Frameworks in their own spelling."""
    return " + ".join(table("plan")["frameworks"][name] for name in names)


def _about(chosen: Candidate, question: Question) -> list[Line]:
    """How a candidate is known, and what it asks of the machine."""
    if chosen.name:
        run, (made, filled) = chosen.run(question.python), chosen.ran(question)
        made, filled = (None, None) if question.arm else (made, filled)
        kind = "ran" if made else "filled" if filled else "not ran"
        lines = [Line("set", set=chosen, **run), Line(kind, ran=filled)]
    else:
        tried = [r for r in table("proven")["failed"] if r["packages"] == chosen.packages]
        lines = [Line("tried", set=chosen, **tried[0]) if tried else Line("follows", set=chosen)]
        older = best(question, proven=True)
        if older is not None:
            lines.append(Line("older", set=older, **older.run(question.python)))
    if question.arm:
        date = table("derived")["drawn"]
        lines.insert(0, Line("arm" if chosen.arm is None else "arm wheels", date=date))
    lines.append(Line("floor", floor=chosen.floor_for(question.gpus)))
    if not question.gpus:
        lines.append(Line("served", gpus=", ".join(sorted(chosen.gpus, key=number))))
    compiled = ", ".join(gpu for gpu in question.gpus if gpu in chosen.ptx)
    lines += [Line("ptx", gpus=compiled)] * bool(compiled)
    lines += [Line("unread", names=titles(chosen.unread))] * bool(chosen.unread)
    lines += [Line("toolkit needed", cuda=major(chosen.cuda))] * (not chosen.brings)
    return lines + [Line("compiled", cuda=major(chosen.cuda))] * bool(chosen.source)


def facts(question: Question) -> list[Line]:
    """What the driver runs, whatever is asked for: the first that a plan says."""
    driver, wanted = question.driver, [row["cuda_major"] for row in table("driver")["floors"]]
    runs = [c for c in wanted if not fix.too_old(driver, str(c), driver_floor(str(c)) or "0")]
    lines = []
    if driver.cuda:
        values = {"driver": driver.release or driver.cuda, "cuda": driver.cuda}
        many = Line("reaches", majors=", ".join(map(str, runs)), **values)
        lines.append(many if runs else Line("reaches none", oldest=wanted[0], **values))
    if driver.cuda and runs and "torch" in question.packages:
        rows = [row for row in table("pytorch")["releases"] if number(row["torch"]) >= (2,)]
        known = {cuda for row in rows for cuda in row["cuda"] if major(cuda) in runs[-1:]}
        tags = ", ".join(fix.tag(cuda) for cuda in sorted(known, key=number))
        lines += [Line("indexes", cuda=runs[-1], tags=tags)] * bool(tags)
    return lines


def age() -> list[Line]:
    """What is said of old tables; nothing where they are not."""
    drawn = str(table("derived")["drawn"])
    days = int(time.time() // 86400) - timegm(time.strptime(drawn, "%Y-%m-%d")) // 86400
    return [Line("very old" if days >= VERY_OLD else "old", date=drawn, days=days)] * (days >= OLD)


def compat(question: Question, wanted: Candidate) -> list[Line]:
    """The package that brings a newer libcuda without root, where the driver and GPUs take it."""
    driver, least = question.driver, driver_cuda(wanted.floor_for(question.gpus)) or "0"
    rows = (r for r in table("plan")["compat"] if major(driver.release) in r["branches"])
    takes = [row["cuda"] for row in rows if number(row["cuda"]) >= number(least)]
    unknown = any(fix.out_of_range(driver, device) for device in driver.devices)
    if not takes or unknown or question.centre is False or driver.kind != "native":
        return []
    cuda = min(takes, key=number)
    package = f"cuda-compat-{cuda.replace('.', '-')}"
    return [
        Line("compat" if question.centre else "compat if", set=wanted, cuda=cuda, package=package)
    ]


def _needs(question: Question, wanted: Candidate) -> list[Line]:
    """Which driver a candidate takes, where another one is there or none; first without root."""
    floor, driver = wanted.floor_for(question.gpus), question.driver
    values = {"floor": floor, "branch": fix.branch_for(driver, floor)}
    lines = compat(question, wanted)
    lines.append(Line(_wrong(question), set=wanted, driver=driver.release or driver.cuda, **values))
    lines += [Line("open")] * (fix.modules(driver) == "open")
    return lines + [Line("container")] * (driver.container is not None)


def _wrong(question: Question) -> str:
    """What is wrong with the driver: it is "absent", too new ("last"), or too old ("needs")."""
    driver = question.driver
    if question.here and driver.release is None and driver.cuda is None:
        return "absent"
    found = [wrong[1] for device in driver.devices if (wrong := fix.out_of_range(driver, device))]
    return "last" if "last" in found else "needs"


def _nothing(question: Question, wanted: Candidate | None, folder: str | None) -> Answer:
    """What keeps every candidate away, and what would help."""
    gpus, driver = question.gpus, question.driver.release or question.driver.cuda
    found = [(each, each.obstacles(question)) for each in known(question.packages, question.arm)]
    pythons = {python for each, kinds in found if kinds == {"python"} for python in each.pythons}
    floors = [each.floor_for(gpus) for each, kinds in found if kinds == {"driver"}]
    kind = "no python" if pythons else "misfit"
    if wanted is not None:
        kind = "too new" if _wrong(question) == "last" else "too old"
    elif question.arm and not found:
        kind = "no arm"
    elif found and all("gpu" in kinds for _, kinds in found):
        kind = "no code"
    values = {"names": titles(question.packages), "python": question.python, "driver": driver}
    values["date"] = table("derived")["drawn"]
    ordered = sorted(pythons, key=lambda python: (number(python.rstrip("t")), python))
    values |= {"gpus": ", ".join(gpus), "pythons": ", ".join(ordered)}
    lines = [Line(kind, floor=min(floors, key=number, default=""), **values)]
    part = Answer(question.packages, NOTHING, wanted, lines)
    if wanted is None:
        return part
    part.says += [*_needs(question, wanted), _about(wanted, question)[0]]
    if folder is not None:
        part.says.append(Line("ubuntu"))
        part.steps = [new_driver(question.driver, wanted.floor_for(gpus))]
        part.steps += new_environment(wanted, question, folder)
    return part


def add(question: Question, facts: Facts) -> list[Answer]:
    """What may be added to an environment that is there: of its CUDA major, for its Python."""
    there = {framework.name: framework for framework in facts.frameworks}
    majors = {major(f.cuda) or 0 for f in facts.frameworks if f.variant == "cuda" and f.cuda}
    parts = []
    for name in question.packages:
        alone = but(question, packages=[name])
        held = but(alone, majors=majors)
        parts.append(_there(facts, there[name]) if name in there else _one(held, facts.environment))
        if parts[-1].status == NOTHING:
            parts.append(_one(alone, folder=f"env-{name}"))
    return parts


def _there(facts: Facts, framework: Framework) -> Answer:
    """A framework that is there, and what the check says of it on this driver and these GPUs."""
    own = but(facts, frameworks=[framework])
    rules = map(registry().__getitem__, ("CU103", "CU501", "CU401"))
    found = [finding for rule in rules for finding in rule(own)]
    found = [finding for finding in found if finding.severity == ERROR or finding.rule == "CU401"]
    says = [Line("has", framework=titles([framework.name]), version=framework.version)]
    says += [Line("finding", rule=each.rule, title=each.title) for each in found]
    steps = [*map(_mend, found)]
    return Answer([framework.name], NOTHING if found else THERE, None, says, steps)


def _mend(finding: Finding) -> Instruction:
    advice = [f"# {finding.advice}"] if finding.advice else []
    return Instruction(Line("fix"), [*map(str, finding.fix), *advice], [])


def checked(prefix: str, findings: list[Finding]) -> tuple[list[Line], list[Instruction]]:
    """What the check says of an environment before anything is added to it."""
    wrong = [finding for finding in findings if finding.severity == ERROR]
    if not wrong:
        return [Line("checked", prefix=prefix)], []
    says = [Line("check first", prefix=prefix, n=len(wrong))]
    says += [Line("finding", rule=each.rule, title=each.title) for each in wrong]
    return says, [*map(_mend, wrong)]
