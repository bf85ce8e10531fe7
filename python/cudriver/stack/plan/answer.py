"""The answer to a question: proven sets first, then what the tables allow, then what is needed."""

from __future__ import annotations

from cudriver.stack.plan import commands
from cudriver.stack.plan.candidates import (
    DRIVER,
    GPU,
    PYTHON,
    Candidate,
    branch_for,
    derived,
    newness,
    number,
    proven,
)
from cudriver.stack.plan.question import Line, Question, framework
from cudriver.stack.record import Record, fresh
from cudriver.stack.rules import fix
from cudriver.stack.rules.cu5 import out_of_range
from cudriver.stack.tables import table
from cudriver.stack.versions import cut, major

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from cudriver.stack.model import Environment, Facts
    from cudriver.stack.plan.commands import Step

PROVEN, DERIVED, NOTHING = "proven", "derived", "nothing"


class Part(Record):
    """One environment, or what stands in the way of it."""

    packages: list[str]  # the frameworks that it is for
    status: str
    candidate: Candidate | None = None
    says: list[Line] = fresh(list)
    steps: list[Step] = fresh(list)


def answer(question: Question) -> list[Part]:
    """One environment for all the packages, or one for each where they do not fit together."""
    whole = _one(question)
    if whole.status != NOTHING or len(question.packages) < 2:
        return [whole]
    parts = [_one(question.change(packages=[n]), folder=f"env-{n}") for n in question.packages]
    parts[0].says.insert(0, _apart(question))
    return parts


def _one(question: Question, env: Environment | None = None, folder: str = "env") -> Part:
    """One environment, new or (env) there already."""
    chosen, wanted = best(question), _with_newer_driver(question)
    if chosen is None:
        return _nothing(question, wanted)
    part = Part(question.packages, PROVEN if chosen.dates else DERIVED, chosen)
    part.says = _about(chosen, question) + _needs(question, wanted)
    part.steps = commands.environment(chosen, question, folder)
    if env is not None:
        part.steps = commands.addition(chosen, env)
    return part


def best(question: Question) -> Candidate | None:
    """The set with the fewest frameworks beside those wanted, then the newest. Without one, or for
    an environment that is there and no set, what the tables allow: they know one framework each.
    """
    names = question.packages
    sets = [] if question.adding else _with(names, proven())
    fitting = [each for each in sets if not each.obstacles(question)]
    if not fitting:
        known = _with(names, derived())
        fitting = [each for each in known if not each.obstacles(question)]

    def rank(each: Candidate) -> tuple[object, ...]:
        versions, usual = newness(each, names), each.index is None
        return (-len(each.builds), versions[:-1], usual, versions, -len(each.packages), each.name)

    return max(fitting, key=rank, default=None)


def _with(names: list[str], candidates: Iterable[Candidate]) -> list[Candidate]:
    return [each for each in candidates if {*names} <= {*each.builds}]


def _with_newer_driver(question: Question) -> Candidate | None:
    """What another driver than the one that is there would allow; None: nothing newer."""
    chosen, other, names = best(question), best(question.on(None)), question.packages
    if other is None or chosen is None:
        return other
    newer = newness(other, names)[:-1] > newness(chosen, names)[:-1]  # CUDA alone is no reason
    return other if newer else None


def _names(candidate: Candidate, names: Iterable[str]) -> str:
    return ", ".join(f"{title(name)} {candidate.builds[name].version}" for name in names)


def _about(chosen: Candidate, question: Question) -> list[Line]:
    """How a candidate is known, and what it asks of the machine."""
    python = question.python or chosen.pythons[-1]
    text = "{names} for CUDA {cuda}: follows from the tables; nobody has run this set."
    if chosen.dates:
        text = (
            "{names} for CUDA {cuda}: the set {set}, installed with uv and imported on {date} with "
            "Python {python}, without a GPU."
        )
    values = {"set": chosen.name, "date": chosen.dates.get(python), "python": python}
    lines = [Line(text, names=_names(chosen, chosen.builds), cuda=chosen.cuda, **values)]
    lines.append(Line("It takes driver {floor} or newer.", floor=chosen.floor(question.gpus)))
    ptx = [capability for capability in question.gpus if chosen.serves(capability) == "ptx"]
    if ptx:
        text = "For compute capability {gpus} it has PTX, which the driver compiles at first use."
        lines.append(Line(text, gpus=", ".join(ptx)))
    if not question.gpus:
        known = (row["capability"] for row in table("driver")["architectures"])
        served = ", ".join(capability for capability in known if chosen.serves(capability))
        lines.append(Line("It serves GPUs of compute capability {gpus}.", gpus=served))
    return lines


