"""What a plan is asked for, and the sentences that it answers with."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from cudriver.stack.collect.driver import assumed, capability
from cudriver.stack.model import Driver
from cudriver.stack.record import Record, fresh
from cudriver.stack.tables import table
from cudriver.stack.versions import cut


class Line(str):
    """A sentence in English, by its key in data/plan_lines.json; it knows the other languages."""

    languages: dict[str, str]

    def __new__(cls, key: str, **values: object) -> Line:
        known = {lang: text.format(**values) for lang, text in table("plan_lines")[key].items()}
        made = super().__new__(cls, known["en"])
        made.languages = known
        return made


class Question(Record):
    """A question that has been read. No GPU, no driver release, no Python: anything will do."""

    packages: list[str]
    driver: Driver = fresh(Driver)
    python: str | None = None
    installer: str = "uv"
    majors: set[int] | None = None  # of CUDA, in an environment to add to; None: it is a new one
    here: bool = False  # the driver is this machine's
    family: str | None = None  # of distributions, on a new server
    containers: bool = False  # which it runs

    @property
    def gpus(self) -> list[str]:
        """The compute capabilities of the GPUs, each once."""
        known = (device.compute_capability for device in self.driver.devices)
        return list(dict.fromkeys(filter(None, known)))

    def change(self, **values: object) -> Question:
        """The same question, but for these fields."""
        return Question(**{**self.__dict__, **values})


def ask(
    packages: Sequence[str], driver: str | None, gpus: Sequence[str], python: str | None, tool: str
) -> Question:
    """A question from words. Raises ValueError, with one sentence, for what does not exist."""
    known = table("plan")
    one_of(known["make"], tool, f"{tool!r} is no installer")
    names = list(dict.fromkeys(map(framework, packages)))
    one_of(known["frameworks"], next(iter(names), ""), "no package")
    if python is not None:
        one_of(
            known["pythons"], cut(python, 2) or "", f"no framework has wheels for Python {python}"
        )
    return Question(names, assumed(driver, list(map(gpu, gpus))), cut(python, 2), tool)


def one_of(names: Collection[str], name: str, told: str) -> None:
    """Raises ValueError, with the names, for what is none of them."""
    if name not in names:
        raise ValueError(f"{told}; known are {', '.join(names)}")


def framework(name: str) -> str:
    """The framework that a package's name stands for."""
    known, plain = table("plan"), name.strip().lower().replace("_", "-")
    plain = known["aliases"].get(plain, plain)
    one_of(known["frameworks"], plain, f"{name!r} is no package that a plan knows")
    return str(plain)


def gpu(name: str) -> str:
    """The compute capability of a GPU: "9.0", "H100", or as nvidia-smi names it."""
    if re.fullmatch(r"(sm_)?\d+(\.\d)?[af]?", name.strip()):
        return capability(name)
    plain = re.sub(r"nvidia|geforce|tesla|quadro", "", name.lower())
    plain = re.sub(r"[\s_-]+", " ", plain).strip()
    models = {row["name"].lower(): row["capability"] for row in table("plan")["gpus"]}
    known = [each for each in models if re.match(each.replace(" ", " ?") + r"(?!\d)", plain)]
    if not known:
        raise ValueError(f"no GPU {name!r} is known here; state its compute capability, as 9.0")
    return str(models[max(known, key=len)])
