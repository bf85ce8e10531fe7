"""What could be installed: what the index had, and the proven sets; and what rules each out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from cudriver.stack.fixes import fix
from cudriver.stack.planning.question import Question
from cudriver.stack.record import Any, Record, but, fresh
from cudriver.stack.tables import table
from cudriver.stack.versions import major, numbers


class Candidate(Record):
    """Packages that are installed together, as data/proven.json and data/derived.json have them."""

    packages: list[str]
    frameworks: dict[str, dict[str, Any]]  # the version, the CUDA and the architectures of each
    cuda: str  # the newest of them
    floor: str  # the oldest driver, whatever the GPU
    drivers: dict[str, list[str]]  # by the oldest driver: the GPUs that it takes, by capability
    ptx: list[str]  # those GPUs whose code the driver compiles
    pythons: list[str]
    index: str | None = None  # of the wheels; None: PyPI
    name: str = ""  # of a proven set; none: it is not proven
    installed: dict[str, str] = fresh(dict)  # every package that all its Pythons have
    runs: list[dict[str, Any]] = fresh(list)  # the proofs
    source: list[str] = fresh(list)  # what is compiled where it is installed, after the others
    brings: bool = True  # its CUDA; otherwise it takes a toolkit that is there
    date: str = ""  # of the release
    arm: list[str] | None = None  # the Pythons that can have it on aarch64; None: not known

    def __str__(self) -> str:
        known = table("plan")["frameworks"]
        return ", ".join(f"{known[name]} {f['version']}" for name, f in self.frameworks.items())

    @property
    def unread(self) -> list[str]:
        """The frameworks of which nobody has read the code of such a release."""
        return [name for name, row in self.frameworks.items() if not row["archs"]]

    def run(self, python: str | None) -> dict[str, Any]:
        """The proof with a Python; None: with the newest. Nothing, where there is none."""
        return next((run for run in self.runs[::-1] if python in (None, run["python"])), {})

    def ran(self, question: Question) -> tuple[str | None, str | None]:
        """When the commands that make its environment were run, and those that fill it."""
        plans, tool = self.run(question.python).get("plans", {}), question.installer
        return plans.get(tool), plans.get("uv" if tool == "uv" else "pip")

    def versions(self, python: str | None) -> dict[str, str]:
        """Every package of a set, with its version."""
        return {**self.installed, **self.run(python)["installed"]}

    @property
    def newest(self) -> str:
        """The newest of its Pythons that is not free-threaded."""
        return [python for python in self.pythons if not python.endswith("t")][-1]

    @property
    def gpus(self) -> set[str]:
        """The compute capabilities that it has code for."""
        return {gpu for known in self.drivers.values() for gpu in known}

    def floor_for(self, gpus: Sequence[str]) -> str:
        """The oldest driver for these GPUs."""
        floors = [floor for floor, known in self.drivers.items() if {*known}.intersection(gpus)]
        return max([self.floor, *floors], key=number)

    def obstacles(self, question: Question) -> set[str]:
        """The kinds of what keeps it from what was asked for."""
        driver, majors = question.driver, question.majors
        proven, own = self.name != "", major(self.cuda)
        floor = self.floor_for(question.gpus)
        unknown = any(fix.out_of_range(driver, device) for device in driver.devices)
        if driver.release is None and driver.cuda is None:
            unknown = fix.branch_for(driver, floor) is None
        found = {
            "driver": unknown or fix.too_old(driver, self.cuda, floor),
            "gpu": not {*question.gpus} <= self.gpus,
            "python": question.python not in (None, *self.pythons),
            "there": majors is not None and (proven or (majors != set() and own not in majors)),
        }
        return {kind for kind, there in found.items() if there}

    def newness(self, names: Iterable[str]) -> list[tuple[int, ...]]:
        """What is greater for the newer of two candidates: by these packages, then by CUDA."""
        return [*(number(self.frameworks[name]["version"]) for name in names), number(self.cuda)]


def number(version: str) -> tuple[int, ...]:
    """What versions are sorted by; a post-release follows its release, PyTorch's local part does
    not count.
    """
    own, _, post = version.partition("+")[0].partition(".post")
    return (*(numbers(own) or (0,)), *(numbers(post) or ()))


@cache
def sets(name: str) -> list[Candidate]:
    """The "proven" sets, or the releases ("derived", one framework each) that nobody has run."""
    return [Candidate(**row) for row in table(name)["sets"]]


def known(names: Iterable[str], arm: bool = False) -> list[Candidate]:
    """The candidates that have these frameworks, on aarch64 those that may have wheels there."""
    found = [c for c in (*sets("proven"), *sets("derived")) if {*names} <= {*c.frameworks}]
    if not arm:
        return found
    return [c if c.arm is None else but(c, pythons=c.arm) for c in found if c.arm != []]


def best(
    question: Question, proven: bool = False, among: Iterable[Candidate] | None = None
) -> Candidate | None:
    """The fewest frameworks beside those wanted, then the newest, then what was run. proven: of
    the proven sets only; among: of these, of which none is left out.
    """
    names = question.packages

    def rank(each: Candidate) -> tuple[object, ...]:
        versions, usual, size = each.newness(names), each.index is None, len(each.packages)
        least, ran = -len(each.frameworks), each.name != ""
        return (least, versions[:-1], usual, versions, ran, -size, each.name)

    if among is None:
        among = (each for each in known(names, question.arm) if not each.obstacles(question))
    return max((each for each in among if each.name or not proven), key=rank, default=None)