def _needs(question: Question, wanted: Candidate | None) -> list[Line]:
    """What a newer driver would bring, and how to get that driver."""
    if wanted is None:
        return []
    floor, driver = wanted.floor(question.gpus), question.driver
    branch = branch_for(question.gpus, floor)
    text = "{names} needs driver {floor} or newer; this is {driver}. To install one:"
    if _past(question):
        text = "{names} needs driver R{branch}, the last that knows this GPU. To install it:"
    values = {"names": _names(wanted, question.packages), "branch": branch, "floor": floor}
    lines = [Line(text, **values, driver=driver.release or driver.cuda)]
    lines.append(Line("{it}", it=fix.driver_package(None, branch)))
    if driver.container:
        lines.append(Line("This is a container: its driver is the host's, and changed there."))
    return lines


def _past(question: Question) -> bool:
    """Whether the driver is too new for a GPU."""
    found = [out_of_range(question.driver, device) for device in question.driver.devices]
    return any(wrong is not None and wrong[1] == "last" for wrong in found)


def _apart(question: Question) -> Line:
    """Why packages do not go into one environment."""
    names = " + ".join(map(title, question.packages))
    for row in table("proven")["failed"]:
        if {*question.packages} <= {*row["frameworks"]}:
            text = "{names}: an environment each. Tried together on {date}: {reason}"
            return Line(text, names=names, date=row["date"], reason=row["reason"])
    return Line("{names}: an environment each. Nothing known fits as one here.", names=names)


def _nothing(question: Question, wanted: Candidate | None) -> Part:
    """What keeps every candidate away, and what would help."""
    part = Part(question.packages, NOTHING, wanted)
    every = _with(question.packages, [*proven(), *derived()])
    kinds = [each.obstacles(question) for each in every]
    others = [each for each in every if each.obstacles(question) == {PYTHON}]
    pythons = sorted({python for each in others for python in each.pythons}, key=number)
    text = "No {names} fits this driver, GPU and Python together."
    floors = [e.floor(question.gpus) for e in every if e.obstacles(question) == {DRIVER}]
    if wanted is not None:
        text = "No {names} works with driver {driver} here; from {first} on there is one."
        if _past(question):
            text = "No {names} works here: driver {driver} knows this GPU no more."
        part.steps = commands.environment(wanted, question)
    elif every and all(GPU in found for found in kinds):
        text = "No {names} that is known here is sure to have code for compute capability {gpus}."
    elif others:
        text = "No {names} for this GPU and driver is for Python {python}; known are {pythons}."
    values = {
        "names": " + ".join(map(title, question.packages)),
        "gpus": ", ".join(question.gpus),
        "python": question.python,
        "pythons": ", ".join(pythons),
        "driver": question.driver.release or question.driver.cuda,
        "first": min(floors, key=number, default=""),
    }
    part.says = [Line(text, **values), *_needs(question, wanted)]
    if part.steps:
        part.says.append(Line("With that driver:"))
    return part


def add(question: Question, facts: Facts) -> list[Part]:
    """What may be added to an environment that is there: of its CUDA major, for its Python."""
    there = {f.name: f for f in facts.frameworks if f.variant == "cuda" and f.cuda}
    parts = []
    for name in set(question.packages).intersection(there):
        values = {"name": title(name), "version": there[name].version}
        says = [Line("{name} {version} is there already.", **values)]
        parts.append(Part([name], PROVEN, None, says))
    majors = {major(framework.cuda) or 0 for framework in there.values()}
    for name in question.packages:
        if name not in there:
            asked = question.change(packages=[name], majors=majors, adding=True)
            parts.append(_one(asked, facts.environment))
            if parts[-1].status == NOTHING:
                parts.append(_one(question.change(packages=[name]), folder=f"env-{name}"))
    return parts


def packages(facts: Facts, name: str) -> list[str]:
    """What an environment of its own for a framework begins with; where no plan is, its name."""
    try:
        wanted = Question([framework(name)], facts.driver, cut(facts.environment.python, 2))
        wanted = wanted.change(adding=True)
    except ValueError:
        return [name]
    chosen = best(wanted)
    if chosen is None:
        return [name]
    return [*chosen.packages, *(["--index-url", chosen.index] if chosen.index else [])]


def before(question: Question, parts: list[Part], family: str, containers: bool) -> list[Step]:
    """What a new server needs before its environments: the driver for the newest of them."""
    floors = [p.candidate.floor(question.gpus) for p in parts if p.candidate] or ["0"]
    return commands.server(question, max(floors, key=number), family, containers)


def title(name: str) -> str:
    """A framework's own spelling of its name."""
    return str(table("plan")["frameworks"][name])
