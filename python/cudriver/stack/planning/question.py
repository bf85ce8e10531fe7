"""What a plan is asked for, and the sentences that it answers with."""

from __future__ import annotations

from collections.abc import Collection

from cudriver.stack.machine_facts import Driver
from cudriver.stack.record import Record, fresh
from cudriver.stack.say import say, translate
from cudriver.stack.tables import table


class Line(str):
    """A sentence in English, by its key in data/plan.json."""

    template: str
    values: dict[str, object]

    def __new__(cls, key: str, **values: object) -> Line:
        template = table("plan")["lines"][key]
        made = super().__new__(cls, template.format(**values))
        made.template, made.values = template, values
        return made

    @property
    def own(self) -> str:
        """The sentence in the reader's language."""
        values = dict(self.values)
        if "rule" in values:
            values["title"] = translate(str(values["title"]), str(values["rule"]))
        return say(self.template, **values)


class Question(Record):
    """A question that has been read. No GPU, no driver release, no Python: anything will do."""

    packages: list[str]
    driver: Driver = fresh(Driver)
    python: str | None = None
    installer: str = "uv"
    majors: set[int] | None = None  # of CUDA, in an environment to add to; None: it is a new one
    here: bool = False  # the driver is this machine's
    centre: bool | None = None  # the GPUs are for data centres; None: that is not known
    arm: bool = False  # the GPUs sit beside Arm processors

    @property
    def gpus(self) -> list[str]:
        """The compute capabilities of the GPUs, each once."""
        known = (device.compute_capability for device in self.driver.devices)
        return list(dict.fromkeys(filter(None, known)))

    @property
    def tegra(self) -> bool:
        """Whether one of the GPUs is a Tegra's, whose drivers are numbered apart."""
        rows = [row for row in table("driver")["architectures"] if row["capability"] in self.gpus]
        return any(row["first_branch"] is None and row["last_branch"] is None for row in rows)


def one_of(names: Collection[str], name: str, wrong: str) -> None:
    """Raises ValueError, with the names, for what is none of them."""
    if name not in names:
        raise ValueError(f"{wrong}; known are {', '.join(names)}")
